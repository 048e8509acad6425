//! Measures a card: the rates of a [`CardProfile`](crate::profile::CardProfile), by running the very ops and copies of a program on the device.
//!
//! Nothing here knows CUDA: [`Bench`] is given a [`Device`], so that its programs are tested on the CPU. Operands are
//! random, since a card draws less power and runs faster on zeros; weights rotate among four places, so that few
//! rows read them from memory and not from the cache; products of many rows run for a second and more, since a
//! step's clocks are those of a warm card.

mod card;
mod effort;

use plimsoll_device::{
    BoundCopy, BoundOp, Command, Control, Device, DeviceError, HostDType, Lane, Mat, Program,
    Queue, Region, Segment,
};
use plimsoll_graph::{DType, Op, OpKind};

pub use card::measure;
pub use effort::{Effort, arena_bytes};
use effort::{PLACES, addition, attention, convolution, narrow_product, product, tiny};

use crate::profile::{Rates, RowRate};

/// Most commands of a timed run.
const REPEATS_MOST: u32 = 20_000;

/// Rates of the link and of memory.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Bytes a second of large copies.
    pub bytes_per_second: f64,
    /// Of each copy whatever its size.
    pub copy_seconds: f64,
}

/// A device being measured.
pub struct Bench<'b> {
    device: &'b mut dyn Device,
    workspace_bytes: &'b dyn Fn(&OpKind<Mat, Mat>) -> u64,
    /// Random bf16 values in host memory, at least the larger copy.
    source: &'b [u8],
    effort: &'b Effort,
}

impl std::fmt::Debug for Bench<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bench on {} ({:?})", self.device.name(), self.effort)
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of operations are far from exact")]
fn per_second(count: u64, seconds: f64) -> f64 {
    count as f64 / seconds
}

impl<'b> Bench<'b> {
    /// Fills the arena with random values; `source` holds some in bf16, at least the larger copy of `effort`.
    ///
    /// # Errors
    /// The device's.
    pub fn new(
        device: &'b mut dyn Device,
        workspace_bytes: &'b dyn Fn(&OpKind<Mat, Mat>) -> u64,
        source: &'b [u8],
        effort: &'b Effort,
    ) -> Result<Self, DeviceError> {
        let mut bench = Self { device, workspace_bytes, source, effort };
        let total = effort.random_bytes();
        let step = effort.copy_bytes[1];
        let copies: Vec<_> = (0..total)
            .step_by(usize::try_from(step).unwrap_or(usize::MAX))
            .map(|offset| bench.copy(offset, step.min(total - offset)))
            .collect();
        let program = Program { copies, ..Program::default() };
        let count = program.copies.len() as u32;
        bench.run(program, &mut |queue| {
            (0..count)
                .try_for_each(|copy| queue.enqueue(Lane::Copy, Command::Copy { copy, step: None }))
        })?;
        Ok(bench)
    }

    fn copy(&self, target: u64, bytes: u64) -> BoundCopy<'b> {
        let count = usize::try_from(bytes).unwrap_or(usize::MAX).min(self.source.len());
        BoundCopy {
            name: "random values".to_owned(),
            segments: vec![Segment {
                source: &self.source[..count],
                source_dtype: HostDType::BF16,
                target,
                target_dtype: DType::BF16,
            }],
            weights: vec![Region { offset: target, bytes }],
            target: Region { offset: target, bytes },
            uses: u64::MAX,
            from_disk: false,
        }
    }

    fn run(
        &mut self,
        program: Program<'b>,
        drive: &mut dyn FnMut(&dyn Queue) -> Result<(), DeviceError>,
    ) -> Result<Vec<f64>, DeviceError> {
        self.device.run(&program, &Control::default(), drive).map(|stats| stats.marks)
    }

    /// A program of some ops.
    fn program(&self, kinds: &[OpKind<Mat, Mat>]) -> Program<'b> {
        let offset = self.effort.random_bytes() + self.effort.out_bytes();
        let ops = kinds.iter().map(|kind| BoundOp {
            op: Op { name: kind.label().to_owned(), kind: kind.clone() },
            workspace: Region { offset, bytes: (self.workspace_bytes)(kind) },
        });
        Program { ops: ops.collect(), mark_count: 2, ..Program::default() }
    }

    /// Seconds of `repeats` commands of a lane between two marks, after one of each that is not counted.
    fn timed(
        &mut self,
        program: Program<'b>,
        lane: Lane,
        repeats: u32,
        command: &dyn Fn(u32) -> Command,
    ) -> Result<f64, DeviceError> {
        let marks = self.run(program, &mut |queue| {
            (0..PLACES as u32).try_for_each(|index| queue.enqueue(lane, command(index)))?;
            queue.enqueue(lane, Command::Mark(0))?;
            (0..repeats).try_for_each(|index| queue.enqueue(lane, command(index)))?;
            queue.enqueue(lane, Command::Mark(1))
        })?;
        Ok(marks[1] - marks[0])
    }

    /// Seconds of one command: measured for about `seconds`, after a try that says how many these are.
    fn seconds_each(
        &mut self,
        make: &dyn Fn(&Self) -> Program<'b>,
        lane: Lane,
        seconds: f64,
        command: &dyn Fn(u32) -> Command,
    ) -> Result<(f64, u32), DeviceError> {
        const TRY: u32 = 4;
        let program = make(self);
        let once = self.timed(program, lane, TRY, command)? / f64::from(TRY);
        #[expect(clippy::cast_possible_truncation, reason = "it is clamped")]
        #[expect(clippy::cast_sign_loss, reason = "it is clamped")]
        let repeats =
            (seconds / once.max(1e-9)).clamp(f64::from(TRY), f64::from(REPEATS_MOST)) as u32;
        let program = make(self);
        Ok((self.timed(program, lane, repeats, command)? / f64::from(repeats), repeats))
    }

    fn op_seconds(&mut self, kinds: &[OpKind<Mat, Mat>], seconds: f64) -> Result<f64, DeviceError> {
        let count = kinds.len() as u32;
        let make = |bench: &Self| bench.program(kinds);
        let command = |index: u32| Command::Run { op: index % count, step: 0 };
        Ok(self.seconds_each(&make, Lane::Compute, seconds, &command)?.0)
    }

    /// Seconds of a product at each number of rows.
    fn product_seconds(
        &mut self,
        product: impl Fn(&Effort, u64, u64) -> OpKind<Mat, Mat>,
    ) -> Result<Vec<(u64, f64)>, DeviceError> {
        let effort = self.effort;
        let mut found = Vec::new();
        for (index, &rows) in effort.rows.iter().enumerate() {
            let is_last = index + 1 == effort.rows.len();
            let seconds = if is_last { effort.sustained_seconds } else { effort.seconds };
            let kinds: Vec<_> = (0..PLACES).map(|place| product(effort, rows, place)).collect();
            found.push((rows, self.op_seconds(&kinds, seconds)?));
        }
        Ok(found)
    }

    fn row_rate(&self, rows: u64, seconds: f64) -> RowRate {
        let flops = 2 * rows * self.effort.n * self.effort.k;
        RowRate { rows, flops_per_second: per_second(flops, seconds) }
    }

    /// Rates of products and attention; those of 8-bit operands are left out.
    ///
    /// # Errors
    /// The device's.
    pub fn rates(&mut self) -> Result<Rates, DeviceError> {
        let products = self.product_seconds(product)?;
        let gemm = products.into_iter().map(|(rows, each)| self.row_rate(rows, each)).collect();
        let effort = self.effort;
        let Effort { tokens, heads, head_dim, .. } = *effort;
        let each = self.op_seconds(&[attention(effort)], 3.0 * effort.seconds)?;
        let flops = 4 * tokens * tokens * heads * head_dim;
        let attention_flops_per_second = per_second(flops, each);
        Ok(Rates { gemm, narrow_gemm: Vec::new(), attention_flops_per_second })
    }

    /// Rates of products of 8-bit operands, less what quantizing one of them takes at the rate of memory.
    ///
    /// # Errors
    /// The device's.
    pub fn narrow_rates(
        &mut self,
        memory_bytes_per_second: f64,
        launch_seconds: f64,
    ) -> Result<Vec<RowRate>, DeviceError> {
        let products = self.product_seconds(narrow_product)?;
        let k = self.effort.k;
        let rates = products.into_iter().map(|(rows, each)| {
            // Read in 16 bits, written in 8.
            let quantizing = launch_seconds + per_second(3 * rows * k, memory_bytes_per_second);
            self.row_rate(rows, (each - quantizing).max(0.5 * each))
        });
        Ok(rates.collect())
    }

    /// Operations a second of a 3x3 convolution.
    ///
    /// # Errors
    /// The device's.
    pub fn conv_flops_per_second(&mut self) -> Result<f64, DeviceError> {
        let Effort { side, channels, .. } = *self.effort;
        let each = self.op_seconds(&[convolution(self.effort)], self.effort.seconds)?;
        Ok(per_second(18 * side * side * channels * channels, each))
    }

    /// Bytes a second that an addition of large matrices reads and writes.
    ///
    /// # Errors
    /// The device's.
    pub fn memory_bytes_per_second(&mut self) -> Result<f64, DeviceError> {
        let rows = self.effort.rows.last().copied().unwrap_or(1);
        let each = self.op_seconds(&[addition(self.effort)], self.effort.seconds)?;
        Ok(per_second(6 * rows * self.effort.n, each))
    }

    /// Seconds that a small op takes of the compute lane between large ones, so that the host is far ahead of it.
    ///
    /// # Errors
    /// The device's.
    pub fn launch_seconds(&mut self) -> Result<f64, DeviceError> {
        let (large, small) = (addition(self.effort), tiny(self.effort));
        let alone = self.op_seconds(std::slice::from_ref(&large), self.effort.seconds)?;
        let beside = self.op_seconds(&[large, small], self.effort.seconds)?;
        // Two that cannot be told apart are a clock's fault.
        Ok((2.0 * beside - alone).max(1e-7))
    }

    /// Rates of the link from the source's memory.
    ///
    /// # Errors
    /// The device's.
    pub fn link(&mut self) -> Result<Link, DeviceError> {
        let sizes = self.effort.copy_bytes;
        let mut each = [0.0; 2];
        for (seconds, bytes) in each.iter_mut().zip(sizes) {
            let make = |bench: &Self| Program {
                copies: vec![bench.copy(0, bytes)],
                mark_count: 2,
                ..Program::default()
            };
            let command = |_| Command::Copy { copy: 0, step: None };
            *seconds = self.seconds_each(&make, Lane::Copy, 3.0 * self.effort.seconds, &command)?.0;
        }
        let [small, large] = each;
        // Two equal times would be a clock's fault; then all of it is the bytes'.
        let slope = (large - small).max(0.5 * large);
        let bytes_per_second = per_second(sizes[1] - sizes[0], slope);
        let copy_seconds = (small - per_second(sizes[0], bytes_per_second)).max(1e-7);
        Ok(Link { bytes_per_second, copy_seconds })
    }

    /// Share of its speed that the compute lane loses while the copy lane is busy.
    ///
    /// # Errors
    /// The device's.
    pub fn copy_share(&mut self, link: Link) -> Result<f64, DeviceError> {
        let rows = self.effort.rows.last().copied().unwrap_or(1);
        let kinds: Vec<_> = (0..PLACES).map(|place| product(self.effort, rows, place)).collect();
        let make = |bench: &Self| bench.program(&kinds);
        let command = |index: u32| Command::Run { op: index % kinds.len() as u32, step: 0 };
        let seconds = self.effort.sustained_seconds / 2.0;
        let (alone, repeats) = self.seconds_each(&make, Lane::Compute, seconds, &command)?;
        let bytes = self.effort.copy_bytes[1];
        let total = 1.2 * alone * f64::from(repeats);
        #[expect(clippy::cast_possible_truncation, reason = "it is clamped")]
        #[expect(clippy::cast_sign_loss, reason = "it is clamped")]
        let copies = (total / (per_second(bytes, link.bytes_per_second)).max(1e-9))
            .clamp(1.0, f64::from(REPEATS_MOST)) as u32;
        let mut program = make(self);
        // The values that are there already, once more: no product sees a difference.
        program.copies = vec![self.copy(0, bytes)];
        let marks = self.run(program, &mut |queue| {
            queue.enqueue(Lane::Compute, command(0))?;
            queue.enqueue(Lane::Compute, Command::Mark(0))?;
            // The copy lane's ring is filled in turn with the other's, so that neither starves.
            let each = (repeats / copies.max(1)).max(1);
            let mut copied = 0;
            for index in 0..repeats {
                if index % each == 0 && copied < copies {
                    queue.enqueue(Lane::Copy, Command::Copy { copy: 0, step: None })?;
                    copied += 1;
                }
                queue.enqueue(Lane::Compute, command(index))?;
            }
            queue.enqueue(Lane::Compute, Command::Mark(1))
        })?;
        let together = (marks[1] - marks[0]) / f64::from(repeats);
        // Once more, since a card slows down as it warms.
        let program = make(self);
        let again = self.timed(program, Lane::Compute, repeats, &command)? / f64::from(repeats);
        let alone = f64::midpoint(alone, again);
        // Below 0 is noise; so is more than a fifth on a card with copy engines.
        Ok((1.0 - alone / together).clamp(0.0, 0.2))
    }
}
