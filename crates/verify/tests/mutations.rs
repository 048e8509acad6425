//! Good plans with one thing changed: each change is caught, or shown to be harmless by running the plan.
//!
//! The figures are counted anew after each change, so that no change is caught by a sum that is off. Whatever
//! `verify` still accepts must give what the graph says under every interleaving tried, and must show the
//! simulated device no hazard.

mod support;

use std::collections::BTreeMap;

use plimsoll_device::sim::SimFaults;
use plimsoll_graph::Graph;
use plimsoll_plan::{CopyEntry, Line, Offload, Plan, Request, lower_bound, plan};
use plimsoll_verify::Violation;
use support::naive::{self, Style};
use support::{Random, Slow, graphs, oracle, simulated, verify};

type Mutation = (&'static str, fn(&mut Plan, &mut Random) -> bool);

/// Index of a random entry, if there is one.
fn any<T>(list: &[T], random: &mut Random) -> usize {
    random.below(list.len())
}

/// Each says whether it changed anything.
const MUTATIONS: [Mutation; 23] = [
    ("swap the offsets of two tensors", |plan, random| {
        let (a, b) = (any(&plan.tensors, random), any(&plan.tensors, random));
        let (at_a, at_b) = (plan.tensors[a].offset, plan.tensors[b].offset);
        (plan.tensors[a].offset, plan.tensors[b].offset) = (at_b, at_a);
        at_a != at_b
    }),
    ("move a tensor by 256", |plan, random| {
        let tensor = any(&plan.tensors, random);
        plan.tensors[tensor].offset = plan.tensors[tensor]
            .offset
            .wrapping_add_signed(if random.below(2) == 0 { 256 } else { -256 });
        plan.tensors[tensor].bytes > 0
    }),
    ("put a tensor where another is", |plan, random| {
        let (a, b) = (any(&plan.tensors, random), any(&plan.tensors, random));
        let changes = plan.tensors[a].offset != plan.tensors[b].offset;
        plan.tensors[a].offset = plan.tensors[b].offset;
        changes
    }),
    ("put a tensor where a load is", |plan, random| {
        let (a, b) = (any(&plan.tensors, random), any(&plan.loads, random));
        let changes = plan.tensors[a].offset != plan.loads[b].region.offset;
        plan.tensors[a].offset = plan.loads[b].region.offset;
        changes
    }),
    ("move a load by 256", |plan, random| {
        let load = any(&plan.loads, random);
        let by = if random.below(2) == 0 { 256 } else { -256 };
        let offset = &mut plan.loads[load].region.offset;
        *offset = offset.wrapping_add_signed(by);
        true
    }),
    ("put a load where another is", |plan, random| {
        let (a, b) = (any(&plan.loads, random), any(&plan.loads, random));
        let changes = plan.loads[a].region.offset != plan.loads[b].region.offset;
        plan.loads[a].region.offset = plan.loads[b].region.offset;
        changes
    }),
    ("put a workspace somewhere else", |plan, random| {
        let (a, b) = (any(&plan.workspaces, random), any(&plan.tensors, random));
        let changes = plan.workspaces[a].offset != plan.tensors[b].offset;
        plan.workspaces[a].offset = plan.tensors[b].offset;
        changes && plan.workspaces[a].bytes > 0
    }),
    ("shrink a workspace", |plan, random| {
        let workspace = any(&plan.workspaces, random);
        let bytes = &mut plan.workspaces[workspace].bytes;
        *bytes = bytes.saturating_sub(1);
        *bytes > 0
    }),
    ("let a compute need one copy less", |plan, random| {
        let compute = any(&plan.computes, random);
        let needs = &mut plan.computes[compute].needs;
        *needs = needs.saturating_sub(1);
        true
    }),
    ("let a compute need nothing", |plan, random| {
        let compute = any(&plan.computes, random);
        std::mem::take(&mut plan.computes[compute].needs) > 0
    }),
    ("let a compute need one copy more", |plan, random| {
        let compute = any(&plan.computes, random);
        plan.computes[compute].needs += 1;
        true
    }),
    ("let a copy wait for one compute less", |plan, random| {
        let copy = any(&plan.copies, random);
        let after = &mut plan.copies[copy].after;
        *after = after.saturating_sub(1);
        true
    }),
    ("let a copy wait for nothing", |plan, random| {
        let copy = any(&plan.copies, random);
        std::mem::take(&mut plan.copies[copy].after) > 0
    }),
    ("let a copy wait for one compute more", |plan, random| {
        let copy = any(&plan.copies, random);
        plan.copies[copy].after += 1;
        true
    }),
    ("exchange two copies", |plan, random| {
        let (a, b) = (any(&plan.copies, random), any(&plan.copies, random));
        plan.copies.swap(a, b);
        a != b
    }),
    ("exchange the loads of two neighbouring copies", |plan, random| {
        let at = any(&plan.copies[1..], random);
        let (a, b) = (plan.copies[at].load, plan.copies[at + 1].load);
        (plan.copies[at].load, plan.copies[at + 1].load) = (b, a);
        a != b
    }),
    ("drop a copy", |plan, random| {
        let copy = any(&plan.copies, random);
        plan.copies.remove(copy);
        true
    }),
    ("drop a copy and count without it", |plan, random| {
        let copy = any(&plan.copies, random);
        plan.copies.remove(copy);
        for compute in &mut plan.computes {
            compute.needs -= u32::from(compute.needs as usize > copy);
        }
        true
    }),
    ("copy twice", |plan, random| {
        let at = any(&plan.copies, random);
        let copy: CopyEntry = plan.copies[at];
        plan.copies.insert(at, copy);
        true
    }),
    ("name another load in a visit", |plan, random| {
        let (visit, load) = (any(&plan.visits, random), any(&plan.loads, random));
        match plan.visits[visit].loads.first_mut() {
            Some(named) => std::mem::replace(named, load as u32) != load as u32,
            None => false,
        }
    }),
    ("reserve a byte less beside the arena", |plan, _| {
        plan.reserved_bytes -= 1;
        true
    }),
    ("lower the line to under the process", |plan, _| {
        plan.line_bytes = plan.predicted.vram_process_bytes - 1;
        true
    }),
    ("name one load more in a visit", |plan, random| {
        let (visit, load) = (any(&plan.visits, random), any(&plan.loads, random));
        plan.visits[visit].loads.push(load as u32);
        true
    }),
];

#[derive(Default)]
struct Tally {
    caught: u32,
    accepted: u32,
    /// Caught by order or content, and shown to go wrong.
    shown: u32,
    of: u32,
}

fn mutate_all(
    graph: &Graph,
    plans: &[(String, Plan)],
    rounds: u64,
) -> BTreeMap<&'static str, Tally> {
    let expected = oracle::reference(graph);
    let mut tallies: BTreeMap<&'static str, Tally> = BTreeMap::new();
    for (style, good) in plans {
        verify(graph, good).expect("a good plan");
        for (name, mutate) in &MUTATIONS {
            for seed in 0..rounds {
                let mut random = Random::new(seed * 31 + rounds);
                let mut plan = good.clone();
                if plan.copies.len() < 2 || !mutate(&mut plan, &mut random) {
                    continue;
                }
                naive::predict(graph, &mut plan);
                let tally = tallies.entry(name).or_default();
                match verify(graph, &plan) {
                    Ok(_) => {
                        tally.accepted += 1;
                        oracle::agrees(graph, &plan, &expected, 4).unwrap_or_else(|error| {
                            panic!("{name} ({style}, seed {seed}) was accepted, but {error}")
                        });
                        let faults =
                            SimFaults { seed, copy_delay_seconds: 9.0, ..SimFaults::default() };
                        simulated::run(graph, &plan, faults).unwrap_or_else(|error| {
                            panic!("{name} ({style}, seed {seed}) was accepted, but {error}")
                        });
                    }
                    Err(violation) => {
                        tally.caught += 1;
                        if is_about_order(&violation) && seed % 4 == 0 {
                            tally.of += 1;
                            let goes_wrong = oracle::agrees(graph, &plan, &expected, 6).is_err();
                            tally.shown += u32::from(goes_wrong);
                        }
                    }
                }
            }
        }
    }
    tallies
}

fn is_about_order(violation: &Violation) -> bool {
    matches!(
        violation,
        Violation::Race { .. }
            | Violation::Deadlock { .. }
            | Violation::TensorContent { .. }
            | Violation::WeightContent { .. }
    )
}

/// Naive plans, and what the planner makes of tight and wide lines.
fn plans(graph: &Graph) -> Vec<(String, Plan)> {
    let mut plans: Vec<(String, Plan)> =
        [Style::Apart, Style::Slots(2), Style::Slots(3), Style::Leaves(2), Style::Mixed(1)]
            .map(|style| (format!("{style:?}"), naive::plan(graph, style)))
            .into();
    let least = lower_bound(graph, &Slow);
    for (line, offload) in [
        (Line::Min, Offload::Auto),
        (Line::Bytes(least * 5 / 4), Offload::Auto),
        (Line::Bytes(least * 2), Offload::Auto),
        (Line::Min, Offload::Group { blocks: 1 }),
    ] {
        let request = Request { line, offload, prefetch: true };
        plans.push((format!("{offload} at {line}"), plan(graph, &Slow, &request).expect("fits")));
    }
    plans
}

fn check(graph: &Graph, rounds: u64) {
    let tallies = mutate_all(graph, &plans(graph), rounds);
    let (mut shown, mut of) = (0, 0);
    for (name, Tally { caught, accepted, shown: wrong, of: tried }) in &tallies {
        println!(
            "{name}: {caught} caught ({wrong} of {tried} shown to go wrong), {accepted} harmless"
        );
        // To wait for more is a mistake only where the lanes then wait for each other.
        assert!(*caught > 0 || name.ends_with("more"), "{name} was never caught");
        (shown, of) = (shown + wrong, of + tried);
    }
    // A verifier that refuses what is right would be caught here.
    assert!(shown * 10 >= of * 8, "only {shown} of {of} refused plans were shown to go wrong");
}

#[test]
fn changes_to_plans_of_skips() {
    check(&graphs::skips(3, 1), 32);
}

#[test]
fn changes_to_plans_of_skips_with_two_samples() {
    check(&graphs::skips(2, 2), 24);
}

#[test]
fn changes_to_plans_of_tiny_flux() {
    check(&graphs::tiny_flux(2, 1, true), 16);
}
