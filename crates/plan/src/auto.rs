//! The strategy `auto`: as fast as the line allows.
//!
//! The space: how finely weights are cut (`units`), how many streamed units are in flight (`residency` reserves
//! room for them, `lookahead` gives them places), which units stay. Every point is first judged by the edges that
//! its spans promise, which needs no offsets; the best are then placed, given their true edges, and walked in
//! virtual time. The smallest plan (leaves, each held only while it is read) is always among them, so that there
//! is a plan wherever there can be one.

use std::rc::Rc;

use crate::arena::Effort;
use crate::assemble::Draft;
use crate::edges::{Lanes, lanes};
use crate::facts::Facts;
use crate::item::Packing;
use crate::lookahead;
use crate::machine::Machine;
use crate::named;
use crate::residency::{self, Residents};
use crate::schedule::{Begin, Items, Schedule, resident, streamed, uses};
use crate::simulate::{Costs, walk};
use crate::types::CopyEntry;
use crate::units::{Cut, caps};

/// Points that are placed, of all that are judged: the best, or all where it costs next to nothing.
const PLACED_MOST: usize = 4;

/// Items of a graph of which all points are placed.
const ITEMS_FEW: usize = 300;

/// Items of activations of a graph for which the named strategies are placed as thoroughly as by themselves.
const ITEMS_MIDDLING: usize = 900;

/// A placed point has kept its promise if it costs at most this much more: it had to give up little for offsets.
const KEPT_PROMISE: f64 = 1.02;

/// Points of which it is tried; some have live bytes under the line but no offsets.
const TRIED_MOST: usize = 10;

/// A point that promises less than this is not placed.
const GAIN_LEAST: f64 = 1.000_2;

/// Steps of a loop that are walked to judge a point; more are more of the last.
const STEPS_JUDGED: u32 = 4;

/// What a second of copying costs beside the seconds that the run takes.
const BUS_SHARE: f64 = 0.0005;

/// Budgets that are tried for one point.
const SETTLE_TRIES: u32 = 5;

/// Slots that are tried: streamed units in flight.
const SLOTS: [u64; 4] = [1, 2, 3, 6];

/// Groups that are tried: blocks in one.
const GROUPS: [u32; 3] = [1, 2, 4];

/// The schedule of the smallest line: leaves, each held only while it is read.
pub(crate) fn smallest(facts: &Facts<'_>, machine: &dyn Machine, prefetch: bool) -> Schedule {
    let cut = Rc::new(Cut::new(facts, machine, 0));
    let nothing = vec![vec![false; cut.units.len()]; facts.phases.len()];
    schedule(facts, &cut, &uses(&cut), &nothing, prefetch)
}

/// Holds for given residents; all others are held only while they are read.
fn schedule(
    facts: &Facts<'_>,
    cut: &Rc<Cut>,
    uses: &[Vec<(u32, u32)>],
    residents: &Residents,
    prefetch: bool,
) -> Schedule {
    let mut holds = Vec::new();
    for (uses, unit) in uses.iter().zip(0u32..) {
        let phase_of = |(visit, _): &(u32, u32)| cut.visits[*visit as usize].phase;
        for uses in uses.chunk_by(|a, b| phase_of(a) == phase_of(b)) {
            if residents[phase_of(&uses[0]) as usize][unit as usize] {
                let readers = uses.iter().map(|(visit, _)| *visit).collect();
                holds.extend(resident(facts, cut, unit, uses).map(|hold| (hold, readers)));
            } else {
                holds.extend(uses.iter().map(|of| (streamed(cut, unit, *of), vec![of.0])));
            }
        }
    }
    if !prefetch {
        for (hold, _) in &mut holds {
            hold.begin = Begin::Visit { visit: hold.first, wraps: false };
        }
    }
    Schedule::new(cut.clone(), holds, !prefetch)
}

/// A way of cutting, with what follows from it alone.
struct Way {
    cut: Rc<Cut>,
    uses: Vec<Vec<(u32, u32)>>,
}

/// A point of the space.
#[derive(Clone, Copy, Debug)]
struct Point {
    way: usize,
    kind: Kind,
    /// Judged cost of the run.
    cost: f64,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Everything resident from beginning to end.
    Apart,
    /// Room for so many streamed units.
    Slots(u64),
    /// Groups of so many units, as the strategy of that name has them.
    Group(u32),
    /// One component at a time, as the strategy of that name has them.
    Model,
}

/// The fastest plan under `line` that is found; the [`smallest`] fits, with the packing that
/// is given.
pub(crate) fn search<'g>(
    facts: &Facts<'g>,
    machine: &dyn Machine,
    items: &Items,
    (fallback, packing): (Schedule, Packing),
    line: u64,
    prefetch: bool,
) -> Draft {
    let is_small = packing.offsets.len() <= ITEMS_FEW;
    let mut best = draft(facts, items, fallback, packing);
    let ways: Vec<Way> = caps(facts)
        .into_iter()
        .map(|cap| {
            let cut = Rc::new(Cut::new(facts, machine, cap));
            let uses = uses(&cut);
            Way { cut, uses }
        })
        .collect();
    let mut points = points(facts, &ways, line, prefetch);
    points.sort_by(|a, b| a.cost.total_cmp(&b.cost));
    // Points of one way that promise the same to the last digit are the same schedule.
    let is_slots = |point: &Point| matches!(point.kind, Kind::Slots(_));
    points.dedup_by(|a, b| a.way == b.way && a.cost == b.cost && is_slots(a) && is_slots(b));
    let mut placed = 0;
    let placed_most = if is_small { points.len() } else { PLACED_MOST };
    for point in points.iter().take(TRIED_MOST.max(placed_most)) {
        if placed == placed_most || best.cost <= point.cost * GAIN_LEAST {
            break;
        }
        let way = &ways[point.way];
        let Some(draft) = settle(facts, way, items, line, prefetch, point.kind) else { continue };
        placed += usize::from(draft.cost <= point.cost * KEPT_PROMISE);
        if draft.cost < best.cost {
            best = draft;
        }
    }
    best
}

/// All points that the line may hold, judged.
fn points(facts: &Facts<'_>, ways: &[Way], line: u64, prefetch: bool) -> Vec<Point> {
    let slots: &[u64] = if prefetch { &SLOTS } else { &[0] };
    let mut points: Vec<Point> = Vec::new();
    for (way, Way { cut, .. }) in ways.iter().enumerate() {
        if ways[..way].iter().any(|other| other.cut.units.len() == cut.units.len()) {
            continue;
        }
        let slots = slots.iter().map(|slots| Kind::Slots(*slots));
        // Of blocks only: of leaves, groups are blocks.
        let named = GROUPS.iter().map(|blocks| Kind::Group(*blocks)).chain([Kind::Model]);
        let named = named.filter(|_| way == 0);
        for kind in std::iter::once(Kind::Apart).chain(slots).chain(named) {
            let Some(schedule) = at(facts, &ways[way], line, prefetch, kind) else { continue };
            let cost = judge(facts, &schedule);
            points.push(Point { way, kind, cost });
        }
    }
    points
}

/// The schedule of a point under a budget, if its live bytes stay under it.
fn at(facts: &Facts<'_>, way: &Way, budget: u64, prefetch: bool, kind: Kind) -> Option<Schedule> {
    let mut schedule = match kind {
        Kind::Apart => named::none(facts, way.cut.clone(), prefetch),
        Kind::Group(blocks) => named::group(facts, way.cut.clone(), blocks, prefetch),
        Kind::Model => named::model(facts, way.cut.clone()),
        Kind::Slots(slots) => {
            let residents = residency::choose(facts, &way.cut, &way.uses, budget, slots);
            schedule(facts, &way.cut, &way.uses, &residents, prefetch)
        }
    };
    if prefetch {
        schedule.waits_for_queue = false;
        for hold in &mut schedule.holds {
            hold.begin = Begin::Free;
        }
    }
    let fullest = lookahead::fullness(facts, &schedule).into_iter().max().unwrap_or(0);
    if fullest > budget {
        return None;
    }
    if let (Kind::Slots(slots), true) = (kind, prefetch) {
        lookahead::extend(facts, &mut schedule, budget, slots);
    }
    Some(schedule)
}

/// Cost of a run by the edges that a schedule's spans promise.
fn judge(facts: &Facts<'_>, schedule: &Schedule) -> f64 {
    cost(facts, schedule, &lanes(facts, schedule, None, STEPS_JUDGED))
}

/// Seconds of a run, and a little for the bus: of two runs that take the same time the one that copies less is better.
///
/// Loops are cut short to [`STEPS_JUDGED`] steps; the missing ones are as the last.
fn cost(facts: &Facts<'_>, schedule: &Schedule, lanes: &Lanes) -> f64 {
    let cut = &schedule.cut;
    let copy_seconds: Vec<f64> =
        schedule.holds.iter().map(|hold| cut.units[hold.unit as usize].seconds).collect();
    let visit_seconds: Vec<f64> = cut.visits.iter().map(|visit| visit.seconds).collect();
    let costs = Costs {
        copy_seconds: &copy_seconds,
        visit_seconds: &visit_seconds,
        copy_share: facts.copy_share,
    };
    let timeline = walk(&lanes.copies, &lanes.computes, &costs);
    let busy = |copies: &[CopyEntry]| -> f64 {
        copies.iter().map(|copy| copy_seconds[copy.load as usize]).sum()
    };
    let mut total = timeline.seconds_total + BUS_SHARE * busy(&lanes.copies);
    let mut at = 0usize;
    for (index, phase) in facts.phases.iter().enumerate() {
        let length = cut.visits_of(index).len();
        let walked = phase.repeat.min(STEPS_JUDGED) as usize;
        at += length * walked;
        if phase.repeat > STEPS_JUDGED {
            let step = timeline.computes[at - 1].1 - timeline.computes[at - 1 - length].1;
            let last = lanes.copies.iter().rposition(|copy| copy.step == Some(STEPS_JUDGED - 1));
            let first = lanes.copies.iter().position(|copy| copy.step == Some(STEPS_JUDGED - 1));
            let copies = first.zip(last).map_or(0.0, |(a, b)| busy(&lanes.copies[a..=b]));
            total += (step + BUS_SHARE * copies) * f64::from(phase.repeat - STEPS_JUDGED);
        }
    }
    total
}

/// Places a point, with less and less budget until it fits under the line.
fn settle(
    facts: &Facts<'_>,
    way: &Way,
    items: &Items,
    line: u64,
    prefetch: bool,
    kind: Kind,
) -> Option<Draft> {
    let mut budget = line;
    // Only slots have something to give up.
    let tries = if matches!(kind, Kind::Slots(_)) { SETTLE_TRIES } else { 1 };
    for _ in 0..tries {
        let schedule = at(facts, way, budget, prefetch, kind)?;
        let effort = if tries == 1 && items.items.len() <= ITEMS_MIDDLING {
            Effort::Thorough
        } else {
            Effort::Quick
        };
        let packing = items.pack(facts, &schedule, line, effort);
        if packing.peak <= line {
            return Some(draft(facts, items, schedule, packing));
        }
        // What stuck out is what the budget must leave free.
        budget = budget.checked_sub(packing.peak - line)?;
    }
    None
}

fn draft(facts: &Facts<'_>, items: &Items, schedule: Schedule, packing: Packing) -> Draft {
    let all = items.with_holds(&schedule);
    let places = Some((all.as_slice(), packing.offsets.as_slice(), items.first_hold()));
    let lanes = lanes(facts, &schedule, places, STEPS_JUDGED);
    let cost = cost(facts, &schedule, &lanes);
    Draft { schedule, packing, cost }
}
