//! Ops that compute each element from the same element of their operands (`kernels/light_map.cu`).

use plimsoll_device::Mat;
use plimsoll_graph::{Activation, DType};

use super::operands::{Arguments, THREADS, VECTOR, blocks, is_vector, number, require_numbers};
use crate::task::{Launch, Unsupported};

/// How an elementwise op walks over its result.
struct Walk {
    rows: u64,
    cols: u64,
    is_vector: bool,
    grid: [u32; 3],
}

impl Walk {
    /// Over `out`. `whole` are the operands of its shape, it among them; `others` a row or parts of rows.
    ///
    /// Where no operand has gaps and none is repeated, all is one long row.
    fn new(name: &str, out: &Mat, whole: &[&Mat], others: &[&Mat]) -> Result<Self, Unsupported> {
        let elements = out.rows.saturating_mul(out.cols);
        let is_flat = others.is_empty()
            && whole.iter().all(|mat| mat.rows == 1 || mat.stride == mat.cols)
            && number(name, elements).is_ok();
        let (rows, cols) = if is_flat { (1, elements) } else { (out.rows, out.cols) };
        // A flat row has no second row to be aligned, but single rows of a wider tensor are judged as it is.
        let is_vector = is_vector(cols, others)
            && if is_flat {
                let starts: Vec<Mat> = whole.iter().map(|mat| Mat { stride: 0, ..**mat }).collect();
                is_vector(cols, &starts.iter().collect::<Vec<_>>())
            } else {
                is_vector(cols, whole)
            };
        let width = if is_vector { VECTOR } else { 1 };
        Ok(Self { rows, cols, is_vector, grid: blocks(name, elements / width)? })
    }

    /// Adds the sizes and `numbers`, and launches the kernel of this walk's width.
    fn launch(
        &self,
        arguments: Arguments<'_>,
        numbers: &[u64],
        [by_one, by_eight]: [&'static str; 2],
    ) -> Result<Launch, Unsupported> {
        let sized = arguments.u32(self.rows)?.u32(self.cols)?;
        let all = numbers.iter().try_fold(sized, |arguments, value| arguments.u32(*value))?;
        let kernel = if self.is_vector { by_eight } else { by_one };
        Ok(all.launch(kernel, self.grid, THREADS))
    }
}

fn require_shape(name: &str, holds: bool) -> Result<(), Unsupported> {
    if holds { Ok(()) } else { Err(Unsupported { what: format!("{name}: shapes that differ") }) }
}

fn is_same(one: &Mat, other: &Mat) -> bool {
    (one.rows, one.cols) == (other.rows, other.cols)
}

/// `out = x`, cast where the types differ.
pub(in crate::lower) fn copy(name: &str, x: &Mat, out: &Mat) -> Result<Launch, Unsupported> {
    if (x.dtype == DType::U32) != (out.dtype == DType::U32) {
        let (from, to) = (x.dtype.name(), out.dtype.name());
        return Err(Unsupported { what: format!("{name}: a cast from {from} to {to}") });
    }
    require_shape(name, is_same(x, out))?;
    let walk = Walk::new(name, out, &[x, out], &[])?;
    let arguments = Arguments::new(name).matrix(x)?.matrix(out)?;
    walk.launch(arguments, &[], ["copy_1", "copy_8"])
}

/// `out = a + b`; a `b` of one row is added to every row.
pub(super) fn add(name: &str, a: &Mat, b: &Mat, out: &Mat) -> Result<Launch, Unsupported> {
    require_numbers(name, &[a, b, out])?;
    require_shape(name, is_same(a, out) && b.cols == out.cols)?;
    require_shape(name, b.rows == out.rows || b.rows == 1)?;
    let walk = if b.rows == out.rows {
        Walk::new(name, out, &[a, b, out], &[])?
    } else {
        Walk::new(name, out, &[a, out], &[b])?
    };
    let arguments = Arguments::new(name).matrix(a)?.matrix(b)?.matrix(out)?;
    walk.launch(arguments, &[b.rows], ["add_1", "add_8"])
}

/// `out = a + weight`, of which the first rows are used.
pub(super) fn add_weight(
    name: &str,
    a: &Mat,
    weight: &Mat,
    out: &Mat,
) -> Result<Launch, Unsupported> {
    require_shape(name, weight.rows >= a.rows)?;
    add(name, a, &Mat { rows: a.rows, ..*weight }, out)
}

/// `out = activation(x)`; without one, a copy.
pub(in crate::lower) fn activate(
    name: &str,
    x: &Mat,
    activation: Activation,
    out: &Mat,
) -> Result<Launch, Unsupported> {
    // The numbers of `common.cuh`.
    let kind = match activation {
        Activation::None => return copy(name, x, out),
        Activation::Silu => 1,
        Activation::GeluTanh => 2,
        Activation::QuickGelu => 3,
    };
    require_numbers(name, &[x, out])?;
    require_shape(name, is_same(x, out))?;
    let walk = Walk::new(name, out, &[x, out], &[])?;
    let arguments = Arguments::new(name).matrix(x)?.matrix(out)?;
    walk.launch(arguments, &[kind], ["activate_1", "activate_8"])
}

/// `out[:, j] = gelu_tanh(x[:, j]) * x[:, cols + j]`.
pub(super) fn glu_gelu(name: &str, x: &Mat, out: &Mat) -> Result<Launch, Unsupported> {
    require_numbers(name, &[x, out])?;
    require_shape(name, x.rows == out.rows && x.cols == 2 * out.cols)?;
    let walk = Walk::new(name, out, &[out], &[x])?;
    let arguments = Arguments::new(name).matrix(x)?.matrix(out)?;
    walk.launch(arguments, &[], ["glu_gelu_1", "glu_gelu_8"])
}

/// `out = base + gate * x` with one factor a column, 1 where there is no gate: what follows a product whose
/// library cannot gate. `out` may be `base` or `x`; the gate may move with the step.
pub(in crate::lower) fn gated_residual(
    name: &str,
    base: &Mat,
    x: &Mat,
    gate: Option<&Mat>,
    out: &Mat,
) -> Result<Launch, Unsupported> {
    require_numbers(name, &[base, x, gate.unwrap_or(x), out])?;
    require_shape(name, is_same(base, out) && is_same(x, out))?;
    require_shape(name, gate.is_none_or(|gate| gate.rows == 1 && gate.cols == out.cols))?;
    let row: Vec<&Mat> = gate.into_iter().collect();
    let walk = Walk::new(name, out, &[base, x, out], &row)?;
    let arguments = Arguments::new(name).matrix(base)?.matrix(x)?;
    let arguments = match gate {
        Some(gate) => arguments.matrix(gate)?,
        None => arguments.no_matrix(),
    };
    walk.launch(arguments.matrix(out)?, &[], ["gated_residual_1", "gated_residual_8"])
}

/// `latent += dsigma * velocity`.
pub(super) fn euler(
    name: &str,
    latent: &Mat,
    velocity: &Mat,
    dsigma: &Mat,
) -> Result<Launch, Unsupported> {
    require_numbers(name, &[latent, velocity, dsigma])?;
    require_shape(name, is_same(latent, velocity) && dsigma.rows == 1 && dsigma.cols == 1)?;
    // The one factor is read by itself: its alignment is no matter.
    let walk = Walk::new(name, latent, &[latent, velocity], &[])?;
    let arguments = Arguments::new(name).matrix(latent)?.matrix(velocity)?.matrix(dsigma)?;
    walk.launch(arguments, &[], ["euler_1", "euler_8"])
}
