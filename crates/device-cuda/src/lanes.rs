//! The two lanes: threads that put commands on streams in order.
//!
//! The driver's launch queue holds some 2,000 launches and then blocks the caller, and copies from ordinary memory
//! block it as well; so each stream has a thread that does nothing else. A signal is an event recorded on the
//! lane's stream; a wait sleeps until the other lane has recorded that signal, then makes the stream wait for it.
//! All that is on a stream can then be passed by the device without any further help of the host, so that
//! emptying the streams ends, whatever made the lanes stop.

mod clock;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Scope;
use std::time::Instant;

use plimsoll_device::{Command, Control, DeviceError, Lane, Program, Queue, RunStats, SpanKind};

use crate::CudaError;
use crate::driver::{Address, Context, Event, Stream};
use crate::host_memory::{PreparedCopies, Stager, Windows};
use crate::loader::Libraries;
use crate::nvtx::{Open, Ranges};
use crate::prepare::{ARGUMENTS_MAX, Prepared, Transfer, Work};
use crate::ring::{Popped, Ring};
use crate::signals::{Signals, lock};
use clock::Clock;

/// Commands that a ring holds.
const RING: usize = 512;

/// Events of a lane's signals; a lane may be that many signals ahead of the device.
pub(crate) const SIGNALS: usize = 256;

/// What a run uses of its device.
#[derive(Clone, Copy)]
pub(crate) struct Parts<'r, 'h> {
    pub(crate) context: &'r Context,
    pub(crate) libraries: &'r Libraries,
    pub(crate) prepared: &'r Prepared,
    pub(crate) copies: &'r PreparedCopies<'h>,
    pub(crate) windows: Option<&'r Windows>,
    /// Of the copy lane, then of the compute lane.
    pub(crate) streams: [&'r Stream; 2],
    pub(crate) signals: [&'r Signals<Event>; 2],
    /// Address of the arena.
    pub(crate) base: Address,
    /// Address of the step counter.
    pub(crate) step_counter: Address,
    /// First byte of the memory for inputs and outputs.
    pub(crate) transfer: *mut u8,
}

// SAFETY: the one pointer is of a buffer that only the card touches while lanes run.
unsafe impl Send for Parts<'_, '_> {}
// SAFETY: as above.
unsafe impl Sync for Parts<'_, '_> {}

impl Parts<'_, '_> {
    /// Puts an op on the compute stream.
    fn issue_op(&self, op: usize, step: u32) -> Result<(), CudaError> {
        let Parts { libraries, prepared, streams: [_, stream], base, .. } = *self;
        let mut pointers = [std::ptr::null_mut(); ARGUMENTS_MAX];
        for work in prepared.works(op) {
            match work {
                Work::Launch { function, shape, values } => {
                    let arguments = prepared.arguments(values.clone(), &mut pointers);
                    // SAFETY: `lower` gives each kernel the arguments that its source declares; its operands were
                    // checked against the arena when the program was loaded.
                    unsafe { stream.launch(*function, *shape, arguments) }?;
                }
                Work::Gemm(gemm) => match &libraries.lt {
                    // SAFETY: the base is the arena's, against which the op's operands and scratch were checked.
                    Some(lt) => unsafe { lt.launch(gemm, base, stream.raw()) }?,
                    None => unreachable!("prepared by it"),
                },
                Work::Sdpa(sdpa) => match &libraries.dnn {
                    // SAFETY: as above.
                    Some(dnn) => unsafe { dnn.launch(sdpa, base, stream.raw()) }?,
                    None => unreachable!("prepared by it"),
                },
                Work::In(transfer) => {
                    let (host, arena) = self.ends(transfer, step);
                    // SAFETY: the rows were checked against the arena, and have their place in the transfer buffer,
                    // which nobody writes while lanes run.
                    unsafe { stream.copy_rows_in(arena, host, transfer.rows) }?;
                }
                Work::Out { transfer, .. } => {
                    let (host, arena) = self.ends(transfer, step);
                    // SAFETY: as above; the place is this output's alone.
                    unsafe { stream.copy_rows_out(host, arena, transfer.rows) }?;
                }
            }
        }
        Ok(())
    }

    fn ends(&self, transfer: &Transfer, step: u32) -> (*mut u8, Address) {
        let arena = self.base + transfer.arena + u64::from(step) * transfer.step_bytes;
        (self.transfer.wrapping_add(transfer.host), arena)
    }
}

/// Why lanes stopped.
#[derive(Clone, Debug)]
enum Failure {
    Cuda(CudaError),
    Died { lane: &'static str, cause: String },
}

impl From<Failure> for DeviceError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Cuda(error) => error.into(),
            Failure::Died { lane, cause } => Self::LaneDied { lane, cause },
        }
    }
}

/// A failure, or the end by one elsewhere.
#[derive(Debug)]
enum Stop {
    Cancelled,
    Cuda(CudaError),
}

impl From<CudaError> for Stop {
    fn from(error: CudaError) -> Self {
        Self::Cuda(error)
    }
}

/// A program while it runs.
pub(crate) struct Run<'r, 'h> {
    parts: Parts<'r, 'h>,
    control: &'r Control,
    clock: Clock,
    rings: [Ring<Command>; 2],
    stager: Option<Stager<'r, 'h>>,
    /// For a profiler, where one listens.
    ranges: Option<Ranges>,
    began: Instant,
    /// No more commands will come.
    is_closed: AtomicBool,
    /// The copy lane's thread has ended.
    copies_done: AtomicBool,
    /// Something failed: the lanes drop what they have not issued.
    is_stopped: AtomicBool,
    /// Commands were dropped.
    has_dropped: AtomicBool,
    /// The first failure.
    failure: Mutex<Option<Failure>>,
    copied_bytes: AtomicU64,
    copied_bytes_by_step: Vec<AtomicU64>,
}

fn index(lane: Lane) -> usize {
    match lane {
        Lane::Copy => 0,
        Lane::Compute => 1,
    }
}

impl<'r, 'h> Run<'r, 'h> {
    /// Takes all memory and events that the run needs; streams are empty and signals at 0.
    pub(crate) fn new(
        parts: Parts<'r, 'h>,
        context: &std::sync::Arc<Context>,
        program: &Program<'h>,
        control: &'r Control,
    ) -> Result<Self, CudaError> {
        let stager = parts
            .windows
            .filter(|_| parts.copies.chunks.len() > 0)
            // What is in the ring, what the lane has taken from it, and what is being enqueued.
            .map(|windows| Stager::new(&parts.copies.chunks, windows, program.disk, RING + 2));
        Ok(Self {
            parts,
            control,
            clock: Clock::new(context, program)?,
            rings: [Ring::new(RING), Ring::new(RING)],
            stager,
            ranges: Ranges::new(program),
            began: Instant::now(),
            is_closed: AtomicBool::new(false),
            copies_done: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            has_dropped: AtomicBool::new(false),
            failure: Mutex::new(None),
            copied_bytes: AtomicU64::new(0),
            copied_bytes_by_step: (0..program.steps).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    /// Runs both lanes and `drive` to their ends; the streams may hold work afterwards.
    pub(crate) fn go(
        &self,
        drive: &mut dyn FnMut(&dyn Queue) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        self.parts.streams[1].record(self.clock.begin())?;
        let driven = std::thread::scope(|scope| {
            let started = self.start_all(scope);
            let driven = match started {
                // A panic of the caller's must not leave the lanes waiting for it.
                Ok(()) => std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    drive(self as &dyn Queue)
                })),
                Err(cause) => Ok(Err(DeviceError::no_thread("cuda", &cause))),
            };
            if !matches!(driven, Ok(Ok(()))) {
                self.stop();
            }
            self.is_closed.store(true, Ordering::SeqCst);
            self.wake();
            driven
        });
        if let Some(failure) = lock(&self.failure).take() {
            return Err(failure.into());
        }
        match driven {
            Ok(Ok(())) if self.has_dropped.load(Ordering::SeqCst) => Err(DeviceError::Cancelled),
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Starts the lanes, and readers where copies go through windows.
    fn start_all<'s>(&'s self, scope: &'s Scope<'s, '_>) -> std::io::Result<()> {
        let start = || std::thread::Builder::new();
        start().spawn_scoped(scope, || {
            self.guard("copy", || self.issue_all(Lane::Copy));
            self.copies_done.store(true, Ordering::SeqCst);
            self.wake();
        })?;
        start().spawn_scoped(scope, || {
            self.guard("compute", || self.issue_all(Lane::Compute));
        })?;
        let Some(stager) = &self.stager else { return Ok(()) };
        let is_done = || self.copies_done.load(Ordering::SeqCst) || self.is_over();
        for _ in 0..stager.readers() {
            start().spawn_scoped(scope, move || {
                self.guard("copy", || {
                    self.parts.context.enter()?;
                    Ok(stager.read(is_done)?)
                });
            })?;
        }
        Ok(())
    }

    /// What the run measured, but for the high-water mark; streams are empty.
    pub(crate) fn stats(self) -> Result<RunStats, CudaError> {
        let (copied_bytes, by_step) = (self.copied_bytes, self.copied_bytes_by_step);
        Ok(RunStats {
            copied_bytes: copied_bytes.into_inner(),
            copied_bytes_by_step: by_step.into_iter().map(AtomicU64::into_inner).collect(),
            ..self.clock.read()?
        })
    }

    fn is_over(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst) || self.control.is_cancelled()
    }

    /// Makes everyone drop what they have not issued.
    fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        for (ring, signals) in self.rings.iter().zip(self.parts.signals) {
            ring.wake();
            signals.wake();
        }
        if let Some(stager) = &self.stager {
            stager.wake();
        }
    }

    /// Does something of a lane's; its failure or panic stops the run.
    fn guard(&self, lane: &'static str, work: impl FnOnce() -> Result<(), Stop>) {
        let failure = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)) {
            Ok(Ok(())) => return,
            Ok(Err(Stop::Cancelled)) => {
                self.has_dropped.store(true, Ordering::SeqCst);
                return self.stop();
            }
            Ok(Err(Stop::Cuda(error))) => Failure::Cuda(error),
            Err(panic) => {
                let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
                let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
                let cause = text.unwrap_or_else(|| "a panic without a message".to_owned());
                Failure::Died { lane, cause }
            }
        };
        lock(&self.failure).get_or_insert(failure);
        self.stop();
    }

    /// A lane's thread from start to end.
    fn issue_all(&self, lane: Lane) -> Result<(), Stop> {
        self.parts.context.enter()?;
        let stream = self.parts.streams[index(lane)];
        let is_closed = || self.is_closed.load(Ordering::SeqCst);
        let mut step = None;
        let mut open = Open::default();
        let ended = loop {
            match self.rings[index(lane)].pop(is_closed, || self.is_over()) {
                Popped::Item(command) => {
                    let ranges = self.ranges.as_ref();
                    let in_range = ranges.filter(|ranges| ranges.begin(command, &mut open));
                    let issued = self.issue(lane, command, &mut step);
                    in_range.inspect(|ranges| ranges.end());
                    if issued.is_err() {
                        break issued;
                    }
                }
                Popped::Over => break Err(Stop::Cancelled),
                Popped::Closed => {
                    break stream.record(self.clock.end(index(lane))).map_err(Stop::from);
                }
            }
        };
        self.ranges.iter().for_each(|ranges| ranges.end_all(&mut open));
        ended
    }

    fn issue(&self, lane: Lane, command: Command, step: &mut Option<u32>) -> Result<(), Stop> {
        let stream = self.parts.streams[index(lane)];
        let unsupported = |what: &str| CudaError::Unsupported { what: what.to_owned() };
        match command {
            Command::Copy { .. } if lane == Lane::Compute => {
                Err(unsupported("a copy on the compute lane").into())
            }
            Command::Run { .. } if lane == Lane::Copy => {
                Err(unsupported("an op on the copy lane").into())
            }
            Command::Copy { copy, step } => {
                let span = self.clock.next_span(SpanKind::Copy, copy, step);
                self.issue_between(stream, span, || self.issue_copy(copy as usize, step))
            }
            Command::Run { op, step: wanted } => {
                if *step != Some(wanted) {
                    // SAFETY: the step counter is a word of the arena's allocation.
                    unsafe { stream.set_words(self.parts.step_counter, wanted, 1) }?;
                    *step = Some(wanted);
                }
                let span = self.clock.next_span(SpanKind::Op, op, Some(wanted));
                self.issue_between(stream, span, || Ok(self.parts.issue_op(op as usize, wanted)?))
            }
            Command::Signal => Ok(self.parts.signals[index(lane)]
                .signal(|event| stream.record(event), Event::synchronize)?),
            Command::Wait { lane: other, count } => {
                self.await_recorded(other, count)?;
                let signals = self.parts.signals[index(other)];
                Ok(signals.order(count, |event| stream.wait(event))?)
            }
            Command::Mark(mark) => Ok(self.clock.mark(mark as usize, stream)?),
        }
    }

    fn issue_between(
        &self,
        stream: &Stream,
        span: Option<&[Event; 2]>,
        issue: impl FnOnce() -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        let Some([start, end]) = span else { return issue() };
        stream.record(start)?;
        issue()?;
        Ok(stream.record(end)?)
    }

    fn issue_copy(&self, copy: usize, step: Option<u32>) -> Result<(), Stop> {
        let Parts { copies, streams: [stream, _], base, .. } = self.parts;
        let prepared = &copies.copies[copy];
        for direct in &copies.direct[prepared.direct.clone()] {
            let target = base + direct.target;
            // SAFETY: the target was checked against the arena when the program was loaded; the source is borrowed
            // for longer than the run, which ends with its streams empty.
            unsafe { stream.copy_in(target, direct.source.as_ptr(), direct.source.len()) }?;
        }
        if let Some(stager) = &self.stager {
            let is_whole =
                stager.issue(prepared.chunks.clone(), base, stream, || self.is_over())?;
            if !is_whole {
                return Err(Stop::Cancelled);
            }
        }
        self.copied_bytes.fetch_add(prepared.bytes, Ordering::SeqCst);
        if let Some(counter) = step.and_then(|step| self.copied_bytes_by_step.get(step as usize)) {
            counter.fetch_add(prepared.bytes, Ordering::SeqCst);
        }
        Ok(())
    }

    fn await_recorded(&self, lane: Lane, count: u64) -> Result<(), Stop> {
        let has_come = self.parts.signals[index(lane)].await_recorded(count, || self.is_over());
        if has_come { Ok(()) } else { Err(Stop::Cancelled) }
    }

    /// Why nothing more is taken.
    fn refusal(&self) -> DeviceError {
        lock(&self.failure).clone().map_or(DeviceError::Cancelled, DeviceError::from)
    }
}

impl Queue for Run<'_, '_> {
    fn enqueue(&self, lane: Lane, command: Command) -> Result<(), DeviceError> {
        if let (Some(stager), Lane::Copy, Command::Copy { copy, .. }) =
            (&self.stager, lane, command)
            && let Some(prepared) = self.parts.copies.copies.get(copy as usize)
        {
            stager.announce(prepared.chunks.clone());
        }
        if self.rings[index(lane)].push(command, || self.is_over()) {
            return Ok(());
        }
        self.has_dropped.store(true, Ordering::SeqCst);
        Err(self.refusal())
    }

    fn wait(&self, lane: Lane, count: u64) -> Result<(), DeviceError> {
        let completed = self.await_recorded(lane, count).and_then(|()| {
            let signals = self.parts.signals[index(lane)];
            Ok(signals.await_completed(count, Event::synchronize)?)
        });
        match completed {
            Ok(()) => Ok(()),
            Err(Stop::Cancelled) => Err(self.refusal()),
            Err(Stop::Cuda(error)) => {
                lock(&self.failure).get_or_insert(Failure::Cuda(error));
                self.stop();
                Err(self.refusal())
            }
        }
    }

    fn copied_bytes(&self) -> u64 {
        self.copied_bytes.load(Ordering::SeqCst)
    }

    fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }
}
