//! Scalar arithmetic that vectorises and gives the same bits on every machine: no library function, no sum whose
//! order depends on the vector width. A fused multiply-add is written where one is meant (`mul_add` rounds once
//! everywhere; a processor without the instruction computes it slowly).

/// Value of a `bf16`.
#[inline(always)]
pub(crate) fn bf16_value(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Nearest `bf16`, ties to even; NaN stays NaN.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the upper half of 32 bits")]
pub(crate) fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) >> 16;
    let nan = (bits >> 16) | 0x40;
    (if value.is_nan() { nan } else { rounded }) as u16
}

/// `value` as `bf16` holds it.
#[inline(always)]
pub(crate) fn bf16_round(value: f32) -> f32 {
    bf16_value(bf16_bits(value))
}

/// `e^x`, at most 1 unit in the last place off for -87.3 <= x <= 88.3; exactly 0 below, constant above.
///
/// Source: the reduction and polynomial of Cephes' `expf`.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const LOWEST: f32 = -87.336_54;
    const HIGHEST: f32 = 88.3;
    /// 1.5 * 2^23: adding it leaves the nearest integer in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let high = if x > HIGHEST { HIGHEST } else { x };
    let bounded = if high < LOWEST { LOWEST } else { high };
    let shifted = bounded.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, bounded));
    let mut p = 1.987_569_1e-4f32;
    p = p.mul_add(r, 1.398_199_9e-3);
    p = p.mul_add(r, 8.333_452e-3);
    p = p.mul_add(r, 4.166_579_6e-2);
    p = p.mul_add(r, 1.666_666_5e-1);
    p = p.mul_add(r, 0.5);
    let value = p.mul_add(r * r, r) + 1.0;
    // The low bits of `shifted` hold `n`; the rest of them falls off the end.
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    if x < LOWEST { 0.0 } else { value * power }
}

/// `x * sigmoid(x)`.
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`, written as `x * sigmoid(2 ...)`: the same function without
/// the cancellation of `1 + tanh` for negative `x`.
#[inline(always)]
pub(crate) fn gelu_tanh(x: f32) -> f32 {
    /// `2 * sqrt(2 / pi)`.
    const SCALE: f32 = 1.595_769_1;
    x / (1.0 + exp(-SCALE * (0.044_715 * x * x).mul_add(x, x)))
}

/// `x * sigmoid(1.702 x)`.
#[inline(always)]
pub(crate) fn quick_gelu(x: f32) -> f32 {
    x / (1.0 + exp(-(1.702 * x)))
}

/// Sum of `values` in 16 running sums and a fixed order, in `f64`.
///
/// The running sums are `f32` over at most 1024 elements, so that each holds at most 64.
#[inline(always)]
pub(crate) fn sum(values: &[f32], term: impl Fn(f32) -> f32) -> f64 {
    let mut total = 0.0f64;
    for block in values.chunks(1024) {
        let mut lanes = [0.0f32; 16];
        let (whole, rest) = block.as_chunks::<16>();
        for chunk in whole {
            for (lane, value) in lanes.iter_mut().zip(chunk) {
                *lane += term(*value);
            }
        }
        for (lane, value) in lanes.iter_mut().zip(rest) {
            *lane += term(*value);
        }
        let mut wide = lanes.map(f64::from);
        for half in [8, 4, 2, 1] {
            for at in 0..half {
                wide[at] += wide[at + half];
            }
        }
        total += wide[0];
    }
    total
}

/// `1 / sqrt(x)`.
#[expect(clippy::cast_possible_truncation, reason = "rounding to single precision is meant")]
pub(crate) fn rsqrt(x: f64) -> f32 {
    (1.0 / x.sqrt()) as f32
}

/// `e^x` for |x| < 700, in double precision.
pub(crate) fn exp64(x: f64) -> f64 {
    const LN2_HIGH: f64 = 0.693_147_180_369_123_8;
    const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    let n = (x * std::f64::consts::LOG2_E).round();
    let r = (x - n * LN2_HIGH) - n * LN2_LOW;
    let mut term = 1.0;
    let mut value = 1.0;
    for k in 1..18 {
        term = term * r / f64::from(k);
        value += term;
    }
    #[expect(clippy::cast_possible_truncation, reason = "an integer below 1024")]
    let exponent = n as i64;
    value * f64::from_bits(((1023 + exponent) as u64) << 52)
}

/// Cosine and sine for |x| < 1e6, in double precision.
pub(crate) fn cos_sin64(x: f64) -> (f64, f64) {
    // Pi/2 in three parts whose products with quadrant numbers below 2^20 are exact (fdlibm's split).
    const PARTS: [f64; 3] = [
        1.570_796_326_734_125_614_17,
        6.077_100_506_303_965_976_6e-11,
        2.022_266_248_795_950_631_5e-21,
    ];
    let quadrant = (x * std::f64::consts::FRAC_2_PI).round();
    let r = ((x - quadrant * PARTS[0]) - quadrant * PARTS[1]) - quadrant * PARTS[2];
    let (mut cos, mut sin, mut term) = (1.0, r, r);
    let mut even = 1.0;
    for k in 1..12 {
        let k = f64::from(k);
        even = -even * r * r / ((2.0 * k - 1.0) * (2.0 * k));
        term = -term * r * r / ((2.0 * k) * (2.0 * k + 1.0));
        cos += even;
        sin += term;
    }
    #[expect(clippy::cast_possible_truncation, reason = "an integer below 2^20")]
    match (quadrant as i64).rem_euclid(4) {
        0 => (cos, sin),
        1 => (-sin, cos),
        2 => (-cos, -sin),
        _ => (sin, -cos),
    }
}
