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

#[path = "../card/mod.rs"]
mod card;
mod case;
mod cases;
#[path = "../../../device/tests/common/mod.rs"]
mod common;

use std::sync::Mutex;

use case::{Case, Maker, Tolerance};
use cases::{attentions, convs, light, linears, narrow_linears, narrow_products};
use common::{Tensor, bound, bytes_of, run_all, values_of};
use plimsoll_cuda_kernels::{Backends, GemmBackend, NarrowBackend};
use plimsoll_device::{
    Control, Device, DeviceError, HostDType, HostTable, Mat, OutputBuffer, Program, Queue, Region,
};
use plimsoll_device_cuda::CudaDevice;
use plimsoll_graph::DType::{BF16, F8E4M3, F32};
use plimsoll_graph::{Activation, InputId, OpKind, OutputId, TableId};
use plimsoll_weights::f8_decode;

const ARENA_BYTES: u64 = 1 << 30;

/// Who computes products and attention.
#[derive(Clone, Copy, PartialEq)]
enum By {
    Libraries,
    /// Libraries on weights in bf16, whatever they are stored in.
    Unpacked,
    OwnKernels,
    /// Own kernels, likewise.
    OwnUnpacked,
}

fn device(by: By) -> Option<CudaDevice> {
    let mut options = card::options();
    let is_own = matches!(by, By::OwnKernels | By::OwnUnpacked);
    options.libraries.without_cublas_lt = is_own;
    options.libraries.without_cudnn = is_own;
    options.libraries.without_narrow_products = matches!(by, By::Unpacked | By::OwnUnpacked);
    let device = card::device(ARENA_BYTES, options)?;
    println!("libraries:{}", device.card().libraries().arithmetic());
    Some(device)
}

/// A library rounds a product once; what it does not fuse (an activation but GELU, a residual) rounds again.
fn relax(case: &mut Case, backends: Backends) {
    let is_twice = matches!(&case.kind, OpKind::Linear { residual, activation, .. }
        if residual.is_some() || !matches!(activation, Activation::None | Activation::GeluTanh));
    if is_twice && backends.gemm == GemmBackend::CublasLt {
        case.tolerance = Tolerance::Whole(3.5e-3);
    }
}

/// Runs cases, prints a line for each kind of trouble, and fails if there is any.
fn judge(cases: Vec<Case>, device: &mut CudaDevice) {
    let (mut wrong, mut unsupported, mut worst) = (Vec::new(), Vec::new(), 0.0f64);
    let total = cases.len();
    for mut case in cases {
        relax(&mut case, device.card().backends());
        let text = format!("{} {:?}", case.name, case.out.mat.dtype);
        match case.on_card(device) {
            Ok(found) => match case.verdict(&found) {
                Ok(error) => worst = worst.max(error),
                Err(what) => wrong.push(format!("{text}: {what}")),
            },
            Err(DeviceError::Unsupported { what, .. }) => {
                unsupported.push(format!("{text}: {what}"));
            }
            Err(error) => panic!("{text}: {error}"),
        }
    }
    println!("{total} cases, worst relative error {worst:.2e}");
    println!("{} not supported:\n  {}", unsupported.len(), unsupported.join("\n  "));
    println!("{} wrong:\n  {}", wrong.len(), wrong.join("\n  "));
    assert!(wrong.is_empty() && unsupported.is_empty());
}

fn check(make: impl FnOnce(&mut Vec<Case>, &mut u64), seed: u64, by: By) {
    let Some(mut device) = device(by) else { return };
    let (mut cases, mut seed) = (Vec::new(), seed);
    make(&mut cases, &mut seed);
    judge(cases, &mut device);
}

/// The cases and tolerances themselves, where there is no card: the CPU device stands in for it.
#[test]
fn the_cases_hold_for_the_cpu_device() {
    let (mut cases, mut seed) = (Vec::new(), 5000);
    for make in [light, linears, narrow_linears, attentions, convs] {
        make(&mut cases, &mut seed);
    }
    // The largest are for cards.
    let is_small = |case: &Case| case.lab.end < 128 << 10;
    for case in cases.iter().filter(|case| is_small(case)) {
        let verdict = case.verdict(&case.on_cpu());
        assert!(verdict.is_ok(), "{} {:?}: {verdict:?}", case.name, case.out.mat.dtype);
    }
}

#[test]
#[ignore = "needs a CUDA card"]
fn light_ops() {
    check(light, 1000, By::OwnKernels);
}

#[test]
#[ignore = "needs a CUDA card"]
fn linear_by_cublaslt() {
    check(linears, 2000, By::Libraries);
}

#[test]
#[ignore = "needs a CUDA card"]
fn linear_by_own_kernels() {
    check(linears, 2500, By::OwnKernels);
}

#[test]
#[ignore = "needs a CUDA card"]
fn linear_over_eight_bits_by_cublaslt() {
    check(narrow_linears, 2700, By::Unpacked);
}

#[test]
#[ignore = "needs a CUDA card"]
fn linear_over_eight_bits_by_own_kernels() {
    check(narrow_linears, 2800, By::OwnUnpacked);
}

/// Every 8-bit number under scales of all sizes: the bits of the bf16 weight that the CPU device unpacks it to.
#[test]
#[ignore = "needs a CUDA card"]
fn eight_bits_have_the_bits_of_the_bf16_weight_that_they_unpack_to() {
    for by in [By::Unpacked, By::OwnUnpacked] {
        let Some(mut device) = device(by) else { return };
        for (rows, n, k) in [(1, 512, 256), (77, 512, 256), (300, 3072, 3072), (33, 100, 24)] {
            let codes = || {
                (0..n * k)
                    .map(|at| (at * 7 + at / k) as u8)
                    .map(|code| code ^ u8::from(code & 0x7F == 0x7F))
            };
            let scale = |row: u64| {
                f64::from(2.0f32.powi((row % 40) as i32 - 30) * (1.0 + row as f32 / 4096.0))
            };
            let made = |is_narrow: bool, device: &mut CudaDevice| {
                let mut m = Maker::new(79);
                let x = m.random(rows, k, BF16);
                let stored: Vec<f64> = codes().map(|code| f64::from(f8_decode(code))).collect();
                let out = m.empty(rows, n, BF16);
                let (weight, weight_scale) = if is_narrow {
                    let weight = m.with(n, k, F8E4M3, stored);
                    let scales = m.with(1, n, F32, (0..n).map(scale).collect());
                    (weight, Some(scales.mat))
                } else {
                    let unpacked = stored.iter().zip(0..).map(|(value, at): (&f64, u64)| {
                        f64::from(*value as f32 * scale(at / k) as f32)
                    });
                    (m.with(n, k, BF16, unpacked.collect()), None)
                };
                let kind = OpKind::Linear {
                    x: x.mat,
                    weight: weight.mat,
                    weight_scale,
                    bias: None,
                    activation: Activation::None,
                    residual: None,
                    out: out.mat,
                };
                m.case(format!("{rows}x{k}->{n}"), Tolerance::Store, kind, out)
                    .on_card(device)
                    .unwrap()
            };
            let (narrow, plain) = (made(true, &mut device), made(false, &mut device));
            assert!(narrow == plain, "{rows}x{k}->{n}: other bits");
        }
    }
}

/// Products of 8 bits by 8 bits against the CPU device over what `x` is quantized to: what is left is the rounding of
/// the result, and sums that stay in the tensor cores.
#[test]
#[ignore = "needs a CUDA card"]
fn eight_bit_products_are_those_of_the_quantized_rows() {
    [By::Libraries, By::OwnKernels].into_iter().for_each(eight_bit_products);
}

fn eight_bit_products(by: By) {
    let Some(mut device) = device(by) else { return };
    if device.card().backends().narrow == NarrowBackend::Unpacked {
        println!("no products of 8 bits on this card");
        return;
    }
    let (mut wrong, mut worst, mut cases) = (Vec::new(), 0.0f64, Vec::new());
    narrow_products(&mut cases);
    let total = cases.len();
    for (case, reference) in cases {
        let found = case.on_card(&mut device).unwrap();
        match reference.verdict(&found) {
            Ok(error) => worst = worst.max(error),
            Err(what) => wrong.push(format!("{}: {what}", case.name)),
        }
    }
    println!("{total} cases, worst relative error {worst:.2e}");
    assert!(wrong.is_empty(), "{} wrong:\n  {}", wrong.len(), wrong.join("\n  "));
}

#[test]
#[ignore = "needs a CUDA card"]
fn attention_by_cudnn() {
    check(attentions, 3000, By::Libraries);
}

#[test]
#[ignore = "needs a CUDA card"]
fn attention_by_own_kernels() {
    check(attentions, 3500, By::OwnKernels);
}

#[test]
#[ignore = "needs a CUDA card"]
fn convolution() {
    check(convs, 4000, By::OwnKernels);
}

#[test]
#[ignore = "needs a CUDA card"]
fn transfers_move_rows() {
    let Some(mut device) = device(By::OwnKernels) else { return };
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
fn rows_do_not_depend_on_each_other_by_libraries() {
    rows_do_not_depend_on_each_other(By::Libraries);
}

#[test]
#[ignore = "needs a CUDA card"]
fn rows_do_not_depend_on_each_other_by_own_kernels() {
    rows_do_not_depend_on_each_other(By::OwnKernels);
}

fn rows_do_not_depend_on_each_other(by: By) {
    let Some(mut device) = device(by) else { return };
    for (n, k, dtype) in [
        (3072, 3072, BF16),
        (9216, 3072, BF16),
        (3072, 12288, BF16),
        (64, 3072, BF16),
        (9216, 3072, F8E4M3),
        (3072, 12288, F8E4M3),
    ] {
        let most = 1030u64;
        let mut reference: Option<Vec<u8>> = None;
        for rows in [most, 1, 2, 77, 129, 512] {
            let mut m = Maker::new(77);
            let spread = 1.7 / (k as f64).sqrt();
            let is_narrow = dtype == F8E4M3;
            let weight = m.scaled(n, k, dtype, if is_narrow { 448.0 } else { spread }, 0.0);
            let scale = m.scaled(1, n, F32, spread / 900.0, spread / 448.0);
            let bias = m.random(1, n, BF16);
            let x = m.random(most, k, BF16);
            let out = m.empty(most, n, BF16);
            let cut = |tensor: &Tensor| Mat { rows, ..tensor.mat };
            let kind = OpKind::Linear {
                x: cut(&x),
                weight: weight.mat,
                weight_scale: is_narrow.then_some(scale.mat),
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
        for rows in [keys, 77, 129, 300] {
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
