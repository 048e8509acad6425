//! Launches of the product kernels: `out = base + gate * activation(x w^T + bias)`.
//!
//! Which kernel is a function of sizes, types and alignment alone. All kernels on tensor cores give an element
//! the same bits (`kernels/tile.cuh`), so the number of rows may choose the tile; `gemm_any` is chosen by types,
//! alignment and depth, which are the same for every number of rows.

use plimsoll_device::Mat;
use plimsoll_graph::{Activation, DType};

use crate::task::{Arg, Launch, Unsupported};

/// Rows up to which a product's time is that of reading its weight.
pub(super) const THIN_ROWS: u64 = 16;

/// Tiles of 128 x 128 from which on they keep a card busy.
const LARGE_TILES: u64 = 96;
/// The same of 8-bit operands: 96 of them take 62 us on an H200 where 384 of 64 x 64 take 51.
const NARROW_LARGE_TILES: u64 = 192;

/// Bytes to which vector accesses and asynchronous copies are aligned.
const ALIGNMENT: u64 = 16;

/// Elements of 16 bytes of bf16.
const VECTOR: u64 = 8;

/// Bit of `FLAG_VECTOR` in `kernels/heavy.cuh`.
const FLAG_VECTOR: u32 = 1 << 8;

/// A product's operands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product<'a> {
    pub(super) x: &'a Mat,
    pub(super) w: &'a Mat,
    pub(super) tail: Tail<'a>,
}

/// What happens to a sum before it is stored, and where.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tail<'a> {
    pub(super) bias: Option<&'a Mat>,
    pub(super) activation: Activation,
    pub(super) gate: Option<&'a Mat>,
    pub(super) base: Option<&'a Mat>,
    pub(super) out: &'a Mat,
}

/// A kernel with its tile.
#[derive(Clone, Copy)]
struct Kernel {
    name: &'static str,
    tile: [u64; 2],
    threads: u32,
    shared_bytes: u32,
}

const LARGE: Kernel =
    Kernel { name: "gemm_128x128", tile: [128, 128], threads: 128, shared_bytes: 3 * 256 * 128 };
const MIDDLE: Kernel =
    Kernel { name: "gemm_64x64", tile: [64, 64], threads: 128, shared_bytes: 4 * 128 * 128 };
const THIN: Kernel =
    Kernel { name: "gemm_16x32", tile: [16, 32], threads: 128, shared_bytes: 7 * 48 * 128 };
/// Of 8-bit operands; a step along k is as many bytes.
const NARROW_LARGE: Kernel = Kernel { name: "gemm_f8_128x128", ..LARGE };
const NARROW_SMALL: Kernel = Kernel { name: "gemm_f8_64x64", ..MIDDLE };
const ANY: Kernel = Kernel { name: "gemm_any", tile: [64, 64], threads: 256, shared_bytes: 0 };

/// A size that the kernels take: below 2^31, so that a tile's end is a `u32` too.
pub(super) fn number(name: &str, value: u64) -> Result<u32, Unsupported> {
    match u32::try_from(value) {
        Ok(number) if number <= i32::MAX as u32 => Ok(number),
        _ => Err(Unsupported { what: format!("{name}: a size of {value}") }),
    }
}

/// Every operand is a number, and none but the listed ones moves with the step.
pub(super) fn require_plain(name: &str, operands: &[&Mat]) -> Result<(), Unsupported> {
    if operands.iter().any(|mat| matches!(mat.dtype, DType::U32 | DType::F8E4M3)) {
        return Err(Unsupported { what: format!("{name} with u32 or 8-bit operands") });
    }
    if operands.iter().any(|mat| mat.step_bytes != 0) {
        return Err(Unsupported { what: format!("{name} with operands that move with the step") });
    }
    Ok(())
}

/// Whether every row begins at a multiple of 16 bytes. The stride counts for a single row too: a row must not be
/// computed otherwise for being alone.
pub(super) fn is_aligned(mat: &Mat) -> bool {
    [mat.offset, mat.step_bytes, mat.stride * mat.dtype.bytes()]
        .iter()
        .all(|bytes| bytes.is_multiple_of(ALIGNMENT))
}

/// Whether an operand can be copied to shared memory in pieces of 16 bytes of bf16.
pub(super) fn is_for_tensor_cores(mat: &Mat) -> bool {
    mat.dtype == DType::BF16 && is_aligned(mat)
}

/// The kernels' `flags`.
pub(super) fn flags(tail: &Tail<'_>, x: &Mat, w: &Mat) -> u32 {
    let activation = match tail.activation {
        Activation::None => 0,
        Activation::Silu => 1,
        Activation::GeluTanh => 2,
        Activation::QuickGelu => 3,
    };
    let stored = [tail.bias, tail.gate, tail.base, Some(tail.out)];
    let is_vector =
        tail.out.cols.is_multiple_of(VECTOR) && stored.iter().flatten().all(|mat| is_aligned(mat));
    let f32_bits = stored
        .iter()
        .chain(&[Some(x), Some(w)])
        .enumerate()
        .filter(|(_, mat)| mat.is_some_and(|mat| mat.dtype == DType::F32))
        .fold(0, |bits, (at, _)| bits | 4 << at);
    activation | f32_bits | if is_vector { FLAG_VECTOR } else { 0 }
}

/// Arguments `(address, bytes a step)` of an operand that may be absent.
fn place(name: &str, mat: Option<&Mat>) -> Result<[Arg; 2], Unsupported> {
    Ok(match mat {
        Some(mat) => [Arg::Arena(mat.offset), Arg::U32(number(name, mat.step_bytes)?)],
        None => [Arg::Null, Arg::U32(0)],
    })
}

/// The launch of a product by an own kernel.
///
/// # Errors
/// [`Unsupported`] for operands of indices, sizes from 2^31 on, and operands that do not fit each other.
pub(super) fn launch(name: &str, product: &Product<'_>) -> Result<Launch, Unsupported> {
    if [product.x, product.w].iter().any(|mat| mat.dtype == DType::F8E4M3) {
        return Err(Unsupported { what: format!("{name} with 8-bit operands") });
    }
    launch_of(name, product, kernel(product))
}

/// The launch of a product of 8-bit operands: `x` dense, each row of both with an `f32` scale at an offset.
///
/// The number of rows may choose the tile, since all tiles of an architecture give an element the same bits.
///
/// # Errors
/// As [`launch`], and for operands of other types or at addresses that are not multiples of 16.
pub(super) fn launch_narrow(
    name: &str,
    product: &Product<'_>,
    scales: [u64; 2],
) -> Result<Launch, Unsupported> {
    let Product { x, w, .. } = product;
    let is_narrow = |mat: &Mat| mat.dtype == DType::F8E4M3 && is_aligned(mat);
    if !(is_narrow(x) && is_narrow(w) && x.step_bytes == 0 && x.cols.is_multiple_of(ALIGNMENT)) {
        return Err(Unsupported { what: format!("{name}: 8-bit operands of this kind") });
    }
    let is_large = tiles(&NARROW_LARGE, product) >= NARROW_LARGE_TILES;
    let mut launch =
        launch_of(name, product, if is_large { &NARROW_LARGE } else { &NARROW_SMALL })?;
    launch.args.extend(scales.map(Arg::Arena));
    Ok(launch)
}

fn tiles(kernel: &Kernel, Product { x, w, .. }: &Product<'_>) -> u64 {
    x.rows.div_ceil(kernel.tile[0]) * w.rows.div_ceil(kernel.tile[1])
}

fn launch_of(name: &str, product: &Product<'_>, kernel: &Kernel) -> Result<Launch, Unsupported> {
    let Product { x, w, tail } = product;
    let (m, n, k) = (x.rows, w.rows, x.cols);
    let all = [Some(*x), Some(*w), tail.bias, tail.gate, tail.base, Some(tail.out)];
    let is_number = |mat: &&Mat| !matches!(mat.dtype, DType::U32 | DType::F8E4M3);
    if x.dtype == DType::U32 || w.dtype == DType::U32 || !all[2..].iter().flatten().all(is_number) {
        return Err(Unsupported { what: format!("{name} with u32 or 8-bit operands") });
    }
    let is_row = |mat: Option<&Mat>| mat.is_none_or(|mat| mat.rows == 1 && mat.cols == n);
    let is_result = |mat: &Mat| mat.rows == m && mat.cols == n;
    let fits = w.cols == k
        && is_row(tail.bias)
        && is_row(tail.gate)
        && tail.base.is_none_or(is_result)
        && is_result(tail.out)
        && w.step_bytes == 0
        && tail.bias.is_none_or(|bias| bias.step_bytes == 0);
    if !fits {
        return Err(Unsupported { what: format!("{name}: operands of these shapes") });
    }
    let stride = |mat: Option<&Mat>| number(name, mat.map_or(0, |mat| mat.stride)).map(Arg::U32);
    let ([x_at, x_step], [gate_at, gate_step]) = (place(name, Some(x))?, place(name, tail.gate)?);
    let ([base_at, base_step], [out_at, out_step]) =
        (place(name, tail.base)?, place(name, Some(tail.out))?);
    let moves = all.iter().flatten().any(|mat| mat.step_bytes != 0);
    let args = vec![
        x_at,
        x_step,
        stride(Some(x))?,
        Arg::Arena(w.offset),
        stride(Some(w))?,
        tail.bias.map_or(Arg::Null, |bias| Arg::Arena(bias.offset)),
        gate_at,
        gate_step,
        base_at,
        base_step,
        stride(tail.base)?,
        out_at,
        out_step,
        stride(Some(tail.out))?,
        if moves { Arg::Step } else { Arg::Null },
        Arg::U32(number(name, m)?),
        Arg::U32(number(name, n)?),
        Arg::U32(number(name, k)?),
        Arg::U32(flags(tail, x, w)),
    ];
    Ok(Launch {
        kernel: kernel.name,
        grid: [number(name, tiles(kernel, product))?, 1, 1],
        block: [kernel.threads, 1, 1],
        shared_bytes: kernel.shared_bytes,
        args,
    })
}

fn kernel(product: &Product<'_>) -> &'static Kernel {
    let Product { x, w, .. } = product;
    let is_fast = is_for_tensor_cores(x) && is_for_tensor_cores(w) && x.cols.is_multiple_of(VECTOR);
    if !is_fast {
        &ANY
    } else if x.rows <= THIN_ROWS {
        &THIN
    } else if tiles(&LARGE, product) >= LARGE_TILES {
        &LARGE
    } else {
        &MIDDLE
    }
}
