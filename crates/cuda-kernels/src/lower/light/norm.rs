//! Norms of rows (`kernels/light_norm.cu`) and of heads (`kernels/light_rope.cu`).

use plimsoll_device::Mat;
use plimsoll_graph::{DType, Norm};

use super::operands::{Arguments, THREADS, VECTOR, blocks, is_vector, number, require_numbers};
use crate::task::{Launch, Unsupported};

/// Threads of a block that keeps its row in registers.
const ROW_THREADS: u32 = 128;

/// The kernels that do, by vectors a thread less one.
const ROW_KERNELS: [&str; 4] = ["norm_1", "norm_2", "norm_3", "norm_4"];

/// Normalises each row: a block a row.
pub(super) fn rows(
    name: &str,
    x: &Mat,
    norm: &Norm<Mat, Mat>,
    out: &Mat,
) -> Result<Launch, Unsupported> {
    // The numbers of the kernels' source.
    let (kind, eps, factor, addend) = match norm {
        Norm::LayerModulated { eps, scale, shift } => (0, *eps, scale, Some(shift)),
        Norm::LayerAffine { eps, weight, bias } => (1, *eps, weight, Some(bias)),
        Norm::Rms { eps, weight } => (2, *eps, weight, None),
    };
    let mut operands = vec![x, factor, out];
    operands.extend(addend);
    require_numbers(name, &operands)?;
    let is_row = |mat: &Mat| mat.rows == 1 && mat.cols == out.cols;
    if (x.rows, x.cols) != (out.rows, out.cols) || !is_row(factor) || !addend.is_none_or(is_row) {
        return Err(Unsupported { what: format!("{name}: shapes that differ") });
    }
    let is_vector = is_vector(out.cols, &operands);
    let is_bf16 = operands.iter().all(|mat| mat.dtype == DType::BF16);
    let vectors = out.cols.div_ceil(VECTOR * u64::from(ROW_THREADS));
    let in_registers = usize::try_from(vectors - 1)
        .ok()
        .and_then(|index| ROW_KERNELS.get(index))
        .filter(|_| is_vector && is_bf16);
    let (kernel, threads) = match in_registers {
        Some(kernel) => (*kernel, ROW_THREADS),
        None if is_vector => ("norm_wide_8", THREADS),
        None => ("norm_wide_1", THREADS),
    };
    let arguments = Arguments::new(name).matrix(x)?.matrix(factor)?;
    let arguments = match addend {
        Some(addend) => arguments.matrix(addend)?,
        None => arguments.no_matrix(),
    };
    let arguments = arguments.matrix(out)?.u32(out.cols)?.u32(kind)?.f32(eps);
    let grid = [number(name, out.rows)?, 1, 1];
    Ok(arguments.launch(kernel, grid, threads))
}

/// Normalises each head of Q and K and turns it, in place.
pub(super) fn heads(
    name: &str,
    [q, k]: [&Mat; 2],
    weights: [&Mat; 2],
    rope: &Mat,
    heads: u64,
    eps: f32,
) -> Result<Launch, Unsupported> {
    let operands = [q, k, weights[0], weights[1], rope];
    require_numbers(name, &operands)?;
    let head_dim = q.cols.checked_div(heads).unwrap_or(0);
    let is_whole = head_dim > 0 && head_dim.is_multiple_of(2) && head_dim * heads == q.cols;
    let is_same = (q.rows, q.cols) == (k.rows, k.cols)
        && rope.dtype == DType::F32
        && (rope.rows, rope.cols) == (q.rows, head_dim)
        && weights.iter().all(|weight| weight.rows == 1 && weight.cols == head_dim);
    if !is_whole || !is_same {
        return Err(Unsupported { what: format!("{name} with heads of {head_dim} columns") });
    }
    let by_vectors = match head_dim {
        32 => Some("qk_norm_rope_4"),
        64 => Some("qk_norm_rope_8"),
        128 => Some("qk_norm_rope_16"),
        _ => None,
    };
    let by_vectors = by_vectors.filter(|_| is_vector(head_dim, &operands));
    let units = q.rows.saturating_mul(heads);
    let (kernel, grid) = match by_vectors {
        Some(kernel) => (kernel, blocks(name, units.saturating_mul(head_dim / VECTOR))?),
        None => {
            // A warp a head, Q and K in the second dimension.
            let [columns, ..] = blocks(name, units.saturating_mul(32))?;
            ("qk_norm_rope_any", [columns, 2, 1])
        }
    };
    let [q_weight, k_weight] = weights;
    let arguments = Arguments::new(name).matrix(q)?.matrix(k)?.matrix(q_weight)?;
    let arguments = arguments.matrix(k_weight)?.matrix(rope)?;
    let arguments = arguments.u32(q.rows)?.u32(heads)?.u32(head_dim)?.f32(eps);
    Ok(arguments.launch(kernel, grid, THREADS))
}
