//! The cases: every op, in shapes of the models and in odd ones.

use plimsoll_device::Mat;
use plimsoll_graph::DType::{self, BF16, F8E4M3, F32, U32};
use plimsoll_graph::{Activation, Fade, Norm, OpKind, RelativeBias, Residual, TileOp};

use plimsoll_weights::{f8_decode, f8_encode};

use crate::case::{Case, Maker, Tolerance};
use crate::common::rounded;

pub(crate) fn light(cases: &mut Vec<Case>, seed: &mut u64) {
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
    tiles(cases, maker);
    let mut m = maker();
    let weight = m.random(32, 64, BF16);
    let buckets = m.with(1023, 1, U32, (0..1023).map(|at| f64::from(at % 34)).collect());
    let out = m.empty(64, 1023, F32);
    let kind = OpKind::ExpandBias { weight: weight.mat, buckets: buckets.mat, out: out.mat };
    cases.push(m.case("expand_bias", Tolerance::Bits, kind, out));
}

/// A picture in tiles: bits, since every operation is one that the CPU device does in the same order.
fn tiles(cases: &mut Vec<Case>, maker: &mut impl FnMut() -> Maker) {
    for (from, to) in [(BF16, BF16), (F32, F32), (F32, BF16)] {
        for (side, tile, channels) in [(16, 8, 16), (128, 64, 16), (9, 5, 3)] {
            let mut m = maker();
            let (x, out) =
                (m.random(side * side, channels, from), m.empty(tile * tile, channels, to));
            let (top, left) = (side - tile, side / 4);
            let (width, out_width) = (side, tile);
            let op = TileOp::Crop { x: x.mat, width, top, left, out_width, out: out.mat };
            cases.push(m.case("crop", Tolerance::Bits, OpKind::Tile(op), out));
        }
        let mut m = maker();
        let out = m.empty(33, 17, to);
        let op = OpKind::Tile(TileOp::Clear { out: out.mat });
        cases.push(m.case("clear", Tolerance::Bits, op, out));
    }
    for (height, width, fade) in [(64, 64, 16), (48, 80, 12), (33, 47, 5)] {
        let mut m = maker();
        let tile = m.random(height * width, 3, F32);
        let picture = m.random(2 * height, 2 * width * 3, F32);
        let rows = Fade { skip: 3, rise: fade, fall: fade };
        let cols = Fade { skip: 5, rise: 0, fall: fade };
        let at = (7 * 2 * width + 11) * 3 * 4;
        let out = Mat {
            offset: picture.mat.offset + at,
            rows: height - 3,
            cols: (width - 5) * 3,
            ..picture.mat
        };
        let op = OpKind::Tile(TileOp::Blend { tile: tile.mat, width, rows, cols, out });
        cases.push(m.case(format!("blend {height}x{width}"), Tolerance::Bits, op, picture));
    }
}

pub(crate) fn linears(cases: &mut Vec<Case>, seed: &mut u64) {
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
                weight_scale: None,
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

/// Weights in 8 bits, in shapes that are read 16 at a time and one at a time.
pub(crate) fn narrow_linears(cases: &mut Vec<Case>, seed: &mut u64) {
    for (rows, n, k) in [
        (1, 3072, 3072),
        (77, 3072, 3072),
        (256, 9216, 3072),
        (300, 3072, 15360),
        (33, 768, 72),
        (100, 3, 128),
    ] {
        for (activation, residual) in
            [(Activation::None, None), (Activation::GeluTanh, None), (Activation::None, Some(true))]
        {
            *seed += 1;
            let mut m = Maker::new(*seed);
            let x = m.random(rows, k, BF16);
            let weight = m.scaled(n, k, F8E4M3, 448.0, 0.0);
            let spread = 1.7 / (k as f64).sqrt() / 448.0;
            let scale = m.scaled(1, n, F32, spread / 2.0, spread);
            let (bias, gate) = (m.random(1, n, BF16), m.random(1, n, BF16));
            let out = match residual {
                Some(_) => m.random(rows, n, BF16),
                None => m.empty(rows, n, BF16),
            };
            let kind = OpKind::Linear {
                x: x.mat,
                weight: weight.mat,
                weight_scale: Some(scale.mat),
                bias: Some(bias.mat),
                activation,
                residual: residual
                    .map(|gated| Residual { base: out.mat, gate: gated.then_some(gate.mat) }),
                out: out.mat,
            };
            let name = format!("linear over 8 bits {rows}x{k}->{n} {activation:?} {residual:?}");
            cases.push(m.case(name, Tolerance::Store, kind, out));
        }
    }
}

/// Layers over 8-bit weights, each with the one whose `x` is what the rows are quantized to: e4m3 by a factor of their
/// own. Scales of weights are powers of two, so that the CPU device unpacks them exactly.
pub(crate) fn narrow_products(cases: &mut Vec<(Case, Case)>) {
    let mut seed = 2900;
    for (rows, n, k, wider) in [
        (1, 3072, 3072, 0),
        (77, 9216, 3072, 0),
        (300, 3072, 15360, 0),
        (513, 256, 12288, 24),
        (33, 768, 80, 1),
        (20, 64, 16400, 0),
    ] {
        for (activation, gated) in [
            (Activation::None, None),
            (Activation::GeluTanh, None),
            (Activation::None, Some(true)),
            (Activation::None, Some(false)),
            (Activation::GeluTanh, Some(true)),
        ] {
            seed += 1;
            let make = |is_reference: bool| {
                let mut m = Maker::new(seed);
                let x = m.random(rows, k + wider, BF16);
                // A row of zeros, one of tiny numbers, and one with a number far above the others.
                let mut values = x.values.clone();
                let row = (k + wider) as usize;
                for (at, value) in values.iter_mut().enumerate() {
                    *value = match at / row {
                        3 => 0.0,
                        4 => rounded(*value * 1e-30, BF16),
                        5 if at % row == 7 => 1000.0,
                        _ => *value,
                    };
                }
                let dtype = if is_reference {
                    for part in values.chunks_mut(row) {
                        quantize(&mut part[..k as usize]);
                    }
                    F32
                } else {
                    BF16
                };
                let x = m.with(rows, k + wider, dtype, values);
                let weight = m.scaled(n, k, F8E4M3, 448.0, 0.0);
                let scale = |at: u64| 2.0f64.powi(-12 - (at % 5) as i32);
                let scale = m.with(1, n, F32, (0..n).map(scale).collect());
                let (bias, gate) = (m.random(1, n, BF16), m.random(1, n, BF16));
                let out = match gated {
                    Some(_) => m.random(rows, n, BF16),
                    None => m.empty(rows, n, BF16),
                };
                let kind = OpKind::Linear {
                    x: Mat { cols: k, ..x.mat },
                    weight: weight.mat,
                    weight_scale: Some(scale.mat),
                    bias: Some(bias.mat),
                    activation,
                    residual: gated
                        .map(|gated| Residual { base: out.mat, gate: gated.then_some(gate.mat) }),
                    out: out.mat,
                };
                let name = format!("8 bits by 8 bits {rows}x{k}->{n} {activation:?} {gated:?}");
                // Sums that stay in the tensor cores lose digits with the depth.
                let limit = if k > 8192 { 1e-2 } else { 5e-3 };
                m.case(name, Tolerance::Whole(limit), kind, out)
            };
            cases.push((make(false), make(true)));
        }
    }
}

/// What the kernels make of a row, and what that stands for.
fn quantize(row: &mut [f64]) {
    let most = row.iter().fold(0.0f32, |most, value| most.max(value.abs() as f32));
    let (factor, scale) = if most > 0.0 { (448.0 / most, most / 448.0) } else { (0.0, 0.0) };
    for value in row {
        *value = f64::from(f8_decode(f8_encode(*value as f32 * factor))) * f64::from(scale);
    }
}

pub(crate) fn attentions(cases: &mut Vec<Case>, seed: &mut u64) {
    for (queries, keys, heads, head_dim, causal, bias) in [
        (9, 9, 1, 64, false, false),
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

pub(crate) fn convs(cases: &mut Vec<Case>, seed: &mut u64) {
    for (height, width, from, to, upscale, residual, margin) in [
        (1, 1, 16, 32, 1, false, [0, 0]),
        (9, 13, 16, 512, 1, false, [0, 0]),
        (16, 24, 128, 128, 1, true, [0, 0]),
        (12, 10, 256, 256, 2, false, [0, 0]),
        (33, 31, 128, 3, 1, false, [0, 0]),
        (17, 24, 256, 128, 1, false, [0, 1]),
        (18, 24, 256, 128, 1, true, [1, 1]),
        (13, 10, 64, 256, 2, false, [1, 0]),
    ] {
        *seed += 1;
        let mut m = Maker::new(*seed);
        let x = m.random(height * width, from, BF16);
        let weight = m.scaled(to, from * 9, BF16, 1.7 / (from as f64 * 9.0).sqrt(), 0.0);
        let bias = m.random(1, to, BF16);
        let rows = height - margin.iter().sum::<u64>();
        let pixels = rows * width * upscale * upscale;
        let base = residual.then(|| m.random(pixels, to, BF16).mat);
        let out = m.empty(pixels, to, BF16);
        let kind = OpKind::Conv3x3 {
            x: x.mat,
            height,
            width,
            upscale,
            margin,
            weight: weight.mat,
            bias: bias.mat,
            residual: base,
            out: out.mat,
        };
        let name = format!("conv {height}x{width}x{from}->{to} x{upscale} {margin:?}");
        cases.push(m.case(name, Tolerance::Store, kind, out));
    }
}
