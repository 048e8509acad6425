//! Kernel arguments from operands: what `MATRIX` and `OPERAND` of `common.cuh` are on this side.

use plimsoll_device::Mat;
use plimsoll_graph::DType;

use crate::task::{Arg, Launch, Unsupported};

/// Threads of a block of every kernel here but the norms of rows.
pub(super) const THREADS: u32 = 256;

/// Elements of a vector access.
pub(super) const VECTOR: u64 = 8;

/// Bytes to which a vector access is aligned.
const VECTOR_ALIGNMENT: u64 = 16;

/// A size that a kernel takes in 32 bits.
pub(super) fn number(name: &str, value: u64) -> Result<u32, Unsupported> {
    u32::try_from(value)
        .map_err(|_| Unsupported { what: format!("{name}: a size of {value} elements") })
}

/// Every operand is a number of a type that `load` of `common.cuh` knows.
pub(super) fn require_numbers(name: &str, operands: &[&Mat]) -> Result<(), Unsupported> {
    match operands.iter().find(|mat| matches!(mat.dtype, DType::U32 | DType::F8E4M3)) {
        Some(_) => Err(Unsupported { what: format!("{name} with u32 or 8-bit operands") }),
        None => Ok(()),
    }
}

/// Whether 8 elements of every operand can be accessed at once, wherever a multiple of 8 columns begins.
///
/// The stride counts for a single row too: a row must not be computed otherwise for being alone.
pub(super) fn is_vector(cols: u64, operands: &[&Mat]) -> bool {
    let is_aligned = |mat: &&Mat| {
        (mat.offset | mat.step_bytes | (mat.stride * mat.dtype.bytes()))
            .is_multiple_of(VECTOR_ALIGNMENT)
    };
    cols.is_multiple_of(VECTOR) && operands.iter().all(is_aligned)
}

/// Blocks of 256 threads for `count` threads.
pub(in crate::lower) fn blocks(name: &str, count: u64) -> Result<[u32; 3], Unsupported> {
    // An index is computed in 32 bits, and the last block's may go past the count.
    let count = number(name, count)?;
    if count > u32::MAX - THREADS {
        return Err(Unsupported { what: format!("{name}: {count} elements") });
    }
    Ok([count.div_ceil(THREADS), 1, 1])
}

/// Collects a kernel's arguments: operands first, in the order of their bits in `f32`.
pub(super) struct Arguments<'n> {
    name: &'n str,
    args: Vec<Arg>,
    operands: u32,
    f32_bits: u32,
    moves: bool,
}

impl<'n> Arguments<'n> {
    pub(super) fn new(name: &'n str) -> Self {
        Self { name, args: Vec::new(), operands: 0, f32_bits: 0, moves: false }
    }

    /// Adds `MATRIX`: address at step 0, stride, bytes a step. Indices pass as numbers of 32 bits.
    pub(super) fn matrix(mut self, mat: &Mat) -> Result<Self, Unsupported> {
        let (stride, step) = (number(self.name, mat.stride)?, number(self.name, mat.step_bytes)?);
        self.args.extend([Arg::Arena(mat.offset), Arg::U32(stride), Arg::U32(step)]);
        if mat.dtype != DType::BF16 {
            self.f32_bits |= 1 << self.operands;
        }
        self.moves |= mat.step_bytes != 0;
        self.operands += 1;
        Ok(self)
    }

    /// Adds an operand that is absent.
    pub(super) fn no_matrix(mut self) -> Self {
        self.args.extend([Arg::Null, Arg::U32(0), Arg::U32(0)]);
        self.operands += 1;
        self
    }

    /// Adds an address of scratch.
    pub(super) fn scratch(mut self, offset: u64) -> Self {
        self.args.push(Arg::Arena(offset));
        self
    }

    pub(super) fn u32(mut self, value: u64) -> Result<Self, Unsupported> {
        self.args.push(Arg::U32(number(self.name, value)?));
        Ok(self)
    }

    pub(super) fn f32(mut self, value: f32) -> Self {
        self.args.push(Arg::F32(value));
        self
    }

    /// Adds the types and the step, which end every kernel's parameters.
    pub(super) fn launch(mut self, kernel: &'static str, grid: [u32; 3], threads: u32) -> Launch {
        self.args.push(Arg::U32(self.f32_bits));
        self.args.push(if self.moves { Arg::Step } else { Arg::Null });
        Launch { kernel, grid, block: [threads, 1, 1], shared_bytes: 0, args: self.args }
    }
}
