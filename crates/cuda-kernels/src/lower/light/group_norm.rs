//! GroupNorm (`kernels/light_group_norm.cu`): sums of chunks of pixels, statistics of the groups, the result.

use plimsoll_device::Mat;
use plimsoll_plan::Region;

use super::operands::{Arguments, THREADS, VECTOR, is_vector, number, require_numbers};
use crate::task::{Launch, Unsupported};

/// Chunks that are summed, at most: enough for any card to run all at once, few enough for one block a group to
/// add.
const SUMS_MOST: u64 = 512;

/// Chunks of the result, at most.
const APPLY_MOST: u64 = 2048;

/// Pixels that a thread takes at least, so that its parameters pay.
const THREAD_PIXELS_LEAST: u64 = 4;

/// Bytes of a pair of `f32`.
const PAIR: u64 = 8;

/// Channels up to which a block of vectors holds a pixel.
const VECTOR_CHANNELS_MOST: u64 = VECTOR * THREADS as u64;

/// How pixels are cut: by shape alone, since it decides the order of sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunks {
    pixels: u64,
    count: u64,
}

impl Chunks {
    /// How pixels are cut for their sums.
    pub(super) fn of_sums(pixels: u64, channels: u64) -> Self {
        Self::of(pixels, channels, SUMS_MOST)
    }

    fn of(pixels: u64, channels: u64, most: u64) -> Self {
        // Pixels that a block of vectors computes side by side.
        let lanes = (VECTOR_CHANNELS_MOST / channels.max(1)).clamp(1, VECTOR_CHANNELS_MOST);
        let least = lanes * THREAD_PIXELS_LEAST;
        let chunk = pixels.div_ceil(most).max(1).next_multiple_of(least);
        Self { pixels: chunk, count: pixels.div_ceil(chunk).max(1) }
    }

    fn sums_bytes(self, groups: u64) -> u64 {
        self.count * groups * PAIR
    }

    /// Sums of each chunk and group, then the statistics of each group.
    pub(super) fn scratch_bytes(self, groups: u64) -> u64 {
        self.sums_bytes(groups) + groups * PAIR
    }
}

/// What shapes do not say.
#[derive(Clone, Copy)]
pub(super) struct Numbers {
    pub(super) groups: u64,
    pub(super) eps: f32,
    pub(super) silu: bool,
}

pub(super) fn launches(
    name: &str,
    x: &Mat,
    [weight, bias]: [&Mat; 2],
    Numbers { groups, eps, silu }: Numbers,
    out: &Mat,
    workspace: Region,
) -> Result<[Launch; 3], Unsupported> {
    require_numbers(name, &[x, weight, bias, out])?;
    let (pixels, channels) = (x.rows, x.cols);
    let is_row = |mat: &Mat| mat.rows == 1 && mat.cols == channels;
    let is_whole = groups > 0
        && channels.is_multiple_of(groups)
        && (out.rows, out.cols) == (pixels, channels)
        && is_row(weight)
        && is_row(bias);
    if !is_whole {
        return Err(Unsupported {
            what: format!("{name}: {channels} channels in {groups} groups"),
        });
    }
    let chunks = Chunks::of_sums(pixels, channels);
    let bands = Chunks::of(pixels, channels, APPLY_MOST);
    if workspace.bytes < chunks.scratch_bytes(groups) || !workspace.offset.is_multiple_of(PAIR) {
        return Err(Unsupported {
            what: format!("{name} in {} bytes of scratch", workspace.bytes),
        });
    }
    // Elements of a chunk and places in the sums are counted in 32 bits.
    number(name, chunks.pixels.saturating_mul(channels))?;
    number(name, pixels.saturating_add(chunks.pixels))?;
    let group_count = number(name, groups)?;
    let chunk_count = number(name, chunks.count)?;
    let (sums, statistics) = (workspace.offset, workspace.offset + chunks.sums_bytes(groups));

    let by_vectors =
        channels <= VECTOR_CHANNELS_MOST && is_vector(channels, &[x, weight, bias, out]);
    let (sums_kernel, sums_grid, apply_kernel) = if by_vectors {
        ("group_norm_sums_8", [chunk_count, 1, 1], "group_norm_apply_8")
    } else {
        ("group_norm_sums_1", [chunk_count, group_count, 1], "group_norm_apply_1")
    };
    let first = Arguments::new(name).matrix(x)?.scratch(sums);
    let first = first.u32(pixels)?.u32(channels)?.u32(groups)?.u32(chunks.pixels)?;
    let second = Arguments::new(name).matrix(x)?.scratch(sums).scratch(statistics);
    let second = second.u32(pixels)?.u32(channels)?.u32(groups)?.u32(chunks.count)?.f32(eps);
    let third = Arguments::new(name).matrix(x)?.matrix(weight)?.matrix(bias)?.matrix(out)?;
    let third = third.scratch(statistics).u32(pixels)?.u32(channels)?.u32(groups)?;
    let third = third.u32(bands.pixels)?.u32(u64::from(silu))?;
    Ok([
        first.launch(sums_kernel, sums_grid, THREADS),
        second.launch("group_norm_statistics", [group_count, 1, 1], THREADS),
        third.launch(apply_kernel, [number(name, bands.count)?, 1, 1], THREADS),
    ])
}
