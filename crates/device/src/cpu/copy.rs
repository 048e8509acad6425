//! The copy lane's work: host ranges to the arena, cast where the types differ.

use plimsoll_graph::DType;
use plimsoll_host::ReadAhead;

use super::arena::Space;
use super::convert;
use super::simd::vectorised;
use plimsoll_weights::{F8Row, f8_encode};

use crate::contract::is_plain;
use crate::{BoundCopy, DeviceError, HostDType, HostRows, Segment, WideDType};

/// Bytes between two looks at the stop flag: about a millisecond.
const PIECE: usize = 4 << 20;

/// Elements that are cast at once.
const CAST: usize = 2048;

/// Copies a unit; returns the bytes of weights that arrived in the arena.
///
/// # Errors
/// [`DeviceError::Cancelled`] between two pieces, [`DeviceError::HostRead`]; the unit is then not whole.
pub(crate) fn copy(
    space: Space<'_>,
    copy: &BoundCopy<'_>,
    disk: Option<&ReadAhead<'_>>,
    is_over: &dyn Fn() -> bool,
) -> Result<u64, DeviceError> {
    let disk = disk.filter(|_| copy.from_disk);
    for segment in &copy.segments {
        let width = segment.source_dtype.bytes();
        let mut target = segment.target;
        let mut put = |piece: &[u8]| {
            copy_piece(space, segment, piece, target);
            target += piece.len() as u64 / width * segment.target_dtype.bytes();
        };
        // What the disk gives may end within a row, and rows are put in 8 bits whole.
        if let Some(disk) = disk.filter(|_| !segment.source_dtype.is_by_rows()) {
            if !disk.read(segment.source, is_over, &mut put)? {
                return Err(DeviceError::Cancelled);
            }
            continue;
        }
        let unit = host_size(segment.source_dtype.unit_bytes());
        for piece in segment.source.chunks((PIECE / unit).max(1) * unit) {
            if is_over() {
                return Err(DeviceError::Cancelled);
            }
            put(piece);
        }
    }
    Ok(copy.weight_bytes())
}

fn copy_piece(space: Space<'_>, segment: &Segment<'_>, piece: &[u8], target: u64) {
    if segment.is_plain() {
        space.fill(target, piece);
        return;
    }
    let mut target = target;
    cast_chunks(piece, segment.source_dtype, segment.target_dtype, |bytes| {
        space.fill(target, bytes);
        target += bytes.len() as u64;
    });
}

/// Writes the elements of `source` to `target` as a copy to the arena does: bytes as they are where the types are
/// the same, else cast, rounded to nearest even. For devices whose copies cannot cast.
///
/// # Panics
/// If `target` has not the size of `source`'s elements in `target_dtype`; for elements of 8 bits that would have to be cast.
pub fn cast(source: &[u8], source_dtype: HostDType, target: &mut [u8], target_dtype: DType) {
    let elements = source.len() as u64 / source_dtype.bytes();
    assert!(target.len() as u64 == elements * target_dtype.bytes(), "a target of another size");
    if is_plain(source_dtype, target_dtype) {
        target.copy_from_slice(source);
        return;
    }
    let mut rest = target;
    cast_chunks(source, source_dtype, target_dtype, |bytes| {
        let (here, after) = std::mem::take(&mut rest).split_at_mut(bytes.len());
        here.copy_from_slice(bytes);
        rest = after;
    });
}

/// A size in host memory, of which a range of that many bytes is a part.
fn host_size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Casts [`CAST`] elements at a time and hands each lot's bytes to `sink`.
fn cast_chunks(
    source: &[u8],
    source_dtype: HostDType,
    target_dtype: DType,
    mut sink: impl FnMut(&[u8]),
) {
    match source_dtype {
        HostDType::Codes(rows) => return narrow(source, rows, sink),
        HostDType::Scales(rows) => {
            for row in source.chunks_exact(host_size(rows.bytes())) {
                sink(&row_scale(row, rows.stored).to_le_bytes());
            }
            return;
        }
        _ => {}
    }
    vectorised(
        #[inline(always)]
        |_| {
            let width = if source_dtype == HostDType::F32 { 4 } else { 2 };
            let mut values = [0.0f32; CAST];
            let mut bytes = [0u8; 4 * CAST];
            for chunk in source.chunks(CAST * width) {
                let values = &mut values[..chunk.len() / width];
                convert::to_f32(chunk, source_dtype, values);
                let target_width = if target_dtype == DType::BF16 { 2 } else { 4 };
                let bytes = &mut bytes[..values.len() * target_width];
                if target_width == 2 {
                    convert::to_bf16(values, bytes);
                } else {
                    for (value, bytes) in values.iter().zip(bytes.as_chunks_mut::<4>().0) {
                        *bytes = value.to_le_bytes();
                    }
                }
                sink(bytes);
            }
        },
    );
}

/// Puts whole rows in 8 bits, each by its own scale.
fn narrow(source: &[u8], rows: HostRows, mut sink: impl FnMut(&[u8])) {
    let (stored, width) = (rows.stored.host(), host_size(rows.stored.host().bytes()));
    let (mut values, mut codes) = ([0.0f32; CAST], [0u8; CAST]);
    for row in source.chunks_exact(host_size(rows.bytes())) {
        let scale = row_scale(row, rows.stored);
        vectorised(
            #[inline(always)]
            |_| {
                for chunk in row.chunks(CAST * width) {
                    let count = chunk.len() / width;
                    convert::to_f32(chunk, stored, &mut values[..count]);
                    for (code, value) in codes.iter_mut().zip(&values[..count]) {
                        *code = f8_encode(*value / scale);
                    }
                    sink(&codes[..count]);
                }
            },
        );
    }
}

/// The scale by which a row is put in 8 bits; NaN where an element is no number.
fn row_scale(row: &[u8], stored: WideDType) -> f32 {
    let width = host_size(stored.host().bytes());
    let (mut values, mut found) = ([0.0f32; CAST], F8Row::default());
    vectorised(
        #[inline(always)]
        |_| {
            for chunk in row.chunks(CAST * width) {
                let values = &mut values[..chunk.len() / width];
                convert::to_f32(chunk, stored.host(), values);
                found.add(values);
            }
        },
    );
    found.scale().unwrap_or(f32::NAN)
}

#[cfg(test)]
mod tests {
    use plimsoll_weights::f8_scale;

    use super::*;

    /// Numbers of many magnitudes in a stored type, and what they are in f32.
    fn rows(stored: WideDType, count: usize, seed: u64) -> (Vec<u8>, Vec<f32>) {
        let mut state = seed;
        let (mut bytes, mut values) = (Vec::new(), vec![0.0; count]);
        for _ in 0..count {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let value = ((state >> 40) as f32 / (1 << 23) as f32 - 1.0)
                * 2f32.powi((state >> 36 & 7) as i32 - 6);
            match stored {
                WideDType::F32 => bytes.extend(value.to_le_bytes()),
                WideDType::F16 => bytes.extend(half::f16::from_f32(value).to_le_bytes()),
                WideDType::BF16 => bytes.extend(half::bf16::from_f32(value).to_le_bytes()),
            }
        }
        convert::to_f32(&bytes, stored.host(), &mut values);
        (bytes, values)
    }

    #[test]
    fn a_copy_narrows_rows_as_a_pack_does() {
        for stored in [WideDType::F32, WideDType::F16, WideDType::BF16] {
            for cols in [1, 7, CAST - 1, CAST, 2 * CAST + 5] {
                let (bytes, values) = rows(stored, 3 * cols, 7 + cols as u64);
                let of = HostRows { stored, cols: u32::try_from(cols).expect("small") };
                let (mut codes, mut scales) = (vec![0xAA; 3 * cols], [0xAA; 12]);
                cast(&bytes, HostDType::Codes(of), &mut codes, DType::F8E4M3);
                cast(&bytes, HostDType::Scales(of), &mut scales, DType::F32);
                let each =
                    values.chunks(cols).zip(codes.chunks(cols)).zip(scales.as_chunks::<4>().0);
                for ((values, codes), found) in each {
                    let scale = f8_scale(values).expect("finite");
                    assert_eq!(f32::from_le_bytes(*found), scale);
                    for (value, code) in values.iter().zip(codes) {
                        assert_eq!(*code, f8_encode(value / scale), "{value} by {scale}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_that_is_no_number_is_none_on_the_device() {
        let of = HostRows { stored: WideDType::F32, cols: 2 };
        let bytes: Vec<u8> =
            [1.0, f32::INFINITY, 2.0, 1.0].iter().flat_map(|v: &f32| v.to_le_bytes()).collect();
        let (mut codes, mut scales) = ([0; 4], [0; 8]);
        cast(&bytes, HostDType::Codes(of), &mut codes, DType::F8E4M3);
        cast(&bytes, HostDType::Scales(of), &mut scales, DType::F32);
        let scales = scales.as_chunks::<4>().0.iter().map(|scale| f32::from_le_bytes(*scale));
        let scales: Vec<f32> = scales.collect();
        assert!(scales[0].is_nan() && scales[1] == 2.0 / 448.0);
        assert_eq!(codes[0] & 0x7F, 0x7F);
        assert_eq!(codes[2], 0x7E);
    }
}
