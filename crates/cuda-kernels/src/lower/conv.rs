//! 3x3 convolutions: products whose left rows are gathered pixel by pixel.
//!
//! On tensor cores the weight is first brought into the order of the sum, tap by tap, in scratch. That takes as
//! long as reading it; a layout of its own in the plan would save it.

use plimsoll_device::{BoundOp, Mat};
use plimsoll_graph::{Activation, DType, OpKind};

use super::product::{Tail, flags, is_aligned, number, require_plain};
use crate::shape::Shape;
use crate::task::{Arg, Backends, Launch, Task, Unsupported};

/// Alignment of the scratch's size.
const SCRATCH_ALIGNMENT: u64 = 256;

/// Result channels up to which the narrow tile is used.
const NARROW_COLS: u64 = 16;

/// Pixels a side that the kernels can count.
const SIDE_MAX: u64 = 0x7ffe;

/// Blocks of the kernel that orders a weight.
const ORDER_BLOCKS: u64 = 4096;

/// Bytes of the ordered weight where the convolution runs on tensor cores.
fn scratch_bytes(x: DType, channels: u64, weight: DType, out_channels: u64) -> Option<u64> {
    let is_fast = x == DType::BF16 && weight == DType::BF16 && channels.is_multiple_of(8);
    is_fast.then(|| {
        (out_channels * 9 * channels * DType::BF16.bytes()).next_multiple_of(SCRATCH_ALIGNMENT)
    })
}

pub(super) fn workspace_bytes(op: &OpKind<Shape, Shape>, _backends: Backends) -> u64 {
    let OpKind::Conv3x3 { x, weight, .. } = op else { return 0 };
    scratch_bytes(x.dtype, x.cols, weight.dtype, weight.rows).unwrap_or(0)
}

pub(super) fn tasks(op: &BoundOp, _backends: Backends) -> Result<Vec<Task>, Unsupported> {
    let name = op.op.name.as_str();
    let OpKind::Conv3x3 { x, height, width, upscale, margin, weight, bias, residual, out } =
        &op.op.kind
    else {
        return Err(Unsupported { what: name.to_owned() });
    };
    let operands: Vec<&Mat> = [x, weight, bias, out].into_iter().chain(residual).collect();
    require_plain(name, &operands)?;
    let (channels, out_channels) = (x.cols, weight.rows);
    // Of the enlarged input: where the result begins, and how many pixels it has.
    let first = margin[0] * width * upscale * upscale;
    let pixels = height.saturating_sub(margin[0] + margin[1]) * width * upscale * upscale;
    let fits = x.rows == height * width
        && margin.iter().all(|rows| *rows <= 1)
        && pixels > 0
        && weight.cols == 9 * channels
        && bias.rows == 1
        && bias.cols == out_channels
        && [1, 2].contains(upscale)
        && [*height, *width].iter().all(|side| (1..=SIDE_MAX / upscale).contains(side))
        && std::iter::once(out)
            .chain(residual)
            .all(|mat| mat.rows == pixels && mat.cols == out_channels);
    if !fits {
        return Err(Unsupported { what: format!("{name}: operands of these shapes") });
    }
    let tail = Tail {
        bias: Some(bias),
        activation: Activation::None,
        gate: None,
        base: residual.as_ref(),
        out,
    };
    let scratch =
        scratch_bytes(x.dtype, channels, weight.dtype, out_channels).filter(|_| is_aligned(x));
    let mut tasks = Vec::with_capacity(2);
    let mut ordered = *weight;
    let (kernel, tile, threads, shared_bytes) = match scratch {
        None => ("conv_any", [64, 64], 256, 0),
        Some(bytes) => {
            if op.workspace.bytes < bytes || !op.workspace.offset.is_multiple_of(16) {
                let what = format!("{name} in {} bytes of scratch", op.workspace.bytes);
                return Err(Unsupported { what });
            }
            ordered = Mat { offset: op.workspace.offset, stride: weight.cols, ..*weight };
            tasks.push(Task::Launch(order(name, weight, channels, ordered.offset)?));
            if out_channels <= NARROW_COLS {
                ("conv_128x16", [128, 16], 128, 4 * 144 * 128)
            } else {
                ("conv_128x128", [128, 128], 128, 3 * 256 * 128)
            }
        }
    };
    let size = |value| number(name, value).map(Arg::U32);
    let tiles = pixels.div_ceil(tile[0]) * out_channels.div_ceil(tile[1]);
    tasks.push(Task::Launch(Launch {
        kernel,
        grid: [number(name, tiles)?, 1, 1],
        block: [threads, 1, 1],
        shared_bytes,
        args: vec![
            Arg::Arena(x.offset),
            size(x.stride)?,
            size(*height)?,
            size(*width)?,
            Arg::U32(u32::from(*upscale == 2)),
            size(first)?,
            size(pixels)?,
            size(channels)?,
            Arg::Arena(ordered.offset),
            size(ordered.stride)?,
            Arg::Arena(bias.offset),
            residual.map_or(Arg::Null, |base| Arg::Arena(base.offset)),
            size(residual.map_or(0, |base| base.stride))?,
            Arg::Arena(out.offset),
            size(out.stride)?,
            size(out_channels)?,
            Arg::U32(flags(&tail, x, weight)),
        ],
    }));
    Ok(tasks)
}

/// The weight in the order of the sum, `[out, 9 * channels]` with column `tap * channels + c`.
fn order(name: &str, weight: &Mat, channels: u64, to: u64) -> Result<Launch, Unsupported> {
    let count = number(name, weight.rows * weight.cols)?;
    Ok(Launch {
        kernel: "conv_weights",
        grid: [number(name, u64::from(count).div_ceil(256).min(ORDER_BLOCKS))?, 1, 1],
        block: [256, 1, 1],
        shared_bytes: 0,
        args: vec![
            Arg::Arena(weight.offset),
            Arg::U32(number(name, weight.stride)?),
            Arg::Arena(to),
            Arg::U32(number(name, weight.rows)?),
            Arg::U32(number(name, channels)?),
        ],
    })
}
