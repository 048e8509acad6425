//! Launches that an architecture carries out by a kernel of its own.

use crate::arch::Arch;
use crate::task::{Arg, Launch};

/// Result columns of a block of the wide products.
const COLS: u64 = 256;

/// Blocks of 128 rows from which on they are faster: each takes a multiprocessor for itself.
const BLOCKS_LEAST: u64 = 66;

/// Multiprocessors of an H100 or H200 module: what a wave of blocks is.
const MULTIPROCESSORS: u64 = 132;

/// A wide product's kernels.
struct Wide {
    gemm: &'static str,
    narrow: &'static str,
    conv: &'static str,
    rows: u64,
    threads: u32,
    /// Four stages of a step of both operands.
    shared_bytes: u32,
    /// Time of a wave, in that of one row of the narrow one.
    wave: u64,
}

const WIDE: [Wide; 2] = [
    Wide {
        gemm: "gemm_128x256",
        narrow: "gemm_f8_128x256",
        conv: "conv_128x256",
        rows: 128,
        threads: 256,
        shared_bytes: 4 * (128 + 256) * 128,
        wave: 128,
    },
    // Fewer bytes from the second cache for as many sums: 192 rows in the time of 178.
    Wide {
        gemm: "gemm_192x256",
        narrow: "gemm_f8_192x256",
        conv: "conv_192x256",
        rows: 192,
        threads: 384,
        shared_bytes: 4 * (192 + 256) * 128,
        wave: 178,
    },
];

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
        let (of, rows, cols): (fn(&Wide) -> &'static str, u64, u64) = match launch.kernel {
            "gemm_128x128" => (|wide| wide.gemm, number(15), number(16)),
            "gemm_f8_128x128" => (|wide| wide.narrow, number(15), number(16)),
            "conv_128x128" => (|wide| wide.conv, number(6), number(15)),
            // Blocks of as many queries: the same grid.
            "attention_128" => {
                let (kernel, block) = ("attention_128_hopper", [256, 1, 1]);
                return Launch { kernel, block, shared_bytes: ATTENTION_BYTES, ..launch };
            }
            _ => return launch,
        };
        let across = cols.div_ceil(COLS);
        // Columns past the last one are computed for nothing: an eighth of them at most.
        if across * COLS > cols + cols / 8 {
            return launch;
        }
        let blocks = |wide: &Wide| rows.div_ceil(wide.rows) * across;
        let time = |wide: &Wide| blocks(wide).div_ceil(MULTIPROCESSORS) * wide.wave;
        let [narrow, high] = &WIDE;
        let wide = if time(high) < time(narrow) { high } else { narrow };
        match u32::try_from(blocks(wide)) {
            Ok(count) if blocks(narrow) >= BLOCKS_LEAST => Launch {
                kernel: of(wide),
                grid: [count, 1, 1],
                block: [wide.threads, 1, 1],
                shared_bytes: wide.shared_bytes,
                args: launch.args,
            },
            _ => launch,
        }
    }
}
