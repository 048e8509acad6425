//! The copy lane's work: host ranges to the arena, cast where the types differ.

use plimsoll_graph::DType;
use plimsoll_host::ReadAhead;

use super::arena::Space;
use super::convert;
use super::simd::vectorised;
use crate::contract::is_plain;
use crate::{BoundCopy, DeviceError, HostDType, Segment};

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
        if let Some(disk) = disk {
            if !disk.read(segment.source, is_over, &mut put)? {
                return Err(DeviceError::Cancelled);
            }
            continue;
        }
        for piece in segment.source.chunks(PIECE) {
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
/// If `target` has not the size of `source`'s elements in `target_dtype`; for 8-bit elements that would have to be cast.
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

/// Casts [`CAST`] elements at a time and hands each lot's bytes to `sink`.
fn cast_chunks(
    source: &[u8],
    source_dtype: HostDType,
    target_dtype: DType,
    mut sink: impl FnMut(&[u8]),
) {
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
