//! Launches of products, attention and convolution: they cover the result, stay inside of operands and scratch,
//! and go where types and sizes say.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use plimsoll_device::{BoundOp, Mat, Region};
use plimsoll_graph::{Activation, DType, Op, OpKind, RelativeBias, Residual};

use super::{tasks, workspace_bytes};
use crate::arch::Arch;
use crate::shape::bound_shapes;
use crate::signature::{Signature, signatures};
use crate::task::{
    Arg, AttentionBackend, Backends, GemmActivation, GemmBackend, Launch, NarrowBackend, RowScales,
    Task,
};

const OWN: Backends = Backends::OWN;
const LIBRARIES: Backends = Backends {
    gemm: GemmBackend::CublasLt,
    narrow: NarrowBackend::Unpacked,
    attention: AttentionBackend::Cudnn,
};
const NARROW: Backends = Backends { narrow: NarrowBackend::CublasLtRows, ..LIBRARIES };

/// Where the scratch of an op under test begins.
const SCRATCH: u64 = 1 << 40;

fn mat(offset: u64, rows: u64, cols: u64, dtype: DType) -> Mat {
    Mat { offset, rows, cols, stride: cols, dtype, step_bytes: 0 }
}

fn bf16(offset: u64, rows: u64, cols: u64) -> Mat {
    mat(offset, rows, cols, DType::BF16)
}

/// What the kernels take, by name.
fn kernels() -> &'static BTreeMap<String, Signature> {
    static KERNELS: LazyLock<BTreeMap<String, Signature>> = LazyLock::new(|| {
        Arch::Sm90a.cubins().iter().flat_map(|cubin| signatures(cubin.image)).collect()
    });
    &KERNELS
}

/// Makes an op's tasks with the scratch it asks for, and checks their addresses.
fn made(kind: OpKind<Mat, Mat>, backends: Backends) -> Vec<Task> {
    let bytes = workspace_bytes(&bound_shapes(&kind), backends);
    let workspace = Region { offset: SCRATCH, bytes };
    let op = BoundOp { op: Op { name: "op".to_owned(), kind }, workspace };
    let tasks = tasks(&op, backends).unwrap();
    let mut regions = vec![workspace];
    op.op.for_each_view(|mat, _| regions.push(mat.region(0)));
    op.op.for_each_weight(|mat| regions.push(mat.region(0)));
    let is_inside = |at: u64| {
        regions.iter().any(|region| (region.offset..region.offset + region.bytes).contains(&at))
    };
    for task in &tasks {
        let (addresses, scratch): (Vec<u64>, _) = match task {
            Task::Launch(launch) => {
                assert_eq!(kernels()[launch.kernel].fault(launch), None, "{launch:?}");
                assert!(launch.grid.iter().all(|blocks| *blocks > 0), "{launch:?}");
                // What every architecture has.
                assert!(launch.shared_bytes <= 99 << 10, "{launch:?}");
                let address = |arg: &Arg| match arg {
                    Arg::Arena(at) => Some(*at),
                    _ => None,
                };
                (launch.args.iter().filter_map(address).collect(), None)
            }
            Task::Gemm(gemm) => {
                let mut all = vec![gemm.a.offset, gemm.b.offset, gemm.out.offset];
                all.extend(gemm.bias);
                all.extend(gemm.scales.iter().flat_map(|scales| [scales.a, scales.b]));
                all.extend(gemm.add.map(|add| add.offset));
                (all, Some(gemm.workspace))
            }
            Task::Sdpa(sdpa) => (
                vec![sdpa.q.offset, sdpa.k.offset, sdpa.v.offset, sdpa.out.offset],
                Some(sdpa.workspace),
            ),
        };
        assert!(addresses.iter().all(|at| is_inside(*at)), "{task:?}");
        assert!(scratch.is_none_or(|part| part.end() <= workspace.end()), "{task:?}");
    }
    tasks
}

fn launch(task: &Task) -> &Launch {
    match task {
        Task::Launch(launch) => launch,
        _ => panic!("not a launch: {task:?}"),
    }
}

/// A layer in bf16 at offsets that are far apart.
fn layer(m: u64, n: u64, k: u64) -> [Mat; 5] {
    let at = |index: u64| index << 34;
    [bf16(at(0), m, k), bf16(at(1), n, k), bf16(at(2), 1, n), bf16(at(3), m, n), bf16(at(4), 1, n)]
}

fn linear(
    [x, weight, bias, out, _]: [Mat; 5],
    activation: Activation,
    residual: Option<Residual<Mat>>,
) -> OpKind<Mat, Mat> {
    OpKind::Linear { x, weight, weight_scale: None, bias: Some(bias), activation, residual, out }
}

#[test]
fn a_tile_follows_the_rows_and_the_grid_covers_the_result() {
    for (m, n, k, kernel, blocks) in [
        (4608, 9216, 3072, "gemm_128x128", 36 * 72),
        (4608, 64, 3072, "gemm_64x64", 72),
        (512, 3072, 3072, "gemm_128x128", 4 * 24),
        (77, 768, 3072, "gemm_64x64", 2 * 12),
        (17, 3, 8, "gemm_64x64", 1),
        (16, 33, 8, "gemm_16x32", 2),
        (1, 18432, 3072, "gemm_16x32", 576),
        (130, 65, 12, "gemm_any", 3 * 2),
    ] {
        let tasks = made(linear(layer(m, n, k), Activation::Silu, None), OWN);
        let found = launch(&tasks[0]);
        assert_eq!((tasks.len(), found.kernel, found.grid), (1, kernel, [blocks, 1, 1]), "{m}");
    }
}

#[test]
fn a_weight_in_eight_bits_is_unpacked_and_then_a_bf16_weight() {
    for backends in [OWN, LIBRARIES] {
        for (m, n, k, kernel) in [
            (4608, 9216, 3072, "unpack_f8_16"),
            (1, 96, 40, "unpack_f8_1"),
            (77, 64, 48, "unpack_f8_16"),
        ] {
            let [x, weight, bias, out, gate] = layer(m, n, k);
            let residual = || Some(Residual { base: out, gate: Some(gate) });
            let plain = linear([x, weight, bias, out, gate], Activation::None, residual());
            let narrow = narrow([x, weight, bias, out, gate], Activation::None, true);
            let bytes = |kind: &OpKind<Mat, Mat>| workspace_bytes(&bound_shapes(kind), backends);
            let unpacked = (2 * n * k).next_multiple_of(256);
            assert_eq!(bytes(&narrow), unpacked + bytes(&plain));
            let (found, expected) = (made(narrow, backends), made(plain, backends));
            assert_eq!(launch(&found[0]).kernel, kernel);
            // The same tasks over the scratch instead of the weight, with their own scratch behind it.
            let names = |tasks: &[Task]| -> Vec<String> {
                let name = |task: &Task| match task {
                    Task::Launch(launch) => launch.kernel.to_owned(),
                    other => format!("{:?}", std::mem::discriminant(other)),
                };
                tasks.iter().map(name).collect()
            };
            assert_eq!(names(&found[1..]), names(&expected));
            match &found[1] {
                Task::Gemm(gemm) => {
                    assert_eq!((gemm.b.offset, gemm.b.dtype), (SCRATCH, DType::BF16));
                    assert_eq!(gemm.workspace.offset, SCRATCH + unpacked);
                }
                task => assert!(launch(task).args.contains(&Arg::Arena(SCRATCH)), "{task:?}"),
            }
        }
    }
}

/// A layer over a weight stored in 8 bits.
fn narrow(
    [x, weight, bias, out, gate]: [Mat; 5],
    activation: Activation,
    has_residual: bool,
) -> OpKind<Mat, Mat> {
    OpKind::Linear {
        x,
        weight: Mat { dtype: DType::F8E4M3, ..weight },
        weight_scale: Some(mat(9 << 34, 1, weight.rows, DType::F32)),
        bias: Some(bias),
        activation,
        residual: has_residual.then_some(Residual { base: out, gate: Some(gate) }),
        out,
    }
}

#[test]
fn rows_are_quantized_for_products_of_eight_bits_whatever_their_number() {
    for m in [1, 16, 77, 4608] {
        for (n, k, kernel) in [
            (9216, 3072, "quantize_f8_4"),
            (3072, 15360, "quantize_f8_16"),
            (3072, 32768, "quantize_f8_any"),
        ] {
            for has_residual in [false, true] {
                let tasks = made(narrow(layer(m, n, k), Activation::None, has_residual), NARROW);
                let quantize = launch(&tasks[0]);
                // The gate is folded by further blocks.
                let folding = if has_residual { n / 128 } else { 0 };
                assert_eq!(quantize.grid, [u32::try_from(m + folding).unwrap(), 1, 1]);
                assert_eq!(quantize.kernel, kernel);
                let Task::Gemm(gemm) = &tasks[1] else { panic!("{tasks:?}") };
                let scales = SCRATCH + 256;
                let gated = scales + (4 * m).next_multiple_of(256);
                let x8 = gated + if has_residual { 6 * n } else { 0 };
                let (b, bias) =
                    if has_residual { (gated, gated + 4 * n) } else { (9 << 34, 2 << 34) };
                assert_eq!(gemm.scales, Some(RowScales { a: scales, b }));
                assert_eq!(gemm.bias, Some(bias));
                assert!(quantize.args.contains(&Arg::Arena(scales)), "{quantize:?}");
                assert!(quantize.args.contains(&Arg::Arena(x8)), "{quantize:?}");
                assert_eq!((gemm.a.offset, gemm.a.dtype, gemm.a.stride), (x8, DType::F8E4M3, k));
                assert_eq!((gemm.b.offset, gemm.b.dtype), (1 << 34, DType::F8E4M3));
                assert_eq!(tasks.len(), 2);
                assert_eq!(gemm.out.offset, 3 << 34);
                assert_eq!(gemm.add, has_residual.then_some(gemm.out));
            }
        }
    }
}

#[test]
fn own_products_of_eight_bits_take_all_that_follows_the_sum() {
    let own = Backends { narrow: NarrowBackend::Own, ..OWN };
    for (m, n, k, kernel, on_hopper) in [
        (1, 3072, 3072, "gemm_f8_64x64", "gemm_f8_64x64"),
        (77, 72, 48, "gemm_f8_64x64", "gemm_f8_64x64"),
        (300, 77, 48, "gemm_f8_64x64", "gemm_f8_64x64"),
        (512, 3072, 12288, "gemm_f8_64x64", "gemm_f8_64x64"),
        (512, 12288, 3072, "gemm_f8_128x128", "gemm_f8_128x256"),
        (4608, 12288, 3072, "gemm_f8_128x128", "gemm_f8_192x256"),
    ] {
        for (activation, has_residual) in [(Activation::Silu, false), (Activation::None, true)] {
            let tasks = made(narrow(layer(m, n, k), activation, has_residual), own);
            assert_eq!(tasks.len(), 2);
            let product = launch(&tasks[1]);
            assert_eq!(product.kernel, kernel);
            let (scales, x8) = (SCRATCH + 256, SCRATCH + 256 + (4 * m).next_multiple_of(256));
            assert_eq!(product.args[0], Arg::Arena(x8));
            assert_eq!(product.args[19..], [Arg::Arena(scales), Arg::Arena(9 << 34)]);
            let hopper = Arch::Sm90a.variant(product.clone());
            assert_eq!(hopper.kernel, on_hopper);
            assert_eq!(kernels()[hopper.kernel].fault(&hopper), None);
        }
    }
    // Half a piece of 16 bytes along k.
    let odd = made(narrow(layer(77, 64, 72), Activation::None, false), own);
    assert!(launch(&odd[0]).kernel.starts_with("unpack_f8"));
}

#[test]
fn a_residual_that_the_product_cannot_add_comes_after_it() {
    let [x, weight, bias, out, gate] = layer(77, 64, 64);
    let f32 = |mat: Mat| Mat { dtype: DType::F32, ..mat };
    for (gate, activation) in [(gate, Activation::GeluTanh), (f32(gate), Activation::None)] {
        let tasks = made(narrow([x, weight, bias, out, gate], activation, true), NARROW);
        let Task::Gemm(gemm) = &tasks[1] else { panic!("{tasks:?}") };
        assert_eq!((tasks.len(), gemm.add), (3, None));
        assert_eq!(gemm.scales.unwrap().b, 9 << 34);
        assert_eq!(launch(&tasks[0]).grid, [77, 1, 1]);
    }
}

#[test]
fn what_has_no_product_of_eight_bits_is_unpacked() {
    let operands = layer(77, 64, 64);
    let f32s = operands.map(|mat| Mat { dtype: DType::F32, ..mat });
    for (kind, what) in [
        (narrow(f32s, Activation::None, false), "f32"),
        (narrow(operands, Activation::Silu, false), "an activation that is not fused"),
        (narrow(layer(77, 64, 72), Activation::None, false), "a depth of 72"),
        (narrow(layer(77, 72, 64), Activation::None, false), "72 columns"),
    ] {
        let tasks = made(kind.clone(), NARROW);
        assert!(launch(&tasks[0]).kernel.starts_with("unpack_f8"), "{what}");
        assert_eq!(tasks, made(kind, LIBRARIES), "{what}");
    }
    for backends in [OWN, LIBRARIES] {
        let tasks = made(narrow(operands, Activation::None, false), backends);
        assert_eq!(launch(&tasks[0]).kernel, "unpack_f8_16");
    }
}

#[test]
fn a_product_of_eight_bits_at_odd_addresses_is_refused() {
    let [x, weight, bias, out, gate] = layer(77, 64, 64);
    for odd in [
        [x, weight, bias, Mat { offset: out.offset + 2, ..out }, gate],
        [x, weight, Mat { offset: bias.offset + 8, ..bias }, out, gate],
    ] {
        let kind = narrow(odd, Activation::None, false);
        let bytes = workspace_bytes(&bound_shapes(&kind), NARROW);
        let workspace = Region { offset: SCRATCH, bytes };
        let op = BoundOp { op: Op { name: "op".to_owned(), kind }, workspace };
        assert!(tasks(&op, NARROW).is_err());
    }
    // Whatever the operand's own address, it is read.
    let odd = Mat { offset: x.offset + 2, ..x };
    let tasks = made(narrow([odd, weight, bias, out, gate], Activation::None, false), NARROW);
    assert_eq!(launch(&tasks[0]).kernel, "quantize_f8_any");
}

#[test]
fn rows_do_not_decide_between_tensor_cores_and_other_arithmetic() {
    let (x, w, any) = (DType::BF16, DType::BF16, DType::F32);
    for (types, k, stride, offset, is_any) in [
        ([x, w], 64, 64, 0, false),
        ([any, w], 64, 64, 0, true),
        ([x, any], 64, 64, 0, true),
        ([x, w], 60, 64, 0, true),
        ([x, w], 64, 68, 0, true),
        ([x, w], 64, 72, 8, true),
        ([x, w], 64, 72, 16, false),
    ] {
        for m in [1, 2, 16, 17, 100, 5000] {
            let [mut input, mut weight, bias, out, _] = layer(m, 128, k);
            input = Mat { dtype: types[0], stride, offset, ..input };
            weight.dtype = types[1];
            let kind = linear([input, weight, bias, out, out], Activation::None, None);
            for backends in [OWN, LIBRARIES] {
                let tasks = made(kind.clone(), backends);
                match &tasks[0] {
                    Task::Launch(launch) => assert_eq!(launch.kernel == "gemm_any", is_any),
                    Task::Gemm(_) => assert!(backends == LIBRARIES && !is_any && m > 16),
                    Task::Sdpa(_) => panic!("a product by attention"),
                }
            }
        }
    }
}

#[test]
fn types_and_alignment_are_in_the_flags() {
    let flags = |kind: OpKind<Mat, Mat>| match launch(&made(kind, OWN)[0]).args.last() {
        Some(Arg::U32(flags)) => *flags,
        last => panic!("{last:?}"),
    };
    let [x, weight, bias, out, gate] = layer(40, 64, 64);
    let plain = [x, weight, bias, out, gate];
    assert_eq!(flags(linear(plain, Activation::None, None)), 256);
    assert_eq!(flags(linear(plain, Activation::GeluTanh, None)), 256 | 2);
    let odd = Mat { offset: out.offset + 2, ..out };
    assert_eq!(flags(linear([x, weight, bias, odd, gate], Activation::QuickGelu, None)), 3);
    let f32s = [x, weight, bias, out, gate].map(|mat| Mat { dtype: DType::F32, ..mat });
    let residual = Residual { base: f32s[3], gate: Some(f32s[4]) };
    assert_eq!(flags(linear(f32s, Activation::Silu, Some(residual))), 256 | 0xfc | 1);
}

#[test]
fn only_what_moves_makes_a_kernel_read_the_step() {
    let [x, weight, bias, out, gate] = layer(40, 64, 64);
    for step_bytes in [0, 384] {
        let gate = Mat { step_bytes, ..gate };
        let residual = Some(Residual { base: out, gate: Some(gate) });
        let tasks = made(linear([x, weight, bias, out, gate], Activation::None, residual), OWN);
        let args = &launch(&tasks[0]).args;
        assert_eq!(args.contains(&Arg::Step), step_bytes != 0);
        assert_eq!(args.contains(&Arg::U32(384)), step_bytes != 0);
    }
}

#[test]
fn a_library_gets_what_it_can_fuse_and_a_launch_does_the_rest() {
    let operands = layer(512, 3072, 768);
    let [_, _, _, out, gate] = operands;
    let plain = Residual { base: out, gate: None };
    let gated = Residual { base: out, gate: Some(gate) };
    let (none, gelu) = (Activation::None, Activation::GeluTanh);
    let kept = 256 + 512 * 3072 * 2;
    for (activation, residual, count, scratch) in [
        (none, None, 1, 256),
        (gelu, None, 1, 256),
        (none, Some(plain.clone()), 1, 256),
        (Activation::QuickGelu, None, 2, 256),
        (none, Some(gated.clone()), 2, kept),
        (gelu, Some(plain.clone()), 2, kept),
    ] {
        let kind = linear(operands, activation, residual.clone());
        assert_eq!(workspace_bytes(&bound_shapes(&kind), LIBRARIES), scratch);
        assert_eq!(workspace_bytes(&bound_shapes(&kind), OWN), 0);
        let tasks = made(kind, LIBRARIES);
        assert_eq!(tasks.len(), count, "{activation:?} {residual:?}");
        let Task::Gemm(gemm) = &tasks[0] else { panic!("{tasks:?}") };
        assert_eq!(gemm.activation == GemmActivation::GeluTanh, activation == gelu);
        assert_eq!(gemm.add.is_some(), count == 1 && residual.is_some());
        let into_scratch = gemm.out.offset == SCRATCH + 256;
        assert_eq!(into_scratch, scratch == kept);
    }
    // Neither fits: all by an own kernel, and no scratch.
    let kind = linear(operands, Activation::Silu, Some(plain));
    assert_eq!(workspace_bytes(&bound_shapes(&kind), LIBRARIES), 0);
    assert_eq!(launch(&made(kind, LIBRARIES)[0]).kernel, "gemm_128x128");
}

fn attention(
    [queries, keys]: [u64; 2],
    [heads, head_dim]: [u64; 2],
    dtype: DType,
    causal: bool,
    has_bias: bool,
) -> OpKind<Mat, Mat> {
    let width = heads * head_dim;
    let bias = mat(4 << 34, heads, 2 * queries.max(keys) - 1, DType::F32);
    // Columns of one wide tensor.
    let k = Mat { stride: 3 * width, ..mat(1 << 34, keys, width, dtype) };
    OpKind::Attention {
        q: mat(0, queries, width, dtype),
        k,
        v: Mat { offset: k.offset + width * dtype.bytes(), ..k },
        heads,
        scale: 0.5,
        causal,
        bias: has_bias.then_some(RelativeBias { bias }),
        out: mat(3 << 34, queries, width, dtype),
    }
}

#[test]
fn attention_goes_by_head_size_mask_and_library() {
    let b = DType::BF16;
    let kind = attention([4608, 4608], [24, 128], b, false, false);
    assert!(matches!(made(kind.clone(), LIBRARIES)[..], [Task::Sdpa(_)]));
    assert_eq!(workspace_bytes(&bound_shapes(&kind), LIBRARIES), 1024);
    assert_eq!(workspace_bytes(&bound_shapes(&kind), OWN), 0);
    for (size, heads, causal, has_bias, kernel, grid) in [
        ([4608, 4608], [24, 128], false, false, "attention_128", [36, 24, 1]),
        ([1, 300], [2, 64], false, false, "attention_64", [1, 2, 1]),
        ([77, 77], [12, 64], true, false, "attention_64_masked", [1, 12, 1]),
        ([512, 512], [64, 64], false, true, "attention_64_masked", [4, 64, 1]),
    ] {
        let kind = attention(size, heads, b, causal, has_bias);
        let tasks = made(kind.clone(), OWN);
        assert_eq!((launch(&tasks[0]).kernel, launch(&tasks[0]).grid), (kernel, grid));
        assert_eq!((tasks.len(), launch(&tasks[0]).args.len()), (1, 14));
        let is_library = matches!(made(kind, LIBRARIES)[..], [Task::Sdpa(_)]);
        // A single query has other bits in the library.
        assert_eq!(is_library, !causal && !has_bias && size[0] > 1);
    }
}

#[test]
fn bands_cover_every_query_of_every_head_once() {
    for (size, heads, dtype, causal, band) in [
        ([16384, 16384], [1, 512], DType::BF16, false, 1024),
        ([300, 301], [3, 13], DType::BF16, true, 300),
        ([4608, 4608], [2, 128], DType::F32, false, 3584),
        ([77, 77], [2, 128], DType::BF16, true, 77),
        // More keys than a whole block of queries has room for.
        ([300, 300_000], [1, 96], DType::BF16, false, 55),
    ] {
        let kind = attention(size, heads, dtype, causal, false);
        let bytes = workspace_bytes(&bound_shapes(&kind), OWN);
        let turned = heads[0] * heads[1] * size[1].next_multiple_of(8) * dtype.bytes();
        assert!(bytes <= turned + 256 + (64 << 20));
        let tasks = made(kind, OWN);
        let names: Vec<&str> = tasks.iter().map(|task| launch(task).kernel).collect();
        assert_eq!(names[0], "attention_transpose");
        assert_eq!(names.len() as u64, 1 + 3 * heads[0] * size[0].div_ceil(band));
        let mut rows = vec![0u64; usize::try_from(size[0]).unwrap()];
        for (at, task) in tasks.iter().enumerate().filter(|(at, _)| at % 3 == 2) {
            let softmax = launch(task);
            assert_eq!(names[at], "attention_softmax");
            let Arg::U32(first) = softmax.args[7] else { panic!("{softmax:?}") };
            for row in first..first + softmax.grid[0] {
                rows[row as usize] += 1;
            }
        }
        assert!(rows.iter().all(|count| *count == heads[0]));
    }
}

fn conv(
    [height, width, upscale]: [u64; 3],
    [channels, out]: [u64; 2],
    dtype: DType,
) -> OpKind<Mat, Mat> {
    let pixels = height * width * upscale * upscale;
    OpKind::Conv3x3 {
        x: mat(0, height * width, channels, dtype),
        height,
        width,
        upscale,
        margin: [0, 0],
        weight: mat(1 << 34, out, 9 * channels, dtype),
        bias: mat(2 << 34, 1, out, dtype),
        residual: (out > 3).then_some(mat(3 << 34, pixels, out, dtype)),
        out: mat(4 << 34, pixels, out, dtype),
    }
}

#[test]
fn a_convolution_orders_its_weight_or_needs_no_scratch() {
    for (size, channels, dtype, kernel, blocks) in [
        ([128, 128, 1], [512, 512], DType::BF16, "conv_128x128", 128 * 4),
        ([512, 512, 2], [256, 256], DType::BF16, "conv_128x128", 8192 * 2),
        ([1024, 1024, 1], [128, 3], DType::BF16, "conv_128x16", 8192),
        ([9, 7, 2], [16, 512], DType::BF16, "conv_128x128", 2 * 4),
        ([9, 7, 1], [12, 20], DType::BF16, "conv_any", 1),
        ([9, 7, 2], [32, 70], DType::F32, "conv_any", 4 * 2),
    ] {
        let kind = conv(size, channels, dtype);
        let ordered = (9 * channels[0] * channels[1] * 2).next_multiple_of(256);
        let is_any = kernel == "conv_any";
        assert_eq!(workspace_bytes(&bound_shapes(&kind), OWN), if is_any { 0 } else { ordered });
        let tasks = made(kind, OWN);
        let last = launch(&tasks[tasks.len() - 1]);
        assert_eq!((last.kernel, last.grid), (kernel, [blocks, 1, 1]));
        assert_eq!(tasks.len(), if is_any { 1 } else { 2 });
        if !is_any {
            assert_eq!(launch(&tasks[0]).kernel, "conv_weights");
            assert_eq!(
                (launch(&tasks[0]).args[2], last.args[8]),
                (Arg::Arena(SCRATCH), Arg::Arena(SCRATCH))
            );
        }
    }
}

#[test]
fn a_band_of_a_convolution_begins_behind_the_row_that_is_seen() {
    for (margin, first, rows) in [([0, 1], 0, 8), ([1, 1], 1, 7), ([1, 0], 1, 8)] {
        let OpKind::Conv3x3 { out, residual, .. } = conv([9, 7, 2], [32, 64], DType::BF16) else {
            unreachable!()
        };
        let shorter = |mat: Mat| Mat { rows: rows * 7 * 4, ..mat };
        let mut kind = conv([9, 7, 2], [32, 64], DType::BF16);
        let OpKind::Conv3x3 { margin: m, out: o, residual: r, .. } = &mut kind else {
            unreachable!()
        };
        (*m, *o, *r) = (margin, shorter(out), residual.map(shorter));
        let tasks = made(kind.clone(), OWN);
        let args = &launch(&tasks[1]).args;
        let number = |value: u64| Arg::U32(u32::try_from(value).unwrap());
        assert_eq!(args[5..7], [number(first * 7 * 4), number(rows * 7 * 4)]);
        let OpKind::Conv3x3 { margin: m, .. } = &mut kind else { unreachable!() };
        *m = [0, 0];
        let workspace = Region { offset: SCRATCH, bytes: 1 << 30 };
        let op = BoundOp { op: Op { name: "op".to_owned(), kind }, workspace };
        assert!(super::tasks(&op, OWN).is_err(), "the result is a row short");
    }
}

#[test]
fn what_no_kernel_takes_is_refused() {
    let refused = |kind: OpKind<Mat, Mat>| {
        let workspace = Region { offset: SCRATCH, bytes: 1 << 30 };
        let op = BoundOp { op: Op { name: "op".to_owned(), kind }, workspace };
        assert!(tasks(&op, OWN).is_err(), "{op:?}");
    };
    let [x, weight, bias, out, gate] = layer(40, 64, 64);
    let indices = Mat { dtype: DType::U32, ..x };
    refused(linear([indices, weight, bias, out, gate], Activation::None, None));
    refused(linear([x, weight, bias, Mat { rows: 41, ..out }, gate], Activation::None, None));
    refused(linear(
        [Mat { rows: 1 << 31, ..x }, weight, bias, Mat { rows: 1 << 31, ..out }, gate],
        Activation::None,
        None,
    ));
    let OpKind::Attention { mut q, k, v, heads, scale, causal, bias, out } =
        attention([77, 77], [12, 64], DType::BF16, false, false)
    else {
        unreachable!()
    };
    q.offset += 2;
    refused(OpKind::Attention { q, k, v, heads, scale, causal, bias, out });
    refused(conv([40_000, 1, 1], [8, 8], DType::BF16));
    refused(conv([8, 8, 3], [8, 8], DType::BF16));
}

#[test]
fn hopper_has_kernels_of_its_own() {
    let variant = |kind: OpKind<Mat, Mat>| {
        let tasks = made(kind, OWN);
        let launched = Arch::Sm90a.variant(launch(&tasks[tasks.len() - 1]).clone());
        assert_eq!(kernels()[launched.kernel].fault(&launched), None, "{launched:?}");
        (launched.kernel, launched.grid[0])
    };
    for (m, n, kernel, blocks) in [
        // The fastest of the measured ones.
        (4608, 9216, "gemm_192x256", 24 * 36),
        (4608, 3072, "gemm_128x256", 36 * 12),
        (4096, 3072, "gemm_192x256", 22 * 12),
        (512, 12288, "gemm_128x256", 4 * 48),
        (512, 9216, "gemm_192x256", 3 * 36),
        (512, 3072, "gemm_128x128", 4 * 24),
        (100_000, 128, "gemm_128x128", 782),
        (1, 3072, "gemm_16x32", 96),
    ] {
        let kind = linear(layer(m, n, 3072), Activation::None, None);
        assert_eq!(variant(kind.clone()), (kernel, blocks));
        let plain = launch(&made(kind, OWN)[0]).clone();
        assert_eq!(Arch::Sm80.variant(plain.clone()), plain);
    }
    let kind = conv([256, 256, 2], [512, 512], DType::BF16);
    assert_eq!(variant(kind), ("conv_192x256", 1366 * 2));
    assert_eq!(variant(conv([256, 256, 1], [512, 512], DType::BF16)), ("conv_128x256", 1024));
    assert_eq!(variant(conv([256, 256, 1], [256, 128], DType::BF16)), ("conv_128x128", 512));
    let kind = attention([4608, 4608], [24, 128], DType::BF16, false, false);
    assert_eq!(variant(kind), ("attention_128_hopper", 36));
}
