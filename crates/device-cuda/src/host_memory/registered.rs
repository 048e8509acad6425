//! File mappings whose pages are lent to the card, so that copies come straight from the page cache.
//!
//! Relies on, for soundness:
//! 1. a registered piece lies in a mapping that is held here, and is taken back before it is let go: where a
//!    registered range is only unmapped, a later allocation of device memory fails;
//! 2. pieces are given up only while no program runs, so no copy from them is in flight.

use std::sync::Arc;

use plimsoll_host::SharedMapping;

use super::pieces::{self, Rules, Span};
use crate::CudaError;
use crate::driver::{self, Context};

/// Most bytes of a piece: registration of one takes some 50 ms a GiB, and a failure loses one piece only.
const PIECE_BYTES: u64 = 1 << 30;

/// Bytes between copies that are lent along: cheaper than another registration.
const GAP_BYTES: u64 = 1 << 20;

/// A mapping and what of it is lent.
#[derive(Debug)]
struct Lent {
    mapping: SharedMapping,
    /// Sorted, disjoint.
    pieces: Vec<Span>,
}

/// The mappings that a device may copy from directly.
#[derive(Debug)]
pub(crate) struct Registered {
    context: Arc<Context>,
    /// By address.
    lent: Vec<Lent>,
    budget_bytes: u64,
    lent_bytes: u64,
}

impl Registered {
    /// Nothing is lent yet; at most `budget_bytes` will be.
    pub(crate) fn new(context: &Arc<Context>, budget_bytes: u64) -> Self {
        Self { context: Arc::clone(context), lent: Vec::new(), budget_bytes, lent_bytes: 0 }
    }

    /// Bytes that are lent.
    pub(crate) fn bytes(&self) -> u64 {
        self.lent_bytes
    }

    /// Lets go of mappings that are not among `mappings`, and takes on those that are new.
    pub(crate) fn keep(&mut self, mappings: &[SharedMapping]) {
        let (kept, dropped) = std::mem::take(&mut self.lent)
            .into_iter()
            .partition(|lent| mappings.iter().any(|mapping| mapping.is(&lent.mapping)));
        self.lent = kept;
        for lent in dropped {
            self.give_up(lent);
        }
        for mapping in mappings {
            if !self.lent.iter().any(|lent| lent.mapping.is(mapping)) {
                self.lent.push(Lent { mapping: mapping.clone(), pieces: Vec::new() });
            }
        }
        self.lent.sort_by_key(|lent| start_of(&lent.mapping));
    }

    /// Lends what `sources` need of the mappings, as far as the budget goes; returns the bytes that it leaves out.
    ///
    /// # Errors
    /// The driver's refusal; what was lent before it stays lent, and the rest is copied otherwise.
    pub(crate) fn lend<'s>(
        &mut self,
        sources: impl Iterator<Item = &'s [u8]>,
    ) -> Result<u64, CudaError> {
        let mut left_out = 0;
        let mut copies: Vec<Vec<Span>> = vec![Vec::new(); self.lent.len()];
        for source in sources {
            if let Some((at, span)) = self.find(source) {
                copies[at].push(span);
            }
        }
        for (lent, copies) in self.lent.iter_mut().zip(&copies) {
            let rules = Rules { piece_bytes: PIECE_BYTES, gap_bytes: GAP_BYTES };
            let wanted = pieces::pieces(copies, &lent.pieces, rules);
            let (kept, rest) = pieces::within(wanted, self.budget_bytes - self.lent_bytes);
            left_out += rest;
            for piece in kept {
                // SAFETY: the mapping is held until the piece is taken back in `give_up` (1).
                unsafe { driver::register(slice_of(&lent.mapping, &piece)) }?;
                self.lent_bytes += pieces::length(&piece);
                let at = lent.pieces.partition_point(|other| other.start < piece.start);
                lent.pieces.insert(at, piece);
            }
        }
        Ok(left_out)
    }

    /// Cuts `source` where lent pieces begin and end; each part with whether it is lent.
    pub(crate) fn cut<'s>(&self, source: &'s [u8], mut part: impl FnMut(&'s [u8], bool)) {
        let Some((at, span)) = self.find(source) else { return part(source, false) };
        let first = span.start;
        pieces::cut(span, &self.lent[at].pieces, |span, piece| {
            let (start, end) = (size(span.start - first), size(span.end - first));
            part(&source[start..end], piece.is_some());
        });
    }

    /// The mapping that holds `source`, and where in it.
    fn find(&self, source: &[u8]) -> Option<(usize, Span)> {
        let start = source.as_ptr() as usize;
        let after = self.lent.partition_point(|lent| start_of(&lent.mapping) <= start);
        let at = after.checked_sub(1)?;
        let mapping = &self.lent[at].mapping;
        let offset = start - start_of(mapping);
        let end = offset.checked_add(source.len())?;
        (end <= mapping.bytes().len()).then_some((at, offset as u64..end as u64))
    }

    fn give_up(&mut self, lent: Lent) {
        // Nobody reads a failure: the context is gone then, and its registrations with it.
        let _ = self.context.enter();
        for piece in &lent.pieces {
            let _ = driver::unregister(slice_of(&lent.mapping, piece).as_ptr());
            self.lent_bytes -= pieces::length(piece);
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        for lent in std::mem::take(&mut self.lent) {
            self.give_up(lent);
        }
    }
}

fn start_of(mapping: &SharedMapping) -> usize {
    mapping.bytes().as_ptr() as usize
}

fn slice_of<'m>(mapping: &'m SharedMapping, span: &Span) -> &'m [u8] {
    &mapping.bytes()[size(span.start)..size(span.end)]
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "an offset in a mapping, whose length is a usize"
)]
fn size(offset: u64) -> usize {
    offset as usize
}
