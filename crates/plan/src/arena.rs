//! Offsets: everything that needs memory at some time, in as little of it as possible.
//!
//! This is dynamic storage allocation: items with a size and the times at which they are alive, and no two that
//! are alive together may share a byte. The best peak is NP-hard to find and the liveness floor (the largest sum
//! alive at one time) is a bound that it often meets. So: place by each of several good orders, lowest gap first,
//! until the floor is met; then walk over orders near the best, a number of steps that is fixed beforehand. No
//! clock, and the same choices every time.

use crate::facts::Span;
use crate::item::{Item, Packing};
use crate::shelf::Shelf;
use crate::walk::{Aim, improve};

/// How hard to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Two orders.
    Quick,
    /// All orders, and repairs as many as the size allows: for the smallest line.
    Thorough,
}

/// Items that [`Effort::Thorough`] may place in all, some 30 ms.
const PLACED_THOROUGH: u64 = 160_000;

/// Bytes alive at each op, in the step of a loop that has more of them.
pub(crate) fn live(items: &[Item], ops: usize) -> Vec<u64> {
    let of = |extra: fn(&Item) -> Span| {
        let spans = items
            .iter()
            .flat_map(|item| [(item.span, item.bytes), (extra(item), item.bytes)])
            .filter(|((first, last), _)| first <= last);
        crate::facts::live_bytes(ops, spans, std::iter::repeat(0))
    };
    let (inner, last) = (of(|item| item.tail), of(|item| item.lead));
    inner.into_iter().zip(last).map(|(inner, last)| inner.max(last)).collect()
}

/// Places all items; stops at the first peak of `enough` or less.
///
/// What is tried, and in which order, does not depend on `enough`: so whether a peak of `enough` is reached is the
/// same question as whether the best peak of all attempts is at most `enough`.
pub(crate) fn pack(items: &[Item], ops: usize, enough: u64, effort: Effort) -> Packing {
    let live = live(items, ops);
    let floor = live.iter().copied().max().unwrap_or(0);
    let enough = enough.max(floor);
    let mut shelf = Shelf::new(items, ops);
    let mut best = Packing { offsets: Vec::new(), peak: u64::MAX };
    let mut best_order = Vec::new();
    let orders: &[Order] = match effort {
        Effort::Quick => &[Order::Pressure, Order::Size],
        Effort::Thorough => &Order::ALL,
    };
    for order in orders {
        let order = order.sort(items, &live);
        if shelf.place(&order, &mut best) {
            best_order = order;
        }
        if best.peak <= enough {
            return best;
        }
    }
    if effort == Effort::Thorough {
        let aim = Aim { floor, enough, placed_most: PLACED_THOROUGH };
        let pressure = fullest(items, &live);
        improve(items, ops, aim, &pressure, &mut shelf, &mut best, &best_order);
    }
    best
}

/// Orders to place items in; ties go by span, then by index, so that each is total.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// By the fullest time in an item's life, then long before short: the peak is built first.
    Pressure,
    /// Large first.
    Size,
    /// Long-lived first, then large.
    Length,
    /// By size times length.
    Area,
    /// By the fullest time, then large before small.
    PressureSize,
    /// In order of time.
    Start,
}

impl Order {
    const ALL: [Self; 6] =
        [Self::Pressure, Self::Size, Self::Length, Self::Area, Self::PressureSize, Self::Start];

    fn sort(self, items: &[Item], live: &[u64]) -> Vec<u32> {
        let pressure = match self {
            Self::Pressure | Self::PressureSize => fullest(items, live),
            _ => Vec::new(),
        };
        let mut keyed: Vec<([u64; 3], u32)> = items
            .iter()
            .zip(0u32..)
            .map(|(item, at)| {
                let start = u64::from(item.span.0);
                let key = match self {
                    Self::Pressure => [pressure[at as usize], item.length(), item.bytes],
                    Self::Size => [item.bytes, item.length(), 0],
                    Self::Length => [item.length(), item.bytes, 0],
                    Self::Area => [item.bytes.saturating_mul(item.length()), item.bytes, 0],
                    Self::PressureSize => [pressure[at as usize], item.bytes, item.length()],
                    Self::Start => [u64::from(u32::MAX) - start, item.bytes, 0],
                };
                (key, at)
            })
            .collect();
        keyed.sort_unstable_by(|(a, at), (b, bt)| b.cmp(a).then(at.cmp(bt)));
        keyed.into_iter().map(|(_, at)| at).collect()
    }
}

/// For each item the most bytes alive at one time of its life: a table of maxima over powers of two.
fn fullest(items: &[Item], live: &[u64]) -> Vec<u64> {
    let mut levels = vec![live.to_vec()];
    let mut width = 1;
    while width * 2 <= live.len() {
        let below = &levels[levels.len() - 1];
        let next = (0..=live.len() - width * 2).map(|at| below[at].max(below[at + width]));
        levels.push(next.collect());
        width *= 2;
    }
    let most = |(first, last): Span| {
        if first > last {
            return 0;
        }
        let (first, last) = (first as usize, last as usize);
        let level = (last - first + 1).ilog2() as usize;
        levels[level][first].max(levels[level][last + 1 - (1 << level)])
    };
    items.iter().map(|item| most(item.span).max(most(item.tail)).max(most(item.lead))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(bytes: u64, span: Span) -> Item {
        Item::new(bytes * 256, span)
    }

    fn check(items: &[Item], ops: usize, expect_units: u64) {
        let packing = pack(items, ops, 0, Effort::Thorough);
        for (at, a) in items.iter().enumerate() {
            for (bt, b) in items.iter().enumerate().skip(at + 1) {
                let (start_a, start_b) = (packing.offsets[at], packing.offsets[bt]);
                let apart = start_a + a.bytes <= start_b || start_b + b.bytes <= start_a;
                assert!(!a.meets(b) || apart, "items {at} and {bt} share bytes");
            }
        }
        let peak = items.iter().zip(&packing.offsets).map(|(i, o)| i.bytes + o).max();
        assert_eq!(packing.peak, peak.unwrap_or(0));
        assert_eq!(packing.peak / 256, expect_units);
    }

    #[test]
    fn peaks() {
        check(&[], 0, 0);
        check(&[item(3, (0, 0))], 1, 3);
        check(&[item(3, (0, 4)), item(2, (5, 9))], 10, 3);
        check(&[item(3, (0, 5)), item(2, (5, 9))], 10, 5);
        // Wrapped: alive at the head and the tail, another in between.
        let wrapped = Item { tail: (8, 9), ..item(2, (0, 1)) };
        check(&[wrapped, item(2, (2, 7)), item(1, (0, 9))], 10, 3);
        // What follows the loop (ops up to 9) lies where the head's tail does in the steps before.
        let follows = Item { lead: (8, 9), ..item(2, (10, 11)) };
        check(&[wrapped, item(2, (2, 7)), item(1, (0, 9)), follows], 12, 3);
        // First fit by start or by size alone does not reach the floor here.
        check(
            &[item(1, (0, 2)), item(1, (1, 3)), item(2, (3, 5)), item(1, (4, 6)), item(2, (0, 0))],
            7,
            3,
        );
    }
}
