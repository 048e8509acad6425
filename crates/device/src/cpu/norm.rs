//! Norms of rows and of heads.

use plimsoll_graph::{DType, Norm};

use super::arena::{MatMut, MatRef};
use super::elementwise::GRAIN;
use super::math::{self, bf16_round};
use super::parallel::{for_each_band, strands_for};
use super::simd::vectorised;

/// Elements of a row that are held at once; a multiple of the block in which [`math::sum`] adds.
const ROW: usize = 4096;

/// Widest head.
pub(crate) const HEAD_DIM_MAX: usize = 512;

/// Calls `visit(col, chunk)` for each chunk of a row of `x`; a row that fits is loaded once for all passes.
struct RowCache<'x, 'a> {
    x: &'x MatRef<'a>,
    row: usize,
    buffer: [f32; ROW],
}

impl RowCache<'_, '_> {
    #[inline(always)]
    fn begin(&mut self, row: usize) {
        self.row = row;
        if self.x.cols() <= ROW {
            self.x.load(row, 0, &mut self.buffer[..self.x.cols()]);
        }
    }

    #[inline(always)]
    fn each(&mut self, mut visit: impl FnMut(usize, &mut [f32])) {
        let cols = self.x.cols();
        for col in (0..cols).step_by(ROW) {
            let chunk = &mut self.buffer[..ROW.min(cols - col)];
            if cols > ROW {
                self.x.load(self.row, col, chunk);
            }
            visit(col, chunk);
        }
    }
}

/// Normalises each row of `x`.
pub(crate) fn norm(x: MatRef<'_>, norm: &Norm<MatRef<'_>, MatRef<'_>>, out: MatMut<'_>) {
    let (rows, cols) = (out.rows(), out.cols());
    let strands = strands_for(rows * cols, GRAIN / 2);
    for_each_band(out, rows, strands, &|first: usize, mut band: MatMut<'_>| {
        vectorised(
            #[inline(always)]
            || {
                let mut cache = RowCache { x: &x, row: 0, buffer: [0.0; ROW] };
                for row in 0..band.rows() {
                    cache.begin(first + row);
                    norm_row(&mut cache, norm, row, &mut band);
                }
            },
        );
    });
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "rounding to single precision is meant")]
#[expect(clippy::cast_precision_loss, reason = "a number of columns, far below 2^52")]
fn norm_row(
    cache: &mut RowCache<'_, '_>,
    norm: &Norm<MatRef<'_>, MatRef<'_>>,
    row: usize,
    out: &mut MatMut<'_>,
) {
    let count = cache.x.cols() as f64;
    let mut total = 0.0;
    if let Norm::Rms { eps, weight } = norm {
        cache.each(
            #[inline(always)]
            |_, chunk| total += math::sum(chunk, |value| value * value),
        );
        let scale = math::rsqrt(total / count + f64::from(*eps));
        let is_rounded = out.dtype() == DType::BF16;
        cache.each(
            #[inline(always)]
            |col, chunk| {
                let mut factor = [0.0; ROW];
                let factor = &mut factor[..chunk.len()];
                weight.load(0, col, factor);
                for (value, factor) in chunk.iter_mut().zip(factor) {
                    let normal = *value * scale;
                    *value = (if is_rounded { bf16_round(normal) } else { normal }) * *factor;
                }
                out.store(row, col, chunk);
            },
        );
        return;
    }
    cache.each(
        #[inline(always)]
        |_, chunk| total += math::sum(chunk, |value| value),
    );
    let mean = (total / count) as f32;
    let mut square = 0.0;
    cache.each(
        #[inline(always)]
        |_, chunk| square += math::sum(chunk, |value| (value - mean) * (value - mean)),
    );
    let (eps, factor, addend, one) = match norm {
        Norm::LayerModulated { eps, scale, shift } => (*eps, scale, shift, 1.0),
        Norm::LayerAffine { eps, weight, bias } => (*eps, weight, bias, 0.0),
        Norm::Rms { .. } => return,
    };
    let deviation = math::rsqrt(square / count + f64::from(eps));
    cache.each(
        #[inline(always)]
        |col, chunk| {
            let mut factors = [0.0; ROW];
            let mut addends = [0.0; ROW];
            let (factors, addends) = (&mut factors[..chunk.len()], &mut addends[..chunk.len()]);
            factor.load(0, col, factors);
            addend.load(0, col, addends);
            for ((value, factor), addend) in chunk.iter_mut().zip(factors).zip(addends) {
                *value = (*value - mean) * deviation * (one + *factor) + *addend;
            }
            out.store(row, col, chunk);
        },
    );
}

/// RMS norm of each head, then rotary embedding of adjacent pairs, in place.
#[derive(Clone, Copy)]
pub(crate) struct HeadNorm<'a> {
    pub(crate) q_weight: MatRef<'a>,
    pub(crate) k_weight: MatRef<'a>,
    pub(crate) rope: MatRef<'a>,
    pub(crate) heads: usize,
    pub(crate) eps: f32,
}

impl HeadNorm<'_> {
    /// Carries it out on `q` and `k`.
    pub(crate) fn run(&self, q: MatMut<'_>, k: MatMut<'_>) {
        let rows = q.rows();
        let head_dim = q.cols() / self.heads;
        let strands = strands_for(2 * rows * q.cols(), GRAIN / 2);
        for_each_band([q, k], rows, strands, &|first: usize, [q, k]: [MatMut<'_>; 2]| {
            vectorised(
                #[inline(always)]
                || {
                    for (mut band, weight) in [(q, self.q_weight), (k, self.k_weight)] {
                        let mut scale = [0.0; HEAD_DIM_MAX];
                        let mut turn = [0.0; HEAD_DIM_MAX];
                        let (scale, turn) = (&mut scale[..head_dim], &mut turn[..head_dim]);
                        weight.load(0, 0, scale);
                        for row in 0..band.rows() {
                            self.rope.load(first + row, 0, turn);
                            for head in 0..self.heads {
                                self.turn_head(&mut band, row, head * head_dim, scale, turn);
                            }
                        }
                    }
                },
            );
        });
    }

    #[inline(always)]
    #[expect(clippy::cast_precision_loss, reason = "a head's width, at most 512")]
    fn turn_head(
        &self,
        band: &mut MatMut<'_>,
        row: usize,
        col: usize,
        scale: &[f32],
        turn: &[f32],
    ) {
        let mut buffer = [0.0; HEAD_DIM_MAX];
        let values = &mut buffer[..scale.len()];
        band.load(row, col, values);
        let mean = math::sum(values, |value| value * value) / scale.len() as f64;
        let norm = math::rsqrt(mean + f64::from(self.eps));
        for (value, scale) in values.iter_mut().zip(scale) {
            *value = *value * norm * *scale;
        }
        let (cos, sin) = turn.split_at(turn.len() / 2);
        for ((pair, cos), sin) in values.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
            let [even, odd] = *pair;
            *pair = [cos * even - sin * odd, sin * even + cos * odd];
        }
        band.store(row, col, values);
    }
}
