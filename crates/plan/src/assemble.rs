//! From a schedule with offsets to a plan.

use plimsoll_graph::{BlockId, WeightId};

use crate::edges::lanes;
use crate::facts::{Facts, round_up};
use crate::id;
use crate::item::{Item, Packing};
use crate::machine::Machine;
use crate::schedule::{Items, Schedule};
use crate::simulate::simulate;
use crate::types::{Load, Offload, Phase, Plan, Prediction, Region, Unit, UnitWeight, Visit};

/// Version of the plan's format.
const VERSION: u32 = 2;

/// A schedule with offsets.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub(crate) schedule: Schedule,
    pub(crate) packing: Packing,
    /// Judged cost of the run, in seconds.
    pub(crate) cost: f64,
}

/// What a plan repeats of its request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) line_bytes: u64,
    pub(crate) offload: Offload,
    pub(crate) prefetch: bool,
}

/// Writes the plan down, unrolls its lanes and predicts its time.
pub(crate) fn assemble(
    facts: &Facts<'_>,
    machine: &dyn Machine,
    items: &Items,
    draft: &Draft,
    terms: Terms,
) -> Plan {
    let Draft { schedule, packing, .. } = draft;
    let all = items.with_holds(schedule);
    let first_hold = items.first_hold();
    let lanes = lanes(facts, schedule, Some((&all, &packing.offsets, first_hold)), u32::MAX);
    let (tensors, workspaces) = activations(facts, items, packing);
    let loads: Vec<Load> = schedule
        .holds
        .iter()
        .zip(&packing.offsets[first_hold..])
        .map(|(hold, offset)| Load {
            unit: hold.unit,
            region: Region { offset: *offset, bytes: schedule.cut.units[hold.unit as usize].bytes },
            is_resident: hold.is_resident,
        })
        .collect();
    let visits = schedule.cut.visits.iter().zip(&schedule.visit_holds);
    let visits = visits
        .map(|(visit, holds)| Visit {
            ops_start: visit.start,
            ops_end: visit.end,
            loads: holds.clone(),
        })
        .collect();
    let mut plan = Plan {
        version: VERSION,
        id: String::new(),
        arithmetic: machine.arithmetic().to_owned(),
        line_bytes: terms.line_bytes,
        arena_bytes: packing.peak,
        reserved_bytes: facts.reserved_bytes,
        decode_tile: facts.graph.decode_tile,
        offload: terms.offload,
        prefetch: terms.prefetch,
        tensors,
        workspaces,
        units: units(facts, schedule),
        loads,
        visits,
        phases: phases(facts, schedule),
        copies: lanes.copies,
        computes: lanes.computes,
        predicted: Prediction::default(),
    };
    let timeline = simulate(facts.graph, &plan, machine);
    plan.predicted = Prediction {
        vram_peak_bytes: peak(&all, packing),
        vram_process_bytes: packing.peak + facts.reserved_bytes,
        copied_bytes_per_step: timeline.copied_bytes_per_step,
        copied_bytes: timeline.copied_bytes,
        seconds_per_step: timeline.seconds_per_step,
        seconds_total: timeline.seconds_total,
    };
    plan.id = id::of(&plan);
    plan
}

fn peak(all: &[Item], packing: &Packing) -> u64 {
    let ends = all.iter().zip(&packing.offsets).map(|(item, offset)| offset + item.bytes);
    round_up(ends.max().unwrap_or(0))
}

fn activations(facts: &Facts<'_>, items: &Items, packing: &Packing) -> (Vec<Region>, Vec<Region>) {
    let mut tensors = vec![Region::default(); facts.graph.tensors.len()];
    let mut workspaces = vec![Region::default(); facts.graph.ops.len()];
    let offsets = packing.offsets.iter().copied();
    for (tensor, offset) in items.tensors.iter().zip(offsets.clone()) {
        let bytes = facts.tensor_bytes[*tensor as usize];
        tensors[*tensor as usize] = Region { offset, bytes };
    }
    for (op, offset) in items.ops.iter().zip(offsets.skip(items.tensors.len())) {
        let bytes = facts.workspace_bytes[*op as usize];
        workspaces[*op as usize] = Region { offset, bytes };
    }
    (tensors, workspaces)
}

fn units(facts: &Facts<'_>, schedule: &Schedule) -> Vec<Unit> {
    let mut units = Vec::with_capacity(schedule.cut.units.len());
    for cut in &schedule.cut.units {
        let mut at = 0;
        let mut weights = Vec::with_capacity(cut.weights.len());
        for weight in &cut.weights {
            let weight = &facts.weights[*weight as usize];
            weights.push(UnitWeight { weight: WeightId(weight.weight), offset: at });
            at += round_up(weight.bytes);
        }
        units.push(Unit {
            name: cut.name.clone(),
            block: BlockId(cut.block),
            weights,
            bytes: cut.bytes,
        });
    }
    units
}

fn phases(facts: &Facts<'_>, schedule: &Schedule) -> Vec<Phase> {
    let phases = facts.graph.phases.iter().enumerate();
    phases
        .map(|(index, phase)| {
            let visits = schedule.cut.visits_of(index);
            Phase {
                name: phase.name.clone(),
                kind: phase.kind,
                visits_start: visits.start,
                visits_end: visits.end,
                repeat: phase.repeat,
            }
        })
        .collect()
}
