//! Each mode is what its name says, read off the trace of a run.

#![expect(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_device::cpu::CpuMachine;
use plimsoll_device::{Control, Span, SpanKind};
use plimsoll_graph::{DType, Graph, PhaseKind};
use plimsoll_pipeline::{PlaceRequest, Placed, Target, Tiling};
use plimsoll_plan::{Line, Offload, Plan};
use support::{demo, demo_run, prompt};

const STEPS: u32 = 3;

struct Traced {
    placed: Placed,
    spans: Vec<Span>,
}

fn run(offload: Offload, prefetch: bool, line: Line) -> Traced {
    let machine = CpuMachine::default_rates(2);
    let request = PlaceRequest {
        run: demo_run(STEPS, 1, DType::BF16),
        line,
        offload,
        prefetch,
        saves: false,
        tiling: Tiling::Off,
    };
    let mut placed = demo().place(request, &machine, Target::Cpu { workers: 2 }).unwrap();
    let prompt = prompt("ice cream, 3d rendered emoji", 0);
    let generated =
        placed.generate(&machine, &prompt, &Control::default(), true, &mut |_| ()).unwrap();
    Traced { placed, spans: generated.report.stats.spans }
}

impl Traced {
    fn plan(&self) -> &Plan {
        self.placed.plan()
    }

    fn graph(&self) -> &Graph {
        self.placed.graph()
    }

    fn copies(&self) -> impl Iterator<Item = &Span> {
        self.spans.iter().filter(|span| span.kind == SpanKind::Copy)
    }

    fn ops(&self) -> impl Iterator<Item = &Span> {
        self.spans.iter().filter(|span| span.kind == SpanKind::Op)
    }

    fn unit_of(&self, copy: &Span) -> u32 {
        self.plan().loads[copy.index as usize].unit
    }

    fn component_of(&self, copy: &Span) -> &str {
        let unit = &self.plan().units[self.unit_of(copy) as usize];
        let block = &self.graph().blocks[unit.block.index()];
        &self.graph().components[block.component.index()].name
    }

    /// When each copied load is held: from its copy's start to the end of the last op that reads it
    /// before its next copy.
    fn holdings(&self) -> Vec<(u32, f64, f64)> {
        let mut visit_of = BTreeMap::new();
        for visit in &self.plan().visits {
            for op in visit.ops_start..visit.ops_end {
                visit_of.insert(op, visit);
            }
        }
        let copies: Vec<_> = self.copies().collect();
        copies
            .iter()
            .enumerate()
            .map(|(at, copy)| {
                let next = copies[at + 1..]
                    .iter()
                    .find(|next| next.index == copy.index)
                    .map_or(f64::INFINITY, |next| next.start);
                let end = self
                    .ops()
                    .filter(|op| op.start >= copy.end && op.start < next)
                    .filter(|op| visit_of[&op.index].loads.contains(&copy.index))
                    .map(|op| op.end)
                    .fold(copy.end, f64::max);
                (copy.index, copy.start, end)
            })
            .collect()
    }

    /// The largest number of different keys held at one moment.
    fn held_at_most<K: Ord>(&self, key: impl Fn(u32) -> K) -> usize {
        let holdings = self.holdings();
        holdings
            .iter()
            .map(|(_, moment, _)| {
                let held = holdings
                    .iter()
                    .filter(|(_, start, end)| start <= moment && moment < end)
                    .map(|(load, _, _)| key(*load));
                held.collect::<BTreeSet<_>>().len()
            })
            .max()
            .unwrap()
    }
}

#[test]
fn none_copies_each_weight_once() {
    for prefetch in [true, false] {
        let traced = run(Offload::None, prefetch, Line::Max);
        let units: Vec<u32> = traced.copies().map(|copy| traced.unit_of(copy)).collect();
        let distinct: BTreeSet<u32> = units.iter().copied().collect();
        assert_eq!(units.len(), distinct.len(), "a unit was copied twice");
        let copied: u64 = traced
            .plan()
            .units
            .iter()
            .flat_map(|unit| &unit.weights)
            .map(|placed| traced.graph().weight(placed.weight).bytes())
            .sum();
        let all: u64 = traced.graph().weights.iter().map(plimsoll_graph::Weight::bytes).sum();
        assert_eq!(copied, all);
    }
}

#[test]
fn model_holds_one_component_and_copies_it_once() {
    for prefetch in [true, false] {
        let traced = run(Offload::Model, prefetch, Line::Min);
        let mut order: Vec<&str> = Vec::new();
        let mut units = BTreeSet::new();
        for copy in traced.copies() {
            assert!(units.insert(traced.unit_of(copy)), "a unit was copied twice");
            let component = traced.component_of(copy);
            if order.last() != Some(&component) {
                order.push(component);
            }
        }
        assert_eq!(order, ["text_encoder", "text_encoder_2", "transformer", "vae"]);
        let loads = &traced.plan().loads;
        let component = |load: u32| {
            let unit = &traced.plan().units[loads[load as usize].unit as usize];
            traced.graph().blocks[unit.block.index()].component
        };
        assert_eq!(traced.held_at_most(component), 1);
    }
}

#[test]
fn sequential_holds_one_leaf_and_copies_only_while_nothing_computes() {
    let traced = run(Offload::Sequential, true, Line::Min);
    assert_eq!(traced.held_at_most(|load| load), 1);
    for copy in traced.copies() {
        let beside = traced.ops().find(|op| op.start < copy.end && copy.start < op.end);
        assert!(beside.is_none(), "op {beside:?} ran beside copy {copy:?}");
    }
    for unit in &traced.plan().units {
        let weights: BTreeSet<_> = unit.weights.iter().map(|placed| placed.weight).collect();
        let readers = traced.graph().ops.iter().filter(|op| {
            let mut reads = false;
            op.for_each_weight(|id| reads |= weights.contains(id));
            reads
        });
        for op in readers {
            let mut all = BTreeSet::new();
            op.for_each_weight(|id| {
                all.insert(*id);
            });
            assert_eq!(all, weights, "unit {} is more than one op's weights", unit.name);
        }
    }
}

#[test]
fn group_holds_its_blocks_and_twice_as_many_with_prefetch() {
    for blocks in [1u32, 2, 3] {
        for (prefetch, most) in [(false, blocks), (true, 2 * blocks)] {
            let traced = run(Offload::Group { blocks }, prefetch, Line::Min);
            let held = traced.held_at_most(|load| load);
            assert!(held <= most as usize, "group {blocks}, prefetch {prefetch}: {held} held");
            if !prefetch {
                assert_eq!(held, blocks as usize, "group {blocks} holds fewer than it may");
            }
        }
    }
}

#[test]
fn without_prefetch_no_copy_runs_beside_an_op() {
    for offload in [Offload::Auto, Offload::Group { blocks: 2 }, Offload::Model] {
        let traced = run(offload, false, Line::Min);
        for copy in traced.copies() {
            let beside = traced.ops().find(|op| op.start < copy.end && copy.start < op.end);
            assert!(beside.is_none(), "{offload:?}: op {beside:?} ran beside copy {copy:?}");
        }
    }
}

#[test]
fn no_modulation_weight_is_copied_in_a_step() {
    let traced = run(Offload::Auto, true, Line::Min);
    let plan = traced.plan();
    let denoise = plan.phases.iter().find(|phase| phase.kind == PhaseKind::Denoise).unwrap();
    assert_eq!(denoise.repeat, STEPS);
    let mut bytes = 0;
    for entry in plan.copies.iter().filter(|copy| copy.step == Some(1)) {
        let unit = &plan.units[plan.loads[entry.load as usize].unit as usize];
        for placed in &unit.weights {
            let weight = traced.graph().weight(placed.weight);
            bytes += weight.bytes();
            for part in &weight.parts {
                let modulates = part.entry.contains("norm1")
                    || part.entry.contains(".norm.linear")
                    || part.entry.contains("norm_out")
                    || part.entry.contains("time_text_embed");
                assert!(!modulates, "{} is copied in every step", part.entry);
            }
        }
    }
    // A small line streams something, or this proves nothing.
    assert!(bytes > 0);
}

#[test]
fn a_small_line_streams_and_a_large_one_does_not() {
    let small = run(Offload::Auto, true, Line::Min);
    let large = run(Offload::Auto, true, Line::Max);
    let streamed = |traced: &Traced| traced.copies().filter(|copy| copy.step == Some(1)).count();
    assert!(streamed(&small) > 0);
    assert_eq!(streamed(&large), 0);
}
