//! The field's strategies as points of the same space: `none`, `model`, `sequential`, `group`.
//!
//! Each is what its name says and no more: it has one layout, whatever the line, and a line that is too low for it
//! is infeasible for it. Where `auto` lets a copy begin as soon as nothing needs the bytes, these begin where the
//! strategy says, so that a trace of the run shows it.

use std::rc::Rc;

use crate::facts::Facts;
use crate::item::NEVER;
use crate::machine::Machine;
use crate::schedule::{Begin, Hold, Schedule, resident, streamed, uses};
use crate::units::Cut;

/// All weights resident together for the whole run; each is copied once, in order of use.
pub(crate) fn none(facts: &Facts<'_>, cut: Rc<Cut>, prefetch: bool) -> Schedule {
    let end = u32::try_from(facts.graph.ops.len()).unwrap_or(u32::MAX).saturating_sub(1);
    let mut holds = Vec::new();
    for (uses, unit) in uses(&cut).into_iter().zip(0u32..) {
        let Some(mut hold) = resident(facts, &cut, unit, &uses) else { continue };
        hold.span = (0, end);
        hold.begin = Begin::Start;
        if !prefetch {
            hold.queue_at = 0;
        }
        holds.push((hold, readers(&uses)));
    }
    Schedule::new(cut, holds, !prefetch)
}

/// One component at a time: all of its weights come before its first visit and stay until its last, over
/// consecutive phases (hoist and denoise). Components whose visits interleave are held together.
pub(crate) fn model(facts: &Facts<'_>, cut: Rc<Cut>) -> Schedule {
    let component = |unit: u32| {
        let block = cut.units[unit as usize].block;
        facts.graph.blocks[block as usize].component.index()
    };
    let phase_of = |visit: u32| cut.visits[visit as usize].phase;
    // Runs of phases of each component, as ranges of visits.
    let mut runs: Vec<Vec<(u32, u32)>> = vec![Vec::new(); facts.graph.components.len()];
    for (visit, at) in cut.visits.iter().zip(0u32..) {
        for (unit, _) in &visit.uses {
            let runs = &mut runs[component(*unit)];
            match runs.last_mut() {
                Some((_, last)) if visit.phase <= phase_of(*last) + 1 => *last = at,
                _ => runs.push((at, at)),
            }
        }
    }
    let mut holds = Vec::new();
    for (uses, unit) in uses(&cut).into_iter().zip(0u32..) {
        for &(first, last) in &runs[component(unit)] {
            let mine: Vec<(u32, u32)> =
                uses.iter().copied().filter(|(visit, _)| (first..=last).contains(visit)).collect();
            let Some(mut hold) = resident(facts, &cut, unit, &mine) else { continue };
            hold.queue_at = first;
            hold.begin = Begin::Visit { visit: first, wraps: false };
            let start_phase = facts.phases[phase_of(first) as usize];
            let start = if start_phase.repeat > 1 {
                start_phase.start
            } else {
                cut.visits[first as usize].start
            };
            hold.span =
                (start.min(hold.span.0), hold.span.1.max(cut.visits[last as usize].end - 1));
            holds.push((hold, readers(&mine)));
        }
    }
    Schedule::new(cut, holds, true)
}

/// One leaf at a time, copied when nothing computes.
pub(crate) fn sequential(facts: &Facts<'_>, machine: &dyn Machine) -> Schedule {
    let cut = Rc::new(Cut::new(facts, machine, 0));
    let mut holds = Vec::new();
    for (uses, unit) in uses(&cut).into_iter().zip(0u32..) {
        for of in uses {
            let mut hold = streamed(&cut, unit, of);
            hold.begin = Begin::Visit { visit: of.0, wraps: false };
            holds.push((hold, vec![of.0]));
        }
    }
    Schedule::new(cut, holds, true)
}

/// `blocks` blocks at a time; with prefetch the next group's copies begin when the present group's visits do.
///
/// Groups do not reach over the end of a phase, but in a loop the first group follows the last.
pub(crate) fn group(facts: &Facts<'_>, cut: Rc<Cut>, blocks: u32, prefetch: bool) -> Schedule {
    let uses = uses(&cut);
    let mut holds = Vec::new();
    for (index, phase) in facts.phases.iter().enumerate() {
        let groups = groups(&cut, index, blocks);
        for (at, group) in groups.iter().enumerate() {
            let start_of = |group: usize| groups[group].start;
            let wraps = prefetch && at == 0 && phase.repeat > 1 && groups.len() > 1;
            let begin = match at.checked_sub(1) {
                Some(before) if prefetch => start_of(before),
                _ if wraps => start_of(groups.len() - 1),
                _ => group.start,
            };
            let op_of = |visit: u32| cut.visits[visit as usize].start;
            let end = cut.visits[group.end as usize - 1].end - 1;
            let (span, tail) = if wraps {
                ((phase.start, end), (op_of(begin), phase.end - 1))
            } else {
                ((op_of(begin), end), NEVER)
            };
            for unit in units_in(&cut, group.clone()) {
                let mine: Vec<(u32, u32)> = uses[unit as usize]
                    .iter()
                    .copied()
                    .filter(|(visit, _)| group.contains(visit))
                    .collect();
                let (Some(first), Some(last)) = (mine.first(), mine.last()) else { continue };
                let hold = Hold {
                    unit,
                    first: first.0,
                    last: last.0,
                    last_op: last.1,
                    is_resident: false,
                    queue_at: group.start,
                    begin: Begin::Visit { visit: begin, wraps },
                    span,
                    tail,
                    lead: NEVER,
                };
                holds.push((hold, readers(&mine)));
            }
        }
    }
    Schedule::new(cut, holds, !prefetch)
}

/// Ranges of visits of a phase with `blocks` weighted visits each; visits without weights follow the group before.
fn groups(cut: &Cut, phase: usize, blocks: u32) -> Vec<std::ops::Range<u32>> {
    let visits = cut.visits_of(phase);
    let mut starts = vec![visits.start];
    let mut weighted = 0;
    for visit in visits.clone() {
        if cut.visits[visit as usize].uses.is_empty() {
            continue;
        }
        if weighted == blocks {
            starts.push(visit);
            weighted = 0;
        }
        weighted += 1;
    }
    starts.push(visits.end);
    starts.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

/// Units that the visits read, each once, in order of first use.
fn units_in(cut: &Cut, visits: std::ops::Range<u32>) -> Vec<u32> {
    let mut units = Vec::new();
    for visit in visits {
        for (unit, _) in &cut.visits[visit as usize].uses {
            if !units.contains(unit) {
                units.push(*unit);
            }
        }
    }
    units
}

fn readers(uses: &[(u32, u32)]) -> Vec<u32> {
    uses.iter().map(|(visit, _)| *visit).collect()
}
