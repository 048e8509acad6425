//! `out = residual + activation(x w^T + b)`.
//!
//! A weight of 8-bit numbers is multiplied by its rows' scales and rounded to `bf16` as it is brought to the product:
//! from there on nothing knows how it was stored, so its bits are those of a `bf16` weight.
//!
//! A strand holds, in its scratch, a block of rows of `x` as lanes, some rows of the weight as `f32` and the sums
//! of a tile. `k` goes by in blocks of a constant size, so that scratch stays bounded at any width.
//! Each sum is one chain over each block of `k`, and the blocks are added in order: a row's bits depend on
//! neither the tile it falls in nor the strand.

use super::arena::{MatMut, MatRef};
use super::epilogue::{Epilogue, TilePlace};
use super::gemm::{LANES, Lhs, Rhs, Store, product};
use super::math::bf16_round;
use super::parallel::{Grid, Strand, strands_for, within_scratch};
use super::simd::{Isa, vectorised};
use super::transpose::{SIDE, transposed};

/// Columns of `x` that are summed in one chain; part of what decides the bits.
const DEPTH: usize = 384;
/// Rows of a tile.
const ROWS: usize = 192;
/// Columns of a tile: multiples of [`WEIGHT_ROWS`] and of what the epilogue takes at once.
const COLS: usize = 384;
/// The same where all of `k` is held, so that a tile is finished while its sums are near.
const COLS_HELD: usize = 192;
/// Rows of the weight that are held at once: a multiple of what every kernel computes in one call (4 and 6).
const WEIGHT_ROWS: usize = 24;
/// Rows of `x` up to here times `k` are packed whole, once: 512 KiB.
const HELD_FLOATS: usize = 128 * 1024;
/// Lanes that stand together: the most rows of any kernel.
pub(crate) const PANEL: usize = 64;
/// Operations that pay for handing over a task.
const GRAIN: usize = 2_000_000;

/// Sizes of everything, from the op's shape alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocking {
    grid: Grid,
    /// Rows of a tile, padded to whole lanes.
    rows: usize,
    cols: usize,
    /// Columns of `x` that are packed at once: all, or [`DEPTH`].
    held: usize,
}

impl Blocking {
    /// For `[m, k] x [n, k]^T`.
    pub(crate) fn new(m: usize, n: usize, k: usize) -> Self {
        let strands = strands_for(2 * m * n * k, GRAIN);
        within_scratch(strands, m * n, |strands| Self::cut(m, n, k, strands), Self::scratch_floats)
    }

    fn cut(m: usize, n: usize, k: usize, strands: usize) -> Self {
        // Columns first: each weight is then read by one strand only.
        let col_strands = strands.min(strands_for(n, 96));
        let row_strands = (strands / col_strands).min(strands_for(m, 96));
        let grid = Grid::new([m, n], [row_strands, col_strands], [LANES, SIDE]);
        let rows = grid.rows.next_multiple_of(LANES).min(ROWS);
        let is_held = grid.rows <= ROWS && rows * k <= HELD_FLOATS;
        Self {
            grid,
            rows,
            cols: grid.cols.min(if is_held { COLS_HELD } else { COLS }),
            held: if is_held { k } else { k.min(DEPTH) },
        }
    }

    /// Floats of one strand: lanes of `x`, rows of the weight, sums.
    fn parts(&self) -> [usize; 3] {
        [self.rows * self.held, WEIGHT_ROWS * self.held.min(DEPTH), self.rows * self.cols]
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

/// A weight as it lies in the arena.
#[derive(Clone, Copy)]
pub(crate) struct Stored<'a> {
    pub(crate) matrix: MatRef<'a>,
    /// `[1, n]`, of 8-bit numbers.
    pub(crate) scale: Option<MatRef<'a>>,
}

impl Stored<'_> {
    /// Elements `col ..` of a row as they are multiplied.
    #[inline(always)]
    fn load(&self, row: usize, col: usize, values: &mut [f32]) {
        self.matrix.load(row, col, values);
        if let Some(scale) = &self.scale {
            let scale = scale.at(0, row);
            for value in values {
                *value = bf16_round(*value * scale);
            }
        }
    }
}

/// Carries out a strand of the op.
pub(crate) fn linear(
    strand: Strand<'_>,
    x: MatRef<'_>,
    weight: Stored<'_>,
    epilogue: Epilogue<'_>,
    out: MatMut<'_>,
) {
    let blocking = Blocking::new(x.rows(), weight.matrix.rows(), x.cols());
    let (corner, mut part) = blocking.grid.part(out, strand.task.index);
    vectorised(
        #[inline(always)]
        |isa| {
            let [lanes, weights, sums] = blocking.parts();
            let (lanes, rest) = strand.scratch.split_at_mut(lanes);
            let (weights, sums) = rest[..weights + sums].split_at_mut(weights);
            let tiles = Tiles { x: &x, weight: &weight, held: blocking.held, isa };
            for row in (0..part.rows()).step_by(blocking.rows) {
                for col in (0..part.cols()).step_by(blocking.cols) {
                    if strand.task.stop.is_set() {
                        return;
                    }
                    let place = TilePlace {
                        whole: [corner.row + row, corner.col + col],
                        part: [row, col],
                        size: [
                            blocking.rows.min(part.rows() - row),
                            blocking.cols.min(part.cols() - col),
                        ],
                    };
                    tiles.sum(place, col == 0, [lanes, weights, sums]);
                    let stride = place.size[0].next_multiple_of(LANES);
                    epilogue.store(isa, sums, stride, place, &mut part);
                }
            }
        },
    );
}

/// What stays the same for all tiles of a strand.
struct Tiles<'s, 'a> {
    x: &'s MatRef<'a>,
    weight: &'s Stored<'a>,
    held: usize,
    isa: Isa,
}

impl Tiles<'_, '_> {
    /// `sums[j][i] = x[i] . w[j]` for a tile, `i` padded to whole lanes.
    ///
    /// Lanes that hold all of `k` are packed for the first tile of a row of tiles.
    #[inline(always)]
    fn sum(&self, place: TilePlace, is_first: bool, [lanes, weights, sums]: [&mut [f32]; 3]) {
        let [rows, cols] = place.size;
        let stride = rows.next_multiple_of(LANES);
        let k = self.x.cols();
        for start in (0..k).step_by(self.held) {
            let held = self.held.min(k - start);
            if is_first || held < k {
                pack_lanes(self.isa, self.x, [place.whole[0], start], [rows, held], lanes);
            }
            for col in (0..cols).step_by(WEIGHT_ROWS) {
                let count = WEIGHT_ROWS.min(cols - col);
                for at in (0..held).step_by(DEPTH) {
                    let depth = DEPTH.min(held - at);
                    for (line, values) in weights.chunks_exact_mut(depth).take(count).enumerate() {
                        self.weight.load(place.whole[1] + col + line, start + at, values);
                    }
                    let store = if start + at == 0 { Store::Set(1.0) } else { Store::Add };
                    for panel in (0..stride).step_by(PANEL) {
                        let width = PANEL.min(stride - panel);
                        product(
                            [width, count, depth],
                            &mut sums[col * stride + panel..],
                            stride,
                            Lhs { values: &lanes[panel * held + at * width..], stride: width },
                            Rhs { values: weights, step: 1, stride: depth },
                            store,
                        );
                    }
                }
            }
        }
    }
}

/// Rows of `x` to lanes, panel by panel: `lanes[panel][p][i] = x[row + panel * 64 + i][col + p]`, zero where a row
/// is past the last one. The last panel is as wide as whole lanes need.
#[inline(always)]
pub(crate) fn pack_lanes(
    isa: Isa,
    x: &MatRef<'_>,
    [row, col]: [usize; 2],
    [rows, depth]: [usize; 2],
    lanes: &mut [f32],
) {
    let stride = rows.next_multiple_of(LANES);
    for panel in (0..stride).step_by(PANEL) {
        let width = PANEL.min(stride - panel);
        let lanes = &mut lanes[panel * depth..(panel + width) * depth];
        for i in (0..width).step_by(SIDE) {
            let count = SIDE.min(rows - (panel + i));
            for p in (0..depth).step_by(SIDE) {
                let across = SIDE.min(depth - p);
                let block = x.load_block([row + panel + i, col + p], [count, across]);
                let turned = transposed(isa, &block);
                for (at, line) in turned.iter().take(across).enumerate() {
                    let start = (p + at) * width + i;
                    lanes[start..start + SIDE].copy_from_slice(line);
                }
            }
        }
    }
}
