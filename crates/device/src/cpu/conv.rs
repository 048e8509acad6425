//! 3x3 convolution, stride 1, zero padding 1, of an input that may be enlarged (nearest) on the way.
//!
//! Pixels are the vector lanes. A tile is some rows of at most [`TILE_WIDTH`] result pixels; for some channels its
//! input with a border of one pixel is laid out channel by channel (the band), where each of the nine taps is the same
//! picture at another offset. So nothing is multiplied out into columns: nine products read the band in place.
//! Lanes run on across the border from one row of the tile to the next; what falls on the border is not stored.

use plimsoll_graph::Activation;

use super::arena::{MatMut, MatRef};
use super::epilogue::{Epilogue, TilePlace};
use super::gemm::{LANES, Lhs, Rhs, Store, product};
use super::parallel::{Grid, Strand, strands_for, within_scratch};
use super::simd::{Isa, vectorised};
use super::transpose::{Block, SIDE, transposed};

/// Lanes that are summed before the next tap: the most rows of any kernel.
const PANEL: usize = 64;
/// Input channels that are summed in one chain for a tap; part of what decides the bits.
const CHANNELS: usize = 64;
/// Pixels of a tile's row.
const TILE_WIDTH: usize = 64;
/// Pixels of a tile, about.
const TILE_PIXELS: usize = 256;
/// Result channels whose weights are held at once.
const WEIGHT_ROWS: usize = 24;
/// Taps of the kernel.
const TAPS: usize = 9;
/// Pixels of a strand at least: below, its weights cost more than its sums.
const STRAND_PIXELS: usize = 128;
/// Operations that pay for handing over a task.
const GRAIN: usize = 3_000_000;

/// Sizes of everything, from the op's shape alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocking {
    grid: Grid,
    channels: usize,
    out_channels: usize,
    /// Pixels of a tile's row.
    width: usize,
    /// Rows of a tile.
    height: usize,
}

impl Blocking {
    /// For a result of `height x width` pixels.
    pub(crate) fn new([height, width]: [usize; 2], channels: usize, out_channels: usize) -> Self {
        let work = 2 * height * width * channels * TAPS * out_channels;
        let strands = strands_for(work, GRAIN).min(strands_for(height * width, STRAND_PIXELS));
        let cut = |strands| Self::cut([height, width], [channels, out_channels], strands);
        within_scratch(strands, height * width * out_channels, cut, Self::scratch_floats)
    }

    fn cut(
        [height, width]: [usize; 2],
        [channels, out_channels]: [usize; 2],
        strands: usize,
    ) -> Self {
        let grid = Grid::new([height * width, out_channels], [strands, 1], [width, 1]);
        let tile_width = width.min(TILE_WIDTH);
        let tile_height = (TILE_PIXELS / tile_width).min(grid.rows.div_ceil(width)).max(1);
        Self {
            grid,
            channels: channels.min(CHANNELS),
            out_channels,
            width: tile_width,
            height: tile_height,
        }
    }

    /// Floats from one row of the band to the next: a tile's row and its border.
    fn pitch(&self) -> usize {
        self.width + 2
    }

    /// Floats from one channel of the sums to the next: all rows, and what whole lanes read past the last.
    fn stride(&self) -> usize {
        (self.height * self.pitch() + SIDE).next_multiple_of(LANES)
    }

    /// Floats from one channel of the band to the next: two more rows, and what the last tap reads past them.
    fn band_channel(&self) -> usize {
        (self.stride() + 2 * self.pitch() + 2).next_multiple_of(LANES)
    }

    /// Floats of one strand: band, weights, sums.
    fn parts(&self) -> [usize; 3] {
        [
            self.channels * self.band_channel(),
            WEIGHT_ROWS * self.channels * TAPS,
            self.out_channels * self.stride(),
        ]
    }

    /// Number of tasks.
    pub(crate) fn strands(&self) -> usize {
        self.grid.count()
    }

    /// Floats of a strand's scratch, in whole cache lines.
    pub(crate) fn strand_floats(&self) -> usize {
        self.parts().iter().sum::<usize>().next_multiple_of(64)
    }

    fn scratch_floats(&self) -> usize {
        self.strands() * self.strand_floats()
    }
}

/// Operands but the result.
#[derive(Clone, Copy)]
pub(crate) struct Conv<'a> {
    /// `[height * width, channels]`.
    pub(crate) x: MatRef<'a>,
    /// Of the input, before enlarging.
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) upscale: usize,
    /// Rows of the input above and below the others that are only seen.
    pub(crate) margin: [usize; 2],
    /// `[out channels, channels * 9]`.
    pub(crate) weight: MatRef<'a>,
    pub(crate) bias: MatRef<'a>,
    pub(crate) residual: Option<MatRef<'a>>,
}

impl Conv<'_> {
    /// Carries out a strand of the op.
    pub(crate) fn run(&self, strand: Strand<'_>, out: MatMut<'_>) {
        let rows = self.height - self.margin[0] - self.margin[1];
        let size = [rows * self.upscale, self.width * self.upscale];
        let blocking = Blocking::new(size, self.x.cols(), self.weight.rows());
        let epilogue = Epilogue {
            bias: Some(self.bias),
            activation: Activation::None,
            base: self.residual,
            gate: None,
        };
        let (corner, mut part) = blocking.grid.part(out, strand.task.index);
        vectorised(
            #[inline(always)]
            |isa| {
                let (first, rows) = (corner.row / size[1], part.rows() / size[1]);
                for y in (0..rows).step_by(blocking.height) {
                    for x in (0..size[1]).step_by(blocking.width) {
                        if strand.task.stop.is_set() {
                            return;
                        }
                        let tile = Tile {
                            corner: [first + y, x],
                            size: [blocking.height.min(rows - y), blocking.width.min(size[1] - x)],
                        };
                        let sums = self.sum_tile(isa, &blocking, tile, strand.scratch);
                        let place = [size[1], corner.row];
                        store(isa, &blocking, &epilogue, tile, place, sums, &mut part);
                    }
                }
            },
        );
    }

    /// Sums of a tile, `[out channels][stride]`, a row every `pitch` lanes.
    #[inline(always)]
    fn sum_tile<'s>(
        &self,
        isa: Isa,
        blocking: &Blocking,
        tile: Tile,
        scratch: &'s mut [f32],
    ) -> &'s mut [f32] {
        let [band, weights, sums] = blocking.parts();
        let (band, rest) = scratch.split_at_mut(band);
        let (weights, sums) = rest[..weights + sums].split_at_mut(weights);
        let stride = blocking.stride();
        let lanes = ((tile.size[0] - 1) * blocking.pitch() + tile.size[1]).next_multiple_of(LANES);
        for channel in (0..self.x.cols()).step_by(blocking.channels) {
            let channels = blocking.channels.min(self.x.cols() - channel);
            self.fill_band(isa, blocking, tile, [channel, channels], band);
            let depth = channels * TAPS;
            for out_channel in (0..blocking.out_channels).step_by(WEIGHT_ROWS) {
                let count = WEIGHT_ROWS.min(blocking.out_channels - out_channel);
                for (at, line) in weights.chunks_exact_mut(depth).take(count).enumerate() {
                    self.weight.load(out_channel + at, channel * TAPS, line);
                }
                for panel in (0..lanes).step_by(PANEL) {
                    for tap in 0..TAPS {
                        let offset = panel + tap / 3 * blocking.pitch() + tap % 3;
                        let store = if channel + tap == 0 { Store::Set(1.0) } else { Store::Add };
                        product(
                            [PANEL.min(lanes - panel), count, channels],
                            &mut sums[out_channel * stride + panel..],
                            stride,
                            Lhs { values: &band[offset..], stride: blocking.band_channel() },
                            Rhs { values: &weights[tap..], step: TAPS, stride: depth },
                            store,
                        );
                    }
                }
            }
        }
        sums
    }

    /// `band[c][y * pitch + x]` is channel `channel + c` of the enlarged input at the tile's corner less one pixel
    /// plus `(y, x)`; zero outside of the picture.
    ///
    /// Rows are laid from the first on in whole blocks; what a block leaves past its row the next row overwrites.
    #[inline(always)]
    fn fill_band(
        &self,
        isa: Isa,
        blocking: &Blocking,
        tile: Tile,
        [channel, channels]: [usize; 2],
        band: &mut [f32],
    ) {
        let (pitch, channel_floats) = (blocking.pitch(), blocking.band_channel());
        let [height, width] = [self.height * self.upscale, self.width * self.upscale];
        let filled = (tile.size[0] + 2) * pitch;
        for values in band.chunks_exact_mut(channel_floats).take(channels) {
            // Lanes past the last row must be numbers: an old bit pattern may be one that is slow to multiply.
            values[filled..].fill(0.0);
        }
        for y in 0..tile.size[0] + 2 {
            // Rows and columns are counted from one before the picture, to stay in unsigned numbers.
            let row = self.margin[0] * self.upscale + tile.corner[0] + y;
            let is_row_inside = (1..=height).contains(&row);
            // The border's columns apart, so that blocks fall on whole runs of pixels.
            for x in (1..pitch - 1).step_by(SIDE) {
                let across = SIDE.min(pitch - 1 - x);
                let col = tile.corner[1] + x;
                let is_inside = col + across <= width + 1;
                for c in (0..channels).step_by(SIDE) {
                    let count = SIDE.min(channels - c);
                    let block = if !is_row_inside {
                        [[0.0; SIDE]; SIDE]
                    } else if self.upscale == 1 && is_inside {
                        let pixel = (row - 1) * self.width + col - 1;
                        self.x.load_block([pixel, channel + c], [across, count])
                    } else {
                        self.load_border([row, col], across, [channel + c, count])
                    };
                    for (at, line) in transposed(isa, &block).iter().take(count).enumerate() {
                        let start = (c + at) * channel_floats + y * pitch + x;
                        band[start..start + SIDE].copy_from_slice(line);
                    }
                }
            }
            for x in [0, pitch - 1] {
                for c in (0..channels).step_by(SIDE) {
                    let count = SIDE.min(channels - c);
                    let pixel = if is_row_inside {
                        self.load_border([row, tile.corner[1] + x], 1, [channel + c, count])[0]
                    } else {
                        [0.0; SIDE]
                    };
                    for (at, value) in pixel.iter().take(count).enumerate() {
                        band[(c + at) * channel_floats + y * pitch + x] = *value;
                    }
                }
            }
        }
    }

    /// A block of the enlarged input some of whose pixels lie outside of the picture, or are told twice.
    #[inline(always)]
    fn load_border(
        &self,
        [row, first]: [usize; 2],
        across: usize,
        [channel, count]: [usize; 2],
    ) -> Block {
        let mut block: Block = [[0.0; SIDE]; SIDE];
        let start = (row - 1) / self.upscale * self.width;
        for (at, line) in block.iter_mut().take(across).enumerate() {
            let col = first + at;
            if (1..=self.width * self.upscale).contains(&col) {
                let pixel = start + (col - 1) / self.upscale;
                *line = self.x.load_block([pixel, channel], [1, count])[0];
            }
        }
        block
    }
}

/// A rectangle of result pixels.
#[derive(Clone, Copy)]
struct Tile {
    /// Row and column in the result.
    corner: [usize; 2],
    /// Rows and columns.
    size: [usize; 2],
}

/// Finishes a tile's rows one by one.
#[inline(always)]
fn store(
    isa: Isa,
    blocking: &Blocking,
    epilogue: &Epilogue<'_>,
    tile: Tile,
    [width, first_pixel]: [usize; 2],
    sums: &[f32],
    out: &mut MatMut<'_>,
) {
    for y in 0..tile.size[0] {
        let pixel = (tile.corner[0] + y) * width + tile.corner[1];
        let place = TilePlace {
            whole: [pixel, 0],
            part: [pixel - first_pixel, 0],
            size: [tile.size[1], blocking.out_channels],
        };
        epilogue.store(isa, &sums[y * blocking.pitch()..], blocking.stride(), place, out);
    }
}
