//! Runs a loop with the widest vector instructions of the processor, and transposes blocks.

/// Calls `body` compiled for the widest vectors that the processor has.
///
/// Everything that `body` calls must be inlined into it. The bits of its result do not depend on the width: the
/// compiler neither fuses nor reorders floating-point operations.
#[inline(always)]
pub(crate) fn vectorised<R>(body: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(body)
}

/// Side of the blocks that are transposed.
pub(crate) const SIDE: usize = 16;

/// A square block.
pub(crate) type Block = [[f32; SIDE]; SIDE];

/// Rows to columns.
#[inline(always)]
pub(crate) fn transposed(block: &Block) -> Block {
    let mut out = [[0.0; SIDE]; SIDE];
    for (i, row) in block.iter().enumerate() {
        for (j, value) in row.iter().enumerate() {
            out[j][i] = *value;
        }
    }
    out
}
