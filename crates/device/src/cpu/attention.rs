//! Softmax attention by blocks of keys, with a running maximum and sum: no score matrix.
//!
//! Queries are the vector lanes of both products, so the softmax over keys needs no sum across lanes and a
//! query's bits depend on the keys alone. Keys go by in blocks of a constant size from the first on; a block
//! that a causal query does not see adds exact zeros, or is left out, with the same bits.
//!
//! Source: Dao et al., FlashAttention (arXiv 2205.14135), algorithm 1.

use super::arena::{MatMut, MatRef};
use super::gemm::{LANES, Lhs, Rhs, Store, product};
use super::linear::{PANEL, pack_lanes};
use super::math::exp;
use super::parallel::{Grid, Stop, Strand, strands_for, within_scratch};
use super::simd::{Isa, vectorised};
use super::transpose::{Block, SIDE, transposed};

/// Keys of a block; part of what decides the bits.
const KEYS: usize = 64;
/// Queries of a block: one panel of lanes, or two where there are many, since each block loads all keys and values.
const QUERIES: [usize; 2] = [PANEL, 2 * PANEL];
/// Queries from which on blocks are large.
const MANY: usize = 512;
/// Operations that pay for handing over a task.
const GRAIN: usize = 1_000_000;

/// Sizes of everything, from the op's shape alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocking {
    grid: Grid,
    head_dim: usize,
    keys: usize,
    /// Queries of a block, padded to whole lanes.
    lanes: usize,
}

impl Blocking {
    pub(crate) fn new(queries: usize, keys: usize, cols: usize, heads: usize) -> Self {
        let strands = strands_for(4 * queries * keys * cols, GRAIN);
        let cut = |strands| Self::cut([queries, keys], cols, heads, strands);
        within_scratch(strands, queries * cols, cut, Self::scratch_floats)
    }

    fn cut([queries, keys]: [usize; 2], cols: usize, heads: usize, strands: usize) -> Self {
        let head_dim = cols / heads.max(1);
        let col_strands = strands.min(heads);
        let block = QUERIES[usize::from(queries >= MANY)];
        let row_strands = strands.div_ceil(col_strands).min(queries.div_ceil(block));
        let grid = Grid::new([queries, cols], [row_strands, col_strands], [block, head_dim]);
        Self {
            grid,
            head_dim,
            keys: keys.min(KEYS),
            lanes: queries.min(block).next_multiple_of(LANES),
        }
    }

    /// Floats of one strand: queries, keys or values, scores, sums, the three running values, bias.
    fn parts(&self) -> [usize; 6] {
        let Self { head_dim, keys, lanes, .. } = *self;
        let padded = lanes + keys;
        [lanes * head_dim, keys * head_dim, keys * lanes, lanes * head_dim, 3 * lanes, padded]
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
pub(crate) struct Attention<'a> {
    pub(crate) q: MatRef<'a>,
    pub(crate) k: MatRef<'a>,
    pub(crate) v: MatRef<'a>,
    pub(crate) heads: usize,
    pub(crate) scale: f32,
    pub(crate) causal: bool,
    /// `[heads, 2 * rows - 1]`.
    pub(crate) bias: Option<MatRef<'a>>,
}

/// A strand's scratch by its use.
struct Scratch<'s> {
    /// `[head_dim][lanes]`.
    queries: &'s mut [f32],
    /// `[keys][head_dim]`, keys and then values.
    rows: &'s mut [f32],
    /// `[keys][lanes]`.
    scores: &'s mut [f32],
    /// `[head_dim][lanes]`.
    sums: &'s mut [f32],
    /// Maximum so far, sum of weights so far, factor of the sums.
    highest: &'s mut [f32],
    total: &'s mut [f32],
    factor: &'s mut [f32],
    /// Bias of a block by the difference of positions, falling.
    bias: &'s mut [f32],
}

impl<'s> Scratch<'s> {
    #[inline(always)]
    fn new(blocking: &Blocking, floats: &'s mut [f32]) -> Self {
        let [queries, rows, scores, sums, running, bias] = blocking.parts();
        let (queries, rest) = floats.split_at_mut(queries);
        let (rows, rest) = rest.split_at_mut(rows);
        let (scores, rest) = rest.split_at_mut(scores);
        let (sums, rest) = rest.split_at_mut(sums);
        let (highest, rest) = rest.split_at_mut(running / 3);
        let (total, rest) = rest.split_at_mut(running / 3);
        let (factor, rest) = rest.split_at_mut(running / 3);
        Self { queries, rows, scores, sums, highest, total, factor, bias: &mut rest[..bias] }
    }
}

impl Attention<'_> {
    /// Carries out a strand of the op.
    pub(crate) fn run(&self, strand: Strand<'_>, out: MatMut<'_>) {
        let blocking = Blocking::new(self.q.rows(), self.k.rows(), self.q.cols(), self.heads);
        let (corner, mut part) = blocking.grid.part(out, strand.task.index);
        vectorised(
            #[inline(always)]
            |isa| {
                let mut scratch = Scratch::new(&blocking, strand.scratch);
                for col in (0..part.cols()).step_by(blocking.head_dim) {
                    let head = (corner.col + col) / blocking.head_dim;
                    for row in (0..part.rows()).step_by(blocking.lanes) {
                        let count = blocking.lanes.min(part.rows() - row);
                        let queries = [corner.row + row, count];
                        let stop = strand.task.stop;
                        self.attend(isa, &blocking, stop, head, queries, &mut scratch);
                        if stop.is_set() {
                            return;
                        }
                        let stride = count.next_multiple_of(LANES);
                        store(
                            isa,
                            &scratch,
                            stride,
                            blocking.head_dim,
                            [row, col, count],
                            &mut part,
                        );
                    }
                }
            },
        );
    }

    /// Leaves the weighted sums of values and the sums of weights of `count` queries from `first` on.
    #[inline(always)]
    fn attend(
        &self,
        isa: Isa,
        blocking: &Blocking,
        stop: Stop<'_>,
        head: usize,
        [first, count]: [usize; 2],
        scratch: &mut Scratch<'_>,
    ) {
        let head_dim = blocking.head_dim;
        let column = head * head_dim;
        let stride = count.next_multiple_of(LANES);
        pack_lanes(isa, &self.q, [first, column], [count, head_dim], scratch.queries);
        scratch.highest[..stride].fill(f32::NEG_INFINITY);
        scratch.total[..stride].fill(0.0);
        let seen = if self.causal { (first + count).min(self.k.rows()) } else { self.k.rows() };
        for key in (0..seen).step_by(blocking.keys) {
            if stop.is_set() {
                return;
            }
            let keys = blocking.keys.min(self.k.rows() - key);
            load_rows(&self.k, [key, column], [keys, head_dim], scratch.rows);
            for panel in (0..stride).step_by(PANEL) {
                let width = PANEL.min(stride - panel);
                product(
                    [width, keys, head_dim],
                    &mut scratch.scores[panel..],
                    stride,
                    Lhs { values: &scratch.queries[panel * head_dim..], stride: width },
                    Rhs { values: scratch.rows, step: 1, stride: head_dim },
                    Store::Set(self.scale),
                );
            }
            if let Some(bias) = &self.bias {
                self.add_bias(bias, head, [first, key], [stride, keys], scratch);
            }
            if self.causal && key + keys > first {
                mask_future(scratch.scores, [first, key], [stride, keys]);
            }
            weigh(scratch, stride, keys);
            if key > 0 {
                for line in scratch.sums[..head_dim * stride].chunks_exact_mut(stride) {
                    for (sum, factor) in line.iter_mut().zip(&*scratch.factor) {
                        *sum *= *factor;
                    }
                }
            }
            load_rows(&self.v, [key, column], [keys, head_dim], scratch.rows);
            product(
                [stride, head_dim, keys],
                scratch.sums,
                stride,
                Lhs { values: scratch.scores, stride },
                Rhs { values: scratch.rows, step: head_dim, stride: 1 },
                if key == 0 { Store::Set(1.0) } else { Store::Add },
            );
        }
    }

    /// `scores[j][i] += bias[head, (key + j) - (first + i) + rows - 1]`.
    #[inline(always)]
    fn add_bias(
        &self,
        bias: &MatRef<'_>,
        head: usize,
        [first, key]: [usize; 2],
        [stride, keys]: [usize; 2],
        scratch: &mut Scratch<'_>,
    ) {
        // Falling by position difference, so that for a key the lanes' biases stand in order. Lanes past the
        // last query get the bias of the lowest difference there is; they are never stored.
        let window = &mut scratch.bias[..stride + keys];
        let top = key + keys - 1 + self.q.rows() - 1 - first;
        for (at, value) in window.iter_mut().enumerate() {
            *value = bias.at(head, top.saturating_sub(at));
        }
        for (j, line) in scratch.scores[..keys * stride].chunks_exact_mut(stride).enumerate() {
            let start = keys - 1 - j;
            for (score, bias) in line.iter_mut().zip(&window[start..start + stride]) {
                *score += *bias;
            }
        }
    }
}

/// Scores of keys after the query's own position become minus infinity.
#[inline(always)]
fn mask_future(scores: &mut [f32], [first, key]: [usize; 2], [stride, keys]: [usize; 2]) {
    for (j, line) in scores[..keys * stride].chunks_exact_mut(stride).enumerate() {
        // Query `first + i` sees key `key + j` where i >= key + j - first.
        let hidden = (key + j).saturating_sub(first).min(stride);
        line[..hidden].fill(f32::NEG_INFINITY);
    }
}

/// Scores to weights, in place; updates the running maximum and sum and leaves the factor of earlier sums.
#[inline(always)]
fn weigh(scratch: &mut Scratch<'_>, stride: usize, keys: usize) {
    for lane in (0..stride).step_by(SIDE) {
        let mut highest = [0.0; SIDE];
        highest.copy_from_slice(&scratch.highest[lane..lane + SIDE]);
        let before = highest;
        for key in 0..keys {
            let line = &scratch.scores[key * stride + lane..][..SIDE];
            for (most, score) in highest.iter_mut().zip(line) {
                *most = if *most > *score { *most } else { *score };
            }
        }
        let mut total = [0.0; SIDE];
        for key in 0..keys {
            let line = &mut scratch.scores[key * stride + lane..][..SIDE];
            for ((score, most), total) in line.iter_mut().zip(&highest).zip(&mut total) {
                *score = exp(*score - *most);
                *total += *score;
            }
        }
        let running = &mut scratch.total[lane..lane + SIDE];
        let factors = &mut scratch.factor[lane..lane + SIDE];
        for at in 0..SIDE {
            let factor = exp(before[at] - highest[at]);
            factors[at] = factor;
            running[at] = running[at] * factor + total[at];
        }
        scratch.highest[lane..lane + SIDE].copy_from_slice(&highest);
    }
}

/// `target[j] = source[row + j][col ..]`.
#[inline(always)]
fn load_rows(
    source: &MatRef<'_>,
    [row, col]: [usize; 2],
    [rows, width]: [usize; 2],
    target: &mut [f32],
) {
    for (at, line) in target[..rows * width].chunks_exact_mut(width).enumerate() {
        source.load(row + at, col, line);
    }
}

/// `out[row + i][col + d] = sums[d][i] / total[i]`.
#[inline(always)]
fn store(
    isa: Isa,
    scratch: &Scratch<'_>,
    stride: usize,
    head_dim: usize,
    [row, col, count]: [usize; 3],
    out: &mut MatMut<'_>,
) {
    for lane in (0..count).step_by(SIDE) {
        let mut inverse = [0.0; SIDE];
        for (inverse, total) in inverse.iter_mut().zip(&scratch.total[lane..lane + SIDE]) {
            *inverse = 1.0 / *total;
        }
        for d in (0..head_dim).step_by(SIDE) {
            let width = SIDE.min(head_dim - d);
            let mut block: Block = [[0.0; SIDE]; SIDE];
            for (at, line) in block.iter_mut().take(width).enumerate() {
                let sums = &scratch.sums[(d + at) * stride + lane..][..SIDE];
                for ((value, sum), inverse) in line.iter_mut().zip(sums).zip(&inverse) {
                    *value = *sum * *inverse;
                }
            }
            let turned = transposed(isa, &block);
            out.store_block([row + lane, col + d], [SIDE.min(count - lane), width], &turned);
        }
    }
}
