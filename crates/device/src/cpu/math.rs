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

/// Value of an 8-bit float with 4 exponent bits and no infinities, without a branch: so that it vectorises.
///
/// Exponent and mantissa get to their places in a single; the product scales them, subnormal ones too, exactly.
#[inline(always)]
pub(crate) fn f8_value(bits: u8) -> f32 {
    /// 2^120: from an exponent bias of 7 to single's.
    const REBIAS: f32 = 1.329_228e36;
    let magnitude = u32::from(bits & 0x7F);
    let sign = u32::from(bits & 0x80) << 24;
    let finite = f32::from_bits(magnitude << 20) * REBIAS;
    let value = if magnitude == 0x7F { f32::NAN } else { finite };
    f32::from_bits(value.to_bits() | sign)
}

/// Below, [`exp`] is 0.
const EXP_LOWEST: f32 = -87.336_54;

/// `e^x`, at most 1 unit in the last place off for -87.3 <= x <= 88.3; exactly 0 below, constant above.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const HIGHEST: f32 = 88.3;
    let bounded = if x > HIGHEST { HIGHEST } else { x };
    let raised = if bounded < EXP_LOWEST { EXP_LOWEST } else { bounded };
    let value = exp_within(raised);
    if x < EXP_LOWEST { 0.0 } else { value }
}

/// `e^x` for -87.3 <= x <= 88.3.
///
/// Source: the reduction and polynomial of Cephes' `expf`.
#[inline(always)]
fn exp_within(x: f32) -> f32 {
    /// 1.5 * 2^23: adding it leaves the nearest integer in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
    let mut p = 1.987_569_1e-4f32;
    p = p.mul_add(r, 1.398_199_9e-3);
    p = p.mul_add(r, 8.333_452e-3);
    p = p.mul_add(r, 4.166_579_6e-2);
    p = p.mul_add(r, 1.666_666_5e-1);
    p = p.mul_add(r, 0.5);
    let value = p.mul_add(r * r, r) + 1.0;
    // The low bits of `shifted` hold `n`; the rest of them falls off the end.
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    value * power
}

/// `1 / x` for 1 <= x <= 2^120, about 1 unit in the last place off.
///
/// A division costs as much as the rest of an activation. The guess is off by an eighth at most, and each step
/// cubes what is left.
#[inline(always)]
fn reciprocal(x: f32) -> f32 {
    let mut y = f32::from_bits(0x7EF3_11C7u32.wrapping_sub(x.to_bits()));
    for _ in 0..2 {
        let left = y.mul_add(-x, 1.0);
        y = y.mul_add(left.mul_add(left, left), y);
    }
    y
}

/// `x / (1 + e^-z)`, about 3 units in the last place off where the result is above 1e-34 of `x`.
#[inline(always)]
fn gated(x: f32, z: f32) -> f32 {
    /// Keeps `1 + e^-z` where [`reciprocal`] works.
    const MOST: f32 = 80.0;
    let high = if -z > MOST { MOST } else { -z };
    let bounded = if high < EXP_LOWEST { EXP_LOWEST } else { high };
    x * reciprocal(1.0 + exp_within(bounded))
}

/// `x * sigmoid(x)`.
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    gated(x, x)
}

/// `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`, written as `x * sigmoid(2 ...)`: the same function without
/// the cancellation of `1 + tanh` for negative `x`.
#[inline(always)]
pub(crate) fn gelu_tanh(x: f32) -> f32 {
    /// `2 * sqrt(2 / pi)`.
    const SCALE: f32 = 1.595_769;
    gated(x, SCALE * (0.044_715 * x * x).mul_add(x, x))
}

/// `x * sigmoid(1.702 x)`.
#[inline(always)]
pub(crate) fn quick_gelu(x: f32) -> f32 {
    gated(x, 1.702 * x)
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
    const PARTS: [f64; 3] =
        [1.570_796_326_734_125_6, 6.077_100_506_303_966e-11, 2.022_266_248_795_950_6e-21];
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

#[cfg(test)]
mod tests {
    use super::{bf16_bits, cos_sin64, exp, exp64, gelu_tanh, quick_gelu, reciprocal, silu};

    /// Units in the last place between a result and the truth.
    fn units(found: f32, truth: f64) -> f64 {
        let nearest = truth as f32;
        let unit =
            f64::from(f32::from_bits(nearest.abs().to_bits() + 1)) - f64::from(nearest.abs());
        (f64::from(found) - truth).abs() / unit
    }

    /// The largest error in units over every 97th float of a range.
    fn worst(from: f32, to: f32, found: fn(f32) -> f32, truth: fn(f64) -> f64) -> f64 {
        let (low, high) = (from.to_bits().min(to.to_bits()), from.to_bits().max(to.to_bits()));
        (low..high)
            .step_by(97)
            .map(f32::from_bits)
            .map(|x| units(found(x), truth(f64::from(x))))
            .fold(0.0, f64::max)
    }

    fn sigmoid(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }

    #[test]
    fn functions_are_as_exact_as_they_say() {
        for sign in [1.0f32, -1.0] {
            let all = [
                ("exp", 1.01, worst(sign * 1e-6, sign * 87.3, exp, f64::exp)),
                ("silu", 4.0, worst(sign * 1e-6, sign * 70.0, silu, |x| x * sigmoid(x))),
                // The argument's own rounding is multiplied by its size: judged where that is small.
                (
                    "quick_gelu",
                    10.0,
                    worst(sign * 1e-6, sign * 4.0, quick_gelu, |x| x * sigmoid(1.702 * x)),
                ),
                (
                    "gelu_tanh",
                    10.0,
                    worst(sign * 1e-6, sign * 2.0, gelu_tanh, |x| {
                        let inner =
                            (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                        x * sigmoid(2.0 * inner)
                    }),
                ),
            ];
            for (name, limit, error) in all {
                println!("{name} {sign:+}: {error:.2} units");
                assert!(error <= limit, "{name}: {error} units in the last place");
            }
        }
        assert!(worst(1.0, 1e36, reciprocal, |x| 1.0 / x) <= 1.5);
    }

    #[test]
    fn functions_end_well() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-88.0), 0.0);
        assert!(exp(1000.0).is_finite());
        for function in [exp, silu, gelu_tanh, quick_gelu] {
            assert!(function(f32::NAN).is_nan());
        }
        for function in [silu, gelu_tanh, quick_gelu] {
            assert_eq!(function(0.0), 0.0);
            assert_eq!(function(200.0), 200.0);
            assert!(function(-200.0).abs() < 1e-30);
        }
    }

    #[test]
    fn double_precision_is_good_to_the_last_digits() {
        for at in 0..4000 {
            let x = f64::from(at) * 0.912_345 - 10.0;
            let (cos, sin) = cos_sin64(x);
            assert!((cos - x.cos()).abs() < 4e-15 && (sin - x.sin()).abs() < 4e-15, "{x}");
            let x = x / 100.0;
            assert!((exp64(x) / x.exp() - 1.0).abs() < 1e-15, "{x}");
        }
    }

    #[test]
    fn bf16_rounds_to_nearest_even() {
        for bits in (0..=u32::MAX).step_by(7919) {
            let value = f32::from_bits(bits);
            assert_eq!(bf16_bits(value), half::bf16::from_f32(value).to_bits(), "{value}");
        }
    }
}
