//! The arena as a row of cells, each with what its bytes hold.
//!
//! Everything that a plan ever touches begins and ends at one of finitely many offsets. Cut the arena there:
//! between two cuts all bytes always share one fate, so a run is a walk over a vector of cells.

use std::ops::Range;

/// Whose bytes lie in a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Nothing has been written yet.
    Nothing,
    /// Scratch of the op of that index: of no use to anybody else.
    Workspace(u32),
    /// The tensor of that index.
    Tensor(u32),
    /// Weights that a copy brought to the load of that index.
    Load(u32),
}

/// A cell's owner and, for a tensor, the bands of columns that are valid in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) owner: Owner,
    pub(crate) bands: u64,
}

/// The arena.
#[derive(Debug)]
pub(crate) struct Cells {
    /// Ascending; cell `i` is `cuts[i] .. cuts[i + 1]`.
    cuts: Vec<u64>,
    contents: Vec<Content>,
}

impl Cells {
    /// An arena that nothing was written to, cut at `cuts` (in any order, repeats allowed).
    pub(crate) fn new(mut cuts: Vec<u64>) -> Self {
        cuts.sort_unstable();
        cuts.dedup();
        let count = cuts.len().saturating_sub(1);
        let contents = vec![Content { owner: Owner::Nothing, bands: 0 }; count];
        Self { cuts, contents }
    }

    /// The cells of bytes `start .. end`, both of which are cuts; nothing where they are equal.
    pub(crate) fn range(&self, start: u64, end: u64) -> Range<usize> {
        let first = self.cuts.partition_point(|cut| *cut < start);
        let last = self.cuts.partition_point(|cut| *cut < end);
        debug_assert!(start == end || (self.cuts[first], self.cuts[last]) == (start, end));
        first..last
    }

    /// The cells take a new owner, whatever they held.
    pub(crate) fn take(&mut self, cells: Range<usize>, owner: Owner) {
        self.contents[cells].fill(Content { owner, bands: 0 });
    }

    /// A tensor's bands are written in the cells; its other bands stay valid where the cell was its own.
    pub(crate) fn write(&mut self, cells: Range<usize>, owner: Owner, bands: u64) {
        for content in &mut self.contents[cells] {
            let kept = if content.owner == owner { content.bands } else { 0 };
            *content = Content { owner, bands: kept | bands };
        }
    }

    /// The first byte that does not hold these bands of this owner, and what it holds.
    pub(crate) fn mismatch(
        &self,
        cells: Range<usize>,
        owner: Owner,
        bands: u64,
    ) -> Option<(u64, Content)> {
        let found = self.contents[cells.clone()]
            .iter()
            .position(|content| content.owner != owner || content.bands & bands != bands)?;
        let cell = cells.start + found;
        Some((self.cuts[cell], self.contents[cell]))
    }
}
