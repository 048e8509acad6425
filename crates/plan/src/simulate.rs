//! The run in virtual time: two lanes, each in order, with the machine's rates.
//!
//! A copy begins when the copy before it has ended and as many computes have ended as it waits for; a compute
//! likewise. `exec` on the `sim` device keeps the same clock, so that prediction and run can be held against
//! each other entry by entry.
//!
//! Where the lanes share what they run on, a copy in flight takes [`Machine::copy_share`] of the compute lane's
//! speed. The lane is charged when it comes to the entry that waits for the copy: by then it is known how long the
//! copy ran beside ops, and that share of the time is added to the lane's clock before the entry begins. Time that
//! the lane would have waited anyway is not charged. So the lane's work is delayed by as much as was taken from it,
//! at most as many entries late as the copy ran ahead; and each entry can be timed in the order of its lane.

use plimsoll_graph::Graph;
use serde::Serialize;

use crate::facts::{seconds, share};
use crate::machine::Machine;
use crate::types::{ComputeEntry, CopyEntry, Plan};

/// When everything happens, in seconds since the first command.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Timeline {
    /// Begin and end of each entry of [`Plan::copies`].
    pub copies: Vec<(f64, f64)>,
    /// Begin and end of each entry of [`Plan::computes`].
    pub computes: Vec<(f64, f64)>,
    /// End of the last entry.
    pub seconds_total: f64,
    /// End of what precedes the step loop, then the end of each step; empty without a loop.
    pub step_boundaries: Vec<f64>,
    /// See [`steady_seconds`].
    pub seconds_per_step: f64,
    /// Bytes of weights that the copies of each step carry (padding between weights does not count).
    pub copied_bytes_by_step: Vec<u64>,
    /// The same for a steady step: the second, where there are two.
    pub copied_bytes_per_step: u64,
    /// Bytes of weights that all copies carry.
    pub copied_bytes: u64,
}

/// Seconds of a steady step: the mean over the third and later steps, the second where there are two, the only
/// one where there is one.
///
/// `boundaries` are the end of what precedes the loop and the end of each step. The first step fills the ring and
/// the residents; the second may still profit from what ran ahead during it.
pub fn steady_seconds(boundaries: &[f64]) -> f64 {
    match boundaries {
        [] | [_] => 0.0,
        [start, end] => end - start,
        [_, start, end] => end - start,
        [_, _, start, .., end] => (end - start) / (boundaries.len() - 3) as f64,
    }
}

/// Walks a plan in virtual time.
///
/// # Determinism
/// The same arguments give the same bits: sums are taken in the order of the lanes.
pub fn simulate(graph: &Graph, plan: &Plan, machine: &dyn Machine) -> Timeline {
    let (mut copy_seconds, mut payloads) = (Vec::new(), Vec::new());
    for unit in &plan.units {
        let (mut bytes, mut segments) = (0u64, 0u64);
        for entry in &unit.weights {
            let weight = graph.weight(entry.weight);
            bytes = bytes.saturating_add(weight.bytes());
            segments = segments.saturating_add(weight.parts.len().max(1) as u64);
        }
        copy_seconds.push(seconds(machine.copy_seconds(bytes, segments)));
        payloads.push(bytes);
    }
    let copy_seconds: Vec<f64> =
        plan.loads.iter().map(|load| copy_seconds[load.unit as usize]).collect();
    let visit_seconds: Vec<f64> = plan
        .visits
        .iter()
        .map(|visit| {
            let ops = &graph.ops[visit.ops_start as usize..visit.ops_end as usize];
            ops.iter().map(|op| seconds(machine.op_seconds(graph, op))).sum()
        })
        .collect();
    let costs = Costs {
        copy_seconds: &copy_seconds,
        visit_seconds: &visit_seconds,
        copy_share: share(machine.copy_share()),
    };
    let mut timeline = walk(&plan.copies, &plan.computes, &costs);
    boundaries(plan, &mut timeline);
    traffic(plan, &payloads, &mut timeline);
    timeline
}

/// What entries cost.
#[derive(Clone, Copy)]
pub(crate) struct Costs<'a> {
    /// By load.
    pub(crate) copy_seconds: &'a [f64],
    /// By visit.
    pub(crate) visit_seconds: &'a [f64],
    /// See [`Machine::copy_share`].
    pub(crate) copy_share: f64,
}

/// What copies take from the compute lane.
struct Charge {
    share: f64,
    /// When the compute lane was busy, ascending; what was charged is in it.
    busy: Vec<(f64, f64)>,
    /// The first time that may still be beside a copy to come.
    next: usize,
}

impl Charge {
    /// The lane was busy from `start` to `end`.
    fn note(&mut self, start: f64, end: f64) {
        match self.busy.last_mut() {
            Some(last) if last.1 == start => last.1 = end,
            _ if self.share > 0.0 => self.busy.push((start, end)),
            _ => {}
        }
    }

    /// Seconds that a copy took from the lane. Called with copies in order.
    fn of(&mut self, (start, end): (f64, f64)) -> f64 {
        // The last may yet grow.
        while self.next + 1 < self.busy.len() && self.busy[self.next].1 <= start {
            self.next += 1;
        }
        let beside = self.busy[self.next..].iter().take_while(|busy| busy.0 < end);
        let seconds = beside.map(|busy| busy.1.min(end) - busy.0.max(start));
        self.share * seconds.map(|seconds| seconds.max(0.0)).sum::<f64>()
    }
}

/// Times of two lanes whose entries wait for each other's counts.
pub(crate) fn walk(copies: &[CopyEntry], computes: &[ComputeEntry], costs: &Costs<'_>) -> Timeline {
    let mut timeline = Timeline {
        copies: Vec::with_capacity(copies.len()),
        computes: Vec::with_capacity(computes.len()),
        ..Timeline::default()
    };
    let mut charge = Charge { share: costs.copy_share, busy: Vec::new(), next: 0 };
    let (mut copy_end, mut compute_end) = (0.0f64, 0.0f64);
    let (mut next, mut charged) = (0, 0);
    for compute in computes {
        while next < compute.needs as usize {
            let copy = &copies[next];
            let ready = match copy.after.checked_sub(1) {
                Some(last) => timeline.computes.get(last as usize).map_or(compute_end, |at| at.1),
                None => 0.0,
            };
            let start = copy_end.max(ready);
            copy_end = start + costs.copy_seconds[copy.load as usize];
            timeline.copies.push((start, copy_end));
            next += 1;
        }
        let ready = match compute.needs.checked_sub(1) {
            Some(last) => timeline.copies[last as usize].1,
            None => 0.0,
        };
        if costs.copy_share > 0.0 && charged < compute.needs as usize {
            let awaited = &timeline.copies[charged..compute.needs as usize];
            let taken: f64 = awaited.iter().map(|copy| charge.of(*copy)).sum();
            charged = compute.needs as usize;
            charge.note(compute_end, compute_end + taken);
            compute_end += taken;
        }
        let start = compute_end.max(ready);
        compute_end = start + costs.visit_seconds[compute.visit as usize];
        charge.note(start, compute_end);
        timeline.computes.push((start, compute_end));
    }
    timeline.seconds_total = copy_end.max(compute_end);
    timeline
}

fn boundaries(plan: &Plan, timeline: &mut Timeline) {
    let mut at = 0usize;
    for phase in &plan.phases {
        let length = (phase.visits_end - phase.visits_start) as usize;
        let end_of = |count: usize| match count.checked_sub(1) {
            Some(last) => timeline.computes.get(last).map_or(0.0, |at| at.1),
            None => 0.0,
        };
        if phase.kind == plimsoll_graph::PhaseKind::Denoise && timeline.step_boundaries.is_empty() {
            let ends = (0..=phase.repeat as usize).map(|step| end_of(at + step * length));
            timeline.step_boundaries = ends.collect();
        }
        at += length * phase.repeat as usize;
    }
    timeline.seconds_per_step = steady_seconds(&timeline.step_boundaries);
}

fn traffic(plan: &Plan, payloads: &[u64], timeline: &mut Timeline) {
    let steps = timeline.step_boundaries.len().saturating_sub(1);
    timeline.copied_bytes_by_step = vec![0; steps];
    for copy in &plan.copies {
        let bytes = payloads[plan.loads[copy.load as usize].unit as usize];
        timeline.copied_bytes = timeline.copied_bytes.saturating_add(bytes);
        let step = copy.step.and_then(|step| timeline.copied_bytes_by_step.get_mut(step as usize));
        if let Some(step) = step {
            *step = step.saturating_add(bytes);
        }
    }
    let by_step = &timeline.copied_bytes_by_step;
    timeline.copied_bytes_per_step = by_step.get(1).or(by_step.first()).copied().unwrap_or(0);
}
