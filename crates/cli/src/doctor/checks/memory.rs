//! Lines on memory: flat over the steps, back to idle, within what was predicted.

use std::cmp::Reverse;

use plimsoll_graph::PhaseKind;
use plimsoll_record::units::show_bytes;

use super::{Check, Line, fail, pass, unknown};
use crate::doctor::evidence::{Evidence, Observed, Place, Scope};

/// The driver gives out memory in pieces of 2 MiB: what is taken at a first use may be two of them.
const CARD_TOLERANCE: u64 = 4 << 20;

/// A desktop moves that much at any moment, where its memory is in the figure.
const DEVICE_TOLERANCE: u64 = 32 << 20;

/// A thread's stack, a line of a log: what an ordinary process grows by without holding on to anything.
const RAM_TOLERANCE: u64 = 4 << 20;

const NO_MEMORY: &str = "the simulated device holds no memory: run it on the cpu or a card";
const NO_METER: &str =
    "the driver gives no figure here (no NVML): look at the card with its own tools";

/// Whose memory is judged, or why nobody's.
fn scope(evidence: &Evidence) -> Result<Scope, &'static str> {
    match evidence.place {
        Place::Sim => Err(NO_MEMORY),
        Place::Cpu | Place::Cuda => evidence.scope().ok_or(NO_METER),
    }
}

fn tolerance(evidence: &Evidence, scope: Scope) -> u64 {
    match (evidence.place, scope) {
        (Place::Cuda, Scope::Process) => CARD_TOLERANCE,
        (_, Scope::Device) => DEVICE_TOLERANCE,
        // Arenas count themselves to the byte.
        _ => 0,
    }
}

/// Least and greatest of a figure, with the steps in which they were.
struct Range {
    least: (u64, u32),
    most: (u64, u32),
    readings: usize,
    steps: usize,
}

impl Range {
    fn spread(&self) -> u64 {
        self.most.0 - self.least.0
    }
}

/// The figure over the steps of the loop; none where fewer than two steps have one.
fn over_steps(run: &Observed, read: impl Fn(usize) -> Option<u64>) -> Option<Range> {
    let mut seen: Vec<(u64, u32)> = Vec::new();
    for (at, sample) in run.samples.iter().enumerate() {
        if sample.phase == PhaseKind::Denoise {
            seen.push((read(at)?, sample.step));
        }
    }
    let mut steps: Vec<u32> = seen.iter().map(|(_, step)| *step).collect();
    steps.sort_unstable();
    steps.dedup();
    Some(Range {
        least: *seen.iter().min_by_key(|(bytes, _)| *bytes)?,
        // The first of equals, as with the least.
        most: *seen.iter().max_by_key(|(bytes, step)| (*bytes, Reverse(*step)))?,
        readings: seen.len(),
        steps: steps.len(),
    })
    .filter(|range| range.steps > 1)
}

/// The run whose figure moved most.
fn widest(ranges: Vec<Range>) -> Option<Range> {
    ranges.into_iter().max_by_key(Range::spread)
}

pub(super) fn flat_over_steps(evidence: &Evidence) -> Line {
    const CHECK: Check = Check::FlatOverSteps;
    let scope = match scope(evidence) {
        Ok(scope) => scope,
        Err(why) => return unknown(CHECK, why),
    };
    let of = |run: &Observed| over_steps(run, |at| scope.of(run.samples[at].vram));
    let Some(ranges) = evidence.runs.iter().map(of).collect::<Option<Vec<_>>>() else {
        return unknown(CHECK, "fewer than two steps were seen: ask for more --steps");
    };
    let readings: usize = ranges.iter().map(|range| range.readings).sum();
    let Some(range) = widest(ranges) else { return unknown(CHECK, "no run was seen") };
    let seen = format!(
        "{} to {} over {} steps ({readings} readings)",
        show_bytes(range.least.0),
        show_bytes(range.most.0),
        range.steps,
    );
    if range.spread() <= tolerance(evidence, scope) {
        return pass(CHECK, seen);
    }
    let grown = show_bytes(range.spread());
    let cause = match (scope, range.most.1 > range.least.1) {
        (Scope::Device, _) => format!(
            "{grown} came or went while the steps ran; the figure is the whole card's: end other programs on it and \
             run doctor again"
        ),
        (Scope::Process, true) => format!(
            "{grown} more in step {} than in step {}: something is taken in the step loop, beside the arena (a \
             library's scratch: compare with --kernels own)",
            range.most.1 + 1,
            range.least.1 + 1,
        ),
        (Scope::Process, false) => format!(
            "{grown} less in step {} than in step {}: memory is given back in the step loop and so was taken beside \
             the arena (compare with --kernels own)",
            range.least.1 + 1,
            range.most.1 + 1,
        ),
    };
    fail(CHECK, seen, cause)
}

pub(super) fn back_to_idle(evidence: &Evidence) -> Line {
    const CHECK: Check = Check::BackToIdle;
    let scope = match scope(evidence) {
        Ok(scope) => scope,
        Err(why) => return unknown(CHECK, why),
    };
    let mut worst: Option<(u64, (u64, u64, usize))> = None;
    let mut kept = 0;
    for (at, run) in evidence.runs.iter().enumerate() {
        let pair = scope.of(run.idle).zip(scope.of(run.idle_again));
        let Some((before, after)) = pair else { return unknown(CHECK, NO_METER) };
        let mut left = after.saturating_sub(before);
        if at == 0 {
            // What the first run brought for good; later ones begin with it.
            kept = left.min(run.predicted.kept_bytes);
            left -= kept;
        }
        if worst.is_none_or(|(most, _)| left > most) {
            worst = Some((left, (before, after, at + 1)));
        }
    }
    let Some((left, (before, after, run))) = worst else {
        return unknown(CHECK, "no run was seen");
    };
    let mut seen = format!("{} before, {} after", show_bytes(before), show_bytes(after));
    if kept > 0 {
        seen +=
            &format!("; the driver and libraries keep {} until the program ends", show_bytes(kept));
    }
    if left <= tolerance(evidence, scope) {
        return pass(CHECK, seen);
    }
    let left = show_bytes(left);
    let cause = match scope {
        Scope::Device => format!(
            "{left} more after run {run}; the figure is the whole card's: another program may have started on it"
        ),
        Scope::Process => format!(
            "{left} were not given back after run {run}: the arena or what a library took beside it is still held, a bug \
             of this program"
        ),
    };
    fail(CHECK, seen, cause)
}

pub(super) fn host_memory(evidence: &Evidence) -> Line {
    const CHECK: Check = Check::HostMemory;
    if evidence.place == Place::Sim {
        return unknown(CHECK, "nothing is computed on the simulated device");
    }
    let of = |run: &Observed| over_steps(run, |at| run.samples[at].ram_bytes);
    let Some(ranges) = evidence.runs.iter().map(of).collect::<Option<Vec<_>>>() else {
        return unknown(CHECK, "the system gives no figure, or fewer than two steps were seen");
    };
    let Some(range) = widest(ranges) else { return unknown(CHECK, "no run was seen") };
    let seen =
        format!("{} to {}, without files", show_bytes(range.least.0), show_bytes(range.most.0));
    let is_growth = range.most.1 > range.least.1;
    if range.spread() <= RAM_TOLERANCE || !is_growth {
        return pass(CHECK, seen);
    }
    let cause = format!(
        "{} more in step {} than in step {}: the host's side of a step takes memory and keeps it",
        show_bytes(range.spread()),
        range.most.1 + 1,
        range.least.1 + 1,
    );
    fail(CHECK, seen, cause)
}

pub(super) fn peak(evidence: &Evidence) -> Line {
    const CHECK: Check = Check::Peak;
    // The run that came highest above its plan, or nearest to it.
    let over =
        |run: &&Observed| i128::from(run.high_water_bytes) - i128::from(run.predicted.arena_bytes);
    let Some(run) = evidence.runs.iter().max_by_key(over) else {
        return unknown(CHECK, "no run was seen");
    };
    let (touched, arena) = (run.high_water_bytes, run.predicted.arena_bytes);
    let mut seen = format!("arena {} of {}", show_bytes(touched), show_bytes(arena));
    if evidence.place == Place::Sim {
        return pass(CHECK, format!("{seen} (of the plan's addresses: no memory was there)"));
    }
    if touched > arena {
        let cause = format!(
            "{} of the arena were touched beyond the plan: an op wrote outside of its operands, a bug of this program",
            show_bytes(touched - arena),
        );
        return fail(CHECK, seen, cause);
    }
    // On the CPU the arena is all there is; a card's process takes more than its arena.
    let scope = evidence.scope().filter(|_| evidence.place == Place::Cuda);
    let Some(scope) = scope else { return pass(CHECK, seen) };
    let held = |run: &Observed| {
        let others = if scope == Scope::Device { scope.of(run.idle).unwrap_or(0) } else { 0 };
        let most = run.samples.iter().filter_map(|sample| scope.of(sample.vram)).max();
        most.unwrap_or(0).saturating_sub(others)
    };
    let over = |run: &&Observed| i128::from(held(run)) - i128::from(run.predicted.process_bytes);
    let Some(run) = evidence.runs.iter().max_by_key(over) else { return pass(CHECK, seen) };
    let (held, planned) = (held(run), run.predicted.process_bytes);
    seen += &format!(", process {} of {}", show_bytes(held), show_bytes(planned));
    if held <= planned.saturating_add(slack(scope)) {
        return pass(CHECK, seen);
    }
    let over = show_bytes(held - planned);
    let cause = match scope {
        Scope::Process => format!(
            "{over} more than planned are held beside the arena: a library or the driver took them after the card was \
             opened (compare with --kernels own), or page-locked files are booked on this process"
        ),
        Scope::Device => format!(
            "{over} more than planned; the figure is the whole card's: another program may have taken them"
        ),
    };
    fail(CHECK, seen, cause)
}

/// What others may move in the whole device's figure; the process's own has its margin in the prediction.
fn slack(scope: Scope) -> u64 {
    match scope {
        Scope::Process => 0,
        Scope::Device => DEVICE_TOLERANCE,
    }
}
