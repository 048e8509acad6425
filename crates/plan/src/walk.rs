//! Better offsets by trying orders near a good one.
//!
//! What makes a packing tall is nearly always a few items at the fullest times; the rest finds its place under them
//! whatever the order. So the walk is over the order of the items that are alive at a full time only, and all
//! others are placed after them when that has brought something.

use crate::item::{Item, Packing};
use crate::shelf::Shelf;

/// An item is placed in the walk if it is alive when this share of the floor is, in sixteenths.
const FULL_SIXTEENTHS: u64 = 12;

/// Rounds of small walks, which are done with sooner.
const ROUNDS_MOST: u64 = 2_000;

/// What a walk is for, and how far it may go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Aim {
    /// The most bytes alive at one time: nothing is below it.
    pub(crate) floor: u64,
    /// A peak that will do.
    pub(crate) enough: u64,
    /// Items that may be placed in all, about.
    pub(crate) placed_most: u64,
}

/// Tries orders near `order`, which gave `best` on `shelf`, and stops at the first peak that will do.
///
/// `pressure` is the most bytes alive at one time of each item's life.
pub(crate) fn improve(
    items: &[Item],
    ops: usize,
    Aim { floor, enough, placed_most }: Aim,
    pressure: &[u64],
    shelf: &mut Shelf,
    best: &mut Packing,
    order: &[u32],
) {
    let is_full = |item: u32| pressure[item as usize] >= floor / 16 * FULL_SIXTEENTHS;
    let (full, rest): (Vec<u32>, Vec<u32>) = order.iter().partition(|item| is_full(**item));
    let few: Vec<Item> = full.iter().map(|item| items[*item as usize]).collect();
    let rounds = (placed_most / few.len().max(1) as u64).min(ROUNDS_MOST);
    let mut walk = Walk {
        items: &few,
        floor,
        shelf: Shelf::new(&few, ops),
        order: (0..).take(few.len()).collect(),
        packing: Packing { offsets: Vec::new(), peak: u64::MAX },
        excess: 0,
        state: 0x9e37_79b9_7f4a_7c15,
    };
    walk.start();
    let mut all = Vec::with_capacity(items.len());
    let mut improves = |walk: &mut Walk<'_>| {
        all.clear();
        all.extend(walk.order.iter().map(|at| full[*at as usize]));
        all.extend(&rest);
        shelf.place(&all, best) && best.peak <= enough
    };
    if improves(&mut walk) || walk.packing.peak <= floor {
        return;
    }
    walk.run(rounds, improves);
}

/// Moves of the walk that bring nothing, after which it is shaken.
const PATIENCE: u32 = 60;

/// A walk over orders: lets items that stick out over the floor go earlier, and keeps what is no worse; when that
/// leads nowhere, shuffles what is alive beside them.
///
/// The number of steps is fixed, and so are the choices: the generator only spreads them.
struct Walk<'a> {
    items: &'a [Item],
    floor: u64,
    shelf: Shelf,
    order: Vec<u32>,
    packing: Packing,
    excess: u64,
    state: u64,
}

impl Walk<'_> {
    fn start(&mut self) {
        self.shelf.place(&self.order, &mut self.packing);
        self.excess = self.excess(&self.packing);
    }

    /// A number below `below`, which is not 0.
    ///
    /// # Source
    /// Knuth's multiplier for linear congruential generators of 64 bits (MMIX).
    fn draw(&mut self, below: usize) -> usize {
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.state >> 33) % below as u64) as usize
    }

    /// Bytes over the floor, over all items.
    fn excess(&self, packing: &Packing) -> u64 {
        let ends =
            self.items.iter().zip(&packing.offsets).map(|(item, offset)| offset + item.bytes);
        ends.map(|end| end.saturating_sub(self.floor)).sum()
    }

    /// Positions in the order of what sticks out.
    fn sticking_out(&self) -> Vec<usize> {
        let out = |item: u32| {
            let item = item as usize;
            self.packing.offsets[item] + self.items[item].bytes > self.floor
        };
        (0..self.order.len()).filter(|at| out(self.order[*at])).collect()
    }

    fn step(&mut self, next: &mut Vec<u32>, trial: &mut Packing) -> bool {
        let out = self.sticking_out();
        let from = out[self.draw(out.len())];
        let to = self.draw(from + 1);
        next.clone_from(&self.order);
        next[to..=from].rotate_right(1);
        if self.draw(3) == 0 {
            self.swap_beside(next, from);
        }
        trial.peak = self.packing.peak.saturating_add(1);
        if !self.shelf.place(next, trial) {
            return false;
        }
        let excess = self.excess(trial);
        let is_better = (trial.peak, excess) < (self.packing.peak, self.excess);
        if (trial.peak, excess) <= (self.packing.peak, self.excess) {
            std::mem::swap(&mut self.order, next);
            std::mem::swap(&mut self.packing, trial);
            self.excess = excess;
        }
        is_better
    }

    /// Lets something that is alive beside the item at `of` go to another place in the order.
    fn swap_beside(&mut self, order: &mut [u32], of: usize) {
        let item = self.items[order[of] as usize];
        let beside: Vec<usize> =
            (0..order.len()).filter(|at| item.meets(&self.items[order[*at] as usize])).collect();
        let (a, b) = (beside[self.draw(beside.len())], beside[self.draw(beside.len())]);
        order[a.min(b)..=a.max(b)].rotate_right(1);
    }

    fn shake(&mut self) {
        let out = self.sticking_out();
        let mut order = std::mem::take(&mut self.order);
        for _ in 0..5 {
            let of = out[self.draw(out.len())];
            self.swap_beside(&mut order, of);
        }
        self.packing.peak = u64::MAX;
        self.shelf.place(&order, &mut self.packing);
        self.order = order;
        self.excess = self.excess(&self.packing);
    }

    fn run(mut self, rounds: u64, mut improves: impl FnMut(&mut Self) -> bool) {
        let (mut next, mut trial) = (Vec::new(), self.packing.clone());
        let (mut idle, mut least) = (0, self.packing.peak);
        for _ in 0..rounds {
            if idle > PATIENCE {
                idle = 0;
                self.shake();
            } else if self.step(&mut next, &mut trial) {
                idle = 0;
            } else {
                idle += 1;
            }
            if self.packing.peak < least {
                least = self.packing.peak;
                if improves(&mut self) || least <= self.floor {
                    return;
                }
            }
        }
    }
}
