//! What is placed so far, and the lowest offset at which another item finds room.
//!
//! Most items live for a few ops of a thousand, and some for all of them: neither is to look at more of the other than
//! it must. So time is cut into buckets, and over the buckets stands a binary tree. An item is kept
//! - at the fewest nodes that together are what it is alive in: whatever else is alive anywhere under such a node has
//!   it in the way;
//! - at the buckets at its ends of which it is alive in a part only, where each pair is asked whether it meets;
//! - in the summary of every node that has a part of it beneath: an item that is alive all through a node has all of
//!   the summary in the way.
//!
//! What lies at a node, or beneath it, is not a list of items but the stretches of memory that they take, run together.
//! Memory is filled from below without gaps for the most part, so that these are few however many items there are.
//!
//! Only which items meet decides what is found, so that the moments at which nothing begins are left out of time.

use crate::facts::Span;
use crate::item::{Item, NEVER, Packing};

/// Moments of a bucket.
const WIDTH: u32 = 16;

#[derive(Clone, Copy, Debug)]
struct Placed {
    offset: u64,
    end: u64,
    item: u32,
}

/// Stretches of memory that are taken, ascending and apart.
#[derive(Clone, Debug, Default)]
struct Runs {
    /// The round in which they were; in any later one there are none.
    round: u32,
    runs: Vec<(u64, u64)>,
}

/// Which ops of an item: they differ in the steps of a loop in which they count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Span = 0,
    Tail = 1,
    Lead = 2,
}

/// A tree of one part.
#[derive(Clone, Debug, Default)]
struct Tree {
    /// The last round in which something was put in.
    round: u32,
    /// For each node what is alive all through it.
    through: Vec<Runs>,
    /// For each node what is alive anywhere in it.
    beneath: Vec<Runs>,
}

/// How a node of the tree lies to a stretch of time that shares moments with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lies {
    /// In it.
    Inside,
    /// Not all in it.
    Across,
    /// Likewise, and it is a bucket.
    Edge,
}

/// Something that may be in the way of an item.
#[derive(Clone, Copy, Debug)]
enum InTheWay {
    Through(Part, u32),
    Beneath(Part, u32),
    Bucket(u32),
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Shelf {
    /// The items, their ops as moments.
    items: Vec<Item>,
    /// Leaves of the trees, a power of two.
    leaves: u32,
    trees: [Tree; 3],
    /// For each bucket what is alive in a part of it, in order of offset.
    buckets: Vec<Vec<Placed>>,
    round: u32,
    /// Room for what is in the way of an item.
    ways: Vec<InTheWay>,
    /// Room for the next result.
    offsets: Vec<u64>,
}

impl Shelf {
    /// A shelf for items of a graph of `ops` ops.
    pub(crate) fn new(items: &[Item], ops: usize) -> Self {
        let (items, moments) = in_moments(items, ops);
        let leaves = moments.div_ceil(WIDTH).max(1).next_power_of_two();
        let tree = |part: Part| {
            let is_used = part == Part::Span || items.iter().any(|item| part.of(item) != NEVER);
            let nodes = if is_used { 2 * leaves as usize } else { 0 };
            Tree {
                round: 0,
                through: vec![Runs::default(); nodes],
                beneath: vec![Runs::default(); nodes],
            }
        };
        Self {
            leaves,
            trees: [Part::Span, Part::Tail, Part::Lead].map(tree),
            items,
            buckets: vec![Vec::new(); leaves as usize],
            round: 0,
            ways: Vec::new(),
            offsets: Vec::new(),
        }
    }

    /// Places items in `order` at the lowest offsets that are free; gives the result, and true, if it beats `best`.
    pub(crate) fn place(&mut self, order: &[u32], best: &mut Packing) -> bool {
        self.buckets.iter_mut().for_each(Vec::clear);
        self.round += 1;
        let mut offsets = std::mem::take(&mut self.offsets);
        offsets.resize(self.items.len(), 0);
        let mut peak = 0;
        for at in order {
            let offset = self.lowest(*at);
            peak = peak.max(offset + self.items[*at as usize].bytes);
            if peak >= best.peak {
                self.offsets = offsets;
                return false;
            }
            offsets[*at as usize] = offset;
            self.put(*at, offset);
        }
        self.offsets = std::mem::replace(&mut best.offsets, offsets);
        best.peak = peak;
        true
    }

    /// The lowest offset at which nothing is in the way.
    fn lowest(&mut self, at: u32) -> u64 {
        let item = self.items[at as usize];
        let mut ways = std::mem::take(&mut self.ways);
        ways.clear();
        for part in Part::ALL {
            if part.of(&item) == NEVER {
                continue;
            }
            let others = part.in_the_way();
            visit(self.leaves, part.of(&item), |node, lies| {
                for other in others {
                    let tree = &self.trees[*other as usize];
                    if tree.round != self.round {
                        continue;
                    }
                    let (runs, way) = if lies == Lies::Inside {
                        (&tree.beneath, InTheWay::Beneath(*other, node))
                    } else {
                        (&tree.through, InTheWay::Through(*other, node))
                    };
                    if runs[node as usize].round == self.round {
                        ways.push(way);
                    }
                }
                let bucket = node.wrapping_sub(self.leaves);
                if lies == Lies::Edge && !self.buckets[bucket as usize].is_empty() {
                    ways.push(InTheWay::Bucket(bucket));
                }
            });
        }
        let offset = self.raised(&item, &ways);
        self.ways = ways;
        offset
    }

    /// The lowest offset that nothing raises: from one to the next until none does.
    fn raised(&self, item: &Item, ways: &[InTheWay]) -> u64 {
        let (mut offset, mut calm) = (0, 0);
        for way in ways.iter().cycle() {
            let raised = match way {
                InTheWay::Through(part, node) => {
                    self.trees[*part as usize].through[*node as usize].raise(item.bytes, offset)
                }
                InTheWay::Beneath(part, node) => {
                    self.trees[*part as usize].beneath[*node as usize].raise(item.bytes, offset)
                }
                InTheWay::Bucket(bucket) => self.raise(*bucket, item, offset),
            };
            if raised > offset {
                offset = raised;
                calm = 0;
            }
            calm += 1;
            if calm > ways.len() {
                break;
            }
        }
        offset
    }

    /// The lowest offset from `offset` on at which nothing in a bucket is in the way.
    fn raise(&self, bucket: u32, item: &Item, mut offset: u64) -> u64 {
        for placed in &self.buckets[bucket as usize] {
            if placed.offset >= offset + item.bytes {
                break;
            }
            if placed.end > offset && self.items[placed.item as usize].meets(item) {
                offset = placed.end;
            }
        }
        offset
    }

    fn put(&mut self, at: u32, offset: u64) {
        let item = self.items[at as usize];
        let placed = Placed { offset, end: offset + item.bytes, item: at };
        let run = (offset, placed.end);
        let round = self.round;
        for part in Part::ALL {
            if part.of(&item) == NEVER {
                continue;
            }
            let tree = &mut self.trees[part as usize];
            tree.round = round;
            visit(self.leaves, part.of(&item), |node, lies| {
                tree.beneath[node as usize].add(round, run);
                if lies == Lies::Inside {
                    tree.through[node as usize].add(round, run);
                }
                if lies == Lies::Edge {
                    let bucket = &mut self.buckets[(node - self.leaves) as usize];
                    let place = bucket.partition_point(|other| other.offset < offset);
                    bucket.insert(place, placed);
                }
            });
        }
    }
}

impl Part {
    const ALL: [Self; 3] = [Self::Span, Self::Tail, Self::Lead];

    fn of(self, item: &Item) -> Span {
        match self {
            Self::Span => item.span,
            Self::Tail => item.tail,
            Self::Lead => item.lead,
        }
    }

    /// Parts of other items that are in the way of this one at the same op; see [`Item::meets`].
    fn in_the_way(self) -> &'static [Self] {
        match self {
            Self::Span => &Self::ALL,
            Self::Tail => &[Self::Span, Self::Tail],
            Self::Lead => &[Self::Span, Self::Lead],
        }
    }
}

impl Runs {
    /// The lowest offset from `offset` on at which `bytes` lie between runs.
    fn raise(&self, bytes: u64, mut offset: u64) -> u64 {
        let from = self.runs.partition_point(|(_, end)| *end <= offset);
        for (start, end) in &self.runs[from..] {
            if *start >= offset + bytes {
                break;
            }
            offset = *end;
        }
        offset
    }

    /// Takes what lies from `start` to `end`, of which some may be taken.
    fn add(&mut self, round: u32, (start, end): (u64, u64)) {
        if self.round != round {
            self.round = round;
            self.runs.clear();
        }
        let from = self.runs.partition_point(|run| run.1 < start);
        let count = self.runs[from..].iter().take_while(|run| run.0 <= end).count();
        if count == 0 {
            self.runs.insert(from, (start, end));
            return;
        }
        let last = self.runs[from + count - 1].1.max(end);
        let run = &mut self.runs[from];
        *run = (run.0.min(start), last);
        self.runs.drain(from + 1..from + count);
    }
}

/// Visits the nodes of a tree that share moments with `span`, but none beneath one that lies inside.
fn visit(leaves: u32, (first, last): Span, mut each: impl FnMut(u32, Lies)) {
    // Leaves that are touched, and of them those that are inside.
    let (from, to) = (first / WIDTH, (last / WIDTH).min(leaves - 1));
    let inside = first.div_ceil(WIDTH)..((last + 1) / WIDTH).min(leaves);
    let (mut left, mut right) = (leaves + from, leaves + to);
    let mut level = 0;
    let lies = |node: u32, level: u32| {
        let start = (node << level) - leaves;
        let is_inside = start >= inside.start && start + (1 << level) <= inside.end;
        match (is_inside, level) {
            (true, _) => Lies::Inside,
            (false, 0) => Lies::Edge,
            (false, _) => Lies::Across,
        }
    };
    // What is across is above one of the ends.
    loop {
        if lies(left, level) != Lies::Inside {
            each(left, lies(left, level));
        }
        if right != left && lies(right, level) != Lies::Inside {
            each(right, lies(right, level));
        }
        if left == 1 {
            break;
        }
        // A node inside between the two is the highest such if that above it is not inside.
        (left, right, level) = (left / 2, right / 2, level + 1);
    }
    let (mut left, mut right) = (leaves + inside.start, leaves + inside.end.max(inside.start));
    while left < right {
        if left % 2 == 1 {
            each(left, Lies::Inside);
            left += 1;
        }
        if right % 2 == 1 {
            right -= 1;
            each(right, Lies::Inside);
        }
        (left, right) = (left / 2, right / 2);
    }
}

/// The items with moments for ops, and how many moments there are: an op at which nothing begins is of the moment
/// before it.
///
/// Of two spans that meet, one holds the beginning of the other; so the same meet as before.
fn in_moments(items: &[Item], ops: usize) -> (Vec<Item>, u32) {
    let mut moments = vec![0u32; ops + 1];
    for (first, last) in items.iter().flat_map(|item| [item.span, item.tail, item.lead]) {
        if first <= last {
            moments[first as usize] = 1;
        }
    }
    let mut count = 0;
    for moment in &mut moments {
        count += *moment;
        *moment = count.max(1) - 1;
    }
    // What lasts to the last moment lasts to the end of its bucket and of the tree: nothing else is there.
    let end = |moment: u32| if moment + 1 >= count { u32::MAX >> 1 } else { moment };
    let of = |(first, last): Span| {
        if first <= last { (moments[first as usize], end(moments[last as usize])) } else { NEVER }
    };
    let items = items.iter().map(|item| Item {
        bytes: item.bytes,
        span: of(item.span),
        tail: of(item.tail),
        lead: of(item.lead),
    });
    (items.collect(), count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Rng;

    /// The definition: the lowest offset at which no item that was placed before and meets it shares a byte.
    fn plainly(items: &[Item], order: &[u32]) -> Vec<u64> {
        let mut offsets = vec![0; items.len()];
        for (count, at) in order.iter().enumerate() {
            let item = &items[*at as usize];
            let mut offset = 0;
            loop {
                let next = order[..count].iter().find_map(|other| {
                    let (other, start) = (&items[*other as usize], offsets[*other as usize]);
                    let end = start + other.bytes;
                    let shares = start < offset + item.bytes && offset < end;
                    (shares && item.meets(other)).then_some(end)
                });
                match next {
                    Some(end) => offset = end,
                    None => break,
                }
            }
            offsets[*at as usize] = offset;
        }
        offsets
    }

    fn some_items(n: &mut Rng, ops: u64) -> Vec<Item> {
        let count = n.below(250);
        let mut span = |most: u64| {
            let first = n.below(ops);
            let last = (first + n.below(most)).min(ops - 1);
            (first as u32, last as u32)
        };
        let spans: Vec<[Span; 3]> =
            (0..count).map(|_| [span(ops), span(4), span(ops / 3 + 1)]).collect();
        spans
            .into_iter()
            .map(|[long, short, other]| {
                let body = [short, short, short, long, (0, ops as u32 - 1)][n.below(5) as usize];
                let mut item = Item::new(256 * (1 + n.below(40)), body);
                // A tail is after the span and a lead before it, of one item at most one of them.
                match n.below(6) {
                    0 if other.0 > body.1 => item.tail = other,
                    1 if other.1 < body.0 => item.lead = other,
                    _ => {}
                }
                item
            })
            .collect()
    }

    #[test]
    fn offsets_are_those_of_the_definition() {
        let n = &mut Rng::new(0x5eed);
        for round in 0..600 {
            let ops = 1 + n.below([3, 40, 300, 3_000][round % 4]);
            let items = some_items(n, ops);
            let mut shelf = Shelf::new(&items, ops as usize);
            // The same shelf again and again, as `pack` uses it, and over some of the items, as the walk does.
            for _ in 0..3 {
                let mut order: Vec<u32> = (0..items.len() as u32).collect();
                for at in (1..order.len()).rev() {
                    order.swap(at, n.below(at as u64 + 1) as usize);
                }
                let mut best = Packing { offsets: Vec::new(), peak: u64::MAX };
                assert!(shelf.place(&order, &mut best));
                assert_eq!(best.offsets, plainly(&items, &order), "round {round}");
                let ends = items.iter().zip(&best.offsets).map(|(item, at)| item.bytes + at);
                assert_eq!(best.peak, ends.max().unwrap_or(0));
                // No second is better than itself; and it stops on the way.
                assert!(items.is_empty() || !shelf.place(&order, &mut best));
            }
        }
    }
}
