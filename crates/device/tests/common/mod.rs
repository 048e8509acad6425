//! One op on a device of its own: operands with random values, results and scratch poisoned with NaN.
#![allow(dead_code, unreachable_pub, missing_docs)]

pub mod contract;

use std::sync::Mutex;

use half::bf16;
use plimsoll_device::cpu::{CpuDevice, bound_workspace_bytes};
use plimsoll_device::{
    BoundCopy, BoundOp, Command, Control, Device, DeviceError, HostDType, Lane, Mat, OutputBuffer,
    Program, Queue, Region, RunStats, Segment,
};
use plimsoll_graph::{DType, Op, OpKind, OutputId};
use plimsoll_weights::{f8_decode, f8_encode};

/// splitmix64.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in -1..1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    pub fn values(&mut self, count: u64, scale: f64, offset: f64) -> Vec<f64> {
        (0..count).map(|_| self.unit() * scale + offset).collect()
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.bits() % bound
    }
}

/// The nearest value that `dtype` holds.
pub fn rounded(value: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F32 => f64::from(value as f32),
        DType::BF16 => f64::from(bf16::from_f32(value as f32).to_f32()),
        DType::U32 => value,
        DType::F8E4M3 => f64::from(f8_decode(f8_encode(value as f32))),
    }
}

pub fn bytes_of(values: &[f64], dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F32 => values.iter().flat_map(|v| (*v as f32).to_le_bytes()).collect(),
        DType::BF16 => {
            values.iter().flat_map(|v| bf16::from_f32(*v as f32).to_le_bytes()).collect()
        }
        DType::U32 => values.iter().flat_map(|v| (*v as u32).to_le_bytes()).collect(),
        DType::F8E4M3 => values.iter().map(|v| f8_encode(*v as f32)).collect(),
    }
}

/// A tensor of the lab with its values.
#[derive(Clone)]
pub struct Tensor {
    pub mat: Mat,
    pub values: Vec<f64>,
}

impl Tensor {
    /// Value of an element of the whole tensor.
    pub fn at(&self, row: u64, col: u64) -> f64 {
        self.values[(row * self.mat.cols + col) as usize]
    }

    /// Columns as an operand.
    pub fn cols(&self, start: u64, cols: u64) -> Mat {
        Mat { offset: self.mat.offset + start * self.mat.dtype.bytes(), cols, ..self.mat }
    }
}

/// Operands laid out one after the other.
pub struct Lab {
    pub random: Random,
    pub end: u64,
    pub uploads: Vec<(u64, DType, Vec<u8>)>,
}

impl Lab {
    pub fn new(seed: u64) -> Self {
        Self { random: Random(seed), end: 0, uploads: Vec::new() }
    }

    fn place(&mut self, bytes: u64) -> u64 {
        let offset = self.end;
        self.end += bytes.next_multiple_of(256);
        offset
    }

    pub fn tensor(&mut self, rows: u64, cols: u64, dtype: DType, values: Vec<f64>) -> Tensor {
        assert_eq!(values.len() as u64, rows * cols);
        let offset = self.place(rows * cols * dtype.bytes());
        self.uploads.push((offset, dtype, bytes_of(&values, dtype)));
        let values = values.into_iter().map(|value| rounded(value, dtype)).collect();
        let mat = Mat { offset, rows, cols, stride: cols, dtype, step_bytes: 0 };
        Tensor { mat, values }
    }

    /// Values in -1..1.
    pub fn random(&mut self, rows: u64, cols: u64, dtype: DType) -> Tensor {
        let values = self.random.values(rows * cols, 1.0, 0.0);
        self.tensor(rows, cols, dtype, values)
    }

    /// A place for a result, full of NaN.
    pub fn empty(&mut self, rows: u64, cols: u64, dtype: DType) -> Tensor {
        self.tensor(rows, cols, dtype, vec![f64::NAN; (rows * cols) as usize])
    }

    /// Runs the op and returns the bits of `out`, all of it.
    pub fn run(&self, kind: OpKind<Mat, Mat>, out: &Tensor, workers: usize) -> Outcome {
        self.try_run(kind, out, workers).unwrap()
    }

    /// As [`Lab::run`], or the device's refusal.
    pub fn try_run(
        &self,
        kind: OpKind<Mat, Mat>,
        out: &Tensor,
        workers: usize,
    ) -> Result<Outcome, DeviceError> {
        let workspace = Region { offset: self.end, bytes: bound_workspace_bytes(&kind) };
        let arena_bytes = workspace.end().next_multiple_of(256) + 512;
        let mut device = CpuDevice::new(arena_bytes, workers).unwrap();
        let poison: Vec<u8> = f32::NAN.to_le_bytes().repeat((workspace.bytes / 4) as usize);
        let mut copies: Vec<BoundCopy<'_>> = Vec::new();
        let ready = self.uploads.iter().map(|(offset, dtype, bytes)| (*offset, *dtype, &bytes[..]));
        for (target, dtype, source) in ready {
            let source_dtype = match dtype {
                DType::F32 => HostDType::F32,
                DType::BF16 => HostDType::BF16,
                DType::U32 => HostDType::U32,
                DType::F8E4M3 => HostDType::F8E4M3,
            };
            let segment = Segment { source, source_dtype, target, target_dtype: dtype };
            copies.push(unit(segment));
        }
        // Scratch up to its last 256 bytes: those the op itself must touch.
        let most = poison.len().saturating_sub(256);
        copies.push(unit(Segment {
            source: &poison[..most],
            source_dtype: HostDType::F32,
            target: workspace.offset,
            target_dtype: DType::F32,
        }));
        let bytes = out.mat.rows * out.mat.cols * out.mat.dtype.bytes();
        let kind_out = OpKind::Output { output: OutputId(0), x: out.mat };
        let program = Program {
            ops: vec![bound(kind, workspace), bound(kind_out, Region::default())],
            outputs: vec![OutputBuffer { bytes: Mutex::new(vec![0; bytes as usize].into()) }],
            copies,
            ..Program::default()
        };
        let stats =
            device.run(&program, &Control::default(), &mut |queue| run_all(queue, &program));
        let stats = stats?;
        let bytes = program.outputs[0].bytes.lock().unwrap().to_vec();
        let values = values_of(&bytes, out.mat.dtype);
        Ok(Outcome { values, bytes, stats, workspace, end: self.end })
    }
}

pub fn unit(segment: Segment<'_>) -> BoundCopy<'_> {
    let bytes =
        segment.source.len() as u64 / segment.source_dtype.bytes() * segment.target_dtype.bytes();
    let target = Region { offset: segment.target, bytes };
    BoundCopy {
        name: "operand".to_owned(),
        segments: vec![segment],
        weights: vec![target],
        target,
        uses: 1,
        from_disk: false,
    }
}

pub fn bound(kind: OpKind<Mat, Mat>, workspace: Region) -> BoundOp {
    BoundOp { op: Op { name: "op".to_owned(), kind }, workspace }
}

/// All copies, then all ops.
pub fn run_all(queue: &dyn Queue, program: &Program<'_>) -> Result<(), DeviceError> {
    for copy in 0..program.copies.len() as u32 {
        queue.enqueue(Lane::Copy, Command::Copy { copy, step: None })?;
    }
    queue.enqueue(Lane::Copy, Command::Signal)?;
    queue.enqueue(Lane::Compute, Command::Wait { lane: Lane::Copy, count: 1 })?;
    for op in 0..program.ops.len() as u32 {
        queue.enqueue(Lane::Compute, Command::Run { op, step: 0 })?;
    }
    Ok(())
}

pub fn values_of(bytes: &[u8], dtype: DType) -> Vec<f64> {
    match dtype {
        DType::F32 => {
            bytes.as_chunks::<4>().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect()
        }
        DType::BF16 => bytes
            .as_chunks::<2>()
            .0
            .iter()
            .map(|b| f64::from(bf16::from_le_bytes(*b).to_f32()))
            .collect(),
        DType::U32 => {
            bytes.as_chunks::<4>().0.iter().map(|b| f64::from(u32::from_le_bytes(*b))).collect()
        }
        DType::F8E4M3 => bytes.iter().map(|code| f64::from(f8_decode(*code))).collect(),
    }
}

/// What came out.
pub struct Outcome {
    pub values: Vec<f64>,
    pub bytes: Vec<u8>,
    pub stats: RunStats,
    pub workspace: Region,
    pub end: u64,
}

impl Outcome {
    /// The high-water mark is the end of the scratch, or of the operands where there is none.
    pub fn check_high_water(&self) {
        let end = if self.workspace.bytes > 0 { self.workspace.end() } else { self.end };
        assert_eq!(self.stats.high_water_bytes, end.next_multiple_of(256), "high-water mark");
    }

    /// Compares with a reference: relative L2 error, and no element far off.
    pub fn check(&self, what: &str, reference: &[f64], dtype: DType) -> f64 {
        assert_eq!(self.values.len(), reference.len(), "{what}");
        assert!(self.values.iter().all(|value| !value.is_nan()), "{what}: NaN in the result");
        let square: f64 = reference.iter().map(|value| value * value).sum();
        let root_mean_square = (square / reference.len() as f64).sqrt();
        let mut error = 0.0;
        let unit = if dtype == DType::BF16 { 1.0 / 256.0 } else { 1.0 / 16_777_216.0 };
        for (at, (found, expected)) in self.values.iter().zip(reference).enumerate() {
            error += (found - expected).powi(2);
            let allowed =
                unit * expected.abs() + 64.0 / 16_777_216.0 * (root_mean_square + expected.abs());
            let off = (found - expected).abs();
            assert!(off <= allowed, "{what}: element {at} is {found}, expected {expected}");
        }
        let relative = (error / square.max(1e-300)).sqrt();
        let limit = if dtype == DType::BF16 { 4e-3 } else { 1e-6 };
        assert!(relative <= limit, "{what}: relative L2 error {relative:e}");
        self.check_high_water();
        relative
    }
}
