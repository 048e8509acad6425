//! What needs memory, and where it lies.
//!
//! An item has up to three spans of ops. A load that is fetched at the end of a loop's body for its head is alive
//! at both; what follows the loop may be fetched during its last step, when nothing is fetched for a head any more.

use crate::facts::Span;

/// Something that needs memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    /// A multiple of the allocation unit, not 0.
    pub(crate) bytes: u64,
    /// When it is alive.
    pub(crate) span: Span,
    /// More such ops in every step of a loop but the last; [`NEVER`] for none.
    pub(crate) tail: Span,
    /// More such ops in the last step of a loop only; [`NEVER`] for none.
    pub(crate) lead: Span,
}

/// A span that overlaps nothing.
pub(crate) const NEVER: Span = (u32::MAX, 0);

impl Item {
    /// Something that is alive from the first to the last op of `span`.
    pub(crate) fn new(bytes: u64, span: Span) -> Self {
        Self { bytes, span, tail: NEVER, lead: NEVER }
    }

    fn is_plain(&self) -> bool {
        self.tail == NEVER && self.lead == NEVER
    }

    /// Whether the two are alive at the same time: a tail and a lead never are, they are of different steps.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        if meet(self.span, other.span) {
            return true;
        }
        if self.is_plain() && other.is_plain() {
            return false;
        }
        meet(self.tail, other.span)
            || meet(self.span, other.tail)
            || meet(self.tail, other.tail)
            || meet(self.lead, other.span)
            || meet(self.span, other.lead)
            || meet(self.lead, other.lead)
    }

    pub(crate) fn length(&self) -> u64 {
        let length = |(first, last): Span| {
            if first <= last { u64::from(last - first) + 1 } else { 0 }
        };
        length(self.span) + length(self.tail) + length(self.lead)
    }
}

/// Offsets of all items, and the end of the highest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Packing {
    pub(crate) offsets: Vec<u64>,
    pub(crate) peak: u64,
}

fn meet(a: Span, b: Span) -> bool {
    a.0 <= b.1 && b.0 <= a.1
}
