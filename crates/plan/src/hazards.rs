//! What was in a load's place before it, and until when.
//!
//! A load may not come before the last use of anything that shares a byte with its place. Of all that does, the latest
//! is enough: the later of two uses in the order of the graph is the later in time as well. So over the memory stands
//! a binary tree that knows the latest use of each stretch; items go into it by their last use, and each load asks
//! when all that ends before its own use is in, and nothing else.

use crate::facts::{Facts, PhaseOps};
use crate::item::Item;
use crate::schedule::Schedule;

/// The latest uses of what shares a byte with a hold's place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Latest {
    /// The latest that ends before the hold's own use begins.
    pub(crate) before: Option<u32>,
    /// The latest of what begins in the hold's phase, if it does not end before the hold's own use.
    pub(crate) inside: Option<u32>,
}

/// Something with a place, and the ops that use it.
#[derive(Clone, Copy, Debug)]
struct Place {
    start: usize,
    end: usize,
    first: u32,
    last: u32,
}

/// For each hold of a schedule what was in its place before; the holds are the items from `first_hold` on.
pub(crate) fn latest(
    facts: &Facts<'_>,
    schedule: &Schedule,
    items: &[Item],
    offsets: &[u64],
    first_hold: usize,
) -> Vec<Latest> {
    let uses = items.iter().enumerate().map(|(at, item)| match at.checked_sub(first_hold) {
        Some(hold) => {
            let hold = &schedule.holds[hold];
            (schedule.cut.visits[hold.first as usize].start, hold.last_op)
        }
        None => item.span,
    });
    let (places, stretches) = places(items, offsets, uses);
    among(&places, first_hold, &facts.phases, stretches)
}

/// Places in stretches of memory that begin where an item does: two share one exactly if they share a byte.
fn places(
    items: &[Item],
    offsets: &[u64],
    uses: impl Iterator<Item = (u32, u32)>,
) -> (Vec<Place>, usize) {
    let mut starts = offsets[..items.len()].to_vec();
    starts.sort_unstable();
    starts.dedup();
    let places = items.iter().zip(offsets).zip(uses).map(|((item, offset), (first, last))| Place {
        start: starts.partition_point(|start| start < offset),
        end: starts.partition_point(|start| *start < offset + item.bytes),
        first,
        last,
    });
    (places.collect(), starts.len())
}

fn among(
    places: &[Place],
    first_hold: usize,
    phases: &[PhaseOps],
    stretches: usize,
) -> Vec<Latest> {
    let mut latest = vec![Latest::default(); places.len() - first_hold];
    let mut tree = Tree::new(stretches);
    let mut by_last: Vec<&Place> = places.iter().collect();
    by_last.sort_unstable_by_key(|place| place.last);
    let mut holds: Vec<usize> = (first_hold..places.len()).collect();
    holds.sort_unstable_by_key(|hold| places[*hold].first);
    let mut next = by_last.iter().peekable();
    for hold in &holds {
        let own = &places[*hold];
        while let Some(place) = next.next_if(|place| place.last < own.first) {
            tree.raise(place.start, place.end, place.last);
        }
        latest[*hold - first_hold].before = tree.most(own.start, own.end);
    }
    for phase in phases {
        let is_in = |place: &Place| (phase.start..phase.end).contains(&place.first);
        if !holds.iter().any(|hold| is_in(&places[*hold])) {
            continue;
        }
        tree.clear();
        for place in places.iter().filter(|place| is_in(place)) {
            tree.raise(place.start, place.end, place.last);
        }
        for hold in holds.iter().filter(|hold| is_in(&places[**hold])) {
            let own = &places[*hold];
            let most = tree.most(own.start, own.end);
            latest[*hold - first_hold].inside = most.filter(|last| *last >= own.first);
        }
    }
    latest
}

/// The most of each stretch, over which ranges are raised.
#[derive(Debug)]
struct Tree {
    /// Leaves, a power of two.
    leaves: usize,
    /// For each node what was raised all over it, and 1; 0 for nothing.
    through: Vec<u32>,
    /// For each node the most beneath it.
    beneath: Vec<u32>,
}

impl Tree {
    fn new(stretches: usize) -> Self {
        let leaves = stretches.max(1).next_power_of_two();
        Self { leaves, through: vec![0; 2 * leaves], beneath: vec![0; 2 * leaves] }
    }

    fn clear(&mut self) {
        self.through.fill(0);
        self.beneath.fill(0);
    }

    fn raise(&mut self, start: usize, end: usize, to: u32) {
        let to = to + 1;
        let (mut left, mut right) = (start + self.leaves, end + self.leaves);
        while left < right {
            let ends = [(left % 2 == 1).then_some(left), (right % 2 == 1).then(|| right - 1)];
            for node in ends.into_iter().flatten() {
                self.through[node] = self.through[node].max(to);
                self.beneath[node] = self.beneath[node].max(to);
            }
            (left, right) = (left.div_ceil(2), right / 2);
        }
        for mut node in [start + self.leaves, end - 1 + self.leaves] {
            while node > 1 {
                node /= 2;
                self.beneath[node] = self.beneath[node].max(to);
            }
        }
    }

    fn most(&self, start: usize, end: usize) -> Option<u32> {
        let mut most = 0;
        let (mut left, mut right) = (start + self.leaves, end + self.leaves);
        while left < right {
            if left % 2 == 1 {
                most = most.max(self.beneath[left]);
            }
            if right % 2 == 1 {
                most = most.max(self.beneath[right - 1]);
            }
            (left, right) = (left.div_ceil(2), right / 2);
        }
        for mut node in [start + self.leaves, end - 1 + self.leaves] {
            while node > 1 {
                node /= 2;
                most = most.max(self.through[node]);
            }
        }
        most.checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Rng;

    #[test]
    fn the_latest_is_that_of_a_look_at_each() {
        let n = &mut Rng::new(0x5eed);
        for _ in 0..300 {
            let ops = 2 + n.below(90) as u32;
            let split = 1 + n.below(u64::from(ops) - 1) as u32;
            let phases = [(0, split), (split, ops)];
            let phases = phases.map(|(start, end)| PhaseOps { start, end, repeat: 3 });
            let count = 1 + n.below(120) as usize;
            let first_hold = n.below(count as u64) as usize;
            let mut items = Vec::new();
            let mut offsets = Vec::new();
            for _ in 0..count {
                let first = n.below(u64::from(ops)) as u32;
                let last = (first + n.below(9) as u32).min(ops - 1);
                items.push(Item::new(256 * (1 + n.below(30)), (first, last)));
                offsets.push(256 * n.below(200));
            }
            let (places, stretches) = places(&items, &offsets, items.iter().map(|item| item.span));
            let found = among(&places, first_hold, &phases, stretches);
            for (hold, found) in (first_hold..count).zip(found) {
                let own = items[hold].span.0;
                let phase = phases.iter().find(|phase| own < phase.end).unwrap();
                let sharing = items.iter().zip(&offsets).filter(|(item, offset)| {
                    **offset < offsets[hold] + items[hold].bytes
                        && offsets[hold] < **offset + item.bytes
                });
                let mut expected = Latest::default();
                for ((first, last), _) in sharing.map(|(item, offset)| (item.span, offset)) {
                    if last < own {
                        expected.before = expected.before.max(Some(last));
                    } else if (phase.start..phase.end).contains(&first) {
                        expected.inside = expected.inside.max(Some(last));
                    }
                }
                assert_eq!(found, expected);
            }
        }
    }
}
