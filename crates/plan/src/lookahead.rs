//! How far ahead of its use each streamed unit has its place.
//!
//! A place that is free one visit earlier lets the copy begin one visit earlier. Memory that a phase leaves free is
//! given to the streamed units in rounds, as to slots of a ring: in round `m` each may reach back to the last
//! reader of the `m`-th streamed unit before it, as long as every visit on the way stays under the budget. In a
//! loop the units of the head reach over the seam into the tail of the step before, and those that follow the loop
//! into the tail of its last step, where nothing is fetched for a head any more.
//!
//! What is granted here is what the arena then guarantees; `edges` lets a copy run further ahead wherever offsets
//! happen to allow it.

use crate::facts::Facts;
use crate::schedule::Schedule;

/// Extends the spans of streamed holds backwards where `budget` allows it, in `rounds` rounds.
pub(crate) fn extend(facts: &Facts<'_>, schedule: &mut Schedule, budget: u64, rounds: u64) {
    let most = fullness(facts, schedule);
    let mut full = Full { inner: most.clone(), last: most, budget };
    let cut = schedule.cut.clone();
    let streamed: Vec<usize> =
        (0..schedule.holds.len()).filter(|at| !schedule.holds[*at].is_resident).collect();
    // First visit of the place, and of its tail in the step before (the loop's end for none).
    let mut reach: Vec<Reach> = streamed
        .iter()
        .map(|at| {
            let hold = &schedule.holds[*at];
            let phase = cut.visits[hold.first as usize].phase as usize;
            let visits = cut.visits_of(phase);
            let is_loop = facts.phases[phase].repeat > 1;
            let loop_before = phase.checked_sub(1).filter(|p| facts.phases[*p].repeat > 1);
            Reach {
                hold: *at,
                bytes: schedule.hold_bytes(hold),
                from: hold.first,
                tail: visits.end,
                loop_before: loop_before.map(|phase| cut.visits_of(phase).start),
                phase_start: visits.start,
                is_loop,
                is_stuck: false,
            }
        })
        .collect();
    for round in 1..=usize::try_from(rounds).unwrap_or(usize::MAX) {
        for at in 0..reach.len() {
            let target = target(schedule, &streamed, &reach, at, round);
            full.grow(&mut reach[at], target);
        }
    }
    for reach in reach {
        let hold = &mut schedule.holds[reach.hold];
        let from = cut.visits[reach.from as usize].start;
        if reach.loop_before.is_some() && reach.from < reach.phase_start {
            hold.span.0 = cut.visits[reach.phase_start as usize].start;
            hold.lead = (from, hold.span.0 - 1);
        } else {
            hold.span.0 = hold.span.0.min(from);
        }
        let phase = cut.visits[hold.first as usize].phase as usize;
        if reach.tail < cut.visits_of(phase).end {
            hold.tail = (cut.visits[reach.tail as usize].start, facts.phases[phase].end - 1);
        }
    }
}

struct Reach {
    hold: usize,
    bytes: u64,
    /// First visit; before the phase's first in the phase before.
    from: u32,
    /// First visit of the tail; the loop's end for none.
    tail: u32,
    /// First visit of the phase before, if that is a loop.
    loop_before: Option<u32>,
    phase_start: u32,
    is_loop: bool,
    is_stuck: bool,
}

/// How far back a hold may reach: to a visit of its own phase or an earlier one, and in a loop to a visit of the
/// step before.
#[derive(Clone, Copy)]
struct Target {
    from: u32,
    tail: Option<u32>,
}

fn target(
    schedule: &Schedule,
    streamed: &[usize],
    reach: &[Reach],
    at: usize,
    round: usize,
) -> Target {
    let last = |at: usize| schedule.holds[streamed[at]].last;
    let mine = &reach[at];
    let before = at.checked_sub(round);
    let from = before.map_or(0, |before| last(before) + 1);
    if !mine.is_loop || from > mine.phase_start {
        return Target { from: from.min(mine.from), tail: None };
    }
    // Over the seam: the streamed holds of the loop, from its end.
    let in_loop = |at: usize| reach[at].is_loop && reach[at].phase_start == mine.phase_start;
    let first = (0..=at).rev().take_while(|at| in_loop(*at)).last().unwrap_or(at);
    let end = (at..reach.len()).take_while(|at| in_loop(*at)).last().unwrap_or(at);
    let over = round - (at - first);
    // Never past its own last use, which is the longest way round.
    let own = last(at) + 1;
    let tail = (end + 1).checked_sub(over).filter(|other| *other > at).map_or(own, |o| last(o) + 1);
    Target { from: from.min(mine.phase_start), tail: Some(tail.max(own)) }
}

/// The most bytes alive in each visit: in the last step of a loop, and in all others.
struct Full {
    inner: Vec<u64>,
    last: Vec<u64>,
    budget: u64,
}

/// In which steps of a loop a place is taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Steps {
    All,
    ButLast,
    Last,
}

impl Full {
    /// Takes `bytes` in a visit if they fit.
    fn take(&mut self, visit: u32, bytes: u64, steps: Steps) -> bool {
        let [inner, last] = [&mut self.inner, &mut self.last].map(|full| &mut full[visit as usize]);
        let fits = |full: u64| full.saturating_add(bytes) <= self.budget;
        let (in_inner, in_last) = (steps != Steps::Last, steps != Steps::ButLast);
        if (in_inner && !fits(*inner)) || (in_last && !fits(*last)) {
            return false;
        }
        *inner += bytes * u64::from(in_inner);
        *last += bytes * u64::from(in_last);
        true
    }

    fn grow(&mut self, reach: &mut Reach, target: Target) {
        // Inside the phase first, then over the seam, then into the phase before.
        while !reach.is_stuck && reach.from > target.from.max(reach.phase_start) {
            let fits = self.take(reach.from - 1, reach.bytes, Steps::All);
            if fits { reach.from -= 1 } else { reach.is_stuck = true }
        }
        let tail = target.tail.unwrap_or(u32::MAX);
        while !reach.is_stuck && reach.from <= reach.phase_start && reach.tail > tail {
            let fits = self.take(reach.tail - 1, reach.bytes, Steps::ButLast);
            if fits { reach.tail -= 1 } else { reach.is_stuck = true }
        }
        let steps = if reach.loop_before.is_some() { Steps::Last } else { Steps::All };
        let floor = target.from.max(reach.loop_before.unwrap_or(0));
        while reach.from <= reach.phase_start && reach.from > floor {
            if !self.take(reach.from - 1, reach.bytes, steps) {
                break;
            }
            reach.from -= 1;
        }
    }
}

/// The most bytes alive in each visit as the schedule stands.
pub(crate) fn fullness(facts: &Facts<'_>, schedule: &Schedule) -> Vec<u64> {
    let spans = schedule
        .holds
        .iter()
        .flat_map(|hold| [hold.span, hold.tail].map(|span| (span, schedule.hold_bytes(hold))))
        .filter(|((first, last), _)| first <= last);
    let live = crate::facts::live_bytes(
        facts.graph.ops.len(),
        spans,
        facts.activation_bytes.iter().copied(),
    );
    schedule
        .cut
        .visits
        .iter()
        .map(|visit| live[visit.start as usize..visit.end as usize].iter().copied().max())
        .map(|most| most.unwrap_or(0))
        .collect()
}
