//! The two lanes: threads that carry out commands in order.
//!
//! Commands wait in rings of a fixed size; a signal is a count in an atomic number, and a lane that waits for
//! one spins for a moment, then sleeps. The compute lane runs inside of the worker pool, so that an op hands
//! tasks to its neighbours without crossing into the pool first.
//!
//! Where the compute lane has to wait for a copy that has not begun, it carries the copy lane's next commands out
//! itself: there may be no processor free for the other thread, and to hand over and back takes longer than
//! most copies. Who carries out a command of the copy lane holds the lane's turn, so that its order stays.

mod state;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Scope;
use std::time::Instant;

use plimsoll_host::{READERS, ReadAhead};

use super::arena::Space;
use super::bell::Bell;
use super::parallel::{Stop, Task};
use super::team::{Round, Team};
use super::workspace::{Work, bound_shapes};
use super::{copy, execute};
use crate::{Command, Control, DeviceError, Lane, Program, Queue, RunStats, Span, SpanKind};
use state::{LaneState, RING};

/// Commands left in a lane's ring at which the caller, who waits for its signals, is woken.
///
/// The caller need not be told of every signal: a wake takes a processor from a worker for a while, and there may be
/// ten thousand signals a second. While the lane has enough to do, the caller looks by itself now and then.
const RING_LOW: usize = 12;

/// Locks without caring for a panic elsewhere: what the locks hold is whole at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A program while it runs.
pub(crate) struct Run<'r> {
    space: Space<'r>,
    program: &'r Program<'r>,
    control: &'r Control,
    /// Reader threads' windows, where copies come from the disk.
    disk: Option<ReadAhead<'r>>,
    /// Either lane may be the last to want something of the disk.
    lanes_ended: AtomicUsize,
    copy_lane: LaneState,
    compute_lane: LaneState,
    begin: Instant,
    /// No more commands will come.
    is_closed: AtomicBool,
    /// Something failed: the lanes drop what they have not begun.
    is_stopped: AtomicBool,
    /// Commands were dropped.
    has_dropped: AtomicBool,
    /// The first failure of a lane.
    failure: Mutex<Option<DeviceError>>,
    /// Nanoseconds since `begin`.
    first_ns: AtomicU64,
    last_ns: AtomicU64,
    copied_bytes: AtomicU64,
    copied_bytes_by_step: Vec<AtomicU64>,
    /// Bits of seconds.
    marks: Vec<AtomicU64>,
    spans: Mutex<Vec<Span>>,
    /// How each op of the program is carried out.
    works: Vec<Work>,
    team: Team,
    /// Rung at a signal of a lane that has little left to do, for the caller.
    host: Bell,
}

impl<'r> Run<'r> {
    /// Takes all memory that the run needs.
    ///
    /// # Errors
    /// [`DeviceError::HostRead`] if there is none for reads from the disk.
    pub(crate) fn new(
        space: Space<'r>,
        program: &'r Program<'r>,
        control: &'r Control,
    ) -> Result<Self, DeviceError> {
        let reads = program.copies.iter().any(|copy| copy.from_disk);
        let disk = program.disk.filter(|_| reads).map(ReadAhead::new).transpose()?;
        let zeros = |count: u32| (0..count).map(|_| AtomicU64::new(0)).collect();
        let span_count = if program.trace { program.command_count } else { 0 };
        Ok(Self {
            space,
            program,
            control,
            disk,
            lanes_ended: AtomicUsize::new(0),
            copy_lane: LaneState::new("copy"),
            compute_lane: LaneState::new("compute"),
            begin: Instant::now(),
            is_closed: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            has_dropped: AtomicBool::new(false),
            failure: Mutex::new(None),
            first_ns: AtomicU64::new(u64::MAX),
            last_ns: AtomicU64::new(0),
            copied_bytes: AtomicU64::new(0),
            copied_bytes_by_step: zeros(program.steps),
            marks: zeros(program.mark_count),
            spans: Mutex::new(Vec::with_capacity(usize::try_from(span_count).unwrap_or(0))),
            works: program.ops.iter().map(|op| Work::of(&bound_shapes(&op.op.kind))).collect(),
            team: Team::default(),
            host: Bell::default(),
        })
    }

    /// Runs both lanes and `drive` to their ends.
    pub(crate) fn go(
        &self,
        pool: &rayon::ThreadPool,
        drive: &mut dyn FnMut(&dyn Queue) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let driven = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new;
            let started = self.start_readers(scope).and_then(|()| {
                thread().spawn_scoped(scope, || {
                    self.lane(Lane::Copy);
                    self.end_lane();
                })?;
                thread().spawn_scoped(scope, || {
                    pool.broadcast(|worker| self.worker(worker.index()));
                    self.end_lane();
                })
            });
            let driven = match started {
                // A panic of the caller's must not leave the lanes waiting for it.
                Ok(_) => std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    drive(self as &dyn Queue)
                })),
                // Nor must a lane that started wait for one that could not.
                Err(cause) => {
                    self.disk.iter().for_each(ReadAhead::close);
                    Ok(Err(DeviceError::no_thread("cpu", &cause)))
                }
            };
            if !matches!(driven, Ok(Ok(()))) {
                self.stop();
            }
            self.is_closed.store(true, Ordering::SeqCst);
            self.copy_lane.filled.ring();
            self.compute_lane.filled.ring();
            driven
        });
        if let Some(failure) = lock(&self.failure).take() {
            return Err(failure);
        }
        match driven {
            Ok(Ok(())) if self.has_dropped.load(Ordering::SeqCst) => Err(DeviceError::Cancelled),
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    fn start_readers<'s>(&'s self, scope: &'s Scope<'s, '_>) -> std::io::Result<()> {
        let Some(disk) = &self.disk else { return Ok(()) };
        (0..READERS).try_for_each(|_| {
            std::thread::Builder::new().spawn_scoped(scope, || disk.serve()).map(drop)
        })
    }

    /// A lane is done; after the last nobody reads from the disk.
    fn end_lane(&self) {
        if self.lanes_ended.fetch_add(1, Ordering::SeqCst) == 1 {
            self.disk.iter().for_each(ReadAhead::close);
        }
    }

    /// What the run measured, but for the high-water mark.
    pub(crate) fn stats(self) -> RunStats {
        let first = self.first_ns.into_inner();
        let last = self.last_ns.into_inner();
        RunStats {
            seconds: seconds(last.saturating_sub(first.min(last))),
            copied_bytes: self.copied_bytes.into_inner(),
            copied_bytes_by_step: self
                .copied_bytes_by_step
                .into_iter()
                .map(AtomicU64::into_inner)
                .collect(),
            marks: self.marks.into_iter().map(|mark| f64::from_bits(mark.into_inner())).collect(),
            high_water_bytes: 0,
            spans: self.spans.into_inner().unwrap_or_else(PoisonError::into_inner),
        }
    }

    fn state(&self, lane: Lane) -> &LaneState {
        match lane {
            Lane::Copy => &self.copy_lane,
            Lane::Compute => &self.compute_lane,
        }
    }

    /// Makes everyone drop what they have not begun.
    fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        for state in [&self.copy_lane, &self.compute_lane] {
            state.filled.ring();
            state.drained.ring();
            state.signalled.ring();
        }
        self.host.ring();
    }

    fn is_over(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst) || self.control.is_cancelled()
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// A worker's thread from start to end: the first is the compute lane, the others help it.
    fn worker(&self, index: usize) {
        if index == 0 {
            self.lane(Lane::Compute);
            self.team.close();
            return;
        }
        let help = || {
            self.team.help(&|round, strand| self.guard("compute", || self.strand(round, strand)))
        };
        self.guard("compute", || {
            help();
            Ok(())
        });
    }

    /// A lane's thread from start to end.
    fn lane(&self, lane: Lane) {
        self.guard(self.state(lane).name, || match lane {
            Lane::Copy => self.carry_out_copies(),
            Lane::Compute => self.carry_out_computes(),
        });
    }

    /// Does something of a lane's; its failure or panic stops the run.
    fn guard(&self, lane: &'static str, work: impl FnOnce() -> Result<(), DeviceError>) {
        let failure = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)) {
            Ok(Ok(())) => return,
            Ok(Err(failure)) => failure,
            Err(panic) => {
                let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
                let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
                let cause = text.unwrap_or_else(|| "a panic without a message".to_owned());
                DeviceError::LaneDied { lane, cause }
            }
        };
        if matches!(failure, DeviceError::Cancelled) {
            self.has_dropped.store(true, Ordering::SeqCst);
        } else {
            lock(&self.failure).get_or_insert(failure);
        }
        self.stop();
    }

    fn carry_out_computes(&self) -> Result<(), DeviceError> {
        let state = &self.compute_lane;
        while self.peek(state)?.is_some() {
            // Nobody else takes from this ring.
            if let Some(command) = self.take(state, |_| true) {
                self.carry_out(Lane::Compute, command)?;
            }
        }
        Ok(())
    }

    fn carry_out_copies(&self) -> Result<(), DeviceError> {
        while let Some(command) = self.peek(&self.copy_lane)? {
            if let Command::Wait { lane, count } = command {
                self.await_signals(lane, count)?;
            }
            let _turn = lock(&self.copy_lane.turn);
            self.carry_out_copy()?;
        }
        Ok(())
    }

    /// Carries out the copy lane's next command if there is one that need not wait, and tells whether there was.
    /// The caller holds the lane's turn.
    fn carry_out_copy(&self) -> Result<bool, DeviceError> {
        let is_ready = |command: &Command| match command {
            Command::Wait { lane, count } => {
                self.state(*lane).signals.load(Ordering::SeqCst) >= *count
            }
            _ => true,
        };
        match self.take(&self.copy_lane, is_ready) {
            None => Ok(false),
            Some(Command::Wait { .. }) => Ok(true),
            Some(command) => self.carry_out(Lane::Copy, command).map(|()| true),
        }
    }

    /// The next command, which stays in the ring; `None` when all are done.
    fn peek(&self, state: &LaneState) -> Result<Option<Command>, DeviceError> {
        let mut next = None;
        state.filled.wait_until(|| {
            // Closed is read before the ring: what came before the closing is then seen.
            let is_closed = self.is_closed.load(Ordering::SeqCst);
            next = lock(&state.ring).front().copied();
            next.is_some() || is_closed || self.is_over()
        });
        match next {
            Some(_) if self.is_over() => Err(DeviceError::Cancelled),
            None if !self.is_closed.load(Ordering::SeqCst) => Err(DeviceError::Cancelled),
            next => Ok(next),
        }
    }

    /// Takes the next command off the ring, if there is one that is ready.
    fn take(&self, state: &LaneState, is_ready: impl Fn(&Command) -> bool) -> Option<Command> {
        let mut ring = lock(&state.ring);
        let command = ring.pop_front_if(|command| is_ready(command))?;
        let left = ring.len();
        drop(ring);
        if left == RING / 2 {
            state.drained.ring();
        }
        Some(command)
    }

    fn carry_out(&self, lane: Lane, command: Command) -> Result<(), DeviceError> {
        let start = self.now_ns();
        self.carry_out_at(lane, command, start)?;
        self.first_ns.fetch_min(start, Ordering::Relaxed);
        self.last_ns.fetch_max(self.now_ns(), Ordering::Relaxed);
        Ok(())
    }

    fn carry_out_at(&self, lane: Lane, command: Command, start: u64) -> Result<(), DeviceError> {
        let unsupported = |what: &str| {
            Err(DeviceError::Unsupported { what: what.to_owned(), device: "cpu".to_owned() })
        };
        match command {
            Command::Copy { .. } if lane == Lane::Compute => {
                unsupported("a copy on the compute lane")
            }
            Command::Run { .. } if lane == Lane::Copy => unsupported("an op on the copy lane"),
            Command::Copy { copy: index, step } => {
                let bound = &self.program.copies[index as usize];
                let bytes = copy::copy(self.space, bound, self.disk.as_ref(), &|| self.is_over())?;
                self.copied_bytes.fetch_add(bytes, Ordering::SeqCst);
                let counter = step.and_then(|step| self.copied_bytes_by_step.get(step as usize));
                if let Some(counter) = counter {
                    counter.fetch_add(bytes, Ordering::SeqCst);
                }
                self.note(SpanKind::Copy, index, step, start);
                Ok(())
            }
            Command::Run { op: index, step } => {
                self.run_op(index, step)?;
                self.note(SpanKind::Op, index, Some(step), start);
                Ok(())
            }
            Command::Signal => {
                let state = self.state(lane);
                let count = state.signals.fetch_add(1, Ordering::SeqCst) + 1;
                // Either this sees what the other lane waits for, or the other lane sees this signal.
                if count >= state.awaited.load(Ordering::SeqCst) {
                    state.signalled.ring();
                }
                // A caller that is not woken here looks again after its nap: a wake may come late, none is lost.
                if lock(&state.ring).len() <= RING_LOW {
                    self.host.ring();
                }
                Ok(())
            }
            Command::Wait { lane: other, count } => {
                if (lane, other) == (Lane::Compute, Lane::Copy) {
                    self.help_copies(count)?;
                }
                self.await_signals(other, count)
            }
            Command::Mark(mark) => {
                self.marks[mark as usize].store(seconds(self.now_ns()).to_bits(), Ordering::SeqCst);
                Ok(())
            }
        }
    }

    /// Carries out an op, with the helpers where it has strands for them.
    fn run_op(&self, op: u32, step: u32) -> Result<(), DeviceError> {
        let work = &self.works[op as usize];
        self.space.touch_scratch(self.program.ops[op as usize].workspace);
        for phase in 0..work.phases {
            let round = Round { op, step, phase, strands: work.strands };
            if work.strands == 1 {
                self.strand(round, 0)?;
            } else {
                self.team.share(round, &|round, strand| {
                    self.guard("compute", || self.strand(round, strand));
                });
            }
        }
        // What a strand met is kept where the run ends. One that saw a stop has left off, and the stop still holds.
        if self.is_over() { Err(DeviceError::Cancelled) } else { Ok(()) }
    }

    fn strand(&self, round: Round, index: usize) -> Result<(), DeviceError> {
        let stop = Stop { is_stopped: &self.is_stopped, control: self.control };
        let work = &self.works[round.op as usize];
        execute::execute(self.space, self.program, work, round, Task { index, stop })
    }

    /// Carries out what the copy lane could begin, until it has signalled `count` times or its own thread is at it.
    fn help_copies(&self, count: u64) -> Result<(), DeviceError> {
        while self.copy_lane.signals.load(Ordering::SeqCst) < count && !self.is_over() {
            let Ok(_turn) = self.copy_lane.turn.try_lock() else { break };
            if !self.carry_out_copy()? {
                break;
            }
        }
        Ok(())
    }

    /// Waits for signals of `lane`; called by the other lane only.
    fn await_signals(&self, lane: Lane, count: u64) -> Result<(), DeviceError> {
        let state = self.state(lane);
        state.awaited.store(count, Ordering::SeqCst);
        let has_come = || state.signals.load(Ordering::SeqCst) >= count;
        state.signalled.wait_until(|| has_come() || self.is_over());
        if has_come() { Ok(()) } else { Err(DeviceError::Cancelled) }
    }

    /// Keeps a span if asked for; never more than memory was taken for.
    fn note(&self, kind: SpanKind, index: u32, step: Option<u32>, start: u64) {
        if !self.program.trace {
            return;
        }
        let span = Span { kind, index, step, start: seconds(start), end: seconds(self.now_ns()) };
        let mut spans = lock(&self.spans);
        if spans.len() < spans.capacity() {
            spans.push(span);
        }
    }

    /// Why nothing more is taken.
    fn refusal(&self) -> DeviceError {
        match &*lock(&self.failure) {
            Some(DeviceError::LaneDied { lane, cause }) => {
                DeviceError::LaneDied { lane, cause: cause.clone() }
            }
            Some(DeviceError::HostRead { cause }) => DeviceError::HostRead { cause: cause.clone() },
            Some(DeviceError::RowOutOfTable { row, rows }) => {
                DeviceError::RowOutOfTable { row: *row, rows: *rows }
            }
            Some(DeviceError::Unsupported { what, device }) => {
                DeviceError::Unsupported { what: what.clone(), device: device.clone() }
            }
            _ => DeviceError::Cancelled,
        }
    }
}

impl Queue for Run<'_> {
    fn enqueue(&self, lane: Lane, command: Command) -> Result<(), DeviceError> {
        let state = self.state(lane);
        let has_room = || lock(&state.ring).len() < RING;
        if !has_room() {
            let has_drained = || lock(&state.ring).len() <= RING / 2;
            state.drained.wait_until(|| has_drained() || self.is_over());
        }
        if self.is_over() {
            self.has_dropped.store(true, Ordering::SeqCst);
            return Err(self.refusal());
        }
        lock(&state.ring).push_back(command);
        state.filled.ring();
        Ok(())
    }

    fn wait(&self, lane: Lane, count: u64) -> Result<(), DeviceError> {
        let has_come = || self.state(lane).signals.load(Ordering::SeqCst) >= count;
        self.host.wait_until(|| has_come() || self.is_over());
        if has_come() { Ok(()) } else { Err(self.refusal()) }
    }

    fn copied_bytes(&self) -> u64 {
        self.copied_bytes.load(Ordering::SeqCst)
    }

    fn seconds(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }
}

#[expect(clippy::cast_precision_loss, reason = "a double holds 104 days of nanoseconds exactly")]
fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 * 1e-9
}
