//! Ops on little data, an element a thread (`kernels/light_small.cu`).

use plimsoll_device::Mat;
use plimsoll_graph::DType;

use super::operands::{Arguments, THREADS, blocks, require_numbers};
use crate::task::{Launch, Unsupported};

fn require(name: &str, holds: bool, what: &str) -> Result<(), Unsupported> {
    if holds { Ok(()) } else { Err(Unsupported { what: format!("{name}: {what}") }) }
}

/// Timestep embedding: cosines, then sines.
pub(super) fn sinusoid(name: &str, x: &Mat, out: &Mat) -> Result<Launch, Unsupported> {
    require_numbers(name, &[x, out])?;
    let is_whole = x.rows == out.rows && x.cols == 1 && out.cols.is_multiple_of(2);
    require(name, is_whole, "not a column and an even number of columns")?;
    let half = out.cols / 2;
    let arguments = Arguments::new(name).matrix(x)?.matrix(out)?.u32(out.rows)?.u32(half)?;
    Ok(arguments.launch("sinusoid", blocks(name, out.rows.saturating_mul(half))?, THREADS))
}

/// `out[h, r] = weight[buckets[r], h]`.
pub(super) fn expand_bias(
    name: &str,
    weight: &Mat,
    buckets: &Mat,
    out: &Mat,
) -> Result<Launch, Unsupported> {
    require_numbers(name, &[weight, out])?;
    require(name, buckets.dtype == DType::U32, "buckets that are not u32")?;
    let is_same = out.rows == weight.cols && out.cols == buckets.rows && weight.rows > 0;
    require(name, is_same, "shapes that differ")?;
    let arguments = Arguments::new(name).matrix(weight)?.matrix(buckets)?.matrix(out)?;
    let arguments = arguments.u32(weight.rows)?.u32(out.rows)?.u32(out.cols)?;
    Ok(arguments.launch("expand_bias", blocks(name, out.rows.saturating_mul(out.cols))?, THREADS))
}

/// `out = x[index]`.
pub(super) fn select_row(
    name: &str,
    x: &Mat,
    index: &Mat,
    out: &Mat,
) -> Result<Launch, Unsupported> {
    require_numbers(name, &[x, out])?;
    require(name, index.dtype == DType::U32, "an index that is not u32")?;
    let is_same = out.rows == 1 && out.cols == x.cols && x.rows > 0;
    require(name, is_same, "shapes that differ")?;
    let arguments = Arguments::new(name).matrix(x)?.matrix(index)?.matrix(out)?;
    let arguments = arguments.u32(x.rows)?.u32(x.cols)?;
    Ok(arguments.launch("select_row", blocks(name, x.cols)?, THREADS))
}

/// Packed tokens to pixels of a latent `width` wide: `out = x / scale + shift`.
pub(super) fn unpatchify(
    name: &str,
    x: &Mat,
    width: u64,
    [scale, shift]: [f32; 2],
    out: &Mat,
) -> Result<Launch, Unsupported> {
    require_numbers(name, &[x, out])?;
    let is_whole = width > 0
        && width.is_multiple_of(2)
        && out.rows.is_multiple_of(2 * width)
        && out.rows == 4 * x.rows
        && x.cols == 4 * out.cols;
    require(name, is_whole, "tokens that are not 2 by 2 pixels")?;
    let arguments = Arguments::new(name).matrix(x)?.matrix(out)?;
    let arguments = arguments.u32(out.rows)?.u32(out.cols)?.u32(width)?.f32(scale).f32(shift);
    Ok(arguments.launch("unpatchify", blocks(name, out.rows.saturating_mul(out.cols))?, THREADS))
}
