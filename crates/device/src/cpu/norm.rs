//! Norms of rows and of heads.

use plimsoll_graph::{DType, Norm};

use super::arena::{MatMut, MatRef};
use super::math::{self, bf16_round};
use super::parallel::{Grid, Task, strands_for};
use super::simd::vectorised;

/// Elements of a row that are held at once; the block in which [`math::sum`] adds.
const ROW: usize = 1024;

/// Widest head.
pub(crate) const HEAD_DIM_MAX: usize = 512;

/// Rows under a norm: the present one in chunks, with the factors and addends of its columns.
struct Rows<'x, 'a> {
    x: &'x MatRef<'a>,
    factor: &'x MatRef<'a>,
    addend: Option<&'x MatRef<'a>>,
    row: usize,
    values: [f32; ROW],
    factors: [f32; ROW],
    addends: [f32; ROW],
}

impl Rows<'_, '_> {
    /// Whether a row fits: then it is loaded once for all passes, and the factors once for all rows.
    #[inline(always)]
    fn is_whole(&self) -> bool {
        self.x.cols() <= ROW
    }

    #[inline(always)]
    fn load_factors(&mut self, col: usize, count: usize) {
        self.factor.load(0, col, &mut self.factors[..count]);
        if let Some(addend) = self.addend {
            addend.load(0, col, &mut self.addends[..count]);
        }
    }

    #[inline(always)]
    fn begin(&mut self, row: usize) {
        self.row = row;
        if self.is_whole() {
            self.x.load(row, 0, &mut self.values[..self.x.cols()]);
        }
    }

    /// Sum of `term` over the row.
    #[inline(always)]
    fn sum(&mut self, term: impl Fn(f32) -> f32) -> f64 {
        let cols = self.x.cols();
        let mut total = 0.0;
        for col in (0..cols).step_by(ROW) {
            let count = ROW.min(cols - col);
            if !self.is_whole() {
                self.x.load(self.row, col, &mut self.values[..count]);
            }
            total += math::sum(&self.values[..count], &term);
        }
        total
    }

    /// `out = apply(x, factor, addend)`.
    #[inline(always)]
    fn finish(&mut self, row: usize, out: &mut MatMut<'_>, apply: impl Fn(f32, f32, f32) -> f32) {
        let cols = self.x.cols();
        for col in (0..cols).step_by(ROW) {
            let count = ROW.min(cols - col);
            if !self.is_whole() {
                self.x.load(self.row, col, &mut self.values[..count]);
                self.load_factors(col, count);
            }
            let values = &mut self.values[..count];
            for ((value, factor), addend) in values.iter_mut().zip(&self.factors).zip(&self.addends)
            {
                *value = apply(*value, *factor, *addend);
            }
            out.store(row, col, values);
        }
    }
}

/// Elements that pay for handing over a task.
const GRAIN: usize = 6 * 1024;

/// How a norm's rows are cut.
pub(crate) fn grid(rows: usize, cols: usize) -> Grid {
    Grid::bands([rows, cols], strands_for(rows.saturating_mul(cols), GRAIN))
}

/// Normalises a strand's rows of `x`.
#[expect(clippy::cast_possible_truncation, reason = "rounding to single precision is meant")]
#[expect(clippy::cast_precision_loss, reason = "a number of columns, far below 2^52")]
pub(crate) fn norm(
    task: Task<'_>,
    x: MatRef<'_>,
    norm: &Norm<MatRef<'_>, MatRef<'_>>,
    out: MatMut<'_>,
) {
    let cols = out.cols();
    let (eps, factor, addend) = match norm {
        Norm::LayerModulated { eps, scale, shift } => (*eps, scale, Some(shift)),
        Norm::LayerAffine { eps, weight, bias } => (*eps, weight, Some(bias)),
        Norm::Rms { eps, weight } => (*eps, weight, None),
    };
    let eps = f64::from(eps);
    let count = cols as f64;
    // A modulation is a multiplier less one.
    let one = if matches!(norm, Norm::LayerModulated { .. }) { 1.0 } else { 0.0 };
    let is_rounded = out.dtype() == DType::BF16;
    let (corner, mut band) = grid(out.rows(), cols).part(out, task.index);
    vectorised(
        #[inline(always)]
        |_| {
            let (values, factors, addends) = ([0.0; ROW], [0.0; ROW], [0.0; ROW]);
            let mut rows = Rows { x: &x, factor, addend, row: 0, values, factors, addends };
            if rows.is_whole() {
                rows.load_factors(0, cols);
            }
            for row in 0..band.rows() {
                if task.stop.is_set() {
                    return;
                }
                rows.begin(corner.row + row);
                if addend.is_none() {
                    let square = rows.sum(
                        #[inline(always)]
                        |value| value * value,
                    );
                    let scale = math::rsqrt(square / count + eps);
                    rows.finish(
                        row,
                        &mut band,
                        #[inline(always)]
                        |value, factor, _| {
                            let normal = value * scale;
                            (if is_rounded { bf16_round(normal) } else { normal }) * factor
                        },
                    );
                    continue;
                }
                let total = rows.sum(
                    #[inline(always)]
                    |value| value,
                );
                let mean = (total / count) as f32;
                let square = rows.sum(
                    #[inline(always)]
                    |value| (value - mean) * (value - mean),
                );
                let scale = math::rsqrt(square / count + eps);
                rows.finish(
                    row,
                    &mut band,
                    #[inline(always)]
                    |value, factor, addend| (value - mean) * scale * (one + factor) + addend,
                );
            }
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
    /// Carries it out on a strand's rows of `q` and `k`.
    pub(crate) fn run(&self, task: Task<'_>, q: MatMut<'_>, k: MatMut<'_>) {
        let head_dim = q.cols() / self.heads;
        let (corner, [mut q, mut k]) = grid(q.rows(), 2 * q.cols()).part([q, k], task.index);
        vectorised(
            #[inline(always)]
            |_| {
                let [mut q_scale, mut k_scale, mut values] = [[0.0; HEAD_DIM_MAX]; 3];
                let mut turn = Turn { cos: [0.0; HEAD_DIM_MAX], sin: [0.0; HEAD_DIM_MAX] };
                self.q_weight.load(0, 0, &mut q_scale[..head_dim]);
                self.k_weight.load(0, 0, &mut k_scale[..head_dim]);
                for row in 0..q.rows() {
                    if task.stop.is_set() {
                        return;
                    }
                    turn.load(&self.rope, corner.row + row);
                    for (band, scale) in [(&mut q, &q_scale), (&mut k, &k_scale)] {
                        for col in (0..self.heads * head_dim).step_by(head_dim) {
                            band.load(row, col, &mut values[..head_dim]);
                            self.turn_head(&mut values, head_dim, scale, &turn);
                            band.store(row, col, &values[..head_dim]);
                        }
                    }
                }
            },
        );
    }

    /// `values` past the head are zero and stay so: whole vectors go by.
    #[inline(always)]
    #[expect(clippy::cast_precision_loss, reason = "a head's width, at most 512")]
    fn turn_head(
        &self,
        values: &mut [f32; HEAD_DIM_MAX],
        head_dim: usize,
        scale: &[f32; HEAD_DIM_MAX],
        turn: &Turn,
    ) {
        let mean = math::sum(&values[..head_dim], |value| value * value) / head_dim as f64;
        let norm = math::rsqrt(mean + f64::from(self.eps));
        let count = head_dim.div_ceil(VECTOR);
        let [scales, cos, sin] =
            [scale, &turn.cos, &turn.sin].map(|all| all.as_chunks::<VECTOR>().0);
        let chunks = values.as_chunks_mut::<VECTOR>().0;
        for (((values, scales), cos), sin) in
            chunks.iter_mut().zip(scales).zip(cos).zip(sin).take(count)
        {
            let scaled: [f32; VECTOR] = std::array::from_fn(|at| values[at] * norm * scales[at]);
            let swapped: [f32; VECTOR] = std::array::from_fn(|at| scaled[at ^ 1]);
            for at in 0..VECTOR {
                values[at] = swapped[at].mul_add(sin[at], scaled[at] * cos[at]);
            }
        }
    }
}

/// Elements that are turned side by side.
const VECTOR: usize = 16;

/// A row's rotation, an entry an element: `x * cos + (x of the pair's other) * sin`.
struct Turn {
    cos: [f32; HEAD_DIM_MAX],
    /// Negative for the first of a pair.
    sin: [f32; HEAD_DIM_MAX],
}

impl Turn {
    #[inline(always)]
    fn load(&mut self, rope: &MatRef<'_>, row: usize) {
        let half = rope.cols() / 2;
        let [mut cos, mut sin] = [[0.0; HEAD_DIM_MAX / 2]; 2];
        rope.load(row, 0, &mut cos[..half]);
        rope.load(row, half, &mut sin[..half]);
        let pairs = self.cos.as_chunks_mut::<2>().0.iter_mut();
        for ((cos_pair, sin_pair), (cos, sin)) in
            pairs.zip(self.sin.as_chunks_mut::<2>().0).zip(cos.iter().zip(&sin)).take(half)
        {
            *cos_pair = [*cos, *cos];
            *sin_pair = [-*sin, *sin];
        }
    }
}
