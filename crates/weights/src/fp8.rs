//! 8-bit floats with 4 exponent bits ("e4m3fn"): greatest value 448, no infinities, one NaN of either sign.
//!
//! How [`pack`](crate::PACK_KEY) stores the matrices of linear layers: each row (an output channel) has a scale of its
//! own, its greatest magnitude over 448, so that the row's largest weight is the largest number there is.
//! Source of the format: OCP "8-bit Floating Point Specification" 1.0, table 1; `F8_E4M3` in safetensors.

/// The greatest number.
pub const F8_MAX: f32 = 448.0;

/// Bits of NaN, and of the magnitude alone.
const NAN: u8 = 0x7F;
/// Bits of [`F8_MAX`].
const MAX: u8 = 0x7E;
/// Smallest normal number, 2^-6.
const NORMAL_MIN: f32 = 0.015_625;
/// Numbers below [`NORMAL_MIN`] are multiples of 2^-9.
const SUBNORMAL_STEPS: f32 = 512.0;

/// The nearest 8-bit float, ties to even; what is greater than 448 becomes 448, and NaN stays NaN.
pub fn f8_encode(value: f32) -> u8 {
    let bits = value.to_bits();
    let sign = ((bits >> 24) & 0x80) as u8;
    let magnitude = f32::from_bits(bits & 0x7FFF_FFFF);
    let code = if value.is_nan() {
        NAN
    } else if magnitude >= F8_MAX {
        MAX
    } else if magnitude < NORMAL_MIN {
        // At most 8 steps, and 8 is the first normal number.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 8")]
        let steps = (magnitude * SUBNORMAL_STEPS).round_ties_even() as u8;
        steps
    } else {
        // 3 of 23 bits of mantissa stay; the exponent's bias goes from 127 to 7.
        let magnitude = magnitude.to_bits();
        let rounded = (magnitude + 0x7_FFFF + ((magnitude >> 20) & 1)) >> 20;
        (rounded - (120 << 3)) as u8
    };
    sign | code
}

/// The value of an 8-bit float; exact.
pub fn f8_decode(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3) & 0xF, f32::from(code & 7));
    let magnitude = match code & 0x7F {
        NAN => f32::NAN,
        _ if exponent == 0 => mantissa / SUBNORMAL_STEPS,
        _ => (1.0 + mantissa / 8.0) * 2.0f32.powi(exponent - 7),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The scale of a row of weights: its greatest magnitude over 448, or 1 where that is zero.
///
/// `None` where an element is NaN or infinite.
pub fn f8_scale(row: &[f32]) -> Option<f32> {
    let mut found = F8Row::default();
    found.add(row);
    found.scale()
}

/// A row whose scale is found piece by piece; see [`f8_scale`].
#[derive(Clone, Copy, Debug, Default)]
pub struct F8Row {
    most: f32,
    is_broken: bool,
}

impl F8Row {
    /// Looks at further elements.
    #[inline]
    pub fn add(&mut self, piece: &[f32]) {
        for value in piece {
            self.most = self.most.max(value.abs());
            self.is_broken |= !value.is_finite();
        }
    }

    /// The scale of all that was looked at; `None` where an element is NaN or infinite.
    pub fn scale(&self) -> Option<f32> {
        let scale = self.most / F8_MAX;
        (!self.is_broken).then_some(if scale > 0.0 { scale } else { 1.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_back() {
        for code in 0..=u8::MAX {
            let value = f8_decode(code);
            assert_eq!(value.is_nan(), code & 0x7F == 0x7F, "{code:#x}");
            assert_eq!(f8_encode(value), code, "{code:#x} is {value}");
        }
        assert_eq!((f8_decode(0x7E), f8_decode(0x08)), (448.0, 0.015_625));
        assert_eq!(f8_decode(0x01), 0.001_953_125);
    }

    /// Nearest by search over all numbers, ties to the even code.
    fn nearest(value: f32) -> u8 {
        let mut best = 0u8;
        for code in 0..=0x7Eu8 {
            let (off, least) =
                ((f8_decode(code) - value.abs()).abs(), (f8_decode(best) - value.abs()).abs());
            if off < least || (off == least && code % 2 == 0) {
                best = code;
            }
        }
        if value.is_sign_negative() { best | 0x80 } else { best }
    }

    #[test]
    fn others_go_to_the_nearest_and_saturate() {
        let mut state = 1u64;
        for _ in 0..200_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Exponents from below the subnormal numbers to above the greatest.
            let exponent = 113 + (state >> 60) as u32 + (state >> 56 & 7) as u32;
            let bits = (exponent << 23) | (state >> 20) as u32 & 0x807F_FFFF;
            let value = f32::from_bits(bits);
            assert_eq!(f8_encode(value), nearest(value), "{value:e}");
        }
        for at in 0..0x7Eu8 {
            let tie = (f8_decode(at) + f8_decode(at + 1)) / 2.0;
            assert_eq!(f8_encode(tie), nearest(tie), "between {at:#x} and the next");
        }
        for (value, code) in [
            (0.0, 0),
            (-0.0, 0x80),
            (1e-30, 0),
            (f32::MIN_POSITIVE / 8.0, 0),
            (449.0, 0x7E),
            (1e30, 0x7E),
            (f32::INFINITY, 0x7E),
            (f32::NEG_INFINITY, 0xFE),
        ] {
            assert_eq!(f8_encode(value), code, "{value}");
        }
        assert_eq!(f8_encode(f32::NAN) & 0x7F, 0x7F);
    }

    #[test]
    fn a_rows_largest_weight_is_the_largest_number() {
        assert_eq!(f8_scale(&[0.5, -3.5, 1.0]), Some(3.5 / 448.0));
        assert_eq!(f8_encode(-3.5 / f8_scale(&[0.5, -3.5]).unwrap_or(0.0)), 0xFE);
        assert_eq!(f8_scale(&[0.0, -0.0]), Some(1.0));
        assert_eq!(f8_scale(&[1e-45, 0.0]), Some(1.0), "a scale that would vanish");
        assert_eq!(f8_scale(&[1.0, f32::NAN]), None);
        assert_eq!(f8_scale(&[1.0, f32::INFINITY]), None);
    }
}
