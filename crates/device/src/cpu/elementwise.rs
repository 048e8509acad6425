//! Ops that compute each element from the same element of their operands.

use plimsoll_graph::Activation;

use super::arena::{MatMut, MatRef};
use super::math;
use super::parallel::{Grid, Task, strands_for};
use super::simd::vectorised;

/// Elements that are loaded, computed and stored at once.
const CHUNK: usize = 512;

/// Elements that pay for handing over a task.
pub(crate) const GRAIN: usize = 8 * 1024;

/// How an elementwise op's result is cut.
pub(crate) fn grid(rows: usize, cols: usize) -> Grid {
    Grid::bands([rows, cols], strands_for(rows.saturating_mul(cols), GRAIN))
}

/// `out[row, col ..] = chunk` for a strand's rows, where `fill(row, col, chunk, other)` computes the chunk; `other` is
/// as long and for a second operand.
#[inline(always)]
pub(crate) fn map(
    task: Task<'_>,
    out: MatMut<'_>,
    fill: impl Fn(usize, usize, &mut [f32], &mut [f32]),
) {
    let cols = out.cols();
    let (corner, mut band) = grid(out.rows(), cols).part(out, task.index);
    vectorised(
        #[inline(always)]
        |_| {
            let (mut buffer, mut second) = ([0.0; CHUNK], [0.0; CHUNK]);
            for row in 0..band.rows() {
                if task.stop.is_set() {
                    return;
                }
                for col in (0..cols).step_by(CHUNK) {
                    let chunk = &mut buffer[..CHUNK.min(cols - col)];
                    let other = &mut second[..chunk.len()];
                    fill(corner.row + row, col, chunk, other);
                    band.store(row, col, chunk);
                }
            }
        },
    );
}

/// `out = x` with a cast.
pub(crate) fn copy(task: Task<'_>, x: MatRef<'_>, out: MatMut<'_>) {
    map(
        task,
        out,
        #[inline(always)]
        |row, col, chunk, _| x.load(row, col, chunk),
    );
}

/// `out = a + b`; a `b` of one row is added to every row.
pub(crate) fn add(task: Task<'_>, a: MatRef<'_>, b: MatRef<'_>, out: MatMut<'_>) {
    let is_row = b.rows() == 1;
    map(
        task,
        out,
        #[inline(always)]
        |row, col, chunk, other| {
            a.load(row, col, chunk);
            b.load(if is_row { 0 } else { row }, col, other);
            for (value, addend) in chunk.iter_mut().zip(&*other) {
                *value += *addend;
            }
        },
    );
}

/// Applies an activation to a chunk.
#[inline(always)]
pub(crate) fn activate_chunk(activation: Activation, chunk: &mut [f32]) {
    match activation {
        Activation::None => {}
        Activation::Silu => chunk.iter_mut().for_each(|value| *value = math::silu(*value)),
        Activation::GeluTanh => chunk.iter_mut().for_each(|value| *value = math::gelu_tanh(*value)),
        Activation::QuickGelu => {
            chunk.iter_mut().for_each(|value| *value = math::quick_gelu(*value));
        }
    }
}

/// `out = activation(x)`.
pub(crate) fn activate(task: Task<'_>, x: MatRef<'_>, activation: Activation, out: MatMut<'_>) {
    map(
        task,
        out,
        #[inline(always)]
        |row, col, chunk, _| {
            x.load(row, col, chunk);
            activate_chunk(activation, chunk);
        },
    );
}

/// `out[:, j] = gelu_tanh(x[:, j]) * x[:, cols + j]`.
pub(crate) fn glu_gelu(task: Task<'_>, x: MatRef<'_>, out: MatMut<'_>) {
    let cols = out.cols();
    map(
        task,
        out,
        #[inline(always)]
        |row, col, chunk, factor| {
            x.load(row, col, chunk);
            x.load(row, cols + col, factor);
            for (value, factor) in chunk.iter_mut().zip(&*factor) {
                *value = math::gelu_tanh(*value) * *factor;
            }
        },
    );
}

/// `latent += dsigma * velocity`.
pub(crate) fn euler(
    task: Task<'_>,
    latent: MatRef<'_>,
    velocity: MatRef<'_>,
    dsigma: MatRef<'_>,
    out: MatMut<'_>,
) {
    let dsigma = dsigma.at(0, 0);
    map(
        task,
        out,
        #[inline(always)]
        |row, col, chunk, slope| {
            latent.load(row, col, chunk);
            velocity.load(row, col, slope);
            for (value, slope) in chunk.iter_mut().zip(&*slope) {
                *value += dsigma * *slope;
            }
        },
    );
}

/// Packed tokens to pixels: `out = x / scale + shift`.
pub(crate) fn unpatchify(
    task: Task<'_>,
    x: MatRef<'_>,
    width: usize,
    scale: f32,
    shift: f32,
    out: MatMut<'_>,
) {
    map(
        task,
        out,
        #[inline(always)]
        |pixel, col, chunk, _| {
            let (y, x_at) = (pixel / width, pixel % width);
            let token = (y / 2) * (width / 2) + x_at / 2;
            let corner = (y % 2) * 2 + x_at % 2;
            for (at, value) in chunk.iter_mut().enumerate() {
                *value = x.at(token, (col + at) * 4 + corner) / scale + shift;
            }
        },
    );
}

/// Timestep embedding: cosines, then sines.
///
/// The frequency, its product with the time and the angle are rounded to single precision where diffusers
/// rounds them, since an angle of 1000 turns one unit in the last place into 6e-5.
/// Source: `get_timestep_embedding` of diffusers, `downscale_freq_shift` 0.
#[expect(clippy::cast_possible_truncation, reason = "rounding to single precision is meant")]
#[expect(clippy::cast_precision_loss, reason = "a column number, far below 2^24")]
pub(crate) fn sinusoid(x: MatRef<'_>, mut out: MatMut<'_>) {
    let half = out.cols() / 2;
    let ln_period = (10_000.0f64).ln() as f32;
    for row in 0..out.rows() {
        let time = 1000.0 * x.at(row, 0);
        for k in 0..half {
            let exponent = -ln_period * k as f32 / half as f32;
            let frequency = math::exp64(f64::from(exponent)) as f32;
            let (cos, sin) = math::cos_sin64(f64::from(time * frequency));
            out.store(row, k, &[cos as f32]);
            out.store(row, half + k, &[sin as f32]);
        }
    }
}
