//! Launches of the light ops: right for the kernels they name, over all of the result, nothing but operands.

use plimsoll_device::{BoundOp, Mat};
use plimsoll_graph::{Activation, DType, Fade, Norm, Op, OpKind, TileOp};
use plimsoll_plan::Region;

use super::{gated_residual, tasks, workspace_bytes};
use crate::shape::bound_shapes;
use crate::signature::signatures;
use crate::{Arch, Arg, Launch, Task};

const WORKSPACE: u64 = 1 << 40;

/// Operands one after the other, 256-aligned.
#[derive(Default)]
struct Arena {
    end: u64,
}

impl Arena {
    fn mat(&mut self, rows: u64, cols: u64, dtype: DType) -> Mat {
        self.strided(rows, cols, cols, dtype)
    }

    fn strided(&mut self, rows: u64, cols: u64, stride: u64, dtype: DType) -> Mat {
        let offset = self.end.next_multiple_of(256);
        self.end = offset + rows * stride * dtype.bytes();
        Mat { offset, rows, cols, stride, dtype, step_bytes: 0 }
    }
}

fn bound(kind: OpKind<Mat, Mat>) -> BoundOp {
    let bytes = workspace_bytes(&bound_shapes(&kind));
    let workspace = Region { offset: WORKSPACE, bytes };
    BoundOp { op: Op { name: "op".to_owned(), kind }, workspace }
}

fn launches(kind: OpKind<Mat, Mat>) -> Vec<Launch> {
    let tasks = tasks(&bound(kind)).unwrap();
    tasks
        .into_iter()
        .map(|task| match task {
            Task::Launch(launch) => launch,
            other => panic!("{other:?}"),
        })
        .collect()
}

/// The addresses of a launch that are outside of every operand and of the scratch.
fn strays(op: &BoundOp, launch: &Launch) -> Vec<u64> {
    let mut regions = vec![op.workspace];
    op.op.for_each_view(|mat, _| regions.push(mat.region(0)));
    op.op.for_each_weight(|mat| regions.push(mat.region(0)));
    let addresses = launch.args.iter().filter_map(|arg| match arg {
        Arg::Arena(offset) => Some(*offset),
        _ => None,
    });
    addresses
        .filter(|at| !regions.iter().any(|region| region.offset <= *at && *at < region.end()))
        .collect()
}

/// Ops of every kind over types, widths and strides.
fn examples() -> Vec<OpKind<Mat, Mat>> {
    let mut ops = Vec::new();
    let sizes =
        [(1, 64, 64), (5, 48, 48), (5, 48, 56), (7, 53, 61), (77, 768, 768), (300, 4096, 9216)];
    for (rows, cols, stride) in sizes {
        for (source, target) in [
            (DType::BF16, DType::BF16),
            (DType::BF16, DType::F32),
            (DType::F32, DType::BF16),
            (DType::F32, DType::F32),
        ] {
            let arena = &mut Arena::default();
            let x = arena.strided(rows, cols, stride, source);
            let wide = arena.strided(rows, 2 * cols, 2 * stride, source);
            let row = arena.mat(1, cols, source);
            let table = arena.mat(5, cols, source);
            let moving = Mat { rows: 1, step_bytes: table.stride * source.bytes(), ..table };
            let weight = arena.mat(1, cols, DType::BF16);
            let out = arena.mat(rows, cols, target);
            ops.push(OpKind::Copy { x, out });
            ops.push(OpKind::Add { a: x, b: x, out });
            ops.push(OpKind::Add { a: x, b: row, out });
            ops.push(OpKind::AddWeight { a: x, weight: arena.mat(rows + 3, cols, source), out });
            for activation in
                [Activation::None, Activation::Silu, Activation::GeluTanh, Activation::QuickGelu]
            {
                ops.push(OpKind::Activate { x, activation, out });
            }
            ops.push(OpKind::GluGelu { x: wide, out });
            let norm = Norm::LayerModulated { eps: 1e-6, scale: moving, shift: row };
            ops.push(OpKind::Norm { x, norm, out });
            let norm = Norm::LayerAffine { eps: 1e-5, weight, bias: row };
            ops.push(OpKind::Norm { x, norm, out });
            ops.push(OpKind::Norm { x, norm: Norm::Rms { eps: 1e-6, weight }, out });
            let dsigma = Mat { step_bytes: 4, ..arena.mat(1, 1, DType::F32) };
            ops.push(OpKind::Euler { latent: out, velocity: x, dsigma });
            let column = arena.mat(rows, 1, DType::F32);
            ops.push(OpKind::Sinusoid { x: column, out: arena.mat(rows, 2 * cols, target) });
            let index = arena.mat(1, 1, DType::U32);
            ops.push(OpKind::SelectRow { x, index, out: arena.mat(1, cols, target) });
            let buckets = arena.mat(cols, 1, DType::U32);
            ops.push(OpKind::ExpandBias { weight: arena.mat(32, rows, source), buckets, out });
            if cols.is_multiple_of(16) {
                let groups = 8;
                for silu in [false, true] {
                    let [weight, bias] = [weight, row];
                    ops.push(OpKind::GroupNorm { x, weight, bias, groups, eps: 1e-6, silu, out });
                }
            }
            for head_dim in [32, 64, 128, 96, 6] {
                let heads = 3;
                let qkv = arena.mat(rows, 3 * heads * head_dim, source);
                let part = |index: u64| {
                    let cols = heads * head_dim;
                    Mat { offset: qkv.offset + index * cols * source.bytes(), cols, ..qkv }
                };
                let (q, k) = (part(0), part(1));
                let [q_weight, k_weight] = [(); 2].map(|()| arena.mat(1, head_dim, DType::BF16));
                let rope = arena.mat(rows, head_dim, DType::F32);
                ops.push(OpKind::QkNormRope { q, k, q_weight, k_weight, rope, heads, eps: 1e-6 });
            }
            let (height, width) = (6, 10);
            let x = arena.mat(height * width / 4, 4 * cols, source);
            let out = arena.mat(height * width, cols, target);
            ops.push(OpKind::Unpatchify { x, height, width, scale: 0.36, shift: 0.12, out });
            let x = arena.mat(height * width, cols, source);
            let out = arena.mat(4 * 7, cols, target);
            let crop = TileOp::Crop { x, width, top: 2, left: 3, out_width: 7, out };
            ops.extend([crop, TileOp::Clear { out }].map(OpKind::Tile));
            let tile = arena.mat(height * width, 3, DType::F32);
            let rows = Fade { skip: 1, rise: 2, fall: 0 };
            let picture = arena.strided(5, 9 * 3, 40, DType::F32);
            let (cols, out) = (Fade { skip: 0, rise: 0, fall: 4 }, picture);
            ops.push(OpKind::Tile(TileOp::Blend { tile, width, rows, cols, out }));
        }
    }
    ops
}

#[test]
fn launches_fit_the_kernels_they_name() {
    let cubins = Arch::Sm90a.cubins().iter();
    let kernels: std::collections::BTreeMap<_, _> =
        cubins.flat_map(|cubin| signatures(cubin.image)).collect();
    let mut seen = std::collections::BTreeSet::new();
    for kind in examples() {
        let op = bound(kind.clone());
        for launch in launches(kind.clone()) {
            let name = launch.kernel;
            let signature = kernels.get(name).unwrap_or_else(|| panic!("{name} does not exist"));
            assert_eq!(signature.fault(&launch), None, "{name} for {kind:?}");
            assert_eq!(strays(&op, &launch), [0u64; 0], "{name} for {kind:?}");
            let mut moves = false;
            op.op.for_each_view(|mat, _| moves |= mat.step_bytes != 0);
            let counts = launch.args.contains(&Arg::Step);
            assert!(counts == moves || op.workspace.bytes > 0, "{name}: step");
            seen.insert(name);
        }
    }
    let light = |name: &&String| {
        let files = Arch::Sm90a.cubins().iter().filter(|cubin| cubin.name.starts_with("light"));
        files.flat_map(|cubin| signatures(cubin.image)).any(|(other, _)| other == **name)
    };
    let unused: Vec<&String> =
        kernels.keys().filter(light).filter(|name| !seen.contains(name.as_str())).collect();
    // The gated residual, quantizing and unpacking are made for products, not for an op.
    let expected = [
        "gated_residual_1",
        "gated_residual_8",
        "norm_2",
        "norm_3",
        "quantize_f8_16",
        "quantize_f8_4",
        "quantize_f8_any",
        "unpack_f8_1",
        "unpack_f8_16",
    ];
    assert_eq!(unused, expected);
}

/// Threads of a launch, which compute `width` elements each, are enough and not a block too many.
fn covers(launch: &Launch, width: u64, elements: u64) -> bool {
    let threads = |blocks: u32| u64::from(blocks) * u64::from(launch.block[0]) * width;
    threads(launch.grid[0]) >= elements && threads(launch.grid[0] - 1) < elements
}

#[test]
fn grids_cover_results() {
    for kind in examples() {
        for launch in launches(kind.clone()) {
            let width = if launch.kernel.ends_with("_8") { 8 } else { 1 };
            let covered = match &kind {
                OpKind::Copy { out, .. }
                | OpKind::Add { out, .. }
                | OpKind::AddWeight { out, .. }
                | OpKind::Activate { out, .. }
                | OpKind::GluGelu { out, .. }
                | OpKind::Euler { latent: out, .. }
                | OpKind::Unpatchify { out, .. }
                | OpKind::Tile(
                    TileOp::Clear { out } | TileOp::Crop { out, .. } | TileOp::Blend { out, .. },
                )
                | OpKind::ExpandBias { out, .. }
                | OpKind::SelectRow { out, .. } => covers(&launch, width, out.rows * out.cols),
                OpKind::Sinusoid { out, .. } => covers(&launch, 1, out.rows * out.cols / 2),
                OpKind::QkNormRope { q, .. } if launch.kernel == "qk_norm_rope_any" => {
                    launch.grid[1] == 2 && covers(&launch, 1, q.rows * 3 * 32)
                }
                OpKind::QkNormRope { q, .. } => covers(&launch, 8, q.rows * q.cols),
                OpKind::Norm { out, .. } => u64::from(launch.grid[0]) == out.rows,
                _ => true,
            };
            assert!(covered, "{} for {kind:?}", launch.kernel);
        }
    }
}

#[test]
fn tiles_outside_of_their_pictures_are_refused() {
    let arena = &mut Arena::default();
    let x = arena.mat(8 * 8, 3, DType::F32);
    let out = arena.mat(4 * 4, 3, DType::F32);
    let crop = |width, top, left| {
        let op = TileOp::Crop { x, width, top, left, out_width: 4, out };
        tasks(&bound(OpKind::Tile(op))).is_ok()
    };
    assert!(crop(8, 4, 4));
    assert!(!crop(8, 5, 4) && !crop(8, 4, 5) && !crop(7, 0, 0) && !crop(0, 0, 0));
    let picture = |dtype| arena.mat(4, 12, dtype);
    let [wide, narrow] = [DType::F32, DType::BF16].map(picture);
    let blend = |out, skip, rise| {
        let fade = Fade { skip, rise, fall: 2 };
        let op = TileOp::Blend { tile: x, width: 8, rows: fade, cols: fade, out };
        tasks(&bound(OpKind::Tile(op))).is_ok()
    };
    assert!(blend(wide, 4, 2));
    assert!(!blend(wide, 5, 2) && !blend(wide, 4, 3) && !blend(narrow, 4, 2));
}

#[test]
fn group_norm_cuts_all_pixels_and_keeps_its_scratch_apart() {
    for (pixels, channels, groups) in
        [(1, 64, 32), (16_384, 512, 32), (1 << 20, 128, 32), (1 << 20, 256, 32), (999, 6, 3)]
    {
        let arena = &mut Arena::default();
        let x = arena.mat(pixels, channels, DType::BF16);
        let [weight, bias] = [(); 2].map(|()| arena.mat(1, channels, DType::BF16));
        let kind = OpKind::GroupNorm { x, weight, bias, groups, eps: 1e-6, silu: true, out: x };
        let op = bound(kind.clone());
        let [sums, statistics, apply] = launches(kind).try_into().unwrap();
        let number = |launch: &Launch, at: usize| match launch.args[at] {
            Arg::U32(value) => u64::from(value),
            other => panic!("{other:?}"),
        };
        // Blocks times pixels of a chunk, by the kernels' parameters.
        for (launch, chunk) in [(&sums, number(&sums, 7)), (&apply, number(&apply, 16))] {
            let blocks = u64::from(launch.grid[0]);
            assert!(chunk * blocks >= pixels && chunk * (blocks - 1) < pixels, "{launch:?}");
        }
        assert_eq!(number(&statistics, 8), u64::from(sums.grid[0]));
        let scratch = [&sums.args[3], &statistics.args[3], &statistics.args[4], &apply.args[12]];
        let end_of_sums = WORKSPACE + u64::from(sums.grid[0]) * groups * 8;
        let expected = [WORKSPACE, WORKSPACE, end_of_sums, end_of_sums].map(Arg::Arena);
        assert_eq!(scratch.map(|arg| *arg), expected);
        assert_eq!(op.workspace.end(), end_of_sums + groups * 8);
        assert!(op.workspace.bytes <= 512 * groups * 8 + groups * 8);
    }
}

#[test]
fn vectors_only_where_all_is_aligned() {
    let kernel = |x: Mat, out: Mat| launches(OpKind::Copy { x, out })[0].kernel;
    let arena = &mut Arena::default();
    let plain = arena.mat(4, 64, DType::BF16);
    let out = arena.mat(4, 64, DType::F32);
    assert_eq!(kernel(plain, out), "copy_8");
    assert_eq!(kernel(Mat { offset: plain.offset + 16, ..plain }, out), "copy_8");
    for odd in [
        Mat { offset: plain.offset + 2, ..plain },
        Mat { stride: 68, ..plain },
        Mat { step_bytes: 132, ..plain },
    ] {
        assert_eq!(kernel(odd, out), "copy_1", "{odd:?}");
    }
    // A row that is alone must not be computed otherwise than among others.
    let norm = |x: Mat| {
        let weight = Arena { end: 1 << 30 }.mat(1, 64, DType::BF16);
        let norm = Norm::Rms { eps: 1e-6, weight };
        launches(OpKind::Norm { x, norm, out: Mat { stride: x.stride, ..x } })[0].kernel
    };
    let odd = Mat { stride: 68, ..plain };
    assert_eq!(norm(odd), "norm_wide_1");
    assert_eq!(norm(Mat { rows: 1, ..odd }), "norm_wide_1");
    assert_eq!(norm(Mat { rows: 1, ..plain }), norm(plain));
}

#[test]
fn norms_take_the_narrowest_kernel_that_holds_a_row() {
    let kernel = |cols: u64, dtype: DType| {
        let arena = &mut Arena::default();
        let [x, out] = [(); 2].map(|()| arena.mat(3, cols, dtype));
        let weight = arena.mat(1, cols, DType::BF16);
        launches(OpKind::Norm { x, norm: Norm::Rms { eps: 1e-6, weight }, out })[0].kernel
    };
    for (cols, expected) in [
        (768, "norm_1"),
        (1024, "norm_1"),
        (1032, "norm_2"),
        (3072, "norm_3"),
        (4096, "norm_4"),
        (4104, "norm_wide_8"),
        (18_432, "norm_wide_8"),
        (333, "norm_wide_1"),
    ] {
        assert_eq!(kernel(cols, DType::BF16), expected, "{cols}");
    }
    assert_eq!(kernel(768, DType::F32), "norm_wide_8");
}

#[test]
fn a_gated_residual_reads_its_gate_at_the_step() {
    let arena = &mut Arena::default();
    let x = arena.strided(4, 64, 192, DType::BF16);
    let base = arena.mat(4, 64, DType::BF16);
    let gate = Mat { step_bytes: 128, ..arena.mat(1, 64, DType::BF16) };
    let with = gated_residual("op", &base, &x, Some(&gate), &base).unwrap();
    assert_eq!(with.kernel, "gated_residual_8");
    assert_eq!(with.args[6..9], [Arg::Arena(gate.offset), Arg::U32(64), Arg::U32(128)]);
    assert_eq!(with.args.last(), Some(&Arg::Step));
    let without = gated_residual("op", &base, &x, None, &base).unwrap();
    assert_eq!(without.args[6], Arg::Null);
    assert_eq!(without.args.last(), Some(&Arg::Null));
    assert_eq!(with.args.len(), without.args.len());
}

#[test]
fn what_no_kernel_takes_is_refused() {
    let arena = &mut Arena::default();
    let x = arena.mat(4, 64, DType::BF16);
    let other = arena.mat(4, 32, DType::BF16);
    let indices = arena.mat(4, 64, DType::U32);
    let weight = arena.mat(1, 64, DType::BF16);
    let huge = Mat { rows: 1 << 34, cols: 64, stride: 64, ..x };
    let rope = arena.mat(4, 21, DType::F32);
    let narrow = arena.mat(1, 21, DType::BF16);
    let q = arena.mat(4, 63, DType::BF16);
    let (heads, eps, silu) = (3, 1e-6, false);
    let (q_weight, k_weight) = (narrow, narrow);
    for kind in [
        OpKind::Copy { x, out: indices },
        OpKind::Copy { x, out: other },
        OpKind::Copy { x: huge, out: huge },
        OpKind::Add { a: x, b: indices, out: x },
        OpKind::Add { a: x, b: Mat { rows: 2, ..x }, out: x },
        OpKind::AddWeight { a: x, weight, out: x },
        OpKind::Activate { x: indices, activation: Activation::Silu, out: x },
        OpKind::GluGelu { x, out: x },
        OpKind::Norm { x: indices, norm: Norm::Rms { eps: 1e-6, weight }, out: x },
        OpKind::Norm { x, norm: Norm::Rms { eps: 1e-6, weight }, out: other },
        OpKind::SelectRow { x, index: weight, out: weight },
        OpKind::ExpandBias { weight: x, buckets: x, out: x },
        OpKind::QkNormRope { q, k: q, q_weight, k_weight, rope, heads, eps },
        OpKind::GroupNorm { x, weight, bias: weight, groups: 5, eps, silu, out: x },
        OpKind::GroupNorm { x, weight, bias: weight, groups: 0, eps, silu, out: x },
        OpKind::Unpatchify { x, height: 4, width: 3, scale: 1.0, shift: 0.0, out: other },
    ] {
        let label = kind.label();
        let error = tasks(&bound(kind)).unwrap_err().to_string();
        assert!(error.ends_with("has no CUDA kernel"), "{label}: {error}");
    }
    let mut small =
        bound(OpKind::GroupNorm { x, weight, bias: weight, groups: 4, eps, silu, out: x });
    small.workspace.bytes -= 1;
    assert!(tasks(&small).is_err());
}
