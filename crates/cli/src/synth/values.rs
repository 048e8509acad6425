//! Normal random numbers in bf16, fast and the same on every machine.
//!
//! 16 random bits pick one of 65,536 equally likely quantiles: the distribution is normal to within the
//! rounding of bf16 but for the tails, which end at 4.3 standard deviations.

use plimsoll_weights::PIECE_BYTES;

/// Quantiles of a normal distribution, in bf16.
pub(super) struct Normal {
    table: Vec<u16>,
}

impl Normal {
    pub(super) fn new(mean: f64, deviation: f64) -> Self {
        let quantile = |at: u32| {
            let value = mean + deviation * inverse_normal((f64::from(at) + 0.5) / 65536.0);
            #[expect(clippy::cast_possible_truncation, reason = "rounding to nearest is meant")]
            let single = value as f32;
            to_bf16(single)
        };
        Self { table: (0..65536).map(quantile).collect() }
    }

    /// Fills the piece that begins at byte `offset` of the tensor with the key `key`.
    pub(super) fn fill(&self, key: u64, offset: u64, bytes: &mut [u8]) {
        debug_assert!(offset.is_multiple_of(PIECE_BYTES));
        let mut state = mix(key ^ mix(offset / PIECE_BYTES));
        for eight in bytes.chunks_mut(8) {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let random = mix(state);
            for (at, two) in eight.chunks_exact_mut(2).enumerate() {
                let index = (random >> (16 * at)) as usize & 0xffff;
                two.copy_from_slice(&self.table[index].to_le_bytes());
            }
        }
    }
}

/// The finaliser of splitmix64.
pub(super) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Rounds to nearest even; no value here is a NaN.
fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// Quantile of the standard normal distribution, to 1e-9 relative.
/// Source: the rational approximation of P. J. Acklam (2003).
fn inverse_normal(p: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969683028665376e1,
        2.209460984245205e2,
        -2.759285104469687e2,
        1.383_577_518_672_69e2,
        -3.066479806614716e1,
        2.506628277459239,
    ];
    const B: [f64; 6] = [
        -5.447609879822406e1,
        1.615858368580409e2,
        -1.556989798598866e2,
        6.680131188771972e1,
        -1.328068155288572e1,
        1.0,
    ];
    const C: [f64; 6] = [
        -7.784894002430293e-3,
        -3.223964580411365e-1,
        -2.400758277161838,
        -2.549732539343734,
        4.374664141464968,
        2.938163982698783,
    ];
    const D: [f64; 5] =
        [7.784695709041462e-3, 3.224671290700398e-1, 2.445134137142996, 3.754408661907416, 1.0];
    let horner = |terms: &[f64], x: f64| terms.iter().fold(0.0, |sum, term| sum * x + term);
    let tail = |p: f64| {
        let q = (-2.0 * p.ln()).sqrt();
        horner(&C, q) / horner(&D, q)
    };
    if p < 0.02425 {
        tail(p)
    } else if p > 1.0 - 0.02425 {
        -tail(1.0 - p)
    } else {
        let q = p - 0.5;
        let r = q * q;
        q * horner(&A, r) / horner(&B, r)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(normal: &Normal, key: u64, offset: u64, count: usize) -> Vec<f64> {
        let mut bytes = vec![0; 2 * count];
        normal.fill(key, offset, &mut bytes);
        let value =
            |two: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([two[0], two[1]])) << 16);
        bytes.chunks_exact(2).map(|two| f64::from(value(two))).collect()
    }

    #[test]
    fn mean_deviation_and_kurtosis_are_those_of_the_normal_distribution() {
        let drawn = values(&Normal::new(1.0, 0.5), 7, 0, 1 << 20);
        let moment = |power: i32| {
            drawn.iter().map(|value| ((value - 1.0) / 0.5).powi(power)).sum::<f64>()
                / drawn.len() as f64
        };
        for (power, expected, within) in
            [(1, 0.0, 0.005), (2, 1.0, 0.01), (3, 0.0, 0.02), (4, 3.0, 0.05)]
        {
            let found = moment(power);
            assert!((found - expected).abs() < within, "moment {power}: {found}");
        }
    }

    #[test]
    fn keys_and_pieces_differ_and_repeat() {
        let normal = Normal::new(0.0, 1.0);
        let one = values(&normal, 1, 0, 64);
        assert_eq!(one, values(&normal, 1, 0, 64));
        assert_ne!(one, values(&normal, 2, 0, 64));
        assert_ne!(one, values(&normal, 1, PIECE_BYTES, 64));
    }

    #[test]
    fn quantiles_match_published_ones() {
        for (p, expected) in [(0.5, 0.0), (0.975, 1.959_963_985), (0.001, -3.090_232_306)] {
            assert!((inverse_normal(p) - expected).abs() < 1e-8);
        }
    }
}
