//! `out = residual + activation(x w^T + b)`.
//!
//! A strand holds, in its scratch, a block of rows of `x` as lanes (`[k][rows]`), some rows of the weight as `f32`
//! and the sums of a tile. `k` goes by in blocks of a constant size, so that scratch stays bounded at any width.
//! Each sum is one chain over each block of `k`, and the blocks are added in order: a row's bits depend on
//! neither the tile it falls in nor the strand.

use super::arena::{MatMut, MatRef};
use super::epilogue::{Epilogue, TilePlace};
use super::gemm::{LANES, Lhs, Rhs, Store, product};
use super::parallel::{Corner, Grid, for_each_strand, strands_for};
use super::simd::{Block, SIDE, transposed, vectorised};

/// Columns of `x` that are summed in one chain; part of what decides the bits.
const DEPTH: usize = 384;
/// Rows of a tile.
const ROWS: usize = 192;
/// Columns of a tile.
const COLS: usize = 512;
/// Rows of the weight that are held at once: a multiple of what every kernel computes in one call (4 and 6).
const WEIGHT_ROWS: usize = 24;
/// Operations that pay for handing over a task.
const GRAIN: usize = 3_000_000;

/// Sizes of everything, from the op's shape alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocking {
    grid: Grid,
    /// Rows of a tile, padded to whole lanes.
    rows: usize,
    cols: usize,
    depth: usize,
}

impl Blocking {
    /// For `[m, k] x [n, k]^T`.
    pub(crate) fn new(m: usize, n: usize, k: usize) -> Self {
        let strands = strands_for(2 * m * n * k, GRAIN);
        // Columns first: each weight is then read by one strand only.
        let col_strands = strands.min(strands_for(n, 96));
        let row_strands = (strands / col_strands).min(strands_for(m, 96));
        let grid = Grid::new([m, n], [row_strands, col_strands], [LANES, SIDE]);
        Self {
            grid,
            rows: grid.rows.next_multiple_of(LANES).min(ROWS),
            cols: grid.cols.min(COLS),
            depth: k.min(DEPTH),
        }
    }

    /// Floats of one strand: lanes of `x`, rows of the weight, sums.
    fn parts(&self) -> [usize; 3] {
        [self.rows * self.depth, WEIGHT_ROWS * self.depth, self.rows * self.cols]
    }

    /// Floats of all strands.
    pub(crate) fn scratch_floats(&self) -> usize {
        self.grid.count() * self.parts().iter().sum::<usize>()
    }
}

/// Carries out the op; `scratch` is what [`Blocking::scratch_floats`] asked for.
pub(crate) fn linear(
    x: MatRef<'_>,
    weight: MatRef<'_>,
    epilogue: Epilogue<'_>,
    out: MatMut<'_>,
    scratch: &mut [f32],
) {
    let blocking = Blocking::new(x.rows(), weight.rows(), x.cols());
    let task = |corner: Corner, mut part: MatMut<'_>, scratch: &mut [f32]| {
        vectorised(
            #[inline(always)]
            || {
                let [lanes, weights, sums] = blocking.parts();
                let (lanes, rest) = scratch.split_at_mut(lanes);
                let (weights, sums) = (&mut rest[..weights + sums]).split_at_mut(weights);
                for row in (0..part.rows()).step_by(blocking.rows) {
                    for col in (0..part.cols()).step_by(blocking.cols) {
                        let place = TilePlace {
                            whole: [corner.row + row, corner.col + col],
                            part: [row, col],
                            size: [
                                blocking.rows.min(part.rows() - row),
                                blocking.cols.min(part.cols() - col),
                            ],
                        };
                        sum_tile(&x, &weight, place, blocking.depth, [lanes, weights, sums]);
                        let stride = place.size[0].next_multiple_of(LANES);
                        epilogue.store(sums, stride, place, &mut part);
                    }
                }
            },
        );
    };
    for_each_strand(out, blocking.grid, scratch, &task);
}

/// `sums[j][i] = x[i] . w[j]` for a tile, `i` padded to whole lanes.
#[inline(always)]
fn sum_tile(
    x: &MatRef<'_>,
    weight: &MatRef<'_>,
    place: TilePlace,
    depth_most: usize,
    [lanes, weights, sums]: [&mut [f32]; 3],
) {
    let [rows, cols] = place.size;
    let stride = rows.next_multiple_of(LANES);
    for at in (0..x.cols()).step_by(depth_most) {
        let depth = depth_most.min(x.cols() - at);
        pack_lanes(x, [place.whole[0], at], [rows, depth], lanes, stride);
        let store = if at == 0 { Store::Set(1.0) } else { Store::Add };
        for col in (0..cols).step_by(WEIGHT_ROWS) {
            let count = WEIGHT_ROWS.min(cols - col);
            for (line, values) in weights.chunks_exact_mut(depth).take(count).enumerate() {
                weight.load(place.whole[1] + col + line, at, values);
            }
            product(
                [stride, count, depth],
                &mut sums[col * stride..],
                stride,
                Lhs { values: lanes, stride },
                Rhs { values: weights, step: 1, stride: depth },
                store,
            );
        }
    }
}

/// `lanes[p][i] = x[row + i][col + p]`, zero where `i` is past the last row.
#[inline(always)]
pub(crate) fn pack_lanes(
    x: &MatRef<'_>,
    [row, col]: [usize; 2],
    [rows, depth]: [usize; 2],
    lanes: &mut [f32],
    stride: usize,
) {
    for i in (0..stride).step_by(SIDE) {
        for p in (0..depth).step_by(SIDE) {
            let width = SIDE.min(depth - p);
            let mut block: Block = [[0.0; SIDE]; SIDE];
            for (at, line) in block.iter_mut().take(rows.saturating_sub(i)).enumerate() {
                if width == SIDE {
                    x.load(row + i + at, col + p, line);
                } else {
                    x.load(row + i + at, col + p, &mut line[..width]);
                }
            }
            for (at, line) in transposed(&block).iter().take(width).enumerate() {
                let start = (p + at) * stride + i;
                lanes[start..start + SIDE].copy_from_slice(line);
            }
        }
    }
}
