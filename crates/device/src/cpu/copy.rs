//! The copy lane's work: host ranges to the arena, cast where the types differ.

use plimsoll_graph::DType;

use super::arena::Space;
use super::convert;
use super::simd::vectorised;
use crate::{BoundCopy, DeviceError, HostDType, Segment};

/// Bytes between two looks at the stop flag: about a millisecond.
const PIECE: usize = 4 << 20;

/// Elements that are cast at once.
const CAST: usize = 2048;

/// Copies a unit; returns the bytes that arrived in the arena.
///
/// # Errors
/// [`DeviceError::Cancelled`] between two pieces; the unit is then not whole.
pub(crate) fn copy(
    space: Space<'_>,
    copy: &BoundCopy<'_>,
    is_over: &dyn Fn() -> bool,
) -> Result<u64, DeviceError> {
    let mut arrived = 0;
    for segment in &copy.segments {
        let width = segment.source_dtype.bytes();
        let mut target = segment.target;
        for piece in segment.source.chunks(PIECE) {
            if is_over() {
                return Err(DeviceError::Cancelled);
            }
            copy_piece(space, segment, piece, target);
            let bytes = piece.len() as u64 / width * segment.target_dtype.bytes();
            target += bytes;
            arrived += bytes;
        }
    }
    Ok(arrived)
}

fn copy_piece(space: Space<'_>, segment: &Segment<'_>, piece: &[u8], target: u64) {
    let source_dtype = segment.source_dtype;
    let is_same = matches!(
        (source_dtype, segment.target_dtype),
        (HostDType::F32, DType::F32)
            | (HostDType::BF16, DType::BF16)
            | (HostDType::U32, DType::U32)
    );
    if is_same {
        space.fill(target, piece);
        return;
    }
    vectorised(
        #[inline(always)]
        |_| {
            let mut target = target;
            let width = if source_dtype == HostDType::F32 { 4 } else { 2 };
            let mut values = [0.0f32; CAST];
            let mut bytes = [0u8; 4 * CAST];
            for chunk in piece.chunks(CAST * width) {
                let values = &mut values[..chunk.len() / width];
                convert::to_f32(chunk, source_dtype, values);
                let target_width = if segment.target_dtype == DType::BF16 { 2 } else { 4 };
                let bytes = &mut bytes[..values.len() * target_width];
                if target_width == 2 {
                    convert::to_bf16(values, bytes);
                } else {
                    for (value, bytes) in values.iter().zip(bytes.as_chunks_mut::<4>().0) {
                        *bytes = value.to_le_bytes();
                    }
                }
                space.fill(target, bytes);
                target += bytes.len() as u64;
            }
        },
    );
}
