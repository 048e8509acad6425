//! Measures a card: the rates of a [`CardProfile`], by running the very ops and copies of a program on the device.
//!
//! Nothing here knows CUDA: [`Bench`] is given a [`Device`], so that its programs are tested on the CPU. Operands are
//! random, since a card draws less power and runs faster on zeros; weights rotate among four places, so that few
//! rows read them from memory and not from the cache; products of many rows run for a second and more, since a
//! step's clocks are those of a warm card.

use std::path::Path;

use plimsoll_cuda_kernels::{bound_shapes, workspace_bytes};
use plimsoll_device::{
    BoundCopy, BoundOp, Command, Control, Device, DeviceError, HostDType, Lane, Mat, Program,
    Queue, Region, Segment,
};
use plimsoll_graph::{Activation, DType, Op, OpKind};
use plimsoll_host::SharedMapping;

use crate::card::{Card, CardOptions};
use crate::device::CudaDevice;
use crate::profile::{CardProfile, PROFILE_VERSION, Rates, RowRate};

/// Places among which weights rotate.
const PLACES: u64 = 4;
/// Most commands of a timed run.
const REPEATS_MOST: u32 = 20_000;

/// What is measured, and for how long.
#[derive(Clone, Debug)]
pub struct Effort {
    /// Rows of the products, ascending; the last is measured for `sustained_seconds`.
    pub rows: Vec<u64>,
    /// Columns of the products.
    pub n: u64,
    /// Depth of the products.
    pub k: u64,
    /// Queries and keys of attention.
    pub tokens: u64,
    /// Its heads.
    pub heads: u64,
    /// Columns of a head.
    pub head_dim: u64,
    /// Side of the picture that is convolved.
    pub side: u64,
    /// Its channels.
    pub channels: u64,
    /// A small and a large copy.
    pub copy_bytes: [u64; 2],
    /// Of one measurement.
    pub seconds: f64,
    /// Of the ones that heat the card.
    pub sustained_seconds: f64,
}

impl Effort {
    /// FLUX's shapes; 10 s on an H200.
    pub fn full() -> Self {
        Self {
            rows: vec![1, 77, 256, 512, 1024, 4608],
            n: 12_288,
            k: 3072,
            tokens: 4608,
            heads: 24,
            head_dim: 128,
            side: 256,
            channels: 512,
            copy_bytes: [1 << 20, 64 << 20],
            seconds: 0.1,
            sustained_seconds: 1.5,
        }
    }

    fn weight_bytes(&self) -> u64 {
        (self.n * self.k * 2).next_multiple_of(256)
    }

    /// Bytes that are filled with random values.
    fn random_bytes(&self) -> u64 {
        let rows = self.rows.last().copied().unwrap_or(1);
        let most = [
            PLACES * self.weight_bytes(),
            rows * self.k.max(self.n) * 4,
            3 * self.tokens * self.heads * self.head_dim * 2,
            self.side * self.side * self.channels * 2,
            self.channels * self.channels * 18,
            self.copy_bytes[1],
        ];
        most.into_iter().max().unwrap_or(0).next_multiple_of(256)
    }

    fn out_bytes(&self) -> u64 {
        let rows = self.rows.last().copied().unwrap_or(1);
        let most = [
            rows * self.n * 2,
            self.tokens * self.heads * self.head_dim * 2,
            self.side * self.side * self.channels * 2,
        ];
        most.into_iter().max().unwrap_or(0).next_multiple_of(256)
    }
}

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

fn mat(offset: u64, rows: u64, cols: u64) -> Mat {
    Mat { offset, rows, cols, stride: cols, dtype: DType::BF16, step_bytes: 0 }
}

/// Bytes of an arena for a measurement of `effort`, given the largest scratch of its ops.
pub fn arena_bytes(effort: &Effort, workspace_bytes: &dyn Fn(&OpKind<Mat, Mat>) -> u64) -> u64 {
    let ops = all_ops(effort);
    let scratch = ops.iter().map(workspace_bytes).max().unwrap_or(0);
    effort.random_bytes() + effort.out_bytes() + scratch.next_multiple_of(256)
}

fn all_ops(effort: &Effort) -> Vec<OpKind<Mat, Mat>> {
    let products = effort.rows.iter().map(|rows| product(effort, *rows, 0));
    products
        .chain([attention(effort), convolution(effort), addition(effort), tiny(effort)])
        .collect()
}

fn product(effort: &Effort, rows: u64, place: u64) -> OpKind<Mat, Mat> {
    let Effort { n, k, .. } = *effort;
    OpKind::Linear {
        x: mat(0, rows, k),
        weight: mat(place * effort.weight_bytes(), n, k),
        bias: Some(mat(0, 1, n)),
        activation: Activation::None,
        residual: None,
        out: mat(effort.random_bytes(), rows, n),
    }
}

fn attention(effort: &Effort) -> OpKind<Mat, Mat> {
    let Effort { tokens, heads, head_dim, .. } = *effort;
    let cols = heads * head_dim;
    let part = |index: u64| Mat { stride: 3 * cols, ..mat(index * cols * 2, tokens, cols) };
    #[expect(clippy::cast_precision_loss, reason = "a head's width is far below 2^24")]
    let scale = (head_dim as f32).sqrt().recip();
    OpKind::Attention {
        q: part(0),
        k: part(1),
        v: part(2),
        heads,
        scale,
        causal: false,
        bias: None,
        out: mat(effort.random_bytes(), tokens, cols),
    }
}

fn convolution(effort: &Effort) -> OpKind<Mat, Mat> {
    let Effort { side, channels, .. } = *effort;
    OpKind::Conv3x3 {
        x: mat(0, side * side, channels),
        height: side,
        width: side,
        upscale: 1,
        weight: mat(0, channels, 9 * channels),
        bias: mat(0, 1, channels),
        residual: None,
        out: mat(effort.random_bytes(), side * side, channels),
    }
}

fn addition(effort: &Effort) -> OpKind<Mat, Mat> {
    let rows = effort.rows.last().copied().unwrap_or(1);
    OpKind::Add {
        a: mat(0, rows, effort.n),
        b: mat(rows * effort.n * 2, rows, effort.n),
        out: mat(effort.random_bytes(), rows, effort.n),
    }
}

/// An op whose time is that of its launch.
fn tiny(effort: &Effort) -> OpKind<Mat, Mat> {
    let out = mat(effort.random_bytes(), 1, 64);
    OpKind::Activate { x: mat(0, 1, 64), activation: Activation::Silu, out }
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
            target: Region { offset: target, bytes },
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

    /// Rates of products and attention.
    ///
    /// # Errors
    /// The device's.
    pub fn rates(&mut self) -> Result<Rates, DeviceError> {
        let effort = self.effort;
        let mut gemm = Vec::new();
        for (index, &rows) in effort.rows.iter().enumerate() {
            let is_last = index + 1 == effort.rows.len();
            let seconds = if is_last { effort.sustained_seconds } else { effort.seconds };
            let kinds: Vec<_> = (0..PLACES).map(|place| product(effort, rows, place)).collect();
            let flops = 2 * rows * effort.n * effort.k;
            let each = self.op_seconds(&kinds, seconds)?;
            gemm.push(RowRate { rows, flops_per_second: per_second(flops, each) });
        }
        let Effort { tokens, heads, head_dim, .. } = *effort;
        let each = self.op_seconds(&[attention(effort)], 3.0 * effort.seconds)?;
        let flops = 4 * tokens * tokens * heads * head_dim;
        Ok(Rates { gemm, attention_flops_per_second: per_second(flops, each) })
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

/// Four digits: more were never measured, and these go through a file unchanged.
fn rounded(figure: f64) -> f64 {
    format!("{figure:.3e}").parse().unwrap_or(figure)
}

/// Random bf16 values between -1 and 1.
fn random_values(bytes: u64) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let count = usize::try_from(bytes / 2).unwrap_or(0);
    let values = (0..count).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Sign and mantissa from the state; the exponent is that of 0.25 to 1.
        let exponent = 0x3E80 + ((state >> 20) as u16 & 0x0080);
        ((state as u16 & 0x807F) | exponent).to_le_bytes()
    });
    values.collect()
}

/// A file of random values that is removed with this.
struct RandomFile {
    path: std::path::PathBuf,
}

impl RandomFile {
    fn new(folder: &Path, values: &[u8]) -> std::io::Result<Self> {
        let path = folder.join(format!("plimsoll-probe-{}", std::process::id()));
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).open(&path)?;
        let made = Self { path };
        std::io::Write::write_all(&mut file, values)?;
        Ok(made)
    }
}

impl Drop for RandomFile {
    fn drop(&mut self) {
        // Nobody reads a failure; the folder is one for such files.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Measures the card of an index in some 15 s; a file of 64 MiB in `folder` stands for a model's.
///
/// Where the file cannot be made, or its pages cannot be lent to the card, the link is measured as a run would use
/// it: through pinned windows.
///
/// # Errors
/// Those of [`Card::open`], and the device's.
pub fn measure(
    index: u32,
    options: &CardOptions,
    effort: &Effort,
    folder: &Path,
) -> Result<CardProfile, DeviceError> {
    let values = random_values(effort.copy_bytes[1]);
    let file = RandomFile::new(folder, &values).ok();
    let mapping = file.as_ref().and_then(|file| SharedMapping::open(&file.path).ok());
    let source = mapping.as_ref().map_or(&values[..], SharedMapping::bytes);
    let mut own_options = options.clone();
    own_options.libraries.without_cublas_lt = true;
    own_options.libraries.without_cudnn = true;

    let with_bench = |options: &CardOptions,
                      work: &mut dyn FnMut(&mut Bench<'_>) -> Result<(), DeviceError>|
     -> Result<CardProfile, DeviceError> {
        let card = Card::open(index, options.clone())?;
        let backends = card.backends();
        let scratch = |op: &OpKind<Mat, Mat>| workspace_bytes(&bound_shapes(op), backends);
        let driver = card.driver_version();
        let profile = CardProfile {
            version: PROFILE_VERSION,
            name: card.name().to_owned(),
            arch: card.arch().name().to_owned(),
            vram_bytes: card.total_bytes(),
            reserved_bytes: card.reserved_bytes(),
            source: format!(
                "measured, CUDA {}.{}{}",
                driver / 1000,
                driver % 1000 / 10,
                card.libraries().arithmetic()
            ),
            ..CardProfile::nearest(card.name())
        };
        let mut device = CudaDevice::new(card, arena_bytes(effort, &scratch))?;
        device.set_mappings(mapping.as_slice());
        work(&mut Bench::new(&mut device, &scratch, source, effort)?)?;
        device.set_mappings(&[]);
        Ok(profile)
    };

    let round = |rates: Rates| Rates {
        gemm: rates
            .gemm
            .iter()
            .map(|rate| RowRate { flops_per_second: rounded(rate.flops_per_second), ..*rate })
            .collect(),
        attention_flops_per_second: rounded(rates.attention_flops_per_second),
    };
    let mut found = None;
    let mut profile = with_bench(options, &mut |bench| {
        let link = bench.link()?;
        found = Some((link, bench.copy_share(link)?, bench.rates()?));
        Ok(())
    })?;
    let Some((link, copy_share, rates)) = found else { unreachable!("set above") };
    profile.link_bytes_per_second = rounded(link.bytes_per_second);
    profile.copy_seconds = rounded(link.copy_seconds);
    profile.copy_share = rounded(copy_share);
    with_bench(&own_options, &mut |bench| {
        profile.own = round(bench.rates()?);
        profile.conv_flops_per_second = rounded(bench.conv_flops_per_second()?);
        profile.memory_bytes_per_second = rounded(bench.memory_bytes_per_second()?);
        profile.launch_seconds = rounded(bench.launch_seconds()?);
        Ok(())
    })?;
    let has_libraries = profile.source.contains("cublaslt") || profile.source.contains("cudnn");
    profile.libraries = has_libraries.then_some(round(rates));
    Ok(profile)
}
