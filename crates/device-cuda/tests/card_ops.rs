//! Every op on a card, as a program of one op, against the CPU device on the same values in single precision.
//!
//! The reference computes on the operands' rounded values held as `f32`, whose own error is some 1e-7: what is
//! left is the card's one rounding at the store, and that is the tolerance. Where an op rounds twice by its
//! definition, the reference has the card's types and the distance is held as a whole.
//! Results and scratch are poisoned before each run; what lies around a result must be as it was.
//!
//! Run the test's binary on a machine with a card: `card_ops-HASH --include-ignored --nocapture`.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]
#![allow(missing_docs)]

mod card;
#[path = "../../device/tests/common/mod.rs"]
mod common;

use std::sync::Mutex;

use common::{Lab, Tensor, bound, bytes_of, run_all, unit, values_of};
use plimsoll_cuda_kernels::{bound_shapes, workspace_bytes};
use plimsoll_device::cpu::{CpuDevice, bound_workspace_bytes};
use plimsoll_device::{
    Command, Control, Device, DeviceError, HostDType, HostTable, Lane, Mat, OutputBuffer, Program,
    Queue, Region, Segment,
};
use plimsoll_device_cuda::CudaDevice;
use plimsoll_graph::{
    Activation, DType, InputId, Norm, OpKind, OutputId, RelativeBias, Residual, TableId,
};

use DType::{BF16, F32, U32};

const ARENA_BYTES: u64 = 1 << 30;

/// What a result may be off by.
#[derive(Clone, Copy, PartialEq)]
enum Tolerance {
    /// The same bits as the CPU device with the same types.
    Bits,
    /// One rounding at the store: each element, and the whole.
    Store,
    /// Relative L2 distance from the CPU device with the same types.
    Whole(f64),
}

struct Case {
    name: String,
    lab: Lab,
    /// Every tensor that a view may lie in.
    tensors: Vec<Tensor>,
    kind: OpKind<Mat, Mat>,
    /// The tensor that the result lies in; read back whole.
    out: Tensor,
    tolerance: Tolerance,
    step: u32,
}

/// Makes tensors and remembers them.
struct Maker {
    lab: Lab,
    tensors: Vec<Tensor>,
}

impl Maker {
    fn new(seed: u64) -> Self {
        Self { lab: Lab::new(seed), tensors: Vec::new() }
    }

    fn with(&mut self, rows: u64, cols: u64, dtype: DType, values: Vec<f64>) -> Tensor {
        let tensor = self.lab.tensor(rows, cols, dtype, values);
        self.tensors.push(tensor.clone());
        tensor
    }

    fn random(&mut self, rows: u64, cols: u64, dtype: DType) -> Tensor {
        self.scaled(rows, cols, dtype, 1.0, 0.0)
    }

    fn scaled(&mut self, rows: u64, cols: u64, dtype: DType, scale: f64, offset: f64) -> Tensor {
        let values = self.lab.random.values(rows * cols, scale, offset);
        self.with(rows, cols, dtype, values)
    }

    fn empty(&mut self, rows: u64, cols: u64, dtype: DType) -> Tensor {
        self.with(rows, cols, dtype, vec![f64::NAN; (rows * cols) as usize])
    }

    fn case(
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

    fn on_card(&self, device: &mut CudaDevice) -> Result<Vec<u8>, DeviceError> {
        let backends = device.card().backends();
        device.reset_pattern().unwrap();
        let bytes = workspace_bytes(&bound_shapes(&self.kind), backends);
        let (found, high_water, end) = self.run(device, bytes)?;
        assert!(high_water <= end, "{}: touched byte {high_water}, planned {end}", self.name);
        Ok(found)
    }

    fn on_cpu(&self) -> Vec<u8> {
        let bytes = bound_workspace_bytes(&self.kind);
        let end = (self.lab.end + bytes).next_multiple_of(256);
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        let mut device = CpuDevice::new(end, workers).unwrap();
        self.run(&mut device, bytes).unwrap().0
    }

    /// What is wrong with the card's result, or its error as a number.
    fn verdict(&self, found: &[u8]) -> Result<f64, String> {
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
        for at in 0..expected.len() {
            if !is_written(at) {
                if found[at] != before[at] && !(found[at].is_nan() && before[at].is_nan()) {
                    // An element whose new value happens to be the old one, rounded away from it.
                    let near = (found[at] - before[at]).abs() <= before[at].abs() / 128.0;
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
        let limit = match self.tolerance {
            Tolerance::Whole(limit) => limit,
            _ if dtype == BF16 => 2.0e-3,
            _ => 1e-5,
        };
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

fn light(cases: &mut Vec<Case>, seed: &mut u64) {
    let mut maker = || {
        *seed += 1;
        Maker::new(*seed)
    };
    for (rows, cols, margin) in [(1, 64, 0), (77, 768, 0), (5, 33, 7), (300, 3072, 16)] {
        for (from, to) in [(BF16, F32), (F32, BF16), (BF16, BF16), (F32, F32)] {
            let mut m = maker();
            let (x, out) = (m.random(rows, cols + margin, from), m.empty(rows, cols + margin, to));
            let kind = OpKind::Copy { x: x.cols(margin, cols), out: out.cols(margin, cols) };
            cases.push(m.case(format!("copy {rows}x{cols}"), Tolerance::Bits, kind, out));
        }
        for dtype in [BF16, F32] {
            for one_row in [false, true] {
                let mut m = maker();
                let a = m.random(rows, cols + margin, dtype);
                let b = m.random(if one_row { 1 } else { rows }, cols, dtype);
                let view = a.cols(0, cols);
                let kind = OpKind::Add { a: view, b: b.mat, out: view };
                cases.push(m.case(format!("add {rows}x{cols}"), Tolerance::Bits, kind, a));
            }
            let mut m = maker();
            let (a, weight) = (m.random(rows, cols, dtype), m.random(rows + 2, cols, BF16));
            let out = m.empty(rows, cols, dtype);
            let kind = OpKind::AddWeight { a: a.mat, weight: weight.mat, out: out.mat };
            cases.push(m.case(format!("add_weight {rows}x{cols}"), Tolerance::Bits, kind, out));
            for activation in
                [Activation::None, Activation::Silu, Activation::GeluTanh, Activation::QuickGelu]
            {
                let mut m = maker();
                let x = m.scaled(rows, cols, dtype, 4.0, 0.0);
                let kind = OpKind::Activate { x: x.mat, activation, out: x.mat };
                let name = format!("{activation:?} {rows}x{cols}");
                cases.push(m.case(name, Tolerance::Store, kind, x));
            }
            let mut m = maker();
            let x = m.scaled(rows, 2 * cols, dtype, 3.0, 0.0);
            let out = m.empty(rows, cols + margin, dtype);
            let kind = OpKind::GluGelu { x: x.mat, out: out.cols(margin, cols) };
            cases.push(m.case(format!("glu {rows}x{cols}"), Tolerance::Store, kind, out));
            norms(cases, &mut maker, [rows, cols, margin], dtype);
        }
    }
    small(cases, &mut maker);
}

fn norms(
    cases: &mut Vec<Case>,
    maker: &mut impl FnMut() -> Maker,
    [rows, cols, margin]: [u64; 3],
    dtype: DType,
) {
    let eps = 1e-6;
    let mut m = maker();
    let x = m.scaled(rows, cols, dtype, 1.0, 3.0);
    let out = m.empty(rows, cols + margin, dtype);
    let (steps, width) = (5, 6 * cols);
    let table = m.random(steps, width, dtype);
    let row =
        |at: u64| Mat { rows: 1, step_bytes: width * dtype.bytes(), ..table.cols(at * cols, cols) };
    let norm = Norm::LayerModulated { eps, scale: row(1), shift: row(4) };
    let kind = OpKind::Norm { x: x.mat, norm, out: out.cols(0, cols) };
    let mut case = m.case(format!("modulated {rows}x{cols}"), Tolerance::Store, kind, out);
    case.step = 3;
    cases.push(case);
    let mut m = maker();
    let x = m.scaled(rows, cols, dtype, 1.0, 3.0);
    let (weight, bias) = (m.random(1, cols, BF16), m.random(1, cols, BF16));
    let norm = Norm::LayerAffine { eps, weight: weight.mat, bias: bias.mat };
    let kind = OpKind::Norm { x: x.mat, norm, out: x.mat };
    cases.push(m.case(format!("affine {rows}x{cols}"), Tolerance::Store, kind, x));
    let mut m = maker();
    let (x, weight) = (m.random(rows, cols, dtype), m.random(1, cols, BF16));
    let out = m.empty(rows, cols, dtype);
    let norm = Norm::Rms { eps, weight: weight.mat };
    let kind = OpKind::Norm { x: x.mat, norm, out: out.mat };
    cases.push(m.case(format!("rms {rows}x{cols}"), Tolerance::Whole(1e-3), kind, out));
}

fn small(cases: &mut Vec<Case>, maker: &mut impl FnMut() -> Maker) {
    for (rows, heads, head_dim) in [(1, 1, 64), (77, 12, 64), (513, 24, 128)] {
        for dtype in [BF16, F32] {
            let mut m = maker();
            let cols = heads * head_dim;
            let qkv = m.random(rows, 3 * cols, dtype);
            let (q_weight, k_weight) = (m.random(1, head_dim, BF16), m.random(1, head_dim, BF16));
            let rope = m.random(rows, head_dim, F32);
            let kind = OpKind::QkNormRope {
                q: qkv.cols(0, cols),
                k: qkv.cols(cols, cols),
                q_weight: q_weight.mat,
                k_weight: k_weight.mat,
                rope: rope.mat,
                heads,
                eps: 1e-6,
            };
            cases.push(m.case(
                format!("rope {rows}x{heads}x{head_dim}"),
                Tolerance::Store,
                kind,
                qkv,
            ));
        }
    }
    for dtype in [BF16, F32] {
        let mut m = maker();
        let x = m.with(3, 1, F32, vec![1.0, 0.25, 0.017_321]);
        let out = m.empty(3, 256, dtype);
        let kind = OpKind::Sinusoid { x: x.mat, out: out.mat };
        cases.push(m.case("sinusoid", Tolerance::Store, kind, out));
        let mut m = maker();
        let (latent, velocity) = (m.random(256, 64, F32), m.random(256, 64, dtype));
        let sigmas = m.random(4, 1, F32);
        let dsigma = Mat { rows: 1, step_bytes: 4, ..sigmas.mat };
        let kind = OpKind::Euler { latent: latent.mat, velocity: velocity.mat, dsigma };
        let mut case = m.case("euler", Tolerance::Store, kind, latent);
        case.step = 2;
        cases.push(case);
        let mut m = maker();
        let (x, out) = (m.random(24, 64, F32), m.empty(96, 16, dtype));
        let kind = OpKind::Unpatchify {
            x: x.mat,
            height: 8,
            width: 12,
            scale: 0.3611,
            shift: 0.1159,
            out: out.mat,
        };
        cases.push(m.case("unpatchify", Tolerance::Store, kind, out));
        for index in [0.0, 8.0, 4e9] {
            let mut m = maker();
            let (x, index) = (m.random(9, 768, dtype), m.with(1, 1, U32, vec![index]));
            let out = m.empty(1, 768, dtype);
            let kind = OpKind::SelectRow { x: x.mat, index: index.mat, out: out.mat };
            cases.push(m.case("select_row", Tolerance::Bits, kind, out));
        }
        for (pixels, channels) in [(1, 32), (1000, 128), (4096, 512)] {
            for silu in [false, true] {
                let mut m = maker();
                let x = m.scaled(pixels, channels, dtype, 1.0, 2.0);
                let (weight, bias) = (m.random(1, channels, BF16), m.random(1, channels, BF16));
                let kind = OpKind::GroupNorm {
                    x: x.mat,
                    weight: weight.mat,
                    bias: bias.mat,
                    groups: 32,
                    eps: 1e-6,
                    silu,
                    out: x.mat,
                };
                let name = format!("group_norm {pixels}x{channels}");
                cases.push(m.case(name, Tolerance::Store, kind, x));
            }
        }
    }
    let mut m = maker();
    let weight = m.random(32, 64, BF16);
    let buckets = m.with(1023, 1, U32, (0..1023).map(|at| f64::from(at % 34)).collect());
    let out = m.empty(64, 1023, F32);
    let kind = OpKind::ExpandBias { weight: weight.mat, buckets: buckets.mat, out: out.mat };
    cases.push(m.case("expand_bias", Tolerance::Bits, kind, out));
}

fn linears(cases: &mut Vec<Case>, seed: &mut u64) {
    let shapes = [
        (1, 3072, 256),
        (1, 18432, 3072),
        (77, 3072, 3072),
        (256, 9216, 3072),
        (300, 3072, 12288),
        (513, 64, 3072),
        (33, 768, 72),
        (100, 3, 128),
        (17, 40, 4096),
    ];
    for (at, (rows, n, k)) in shapes.into_iter().enumerate() {
        for (activation, residual, margin, bias) in [
            (Activation::None, None, 0, true),
            (Activation::None, None, 64, false),
            (Activation::GeluTanh, None, 0, true),
            (Activation::Silu, None, 0, true),
            (Activation::QuickGelu, None, 8, true),
            (Activation::None, Some(false), 0, false),
            (Activation::None, Some(true), 64, true),
        ] {
            *seed += 1;
            let mut m = Maker::new(*seed);
            let x = m.random(rows, k + margin, BF16);
            let weight = m.scaled(n, k, BF16, 1.7 / (k as f64).sqrt(), 0.0);
            let bias = bias.then(|| m.random(1, n, BF16));
            let gates = m.random(3, n, BF16);
            let out = match residual {
                Some(_) => m.random(rows, n + margin, BF16),
                None => {
                    let dtype = if at % 3 == 2 && margin == 0 { F32 } else { BF16 };
                    m.empty(rows, n + margin, dtype)
                }
            };
            let view = out.cols(margin, n);
            let gate = Mat { rows: 1, step_bytes: n * 2, ..gates.mat };
            let kind = OpKind::Linear {
                x: x.cols(margin, k),
                weight: weight.mat,
                bias: bias.as_ref().map(|bias| bias.mat),
                activation,
                residual: residual
                    .map(|gated| Residual { base: view, gate: gated.then_some(gate) }),
                out: view,
            };
            let name = format!("linear {rows}x{k}->{n} {activation:?} {residual:?} +{margin}");
            let mut case = m.case(name, Tolerance::Store, kind, out);
            case.step = if residual == Some(true) { 2 } else { 0 };
            cases.push(case);
        }
    }
}

fn attentions(cases: &mut Vec<Case>, seed: &mut u64) {
    for (queries, keys, heads, head_dim, causal, bias) in [
        (1, 1, 1, 64, false, false),
        (77, 77, 12, 64, true, false),
        (512, 512, 8, 64, false, true),
        (130, 130, 3, 64, false, true),
        (333, 333, 4, 128, false, false),
        (1100, 1100, 2, 128, false, false),
        (40, 500, 2, 128, false, false),
        (256, 256, 1, 512, false, false),
    ] {
        *seed += 1;
        let mut m = Maker::new(*seed);
        let cols = heads * head_dim;
        let (q, k, v) = if queries == keys {
            let qkv = m.scaled(queries, 3 * cols, BF16, 1.5, 0.0);
            (qkv.cols(0, cols), qkv.cols(cols, cols), qkv.cols(2 * cols, cols))
        } else {
            let (q, kv) = (m.random(queries, cols, BF16), m.random(keys, 2 * cols, BF16));
            (q.mat, kv.cols(0, cols), kv.cols(cols, cols))
        };
        let bias = bias.then(|| RelativeBias { bias: m.random(heads, 2 * keys - 1, F32).mat });
        let out = m.empty(queries, cols + 64, BF16);
        let kind = OpKind::Attention {
            q,
            k,
            v,
            heads,
            scale: 1.0 / (head_dim as f32).sqrt(),
            causal,
            bias,
            out: out.cols(64, cols),
        };
        let name = format!("attention {queries}x{keys}x{heads}x{head_dim}");
        // Probabilities are rounded to bf16 before they meet the values.
        cases.push(m.case(name, Tolerance::Whole(6e-3), kind, out));
    }
}

fn convs(cases: &mut Vec<Case>, seed: &mut u64) {
    for (height, width, from, to, upscale, residual) in [
        (1, 1, 16, 32, 1, false),
        (9, 13, 16, 512, 1, false),
        (16, 24, 128, 128, 1, true),
        (12, 10, 256, 256, 2, false),
        (33, 31, 128, 3, 1, false),
    ] {
        *seed += 1;
        let mut m = Maker::new(*seed);
        let x = m.random(height * width, from, BF16);
        let weight = m.scaled(to, from * 9, BF16, 1.7 / (from as f64 * 9.0).sqrt(), 0.0);
        let bias = m.random(1, to, BF16);
        let pixels = height * width * upscale * upscale;
        let base = residual.then(|| m.random(pixels, to, BF16).mat);
        let out = m.empty(pixels, to, BF16);
        let kind = OpKind::Conv3x3 {
            x: x.mat,
            height,
            width,
            upscale,
            weight: weight.mat,
            bias: bias.mat,
            residual: base,
            out: out.mat,
        };
        let name = format!("conv {height}x{width}x{from}->{to} x{upscale}");
        cases.push(m.case(name, Tolerance::Store, kind, out));
    }
}

/// Runs cases, prints a line for each kind of trouble, and fails if there is any.
fn judge(cases: Vec<Case>, device: &mut CudaDevice) {
    let (mut wrong, mut unsupported, mut worst) = (Vec::new(), Vec::new(), 0.0f64);
    let total = cases.len();
    for case in cases {
        let text = format!("{} {:?}", case.name, case.out.mat.dtype);
        match case.on_card(device) {
            Ok(found) => match case.verdict(&found) {
                Ok(error) => worst = worst.max(error),
                Err(what) => wrong.push(format!("{text}: {what}")),
            },
            Err(DeviceError::Unsupported { what, .. }) => {
                unsupported.push(format!("{text}: {what}"))
            }
            Err(error) => panic!("{text}: {error}"),
        }
    }
    println!("{total} cases, worst relative error {worst:.2e}");
    println!("{} not supported:\n  {}", unsupported.len(), unsupported.join("\n  "));
    println!("{} wrong:\n  {}", wrong.len(), wrong.join("\n  "));
    assert!(wrong.is_empty() && unsupported.is_empty());
}

fn check(make: impl FnOnce(&mut Vec<Case>, &mut u64), seed: u64) {
    let Some(mut device) = card::device(ARENA_BYTES, card::options()) else { return };
    let (mut cases, mut seed) = (Vec::new(), seed);
    make(&mut cases, &mut seed);
    judge(cases, &mut device);
}

/// The cases and tolerances themselves, where there is no card: the CPU device stands in for it.
#[test]
fn the_cases_hold_for_the_cpu_device() {
    let (mut cases, mut seed) = (Vec::new(), 5000);
    for make in [light, linears, attentions, convs] {
        make(&mut cases, &mut seed);
    }
    // The largest are for cards.
    let is_small = |case: &Case| case.lab.end < 16 << 20;
    for case in cases.iter().filter(|case| is_small(case)) {
        let verdict = case.verdict(&case.on_cpu());
        assert!(verdict.is_ok(), "{} {:?}: {verdict:?}", case.name, case.out.mat.dtype);
    }
}

#[test]
#[ignore = "needs a CUDA card"]
fn light_ops() {
    check(light, 1000);
}

#[test]
#[ignore = "needs a CUDA card"]
fn linear() {
    check(linears, 2000);
}

#[test]
#[ignore = "needs a CUDA card"]
fn attention() {
    check(attentions, 3000);
}

#[test]
#[ignore = "needs a CUDA card"]
fn convolution() {
    check(convs, 4000);
}

#[test]
#[ignore = "needs a CUDA card"]
fn transfers_move_rows() {
    let Some(mut device) = card::device(ARENA_BYTES, card::options()) else { return };
    let mut random = common::Random(9);
    for (rows, cols, stride) in [(1, 7, 7), (24, 300, 300), (24, 300, 320)] {
        let values = random.values(rows * cols, 1.0, 0.0);
        let input = bytes_of(&values, F32);
        let table_values = random.values(50 * cols, 1.0, 0.0);
        let table = bytes_of(&table_values, BF16);
        let (first, second) = table.split_at(20 * cols as usize * 2);
        let ids: Vec<u32> = (0..rows).map(|_| random.below(50) as u32).collect();
        let ids_bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let mat = |offset| Mat { offset, rows, cols, stride, dtype: F32, step_bytes: 0 };
        let (a, b) = (mat(512), mat(1 << 20));
        let kinds = [
            OpKind::Input { input: InputId(0), out: a },
            OpKind::Gather { table: TableId(0), ids: InputId(1), out: b },
            OpKind::Output { output: OutputId(0), x: a },
            OpKind::Output { output: OutputId(1), x: b },
        ];
        let output = || OutputBuffer { bytes: Mutex::new(vec![0; input.len()].into()) };
        let program = Program {
            ops: kinds.into_iter().map(|kind| bound(kind, Region::default())).collect(),
            inputs: vec![&input, &ids_bytes],
            tables: vec![HostTable {
                pieces: vec![first, second],
                dtype: HostDType::BF16,
                rows: 50,
                cols,
            }],
            outputs: vec![output(), output()],
            ..Program::default()
        };
        let drive = &mut |queue: &dyn Queue| run_all(queue, &program);
        device.run(&program, &Control::default(), drive).unwrap();
        assert!(program.outputs[0].bytes.lock().unwrap()[..] == input[..]);
        let gathered: Vec<f64> = ids
            .iter()
            .flat_map(|id| &table_values[*id as usize * cols as usize..][..cols as usize])
            .map(|value| common::rounded(*value, BF16))
            .collect();
        assert_eq!(values_of(&program.outputs[1].bytes.lock().unwrap(), F32), gathered);
    }
}

/// A row of a result has the same bits whatever the number of rows.
#[test]
#[ignore = "needs a CUDA card"]
fn rows_do_not_depend_on_each_other() {
    let Some(mut device) = card::device(ARENA_BYTES, card::options()) else { return };
    for (n, k) in [(3072, 3072), (9216, 3072), (3072, 12288), (64, 3072)] {
        let most = 1030u64;
        let mut reference: Option<Vec<u8>> = None;
        for rows in [most, 1, 2, 77, 129, 512] {
            let mut m = Maker::new(77);
            let weight = m.scaled(n, k, BF16, 1.7 / (k as f64).sqrt(), 0.0);
            let bias = m.random(1, n, BF16);
            let x = m.random(most, k, BF16);
            let out = m.empty(most, n, BF16);
            let cut = |tensor: &Tensor| Mat { rows, ..tensor.mat };
            let kind = OpKind::Linear {
                x: cut(&x),
                weight: weight.mat,
                bias: Some(bias.mat),
                activation: Activation::None,
                residual: None,
                out: cut(&out),
            };
            let case = m.case(format!("{rows} rows"), Tolerance::Store, kind, out);
            let found = case.on_card(&mut device).unwrap();
            let whole = reference.get_or_insert_with(|| found.clone());
            let bytes = (rows * n * 2) as usize;
            assert!(found[..bytes] == whole[..bytes], "linear {k}->{n}: {rows} rows, other bits");
        }
    }
    for (heads, head_dim) in [(4, 128), (4, 64)] {
        let (keys, cols) = (700, heads * head_dim);
        let mut reference: Option<Vec<u8>> = None;
        for rows in [keys, 1, 77, 300] {
            let mut m = Maker::new(78);
            let qkv = m.random(keys, 3 * cols, BF16);
            let out = m.empty(keys, cols, BF16);
            let kind = OpKind::Attention {
                q: Mat { rows, ..qkv.cols(0, cols) },
                k: qkv.cols(cols, cols),
                v: qkv.cols(2 * cols, cols),
                heads,
                scale: 0.1,
                causal: false,
                bias: None,
                out: Mat { rows, ..out.mat },
            };
            let case = m.case(format!("{rows} queries"), Tolerance::Store, kind, out);
            let found = case.on_card(&mut device).unwrap();
            let whole = reference.get_or_insert_with(|| found.clone());
            let bytes = (rows * cols * 2) as usize;
            assert!(found[..bytes] == whole[..bytes], "attention {head_dim}: {rows} rows");
        }
    }
}
