//! Which units stay in a phase that needs them again, and which are streamed.
//!
//! Every byte that stays is a byte less to copy in every step, wherever it is in the loop. What matters is which
//! units are left to stream: **they are spread evenly over the compute time**, so that each copy fits behind the
//! compute since the one before. A least-recently-used rule would do the worst possible thing: on a cyclic scan
//! that is larger than its memory it misses every time.

use crate::facts::{Facts, round_up};
use crate::units::Cut;

/// For each phase the units that stay in it.
pub(crate) type Residents = Vec<Vec<bool>>;

/// A unit that a phase needs more than once.
struct Reused {
    unit: u32,
    bytes: u64,
    /// Compute seconds since the reused unit before.
    seconds: f64,
}

/// Chooses residents so that each phase stays under `budget` with `slots` streamed units in flight.
pub(crate) fn choose(
    facts: &Facts<'_>,
    cut: &Cut,
    uses: &[Vec<(u32, u32)>],
    budget: u64,
    slots: u64,
) -> Residents {
    (0..facts.phases.len())
        .map(|phase| {
            let mut residents = vec![false; cut.units.len()];
            let reused = reused(facts, cut, uses, phase);
            let is_reused = |unit: u32| reused.iter().any(|reused| reused.unit == unit);
            let total: u64 = reused.iter().map(|reused| reused.bytes).sum();
            let (fixed, fullest) = needs(facts, cut, phase, &is_reused);
            if fixed.saturating_add(total) <= budget {
                for reused in &reused {
                    residents[reused.unit as usize] = true;
                }
                return residents;
            }
            let largest = reused.iter().map(|reused| reused.bytes).max().unwrap_or(0);
            let ring = if slots == 0 { fullest } else { fixed + slots * largest };
            for unit in spread(&reused, budget.saturating_sub(ring)) {
                residents[unit as usize] = true;
            }
            residents
        })
        .collect()
}

/// Units that a phase needs more than once, in order of their first use in it.
fn reused(facts: &Facts<'_>, cut: &Cut, uses: &[Vec<(u32, u32)>], phase: usize) -> Vec<Reused> {
    let visits = cut.visits_of(phase);
    let is_loop = facts.phases[phase].repeat > 1;
    let mut reused: Vec<Reused> = Vec::new();
    let mut seconds = 0.0;
    for at in visits.clone() {
        let visit = &cut.visits[at as usize];
        for (unit, _) in &visit.uses {
            let mut mine = uses[*unit as usize].iter().filter(|(visit, _)| visits.contains(visit));
            let is_first = mine.next().is_some_and(|(first, _)| *first == at);
            if is_first && (is_loop || mine.next().is_some()) {
                let bytes = round_up(cut.units[*unit as usize].bytes);
                reused.push(Reused { unit: *unit, bytes, seconds });
                seconds = 0.0;
            }
        }
        seconds += visit.seconds;
    }
    if let Some(first) = reused.first_mut() {
        first.seconds += seconds;
    }
    reused
}

/// The most bytes of a phase with no reused unit, and with each only while it is read.
fn needs(
    facts: &Facts<'_>,
    cut: &Cut,
    phase: usize,
    is_reused: &dyn Fn(u32) -> bool,
) -> (u64, u64) {
    let (mut fixed, mut fullest) = (0, 0);
    for at in cut.visits_of(phase) {
        let visit = &cut.visits[at as usize];
        let uses: Vec<(u32, u64, bool)> = visit
            .uses
            .iter()
            .map(|(unit, last)| {
                (*last, round_up(cut.units[*unit as usize].bytes), is_reused(*unit))
            })
            .collect();
        for op in visit.start..visit.end {
            let activations = facts.activation_bytes[op as usize];
            let held = |reused_too: bool| -> u64 {
                let held =
                    uses.iter().filter(|(last, _, reused)| op <= *last && (reused_too || !reused));
                held.map(|(_, bytes, _)| bytes).sum()
            };
            fixed = fixed.max(activations + held(false));
            fullest = fullest.max(activations + held(true));
        }
    }
    (fixed, fullest)
}

/// Units of at most `room` bytes in all, such that those left over are spread evenly over the compute time.
fn spread(reused: &[Reused], room: u64) -> Vec<u32> {
    let smallest = reused.iter().map(|reused| reused.bytes).min().unwrap_or(u64::MAX);
    if room < smallest {
        return Vec::new();
    }
    let total_seconds: f64 = reused.iter().map(|reused| reused.seconds).sum();
    let total: u64 = reused.iter().map(|reused| reused.bytes).sum();
    // Where nothing costs time, bytes stand for it.
    let weight = |reused: &Reused| {
        if total_seconds > 0.0 {
            reused.seconds / total_seconds
        } else {
            reused.bytes as f64 / total.max(1) as f64
        }
    };
    // Walks the phase with a credit of bytes that grows with compute; who finds enough of it is streamed.
    let walk = |rate: f64| -> (Vec<bool>, u64) {
        let (mut credit, mut kept) = (0.0f64, 0u64);
        let stays = reused
            .iter()
            .map(|reused| {
                credit += rate * weight(reused);
                if credit >= reused.bytes as f64 * 0.999_999 {
                    credit -= reused.bytes as f64;
                    false
                } else {
                    kept += reused.bytes;
                    true
                }
            })
            .collect();
        (stays, kept)
    };
    let (mut low, mut high) = (0.0, 2.0 * total as f64 * reused.len() as f64 + 1.0);
    for _ in 0..48 {
        let rate = 0.5 * (low + high);
        if walk(rate).1 <= room { high = rate } else { low = rate }
    }
    let (mut stays, kept) = walk(high);
    if kept > room {
        return Vec::new();
    }
    let mut left = room - kept;
    let mut by_size: Vec<usize> = (0..reused.len()).filter(|at| !stays[*at]).collect();
    by_size.sort_by_key(|at| (std::cmp::Reverse(reused[*at].bytes), *at));
    for at in by_size {
        if reused[at].bytes <= left {
            left -= reused[at].bytes;
            stays[at] = true;
        }
    }
    reused.iter().zip(stays).filter(|(_, stays)| *stays).map(|(reused, _)| reused.unit).collect()
}
