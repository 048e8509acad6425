//! GroupNorm over all pixels, then SiLU where asked.
//!
//! Strands of pixels leave a sum and a sum of squares for each channel in `f64`; they are added in the order of
//! the pixels, so the bits do not depend on who computed which. In `f64` the variance may be taken from the sum
//! of squares: a mean of a thousand deviations still leaves ten digits.

use plimsoll_graph::Activation;

use super::arena::{MatMut, MatRef};
use super::elementwise::activate_chunk;
use super::math;
use super::parallel::{Grid, Stop, Strand, Task, strands_for};
use super::simd::vectorised;

/// Elements that pay for handing over a task.
const GRAIN: usize = 8 * 1024;
/// Channels that are summed side by side, in registers.
const LANES: usize = 16;
/// Channels that are normalised at once.
const CHUNK: usize = 64;
/// Floats of a channel's two sums.
const SUMS: usize = 4;

/// How pixels are cut, in both phases.
pub(crate) fn grid(pixels: usize, channels: usize) -> Grid {
    Grid::bands([pixels, channels], strands_for(pixels.saturating_mul(channels), GRAIN))
}

/// Floats of a strand's scratch: its sums, then mean, factor and addend of every channel, which each strand works out for
/// itself from all sums.
pub(crate) fn strand_floats(channels: usize) -> usize {
    (channels * (SUMS + 3)).next_multiple_of(64)
}

/// Operands but the result.
#[derive(Clone, Copy)]
pub(crate) struct GroupNorm<'a> {
    pub(crate) x: MatRef<'a>,
    pub(crate) weight: MatRef<'a>,
    pub(crate) bias: MatRef<'a>,
    pub(crate) groups: usize,
    pub(crate) eps: f32,
    pub(crate) silu: bool,
}

impl GroupNorm<'_> {
    /// Floats of a strand's own sums.
    pub(crate) fn sum_floats(&self) -> usize {
        self.x.cols() * SUMS
    }

    /// First phase: leaves a strand's sums in its scratch.
    pub(crate) fn sum(&self, strand: Strand<'_>) {
        let (pixels, channels) = (self.x.rows(), self.x.cols());
        let grid = grid(pixels, channels);
        let first = grid.corner(strand.task.index).row;
        let last = (first + grid.rows).min(pixels);
        let sums = bytemuck::cast_slice_mut(&mut strand.scratch[..self.sum_floats()]);
        vectorised(
            #[inline(always)]
            |_| self.add_pixels(strand.task.stop, [first, last], sums),
        );
    }

    /// Second phase: a strand's pixels, from the sums of strand after strand that `sums(index)` gives. What is
    /// between a strand's own sums and the end of its scratch is `rest`.
    pub(crate) fn apply<'s>(
        &self,
        task: Task<'_>,
        rest: &mut [f32],
        sums: impl Fn(usize) -> &'s [f32],
        out: MatMut<'_>,
    ) {
        let (pixels, channels) = (self.x.rows(), self.x.cols());
        let grid = grid(pixels, channels);
        let (mean, rest) = rest.split_at_mut(channels);
        let (factor, rest) = rest.split_at_mut(channels);
        let addend = &mut rest[..channels];
        self.combine(grid.count(), sums, [mean, factor, addend]);
        let (corner, band) = grid.part(out, task.index);
        self.normalise(task.stop, [mean, factor, addend], corner.row, band);
    }

    /// Sum and sum of squares of each channel over some pixels, `[2][channels]`.
    #[inline(always)]
    fn add_pixels(&self, stop: Stop<'_>, [first, last]: [usize; 2], sums: &mut [f64]) {
        let channels = self.x.cols();
        let (total, squares) = sums.split_at_mut(channels);
        for channel in (0..channels).step_by(LANES) {
            if stop.is_set() {
                return;
            }
            let count = LANES.min(channels - channel);
            let (mut sum, mut square) = ([0.0f64; LANES], [0.0f64; LANES]);
            for pixel in first..last {
                let mut values = [0.0f32; LANES];
                if count == LANES {
                    self.x.load(pixel, channel, &mut values);
                } else {
                    self.x.load(pixel, channel, &mut values[..count]);
                }
                for at in 0..LANES {
                    let value = f64::from(values[at]);
                    sum[at] += value;
                    square[at] += value * value;
                }
            }
            total[channel..channel + count].copy_from_slice(&sum[..count]);
            squares[channel..channel + count].copy_from_slice(&square[..count]);
        }
    }

    /// From sums to what is subtracted from, multiplied with and added to each channel.
    #[expect(clippy::cast_possible_truncation, reason = "rounding to single precision is meant")]
    #[expect(clippy::cast_precision_loss, reason = "a number of pixels, far below 2^52")]
    fn combine<'s>(
        &self,
        strands: usize,
        sums: impl Fn(usize) -> &'s [f32],
        [mean, factor, addend]: [&mut [f32]; 3],
    ) {
        let channels = self.x.cols();
        let width = channels / self.groups;
        let count = (self.x.rows() * width) as f64;
        for group in (0..channels).step_by(width) {
            let (mut sum, mut square) = (0.0, 0.0);
            for index in 0..strands {
                let strand: &[f64] = bytemuck::cast_slice(sums(index));
                sum += strand[group..group + width].iter().sum::<f64>();
                square += strand[channels + group..channels + group + width].iter().sum::<f64>();
            }
            let average = sum / count;
            let variance = (square / count - average * average).max(0.0);
            let deviation = math::rsqrt(variance + f64::from(self.eps));
            for channel in group..group + width {
                mean[channel] = average as f32;
                factor[channel] = deviation * self.weight.at(0, channel);
                addend[channel] = self.bias.at(0, channel);
            }
        }
    }

    /// `(x - mean) * factor + addend`, then SiLU, for a band of pixels.
    fn normalise(
        &self,
        stop: Stop<'_>,
        [mean, factor, addend]: [&[f32]; 3],
        first: usize,
        mut band: MatMut<'_>,
    ) {
        let channels = self.x.cols();
        vectorised(
            #[inline(always)]
            |_| {
                let mut values = [0.0; CHUNK];
                for pixel in 0..band.rows() {
                    if stop.is_set() {
                        return;
                    }
                    for channel in (0..channels).step_by(CHUNK) {
                        let range = channel..channels.min(channel + CHUNK);
                        let values = &mut values[..range.len()];
                        self.x.load(first + pixel, channel, values);
                        for (((value, mean), factor), addend) in values
                            .iter_mut()
                            .zip(&mean[range.clone()])
                            .zip(&factor[range.clone()])
                            .zip(&addend[range])
                        {
                            *value = (*value - mean) * factor + addend;
                        }
                        if self.silu {
                            activate_chunk(Activation::Silu, values);
                        }
                        band.store(pixel, channel, values);
                    }
                }
            },
        );
    }
}
