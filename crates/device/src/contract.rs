//! Types of the device contract.

mod error;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_graph::{DType, Op};
use plimsoll_host::DiskFiles;
use plimsoll_plan::Region;

pub use error::DeviceError;

/// A matrix in the arena: an op's operand with its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mat {
    /// Byte offset of the first element in the arena, at step 0.
    pub offset: u64,
    /// Rows.
    pub rows: u64,
    /// Columns.
    pub cols: u64,
    /// Elements from one row to the next.
    pub stride: u64,
    /// Element type.
    pub dtype: DType,
    /// Bytes added to `offset` for each step: a row of a hoisted table. 0 elsewhere.
    pub step_bytes: u64,
}

impl Mat {
    /// The arena range touched at `step`, from the first element to one past the last.
    pub fn region(&self, step: u32) -> Region {
        let elements = self.rows.saturating_sub(1) * self.stride + self.cols;
        Region {
            offset: self.offset + u64::from(step) * self.step_bytes,
            bytes: elements * self.dtype.bytes(),
        }
    }
}

/// Element type of bytes in host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostDType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    BF16,
    /// Indices.
    U32,
    /// 8-bit float, for [`DType::F8E4M3`] and for nothing else: it is never cast.
    F8E4M3,
    /// Elements of a matrix that the copy puts in 8 bits, each row by its own scale; for [`DType::F8E4M3`] only.
    Codes(HostRows),
    /// Rows of a matrix of which only their scales arrive: an element is a row, and its value the scale by which
    /// [`HostDType::Codes`] puts it in 8 bits; for [`DType::F32`] only.
    Scales(HostRows),
}

/// Rows of a matrix in host memory that goes to the device in 8 bits.
///
/// A row's codes depend on the whole of it, so a range of such a type holds whole rows and is cut between rows only.
/// The rule is that of `plimsoll_weights::f8_scale` and `f8_encode`, by which packed files are written. A row with an
/// element that is no number has NaN as its scale, and so as its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostRows {
    /// Type of the elements as stored.
    pub stored: WideDType,
    /// Elements of a row, at least 1.
    pub cols: u32,
}

/// An element type that can be put in 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WideDType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    BF16,
}

impl WideDType {
    /// The same as the type of bytes in host memory.
    pub const fn host(self) -> HostDType {
        match self {
            Self::F32 => HostDType::F32,
            Self::F16 => HostDType::F16,
            Self::BF16 => HostDType::BF16,
        }
    }
}

impl HostRows {
    /// Bytes of a row.
    pub const fn bytes(self) -> u64 {
        self.stored.host().bytes() * self.cols as u64
    }
}

impl HostDType {
    /// Bytes of one element.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F32 | Self::U32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::F8E4M3 => 1,
            Self::Codes(rows) => rows.stored.host().bytes(),
            Self::Scales(rows) => rows.bytes(),
        }
    }

    /// Whether a range is of whole rows, each of which arrives as one.
    pub const fn is_by_rows(self) -> bool {
        matches!(self, Self::Codes(_) | Self::Scales(_))
    }

    /// Bytes between which a range may be cut: one element, or one row where its codes depend on all of it.
    pub const fn unit_bytes(self) -> u64 {
        match self {
            Self::Codes(rows) => rows.bytes(),
            other => other.bytes(),
        }
    }
}

/// One contiguous host range and where it goes.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'h> {
    /// Bytes in host memory (a file mapping or the program's own data).
    pub source: &'h [u8],
    /// Their element type; where it differs from the target's the copy casts, rounding to nearest even.
    pub source_dtype: HostDType,
    /// Byte offset in the arena.
    pub target: u64,
    /// Element type in the arena.
    pub target_dtype: DType,
}

impl<'h> Segment<'h> {
    /// Bytes that arrive as they are, whatever their elements: several weights in one run, with what lies between
    /// them.
    pub fn of_bytes(source: &'h [u8], target: u64) -> Self {
        // Elements of one byte, which are never cast.
        Self { source, source_dtype: HostDType::F8E4M3, target, target_dtype: DType::F8E4M3 }
    }

    /// Whether the copy moves bytes as they are.
    pub fn is_plain(&self) -> bool {
        is_plain(self.source_dtype, self.target_dtype)
    }
}

/// Whether a copy from one element type to the other moves bytes as they are.
pub fn is_plain(source: HostDType, target: DType) -> bool {
    matches!(
        (source, target),
        (HostDType::F32, DType::F32)
            | (HostDType::BF16, DType::BF16)
            | (HostDType::U32, DType::U32)
            | (HostDType::F8E4M3, DType::F8E4M3)
    )
}

/// A unit's weights on their way to a slot.
#[derive(Clone, Debug)]
pub struct BoundCopy<'h> {
    /// Name of the unit, for traces.
    pub name: String,
    /// Ranges, in ascending order of their target.
    pub segments: Vec<Segment<'h>>,
    /// Where each weight comes to lie, ascending: a segment may hold several, with bytes between them that belong to
    /// none and are not counted as copied.
    pub weights: Vec<Region>,
    /// The whole slot range that this copy owns (padding between segments included).
    pub target: Region,
    /// How often the run carries it out: whether it is worth preparing its source.
    pub uses: u64,
    /// Bytes that [`Program::disk`] holds are read from there, and their mapping is left alone: RAM has no room for
    /// them.
    pub from_disk: bool,
}

impl BoundCopy<'_> {
    /// Bytes of weights that arrive in the arena.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.iter().map(|weight| weight.bytes).sum()
    }
}

/// An op with addresses.
#[derive(Clone, Debug)]
pub struct BoundOp {
    /// Kind and operands.
    pub op: Op<Mat, Mat>,
    /// Scratch memory that the op may use while it runs; its size is what the device's own rule asked for.
    pub workspace: Region,
}

/// A weight that stays in host memory and is looked up by row.
#[derive(Clone, Debug)]
pub struct HostTable<'h> {
    /// Its bytes, piece by piece, row-major; a row may not straddle two pieces.
    pub pieces: Vec<&'h [u8]>,
    /// Element type.
    pub dtype: HostDType,
    /// Number of rows.
    pub rows: u64,
    /// Columns.
    pub cols: u64,
}

/// Host memory that receives an output; taken before the run.
#[derive(Debug)]
pub struct OutputBuffer {
    /// Bytes, row-major, in the output's dtype.
    pub bytes: Mutex<Box<[u8]>>,
}

/// What a device needs to know before it runs: every op, copy and host range by index.
#[derive(Debug, Default)]
pub struct Program<'h> {
    /// Ops by the index that [`Command::Run`] names.
    pub ops: Vec<BoundOp>,
    /// Copies by the index that [`Command::Copy`] names.
    pub copies: Vec<BoundCopy<'h>>,
    /// Host values by the graph's input index.
    pub inputs: Vec<&'h [u8]>,
    /// The disk, for copies that come from it.
    pub disk: Option<&'h DiskFiles>,
    /// Host tables by the graph's table index.
    pub tables: Vec<HostTable<'h>>,
    /// Host memory by the graph's output index.
    pub outputs: Vec<OutputBuffer>,
    /// Steps of the loop: the length of [`RunStats::copied_bytes_by_step`].
    pub steps: u32,
    /// How many marks the run sets: the length of [`RunStats::marks`].
    pub mark_count: u32,
    /// What begins at each mark, for profilers; may hold fewer.
    pub mark_names: Vec<String>,
    /// Keep a [`Span`] for every copy and op.
    pub trace: bool,
    /// Upper bound on the copies and runs that will be issued, so that traces are taken beforehand.
    pub command_count: u64,
}

/// One of the two orders of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Host to device.
    Copy,
    /// Ops.
    Compute,
}

/// What a lane is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Carry out `program.copies[copy]`, for `step` of the loop (`None` outside of it); copy lane only.
    Copy {
        /// Index in the program.
        copy: u32,
        /// Step it is accounted to.
        step: Option<u32>,
    },
    /// Carry out `program.ops[op]` at `step`; compute lane only.
    Run {
        /// Index in the program.
        op: u32,
        /// Step whose rows [`Mat::step_bytes`] selects; 0 outside of the loop.
        step: u32,
    },
    /// Add one to this lane's count of signals once everything before it is done.
    Signal,
    /// Go on only when `lane` has signalled at least `count` times since the run began.
    Wait {
        /// The other lane.
        lane: Lane,
        /// Signals.
        count: u64,
    },
    /// Note the time in `marks[mark]`.
    Mark(u32),
}

/// Stops a run from outside.
#[derive(Debug, Default)]
pub struct Control {
    cancelled: AtomicBool,
}

impl Control {
    /// Asks the run to stop: lanes drop what they have not begun, and leave off in the middle of an op where the
    /// device can. Callable from a signal handler.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
    }

    /// Whether a stop was asked for.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }
}

/// The caller's side of the lanes while a program runs.
pub trait Queue {
    /// Adds a command to a lane. May wait for room; takes no memory.
    ///
    /// # Errors
    /// [`DeviceError::Cancelled`] once a stop was asked for, or the lane's own failure.
    fn enqueue(&self, lane: Lane, command: Command) -> Result<(), DeviceError>;

    /// Waits until `lane` has signalled `count` times.
    ///
    /// # Errors
    /// As [`Queue::enqueue`].
    fn wait(&self, lane: Lane, count: u64) -> Result<(), DeviceError>;

    /// Bytes copied so far.
    fn copied_bytes(&self) -> u64;

    /// Seconds since the run began, on the device's clock (virtual on `sim`).
    fn seconds(&self) -> f64;
}

/// What a span is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// `program.copies[index]`.
    Copy,
    /// `program.ops[index]`.
    Op,
}

/// When a copy or op ran.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// Copy or op.
    pub kind: SpanKind,
    /// Index in the program.
    pub index: u32,
    /// Step, where it has one.
    pub step: Option<u32>,
    /// Seconds since the run began.
    pub start: f64,
    /// Seconds since the run began.
    pub end: f64,
}

/// What a run measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunStats {
    /// Seconds from the first command to the last.
    pub seconds: f64,
    /// Bytes that arrived in the arena through the copy lane.
    pub copied_bytes: u64,
    /// The same by step of the loop.
    pub copied_bytes_by_step: Vec<u64>,
    /// Seconds of each mark.
    pub marks: Vec<f64>,
    /// One past the highest arena byte touched since the arena was filled with its pattern, rounded up to
    /// 256: found by scanning the arena, not from the plan.
    pub high_water_bytes: u64,
    /// Spans in the order in which they ended, if asked for.
    pub spans: Vec<Span>,
}

/// A place where programs run.
pub trait Device: Send {
    /// Lower-case name, as `--device` takes it.
    fn name(&self) -> &'static str;

    /// Bytes of the arena, all that the device will ever use.
    fn arena_bytes(&self) -> u64;

    /// Gives the arena back and takes another, filled with its pattern, without closing the device: for the next plan
    /// of a session.
    ///
    /// # Errors
    /// As at the device's making; it then has no arena until the next call that succeeds.
    fn retake(&mut self, arena_bytes: u64) -> Result<(), DeviceError>;

    /// Bytes of device memory that this process holds now, by the system's own meter; `None` where there is none.
    fn held_bytes(&self) -> Option<u64> {
        None
    }

    /// What went another way than the best since the device was made, one line each.
    fn notices(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether outputs are computed; false on a device that only keeps a clock.
    fn computes(&self) -> bool {
        true
    }

    /// Runs a program: checks it against the arena, starts the lanes, lets `drive` issue commands, waits for
    /// the lanes to be idle.
    ///
    /// # Errors
    /// The first failure of `drive` or of a lane. After [`DeviceError::Cancelled`] the device can run again.
    fn run(
        &mut self,
        program: &Program<'_>,
        control: &Control,
        drive: &mut dyn FnMut(&dyn Queue) -> Result<(), DeviceError>,
    ) -> Result<RunStats, DeviceError>;
}
