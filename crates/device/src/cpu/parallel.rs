//! Work split into strands: fixed rectangles of an op's result, each computed by one task.
//!
//! The number of strands follows from the op's shape alone, never from the number of workers: with one worker
//! the strands run one after the other. A strand has scratch of its own, so a plan's workspace does not depend
//! on the machine.

use super::arena::MatMut;

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

/// The blocking with as many strands as `strands` whose scratch is small, at most 1 MiB or a quarter of the result as
/// `f32`: more workers are not worth more memory than that. A single strand may need more.
pub(crate) fn within_scratch<B>(
    strands: usize,
    result: usize,
    blocking: impl Fn(usize) -> B,
    scratch_floats: impl Fn(&B) -> usize,
) -> B {
    let most = SCRATCH_FLOATS.max(result / 4);
    let mut strands = strands;
    loop {
        let candidate = blocking(strands);
        if strands <= 1 || scratch_floats(&candidate) <= most {
            return candidate;
        }
        strands /= 2;
    }
}

/// What is written by strands: one matrix, or two cut alike.
pub(crate) trait Cut: Sized + Send {
    fn cut_rows(self, at: usize) -> (Self, Self);
    fn cut_cols(self, at: usize) -> (Self, Self);
}

impl Cut for MatMut<'_> {
    fn cut_rows(self, at: usize) -> (Self, Self) {
        self.split_rows(at)
    }

    fn cut_cols(self, at: usize) -> (Self, Self) {
        self.split_cols(at)
    }
}

/// Nothing: strands that only fill their scratch.
impl Cut for () {
    fn cut_rows(self, _at: usize) -> (Self, Self) {
        ((), ())
    }

    fn cut_cols(self, _at: usize) -> (Self, Self) {
        ((), ())
    }
}

impl<T: Cut> Cut for [T; 2] {
    fn cut_rows(self, at: usize) -> (Self, Self) {
        let [a, b] = self;
        let ((a0, a1), (b0, b1)) = (a.cut_rows(at), b.cut_rows(at));
        ([a0, b0], [a1, b1])
    }

    fn cut_cols(self, at: usize) -> (Self, Self) {
        let [a, b] = self;
        let ((a0, a1), (b0, b1)) = (a.cut_cols(at), b.cut_cols(at));
        ([a0, b0], [a1, b1])
    }
}

/// A strand's place in the result.
#[derive(Clone, Copy)]
pub(crate) struct Corner {
    pub(crate) row: usize,
    pub(crate) col: usize,
}

/// Runs `task(corner, rectangle, scratch)` for each rectangle of the grid; `scratch` is cut into equal parts.
pub(crate) fn for_each_strand<C: Cut>(
    target: C,
    grid: Grid,
    scratch: &mut [f32],
    task: &(impl Fn(Corner, C, &mut [f32]) + Sync),
) {
    let each = scratch.len() / grid.count();
    go(target, grid, Corner { row: 0, col: 0 }, scratch, each, task);
}

fn go<C: Cut>(
    target: C,
    grid: Grid,
    corner: Corner,
    scratch: &mut [f32],
    each: usize,
    task: &(impl Fn(Corner, C, &mut [f32]) + Sync),
) {
    let Grid { row_strands, rows, col_strands, cols } = grid;
    let (first, second, one, other, beyond);
    if row_strands > 1 {
        let half = row_strands / 2;
        (one, other) = target.cut_rows(half * rows);
        first = Grid { row_strands: half, ..grid };
        second = Grid { row_strands: row_strands - half, ..grid };
        beyond = Corner { row: corner.row + half * rows, ..corner };
    } else if col_strands > 1 {
        let half = col_strands / 2;
        (one, other) = target.cut_cols(half * cols);
        first = Grid { col_strands: half, ..grid };
        second = Grid { col_strands: col_strands - half, ..grid };
        beyond = Corner { col: corner.col + half * cols, ..corner };
    } else {
        task(corner, target, scratch);
        return;
    }
    let (scratch, rest) = scratch.split_at_mut(first.count() * each);
    rayon::join(
        || go(one, first, corner, scratch, each, task),
        || go(other, second, beyond, rest, each, task),
    );
}

/// Runs `task(first row, rows, scratch)` for each of about `strands` bands of rows.
pub(crate) fn for_each_band<C: Cut>(
    target: C,
    rows: usize,
    strands: usize,
    task: &(impl Fn(usize, C) + Sync),
) {
    let grid = Grid::new([rows, 1], [strands, 1], [1, 1]);
    for_each_strand(target, grid, &mut [], &|corner: Corner, part, _: &mut [f32]| {
        task(corner.row, part);
    });
}
