//! Norms, elementwise ops and lookups against a plain reference in double precision.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]
#![allow(missing_docs)]

mod common;

use std::sync::Mutex;

use common::{Lab, Outcome, bound, rounded, run_all};
use half::f16;
use plimsoll_device::cpu::CpuDevice;
use plimsoll_device::{
    Control, Device, DeviceError, HostDType, HostTable, Mat, OutputBuffer, Program, Region,
};
use plimsoll_graph::{Activation, DType, InputId, Norm, OpKind, OutputId, TableId};

const TYPES: [DType; 2] = [DType::F32, DType::BF16];
const SHAPES: [(u64, u64); 5] = [(1, 1), (7, 33), (96, 192), (300, 520), (3, 9001)];

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}

/// All elements of a result by row and column.
fn table(rows: u64, cols: u64, mut value: impl FnMut(u64, u64) -> f64) -> Vec<f64> {
    (0..rows)
        .flat_map(|row| (0..cols).map(move |col| (row, col)))
        .map(|(r, c)| value(r, c))
        .collect()
}

#[test]
fn elementwise_ops_are_right() {
    for (seed, (rows, cols)) in SHAPES.into_iter().enumerate() {
        for dtype in TYPES {
            let mut lab = Lab::new(seed as u64);
            let a_values = lab.random.values(rows * cols, 6.0, 0.0);
            let a = lab.tensor(rows, cols, dtype, a_values);
            let b = lab.random(rows, cols, dtype);
            let row = lab.random(1, cols, DType::F32);
            let weight = lab.random(rows + 2, cols, DType::BF16);
            let out = lab.empty(rows, cols, dtype);
            let check = |what: &str, kind, reference: &dyn Fn(u64, u64) -> f64| {
                let target = if what.ends_with("in place") { &a } else { &out };
                let outcome = lab.run(kind, target, 2);
                outcome.check(what, &table(rows, cols, reference), dtype);
            };
            for (name, place) in [("", out.mat), (" in place", a.mat)] {
                let kind = OpKind::Add { a: a.mat, b: b.mat, out: place };
                check(&format!("add{name}"), kind, &|r, c| a.at(r, c) + b.at(r, c));
                let kind = OpKind::Add { a: a.mat, b: row.mat, out: place };
                check(&format!("add row{name}"), kind, &|r, c| a.at(r, c) + row.at(0, c));
                let kind = OpKind::AddWeight { a: a.mat, weight: weight.mat, out: place };
                check(&format!("add weight{name}"), kind, &|r, c| a.at(r, c) + weight.at(r, c));
                for activation in [
                    Activation::None,
                    Activation::Silu,
                    Activation::GeluTanh,
                    Activation::QuickGelu,
                ] {
                    let kind = OpKind::Activate { x: a.mat, activation, out: place };
                    check(&format!("{activation:?}{name}"), kind, &|r, c| {
                        let x = a.at(r, c);
                        match activation {
                            Activation::None => x,
                            Activation::Silu => x * sigmoid(x),
                            Activation::GeluTanh => gelu(x),
                            Activation::QuickGelu => x * sigmoid(1.702 * x),
                        }
                    });
                }
            }
            let mut lab = Lab::new(seed as u64 + 50);
            let x_values = lab.random.values(rows * 2 * cols, 4.0, 0.0);
            let x = lab.tensor(rows, 2 * cols, dtype, x_values);
            let out = lab.empty(rows, cols, dtype);
            let outcome = lab.run(OpKind::GluGelu { x: x.mat, out: out.mat }, &out, 2);
            let reference = table(rows, cols, |r, c| gelu(x.at(r, c)) * x.at(r, cols + c));
            outcome.check("glu", &reference, dtype);
            for target in TYPES {
                let out = lab.empty(rows, cols, target);
                let kind = OpKind::Copy { x: x.cols(cols, cols), out: out.mat };
                let outcome = lab.run(kind, &out, 2);
                let reference = table(rows, cols, |r, c| rounded(x.at(r, cols + c), target));
                assert_eq!(outcome.values, reference, "a copy rounds once");
            }
        }
    }
}

#[test]
fn euler_updates_in_single_precision() {
    let mut lab = Lab::new(3);
    let latent = lab.random(64, 64, DType::F32);
    let velocity = lab.random(64, 64, DType::BF16);
    let dsigma = lab.tensor(1, 1, DType::F32, vec![-0.125]);
    let kind = OpKind::Euler { latent: latent.mat, velocity: velocity.mat, dsigma: dsigma.mat };
    let outcome = lab.run(kind, &latent, 2);
    let reference = table(64, 64, |r, c| latent.at(r, c) - 0.125 * velocity.at(r, c));
    outcome.check("euler", &reference, DType::F32);
}

#[test]
fn norms_are_right() {
    for (seed, (rows, cols)) in SHAPES.into_iter().enumerate() {
        for dtype in TYPES {
            let mut lab = Lab::new(seed as u64 + 7);
            // A mean that is far from zero, as in a residual stream.
            let values = lab.random.values(rows * cols, 1.0, 3.0);
            let x = lab.tensor(rows, cols, dtype, values);
            let scale = lab.random(1, cols, dtype);
            let shift = lab.random(1, cols, dtype);
            let weight = lab.random(1, cols, DType::BF16);
            let bias = lab.random(1, cols, DType::F32);
            let eps = 1e-5f32;
            let mean = |r: u64| (0..cols).map(|c| x.at(r, c)).sum::<f64>() / cols as f64;
            let normal: Vec<f64> = (0..rows)
                .flat_map(|r| {
                    let mean = mean(r);
                    let variance =
                        (0..cols).map(|c| (x.at(r, c) - mean).powi(2)).sum::<f64>() / cols as f64;
                    let deviation = (variance + f64::from(eps)).sqrt();
                    (0..cols).map(|c| (x.at(r, c) - mean) / deviation).collect::<Vec<_>>()
                })
                .collect();
            let normal_at = |r: u64, c: u64| normal[(r * cols + c) as usize];
            for in_place in [false, true] {
                let out = if in_place { x.clone() } else { lab.empty(rows, cols, dtype) };
                let norm = Norm::LayerModulated { eps, scale: scale.mat, shift: shift.mat };
                let outcome = lab.run(OpKind::Norm { x: x.mat, norm, out: out.mat }, &out, 2);
                let reference = table(rows, cols, |r, c| {
                    normal_at(r, c) * (1.0 + scale.at(0, c)) + shift.at(0, c)
                });
                outcome.check("modulated norm", &reference, dtype);
                let norm = Norm::LayerAffine { eps, weight: weight.mat, bias: bias.mat };
                let outcome = lab.run(OpKind::Norm { x: x.mat, norm, out: out.mat }, &out, 2);
                let reference =
                    table(rows, cols, |r, c| normal_at(r, c) * weight.at(0, c) + bias.at(0, c));
                outcome.check("affine norm", &reference, dtype);
                let norm = Norm::Rms { eps, weight: weight.mat };
                let outcome = lab.run(OpKind::Norm { x: x.mat, norm, out: out.mat }, &out, 2);
                let reference = table(rows, cols, |r, c| {
                    let square = (0..cols).map(|c| x.at(r, c).powi(2)).sum::<f64>() / cols as f64;
                    let normal = x.at(r, c) / (square + f64::from(eps)).sqrt();
                    rounded(normal, dtype) * weight.at(0, c)
                });
                let limit = if dtype == DType::BF16 { 3e-3 } else { 2e-6 };
                check_l2(&outcome, &reference, limit);
            }
        }
    }
}

/// Where a value is rounded twice, an element may be off by a unit of the coarser type; few are.
fn check_l2(outcome: &Outcome, reference: &[f64], limit: f64) {
    let error: f64 = outcome.values.iter().zip(reference).map(|(a, b)| (a - b).powi(2)).sum();
    let square: f64 = reference.iter().map(|value| value * value).sum();
    assert!((error / square).sqrt() <= limit, "relative L2 {:e}", (error / square).sqrt());
    outcome.check_high_water();
}

#[test]
fn head_norm_and_rope_are_right() {
    for (seed, (rows, heads, head_dim)) in
        [(1, 1, 2), (96, 3, 64), (33, 5, 6), (40, 2, 128)].into_iter().enumerate()
    {
        for dtype in TYPES {
            let mut lab = Lab::new(seed as u64 + 30);
            let cols = heads * head_dim;
            let qkv = lab.random(rows, 3 * cols, dtype);
            let q_weight = lab.random(1, head_dim, DType::BF16);
            let k_weight = lab.random(1, head_dim, DType::BF16);
            let angles = lab.random.values(rows * head_dim / 2, 3.0, 0.0);
            let half = (head_dim / 2) as usize;
            let rope_values = angles
                .chunks(half)
                .flat_map(|row| row.iter().map(|a| a.cos()).chain(row.iter().map(|a| a.sin())))
                .collect();
            let rope = lab.tensor(rows, head_dim, DType::F32, rope_values);
            let eps = 1e-6f32;
            let kind = OpKind::QkNormRope {
                q: qkv.cols(0, cols),
                k: qkv.cols(cols, cols),
                q_weight: q_weight.mat,
                k_weight: k_weight.mat,
                rope: rope.mat,
                heads,
                eps,
            };
            let outcome = lab.run(kind, &qkv, 2);
            let reference = table(rows, 3 * cols, |row, col| {
                if col >= 2 * cols {
                    return qkv.at(row, col);
                }
                let weight = if col < cols { &q_weight } else { &k_weight };
                let head = col / head_dim * head_dim;
                let square = (0..head_dim).map(|d| qkv.at(row, head + d).powi(2)).sum::<f64>();
                let scale = 1.0 / (square / head_dim as f64 + f64::from(eps)).sqrt();
                let d = col - head;
                let normal = |d: u64| qkv.at(row, head + d) * scale * weight.at(0, d);
                let (cos, sin) = (rope.at(row, d / 2), rope.at(row, head_dim / 2 + d / 2));
                if d % 2 == 0 {
                    cos * normal(d) - sin * normal(d + 1)
                } else {
                    sin * normal(d - 1) + cos * normal(d)
                }
            });
            outcome.check("head norm and rope", &reference, dtype);
        }
    }
}

#[test]
fn group_norm_is_right() {
    for (seed, (pixels, channels, groups)) in
        [(1, 32, 32), (256, 96, 32), (5000, 64, 32), (333, 70, 7), (100, 6, 1)]
            .into_iter()
            .enumerate()
    {
        for dtype in TYPES {
            for (silu, in_place) in [(false, false), (true, true)] {
                let mut lab = Lab::new(seed as u64 + 60);
                let values = lab.random.values(pixels * channels, 1.0, 20.0);
                let x = lab.tensor(pixels, channels, dtype, values);
                let weight = lab.random(1, channels, DType::BF16);
                let bias = lab.random(1, channels, DType::BF16);
                let out = if in_place { x.clone() } else { lab.empty(pixels, channels, dtype) };
                let eps = 1e-6f32;
                let kind = OpKind::GroupNorm {
                    x: x.mat,
                    weight: weight.mat,
                    bias: bias.mat,
                    groups,
                    eps,
                    silu,
                    out: out.mat,
                };
                let outcome = lab.run(kind, &out, 2);
                let width = channels / groups;
                let statistics: Vec<(f64, f64)> = (0..groups)
                    .map(|group| {
                        let all = table(pixels, width, |r, c| x.at(r, group * width + c));
                        let mean = all.iter().sum::<f64>() / all.len() as f64;
                        let square = all.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
                        (mean, 1.0 / (square / all.len() as f64 + f64::from(eps)).sqrt())
                    })
                    .collect();
                let reference = table(pixels, channels, |r, c| {
                    let (mean, deviation) = statistics[(c / width) as usize];
                    let value = (x.at(r, c) - mean) * deviation * weight.at(0, c) + bias.at(0, c);
                    if silu { value * sigmoid(value) } else { value }
                });
                // The mean is subtracted in single precision: one unit of 20 is 2e-6.
                check_l2(&outcome, &reference, if dtype == DType::BF16 { 3e-3 } else { 3e-6 });
            }
        }
    }
}

#[test]
fn sinusoid_is_cosines_then_sines() {
    let mut lab = Lab::new(9);
    let times = vec![0.0, 1.0, 0.5, 0.017_321, 3.5];
    let x = lab.tensor(5, 1, DType::F32, times);
    let out = lab.empty(5, 256, DType::F32);
    let outcome = lab.run(OpKind::Sinusoid { x: x.mat, out: out.mat }, &out, 1);
    let reference = table(5, 256, |r, c| {
        let k = (c % 128) as f32;
        // Rounded where diffusers rounds.
        let frequency = f64::from(-(10_000f64.ln() as f32) * k / 128.0).exp() as f32;
        let angle = f64::from(1000.0 * x.at(r, 0) as f32 * frequency);
        if c < 128 { angle.cos() } else { angle.sin() }
    });
    outcome.check("sinusoid", &reference, DType::F32);
}

#[test]
fn lookups_are_exact() {
    let mut lab = Lab::new(4);
    let x = lab.random(9, 37, DType::BF16);
    for (index, row) in [(0.0, 0), (8.0, 8), (4_000_000_000.0, 8)] {
        let index = lab.tensor(1, 1, DType::U32, vec![index]);
        let out = lab.empty(1, 37, DType::BF16);
        let kind = OpKind::SelectRow { x: x.mat, index: index.mat, out: out.mat };
        assert_eq!(lab.run(kind, &out, 1).values, table(1, 37, |_, c| x.at(row, c)));
    }
    let weight = lab.random(32, 4, DType::BF16);
    let buckets: Vec<f64> = (0..61).map(|r| f64::from(r % 32)).collect();
    let bucket_tensor = lab.tensor(61, 1, DType::U32, buckets.clone());
    let out = lab.empty(4, 61, DType::F32);
    let kind = OpKind::ExpandBias { weight: weight.mat, buckets: bucket_tensor.mat, out: out.mat };
    let reference = table(4, 61, |h, r| weight.at(buckets[r as usize] as u64, h));
    assert_eq!(lab.run(kind, &out, 1).values, reference);
    let tokens = lab.random(6, 12, DType::F32);
    let out = lab.empty(24, 3, DType::F32);
    let kind = OpKind::Unpatchify {
        x: tokens.mat,
        height: 4,
        width: 6,
        scale: 1.5,
        shift: 0.25,
        out: out.mat,
    };
    let reference = table(24, 3, |pixel, c| {
        let (y, x) = (pixel / 6, pixel % 6);
        tokens.at(y / 2 * 3 + x / 2, c * 4 + y % 2 * 2 + x % 2) / 1.5 + 0.25
    });
    lab.run(kind, &out, 1).check("unpatchify", &reference, DType::F32);
}

/// Runs a gather from a table of halves in two pieces, then hands the result back.
fn gather(ids: &[u32], rows: u64) -> Result<Vec<f32>, DeviceError> {
    let cols = 300u64;
    let value = |row: u64, col: u64| (row as f32) + (col as f32) / 1024.0;
    let table_bytes: Vec<u8> = (0..rows)
        .flat_map(|row| (0..cols).flat_map(move |col| f16::from_f32(value(row, col)).to_le_bytes()))
        .collect();
    let (first, second) = table_bytes.split_at((cols * 2) as usize);
    let ids_bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let out = Mat {
        offset: 0,
        rows: ids.len() as u64,
        cols,
        stride: cols,
        dtype: DType::F32,
        step_bytes: 0,
    };
    let bytes = out.rows * cols * 4;
    let kinds = [
        OpKind::Gather { table: TableId(0), ids: InputId(0), out },
        OpKind::Output { output: OutputId(0), x: out },
    ];
    let program = Program {
        ops: kinds.into_iter().map(|kind| bound(kind, Region::default())).collect(),
        inputs: vec![&ids_bytes],
        tables: vec![HostTable { pieces: vec![first, second], dtype: HostDType::F16, rows, cols }],
        outputs: vec![OutputBuffer { bytes: Mutex::new(vec![0; bytes as usize].into()) }],
        ..Program::default()
    };
    let mut device = CpuDevice::new(bytes, 1)?;
    device.run(&program, &Control::default(), &mut |queue| run_all(queue, &program))?;
    let bytes = program.outputs[0].bytes.lock().unwrap();
    let found = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    Ok(found)
}

#[test]
fn gather_casts_and_refuses_a_row_past_the_end() {
    let found = gather(&[2, 0, 1], 3).unwrap();
    for (at, row) in [2, 0, 1].into_iter().enumerate() {
        for col in 0..300 {
            let value = f16::from_f32(row as f32 + col as f32 / 1024.0).to_f32();
            assert_eq!(found[at * 300 + col], value);
        }
    }
    let refused = gather(&[0, 3], 3).unwrap_err();
    assert!(matches!(refused, DeviceError::RowOutOfTable { row: 3, rows: 3 }), "{refused}");
}
