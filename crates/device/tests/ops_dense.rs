//! Linear, attention and convolution against a plain reference in double precision.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]
#![allow(missing_docs)]

mod common;

use common::{Lab, Tensor};
use plimsoll_device::Mat;
use plimsoll_graph::{Activation, DType, OpKind, RelativeBias, Residual};
use plimsoll_weights::{f8_decode, f8_scale};

fn activated(activation: Activation, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match activation {
        Activation::None => x,
        Activation::Silu => x * sigmoid(x),
        Activation::GeluTanh => {
            0.5 * x
                * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
        Activation::QuickGelu => x * sigmoid(1.702 * x),
    }
}

struct LinearCase {
    rows: u64,
    n: u64,
    k: u64,
    dtype: DType,
    weight_dtype: DType,
    activation: Activation,
    has_bias: bool,
    /// None, without gate, with gate; in place where there is one.
    residual: Option<bool>,
    /// Columns around the operands in their tensors.
    margin: u64,
}

fn linear(case: &LinearCase, seed: u64) -> f64 {
    let LinearCase { rows, n, k, dtype, weight_dtype, activation, has_bias, residual, margin } =
        *case;
    let mut lab = Lab::new(seed);
    let x = lab.random(rows, k + margin, dtype);
    let weight_values = lab.random.values(n * k, 1.7 / (k as f64).sqrt(), 0.0);
    let weight = lab.tensor(n, k, weight_dtype, weight_values);
    let bias = has_bias.then(|| lab.random(1, n, weight_dtype));
    let gate = lab.random(1, n, dtype);
    let out = match residual {
        Some(_) => lab.random(rows, n + margin, dtype),
        None => lab.empty(rows, n + margin, dtype),
    };
    let view = out.cols(margin, n);
    let kind = OpKind::Linear {
        x: x.cols(margin, k),
        weight: weight.mat,
        weight_scale: None,
        bias: bias.as_ref().map(|bias| bias.mat),
        activation,
        residual: residual.map(|gated| Residual { base: view, gate: gated.then_some(gate.mat) }),
        out: view,
    };
    let outcome = lab.run(kind, &out, 2);
    let mut reference = Vec::new();
    let mut found = Vec::new();
    for row in 0..rows {
        for col in 0..n {
            let mut sum: f64 = (0..k).map(|p| x.at(row, margin + p) * weight.at(col, p)).sum();
            sum += bias.as_ref().map_or(0.0, |bias| bias.at(0, col));
            let mut value = activated(activation, sum);
            if let Some(gated) = residual {
                let gate = if gated { gate.at(0, col) } else { 1.0 };
                value = out.at(row, margin + col) + gate * value;
            }
            reference.push(value);
            found.push(outcome.values[(row * (n + margin) + margin + col) as usize]);
        }
        for col in 0..margin {
            let value = outcome.values[(row * (n + margin) + col) as usize];
            let before = out.at(row, col);
            assert!(value == before || (value.is_nan() && before.is_nan()), "margin was written");
        }
    }
    let what = format!("linear {rows}x{k} to {n}, {dtype:?}/{weight_dtype:?}, margin {margin}");
    common::Outcome { values: found, ..outcome }.check(&what, &reference, dtype)
}

#[test]
fn linear_is_right() {
    let plain = LinearCase {
        rows: 96,
        n: 576,
        k: 192,
        dtype: DType::F32,
        weight_dtype: DType::BF16,
        activation: Activation::None,
        has_bias: true,
        residual: None,
        margin: 0,
    };
    let error = linear(&plain, 1);
    println!("96x192 to 576: relative L2 {error:.2e}");
    let shapes =
        [(1, 1, 1), (1, 300, 17), (2, 5, 3), (17, 33, 65), (50, 100, 385), (200, 520, 800)];
    let mut seed = 10;
    for (rows, n, k) in shapes {
        for dtype in [DType::F32, DType::BF16] {
            for weight_dtype in [DType::F32, DType::BF16] {
                for (activation, residual, margin) in [
                    (Activation::None, None, 0),
                    (Activation::GeluTanh, None, 3),
                    (Activation::Silu, Some(false), 0),
                    (Activation::QuickGelu, Some(true), 5),
                ] {
                    let has_bias = seed % 2 == 0;
                    let case = LinearCase {
                        rows,
                        n,
                        k,
                        dtype,
                        weight_dtype,
                        activation,
                        has_bias,
                        residual,
                        margin,
                    };
                    linear(&case, seed);
                    seed += 1;
                }
            }
        }
    }
}

struct AttentionCase {
    queries: u64,
    keys: u64,
    heads: u64,
    head_dim: u64,
    dtype: DType,
    causal: bool,
    biased: bool,
}

fn attention(case: &AttentionCase, seed: u64) {
    let AttentionCase { queries, keys, heads, head_dim, dtype, causal, biased } = *case;
    let mut lab = Lab::new(seed);
    let cols = heads * head_dim;
    // Queries, keys and values beside each other in one tensor, as in a block.
    let rows = queries.max(keys);
    let values = lab.random.values(rows * (3 * cols + 7), 1.5, 0.0);
    let qkv = lab.tensor(rows, 3 * cols + 7, dtype, values);
    let bias_values = lab.random.values(heads * (2 * queries - 1), 2.0, 0.0);
    let bias = lab.tensor(heads, 2 * queries - 1, DType::F32, bias_values);
    let out = lab.empty(queries, cols, dtype);
    let scale = 1.0 / (head_dim as f64).sqrt();
    let part = |start: u64, rows: u64| plimsoll_device::Mat { rows, ..qkv.cols(start, cols) };
    let kind = OpKind::Attention {
        q: part(0, queries),
        k: part(cols, keys),
        v: part(2 * cols + 7, keys),
        heads,
        scale: scale as f32,
        causal,
        bias: biased.then_some(RelativeBias { bias: bias.mat }),
        out: out.mat,
    };
    let outcome = lab.run(kind, &out, 2);
    let mut reference = vec![0.0; (queries * cols) as usize];
    for head in 0..heads {
        for i in 0..queries {
            let seen = if causal { i + 1 } else { keys };
            let scores: Vec<f64> = (0..seen)
                .map(|j| {
                    let dot: f64 = (0..head_dim)
                        .map(|d| {
                            qkv.at(i, head * head_dim + d) * qkv.at(j, cols + head * head_dim + d)
                        })
                        .sum();
                    let bias = if biased { bias.at(head, j + queries - 1 - i) } else { 0.0 };
                    dot * scale + bias
                })
                .collect();
            let highest = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - highest).exp()).collect();
            let total: f64 = weights.iter().sum();
            for d in 0..head_dim {
                let sum: f64 = (0..seen)
                    .map(|j| weights[j as usize] * qkv.at(j, 2 * cols + 7 + head * head_dim + d))
                    .sum();
                reference[(i * cols + head * head_dim + d) as usize] = sum / total;
            }
        }
    }
    let what = format!("attention {queries}x{keys}, {heads} heads of {head_dim}, {dtype:?}");
    outcome.check(&what, &reference, dtype);
}

#[test]
fn attention_is_right() {
    let mut seed = 100;
    for dtype in [DType::F32, DType::BF16] {
        for (queries, keys, heads, head_dim) in [
            (96, 96, 3, 64),
            (1, 1, 1, 2),
            (77, 77, 4, 32),
            (33, 200, 2, 48),
            (300, 130, 5, 6),
            (64, 70, 1, 96),
        ] {
            for (causal, biased) in [(false, false), (true, false), (false, true), (true, true)] {
                if (causal || biased) && queries != keys {
                    continue;
                }
                let case = AttentionCase { queries, keys, heads, head_dim, dtype, causal, biased };
                attention(&case, seed);
                seed += 1;
            }
        }
    }
}

struct ConvCase {
    height: u64,
    width: u64,
    upscale: u64,
    channels: u64,
    out_channels: u64,
    dtype: DType,
    weight_dtype: DType,
    /// None, apart, in place.
    residual: Option<bool>,
    /// Rows above and below that are only seen.
    margin: [u64; 2],
}

fn convolved(case: &ConvCase, x: &Tensor, weight: &Tensor, bias: &Tensor) -> Vec<f64> {
    let ConvCase { height, width, upscale, channels, out_channels, .. } = *case;
    let (rows, cols) = (height * upscale, width * upscale);
    let mut reference = Vec::new();
    for y in 0..rows {
        for x_at in 0..cols {
            for o in 0..out_channels {
                let mut sum = bias.at(0, o);
                for ky in 0..3 {
                    for kx in 0..3 {
                        let (Some(sy), Some(sx)) =
                            ((y + ky).checked_sub(1), (x_at + kx).checked_sub(1))
                        else {
                            continue;
                        };
                        if sy >= rows || sx >= cols {
                            continue;
                        }
                        let pixel = (sy / upscale) * width + sx / upscale;
                        for c in 0..channels {
                            sum += x.at(pixel, c) * weight.at(o, c * 9 + ky * 3 + kx);
                        }
                    }
                }
                reference.push(sum);
            }
        }
    }
    reference
}

fn conv(case: &ConvCase, seed: u64) {
    let &ConvCase { height, width, upscale, channels, out_channels, dtype, weight_dtype, .. } =
        case;
    let &ConvCase { residual, margin, .. } = case;
    let mut lab = Lab::new(seed);
    let [first, pixels] =
        [margin[0], height - margin[0] - margin[1]].map(|rows| rows * width * upscale * upscale);
    let x = lab.random(height * width, channels, dtype);
    let scale = 1.0 / (9.0 * channels as f64).sqrt();
    let weight_values = lab.random.values(out_channels * channels * 9, scale, 0.0);
    let weight = lab.tensor(out_channels, channels * 9, weight_dtype, weight_values);
    let bias = lab.random(1, out_channels, weight_dtype);
    let other = lab.random(pixels, out_channels, dtype);
    let empty = lab.empty(pixels, out_channels, dtype);
    let out = if residual == Some(true) { other.clone() } else { empty };
    let kind = OpKind::Conv3x3 {
        x: x.mat,
        height,
        width,
        upscale,
        margin,
        weight: weight.mat,
        bias: bias.mat,
        residual: residual.map(|_| other.mat),
        out: out.mat,
    };
    let outcome = lab.run(kind, &out, 2);
    let mut reference = convolved(case, &x, &weight, &bias);
    reference.drain(..(first * out_channels) as usize);
    reference.truncate((pixels * out_channels) as usize);
    if residual.is_some() {
        reference.iter_mut().zip(&other.values).for_each(|(value, base)| *value += base);
    }
    let what = format!(
        "conv {height}x{width}x{upscale}, {channels} to {out_channels}, {dtype:?} {margin:?}"
    );
    outcome.check(&what, &reference, dtype);
}

#[test]
fn conv_is_right() {
    let mut seed = 200;
    for (height, width, channels, out_channels) in [
        (16, 16, 16, 96),
        (1, 1, 1, 1),
        (5, 7, 3, 2),
        (9, 70, 33, 25),
        (3, 130, 65, 30),
        (64, 64, 32, 3),
    ] {
        for (dtype, weight_dtype) in
            [(DType::F32, DType::BF16), (DType::BF16, DType::BF16), (DType::F32, DType::F32)]
        {
            for (upscale, residual, margin) in [
                (1, None, [0, 0]),
                (2, None, [0, 0]),
                (1, Some(false), [0, 0]),
                (1, Some(true), [0, 0]),
                (1, None, [0, 1]),
                (1, Some(true), [1, 1]),
                (2, None, [1, 0]),
            ] {
                if height <= margin[0] + margin[1] {
                    continue;
                }
                let case = ConvCase {
                    height,
                    width,
                    upscale,
                    channels,
                    out_channels,
                    dtype,
                    weight_dtype,
                    residual,
                    margin,
                };
                conv(&case, seed);
                seed += 1;
            }
        }
    }
}

/// Rows of a weight in 8 bits with their scales, and what they are multiplied as.
fn narrowed(lab: &mut Lab, n: u64, k: u64) -> (Tensor, Tensor, Tensor) {
    let spread = 1.7 / (k as f64).sqrt();
    let values = lab.random.values(n * k, spread, 0.0);
    let rows: Vec<Vec<f32>> =
        values.chunks(k as usize).map(|row| row.iter().map(|v| *v as f32).collect()).collect();
    let scales: Vec<f32> = rows.iter().map(|row| f8_scale(row).unwrap()).collect();
    let stored: Vec<f64> = rows
        .iter()
        .zip(&scales)
        .flat_map(|(row, scale)| row.iter().map(move |v| f64::from(*v / *scale)))
        .collect();
    let weight = lab.tensor(n, k, DType::F8E4M3, stored);
    let scale = lab.tensor(1, n, DType::F32, scales.iter().map(|s| f64::from(*s)).collect());
    let unpacked = weight
        .values
        .iter()
        .enumerate()
        .map(|(at, value)| f64::from(*value as f32 * scales[at / k as usize]))
        .collect();
    let unpacked = lab.tensor(n, k, DType::BF16, unpacked);
    (weight, scale, unpacked)
}

#[test]
fn eight_bits_have_the_bits_of_the_bf16_weight_that_they_unpack_to() {
    for (rows, n, k) in [(1, 1, 1), (1, 300, 17), (17, 33, 65), (96, 192, 768), (200, 520, 800)] {
        for dtype in [DType::F32, DType::BF16] {
            let mut lab = Lab::new(rows * 7 + n);
            let x = lab.random(rows, k, dtype);
            let (weight, scale, unpacked) = narrowed(&mut lab, n, k);
            let bias = lab.random(1, n, DType::BF16);
            let gate = lab.random(1, n, dtype);
            let base = lab.random(rows, n, dtype);
            let out = lab.empty(rows, n, dtype);
            let kind = |weight: Mat, weight_scale: Option<Mat>| OpKind::Linear {
                x: x.mat,
                weight,
                weight_scale,
                bias: Some(bias.mat),
                activation: Activation::GeluTanh,
                residual: Some(Residual { base: base.mat, gate: Some(gate.mat) }),
                out: out.mat,
            };
            let narrow = lab.run(kind(weight.mat, Some(scale.mat)), &out, 2);
            let plain = lab.run(kind(unpacked.mat, None), &out, 1);
            assert!(narrow.values.iter().all(|value| !value.is_nan()));
            assert!(narrow.bytes == plain.bytes, "{rows}x{k} to {n}, {dtype:?}");
        }
    }
}

/// Every number there is, once in a row of its own.
#[test]
fn every_eight_bit_number_is_read_as_what_it_is() {
    let mut lab = Lab::new(1);
    let x = lab.tensor(1, 1, DType::F32, vec![1.0]);
    let codes = (0..=255u8).map(|code| f64::from(f8_decode(code)));
    let weight = lab.tensor(256, 1, DType::F8E4M3, codes.collect());
    let scale = lab.tensor(1, 256, DType::F32, vec![0.5; 256]);
    let out = lab.empty(1, 256, DType::F32);
    let kind = OpKind::Linear {
        x: x.mat,
        weight: weight.mat,
        weight_scale: Some(scale.mat),
        bias: None,
        activation: Activation::None,
        residual: None,
        out: out.mat,
    };
    let outcome = lab.run(kind, &out, 1);
    for (code, found) in (0..=255u8).zip(outcome.values) {
        let expected = f64::from(f8_decode(code)) * 0.5;
        assert!(found == expected || (found.is_nan() && expected.is_nan()), "{code:#x}: {found}");
    }
}
