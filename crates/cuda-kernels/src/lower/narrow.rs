//! Products of 8-bit operands: rows of `x` to e4m3, each by a scale of its own, then a library's or an own kernel's product
//! with the scales of both operands' rows.
//!
//! - An own kernel takes all that follows the sum. In a library's product a residual is added by the product itself, and
//!   its gate is folded into the scales of the weight's rows and into the bias, by further blocks of the launch that quantizes: `base + gate (s (x w^T) + b)` is `(gate s)(x w^T) + gate b +
//!   base`. A residual after an activation, or one of other types, is a launch of its own after the product.
//! - The weight is multiplied as it is stored, so it is neither copied nor unpacked; only `x` takes scratch.
//! - A row is quantized by its own greatest magnitude, so what a row becomes does not depend on the rows beside it,
//!   and every number of rows takes this route: the rule of rows.
//! - Which layers take it follows from shapes and types alone. One whose addresses do not suit the library is refused:
//!   another route would be other bits.

use plimsoll_device::{Mat, Region};
use plimsoll_graph::{Activation, DType};

use super::layer::{LIBRARY_BYTES, Layer, SCRATCH_ALIGNMENT, Types, matrix};
use super::light;
use super::product::{Product, Tail, is_aligned, launch_narrow, number};
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
    let is_own = backends.narrow == NarrowBackend::Own
        && types.stored == DType::F8E4M3
        && is_bf16(types.x)
        && types.k.is_multiple_of(SIDE_MULTIPLE);
    let is_library = backends.narrow == NarrowBackend::CublasLtRows
        && backends.gemm == GemmBackend::CublasLt
        && types.stored == DType::F8E4M3
        && is_bf16(types.x)
        && is_bf16(types.out)
        && types.bias.is_none_or(is_bf16)
        && matches!(types.activation, Activation::None | Activation::GeluTanh)
        && types.n.is_multiple_of(SIDE_MULTIPLE)
        && types.k.is_multiple_of(SIDE_MULTIPLE);
    is_own || is_library
}

/// Where the parts of the scratch are, from its beginning.
struct Scratch {
    scales: u64,
    gated_scales: u64,
    gated_bias: u64,
    quantized: u64,
    product: u64,
    bytes: u64,
}

impl Scratch {
    fn new(types: &Types, backend: NarrowBackend) -> Self {
        let &Types { rows, n, k, .. } = types;
        let aligned = |bytes: u64| bytes.next_multiple_of(SCRATCH_ALIGNMENT);
        let residual = Added::of(types, backend);
        let gated = if residual == Added::Gated { n } else { 0 };
        let scales = LIBRARY_BYTES;
        let gated_scales = scales + aligned(rows * DType::F32.bytes());
        let gated_bias = gated_scales + aligned(gated * DType::F32.bytes());
        let quantized = gated_bias + aligned(gated * DType::BF16.bytes());
        let product = quantized + aligned(rows * k);
        let is_after = residual == Added::After;
        let product_bytes = if is_after { rows * n * DType::BF16.bytes() } else { 0 };
        let bytes = product + aligned(product_bytes);
        Self { scales, gated_scales, gated_bias, quantized, product, bytes }
    }
}

/// How a residual is added; a function of types, so that it is one for every number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Added {
    /// There is none.
    None,
    /// By the product.
    Plain,
    /// By the product, the gate folded into its scales and bias.
    Gated,
    /// By an own kernel, with its gate, whatever comes before.
    ByOwn,
    /// By a launch after it.
    After,
}

impl Added {
    fn of(types: &Types, backend: NarrowBackend) -> Self {
        if backend == NarrowBackend::Own {
            return if types.base.is_some() { Self::ByOwn } else { Self::None };
        }
        let is_fused = types.activation == Activation::None
            && types.base == Some(types.out)
            && types.gate.is_none_or(|gate| gate == DType::BF16);
        match (types.base, types.gate) {
            (None, _) => Self::None,
            (Some(_), _) if !is_fused => Self::After,
            (Some(_), None) => Self::Plain,
            (Some(_), Some(_)) => Self::Gated,
        }
    }
}

/// Scratch of such a layer: a library's (256 bytes, which an own kernel leaves alone), `x` in 8 bits with a scale a row, and its product where a residual follows.
pub(super) fn scratch_bytes(types: &Types, backends: Backends) -> u64 {
    Scratch::new(types, backends.narrow).bytes
}

/// The tasks of a layer that [`takes`] has accepted.
///
/// # Errors
/// [`Unsupported`] for sizes from 2^31 on, scales of another shape, too little scratch, and addresses that the
/// library does not take.
pub(super) fn tasks(
    layer: &Layer<'_>,
    types: &Types,
    scale: &Mat,
    workspace: Region,
    backend: NarrowBackend,
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
    let (scratch, added) = (Scratch::new(types, backend), Added::of(types, backend));
    if workspace.bytes < scratch.bytes {
        return Err(unsupported("no room for its operand in 8 bits"));
    }
    let at = |part: u64| workspace.offset + part;
    let base = residual.as_ref().map(|residual| &residual.base);
    let gate = residual.as_ref().and_then(|residual| residual.gate.as_ref());
    let dense = |offset: u64, cols: u64, dtype: DType| Mat {
        offset,
        rows,
        cols,
        stride: cols,
        dtype,
        step_bytes: 0,
    };
    let quantized = dense(at(scratch.quantized), k, DType::F8E4M3);
    if backend == NarrowBackend::Own {
        // Read as vectors where n is a multiple of 8.
        if !scale.offset.is_multiple_of(16) {
            return Err(unsupported("scales at an address that is not a multiple of 16"));
        }
        let tail = Tail { bias, activation, gate, base, out };
        let product = Product { x: &quantized, w: weight, tail };
        let scales = [at(scratch.scales), scale.offset];
        let launches = [
            quantize(name, x, at(scratch.scales), &quantized, None)?,
            launch_narrow(name, &product, scales)?,
        ];
        return Ok(launches.map(Task::Launch).to_vec());
    }
    let is_after = added == Added::After;
    let by_product = [Some(out), base].map(|mat| mat.filter(|_| !is_after));
    let suits = [Some(weight), Some(scale), bias]
        .into_iter()
        .chain(by_product)
        .flatten()
        .all(|mat| is_aligned(mat) && mat.step_bytes == 0);
    if !suits {
        return Err(unsupported("an 8-bit product at addresses that are not multiples of 16"));
    }
    if gate.is_some_and(|gate| (gate.rows, gate.cols) != (1, n))
        || base.is_some_and(|base| (base.rows, base.cols) != (rows, n))
    {
        return Err(unsupported("a residual of this shape"));
    }
    let product = if is_after { dense(at(scratch.product), n, DType::BF16) } else { *out };
    let fold = gate.filter(|_| added == Added::Gated).map(|gate| Fold {
        scale,
        gate,
        bias,
        gated_scales: at(scratch.gated_scales),
        gated_bias: at(scratch.gated_bias),
    });
    let first = quantize(name, x, at(scratch.scales), &quantized, fold.as_ref())?;
    let (scales, bias) = match &fold {
        Some(fold) => (fold.gated_scales, bias.map(|_| fold.gated_bias)),
        None => (scale.offset, bias.map(|bias| bias.offset)),
    };
    let gemm = Gemm {
        a: matrix(&quantized),
        b: matrix(weight),
        scales: Some(RowScales { a: at(scratch.scales), b: scales }),
        bias,
        activation: match activation {
            Activation::GeluTanh => GemmActivation::GeluTanh,
            _ => GemmActivation::None,
        },
        add: base.filter(|_| !is_after).map(matrix),
        out: matrix(&product),
        workspace: Region { offset: workspace.offset, bytes: LIBRARY_BYTES },
    };
    let after = base
        .filter(|_| is_after)
        .map(|base| light::gated_residual(name, base, &product, gate, out));
    let after = after.transpose()?.map(Task::Launch);
    Ok([Task::Launch(first), Task::Gemm(gemm)].into_iter().chain(after).collect())
}

/// A gate that is folded into scales and bias.
struct Fold<'a> {
    scale: &'a Mat,
    gate: &'a Mat,
    bias: Option<&'a Mat>,
    /// Byte offsets of what becomes of them.
    gated_scales: u64,
    gated_bias: u64,
}

/// Rows of `x` to 8 bits, and a scale for each; further blocks fold the gate.
fn quantize(
    name: &str,
    x: &Mat,
    scales: u64,
    out: &Mat,
    fold: Option<&Fold<'_>>,
) -> Result<Launch, Unsupported> {
    let is_vector = x.cols.is_multiple_of(VECTOR) && is_aligned(x);
    let vectors = x.cols.div_ceil(VECTOR * u64::from(THREADS));
    let in_registers = ROW_KERNELS.iter().find(|(_, most)| is_vector && vectors <= *most);
    let kernel = in_registers.map_or("quantize_f8_any", |(kernel, _)| kernel);
    let columns = fold.map_or(0, |fold| fold.gate.cols);
    let moves = fold.is_some_and(|fold| fold.gate.step_bytes != 0) || x.step_bytes != 0;
    let folded = match fold {
        Some(fold) => [
            Arg::Arena(fold.scale.offset),
            Arg::Arena(fold.gate.offset),
            Arg::U32(number(name, fold.gate.step_bytes)?),
            fold.bias.map_or(Arg::Null, |bias| Arg::Arena(bias.offset)),
            Arg::Arena(fold.gated_scales),
            Arg::Arena(fold.gated_bias),
        ],
        None => [Arg::Null, Arg::Null, Arg::U32(0), Arg::Null, Arg::Null, Arg::Null],
    };
    let rows = [
        Arg::Arena(x.offset),
        Arg::U32(number(name, x.stride)?),
        Arg::U32(number(name, x.step_bytes)?),
        Arg::Arena(scales),
        Arg::Arena(out.offset),
        Arg::U32(number(name, x.cols)?),
        Arg::U32(number(name, x.rows)?),
    ];
    let last = [Arg::U32(number(name, columns)?), if moves { Arg::Step } else { Arg::Null }];
    Ok(Launch {
        kernel,
        grid: [number(name, x.rows + columns.div_ceil(u64::from(THREADS)))?, 1, 1],
        block: [THREADS, 1, 1],
        shared_bytes: 0,
        args: rows.into_iter().chain(folded).chain(last).collect(),
    })
}
