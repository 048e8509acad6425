//! What a device is told to do for an op.

use plimsoll_graph::DType;
use plimsoll_plan::Region;

use crate::arch::Arch;

/// Which implementation computes products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GemmBackend {
    /// Own kernels: the driver alone is enough.
    Own,
    /// cuBLASLt, with an algorithm that is fixed by the shape.
    CublasLt,
}

/// Which implementation computes attention where it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttentionBackend {
    /// Own kernels.
    Own,
    /// cuDNN's scaled dot product attention, for head sizes that it takes (64, 128), without bias or mask.
    Cudnn,
}

/// What a product over a weight stored in 8 bits multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NarrowBackend {
    /// bf16: the weight is unpacked, and the product is that over any bf16 weight.
    Unpacked,
    /// 8 bits by 8 bits in cuBLASLt: each row of `x` is quantized to e4m3 by a scale of its own first.
    ///
    /// Hopper's; cuBLASLt has no such product on other cards.
    CublasLtRows,
    /// 8 bits by 8 bits in own kernels, likewise quantized: where [`Arch::has_narrow_products`].
    Own,
}

impl NarrowBackend {
    /// Own kernels where the architecture has them.
    pub fn own(arch: Option<Arch>) -> Self {
        if arch.is_some_and(Arch::has_narrow_products) { Self::Own } else { Self::Unpacked }
    }
}

/// The implementations that a plan is made for: part of its arithmetic, since they decide bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Backends {
    /// Products.
    pub gemm: GemmBackend,
    /// Products over weights stored in 8 bits.
    pub narrow: NarrowBackend,
    /// Attention.
    pub attention: AttentionBackend,
}

impl Backends {
    /// The driver alone, on a card whose tensor cores multiply no 8 bits.
    pub const OWN: Self = Self {
        gemm: GemmBackend::Own,
        narrow: NarrowBackend::Unpacked,
        attention: AttentionBackend::Own,
    };

    /// The driver alone, on a card of an architecture.
    pub fn own(arch: Option<Arch>) -> Self {
        Self { narrow: NarrowBackend::own(arch), ..Self::OWN }
    }

    /// A card of an architecture with cuBLASLt and cuDNN of today: what a plan for one that is not here assumes.
    pub fn libraries(arch: Option<Arch>) -> Self {
        Self {
            gemm: GemmBackend::CublasLt,
            narrow: match arch {
                Some(Arch::Sm90a) => NarrowBackend::CublasLtRows,
                _ => NarrowBackend::own(arch),
            },
            attention: AttentionBackend::Cudnn,
        }
    }
}

/// A kernel argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arg {
    /// Device pointer to the arena's byte at this offset.
    Arena(u64),
    /// Device pointer to the counter (`u32`) that holds the step of the loop.
    Step,
    /// A null pointer: an operand that is absent.
    Null,
    /// `u32`.
    U32(u32),
    /// `u64`.
    U64(u64),
    /// `f32`.
    F32(f32),
}

/// One launch of an own kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// Name of the kernel in its cubin.
    pub kernel: &'static str,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes; above 48 KiB the device raises the kernel's limit.
    pub shared_bytes: u32,
    /// Arguments in the order of the kernel's parameters.
    pub args: Vec<Arg>,
}

/// A matrix in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Byte offset of the first element.
    pub offset: u64,
    /// Rows.
    pub rows: u64,
    /// Columns.
    pub cols: u64,
    /// Elements from one row to the next.
    pub stride: u64,
    /// Element type.
    pub dtype: DType,
}

/// What a library's product applies to its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GemmActivation {
    /// Nothing.
    None,
    /// `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`, after the bias.
    GeluTanh,
}

/// Where the factors of 8-bit operands' rows are, each `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowScales {
    /// Byte offset of `m` of them, one a row of `a`.
    pub a: u64,
    /// Byte offset of `n` of them, one a row of `b`.
    pub b: u64,
}

/// A product for a library: `out = activation(a b^T + bias) + add`, sums in `f32`, rounded once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gemm {
    /// `[m, k]`.
    pub a: Matrix,
    /// `[n, k]`.
    pub b: Matrix,
    /// There where both are [`DType::F8E4M3`], and only then: element `(i, j)` of the product is multiplied by
    /// the scales of row `i` of `a` and row `j` of `b`.
    pub scales: Option<RowScales>,
    /// Byte offset of `n` elements of `out`'s type.
    pub bias: Option<u64>,
    /// Applied after the bias.
    pub activation: GemmActivation,
    /// `[m, n]`, may be `out` itself; only without an activation.
    pub add: Option<Matrix>,
    /// `[m, n]`.
    pub out: Matrix,
    /// Scratch of the library.
    pub workspace: Region,
}

/// Attention for a library: no mask, no bias.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sdpa {
    /// `[queries, heads * head_dim]`.
    pub q: Matrix,
    /// `[keys, heads * head_dim]`.
    pub k: Matrix,
    /// `[keys, heads * head_dim]`.
    pub v: Matrix,
    /// `[queries, heads * head_dim]`.
    pub out: Matrix,
    /// Heads.
    pub heads: u64,
    /// Factor of the scores.
    pub scale: f32,
    /// Scratch of the library.
    pub workspace: Region,
}

/// One thing that the compute lane does for an op, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Task {
    /// An own kernel.
    Launch(Launch),
    /// A product by a library.
    Gemm(Gemm),
    /// Attention by a library.
    Sdpa(Sdpa),
}

/// An op that no kernel here computes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} has no CUDA kernel")]
pub struct Unsupported {
    /// Op and operands.
    pub what: String,
}
