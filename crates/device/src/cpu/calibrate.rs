//! Measures a graph's own ops, so that its seconds are predicted from what this machine does with them.
//!
//! Every distinct op of the graph is placed in an arena, each with operands of its own, and all of them run in
//! turn for some rounds: so an op finds the caches as it does in a run, full of the others' operands. The median over
//! the rounds counts. Ops whose operands are too large for a trial keep the [`Rates`], scaled by
//! what the measured ones needed.

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
    OutputBuffer, Program, Queue, Region, Segment, SpanKind,
};

/// Operands of all ops of a trial together, at most.
const TRIAL_BYTES_MAX: u64 = 512 << 20;
/// Operands of one op, at most: larger ones take seconds, and their rates are those of smaller ones.
const OP_BYTES_MAX: u64 = 64 << 20;
/// Rounds are begun until this much time has gone.
const TRIAL_SECONDS: f64 = 0.8;
/// Rounds at least and at most.
const ROUNDS: std::ops::Range<u32> = 3..40;
/// Table that stands for any other.
const TABLE_ROWS: u64 = 8;

impl CpuMachine {
    /// Measures each distinct op of the graph and the copy lane; takes about a second, and up to 512 MiB while it
    /// lasts.
    ///
    /// Ops too large to be tried keep default rates, scaled by what the others took.
    ///
    /// # Errors
    /// [`DeviceError`] where the trial's arena or threads cannot be had.
    pub fn calibrate(graph: &Graph, workers: usize) -> Result<Self, DeviceError> {
        let machine = Self::default_rates(workers);
        let mut trial = Trial::new(graph);
        let (seconds, copies) = trial.run(machine.workers())?;
        let rates = fitted(&trial, &seconds, copies, machine.workers());
        Ok(machine.with_measured(rates, trial.signatures.into_iter().zip(seconds)))
    }
}

/// Measured seconds of one small and one large copy, for their bytes.
struct CopyTimes {
    small_seconds: f64,
    large_seconds: f64,
    large_bytes: u64,
}

/// Default rates scaled to what was measured: the median ratio of the ops.
fn fitted(trial: &Trial, seconds: &[f64], copies: CopyTimes, workers: usize) -> Rates {
    let rates = Rates::default();
    let mut ratios: Vec<f64> = trial
        .ops
        .iter()
        .zip(seconds)
        .map(|(op, seconds)| seconds / rates.op_seconds(&bound_shapes(&op.op.kind), workers))
        .collect();
    let large = (copies.large_seconds - copies.small_seconds).max(1e-9);
    #[expect(clippy::cast_precision_loss, reason = "seconds are an estimate")]
    let bytes = copies.large_bytes as f64;
    Rates {
        scale: median(&mut ratios).unwrap_or(1.0),
        copy_bytes_per_second: bytes / large,
        // A lane that slept is woken first, which the trial does not show.
        copy_seconds: rates.copy_seconds + copies.small_seconds,
        ..rates
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

    /// Median seconds of each op, with what passes between two, and of copies.
    fn run(&mut self, workers: usize) -> Result<(Vec<f64>, CopyTimes), DeviceError> {
        let mut device = CpuDevice::new(self.operands_end.next_multiple_of(256), workers)?;
        let zeros = |bytes: u64| vec![0u8; usize::try_from(bytes).unwrap_or(0)];
        let inputs: Vec<Vec<u8>> = self.input_bytes.iter().map(|bytes| zeros(*bytes)).collect();
        let tables: Vec<Vec<u8>> =
            self.table_cols.iter().map(|cols| zeros(TABLE_ROWS * cols * 2)).collect();
        let numbers: Vec<u8> = (0..self.operands_end / 4).flat_map(ordinary).collect();
        let count = u32::try_from(self.ops.len()).unwrap_or(0);
        let program = Program {
            ops: std::mem::take(&mut self.ops),
            copies: copies(&numbers),
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
            command_count: u64::from(count) * u64::from(ROUNDS.end) + COPIES,
            ..Program::default()
        };
        let stats = device.run(&program, &Control::default(), &mut |queue| drive(queue, count));
        let Program { ops, copies, .. } = program;
        let large_bytes = copies.first().map_or(0, |copy| copy.target.bytes);
        self.ops = ops;
        let spans = stats?.spans;
        let ops: Vec<_> = spans.iter().filter(|span| span.kind == SpanKind::Op).collect();
        // The first round finds cold caches and pages; it does not count.
        let (mut times, mut gaps) = (vec![Vec::new(); self.ops.len()], Vec::new());
        for pair in ops.windows(2).skip(self.ops.len()) {
            times[pair[1].index as usize].push(pair[1].end - pair[1].start);
            if pair[1].index > 0 {
                gaps.push(pair[1].start - pair[0].end);
            }
        }
        let gap = median(&mut gaps).unwrap_or(0.0);
        let seconds = times.iter_mut().map(|times| median(times).unwrap_or(0.0) + gap).collect();
        let copy_seconds = |index: u32| {
            let mut times: Vec<f64> = spans
                .iter()
                .filter(|span| span.kind == SpanKind::Copy && span.index == index)
                .skip(1)
                .map(|span| span.end - span.start)
                .collect();
            median(&mut times).unwrap_or(0.0)
        };
        let copies = CopyTimes {
            large_seconds: copy_seconds(0),
            small_seconds: copy_seconds(1),
            large_bytes,
        };
        Ok((seconds, copies))
    }
}

/// Copies that are issued.
const COPIES: u64 = 12;

/// All operands (the large one), and a few bytes.
fn copies(numbers: &[u8]) -> Vec<BoundCopy<'_>> {
    let whole = |source| {
        let segment =
            Segment { source, source_dtype: HostDType::F32, target: 0, target_dtype: DType::F32 };
        let target = Region { offset: 0, bytes: source.len() as u64 };
        BoundCopy { name: "trial".to_owned(), segments: vec![segment], target }
    };
    vec![whole(numbers), whole(&numbers[..numbers.len().min(256)])]
}

/// Two `bf16` or one `f32` of magnitude 0.25 to 0.5: denormals would be slow, large numbers overflow.
fn ordinary(at: u64) -> [u8; 4] {
    let bits = at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    let bits = bits as u32;
    ((bits & 0x807F_807F) | 0x3E80_3E80).to_le_bytes()
}

/// Copies, then rounds of all ops until the time is up.
fn drive(queue: &dyn Queue, count: u32) -> Result<(), DeviceError> {
    for at in 0..COPIES {
        let copy = u32::from(at >= COPIES / 2);
        queue.enqueue(Lane::Copy, Command::Copy { copy, step: None })?;
    }
    queue.enqueue(Lane::Copy, Command::Signal)?;
    queue.wait(Lane::Copy, 1)?;
    let begin = Instant::now();
    for round in 0..ROUNDS.end {
        for op in 0..count {
            queue.enqueue(Lane::Compute, Command::Run { op, step: 0 })?;
        }
        queue.enqueue(Lane::Compute, Command::Signal)?;
        queue.wait(Lane::Compute, u64::from(round) + 1)?;
        if round + 1 >= ROUNDS.start && begin.elapsed().as_secs_f64() > TRIAL_SECONDS {
            break;
        }
    }
    Ok(())
}
