//! A device in virtual time that computes nothing and forgives nothing.
//!
//! It serves three ends. It predicts: with the machine's rates as costs its clock is what a run would take. It
//! disturbs: seeded delays on the lanes put copies and ops in every order that the events allow. And it
//! watches (`shadow`): two accesses to the same bytes, one of them a write, that the lanes' own waits do not
//! order are a hazard, *whenever* they happened to run; an op must find what was copied or written for it.
//!
//! Time: each lane has a clock. A copy or op begins when its lane is free and takes its cost; a wait moves the
//! lane's clock to the time of the signal that it waits for. The host takes no time; a command that it issues
//! after [`Queue::wait`] does not begin before the time that it waited for.
//!
//! Order: only the lanes' waits order them. That the host waited before it issued something counts for the
//! clock but not as an order, though on a real device it would be one: what `verify` has proved rests on the
//! lanes' edges alone, and so must what the executor issues.
//!
//! Invariants: the same program, commands and seed give the same times; every run begins with an arena that
//! nothing was written to.

mod lanes;
mod operands;
mod shadow;
#[cfg(test)]
mod tests;

use std::cell::RefCell;

use plimsoll_graph::OpKind;

use crate::contract::{
    Command, Control, Device, DeviceError, Lane, Program, Queue, RunStats, Span, SpanKind,
};
use lanes::{Delays, Lanes};
use operands::{CopyWrites, OpAccesses};
use shadow::{Access, Shadow};

/// Seconds of everything that a program can do, by its index there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SimCosts {
    /// Seconds of each op of the program.
    pub op_seconds: Vec<f64>,
    /// Seconds of each copy of the program.
    pub copy_seconds: Vec<f64>,
    /// Share of the compute lane's speed that a copy in flight takes, 0 to 1.
    pub copy_share: f64,
}

/// What goes wrong on purpose. The default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SimFaults {
    /// Seed of all delays.
    pub seed: u64,
    /// Every other copy, at random, begins late by up to so many seconds.
    pub copy_delay_seconds: f64,
    /// Every other op, at random, begins late by up to so many seconds.
    pub op_delay_seconds: f64,
    /// The wait of that position, in the order of issue and from 0, is not carried out: a planted bug.
    pub dropped_wait: Option<u64>,
}

/// The simulated device, see the head of this file.
#[derive(Debug)]
pub struct SimDevice {
    arena_bytes: u64,
    costs: SimCosts,
    faults: SimFaults,
}

impl SimDevice {
    /// A device with an arena of `arena_bytes`, of which nothing is allocated.
    pub fn new(arena_bytes: u64, costs: SimCosts, faults: SimFaults) -> Self {
        Self { arena_bytes, costs, faults }
    }

    /// Costs for the next program.
    pub fn set_costs(&mut self, costs: SimCosts) {
        self.costs = costs;
    }

    /// Faults for the next run.
    pub fn set_faults(&mut self, faults: SimFaults) {
        self.faults = faults;
    }
}

impl Device for SimDevice {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn arena_bytes(&self) -> u64 {
        self.arena_bytes
    }

    fn retake(&mut self, arena_bytes: u64) -> Result<(), DeviceError> {
        self.arena_bytes = arena_bytes;
        Ok(())
    }

    fn computes(&self) -> bool {
        false
    }

    fn run(
        &mut self,
        program: &Program<'_>,
        control: &Control,
        drive: &mut dyn FnMut(&dyn Queue) -> Result<(), DeviceError>,
    ) -> Result<RunStats, DeviceError> {
        let SimCosts { op_seconds, copy_seconds, copy_share } = &self.costs;
        if (op_seconds.len(), copy_seconds.len()) != (program.ops.len(), program.copies.len()) {
            let what = format!(
                "a program of {} ops and {} copies with costs for {} and {}",
                program.ops.len(),
                program.copies.len(),
                op_seconds.len(),
                copy_seconds.len()
            );
            return Err(DeviceError::Unsupported { what, device: "sim".to_owned() });
        }
        let run = Run {
            program,
            costs: &self.costs,
            ops: operands::ops(program, self.arena_bytes)?,
            copies: operands::copies(program, self.arena_bytes)?,
            lanes: Lanes::new(self.faults.dropped_wait, *copy_share),
            delays: Delays::new(&self.faults),
            shadow: Shadow::new(self.arena_bytes),
            arrivals: Vec::new(),
            stats: RunStats {
                copied_bytes_by_step: vec![0; program.steps as usize],
                marks: vec![0.0; program.mark_count as usize],
                ..RunStats::default()
            },
        };
        let queue = SimQueue { control, run: RefCell::new(run), failure: RefCell::new(None) };
        drive(&queue)?;
        // A caller that went on after a failure gets it now.
        match queue.failure.into_inner() {
            Some(failure) => Err(failure),
            None => Ok(queue.run.into_inner().finish()),
        }
    }
}

/// A run: commands are carried out as they are issued, since every signal precedes its waits.
struct Run<'r, 'h> {
    program: &'r Program<'h>,
    costs: &'r SimCosts,
    ops: Vec<OpAccesses>,
    copies: Vec<CopyWrites>,
    lanes: Lanes,
    delays: Delays,
    shadow: Shadow,
    /// When each copy ended and how many bytes had then arrived in all.
    arrivals: Vec<(f64, u64)>,
    stats: RunStats,
}

impl Run<'_, '_> {
    fn carry_out(&mut self, lane: Lane, command: Command) -> Result<(), DeviceError> {
        match (lane, command) {
            (Lane::Copy, Command::Copy { copy, step }) => self.copy(copy, step),
            (Lane::Compute, Command::Run { op, step }) => self.op(op, step),
            (_, Command::Signal) => {
                self.lanes.signal(lane);
                Ok(())
            }
            (_, Command::Wait { lane: other, count }) => self.lanes.wait(lane, other, count),
            (_, Command::Mark(mark)) => match self.stats.marks.get_mut(mark as usize) {
                Some(seconds) => {
                    *seconds = self.lanes.seconds(lane);
                    Ok(())
                }
                None => Err(lanes::misuse(lane, format!("it has no mark {mark}"))),
            },
            (_, Command::Copy { .. } | Command::Run { .. }) => {
                Err(lanes::misuse(lane, format!("{command:?} is for the other lane")))
            }
        }
    }

    fn copy(&mut self, index: u32, step: Option<u32>) -> Result<(), DeviceError> {
        let at = index as usize;
        let Some(writes) = self.copies.get(at) else {
            return Err(lanes::misuse(Lane::Copy, format!("there is no copy {index}")));
        };
        let (ticket, start, end) =
            self.lanes.begin(Lane::Copy, self.delays.copy(), self.costs.copy_seconds[at]);
        let access = Access { kind: SpanKind::Copy, index, step, ticket };
        self.shadow.copy(self.program, writes, access)?;
        self.stats.copied_bytes += writes.arriving_bytes;
        if let Some(bytes) =
            step.and_then(|step| self.stats.copied_bytes_by_step.get_mut(step as usize))
        {
            *bytes += writes.arriving_bytes;
        }
        self.arrivals.push((end, self.stats.copied_bytes));
        self.span(Span { kind: SpanKind::Copy, index, step, start, end });
        Ok(())
    }

    fn op(&mut self, index: u32, step: u32) -> Result<(), DeviceError> {
        let at = index as usize;
        let Some(accesses) = self.ops.get(at) else {
            return Err(lanes::misuse(Lane::Compute, format!("there is no op {index}")));
        };
        if step > 0 && step >= self.program.steps {
            let cause = format!("step {step} of {}", self.program.steps);
            return Err(lanes::misuse(Lane::Compute, cause));
        }
        let (ticket, start, end) =
            self.lanes.begin(Lane::Compute, self.delays.op(), self.costs.op_seconds[at]);
        let access = Access { kind: SpanKind::Op, index, step: Some(step), ticket };
        self.shadow.op(self.program, accesses, &self.copies, step, access)?;
        if let OpKind::Output { output, .. } = &self.program.ops[at].op.kind {
            let buffer = &self.program.outputs[output.index()].bytes;
            buffer.lock().unwrap_or_else(std::sync::PoisonError::into_inner).fill(0);
        }
        self.span(Span { kind: SpanKind::Op, index, step: Some(step), start, end });
        Ok(())
    }

    fn span(&mut self, span: Span) {
        if self.program.trace {
            self.stats.spans.push(span);
        }
    }

    fn finish(mut self) -> RunStats {
        // Each lane's spans are in order already; a stable sort merges the two.
        self.stats.spans.sort_by(|a, b| a.end.total_cmp(&b.end));
        self.stats.seconds = self.lanes.seconds(Lane::Copy).max(self.lanes.seconds(Lane::Compute));
        self.stats.high_water_bytes = self.shadow.high_water_bytes();
        self.stats
    }
}

struct SimQueue<'r, 'h> {
    control: &'r Control,
    run: RefCell<Run<'r, 'h>>,
    /// The first failure, as it is told to a caller that goes on.
    failure: RefCell<Option<DeviceError>>,
}

impl<'r, 'h> SimQueue<'r, 'h> {
    fn try_run(
        &self,
        lane: Lane,
        act: impl FnOnce(&mut Run<'r, 'h>) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        if self.control.is_cancelled() {
            return Err(DeviceError::Cancelled);
        }
        if let Some(failure) = &*self.failure.borrow() {
            return Err(lanes::misuse(lane, failure.to_string()));
        }
        act(&mut self.run.borrow_mut()).inspect_err(|error| {
            *self.failure.borrow_mut() = Some(lanes::misuse(lane, error.to_string()));
        })
    }
}

impl Queue for SimQueue<'_, '_> {
    fn enqueue(&self, lane: Lane, command: Command) -> Result<(), DeviceError> {
        self.try_run(lane, |run| run.carry_out(lane, command))
    }

    fn wait(&self, lane: Lane, count: u64) -> Result<(), DeviceError> {
        self.try_run(lane, |run| run.lanes.host_wait(lane, count))
    }

    fn copied_bytes(&self) -> u64 {
        let run = self.run.borrow();
        let now = run.lanes.host_seconds();
        let ended = run.arrivals.partition_point(|(end, _)| *end <= now);
        ended.checked_sub(1).map_or(0, |last| run.arrivals[last].1)
    }

    fn seconds(&self) -> f64 {
        self.run.borrow().lanes.host_seconds()
    }
}
