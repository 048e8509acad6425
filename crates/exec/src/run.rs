//! Issuing a plan's two orders to a device's lanes, and reading the meters.

use plimsoll_device::{Command, Control, Device, DeviceError, Lane, Program, Queue, RunStats};
use plimsoll_graph::PhaseKind;
use plimsoll_plan::{Phase, Plan};
use plimsoll_verify::Verified;

use crate::ExecError;

/// Most visits that are issued ahead of the one that is reported: enough that the compute lane never waits for the host;
/// few enough that progress is recent.
const ISSUE_AHEAD_MOST: usize = 8;

/// Fewest: one that runs, and one behind it.
const ISSUE_AHEAD_LEAST: usize = 2;

/// Seconds of work that are issued ahead where visits take long. A cancel waits for what a card has been given already.
const ISSUE_AHEAD_SECONDS: f64 = 0.25;

/// Visits ahead whose copies are issued.
///
/// The copy lane may run ahead as far as the plan's edges allow; issuing all of it at once would fill the
/// lane's queue and hold up the compute lane behind it.
const COPY_AHEAD: usize = 64;

/// How far a run has come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress<'p> {
    /// Phase that is being carried out.
    pub phase: &'p str,
    /// What it is.
    pub kind: PhaseKind,
    /// Repetitions of the phase that are done (steps, in the step loop).
    pub step: u32,
    /// Repetitions of the phase in all.
    pub steps: u32,
    /// Visits done, of `visits`.
    pub visits_done: u64,
    /// Visits of the whole run.
    pub visits: u64,
    /// Bytes streamed so far.
    pub copied_bytes: u64,
    /// Seconds since the run began.
    pub seconds: f64,
}

/// Seconds of one phase.
#[derive(Clone, Debug, PartialEq)]
pub struct StageSeconds {
    /// Name of the phase.
    pub name: String,
    /// Seconds from its first op to the next phase's.
    pub seconds: f64,
}

/// What a run measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The device's own figures.
    pub stats: RunStats,
    /// Seconds by phase.
    pub stages: Vec<StageSeconds>,
    /// Seconds of each step of the loop.
    pub step_seconds: Vec<f64>,
    /// Median of the steps but the first, or the one step.
    pub seconds_per_step: f64,
    /// Bytes copied for the second step, or the one step.
    pub copied_bytes_per_step: u64,
}

/// Carries out `program` as `verified` orders it; `observe` is told of progress at each visit's end.
///
/// Outputs are in `program.outputs` afterwards.
///
/// # Errors
/// [`ExecError::Device`] for a failure or a cancel (on the CPU within a part of an op, on a card when the visits are done
/// that it was given ahead: a quarter of a second, or two visits where they take longer; the device can run again), [`ExecError::LineCrossed`] if the arena was touched above the plan's peak.
///
/// # Cancel safety
/// `control.cancel()` may be called from any thread at any moment; no output is valid afterwards.
pub fn run(
    device: &mut dyn Device,
    program: &Program<'_>,
    verified: &Verified<'_>,
    control: &Control,
    observe: &mut dyn FnMut(Progress<'_>),
) -> Result<Report, ExecError> {
    let plan = verified.plan();
    let stats = device.run(program, control, &mut |queue| issue(plan, queue, observe))?;
    if stats.high_water_bytes > plan.predicted.vram_peak_bytes {
        return Err(ExecError::LineCrossed {
            peak_bytes: stats.high_water_bytes,
            planned_bytes: plan.predicted.vram_peak_bytes,
        });
    }
    Ok(report(plan, stats))
}

/// The issue order: a copy as soon as the visits that it waits for are issued (up to [`COPY_AHEAD`] visits
/// before its own), a visit once its copies are.
///
/// So every signal is issued before the waits for it, and the copy lane is never held back by the host.
fn issue(
    plan: &Plan,
    queue: &dyn Queue,
    observe: &mut dyn FnMut(Progress<'_>),
) -> Result<(), DeviceError> {
    let (mut copies_issued, mut copies_waited, mut computes_waited) = (0usize, 0u32, 0u32);
    let mut position = Position::default();
    let mut mark = 0;
    let issue_ahead = issue_ahead(plan.predicted.seconds_total, plan.computes.len());
    for (at, entry) in plan.computes.iter().enumerate() {
        let ahead = plan.computes[at..].iter().take(COPY_AHEAD).map(|entry| entry.needs).max();
        while let Some(copy) = plan.copies.get(copies_issued) {
            let is_needed = copies_issued < entry.needs as usize;
            let is_soon = copies_issued < ahead.unwrap_or(0) as usize;
            let may_go = is_soon && copy.after as usize <= at;
            if !(is_needed || may_go) {
                break;
            }
            if copy.after > computes_waited {
                computes_waited = copy.after;
                let wait = Command::Wait { lane: Lane::Compute, count: u64::from(copy.after) };
                queue.enqueue(Lane::Copy, wait)?;
            }
            queue.enqueue(Lane::Copy, Command::Copy { copy: copy.load, step: copy.step })?;
            queue.enqueue(Lane::Copy, Command::Signal)?;
            copies_issued += 1;
        }
        if entry.needs > copies_waited {
            copies_waited = entry.needs;
            let wait = Command::Wait { lane: Lane::Copy, count: u64::from(entry.needs) };
            queue.enqueue(Lane::Compute, wait)?;
        }
        let visit = &plan.visits[entry.visit as usize];
        if position.advance(&plan.phases, entry.visit) {
            queue.enqueue(Lane::Compute, Command::Mark(mark))?;
            mark += 1;
        }
        for op in visit.ops_start..visit.ops_end {
            queue.enqueue(Lane::Compute, Command::Run { op, step: entry.step })?;
        }
        queue.enqueue(Lane::Compute, Command::Signal)?;
        if let Some(done) = (at + 1).checked_sub(issue_ahead).filter(|done| *done > 0) {
            queue.wait(Lane::Compute, done as u64)?;
            tell(plan, queue, done, observe);
        }
    }
    queue.enqueue(Lane::Compute, Command::Mark(mark))?;
    let all = plan.computes.len();
    for done in (all + 1).saturating_sub(issue_ahead).max(1)..=all {
        queue.wait(Lane::Compute, done as u64)?;
        tell(plan, queue, done, observe);
    }
    Ok(())
}

/// Visits that are issued ahead of the one that is reported, by how long they take.
fn issue_ahead(seconds: f64, visits: usize) -> usize {
    let mean_seconds = seconds / visits.max(1) as f64;
    let fit = (ISSUE_AHEAD_LEAST..ISSUE_AHEAD_MOST)
        .take_while(|visits| mean_seconds * (visits + 1) as f64 <= ISSUE_AHEAD_SECONDS)
        .count();
    ISSUE_AHEAD_LEAST + fit
}

/// Which repetition of which phase the issue order has come to.
#[derive(Default)]
struct Position {
    phase: usize,
    begun: bool,
}

impl Position {
    /// Moves on to a visit; true if it begins a phase or a repetition of one.
    fn advance(&mut self, phases: &[Phase], visit: u32) -> bool {
        if self.begun && phases[self.phase].visits_end <= visit {
            self.phase += 1;
            while phases[self.phase].visits_end <= visit {
                self.phase += 1;
            }
        }
        self.begun = true;
        phases[self.phase].visits_start == visit
    }
}

fn tell(plan: &Plan, queue: &dyn Queue, done: usize, observe: &mut dyn FnMut(Progress<'_>)) {
    let last = &plan.computes[done - 1];
    let Some(phase) = plan
        .phases
        .iter()
        .find(|phase| (phase.visits_start..phase.visits_end).contains(&last.visit))
    else {
        return;
    };
    let completed = u32::from(last.visit + 1 == phase.visits_end);
    let step = if phase.repeat > 1 { last.step + completed } else { completed };
    observe(Progress {
        phase: &phase.name,
        kind: phase.kind,
        step,
        steps: phase.repeat,
        visits_done: done as u64,
        visits: plan.computes.len() as u64,
        copied_bytes: queue.copied_bytes(),
        seconds: queue.seconds(),
    });
}

fn report(plan: &Plan, stats: RunStats) -> Report {
    let mut stages = Vec::new();
    let mut step_seconds = Vec::new();
    let mut mark = 0;
    for phase in &plan.phases {
        let repeats = phase.repeat as usize;
        let times = &stats.marks[mark..=mark + repeats];
        mark += repeats;
        stages.push(StageSeconds { name: phase.name.clone(), seconds: times[repeats] - times[0] });
        if phase.kind == PhaseKind::Denoise {
            step_seconds = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        }
    }
    let steady = step_seconds.get(1..).filter(|rest| !rest.is_empty()).unwrap_or(&step_seconds);
    let by_step = &stats.copied_bytes_by_step;
    Report {
        seconds_per_step: median(steady),
        copied_bytes_per_step: by_step.get(1).or(by_step.first()).copied().unwrap_or(0),
        stages,
        step_seconds,
        stats,
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_visits_are_issued_no_further_ahead_than_a_cancel_may_wait() {
        // A block of FLUX.1 takes 2 ms at 1024x1024 on an H200, a second at 4096x4096 on a small card.
        assert_eq!(issue_ahead(0.002 * 1000.0, 1000), 8);
        assert_eq!(issue_ahead(0.05 * 1000.0, 1000), 5);
        assert_eq!(issue_ahead(1.0 * 1000.0, 1000), 2);
        // A machine that predicts nothing.
        assert_eq!(issue_ahead(0.0, 0), 8);
    }
}
