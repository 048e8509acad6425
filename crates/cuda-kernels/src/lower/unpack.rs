//! Weights of linear layers stored in 8 bits: to bf16 in the op's scratch, then the layer as over any bf16 weight.
//!
//! So the bits are those of a bf16 weight, on every card and with every backend. A product that reads 8 bits itself is
//! another route of [`super::linear`], and other bits.

use plimsoll_device::{Mat, Region};
use plimsoll_graph::{DType, OpKind};

use super::light::blocks;
use super::product::number;
use crate::shape::Shape;
use crate::task::{Arg, Launch, Unsupported};

/// Alignment of what stands behind the unpacked weight.
const SCRATCH_ALIGNMENT: u64 = 256;

/// Elements of a 16-byte access to the weight.
const VECTOR: u64 = 16;

const THREADS: u32 = 256;

/// Bytes of an op's scratch that hold its weight in bf16, at the beginning of it; 0 where the weight needs none.
pub fn unpacked_bytes(op: &OpKind<Shape, Shape>) -> u64 {
    match op {
        OpKind::Linear { weight, .. } => bytes(weight.rows, weight.cols, weight.dtype),
        _ => 0,
    }
}

/// The same for a weight.
pub(super) fn bytes(rows: u64, cols: u64, dtype: DType) -> u64 {
    if dtype == DType::F8E4M3 {
        (rows * cols * DType::BF16.bytes()).next_multiple_of(SCRATCH_ALIGNMENT)
    } else {
        0
    }
}

/// The launch that unpacks a weight to the beginning of `workspace`, and the weight there.
///
/// # Errors
/// [`Unsupported`] for sizes from 2^31 on, rows with gaps, scales of another shape, or too little scratch.
pub(super) fn unpack(
    name: &str,
    weight: &Mat,
    scale: &Mat,
    workspace: Region,
) -> Result<(Launch, Mat), Unsupported> {
    let unsupported = |what: &str| Unsupported { what: format!("{name}: {what}") };
    let is_plain = weight.stride == weight.cols && weight.step_bytes == 0 && scale.step_bytes == 0;
    let fits = scale.dtype == DType::F32 && scale.rows == 1 && scale.cols == weight.rows;
    if !(is_plain && fits) {
        return Err(unsupported("an 8-bit weight and scales of these shapes"));
    }
    if workspace.bytes < bytes(weight.rows, weight.cols, weight.dtype) {
        return Err(unsupported("no room for its weight in bf16"));
    }
    let is_vector = weight.cols.is_multiple_of(VECTOR) && weight.offset.is_multiple_of(VECTOR);
    let (kernel, width) = if is_vector { ("unpack_f8_16", VECTOR) } else { ("unpack_f8_1", 1) };
    let count = weight.rows * weight.cols / width;
    let launch = Launch {
        kernel,
        grid: blocks(name, count)?,
        block: [THREADS, 1, 1],
        shared_bytes: 0,
        args: vec![
            Arg::Arena(weight.offset),
            Arg::Arena(scale.offset),
            Arg::Arena(workspace.offset),
            Arg::U32(number(name, count)?),
            Arg::U32(number(name, weight.cols / width)?),
        ],
    };
    let unpacked = Mat { offset: workspace.offset, dtype: DType::BF16, ..*weight };
    Ok((launch, unpacked))
}
