//! Elementary functions in pure IEEE arithmetic, the same bits on every host.
//!
//! The platform's `libm` rounds `ln`, `exp`, `sin` and `cos` differently from one system to the
//! next, and neither the noise of a seed nor the rotary table nor the sigmas may depend on that.
//! Every function here uses only additions, multiplications, divisions and square roots, which are
//! exact everywhere.
//!
//! Accuracy: about one unit in the last place of f64, so that a result rounded to f32 is the
//! correctly rounded one but for a few cases in a hundred million.
//! Not here: the f32 polynomials of torch's vectorised `randn`, which are approximations on purpose
//! (`noise`).

/// A sum of two f64 values, the second below half a unit in the last place of the first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DoubleDouble {
    hi: f64,
    lo: f64,
}

/// `a + b` and its rounding error (Knuth).
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let b_part = sum - a;
    (sum, (a - (sum - b_part)) + (b - b_part))
}

/// `a * b` and its rounding error (Dekker, with Veltkamp's split), without a fused multiply-add,
/// which a host may not
/// have.
fn two_product(a: f64, b: f64) -> (f64, f64) {
    fn split(x: f64) -> (f64, f64) {
        let scaled = 134_217_729.0 * x; // 2^27 + 1
        let hi = scaled - (scaled - x);
        (hi, x - hi)
    }
    let product = a * b;
    let (a_hi, a_lo) = split(a);
    let (b_hi, b_lo) = split(b);
    let error = ((a_hi * b_hi - product) + a_hi * b_lo + a_lo * b_hi) + a_lo * b_lo;
    (product, error)
}

impl DoubleDouble {
    pub(crate) const ONE: Self = Self { hi: 1.0, lo: 0.0 };

    fn new(hi: f64, lo: f64) -> Self {
        let sum = hi + lo;
        Self { hi: sum, lo: lo - (sum - hi) }
    }

    pub(crate) fn multiply(self, other: Self) -> Self {
        let (product, error) = two_product(self.hi, other.hi);
        Self::new(product, error + (self.hi * other.lo + self.lo * other.hi))
    }

    /// `self - other`, rounded to f64: what a Newton step needs.
    fn minus(self, other: f64) -> f64 {
        let (difference, error) = two_sum(self.hi, -other);
        difference + (error + self.lo)
    }

    pub(crate) fn to_f64(self) -> f64 {
        self.hi
    }

    fn power(self, exponent: u32) -> Self {
        let (mut result, mut square, mut left) = (Self::ONE, self, exponent);
        while left > 0 {
            if left & 1 == 1 {
                result = result.multiply(square);
            }
            square = square.multiply(square);
            left >>= 1;
        }
        result
    }

    /// The `degree`-th root of `value`, to about 100 bits, by Newton's method from the f64 root.
    ///
    /// Powers of it are then exact to f64 without any transcendental function.
    pub(crate) fn root(value: f64, degree: u32) -> Self {
        assert!(value.is_finite() && value > 0.0 && degree > 0, "the root of a positive number");
        let degree_f64 = f64::from(degree);
        let mut root = Self { hi: exp(ln(value) / degree_f64), lo: 0.0 };
        for _ in 0..3 {
            let excess = root.power(degree).minus(value);
            let slope = degree_f64 * root.power(degree - 1).hi;
            let (hi, lo) = two_sum(root.hi, root.lo - excess / slope);
            root = Self { hi, lo };
        }
        root
    }
}

/// ln 2 with the last 21 bits clear, so that its product with an exponent is exact.
const LN_2_HI: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
/// ln 2 less `LN_2_HI`.
const LN_2_LO: f64 = f64::from_bits(0x3dea_39ef_3579_3c76);

/// Natural logarithm of a positive, normal, finite number; NaN otherwise, minus infinity for zero.
pub(crate) fn ln(x: f64) -> f64 {
    if x == 0.0 {
        return f64::NEG_INFINITY;
    }
    if !x.is_normal() || x < 0.0 {
        return f64::NAN;
    }
    let bits = x.to_bits();
    let mut exponent = i32::try_from(bits >> 52).unwrap_or(0) - 1023;
    let mut mantissa = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) | 0x3ff0_0000_0000_0000);
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    let f = mantissa - 1.0; // Exact: the mantissa is within a factor of two of one.
    let s = f / (2.0 + f);
    let z = s * s;
    // ln(1+f) = 2 atanh(s); the series of atanh beyond its first term, |s| <= 0.172, so 13 terms
    // reach 2^-65.
    let mut series = 0.0;
    for k in (1..14).rev() {
        series = (series + 2.0 / f64::from(2 * k + 1)) * z;
    }
    // 2s = f - s*f, and f^2/2 is split off so that the large part of the sum is exact.
    let half_square = 0.5 * f * f;
    let k = f64::from(exponent);
    let small = s * (half_square + series) + k * LN_2_LO;
    k * LN_2_HI - ((half_square - small) - f)
}

/// `e^x`, zero below -708 and infinite above 709.
pub(crate) fn exp(x: f64) -> f64 {
    if x > 709.0 {
        return f64::INFINITY;
    }
    if x < -708.0 {
        return 0.0;
    }
    let k = (x * std::f64::consts::LOG2_E).round_ties_even();
    let hi = x - k * LN_2_HI; // Exact by the choice of LN_2_HI.
    let r = hi - k * LN_2_LO;
    let r_low = (hi - r) - k * LN_2_LO;
    let mut series = 0.0;
    for n in (2..16).rev() {
        series = (series + 1.0) * r / f64::from(n);
    }
    // `series` is r/2! + r^2/3! + ..., so e^r = 1 + r + r*series.
    let mantissa = 1.0 + (r + (r * series + r_low));
    // In two factors: 2^k alone leaves the normal range at both ends.
    #[allow(clippy::cast_possible_truncation)] // |k| <= 1023 by the checks above.
    let k = k as i64;
    let half = k / 2;
    mantissa * power_of_two(half) * power_of_two(k - half)
}

fn power_of_two(exponent: i64) -> f64 {
    f64::from_bits(u64::try_from(exponent + 1023).unwrap_or(0) << 52)
}

const HALF_PI_HI: f64 = std::f64::consts::FRAC_PI_2;
const HALF_PI_LO: f64 = f64::from_bits(0x3c91_a626_3314_5c07); // pi/2 - HALF_PI_HI.

/// Sine and cosine of an angle in radians, |angle| < 2^30.
pub(crate) fn sin_cos(angle: f64) -> (f64, f64) {
    let quarter_turns = (angle * std::f64::consts::FRAC_2_PI).round_ties_even();
    let (product, error) = two_product(quarter_turns, HALF_PI_HI);
    // The first difference is nearly exact, the operands being close; the rest is far below it.
    let (difference, rounding) = two_sum(angle, -product);
    let r = difference + ((rounding - error) - quarter_turns * HALF_PI_LO);
    let z = r * r;
    let (mut sine, mut cosine) = (0.0, 0.0);
    for n in (1..10).rev() {
        let n = f64::from(n);
        sine = (1.0 + sine) * (-z / ((2.0 * n) * (2.0 * n + 1.0)));
        cosine = (1.0 + cosine) * (-z / ((2.0 * n - 1.0) * (2.0 * n)));
    }
    let (sine, cosine) = (r + r * sine, 1.0 + cosine);
    #[allow(clippy::cast_possible_truncation)] // Integral and below 2^31 by the stated range.
    match (quarter_turns as i64).rem_euclid(4) {
        0 => (sine, cosine),
        1 => (cosine, -sine),
        2 => (-sine, -cosine),
        _ => (-cosine, sine),
    }
}

/// `a * b + c` in f32 with one rounding, as a fused multiply-add instruction gives it.
///
/// The product of two f32 is exact in f64; the sum is rounded to odd there, which makes the second
/// rounding harmless (Boldo and Melquiond 2008).
/// So no host without the instruction falls back to a slow or wrong library routine.
/// Not for results that overflow or are subnormal in f32; none are in the noise.
#[inline]
pub(crate) fn fused_multiply_add(a: f32, b: f32, c: f32) -> f32 {
    let (sum, error) = two_sum(f64::from(a) * f64::from(b), f64::from(c));
    let bits = sum.to_bits();
    let sum = if error != 0.0 && bits & 1 == 0 {
        // One step toward the true value: up in magnitude if the error has the sum's sign.
        f64::from_bits(if (error > 0.0) == (sum > 0.0) { bits + 1 } else { bits - 1 })
    } else {
        sum
    };
    #[allow(clippy::cast_possible_truncation)] // This rounding is the operation.
    {
        sum as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> impl Iterator<Item = u64> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        (0..200_000).map(move |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        })
    }

    fn unit(bits: u64) -> f64 {
        (bits >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn ulps(got: f64, want: f64) -> f64 {
        (got - want).abs() / (want.abs() * f64::EPSILON).max(f64::MIN_POSITIVE)
    }

    #[test]
    fn functions_are_within_two_units_of_the_host() {
        for bits in samples() {
            let u = unit(bits);
            let x = 1.0 - u;
            assert!(ulps(ln(x), x.ln()) <= 2.0, "ln {x}");
            let x = 1e-3 + u * 1e6;
            assert!(ulps(ln(x), x.ln()) <= 2.0, "ln {x}");
            let x = (u - 0.5) * 80.0;
            assert!(ulps(exp(x), x.exp()) <= 2.0, "exp {x}");
            let x = u * 20_000.0;
            let (sine, cosine) = sin_cos(x);
            assert!((sine - x.sin()).abs() <= 2.3e-16, "sin {x}");
            assert!((cosine - x.cos()).abs() <= 2.3e-16, "cos {x}");
        }
        assert_eq!(ln(1.0), 0.0);
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(sin_cos(0.0), (0.0, 1.0));
        assert!(ln(0.0).is_infinite() && ln(-1.0).is_nan());
        assert!(exp(1e9).is_infinite() && exp(-1e9) == 0.0);
    }

    #[test]
    fn fused_multiply_add_is_the_ieee_one() {
        for bits in samples() {
            let a = f32::from_bits((bits as u32 & 0x007f_ffff) | 0x3f00_0000);
            let b = -f32::from_bits(((bits >> 23) as u32 & 0x007f_ffff) | 0x3f80_0000);
            // Addends near the product, so that cancellation and ties occur.
            for c in [a, -(a * b), b, f32::from_bits((a * b).to_bits() ^ 1), 0.5, 3.0e-6, -1.0e-9] {
                assert_eq!(
                    fused_multiply_add(a, b, c).to_bits(),
                    a.mul_add(b, c).to_bits(),
                    "{a} {b} {c}"
                );
            }
        }
    }

    #[test]
    fn powers_of_the_root_return_the_value() {
        for (value, degree) in [(10_000.0, 8), (10_000.0, 28), (256.0, 14), (1e6, 64), (2.0, 1)] {
            let root = DoubleDouble::root(value, degree);
            let relative = root.power(degree).minus(value) / value;
            assert!(relative.abs() <= 1e-29, "{value} {degree}: {relative}");
        }
    }
}
