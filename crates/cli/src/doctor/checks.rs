//! What doctor concludes: a verdict a line, with its number and, where it fails, the likely cause.
//!
//! Pure functions over [`Evidence`]: a planted fault in the evidence fails its own line and no other. What was not seen
//! is neither passed nor failed.

use std::cmp::{Ordering, Reverse};

use plimsoll_graph::{DType, PhaseKind};
use plimsoll_record::units::{show_bytes, show_seconds};
use serde::Serialize;

use crate::doctor::evidence::{Evidence, Observed, Place, Scope};

/// A verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Pass,
    Fail,
    /// It cannot be known here.
    Unknown,
}

impl Verdict {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "FAIL",
            Self::Unknown => "?",
        }
    }
}

/// What was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Check {
    FlatOverSteps,
    BackToIdle,
    HostMemory,
    Dtypes,
    Peak,
    Streamed,
    Time,
    SameBits,
}

impl Check {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::FlatOverSteps => "VRAM flat over the steps",
            Self::BackToIdle => "back to idle",
            Self::HostMemory => "RAM flat over the steps",
            Self::Dtypes => "dtypes as executed",
            Self::Peak => "peak within prediction",
            Self::Streamed => "streamed as planned",
            Self::Time => "time in the plan's range",
            Self::SameBits => "same bits each time",
        }
    }
}

/// One line of the diagnosis.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Line {
    pub(crate) check: Check,
    pub(crate) verdict: Verdict,
    /// The number.
    pub(crate) seen: String,
    /// Where it fails: why, most likely, and what to do. Where it is not known: why not.
    pub(crate) cause: Option<String>,
}

/// The driver gives out memory in pieces of 2 MiB: what is taken at a first use may be two of them.
const CARD_TOLERANCE: u64 = 4 << 20;

/// A desktop moves that much at any moment, where its memory is in the figure.
const DEVICE_TOLERANCE: u64 = 32 << 20;

/// A thread's stack, a line of a log: what an ordinary process grows by without holding on to anything.
const RAM_TOLERANCE: u64 = 4 << 20;

/// Measured seconds may be this many times the predicted ones, or this part of them.
///
/// The field's figure for "something is wrong" is about the same: 3.5 s where 2.0 to 2.15 are normal.
const TIME_FACTOR: f64 = 1.5;

/// The whole diagnosis, in the order in which it is read.
pub(crate) fn judge(evidence: &Evidence) -> Vec<Line> {
    vec![
        flat_over_steps(evidence),
        back_to_idle(evidence),
        host_memory(evidence),
        dtypes(evidence),
        peak(evidence),
        streamed(evidence),
        time(evidence),
        same_bits(evidence),
    ]
}

fn pass(check: Check, seen: impl Into<String>) -> Line {
    Line { check, verdict: Verdict::Pass, seen: seen.into(), cause: None }
}

fn fail(check: Check, seen: impl Into<String>, cause: impl Into<String>) -> Line {
    Line { check, verdict: Verdict::Fail, seen: seen.into(), cause: Some(cause.into()) }
}

fn unknown(check: Check, why: impl Into<String>) -> Line {
    Line { check, verdict: Verdict::Unknown, seen: String::new(), cause: Some(why.into()) }
}

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

fn flat_over_steps(evidence: &Evidence) -> Line {
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

fn back_to_idle(evidence: &Evidence) -> Line {
    const CHECK: Check = Check::BackToIdle;
    let scope = match scope(evidence) {
        Ok(scope) => scope,
        Err(why) => return unknown(CHECK, why),
    };
    let mut worst: Option<(u64, u64, usize)> = None;
    for (at, run) in evidence.runs.iter().enumerate() {
        let pair = scope.of(run.idle).zip(scope.of(run.idle_again));
        let Some((before, after)) = pair else { return unknown(CHECK, NO_METER) };
        let left = |(before, after, _): &(u64, u64, usize)| after.saturating_sub(*before);
        let now = (before, after, at + 1);
        if worst.as_ref().is_none_or(|worst| left(&now) > left(worst)) {
            worst = Some(now);
        }
    }
    let Some((before, after, run)) = worst else { return unknown(CHECK, "no run was seen") };
    let seen = format!("{} before, {} after", show_bytes(before), show_bytes(after));
    let left = after.saturating_sub(before);
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

fn host_memory(evidence: &Evidence) -> Line {
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

fn dtypes(evidence: &Evidence) -> Line {
    const CHECK: Check = Check::Dtypes;
    if evidence.place == Place::Sim {
        return unknown(
            CHECK,
            "nothing is computed on the simulated device: the plan's dtypes are no proof",
        );
    }
    if evidence.components.iter().all(|component| component.weights.is_empty()) {
        return unknown(CHECK, "the device keeps no trace of its ops");
    }
    let mut seen = Vec::new();
    let mut causes = Vec::new();
    for component in &evidence.components {
        let name = &component.name;
        let Some(&(found, _)) = component.weights.first() else {
            causes.push(format!("no op of {name} was executed"));
            continue;
        };
        let all: u64 = component.weights.iter().map(|(_, bytes)| bytes).sum();
        let shares: Vec<String> = component
            .weights
            .iter()
            .map(|(dtype, bytes)| format!("{} {}", dtype.name(), share(*bytes, all)))
            .collect();
        seen.push(format!("{name} {}", shares.join(" + ")));
        if let Some(expected) = component.expected.filter(|expected| *expected != found) {
            causes.push(wrong_weights(name, expected, found));
        }
        if let Some(&(written, _)) = component.results.first()
            && written != evidence.run_dtype
        {
            causes.push(format!(
                "{name} writes {} and {} was asked for: its ops were bound to other buffers, a bug of this program",
                written.name(),
                evidence.run_dtype.name(),
            ));
        }
    }
    let seen = format!("{}; values {}", seen.join(", "), evidence.run_dtype.name());
    if causes.is_empty() { pass(CHECK, seen) } else { fail(CHECK, seen, causes.join("; ")) }
}

fn wrong_weights(name: &str, expected: DType, found: DType) -> String {
    let why = match (expected, found) {
        (DType::F8E4M3, _) => {
            "its weights were not quantized: give --dtype transformer=fp8, or a folder that pack wrote with it"
        }
        (_, DType::F8E4M3) => {
            "the folder is a packed one: bf16 needs the folder that it was packed from"
        }
        (DType::BF16, DType::F32) => {
            "they were widened on their way and take twice the bytes: see --dtype"
        }
        _ => "another folder or --dtype than was meant",
    };
    format!("{name} is executed in {} and not in {}: {why}", found.name(), expected.name())
}

fn share(part: u64, all: u64) -> String {
    let percent = part as f64 * 100.0 / all.max(1) as f64;
    if percent >= 99.95 { "100 %".to_owned() } else { format!("{percent:.1} %") }
}

fn peak(evidence: &Evidence) -> Line {
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

fn streamed(evidence: &Evidence) -> Line {
    const CHECK: Check = Check::Streamed;
    let other = evidence.runs.iter().find(|run| run.copied_bytes != run.predicted.copied_bytes);
    let Some(run) = other.or(evidence.runs.first()) else {
        return unknown(CHECK, "no run was seen");
    };
    let (copied, planned) = (run.copied_bytes, run.predicted.copied_bytes);
    let seen = format!("{} of {} a run", show_bytes(copied), show_bytes(planned));
    match copied.cmp(&planned) {
        Ordering::Equal => pass(CHECK, seen),
        Ordering::Greater => fail(
            CHECK,
            seen,
            "weights are copied more often than planned: they do not stay where the plan has them",
        ),
        Ordering::Less => fail(
            CHECK,
            seen,
            "weights that the plan streams were not copied: another placement is in effect",
        ),
    }
}

fn time(evidence: &Evidence) -> Line {
    const CHECK: Check = Check::Time;
    let times = |run: &Observed| run.seconds_per_step / run.predicted.seconds_per_step;
    let mut runs: Vec<&Observed> = evidence.runs.iter().collect();
    runs.sort_by(|a, b| times(a).total_cmp(&times(b)));
    let (Some(fastest), Some(median)) = (runs.first(), runs.get(runs.len() / 2)) else {
        return unknown(CHECK, "no run was seen");
    };
    let predicted = median.predicted.seconds_per_step;
    let seen = format!(
        "{} a step, range {} to {}",
        show_seconds(median.seconds_per_step),
        show_seconds(predicted / TIME_FACTOR),
        show_seconds(predicted * TIME_FACTOR),
    );
    if evidence.place == Place::Sim {
        return Line { seen, ..unknown(CHECK, "a virtual clock says what the plan says") };
    }
    if !evidence.has_own_rates {
        let why = "the plan's rates are another card's: plimsoll probe measures this one";
        return Line { seen, ..unknown(CHECK, why) };
    }
    if (1.0 / TIME_FACTOR..=TIME_FACTOR).contains(&times(median)) {
        return pass(CHECK, seen);
    }
    let off = format!("{:.2} times the predicted seconds", times(median));
    let again = match evidence.place {
        Place::Cuda => "plimsoll probe",
        Place::Cpu | Place::Sim => "doctor",
    };
    let cause = if times(median) < 1.0 {
        format!(
            "{off}: the rates were measured while this machine was slower or busier; run {again} again"
        )
    } else if times(fastest) <= TIME_FACTOR {
        format!(
            "{off}, but {:.2} in the fastest run: something else used the machine for a while; run doctor again",
            times(fastest),
        )
    } else if evidence.place == Place::Cuda {
        format!(
            "{off} in every run: the card is shared or throttled, its link is slower than it was, or weights come from the \
             disk and not from RAM (page cache); run {again} again when it is idle"
        )
    } else {
        format!(
            "{off} in every run: other programs share the machine, or it is throttled; run {again} again when it is idle"
        )
    };
    fail(CHECK, seen, cause)
}

fn same_bits(evidence: &Evidence) -> Line {
    const CHECK: Check = Check::SameBits;
    let Some(first) = evidence.runs.first().filter(|run| !run.latents.is_empty()) else {
        return unknown(CHECK, "nothing is computed on the simulated device");
    };
    let seen =
        |other: usize| format!("{} of {} runs", evidence.runs.len() - other, evidence.runs.len());
    match evidence.runs.iter().filter(|run| run.latents != first.latents).count() {
        0 => pass(CHECK, seen(0)),
        other => fail(
            CHECK,
            seen(other),
            "the same conditions gave other pictures: memory or the card makes errors, or a bug of this program",
        ),
    }
}

#[cfg(test)]
mod tests;
