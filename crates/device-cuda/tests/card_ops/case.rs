//! A case: one op on one device, and what its result may be off by.

use std::sync::Mutex;

use crate::common::{Lab, Tensor, bound, unit, values_of};
use plimsoll_cuda_kernels::{bound_shapes, workspace_bytes};
use plimsoll_device::cpu::{CpuDevice, bound_workspace_bytes};
use plimsoll_device::{
    Command, Control, Device, DeviceError, HostDType, Lane, Mat, OutputBuffer, Program, Queue,
    Region, Segment,
};
use plimsoll_device_cuda::CudaDevice;
use plimsoll_graph::DType::{self, BF16, F8E4M3, F32, U32};
use plimsoll_graph::{OpKind, OutputId};

/// What a result may be off by.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Tolerance {
    /// The same bits as the CPU device with the same types.
    Bits,
    /// One rounding at the store: each element, and the whole.
    Store,
    /// Relative L2 distance from the CPU device with the same types.
    Whole(f64),
}

pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) lab: Lab,
    /// Every tensor that a view may lie in.
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) kind: OpKind<Mat, Mat>,
    /// The tensor that the result lies in; read back whole.
    pub(crate) out: Tensor,
    pub(crate) tolerance: Tolerance,
    pub(crate) step: u32,
}

/// Makes tensors and remembers them.
pub(crate) struct Maker {
    pub(crate) lab: Lab,
    pub(crate) tensors: Vec<Tensor>,
}

impl Maker {
    pub(crate) fn new(seed: u64) -> Self {
        Self { lab: Lab::new(seed), tensors: Vec::new() }
    }

    pub(crate) fn with(&mut self, rows: u64, cols: u64, dtype: DType, values: Vec<f64>) -> Tensor {
        let tensor = self.lab.tensor(rows, cols, dtype, values);
        self.tensors.push(tensor.clone());
        tensor
    }

    pub(crate) fn random(&mut self, rows: u64, cols: u64, dtype: DType) -> Tensor {
        self.scaled(rows, cols, dtype, 1.0, 0.0)
    }

    pub(crate) fn scaled(
        &mut self,
        rows: u64,
        cols: u64,
        dtype: DType,
        scale: f64,
        offset: f64,
    ) -> Tensor {
        let values = self.lab.random.values(rows * cols, scale, offset);
        self.with(rows, cols, dtype, values)
    }

    pub(crate) fn empty(&mut self, rows: u64, cols: u64, dtype: DType) -> Tensor {
        self.with(rows, cols, dtype, vec![f64::NAN; (rows * cols) as usize])
    }

    pub(crate) fn case(
        self,
        name: impl Into<String>,
        tolerance: Tolerance,
        kind: OpKind<Mat, Mat>,
        out: Tensor,
    ) -> Case {
        let Self { lab, tensors } = self;
        Case { name: name.into(), lab, tensors, kind, out, tolerance, step: 0 }
    }
}

impl Case {
    /// The same case with every number in single precision.
    fn widened(&self) -> Self {
        let mut lab = Lab::new(0);
        let widen = |dtype: DType| if dtype == BF16 { F32 } else { dtype };
        let tensors: Vec<Tensor> = self
            .tensors
            .iter()
            .map(|tensor| {
                let mat = tensor.mat;
                lab.tensor(mat.rows, mat.cols, widen(mat.dtype), tensor.values.clone())
            })
            .collect();
        let place = |mat: &Mat| {
            let holds = |tensor: &&Tensor| {
                let end = tensor.mat.offset + tensor.mat.region(0).bytes;
                (tensor.mat.offset..end).contains(&mat.offset)
            };
            let at = self.tensors.iter().position(|tensor| holds(&tensor)).unwrap();
            let (old, new) = (&self.tensors[at].mat, &tensors[at].mat);
            let scale = |bytes: u64| bytes / mat.dtype.bytes() * new.dtype.bytes();
            Mat {
                offset: new.offset + scale(mat.offset - old.offset),
                dtype: new.dtype,
                step_bytes: scale(mat.step_bytes),
                ..*mat
            }
        };
        let kind = self.kind.map(&mut |mat, _| place(mat), &mut |mat| place(mat));
        let at = self.tensors.iter().position(|t| t.mat == self.out.mat).unwrap();
        let out = tensors[at].clone();
        let Self { name, tolerance, step, .. } = self;
        Self { name: name.clone(), lab, tensors, kind, out, tolerance: *tolerance, step: *step }
    }

    /// Runs it; returns the bytes of the whole result tensor and the end of what it uses.
    fn run(
        &self,
        device: &mut dyn Device,
        workspace_bytes: u64,
    ) -> Result<(Vec<u8>, u64, u64), DeviceError> {
        let workspace = Region { offset: self.lab.end, bytes: workspace_bytes };
        let poison = f32::NAN.to_le_bytes().repeat((workspace.bytes / 4) as usize);
        let mut copies: Vec<_> = self
            .lab
            .uploads
            .iter()
            .map(|(target, dtype, source)| {
                let source_dtype = match dtype {
                    F32 => HostDType::F32,
                    BF16 => HostDType::BF16,
                    U32 => HostDType::U32,
                    F8E4M3 => HostDType::F8E4M3,
                };
                unit(Segment { source, source_dtype, target: *target, target_dtype: *dtype })
            })
            .collect();
        copies.push(unit(Segment {
            source: &poison,
            source_dtype: HostDType::F32,
            target: workspace.offset,
            target_dtype: F32,
        }));
        let out = self.out.mat;
        let bytes = out.rows * out.cols * out.dtype.bytes();
        let back = OpKind::Output { output: OutputId(0), x: out };
        let program = Program {
            ops: vec![bound(self.kind.clone(), workspace), bound(back, Region::default())],
            outputs: vec![OutputBuffer { bytes: Mutex::new(vec![0; bytes as usize].into()) }],
            copies,
            steps: self.step + 1,
            ..Program::default()
        };
        let stats = device.run(&program, &Control::default(), &mut |queue: &dyn Queue| {
            for copy in 0..program.copies.len() as u32 {
                queue.enqueue(Lane::Copy, Command::Copy { copy, step: None })?;
            }
            queue.enqueue(Lane::Copy, Command::Signal)?;
            queue.enqueue(Lane::Compute, Command::Wait { lane: Lane::Copy, count: 1 })?;
            queue.enqueue(Lane::Compute, Command::Run { op: 0, step: self.step })?;
            queue.enqueue(Lane::Compute, Command::Run { op: 1, step: 0 })
        })?;
        let found = program.outputs[0].bytes.lock().unwrap().to_vec();
        Ok((found, stats.high_water_bytes, workspace.end().next_multiple_of(256)))
    }

    pub(crate) fn on_card(&self, device: &mut CudaDevice) -> Result<Vec<u8>, DeviceError> {
        let backends = device.card().backends();
        device.reset_pattern().unwrap();
        let bytes = workspace_bytes(&bound_shapes(&self.kind), backends);
        let (found, high_water, end) = self.run(device, bytes)?;
        assert!(high_water <= end, "{}: touched byte {high_water}, planned {end}", self.name);
        Ok(found)
    }

    pub(crate) fn on_cpu(&self) -> Vec<u8> {
        let bytes = bound_workspace_bytes(&self.kind);
        let end = (self.lab.end + bytes).next_multiple_of(256);
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        let mut device = CpuDevice::new(end, workers).unwrap();
        self.run(&mut device, bytes).unwrap().0
    }

    /// What is wrong with the card's result, or its error as a number.
    pub(crate) fn verdict(&self, found: &[u8]) -> Result<f64, String> {
        let dtype = self.out.mat.dtype;
        let same_types = self.tolerance != Tolerance::Store;
        let expected_bytes = if same_types { self.on_cpu() } else { self.widened().on_cpu() };
        if self.tolerance == Tolerance::Bits {
            return if expected_bytes == found { Ok(0.0) } else { Err("other bits".to_owned()) };
        }
        let (expected, found) = (
            values_of(&expected_bytes, if same_types { dtype } else { F32 }),
            values_of(found, dtype),
        );
        let before = &self.out.values;
        let is_written = |at: usize| {
            let (one, other) = (expected[at], before[at]);
            !(one == other || (one.is_nan() && other.is_nan()))
        };
        let (mut error, mut square, mut count) = (0.0, 0.0, 0usize);
        let limit = match self.tolerance {
            Tolerance::Whole(limit) => limit,
            _ if dtype == BF16 => 2.0e-3,
            _ => 1e-5,
        };
        let written = || (0..expected.len()).filter(|at| is_written(*at));
        let all: f64 = written().map(|at| expected[at].powi(2)).sum();
        // What an element may be off by, far out: no error of one is as great as 8 times that of all.
        let far = 8.0 * limit * (all / written().count().max(1) as f64).sqrt();
        for at in 0..expected.len() {
            if !is_written(at) {
                if found[at] != before[at] && !(found[at].is_nan() && before[at].is_nan()) {
                    // An element whose new value happens to be the old one, rounded away from it.
                    let off = (found[at] - before[at]).abs();
                    let near = off <= before[at].abs() / 128.0 || off <= far;
                    if !near {
                        return Err(format!("element {at} beside the result was written"));
                    }
                }
                continue;
            }
            if found[at].is_nan() {
                return Err(format!("element {at} is NaN, expected {}", expected[at]));
            }
            error += (found[at] - expected[at]).powi(2);
            square += expected[at].powi(2);
            count += 1;
        }
        let root_mean_square = (square / count.max(1) as f64).sqrt();
        let relative = (error / square.max(1e-300)).sqrt();
        if relative > limit {
            return Err(format!("relative L2 error {relative:.2e} over {limit:.1e}"));
        }
        let ulp = if dtype == BF16 { 1.0 / 256.0 } else { 0.0 };
        for at in (0..expected.len()).filter(|at| is_written(*at)) {
            let allowed = ulp * 1.001 * expected[at].abs() + 1e-4 * root_mean_square;
            let off = (found[at] - expected[at]).abs();
            if self.tolerance == Tolerance::Store && off > allowed {
                return Err(format!("element {at} is {}, expected {}", found[at], expected[at]));
            }
        }
        Ok(relative)
    }
}
