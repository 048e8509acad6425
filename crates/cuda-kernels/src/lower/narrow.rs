//! Products of 8-bit operands: rows of `x` to e4m3, each by a scale of its own, then a library's product with the scales
//! of both operands' rows, then at most one launch for a residual.
//!
//! - The weight is multiplied as it is stored, so it is neither copied nor unpacked; only `x` takes scratch.
//! - A row is quantized by its own greatest magnitude, so what a row becomes does not depend on the rows beside it,
//!   and every number of rows takes this route: the rule of rows.
//! - Which layers take it follows from shapes and types alone. One whose addresses do not suit the library is refused:
//!   another route would be other bits.

use plimsoll_device::{Mat, Region};
use plimsoll_graph::{Activation, DType};

use super::light;
use super::linear::{LIBRARY_BYTES, Layer, SCRATCH_ALIGNMENT, Types, matrix};
use super::product::{is_aligned, number};
use crate::task::{
    Arg, Backends, Gemm, GemmActivation, GemmBackend, Launch, NarrowBackend, RowScales, Task,
    Unsupported,
};

/// Columns and depth are multiples of this: rows of 16 bytes in every operand.
const SIDE_MULTIPLE: u64 = 16;

/// Elements of a 16-byte access to `x`.
const VECTOR: u64 = 8;

/// Threads of the block that quantizes a row.
const THREADS: u32 = 128;

/// Kernels that keep a row in registers, by vectors a thread.
const ROW_KERNELS: [(&str, u64); 2] = [("quantize_f8_4", 4), ("quantize_f8_16", 16)];

/// Whether a layer over an 8-bit weight is computed here.
pub(super) fn takes(types: &Types, backends: Backends) -> bool {
    let is_bf16 = |dtype: DType| dtype == DType::BF16;
    backends.narrow == NarrowBackend::CublasLtRows
        && backends.gemm == GemmBackend::CublasLt
        && types.stored == DType::F8E4M3
        && is_bf16(types.x)
        && is_bf16(types.out)
        && types.bias.is_none_or(is_bf16)
        && matches!(types.activation, Activation::None | Activation::GeluTanh)
        && types.n.is_multiple_of(SIDE_MULTIPLE)
        && types.k.is_multiple_of(SIDE_MULTIPLE)
}

/// Where the parts of the scratch are, from its beginning.
struct Scratch {
    scales: u64,
    quantized: u64,
    product: u64,
    bytes: u64,
}

impl Scratch {
    fn new(rows: u64, n: u64, k: u64, has_residual: bool) -> Self {
        let aligned = |bytes: u64| bytes.next_multiple_of(SCRATCH_ALIGNMENT);
        let scales = LIBRARY_BYTES;
        let quantized = scales + aligned(rows * DType::F32.bytes());
        let product = quantized + aligned(rows * k);
        let product_bytes = if has_residual { rows * n * DType::BF16.bytes() } else { 0 };
        Self { scales, quantized, product, bytes: product + aligned(product_bytes) }
    }
}

/// Scratch of such a layer: its library's, `x` in 8 bits with a scale a row, and its product where a residual follows.
pub(super) fn scratch_bytes(types: &Types) -> u64 {
    Scratch::new(types.rows, types.n, types.k, types.base.is_some()).bytes
}

/// The tasks of a layer that [`takes`] has accepted.
///
/// # Errors
/// [`Unsupported`] for sizes from 2^31 on, scales of another shape, too little scratch, and addresses that the
/// library does not take.
pub(super) fn tasks(
    layer: &Layer<'_>,
    scale: &Mat,
    workspace: Region,
) -> Result<Vec<Task>, Unsupported> {
    let Layer { name, x, weight, bias, activation, residual, out } = *layer;
    let unsupported = |what: &str| Unsupported { what: format!("{name}: {what}") };
    let (rows, n, k) = (x.rows, weight.rows, x.cols);
    let fits = scale.dtype == DType::F32
        && (scale.rows, scale.cols, scale.step_bytes) == (1, n, 0)
        && weight.cols == k
        && (out.rows, out.cols) == (rows, n)
        && bias.is_none_or(|bias| (bias.rows, bias.cols) == (1, n));
    if !fits {
        return Err(unsupported("an 8-bit weight and scales of these shapes"));
    }
    let scratch = Scratch::new(rows, n, k, residual.is_some());
    if workspace.bytes < scratch.bytes {
        return Err(unsupported("no room for its operand in 8 bits"));
    }
    let at = |part: u64| workspace.offset + part;
    let written = residual.is_none().then_some(out);
    let suits = [Some(weight), Some(scale), bias, written]
        .into_iter()
        .flatten()
        .all(|mat| is_aligned(mat) && mat.step_bytes == 0);
    if !suits {
        return Err(unsupported("an 8-bit product at addresses that are not multiples of 16"));
    }
    let dense = |offset: u64, cols: u64, dtype: DType| Mat {
        offset,
        rows,
        cols,
        stride: cols,
        dtype,
        step_bytes: 0,
    };
    let quantized = dense(at(scratch.quantized), k, DType::F8E4M3);
    let product = match residual {
        Some(_) => dense(at(scratch.product), n, DType::BF16),
        None => *out,
    };
    let first = quantize(name, x, at(scratch.scales), &quantized)?;
    let gemm = Gemm {
        a: matrix(&quantized),
        b: matrix(weight),
        scales: Some(RowScales { a: at(scratch.scales), b: scale.offset }),
        bias: bias.map(|bias| bias.offset),
        activation: match activation {
            Activation::GeluTanh => GemmActivation::GeluTanh,
            _ => GemmActivation::None,
        },
        add: None,
        out: matrix(&product),
        workspace: Region { offset: workspace.offset, bytes: LIBRARY_BYTES },
    };
    let after = residual.as_ref().map(|residual| {
        light::gated_residual(name, &residual.base, &product, residual.gate.as_ref(), out)
    });
    let after = after.transpose()?.map(Task::Launch);
    Ok([Task::Launch(first), Task::Gemm(gemm)].into_iter().chain(after).collect())
}

/// Rows of `x` to 8 bits, and a scale for each.
fn quantize(name: &str, x: &Mat, scales: u64, out: &Mat) -> Result<Launch, Unsupported> {
    let is_vector = x.cols.is_multiple_of(VECTOR) && is_aligned(x);
    let vectors = x.cols.div_ceil(VECTOR * u64::from(THREADS));
    let in_registers = ROW_KERNELS.iter().find(|(_, most)| is_vector && vectors <= *most);
    let kernel = in_registers.map_or("quantize_f8_any", |(kernel, _)| kernel);
    Ok(Launch {
        kernel,
        grid: [number(name, x.rows)?, 1, 1],
        block: [THREADS, 1, 1],
        shared_bytes: 0,
        args: vec![
            Arg::Arena(x.offset),
            Arg::U32(number(name, x.stride)?),
            Arg::U32(number(name, x.step_bytes)?),
            Arg::Arena(scales),
            Arg::Arena(out.offset),
            Arg::U32(number(name, x.cols)?),
            if x.step_bytes == 0 { Arg::Null } else { Arg::Step },
        ],
    })
}
