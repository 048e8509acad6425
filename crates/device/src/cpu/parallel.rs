//! Work split into strands: fixed rectangles of an op's result, each computed by one worker.
//!
//! The number of strands follows from the op's shape alone, never from the number of workers: with one worker
//! the strands run one after the other. A strand has scratch of its own, so a plan's workspace does not depend
//! on the machine. [`super::team`] hands strands to workers.

use std::sync::atomic::{AtomicBool, Ordering};

use super::arena::MatMut;
use crate::Control;

/// Most strands of an op: what 16 workers can share.
pub(crate) const STRANDS_MAX: usize = 16;

/// How a result is cut: all strands but the last ones of a row or column have the same size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    pub(crate) row_strands: usize,
    /// Rows of a strand.
    pub(crate) rows: usize,
    pub(crate) col_strands: usize,
    /// Columns of a strand.
    pub(crate) cols: usize,
}

impl Grid {
    /// Cuts `rows x cols` into about `row_strands x col_strands` rectangles whose sides are multiples of the units.
    pub(crate) fn new(
        [rows, cols]: [usize; 2],
        [row_strands, col_strands]: [usize; 2],
        [row_unit, col_unit]: [usize; 2],
    ) -> Self {
        let side = |total: usize, strands: usize, unit: usize| {
            let side = total.div_ceil(strands.max(1)).next_multiple_of(unit).max(unit);
            (total.div_ceil(side).max(1), side.min(total.max(1)))
        };
        let (row_strands, rows) = side(rows, row_strands, row_unit);
        let (col_strands, cols) = side(cols, col_strands, col_unit);
        Self { row_strands, rows, col_strands, cols }
    }

    /// Number of rectangles.
    pub(crate) fn count(&self) -> usize {
        self.row_strands * self.col_strands
    }
}

/// How many strands `work` is worth, a power of two: `grain` of it pays for handing over a task.
pub(crate) fn strands_for(work: usize, grain: usize) -> usize {
    let most = (work / grain).clamp(1, STRANDS_MAX);
    if most.is_power_of_two() { most } else { most.next_power_of_two() / 2 }
}

/// Floats of scratch that any op may have: 1 MiB.
const SCRATCH_FLOATS: usize = 256 * 1024;

/// The blocking with as many strands as `strands` whose scratch is small, at most 1 MiB or half of the result as
/// `f32`: more workers are not worth more memory than that. A single strand may need more.
pub(crate) fn within_scratch<B>(
    strands: usize,
    result: usize,
    blocking: impl Fn(usize) -> B,
    scratch_floats: impl Fn(&B) -> usize,
) -> B {
    let most = SCRATCH_FLOATS.max(result / 2);
    let mut strands = strands;
    loop {
        let candidate = blocking(strands);
        if strands <= 1 || scratch_floats(&candidate) <= most {
            return candidate;
        }
        strands /= 2;
    }
}

/// What strands write: one matrix, or two cut alike.
pub(crate) trait Cut: Sized {
    /// The rectangle at a corner, as far as the matrix goes.
    fn cut(self, corner: Corner, rows: usize, cols: usize) -> Self;
}

impl Cut for MatMut<'_> {
    fn cut(self, corner: Corner, rows: usize, cols: usize) -> Self {
        let (rows, cols) = (rows.min(self.rows() - corner.row), cols.min(self.cols() - corner.col));
        self.rectangle([corner.row, corner.col], [rows, cols])
    }
}

impl<T: Cut> Cut for [T; 2] {
    fn cut(self, corner: Corner, rows: usize, cols: usize) -> Self {
        self.map(|matrix| matrix.cut(corner, rows, cols))
    }
}

/// A strand's place in the result.
#[derive(Clone, Copy)]
pub(crate) struct Corner {
    pub(crate) row: usize,
    pub(crate) col: usize,
}

impl Grid {
    /// Where strand `index` begins.
    pub(crate) fn corner(&self, index: usize) -> Corner {
        Corner {
            row: index / self.col_strands * self.rows,
            col: index % self.col_strands * self.cols,
        }
    }

    /// A strand's place and its part of the result.
    pub(crate) fn part<C: Cut>(&self, target: C, index: usize) -> (Corner, C) {
        let corner = self.corner(index);
        (corner, target.cut(corner, self.rows, self.cols))
    }

    /// Bands of whole rows, about `strands` of them.
    pub(crate) fn bands([rows, cols]: [usize; 2], strands: usize) -> Self {
        Self::new([rows, cols], [strands, 1], [1, 1])
    }
}

/// Whether the run is to stop. Looked at between the tiles or rows of a strand, so that an op of a minute stops at once;
/// what a strand leaves then is never read.
#[derive(Clone, Copy)]
pub(crate) struct Stop<'r> {
    /// A lane failed.
    pub(crate) is_stopped: &'r AtomicBool,
    /// A stop was asked for.
    pub(crate) control: &'r Control,
}

impl Stop<'_> {
    #[inline(always)]
    pub(crate) fn is_set(self) -> bool {
        self.is_stopped.load(Ordering::Relaxed) || self.control.is_cancelled()
    }
}

/// Which of its op's strands.
#[derive(Clone, Copy)]
pub(crate) struct Task<'r> {
    pub(crate) index: usize,
    pub(crate) stop: Stop<'r>,
}

/// A strand that has scratch.
pub(crate) struct Strand<'s> {
    pub(crate) task: Task<'s>,
    pub(crate) scratch: &'s mut [f32],
}
