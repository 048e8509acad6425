//! Edges: the two lanes unrolled, and what each entry waits for.
//!
//! A copy may overwrite its place when the last use of anything that lies there before is over. With offsets
//! fixed that moment is found by looking at every item that shares a byte with the place: its last use before
//! the load's own, in absolute time. So the copy lane runs ahead as far as the memory allows, over the seams
//! between steps and phases, by one rule.
//!
//! In a loop the look back never passes the load's own use one step earlier. So from the second step on an edge
//! is the same distance from its step's beginning: the steady step is periodic, and edges are computed twice, for
//! the first step and for all others.

use crate::facts::{Facts, PhaseOps};
use crate::hazards::{self, Latest};
use crate::item::Item;
use crate::schedule::{Begin, Hold, Schedule};
use crate::types::{ComputeEntry, CopyEntry};

/// Both lanes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lanes {
    pub(crate) copies: Vec<CopyEntry>,
    pub(crate) computes: Vec<ComputeEntry>,
}

/// Numbers of computes before something, for the first step and relative to the step's first compute for all
/// others.
#[derive(Clone, Copy, Debug, Default)]
struct Edge {
    first: i64,
    steady: i64,
}

/// Where phases begin in the compute lane.
struct Clock {
    /// Computes before each phase.
    base: Vec<i64>,
    /// Computes of one repetition.
    length: Vec<i64>,
    repeat: Vec<i64>,
    first_visit: Vec<i64>,
}

impl Clock {
    fn new(facts: &Facts<'_>, schedule: &Schedule, steps_most: u32) -> Self {
        let mut clock = Self { base: vec![], length: vec![], repeat: vec![], first_visit: vec![] };
        let mut base = 0;
        for (index, phase) in facts.phases.iter().enumerate() {
            let visits = schedule.cut.visits_of(index);
            let length = i64::from(visits.end - visits.start);
            let repeat = i64::from(phase.repeat.min(steps_most));
            clock.base.push(base);
            clock.length.push(length);
            clock.repeat.push(repeat);
            clock.first_visit.push(i64::from(visits.start));
            base += length * repeat;
        }
        clock
    }

    /// Computes before a visit of a phase at the first step.
    fn at(&self, phase: usize, visit: u32) -> i64 {
        self.base[phase] + self.inside(phase, visit)
    }

    /// Computes before a visit from its step's beginning.
    fn inside(&self, phase: usize, visit: u32) -> i64 {
        i64::from(visit) - self.first_visit[phase]
    }
}

/// Unrolls the lanes. `places` are all items and their offsets, the holds from `first_hold` on; without them the
/// edges are what the schedule's spans alone promise. Loops are cut short to `steps_most` steps.
pub(crate) fn lanes(
    facts: &Facts<'_>,
    schedule: &Schedule,
    places: Option<(&[Item], &[u64], usize)>,
    steps_most: u32,
) -> Lanes {
    let clock = Clock::new(facts, schedule, steps_most);
    let edges: Vec<Edge> = match places {
        Some((items, offsets, first_hold)) => {
            let hazards = Hazards::new(facts, schedule, &clock, items, offsets, first_hold);
            (0..schedule.holds.len())
                .map(|hold| restricted(schedule, &clock, hold, || hazards.edge(hold)))
                .collect()
        }
        None => (0..schedule.holds.len())
            .map(|hold| {
                restricted(schedule, &clock, hold, || promised(facts, schedule, &clock, hold))
            })
            .collect(),
    };
    unroll(facts, schedule, &clock, &edges)
}

/// The edge that the strategy asks for, or the hazard's where it asks for none.
fn restricted(
    schedule: &Schedule,
    clock: &Clock,
    hold: usize,
    hazard: impl FnOnce() -> Edge,
) -> Edge {
    let hold = &schedule.holds[hold];
    let phase = schedule.cut.visits[hold.first as usize].phase as usize;
    match hold.begin {
        Begin::Free => hazard(),
        Begin::Start => Edge { first: 0, steady: 0 },
        Begin::Visit { visit, wraps: false } => {
            let of = schedule.cut.visits[visit as usize].phase as usize;
            Edge { first: clock.at(of, visit), steady: clock.inside(phase, visit) }
        }
        Begin::Visit { visit, wraps: true } => Edge {
            first: clock.base[phase],
            steady: clock.inside(phase, visit) - clock.length[phase],
        },
    }
}

/// The edge at the beginning of a hold's span: no later than any hazard.
fn promised(facts: &Facts<'_>, schedule: &Schedule, clock: &Clock, hold: usize) -> Edge {
    let hold = &schedule.holds[hold];
    let phase = schedule.cut.visits[hold.first as usize].phase as usize;
    let visit = schedule.cut.visit_of(hold.span.0.min(hold.lead.0));
    let of = schedule.cut.visits[visit as usize].phase as usize;
    // A span that begins in an earlier phase begins in its last repetition.
    let last = (clock.repeat[of] - 1) * clock.length[of] * i64::from(of != phase);
    let first = clock.at(of, visit) + last;
    let steady = if hold.tail.0 <= hold.tail.1 {
        clock.inside(phase, schedule.cut.visit_of(hold.tail.0)) - clock.length[phase]
    } else {
        clock.inside(phase, visit.max(schedule.cut.visit_of(facts.phases[phase].start)))
    };
    Edge { first, steady }
}

struct Hazards<'a> {
    facts: &'a Facts<'a>,
    schedule: &'a Schedule,
    clock: &'a Clock,
    /// By hold.
    latest: Vec<Latest>,
    /// Visit of each op.
    visit_of: Vec<u32>,
}

impl<'a> Hazards<'a> {
    fn new(
        facts: &'a Facts<'a>,
        schedule: &'a Schedule,
        clock: &'a Clock,
        items: &[Item],
        offsets: &[u64],
        first_hold: usize,
    ) -> Self {
        let mut visit_of = Vec::with_capacity(facts.graph.ops.len());
        for (visit, at) in schedule.cut.visits.iter().zip(0u32..) {
            visit_of.resize(visit.end as usize, at);
        }
        let latest = hazards::latest(facts, schedule, items, offsets, first_hold);
        Self { facts, schedule, clock, latest, visit_of }
    }

    /// Last use of a hold's bytes before its own use.
    fn edge(&self, hold: usize) -> Edge {
        let Latest { before, inside } = self.latest[hold];
        let hold = &self.schedule.holds[hold];
        let phase_index = self.schedule.cut.visits[hold.first as usize].phase as usize;
        let phase = self.facts.phases[phase_index];
        let length = self.clock.length[phase_index];
        let mut edge = Edge { first: 0, steady: -length };
        if let Some(op) = before {
            self.before(&mut edge, phase_index, op);
        }
        if let Some(op) = inside {
            // In the step before; up to its end if what lies there lasts longer.
            let done = self.done(phase_index, op.min(phase.end - 1));
            edge.steady = edge.steady.max(done - length);
        }
        edge
    }

    /// Computes of a phase's repetition that are done with the visit of `op`.
    fn done(&self, phase: usize, op: u32) -> i64 {
        self.clock.inside(phase, self.visit_of[op as usize]) + 1
    }

    /// Takes account of a use that ends at `op`, before the hold's own in the order of the graph.
    fn before(&self, edge: &mut Edge, phase: usize, op: u32) {
        if op >= self.facts.phases[phase].start {
            let done = self.done(phase, op);
            edge.steady = edge.steady.max(done);
            edge.first = edge.first.max(self.clock.base[phase] + done);
        } else {
            let of = self.facts.phase_of(op);
            let rounds = (self.clock.repeat[of] - 1) * self.clock.length[of];
            edge.first = edge.first.max(self.clock.base[of] + rounds + self.done(of, op));
        }
    }
}

fn unroll(facts: &Facts<'_>, schedule: &Schedule, clock: &Clock, edges: &[Edge]) -> Lanes {
    let mut queued: Vec<Vec<u32>> = vec![Vec::new(); schedule.cut.visits.len()];
    for (hold, at) in schedule.holds.iter().zip(0u32..) {
        queued[hold.queue_at as usize].push(at);
    }
    let mut lanes = Lanes::default();
    let mut copy_of = vec![0u32; schedule.holds.len()];
    let mut needs = 0u32;
    for (index, PhaseOps { .. }) in facts.phases.iter().enumerate() {
        for step in 0..u32::try_from(clock.repeat[index]).unwrap_or(u32::MAX) {
            let step_base = clock.base[index] + i64::from(step) * clock.length[index];
            for visit in schedule.cut.visits_of(index) {
                let copies = lanes.copies.len();
                for hold in &queued[visit as usize] {
                    let Hold { is_resident, first, .. } = &schedule.holds[*hold as usize];
                    if step > 0 && *is_resident {
                        continue;
                    }
                    let edge = edges[*hold as usize];
                    let after = if step == 0 { edge.first } else { step_base + edge.steady };
                    let of = schedule.cut.visits[*first as usize].phase as usize;
                    lanes.copies.push(CopyEntry {
                        load: *hold,
                        step: is_loop(facts, of).then_some(step),
                        after: u32::try_from(after.max(0)).unwrap_or(u32::MAX),
                    });
                    copy_of[*hold as usize] = count(lanes.copies.len());
                }
                if schedule.waits_for_queue && lanes.copies.len() > copies {
                    needs = count(lanes.copies.len());
                }
                for hold in &schedule.visit_holds[visit as usize] {
                    needs = needs.max(copy_of[*hold as usize]);
                }
                lanes.computes.push(ComputeEntry { visit, step, needs });
            }
        }
    }
    lanes
}

/// Whether a phase is the step loop, of one step too.
fn is_loop(facts: &Facts<'_>, phase: usize) -> bool {
    facts.graph.phases[phase].kind == plimsoll_graph::PhaseKind::Denoise
}

fn count(length: usize) -> u32 {
    // Facts::new has refused more entries.
    u32::try_from(length).unwrap_or(u32::MAX)
}
