//! Launches that an architecture carries out by a kernel of its own.

use crate::arch::Arch;
use crate::task::{Arg, Launch};

/// Result rows and columns of a block of the wide products.
const TILE: [u64; 2] = [128, 256];

/// Blocks from which on they are faster: each takes a multiprocessor for itself.
const BLOCKS_LEAST: u64 = 192;

/// Dynamic shared memory of a wide product: four stages of a step of both operands.
const PRODUCT_BYTES: u32 = 4 * (128 + 256) * 128;

/// Dynamic shared memory of attention: queries, and keys and values twice, 128 rows of 128 columns each.
const ATTENTION_BYTES: u32 = 5 * 128 * 128 * 2;

impl Arch {
    /// The launch as this architecture carries it out best: itself, or a variant that takes the same arguments.
    ///
    /// Variants of products have the bits of the kernel they stand for, so the number of rows may choose between
    /// them; attention is replaced whatever the sizes. A device asks this for every launch of [`crate::tasks`].
    pub fn variant(self, launch: Launch) -> Launch {
        if self != Self::Sm90a {
            return launch;
        }
        let number = |at: usize| match launch.args.get(at) {
            Some(Arg::U32(value)) => u64::from(*value),
            _ => 0,
        };
        // Where the kernels' parameters have the result's rows and columns.
        let (kernel, rows, cols) = match launch.kernel {
            "gemm_128x128" => ("gemm_128x256", number(15), number(16)),
            "conv_128x128" => {
                ("conv_128x256", (number(2) * number(3)) << (2 * number(4)), number(13))
            }
            // Blocks of as many queries: the same grid.
            "attention_128" => {
                let (kernel, block) = ("attention_128_hopper", [256, 1, 1]);
                return Launch { kernel, block, shared_bytes: ATTENTION_BYTES, ..launch };
            }
            _ => return launch,
        };
        let across = cols.div_ceil(TILE[1]);
        // Columns past the last one are computed for nothing: an eighth of them at most.
        let is_full = across * TILE[1] <= cols + cols / 8;
        match u32::try_from(rows.div_ceil(TILE[0]) * across) {
            Ok(blocks) if is_full && u64::from(blocks) >= BLOCKS_LEAST => {
                let (grid, block) = ([blocks, 1, 1], [256, 1, 1]);
                Launch { kernel, grid, block, shared_bytes: PRODUCT_BYTES, ..launch }
            }
            _ => launch,
        }
    }
}
