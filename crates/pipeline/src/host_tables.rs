//! Small tables of positions and orders that the host computes once a run and hands to the device.
//!
//! They depend on sizes alone, not on weights, so they are inputs of the graph: the rotary table of
//! the transformer, the relative position buckets of T5, and the order of a latent's values as
//! tokens.
//! Computing them on the host in one place gives every device the same bits.
//!
//! Invariants: sizes are checked before anything is allocated; no table depends on the host's
//! `libm`.

use crate::error::TableError;
use crate::math::{DoubleDouble, ln, sin_cos};

/// No table of a run is longer; 2^28 values are 1 GiB of f32.
const VALUES_MAX: u64 = 1 << 28;

/// Cosines and sines of every token's rotary angles.
///
/// Shapes: `values` [tokens, head_dim] f32; a row holds head_dim / 2 cosines, then as many sines.
/// Angle j of a row turns the adjacent pair (2j, 2j + 1) of a head.
#[derive(Clone, Debug, PartialEq)]
pub struct RotaryTable {
    /// Rows.
    pub tokens: usize,
    /// Columns: the size of a head, the sum of the axes.
    pub head_dim: usize,
    /// Row-major.
    pub values: Vec<f32>,
}

impl RotaryTable {
    /// The table of tokens at given positions, one position a rotary axis.
    ///
    /// The frequency of pair j of an axis of d dimensions is `theta^(-2j / d)`.
    /// Frequencies and angles are f64 and only the results are rounded to f32, as in diffusers.
    ///
    /// # Errors
    /// [`TableError`] for an odd or empty axis, a base below 1, or a table over the cap.
    ///
    /// # Source
    /// diffusers 0.42.1 `FluxPosEmbed`, `get_1d_rotary_pos_embed`.
    pub fn new<const AXES: usize>(
        positions: &[[u32; AXES]],
        axis_dims: [u32; AXES],
        theta: f64,
    ) -> Result<Self, TableError> {
        if let Some(axis_index) = axis_dims.iter().position(|dims| *dims == 0 || dims % 2 == 1) {
            return Err(TableError::AxisOdd { axis_index, dims: axis_dims[axis_index] });
        }
        if !(theta.is_finite() && theta >= 1.0) {
            return Err(TableError::BaseOutOfRange);
        }
        let head_dim: u64 = axis_dims.iter().map(|dims| u64::from(*dims)).sum();
        let (tokens, length) =
            (positions.len(), capped("the rotary table", positions.len(), head_dim)?);
        let head_dim = usize_of(head_dim);
        let half = head_dim / 2;

        let mut values = vec![0.0; length];
        let mut column = 0;
        for (axis_index, dims) in axis_dims.iter().enumerate() {
            let frequencies = frequencies(*dims, theta);
            // Neighbours in a row of tokens share most positions; recompute on change only.
            let mut last: Option<(u32, usize)> = None;
            for (row, position) in positions.iter().map(|position| position[axis_index]).enumerate()
            {
                let start = row * head_dim + column;
                if let Some((_, source)) = last.filter(|(last, _)| *last == position) {
                    let count = frequencies.len();
                    values.copy_within(source..source + count, start);
                    values.copy_within(source + half..source + half + count, start + half);
                } else {
                    for (index, frequency) in frequencies.iter().enumerate() {
                        let (sine, cosine) = sin_cos(f64::from(position) * frequency);
                        values[start + index] = rounded(cosine);
                        values[start + half + index] = rounded(sine);
                    }
                }
                last = Some((position, start));
            }
            column += frequencies.len();
        }
        Ok(Self { tokens, head_dim, values })
    }

    /// The table of FLUX.1: `text_tokens` tokens at the origin, then the image's tokens row by row
    /// at (0, row, column).
    ///
    /// A bf16 diffusers pipeline also rounds the positions to bf16, which moves tokens on sides
    /// over 4096 pixels; that is a defect of the reference and not followed.
    ///
    /// # Errors
    /// As [`RotaryTable::new`].
    pub fn flux(
        text_tokens: u32,
        image_rows: u32,
        image_columns: u32,
        axis_dims: [u32; 3],
        theta: f64,
    ) -> Result<Self, TableError> {
        let image_tokens = u64::from(image_rows) * u64::from(image_columns);
        let count = image_tokens + u64::from(text_tokens);
        let dims: u64 = axis_dims.iter().map(|dims| u64::from(*dims)).sum();
        capped("the rotary table", usize_of(count), dims)?;
        let mut positions = vec![[0; 3]; usize_of(u64::from(text_tokens))];
        positions.extend(
            (0..image_rows).flat_map(|row| (0..image_columns).map(move |column| [0, row, column])),
        );
        Self::new(&positions, axis_dims, theta)
    }

    /// The cosines of a token, head_dim / 2 of them.
    pub fn cosines(&self, token: usize) -> &[f32] {
        &self.row(token)[..self.head_dim / 2]
    }

    /// The sines of a token, head_dim / 2 of them.
    pub fn sines(&self, token: usize) -> &[f32] {
        &self.row(token)[self.head_dim / 2..]
    }

    fn row(&self, token: usize) -> &[f32] {
        &self.values[token * self.head_dim..(token + 1) * self.head_dim]
    }
}

/// `theta^(-2j / dims)` for each pair j, as powers of one root, so that no error builds up.
fn frequencies(dims: u32, theta: f64) -> Vec<f64> {
    let root = DoubleDouble::root(theta, dims / 2);
    let mut power = DoubleDouble::ONE;
    (0..dims / 2)
        .map(|_| {
            let frequency = 1.0 / power.to_f64();
            power = power.multiply(root);
            frequency
        })
        .collect()
}

/// The bucket of each relative position of T5's attention bias.
///
/// Shapes: `[2 * tokens - 1]`; entry `key - query + tokens - 1`.
/// Half of the buckets is for keys after the query; of each half the first half is for single
/// distances, the rest widens logarithmically up to `distance_max` and then is one bucket.
/// The logarithm is taken in f32 and the bucket truncated, as in the reference.
///
/// # Errors
/// [`TableError::Buckets`] where the parameters contradict each other, [`TableError::TooLarge`].
///
/// # Source
/// transformers 5.17 `T5Attention._relative_position_bucket`, bidirectional.
pub fn t5_position_buckets(
    tokens: u32,
    bucket_count: u32,
    distance_max: u32,
) -> Result<Vec<u32>, TableError> {
    let side = bucket_count / 2;
    let exact = side / 2;
    if bucket_count % 2 == 1 || exact == 0 || distance_max <= exact || bucket_count > 1 << 16 {
        return Err(TableError::Buckets { bucket_count, distance_max });
    }
    let length = (2 * u64::from(tokens)).saturating_sub(1);
    capped("the table of relative positions", usize_of(length), 1)?;

    let span = rounded(ln(f64::from(distance_max) / f64::from(exact)));
    let one_side = |distance: u32| {
        if distance < exact {
            return distance;
        }
        #[allow(clippy::cast_precision_loss)] // Torch's own f32.
        let ratio = distance as f32 / exact as f32;
        let position = rounded(ln(f64::from(ratio))) / span * (side - exact) as f32;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Not negative.
        let wide = position as u32;
        exact.saturating_add(wide).min(side - 1)
    };
    let last = tokens.saturating_sub(1);
    let before = (1..=last).rev().map(one_side);
    let from_self_on =
        (0..=last).map(|distance| one_side(distance) + if distance > 0 { side } else { 0 });
    Ok(before.chain(from_self_on).take(usize_of(length)).collect())
}

/// The transformer's tokens of a latent: each 2 x 2 patch becomes one row.
///
/// Shapes: `latent` [channels, rows, columns] -> [rows / 2 * columns / 2, 4 * channels]; column
/// `4 * channel + 2 * dy + dx`.
///
/// # Errors
/// [`TableError::LatentMismatch`] for an odd side or another number of values.
pub fn pack_latent<T: Copy>(
    latent: &[T],
    channels: usize,
    rows: usize,
    columns: usize,
) -> Result<Vec<T>, TableError> {
    check_latent(latent.len(), channels, rows, columns)?;
    Ok(token_order(channels, rows, columns).map(|index| latent[index]).collect())
}

/// The inverse of [`pack_latent`].
///
/// # Errors
/// As [`pack_latent`].
pub fn unpack_latent<T: Copy + Default>(
    tokens: &[T],
    channels: usize,
    rows: usize,
    columns: usize,
) -> Result<Vec<T>, TableError> {
    check_latent(tokens.len(), channels, rows, columns)?;
    let mut latent = vec![T::default(); tokens.len()];
    for (value, index) in tokens.iter().zip(token_order(channels, rows, columns)) {
        latent[index] = *value;
    }
    Ok(latent)
}

/// Index into the latent of each value in token order.
fn token_order(channels: usize, rows: usize, columns: usize) -> impl Iterator<Item = usize> {
    (0..rows / 2).flat_map(move |row| {
        (0..columns / 2).flat_map(move |column| {
            (0..channels * 4).map(move |inner| {
                let (channel, dy, dx) = (inner / 4, inner / 2 % 2, inner % 2);
                (channel * rows + 2 * row + dy) * columns + 2 * column + dx
            })
        })
    })
}

fn check_latent(
    values: usize,
    channels: usize,
    rows: usize,
    columns: usize,
) -> Result<(), TableError> {
    let product = channels.checked_mul(rows).and_then(|area| area.checked_mul(columns));
    if rows.is_multiple_of(2) && columns.is_multiple_of(2) && product == Some(values) {
        Ok(())
    } else {
        Err(TableError::LatentMismatch { values, channels, rows, columns })
    }
}

/// `rows * row_len` as a length, if no more than the cap.
fn capped(what: &'static str, rows: usize, row_len: u64) -> Result<usize, TableError> {
    let values = u64::try_from(rows).unwrap_or(u64::MAX).saturating_mul(row_len);
    if values > VALUES_MAX {
        return Err(TableError::TooLarge { what, values, cap: VALUES_MAX });
    }
    Ok(usize_of(values))
}

/// Saturates where `usize` is narrower; every use is checked against a cap that fits.
fn usize_of(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

#[allow(clippy::cast_possible_truncation)] // The one rounding to f32.
fn rounded(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_not_turned_and_image_tokens_carry_row_and_column() {
        let table = RotaryTable::flux(3, 2, 5, [4, 8, 8], 10_000.0).unwrap();
        assert_eq!((table.tokens, table.head_dim), (13, 20));
        for token in 0..4 {
            // The text, and the first image token at the origin.
            assert_eq!(table.cosines(token), [1.0; 10]);
            assert_eq!(table.sines(token), [0.0; 10]);
        }
        let token = 3 + 5 + 4; // Row 1, column 4.
        assert_eq!(table.cosines(token)[..2], [1.0; 2]);
        assert_eq!(table.cosines(token)[2], 1_f64.cos() as f32);
        assert_eq!(table.cosines(token)[6], 4_f64.cos() as f32);
        assert_eq!(table.sines(token)[3], 0.1_f64.sin() as f32);
        assert_eq!(table.sines(token)[9], (4.0 / 1000_f64).sin() as f32);
    }

    #[test]
    fn impossible_rotary_tables_are_refused() {
        let at = |axes, theta| RotaryTable::flux(1, 1, 1, axes, theta).unwrap_err();
        assert_eq!(at([4, 7, 8], 1e4), TableError::AxisOdd { axis_index: 1, dims: 7 });
        assert_eq!(at([0, 8, 8], 1e4), TableError::AxisOdd { axis_index: 0, dims: 0 });
        for theta in [0.5, f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(at([4, 8, 8], theta), TableError::BaseOutOfRange);
        }
        for (rows, columns) in [(u32::MAX, u32::MAX), (1 << 20, 1 << 10)] {
            let error = RotaryTable::flux(u32::MAX, rows, columns, [16, 56, 56], 1e4).unwrap_err();
            assert!(matches!(error, TableError::TooLarge { .. }), "{error}");
        }
    }

    #[test]
    fn buckets_of_t5() {
        let table = t5_position_buckets(512, 32, 128).unwrap();
        assert_eq!(table.len(), 1023);
        let bucket = |relative: i64| table[usize::try_from(relative + 511).unwrap()];
        // The boundaries lie at 8 * 2^(k / 2), half of them not whole numbers.
        let cases =
            [(0, 0), (7, 7), (8, 8), (11, 8), (12, 9), (15, 9), (16, 10), (22, 10), (23, 11)];
        for (distance, expected) in cases {
            assert_eq!(bucket(-distance), expected, "{distance}");
            if distance > 0 {
                assert_eq!(bucket(distance), expected + 16, "{distance}");
            }
        }
        for (distance, expected) in [(31, 11), (32, 12), (45, 12), (46, 13), (63, 13), (64, 14)] {
            assert_eq!(bucket(-distance), expected, "{distance}");
        }
        for (distance, expected) in [(90, 14), (91, 15), (127, 15), (128, 15), (511, 15)] {
            assert_eq!(bucket(-distance), expected, "{distance}");
        }
        assert_eq!(t5_position_buckets(1, 32, 128).unwrap(), [0]);
        assert!(t5_position_buckets(0, 32, 128).unwrap().is_empty());
        for (count, distance) in [(0, 128), (2, 128), (31, 128), (32, 8), (u32::MAX, u32::MAX)] {
            assert!(t5_position_buckets(4, count, distance).is_err(), "{count} {distance}");
        }
        assert!(t5_position_buckets(u32::MAX, 32, 128).is_err());
    }

    #[test]
    fn packing_is_channel_then_row_then_column_and_unpacking_its_inverse() {
        // Value = channel * 100 + row * 10 + column.
        let latent: Vec<u32> =
            (0..2 * 4 * 6).map(|i| i / 24 * 100 + i / 6 % 4 * 10 + i % 6).collect();
        let packed = pack_latent(&latent, 2, 4, 6).unwrap();
        assert_eq!(packed[..8], [0, 1, 10, 11, 100, 101, 110, 111]);
        assert_eq!(packed[8..12], [2, 3, 12, 13]);
        assert_eq!(packed[3 * 8..3 * 8 + 4], [20, 21, 30, 31]);
        assert_eq!(unpack_latent(&packed, 2, 4, 6).unwrap(), latent);
        for (channels, rows, columns) in [(2, 3, 8), (2, 4, 5), (3, 4, 6), (usize::MAX, 2, 2)] {
            assert!(pack_latent(&latent, channels, rows, columns).is_err());
            assert!(unpack_latent(&latent, channels, rows, columns).is_err());
        }
    }
}
