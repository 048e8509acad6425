//! Two planners that cannot be clever: everything apart, and first fit with a ring of slots.

use plimsoll_graph::{BlockId, Graph, PhaseKind, WeightId};
use plimsoll_plan::{
    ALIGNMENT, ComputeEntry, CopyEntry, Load, Offload, Phase, Plan, Prediction, Region, Unit,
    UnitWeight, Visit,
};

use super::workspace_bytes;

/// How a naive plan cuts and places weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Every tensor, workspace and unit at its own place; each unit is copied once.
    Apart,
    /// Tensors by lifetime, first fit; the units of a visit go through so many slots.
    Slots(usize),
    /// As `Slots`, a visit an op.
    Leaves(usize),
    /// The loop's units are resident below, all others go through slots.
    Mixed(usize),
}

fn round(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGNMENT)
}

struct Cut {
    block: BlockId,
    start: u32,
    end: u32,
    phase: usize,
    weights: Vec<WeightId>,
}

fn cuts(graph: &Graph, by_op: bool) -> Vec<Cut> {
    let mut cuts = Vec::new();
    for (phase, spec) in graph.phases.iter().enumerate() {
        for visit in &spec.visits {
            let length = if by_op { 1 } else { (visit.ops_end - visit.ops_start).max(1) };
            for start in (visit.ops_start..visit.ops_end).step_by(length as usize) {
                let end = start + length;
                let mut weights = Vec::new();
                for op in &graph.ops[start as usize..end as usize] {
                    op.for_each_weight(|id| {
                        if !weights.contains(id) {
                            weights.push(*id);
                        }
                    });
                }
                cuts.push(Cut { block: visit.block, start, end, phase, weights });
            }
        }
    }
    cuts
}

/// Makes a plan; the line is what it needs.
pub fn plan(graph: &Graph, style: Style) -> Plan {
    let by_op = matches!(style, Style::Leaves(_));
    let cuts = cuts(graph, by_op);
    let (mut units, mut visits, mut unit_of) = (Vec::new(), Vec::new(), Vec::new());
    for cut in &cuts {
        visits.push(Visit { ops_start: cut.start, ops_end: cut.end, loads: Vec::new() });
        unit_of.push((!cut.weights.is_empty()).then_some(units.len()));
        if !cut.weights.is_empty() {
            units.push(unit(graph, cut));
        }
    }
    let (tensors, workspaces, above) = activations(graph, style);
    let (mut loads, mut next) = (Vec::new(), above);
    let ring = match style {
        Style::Apart => 0,
        Style::Slots(slots) | Style::Leaves(slots) | Style::Mixed(slots) => slots,
    };
    let is_resident = |cut: &Cut| match style {
        Style::Apart => true,
        Style::Mixed(_) => graph.phases[cut.phase].repeat > 1,
        Style::Slots(_) | Style::Leaves(_) => false,
    };
    // Residents first, then the ring.
    let mut load_of = vec![None; cuts.len()];
    for (at, _) in cuts.iter().enumerate().filter(|(_, cut)| is_resident(cut)) {
        if let Some(unit) = unit_of[at] {
            load_of[at] = Some(loads.len() as u32);
            let region = Region { offset: next, bytes: units[unit].bytes };
            loads.push(Load { unit: unit as u32, region, is_resident: true });
            next += round(region.bytes);
        }
    }
    let streamed = |at: &usize| unit_of[*at].is_some() && !is_resident(&cuts[*at]);
    let slot_bytes = (0..cuts.len())
        .filter(streamed)
        .filter_map(|at| unit_of[at])
        .map(|unit| round(units[unit].bytes))
        .max()
        .unwrap_or(0);
    for (turn, at) in (0..cuts.len()).filter(streamed).enumerate() {
        let unit = unit_of[at].expect("streamed");
        load_of[at] = Some(loads.len() as u32);
        let offset = next + slot_bytes * (turn % ring) as u64;
        let region = Region { offset, bytes: units[unit].bytes };
        loads.push(Load { unit: unit as u32, region, is_resident: false });
    }
    next += slot_bytes * ring as u64;
    for (visit, load) in visits.iter_mut().zip(&load_of) {
        visit.loads.extend(load);
    }
    let mut plan = Plan {
        version: 2,
        id: String::new(),
        arithmetic: "none".to_owned(),
        line_bytes: next + super::RESERVED_BYTES,
        arena_bytes: next,
        reserved_bytes: super::RESERVED_BYTES,
        decode_tile: graph.decode_tile,
        offload: Offload::Auto,
        prefetch: true,
        tensors,
        workspaces,
        units,
        loads,
        visits,
        phases: phases(graph, &cuts),
        copies: Vec::new(),
        computes: Vec::new(),
        predicted: Prediction::default(),
    };
    lanes(&mut plan);
    predict(graph, &mut plan);
    plan
}

fn unit(graph: &Graph, cut: &Cut) -> Unit {
    let (mut at, mut bytes, mut weights) = (0, 0, Vec::new());
    for id in &cut.weights {
        weights.push(UnitWeight { weight: *id, offset: at });
        bytes = at + graph.weight(*id).bytes();
        at = round(bytes);
    }
    let name = format!("{}/{}", graph.blocks[cut.block.index()].name, cut.start);
    Unit { name, block: cut.block, weights, bytes }
}

fn phases(graph: &Graph, cuts: &[Cut]) -> Vec<Phase> {
    graph
        .phases
        .iter()
        .enumerate()
        .map(|(index, phase)| Phase {
            name: phase.name.clone(),
            kind: phase.kind,
            visits_start: cuts.iter().position(|cut| cut.phase == index).expect("a phase has ops")
                as u32,
            visits_end: cuts.iter().rposition(|cut| cut.phase == index).expect("a phase has ops")
                as u32
                + 1,
            repeat: phase.repeat,
        })
        .collect()
}

/// Places of tensors and workspaces, and one past the last.
fn activations(graph: &Graph, style: Style) -> (Vec<Region>, Vec<Region>, u64) {
    let mut taken: Vec<(u32, u32, Region)> = Vec::new();
    let mut place = |first: u32, last: u32, bytes: u64| {
        if bytes == 0 {
            return Region::default();
        }
        let mut offset = 0;
        loop {
            let region = Region { offset, bytes };
            let clash = taken.iter().find(|(start, end, other)| {
                let in_time = style == Style::Apart || (*start <= last && first <= *end);
                in_time && other.overlaps(&region)
            });
            match clash {
                Some((_, _, other)) => offset = round(other.end()),
                None => {
                    taken.push((first, last, region));
                    return region;
                }
            }
        }
    };
    let tensors = graph
        .tensors
        .iter()
        .zip(graph.lifetimes())
        .map(|(tensor, span)| {
            span.map_or(Region::default(), |(first, last)| place(first, last, tensor.bytes()))
        })
        .collect();
    let workspaces =
        graph.ops.iter().zip(0..).map(|(op, at)| place(at, at, workspace_bytes(op))).collect();
    let above = taken.iter().map(|(_, _, region)| round(region.end())).max().unwrap_or(0);
    (tensors, workspaces, above)
}

/// Unrolls the lanes: each load is copied when its place is free, once if it is resident.
fn lanes(plan: &mut Plan) {
    let mut copy_of = vec![0; plan.loads.len()];
    // Computes that must be done before a load's bytes may be overwritten, by load.
    let mut busy_until = vec![0u32; plan.loads.len()];
    for phase in plan.phases.clone() {
        for step in 0..phase.repeat {
            for visit in phase.visits_start..phase.visits_end {
                let position = plan.computes.len() as u32;
                let mut needs = 0;
                for load in plan.visits[visit as usize].loads.clone() {
                    let Load { region, is_resident, .. } = plan.loads[load as usize];
                    if !(is_resident && copy_of[load as usize] > 0) {
                        let shares = |(_, other): &(&u32, &Load)| other.region.overlaps(&region);
                        let pairs = busy_until.iter().zip(&plan.loads);
                        let after = pairs.filter(shares).map(|(busy, _)| *busy).max();
                        let in_loop = phase.kind == PhaseKind::Denoise;
                        plan.copies.push(CopyEntry {
                            load,
                            step: in_loop.then_some(step),
                            after: after.unwrap_or(0),
                        });
                        copy_of[load as usize] = plan.copies.len() as u32;
                    }
                    needs = needs.max(copy_of[load as usize]);
                    busy_until[load as usize] = position + 1;
                }
                plan.computes.push(ComputeEntry { visit, step, needs });
            }
        }
    }
}

/// Fills in the figures that follow from the plan.
pub fn predict(graph: &Graph, plan: &mut Plan) {
    plan.predicted = Prediction::default();
    let phase = plan.phases.iter().find(|phase| phase.kind == PhaseKind::Denoise);
    let steady = phase.map(|phase| u32::from(phase.repeat > 1));
    for copy in &plan.copies {
        let unit = &plan.units[plan.loads[copy.load as usize].unit as usize];
        let bytes: u64 = unit.weights.iter().map(|w| graph.weight(w.weight).bytes()).sum();
        plan.predicted.copied_bytes += bytes;
        if copy.step.is_some() && copy.step == steady {
            plan.predicted.copied_bytes_per_step += bytes;
        }
    }
    let regions = plan.tensors.iter().chain(&plan.workspaces);
    let regions = regions.chain(plan.loads.iter().map(|load| &load.region));
    plan.predicted.vram_peak_bytes = regions.map(|region| round(region.end())).max().unwrap_or(0);
    plan.predicted.vram_process_bytes = plan.arena_bytes + plan.reserved_bytes;
}
