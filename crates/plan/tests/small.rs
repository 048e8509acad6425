//! Graphs small enough to know the answer: times, what runs ahead, odd shapes, malformed tables, ids.
#![allow(clippy::expect_used, reason = "a test")]

use plimsoll_graph::{Activation, Builder, DType, Dependence, Graph, LowerOptions, PhaseKind};
use plimsoll_plan::testing::FlatMachine;
use plimsoll_plan::{
    Advice, Line, Offload, Plan, PlanError, Request, Timeline, explain, lower_bound, plan, simulate,
};

const WIDTH: u64 = 256;
const BLOCK_BYTES: u64 = WIDTH * WIDTH * 4;
const ALL: [Offload; 5] = [
    Offload::Auto,
    Offload::None,
    Offload::Model,
    Offload::Sequential,
    Offload::Group { blocks: 1 },
];

/// A loop of equal blocks, then a decoder of one.
fn chain(blocks: u32, steps: u32) -> Graph {
    let mut b = Builder::new(DType::F32, &|_, _| DType::F32);
    let transformer = b.component("transformer");
    b.phase(PhaseKind::Denoise, "denoise");
    b.block(transformer, "in");
    let latent = b.input("latent", 16, WIDTH, DType::F32, Dependence::Latent);
    let dsigma = b.input("dsigma", 1, 1, DType::F32, Dependence::Step);
    let mut x = latent;
    let linear = |b: &mut Builder<'_>, x| {
        let weight = b.weight("w", &[("w".to_owned(), vec![WIDTH, WIDTH])]);
        b.linear("linear", x, weight, None, Activation::None)
    };
    for index in 0..blocks {
        b.block(transformer, format!("block.{index}"));
        x = linear(&mut b, x);
    }
    b.euler("euler", latent, x, dsigma);
    let vae = b.component("vae");
    b.phase(PhaseKind::Decode, "decode");
    b.block(vae, "decoder");
    let image = linear(&mut b, latent);
    b.output("image", image);
    b.finish(&LowerOptions { steps, samples: 1, hoist: true }).expect("a sound trace")
}

/// Seconds of a block's copy and of its op; all else costs nothing worth speaking of.
fn machine(copy_seconds: f64, op_seconds: f64) -> FlatMachine {
    FlatMachine {
        vram_bytes: 1 << 30,
        flops_per_second: (2 * 16 * WIDTH * WIDTH) as f64 / op_seconds,
        memory_bytes_per_second: f64::INFINITY,
        copy_bytes_per_second: BLOCK_BYTES as f64 / copy_seconds,
        copy_seconds_latency: 0.0,
        workspace_divisor: 0,
        reserved_bytes: 0,
        copy_share: 0.0,
    }
}

fn run(graph: &Graph, machine: &FlatMachine, line: Line) -> (Plan, Timeline) {
    let request = Request { line, offload: Offload::Auto, prefetch: true };
    let plan = plan(graph, machine, &request).expect("feasible");
    let timeline = simulate(graph, &plan, machine);
    assert_eq!(plan.predicted.seconds_total, timeline.seconds_total);
    (plan, timeline)
}

#[track_caller]
fn near(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 1e-3, "{found}, expected {expected}");
}

/// Activations of 64 KiB at most beside the slots.
fn slots(count: u64) -> Line {
    Line::Bytes(count * BLOCK_BYTES + (64 << 10))
}

#[test]
fn a_step_takes_the_longer_of_copying_and_computing() {
    let graph = chain(8, 6);
    // Two slots: everything is streamed, and hidden behind whatever takes longer.
    near(run(&graph, &machine(1.0, 0.25), slots(2)).1.seconds_per_step, 8.0);
    near(run(&graph, &machine(0.25, 1.0), slots(2)).1.seconds_per_step, 8.0);
    // Room for six: four stay beside two slots and four are copied, or five beside one.
    let (plan, timeline) = run(&graph, &machine(1.0, 0.25), slots(6));
    assert!(timeline.copied_bytes_per_step <= 4 * BLOCK_BYTES);
    assert!(timeline.seconds_per_step <= 4.0 * 1.001, "{}", timeline.seconds_per_step);
    // Those that stay keep them apart: no two streamed blocks follow each other, over the seam neither.
    let is_resident =
        |visit: &plimsoll_plan::Visit| plan.loads[visit.loads[0] as usize].is_resident;
    let body = plan.phases.iter().find(|phase| phase.repeat > 1).expect("a loop");
    let body = &plan.visits[body.visits_start as usize..body.visits_end as usize];
    let stays: Vec<bool> =
        body.iter().filter(|visit| !visit.loads.is_empty()).map(is_resident).collect();
    assert!(stays.iter().filter(|stays| **stays).count() >= 4, "{stays:?}");
    assert!(stays.iter().zip(stays.iter().cycle().skip(1)).all(|(a, b)| *a || *b), "{stays:?}");
    assert_eq!(plan.predicted.copied_bytes_per_step, timeline.copied_bytes_per_step);
    // Room for all.
    let (_, timeline) = run(&graph, &machine(1.0, 0.25), Line::Max);
    near(timeline.seconds_per_step, 2.0);
    assert_eq!(timeline.copied_bytes_per_step, 0);
    assert_eq!(timeline.copied_bytes, 9 * BLOCK_BYTES);
}

#[test]
fn a_copy_takes_its_share_of_the_compute_lane() {
    let graph = chain(8, 6);
    let seconds = |copy, op, copy_share, line| {
        let machine = FlatMachine { copy_share, ..machine(copy, op) };
        run(&graph, &machine, line).1.seconds_per_step
    };
    // All copies are hidden behind ops, at the price of their share.
    near(seconds(0.25, 1.0, 0.5, slots(2)), 8.0 * 1.125);
    // Where a copy beside ops takes as long as one in between, a block stays in place of the second slot.
    near(seconds(0.25, 1.0, 1.0, slots(2)), 8.0 + 7.0 * 0.25);
    // A share of more than all, or none at all, is taken for the nearest that makes sense.
    near(seconds(0.25, 1.0, 7.0, slots(2)), 8.0 + 7.0 * 0.25);
    near(seconds(0.25, 1.0, f64::NAN, slots(2)), 8.0);
    // Where ops wait for copies, and where nothing is copied, there is nothing to take.
    near(seconds(1.0, 0.25, 0.5, slots(2)), 8.0);
    near(seconds(1.0, 0.25, 0.5, Line::Max), 2.0);
}

#[test]
fn copies_run_ahead_over_the_seams() {
    let graph = chain(8, 4);
    // Two slots and no residents.
    let (plan, timeline) = run(&graph, &machine(1.0, 1.0), slots(2));
    let first_of = |step: Option<u32>| {
        let at = plan.copies.iter().rposition(|copy| copy.step == step);
        let same = plan.copies.iter().position(|copy| copy.step == step);
        same.zip(at).expect("a copy of the step")
    };
    // The first copy of a step begins before the step before has ended.
    let (first, _) = first_of(Some(2));
    assert!(timeline.copies[first].0 < timeline.step_boundaries[2]);
    // The decoder is on its way before the loop is over.
    let (_, decoder) = first_of(None);
    assert!(timeline.copies[decoder].0 < timeline.step_boundaries[4]);
}

#[test]
fn steady_steps_are_translations() {
    let graph = chain(5, 7);
    for offload in ALL {
        let request = Request { line: Line::Min, offload, prefetch: true };
        let plan = plan(&graph, &machine(1.0, 1.0), &request).expect("feasible");
        let of = |step| {
            let copies = plan.copies.iter().enumerate().filter(move |(_, c)| c.step == Some(step));
            copies.map(|(at, copy)| (at, copy.load, copy.after)).collect::<Vec<_>>()
        };
        let body = plan.phases.iter().find(|phase| phase.repeat == 7).expect("a loop");
        let length = body.visits_end - body.visits_start;
        for step in 2..7 {
            let (before, now) = (of(step - 1), of(step));
            assert_eq!(before.len(), now.len(), "{offload}");
            for ((at, load, after), (next_at, next_load, next_after)) in before.into_iter().zip(now)
            {
                assert_eq!((load, at + of(step).len()), (next_load, next_at), "{offload}");
                assert_eq!(after + length, next_after, "{offload}");
            }
        }
    }
}

#[test]
fn odd_shapes_are_planned() {
    let machine = machine(1.0, 1.0);
    for graph in [chain(0, 1), chain(1, 1), chain(1, 3), chain(3, 1), chain(2, 2)] {
        let bound = lower_bound(&graph, &machine);
        for offload in ALL.into_iter().chain([Offload::Group { blocks: u32::MAX }]) {
            for prefetch in [true, false] {
                for line in [Line::Min, Line::Max, Line::Percent(100.0)] {
                    let request = Request { line, offload, prefetch };
                    let plan = plan(&graph, &machine, &request).expect("feasible");
                    assert!(plan.arena_bytes >= bound && plan.arena_bytes <= plan.line_bytes);
                    assert_eq!(plan.arena_bytes % 256, 0);
                    assert!(plan.predicted.seconds_total > 0.0);
                }
            }
        }
        let least = run(&graph, &machine, Line::Min).0;
        assert_eq!(least.line_bytes, bound);
    }
}

#[test]
fn an_infeasible_line_names_the_way_out() {
    let graph = chain(8, 4);
    let machine = machine(1.0, 1.0);
    let refused = |line, offload| {
        let request = Request { line: Line::Bytes(line), offload, prefetch: true };
        match plan(&graph, &machine, &request).expect_err("infeasible") {
            PlanError::Infeasible { smallest_bytes, smallest_any_bytes, at, advice, .. } => {
                (smallest_bytes, smallest_any_bytes, at, advice)
            }
            error => panic!("{error}"),
        }
    };
    let (smallest, any, at, advice) = refused(4 * BLOCK_BYTES, Offload::None);
    assert!(smallest >= 9 * BLOCK_BYTES && any < 2 * BLOCK_BYTES);
    assert_eq!(advice, Advice::UseOffload(Offload::Auto));
    assert!(at.weight_bytes >= 9 * BLOCK_BYTES, "{at}");
    let (.., advice) = refused(2 * BLOCK_BYTES - 256, Offload::Group { blocks: 1 });
    assert_eq!(advice, Advice::PrefetchOff);
    let (_, any, at, advice) = refused(BLOCK_BYTES, Offload::Auto);
    assert_eq!(advice, Advice::RaiseLine { bytes: any });
    assert_eq!(at.op, "linear");
    let (_, any, _, advice) = refused(1024, Offload::Auto);
    assert_eq!(advice, Advice::ShrinkActivations { bytes: any });
    let request = Request { line: Line::Bytes(1024), offload: Offload::None, prefetch: true };
    let text = plan(&graph, &machine, &request).expect_err("infeasible").to_string();
    assert!(!text.contains('\n') && text.contains(&any.to_string()), "{text}");
}

#[test]
fn a_line_is_for_the_whole_process() {
    let graph = chain(8, 4);
    let bare = machine(1.0, 1.0);
    let reserved_bytes = (1 << 20) + 1;
    let beside = FlatMachine { reserved_bytes, ..bare.clone() };
    let plan_of = |machine: &FlatMachine, line| {
        plan(&graph, machine, &Request { line, offload: Offload::Auto, prefetch: true })
    };
    for line in [Line::Min, Line::Max] {
        let (bare, beside) = (plan_of(&bare, line), plan_of(&beside, line));
        let (bare, beside) = (bare.expect("feasible"), beside.expect("feasible"));
        // The same arena, under a line that is higher by the reserve.
        assert_eq!(bare.arena_bytes, beside.arena_bytes);
        assert_eq!(bare.line_bytes + reserved_bytes, beside.line_bytes);
        assert_eq!(beside.predicted.vram_process_bytes, beside.line_bytes);
        assert_eq!(beside.predicted.vram_peak_bytes, bare.predicted.vram_peak_bytes);
        assert_ne!(bare.id, beside.id);
    }
    // Percent are of the device, the reserve is taken from them.
    let half = plan_of(&beside, Line::Percent(0.5)).expect("feasible");
    assert_eq!(half.line_bytes, (1 << 30) / 200);
    assert_eq!(half.arena_line_bytes(), half.line_bytes - reserved_bytes);
    assert!(half.arena_bytes <= half.arena_line_bytes());
    let shown = explain(&graph, &half).to_string();
    assert!(shown.contains("beside the arena 1.00 MiB"), "{shown}");
    let bare = explain(&graph, &plan_of(&bare, Line::Min).expect("feasible")).to_string();
    assert!(!bare.contains("beside"), "{bare}");
    for line in [1, 1 << 20, reserved_bytes, reserved_bytes + 256] {
        let error = plan_of(&beside, Line::Bytes(line)).expect_err("the reserve alone is over it");
        let PlanError::Infeasible { smallest_bytes, reserved_bytes: named, advice, .. } = &error
        else {
            panic!("{error}")
        };
        assert_eq!(*smallest_bytes, lower_bound(&graph, &beside));
        assert_eq!(*named, reserved_bytes);
        let is_shrink = matches!(advice, Advice::ShrinkActivations { .. });
        assert_eq!(is_shrink, line > reserved_bytes, "{advice}");
        assert!(error.to_string().contains("1.00 MiB of them beside the arena"), "{error}");
    }
    let all = FlatMachine { reserved_bytes: u64::MAX, ..machine(1.0, 1.0) };
    assert!(matches!(plan_of(&all, Line::Min), Err(PlanError::TooLarge { .. })));
}

#[test]
fn malformed_graphs_are_refused_and_nothing_overflows() {
    let machine = machine(1.0, 1.0);
    let fails = |change: &dyn Fn(&mut Graph)| {
        let mut graph = chain(3, 4);
        change(&mut graph);
        let request = Request { line: Line::Min, offload: Offload::Auto, prefetch: true };
        plan(&graph, &machine, &request).expect_err("not a graph that can be planned")
    };
    let is_malformed = |error| matches!(error, PlanError::Malformed { .. });
    let is_large = |error| matches!(error, PlanError::TooLarge { .. });
    assert!(is_malformed(fails(&|graph| graph.phases.clear())));
    assert!(is_malformed(fails(&|graph| graph.phases[0].visits.clear())));
    assert!(is_malformed(fails(&|graph| graph.phases[0].repeat = 0)));
    assert!(is_malformed(fails(&|graph| graph.phases[0].visits[0].ops_end = u32::MAX)));
    assert!(is_malformed(fails(&|graph| graph.blocks.iter_mut().for_each(|b| b.weights.clear()))));
    assert!(is_large(fails(&|graph| graph.phases[1].repeat = u32::MAX)));
    assert!(is_large(fails(&|graph| graph.tensors[0].rows = u64::MAX)));
    assert!(is_large(fails(&|graph| graph.weights[0].rows = u64::MAX / 2)));
    assert!(is_large(fails(&|graph| graph.weights[0].cols = 1 << 50)));
    let request =
        Request { line: Line::Min, offload: Offload::Group { blocks: 0 }, prefetch: true };
    assert_eq!(plan(&chain(1, 1), &machine, &request), Err(PlanError::NoBlocks));
}

#[test]
fn the_id_follows_what_is_done_and_not_how_long_it_takes() {
    let graph = chain(4, 3);
    let id = |machine: FlatMachine, line, offload| {
        let request = Request { line, offload, prefetch: true };
        plan(&graph, &machine, &request).expect("feasible").id
    };
    let known = id(machine(1.0, 1.0), Line::Min, Offload::Sequential);
    assert!(known.len() == 16 && known.bytes().all(|byte| byte.is_ascii_hexdigit()), "{known}");
    assert_eq!(known, id(machine(2.0, 0.5), Line::Min, Offload::Sequential));
    assert_ne!(known, id(machine(1.0, 1.0), Line::Min, Offload::None));
    assert_ne!(known, id(machine(1.0, 1.0), slots(3), Offload::Sequential));
}
