//! Measures a graph's own ops, so that its seconds are predicted from what this machine does with them.
//!
//! Every distinct op of the graph is placed in an arena, each with operands of its own, and all of them run in
//! turn for some rounds: so an op finds the caches as it does in a run, full of the others' operands. The median over
//! the rounds counts. Ops whose operands are too large for a trial keep the [`Rates`], scaled by
//! what the measured ones needed.
//!
//! After each round some ops run three times more, as streaming has them: alone, each behind a copy of as many bytes as
//! its weights have, and each beside the copy for the next. The first two differ by what a copy takes, its hand-over from
//! lane to lane included; the first and the third by what a copy that is hidden still costs the ops.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::Instant;

use plimsoll_graph::{DType, Graph, InputId, Op, OpKind, OutputId, RowSelect, TableId};

use super::CpuDevice;
use super::machine::CpuMachine;
use super::rates::Rates;
use super::signature::Signature;
use super::workspace::{Work, bound_shapes};
use crate::{
    BoundCopy, BoundOp, Command, Control, Device, DeviceError, HostDType, HostTable, Lane, Mat,
    OutputBuffer, Program, Queue, Region, Segment, Span, SpanKind,
};

/// Operands of all ops of a trial together, at most.
const TRIAL_BYTES_MAX: u64 = 512 << 20;
/// Operands of one op, at most: larger ones take seconds, and their rates are those of smaller ones.
const OP_BYTES_MAX: u64 = 64 << 20;
/// Rounds are begun until this much time has gone.
const TRIAL_SECONDS: f64 = 0.8;
/// Rounds at least and at most.
const ROUNDS: std::ops::Range<u32> = 3..40;
/// Time of the ops that are run with copies, about, in each of their three ways.
const STREAM_SECONDS: f64 = 0.005;
/// A smaller copy says little.
const STREAM_BYTES_MIN: u64 = 4096;
/// Table that stands for any other.
const TABLE_ROWS: u64 = 8;

impl CpuMachine {
    /// Measures each distinct op of the graph, the copy lane, and what one costs the other; takes about a second, and
    /// up to 512 MiB while it lasts.
    ///
    /// Ops too large to be tried keep default rates, scaled by what the others took.
    ///
    /// # Errors
    /// [`DeviceError`] where the trial's arena or threads cannot be had.
    pub fn calibrate(graph: &Graph, workers: usize) -> Result<Self, DeviceError> {
        let machine = Self::default_rates(workers);
        let mut trial = Trial::new(graph);
        let Measured { seconds, copies } = trial.run(machine.workers())?;
        let rates = fitted(&trial, &seconds, copies, machine.workers());
        Ok(machine.with_measured(rates, trial.signatures.into_iter().zip(seconds)))
    }
}

/// What a trial gives.
struct Measured {
    /// Of each op.
    seconds: Vec<f64>,
    copies: Option<CopyTimes>,
}

/// What copies take, and take from ops.
struct CopyTimes {
    bytes_per_second: f64,
    /// Of any copy, whatever its size.
    seconds: f64,
    share: f64,
}

/// Default rates scaled to what was measured: the median ratio of the ops.
fn fitted(trial: &Trial, seconds: &[f64], copies: Option<CopyTimes>, workers: usize) -> Rates {
    let rates = Rates::default();
    let mut ratios: Vec<f64> = trial
        .ops
        .iter()
        .zip(seconds)
        .map(|(op, seconds)| seconds / rates.op_seconds(&bound_shapes(&op.op.kind), workers))
        .collect();
    let rates = Rates { scale: median(&mut ratios).unwrap_or(1.0), ..rates };
    match copies {
        Some(copies) => Rates {
            copy_bytes_per_second: copies.bytes_per_second,
            copy_seconds: copies.seconds,
            copy_share: copies.share,
            ..rates
        },
        None => rates,
    }
}

fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Distinct ops with operands of their own.
struct Trial {
    signatures: Vec<Signature>,
    ops: Vec<BoundOp>,
    operands_end: u64,
    /// Bytes of each op's weights: what is copied beside it.
    weight_bytes: Vec<u64>,
    /// Host values by number of bytes: inputs and outputs.
    input_bytes: Vec<u64>,
    output_bytes: Vec<u64>,
    table_cols: Vec<u64>,
}

impl Trial {
    fn new(graph: &Graph) -> Self {
        let mut trial = Self {
            signatures: Vec::new(),
            ops: Vec::new(),
            operands_end: 0,
            weight_bytes: Vec::new(),
            input_bytes: Vec::new(),
            output_bytes: Vec::new(),
            table_cols: Vec::new(),
        };
        let mut seen = HashSet::new();
        let mut workspace_most = 0;
        for op in &graph.ops {
            let signature = Signature::of(graph, op);
            if !seen.insert(signature.clone()) {
                continue;
            }
            let begin = trial.operands_end;
            let kind = trial.place(graph, op);
            let operands = trial.operands_end - begin;
            if operands > OP_BYTES_MAX || trial.operands_end > TRIAL_BYTES_MAX {
                trial.operands_end = begin;
                continue;
            }
            let bytes = Work::of(&bound_shapes(&kind)).workspace_bytes();
            workspace_most = workspace_most.max(bytes);
            let workspace = Region { offset: 0, bytes };
            trial.ops.push(BoundOp { op: Op { name: op.name.clone(), kind }, workspace });
            trial.signatures.push(signature);
            let mut weight_bytes = 0;
            op.for_each_weight(|id| weight_bytes += graph.weight(*id).bytes());
            trial.weight_bytes.push(weight_bytes);
        }
        // Scratch is shared and lies below the operands.
        let shift = workspace_most.next_multiple_of(256);
        for bound in &mut trial.ops {
            let moved = |mat: &Mat| Mat { offset: mat.offset + shift, ..*mat };
            bound.op.kind = bound.op.kind.map(&mut |mat, _| moved(mat), &mut |mat| moved(mat));
        }
        trial.operands_end += shift;
        trial
    }

    /// The op with a place for every operand; what the graph gives one place gets one place.
    fn place(&mut self, graph: &Graph, op: &Op) -> OpKind<Mat, Mat> {
        let end = &mut self.operands_end;
        let mut take = |bytes: u64| {
            let offset = *end;
            *end += bytes.next_multiple_of(256);
            offset
        };
        // Tensors whole rows wide, so that views of one tensor keep their distance.
        let mut tensors: HashMap<u32, (u64, u64)> = HashMap::new();
        op.for_each_view(|view, _| {
            let first = match view.row {
                RowSelect::At(row) => row,
                RowSelect::Step => 0,
            };
            let span = tensors.entry(view.tensor.0).or_insert((first, first + view.rows));
            *span = (span.0.min(first), span.1.max(first + view.rows));
        });
        let mut places: HashMap<u32, u64> = HashMap::new();
        let mut weight_offsets = Vec::new();
        op.for_each_weight(|id| weight_offsets.push(take(graph.weight(*id).bytes())));
        let mut kind = op.kind.map(
            &mut |view, _| {
                let tensor = graph.tensor(view.tensor);
                let width = tensor.dtype.bytes();
                let (first, last) = tensors[&view.tensor.0];
                let base = *places
                    .entry(view.tensor.0)
                    .or_insert_with(|| take((last - first) * tensor.cols * width));
                let row = match view.row {
                    RowSelect::At(row) => row - first,
                    RowSelect::Step => 0,
                };
                Mat {
                    offset: base + (row * tensor.cols + view.col) * width,
                    rows: view.rows,
                    cols: view.cols,
                    stride: tensor.cols,
                    dtype: tensor.dtype,
                    step_bytes: 0,
                }
            },
            &mut |id| {
                let weight = graph.weight(*id);
                let offset = weight_offsets.remove(0);
                let (rows, cols, dtype) = (weight.rows, weight.cols, weight.dtype);
                Mat { offset, rows, cols, stride: cols, dtype, step_bytes: 0 }
            },
        );
        self.host_side(&mut kind);
        kind
    }

    /// Gives ops that touch host memory values of their own there.
    fn host_side(&mut self, kind: &mut OpKind<Mat, Mat>) {
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let bytes = |mat: &Mat| mat.rows * mat.cols * mat.dtype.bytes();
        match kind {
            OpKind::Input { input, out } => {
                *input = InputId(number(self.input_bytes.len()));
                self.input_bytes.push(bytes(out));
            }
            OpKind::Output { output, x } => {
                *output = OutputId(number(self.output_bytes.len()));
                self.output_bytes.push(bytes(x));
            }
            OpKind::Gather { table, ids, out } => {
                *table = TableId(number(self.table_cols.len()));
                *ids = InputId(number(self.input_bytes.len()));
                self.table_cols.push(out.cols);
                self.input_bytes.push(out.rows * 4);
            }
            _ => {}
        }
    }

    /// Ops with weights for runs with copies: the shortest, until they take [`STREAM_SECONDS`].
    fn streamed(&self, workers: usize) -> Vec<u32> {
        let rates = Rates::default();
        let mut ops: Vec<(f64, u32)> = (0u32..)
            .zip(self.ops.iter().zip(&self.weight_bytes))
            .filter(|(_, (_, bytes))| **bytes >= STREAM_BYTES_MIN)
            .map(|(at, (op, _))| (rates.op_seconds(&bound_shapes(&op.op.kind), workers), at))
            .collect();
        ops.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut total = 0.0;
        let within = ops.into_iter().take_while(|(seconds, _)| {
            let is_within = total < STREAM_SECONDS;
            total += seconds;
            is_within
        });
        within.map(|(_, at)| at).collect()
    }

    /// Median seconds of each op, with what passes between two, and of copies.
    fn run(&mut self, workers: usize) -> Result<Measured, DeviceError> {
        let streamed = self.streamed(workers);
        // Two places above the operands take copies in turn.
        let bytes_of = |op: &u32| self.weight_bytes[*op as usize];
        let slot = streamed.iter().map(bytes_of).max().unwrap_or(0).next_multiple_of(256);
        let slots = self.operands_end.next_multiple_of(256);
        let mut device = CpuDevice::new(slots + 2 * slot, workers)?;
        let zeros = |bytes: u64| vec![0u8; usize::try_from(bytes).unwrap_or(0)];
        let inputs: Vec<Vec<u8>> = self.input_bytes.iter().map(|bytes| zeros(*bytes)).collect();
        let tables: Vec<Vec<u8>> =
            self.table_cols.iter().map(|cols| zeros(TABLE_ROWS * cols * 2)).collect();
        let numbers: Vec<u8> = (0..self.operands_end / 4).flat_map(ordinary).collect();
        let mut copies = vec![copy_of(&numbers, 0)];
        // From all over the numbers, as weights are from all over their file.
        let mut start = 0;
        for (at, op) in streamed.iter().enumerate() {
            let bytes = usize::try_from(bytes_of(op)).unwrap_or(0).min(numbers.len());
            if start + bytes > numbers.len() {
                start = 0;
            }
            let target = slots + slot * (at as u64 % 2);
            copies.push(copy_of(&numbers[start..start + bytes], target));
            start = (start + bytes).next_multiple_of(4);
        }
        let count = u32::try_from(self.ops.len()).unwrap_or(0);
        let program = Program {
            ops: std::mem::take(&mut self.ops),
            copies,
            inputs: inputs.iter().map(Vec::as_slice).collect(),
            tables: tables
                .iter()
                .zip(&self.table_cols)
                .map(|(bytes, cols)| HostTable {
                    pieces: vec![bytes],
                    dtype: HostDType::BF16,
                    rows: TABLE_ROWS,
                    cols: *cols,
                })
                .collect(),
            outputs: self
                .output_bytes
                .iter()
                .map(|bytes| OutputBuffer { bytes: Mutex::new(zeros(*bytes).into()) })
                .collect(),
            trace: true,
            command_count: u64::from(ROUNDS.end) * (u64::from(count) + 5 * streamed.len() as u64)
                + 1,
            ..Program::default()
        };
        let stats = device.run(&program, &Control::default(), &mut |queue| {
            Driver { queue, computed: 0, copied: 0 }.rounds(count, &streamed)
        });
        self.ops = program.ops;
        let spans = stats?.spans;
        let (ops, copies): (Vec<Span>, Vec<Span>) =
            spans.into_iter().partition(|span| span.kind == SpanKind::Op);
        let bytes: Vec<u64> = streamed.iter().map(bytes_of).collect();
        // The first copy brings the numbers; the first round finds cold caches and pages. Neither counts.
        let copies = copies.get(1 + 2 * streamed.len()..).unwrap_or_default();
        let per_round = self.ops.len() + 3 * streamed.len();
        Ok(read(ops.get(per_round..).unwrap_or_default(), copies, self.ops.len(), &bytes))
    }
}

/// A copy of numbers to a place in the arena.
fn copy_of(source: &[u8], target: u64) -> BoundCopy<'_> {
    let segment =
        Segment { source, source_dtype: HostDType::F32, target, target_dtype: DType::F32 };
    let target = Region { offset: target, bytes: source.len() as u64 };
    BoundCopy {
        name: "trial".to_owned(),
        segments: vec![segment],
        weights: vec![target],
        target,
        uses: 1,
        from_disk: false,
    }
}

/// Medians from the spans of whole rounds; `bytes` are those of the copies of a pass.
#[expect(clippy::cast_precision_loss, reason = "seconds are an estimate")]
fn read(ops: &[Span], copies: &[Span], count: usize, bytes: &[u64]) -> Measured {
    let passes = bytes.len();
    let per_round = (count + 3 * passes).max(1);
    let rounds = || ops.chunks_exact(per_round);
    let mut gaps: Vec<f64> = rounds()
        .flat_map(|round| round[..count].windows(2).map(|pair| pair[1].start - pair[0].end))
        .collect();
    let gap = median(&mut gaps).unwrap_or(0.0);
    let median_of = |value: &dyn Fn(&[Span]) -> f64| {
        median(&mut rounds().map(value).collect::<Vec<_>>()).unwrap_or(0.0)
    };
    let seconds = (0..count).map(|at| median_of(&|ops| ops[at].end - ops[at].start) + gap);
    let seconds: Vec<f64> = seconds.collect();

    // Of each pass but its first op: from the op before, in the three ways. Of copies: those before ops.
    let from_end = |pass: usize, at: usize| {
        let at = count + pass * passes + at;
        median_of(&|ops| ops[at].start - ops[at - 1].end)
    };
    let whole = |pass: usize, at: usize| {
        let at = count + pass * passes + at;
        median_of(&|ops| ops[at].end - ops[at - 1].end)
    };
    let copy_seconds = |at: usize| {
        let of = copies.chunks_exact(2 * passes).map(|copies| copies[at].end - copies[at].start);
        median(&mut of.collect::<Vec<_>>()).unwrap_or(0.0)
    };
    let (mut total_bytes, mut total_seconds, mut handovers) = (0.0, 0.0, Vec::new());
    for (at, bytes) in bytes.iter().enumerate().skip(1) {
        let seconds = copy_seconds(at);
        total_bytes += *bytes as f64;
        total_seconds += seconds;
        handovers.push(from_end(1, at) - from_end(0, at) - seconds);
    }
    let Some(handover) = median(&mut handovers).filter(|_| total_seconds > 0.0) else {
        return Measured { seconds, copies: None };
    };
    let (bytes_per_second, handover) = (total_bytes / total_seconds, handover.max(0.0));
    let (mut hidden, mut longer) = (0.0, 0.0);
    for (at, bytes) in bytes.iter().enumerate().skip(1) {
        let copy = handover + *bytes as f64 / bytes_per_second;
        let alone = whole(0, at);
        // Where a copy takes longer than the op beside it, the next op waits for it: no cost of the copy's.
        if alone > copy {
            hidden += copy;
            longer += whole(2, at) - alone;
        }
    }
    let share =
        if hidden > 0.0 { (longer / hidden).clamp(0.0, 1.0) } else { Rates::default().copy_share };
    Measured { seconds, copies: Some(CopyTimes { bytes_per_second, seconds: handover, share }) }
}

/// Two `bf16` or one `f32` of magnitude 0.25 to 0.5: denormals would be slow, large numbers overflow.
fn ordinary(at: u64) -> [u8; 4] {
    let bits = at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    let bits = bits as u32;
    ((bits & 0x807F_807F) | 0x3E80_3E80).to_le_bytes()
}

/// The caller's side of a trial.
struct Driver<'q> {
    queue: &'q dyn Queue,
    /// Ops and copies issued.
    computed: u64,
    copied: u64,
}

impl Driver<'_> {
    /// Rounds until the time is up: all ops, then some of them three times.
    fn rounds(mut self, count: u32, streamed: &[u32]) -> Result<(), DeviceError> {
        self.copy(0)?;
        self.wait()?;
        let begin = Instant::now();
        for round in 0..ROUNDS.end {
            for op in 0..count {
                self.op(op)?;
            }
            self.wait()?;
            for op in streamed {
                self.op(*op)?;
            }
            self.wait()?;
            for (copy, op) in (1u32..).zip(streamed) {
                self.copy(copy)?;
                self.await_copies(self.copied)?;
                self.op(*op)?;
            }
            self.wait()?;
            for (copy, op) in (1u32..).zip(streamed) {
                // The copy of the op before; the present one's begins beside it.
                self.await_copies(self.copied)?;
                self.copy(copy)?;
                self.op(*op)?;
            }
            self.wait()?;
            if round + 1 >= ROUNDS.start && begin.elapsed().as_secs_f64() > TRIAL_SECONDS {
                break;
            }
        }
        Ok(())
    }

    /// A copy that begins when the ops issued so far are done.
    fn copy(&mut self, copy: u32) -> Result<(), DeviceError> {
        let wait = Command::Wait { lane: Lane::Compute, count: self.computed };
        self.queue.enqueue(Lane::Copy, wait)?;
        self.queue.enqueue(Lane::Copy, Command::Copy { copy, step: None })?;
        self.queue.enqueue(Lane::Copy, Command::Signal)?;
        self.copied += 1;
        Ok(())
    }

    /// The next op waits for copies.
    fn await_copies(&self, count: u64) -> Result<(), DeviceError> {
        self.queue.enqueue(Lane::Compute, Command::Wait { lane: Lane::Copy, count })
    }

    fn op(&mut self, op: u32) -> Result<(), DeviceError> {
        self.queue.enqueue(Lane::Compute, Command::Run { op, step: 0 })?;
        self.queue.enqueue(Lane::Compute, Command::Signal)?;
        self.computed += 1;
        Ok(())
    }

    fn wait(&self) -> Result<(), DeviceError> {
        self.queue.wait(Lane::Copy, self.copied)?;
        self.queue.wait(Lane::Compute, self.computed)
    }
}
