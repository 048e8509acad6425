//! Which ranges of a mapping are lent to the card, in which pieces. Pure.
//!
//! A copy over the boundary of two registrations is refused by the driver, and two registrations must not overlap
//! wholly (they may share a page). So pieces are disjoint, none is larger than a cap, and they end where planned
//! copies end; a copy that is larger than the cap, or lies partly in an older piece, is cut by [`cut`].

use std::ops::Range;

/// A range of bytes of a mapping.
pub(crate) type Span = Range<u64>;

/// Sizes that pieces follow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Most bytes of a piece.
    pub(crate) piece_bytes: u64,
    /// Bytes between two copies that are lent along with them.
    pub(crate) gap_bytes: u64,
}

/// New pieces that cover `copies`, as far as `registered` (sorted, disjoint) does not.
///
/// The result is sorted, and disjoint from itself and from `registered`.
pub(crate) fn pieces(copies: &[Span], registered: &[Span], rules: Rules) -> Vec<Span> {
    let mut found: Vec<Span> = Vec::new();
    for atom in uncovered(copies, registered) {
        let joined = found.last().map(|piece| piece.start..atom.end).filter(|joined| {
            let gap = joined.end - length(&atom) - found.last().map_or(0, |piece| piece.end);
            gap <= rules.gap_bytes
                && length(joined) <= rules.piece_bytes
                && !registered.iter().any(|old| overlap(old, joined))
        });
        match (joined, found.last_mut()) {
            (Some(joined), Some(last)) => *last = joined,
            _ => {
                let mut start = atom.start;
                while start < atom.end {
                    let end = atom.end.min(start.saturating_add(rules.piece_bytes));
                    found.push(start..end);
                    start = end;
                }
            }
        }
    }
    found
}

/// The first `budget_bytes` of new pieces, and the bytes that are left out.
pub(crate) fn within(pieces: Vec<Span>, budget_bytes: u64) -> (Vec<Span>, u64) {
    let (mut left, mut left_out) = (budget_bytes, 0);
    let kept = pieces.into_iter().filter_map(|piece| {
        let bytes = length(&piece).min(left);
        left -= bytes;
        left_out += length(&piece) - bytes;
        (bytes > 0).then(|| piece.start..piece.start + bytes)
    });
    (kept.collect(), left_out)
}

/// `span` cut where pieces (sorted, disjoint) begin and end; each part with the index of its piece, if it has one.
pub(crate) fn cut(span: Span, pieces: &[Span], mut part: impl FnMut(Span, Option<usize>)) {
    let mut start = span.start;
    let mut at = pieces.partition_point(|piece| piece.end <= start);
    while start < span.end {
        let (end, index) = match pieces.get(at) {
            Some(piece) if piece.start <= start => (piece.end.min(span.end), Some(at)),
            Some(piece) => (piece.start.min(span.end), None),
            None => (span.end, None),
        };
        part(start..end, index);
        at += usize::from(index.is_some());
        start = end;
    }
}

/// Bytes of a range.
pub(crate) fn length(span: &Span) -> u64 {
    span.end - span.start
}

fn overlap(one: &Span, other: &Span) -> bool {
    one.start < other.end && other.start < one.end
}

/// The union of `copies` less `registered`, as sorted ranges: copies that overlap are one, those that touch are
/// not, so that a piece can end between them.
fn uncovered(copies: &[Span], registered: &[Span]) -> Vec<Span> {
    let mut sorted: Vec<Span> =
        copies.iter().filter(|span| span.start < span.end).cloned().collect();
    sorted.sort_by_key(|span| (span.start, span.end));
    let mut merged: Vec<Span> = Vec::with_capacity(sorted.len());
    for span in sorted {
        match merged.last_mut() {
            Some(last) if span.start < last.end => last.end = last.end.max(span.end),
            _ => merged.push(span),
        }
    }
    let mut left = Vec::with_capacity(merged.len());
    for span in merged {
        cut(span, registered, |part, piece| {
            if piece.is_none() {
                left.push(part);
            }
        });
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            (z ^ (z >> 31)) % bound
        }
    }

    fn is_sorted_and_disjoint(spans: &[Span]) -> bool {
        spans.iter().all(|span| span.start < span.end)
            && spans.windows(2).all(|pair| pair[0].end <= pair[1].start)
    }

    fn covered(at: u64, spans: &[Span]) -> bool {
        spans.iter().any(|span| span.contains(&at))
    }

    #[test]
    fn any_copies_are_covered_by_disjoint_pieces() {
        let mut random = Random(1);
        for round in 0..3000 {
            let copies: Vec<Span> = (0..random.below(30))
                .map(|_| {
                    let start = random.below(400);
                    start..start + random.below(60)
                })
                .collect();
            let rules = Rules { piece_bytes: 1 + random.below(100), gap_bytes: random.below(10) };
            // Some of an earlier program's copies are lent already.
            let earlier = &copies[..copies.len() / (1 + round % 3)];
            let old = pieces(&earlier[..earlier.len() / 2], &[], rules);
            let new = pieces(&copies, &old, rules);
            let mut both = [old.clone(), new.clone()].concat();
            both.sort_by_key(|span| span.start);
            assert!(is_sorted_and_disjoint(&both), "{copies:?} gives {old:?} and {new:?}");
            assert!(both.iter().all(|piece| length(piece) <= rules.piece_bytes));
            for copy in &copies {
                assert!(copy.clone().all(|at| covered(at, &both)));
                let mut parts: Vec<Span> = Vec::new();
                cut(copy.clone(), &both, |part, piece| {
                    let piece = &both[piece.expect("all is lent")];
                    assert!(piece.start <= part.start && part.end <= piece.end);
                    parts.push(part);
                });
                assert!(is_sorted_and_disjoint(&parts));
                assert_eq!(parts.iter().map(length).sum::<u64>(), length(copy));
            }
            // Apart from gaps, nothing is lent that no copy reads.
            let needed = (0..500).filter(|at| covered(*at, &copies)).count() as u64;
            let lent: u64 = both.iter().map(length).sum();
            assert!(lent <= needed + rules.gap_bytes * copies.len() as u64);
        }
    }

    #[test]
    fn a_copy_that_fits_a_piece_is_not_cut() {
        let mut random = Random(2);
        for _ in 0..2000 {
            let mut end = 0;
            let copies: Vec<Span> = (0..20)
                .map(|_| {
                    let start = end + random.below(4);
                    end = start + 1 + random.below(40);
                    start..end
                })
                .collect();
            let rules = Rules { piece_bytes: 40 + random.below(60), gap_bytes: 2 };
            let lent = pieces(&copies, &[], rules);
            for copy in &copies {
                let mut parts = 0;
                cut(copy.clone(), &lent, |_, _| parts += 1);
                assert_eq!(parts, 1, "{copy:?} is cut by {lent:?}");
            }
        }
    }

    #[test]
    fn the_budget_is_kept_and_what_it_leaves_out_has_no_piece() {
        let copies: Vec<Span> = (0..10).map(|at| at * 100..at * 100 + 50).collect();
        let rules = Rules { piece_bytes: 1000, gap_bytes: 0 };
        let (lent, left_out) = within(pieces(&copies, &[], rules), 220);
        assert_eq!(lent, [copies[..4].to_vec(), std::iter::once(400..420).collect()].concat());
        assert_eq!(left_out, 280);
        let mut parts = Vec::new();
        cut(330..460, &lent, |part, piece| parts.push((part, piece)));
        let expected =
            vec![(330..350, Some(3)), (350..400, None), (400..420, Some(4)), (420..460, None)];
        assert_eq!(parts, expected);
        assert_eq!(within(copies.clone(), 0), (Vec::new(), 500));
    }
}
