//! A schedule: which unit is held when, before anything has an offset.
//!
//! Strategies (`named`, `auto`) make schedules; what follows (`arena`, `edges`, `assemble`) is the same for all.
//!
//! Invariants of a schedule:
//! - Every use of a unit by a visit is covered by exactly one hold.
//! - A hold's span covers all ops of its visits that read it, and in a loop all that every step needs.
//! - Holds are in the order in which the copy lane takes them: by `queue_at`, then by first use.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::arena::{self, Effort};
use crate::facts::{Facts, Span, round_up};
use crate::item::{Item, NEVER, Packing};
use crate::units::Cut;

/// When the copy of a hold may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    /// As soon as nothing needs the bytes any more.
    Free,
    /// At once.
    Start,
    /// When the visits before `visit` are done: of the same step, or from the second step on of the step before
    /// if `wraps` (in the first step then at the phase's first visit).
    Visit {
        /// The visit.
        visit: u32,
        /// Whether `visit` is of the step before.
        wraps: bool,
    },
}

/// A unit in one place: from its copy to its last reader.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    /// Unit of the cut.
    pub(crate) unit: u32,
    /// First visit that reads it.
    pub(crate) first: u32,
    /// Last visit that reads it; the same for a streamed hold, or next to it.
    pub(crate) last: u32,
    /// Last op that reads it.
    pub(crate) last_op: u32,
    /// Copied once, even if its visits are repeated.
    pub(crate) is_resident: bool,
    /// The visit before which the copy stands in the copy lane; at most `first`.
    pub(crate) queue_at: u32,
    /// When the copy may begin.
    pub(crate) begin: Begin,
    /// Ops during which the bytes are its own.
    pub(crate) span: Span,
    /// More such ops at the end of the loop's body, for the next step; see [`Item::tail`].
    pub(crate) tail: Span,
    /// More such ops at the end of the loop before, in its last step; see [`Item::lead`].
    pub(crate) lead: Span,
}

/// See the head of this file.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    pub(crate) cut: Rc<Cut>,
    pub(crate) holds: Vec<Hold>,
    /// Holds that each visit reads, ascending.
    pub(crate) visit_holds: Vec<Vec<u32>>,
    /// A visit before which copies stand waits for all of them, not just for its own.
    pub(crate) waits_for_queue: bool,
}

impl Schedule {
    /// A schedule from holds in any order; `readers` are the visits of each hold.
    pub(crate) fn new(
        cut: Rc<Cut>,
        mut holds: Vec<(Hold, Vec<u32>)>,
        waits_for_queue: bool,
    ) -> Self {
        holds.sort_by_key(|(hold, _)| (hold.queue_at, hold.first));
        let mut visit_holds = vec![Vec::new(); cut.visits.len()];
        for ((_, readers), at) in holds.iter().zip(0u32..) {
            for visit in readers {
                visit_holds[*visit as usize].push(at);
            }
        }
        let holds = holds.into_iter().map(|(hold, _)| hold).collect();
        Self { cut, holds, visit_holds, waits_for_queue }
    }

    /// Bytes that the hold takes, rounded.
    pub(crate) fn hold_bytes(&self, hold: &Hold) -> u64 {
        round_up(self.cut.units[hold.unit as usize].bytes)
    }
}

/// All uses of each unit, as `(visit, last op that reads it there)`.
pub(crate) fn uses(cut: &Cut) -> Vec<Vec<(u32, u32)>> {
    let mut uses = vec![Vec::new(); cut.units.len()];
    for (visit, at) in cut.visits.iter().zip(0u32..) {
        for (unit, last_op) in &visit.uses {
            uses[*unit as usize].push((at, *last_op));
        }
    }
    uses
}

/// A hold of one use, alive from its visit's first op to its last reader.
pub(crate) fn streamed(cut: &Cut, unit: u32, (visit, last_op): (u32, u32)) -> Hold {
    Hold {
        unit,
        first: visit,
        last: visit,
        last_op,
        is_resident: false,
        queue_at: visit,
        begin: Begin::Free,
        span: (cut.visits[visit as usize].start, last_op),
        tail: NEVER,
        lead: NEVER,
    }
}

/// A hold of several uses, copied once; in a loop it lasts for the whole loop.
pub(crate) fn resident(
    facts: &Facts<'_>,
    cut: &Cut,
    unit: u32,
    uses: &[(u32, u32)],
) -> Option<Hold> {
    let ((first, _), (last, last_op)) = (*uses.first()?, *uses.last()?);
    let visit = |at: u32| &cut.visits[at as usize];
    let (mut start, mut end) = (visit(first).start, last_op);
    let first_phase = facts.phases[visit(first).phase as usize];
    if first_phase.repeat > 1 {
        start = first_phase.start;
        end = end.max(first_phase.end - 1);
    }
    let last_phase = facts.phases[visit(last).phase as usize];
    if last_phase.repeat > 1 {
        end = end.max(last_phase.end - 1);
    }
    Some(Hold {
        unit,
        first,
        last,
        last_op,
        is_resident: true,
        queue_at: first,
        begin: Begin::Free,
        span: (start, end),
        tail: NEVER,
        lead: NEVER,
    })
}

/// Everything that needs memory, in one table: tensors, workspaces, holds.
#[derive(Clone, Debug)]
pub(crate) struct Items {
    pub(crate) items: Vec<Item>,
    /// Tensor of each of the first items.
    pub(crate) tensors: Vec<u32>,
    /// Op of each of the following items.
    pub(crate) ops: Vec<u32>,
}

impl Items {
    /// Tensors and workspaces of a graph: the part that no strategy changes.
    pub(crate) fn activations(facts: &Facts<'_>) -> Self {
        let (mut items, mut tensors, mut ops) = (Vec::new(), Vec::new(), Vec::new());
        for ((span, bytes), at) in facts.tensor_spans.iter().zip(&facts.tensor_bytes).zip(0u32..) {
            if let (Some(span), true) = (span, *bytes > 0) {
                items.push(Item::new(round_up(*bytes), *span));
                tensors.push(at);
            }
        }
        for (bytes, at) in facts.workspace_bytes.iter().zip(0u32..) {
            if *bytes > 0 {
                items.push(Item::new(round_up(*bytes), (at, at)));
                ops.push(at);
            }
        }
        Self { items, tensors, ops }
    }

    /// Index of the first hold.
    pub(crate) fn first_hold(&self) -> usize {
        self.tensors.len() + self.ops.len()
    }

    /// The same with the holds of a schedule.
    pub(crate) fn with_holds(&self, schedule: &Schedule) -> Vec<Item> {
        let mut items = Vec::with_capacity(self.items.len() + schedule.holds.len());
        items.extend_from_slice(&self.items);
        items.extend(schedule.holds.iter().map(|hold| Item {
            bytes: schedule.hold_bytes(hold).max(crate::types::ALIGNMENT),
            span: hold.span,
            tail: hold.tail,
            lead: hold.lead,
        }));
        items
    }

    /// Offsets for everything in a schedule; stops at the first peak of `enough` or less.
    ///
    /// For a quick look residents of the same span lie side by side, as one item.
    pub(crate) fn pack(
        &self,
        facts: &Facts<'_>,
        schedule: &Schedule,
        enough: u64,
        effort: Effort,
    ) -> Packing {
        let ops = facts.graph.ops.len();
        let all = self.with_holds(schedule);
        if effort == Effort::Thorough {
            return arena::pack(&all, ops, enough, effort);
        }
        let first_hold = self.first_hold();
        let mut few = all[..first_hold].to_vec();
        // For each hold the item that it is in, and its offset there.
        let mut inside: Vec<(usize, u64)> = Vec::with_capacity(schedule.holds.len());
        let mut shared: BTreeMap<Span, usize> = BTreeMap::new();
        for (hold, item) in schedule.holds.iter().zip(&all[first_hold..]) {
            let known = hold.is_resident.then(|| shared.get(&hold.span)).flatten();
            if let Some(at) = known {
                inside.push((*at, few[*at].bytes));
                few[*at].bytes += item.bytes;
            } else {
                if hold.is_resident {
                    shared.insert(hold.span, few.len());
                }
                inside.push((few.len(), 0));
                few.push(*item);
            }
        }
        let mut packing = arena::pack(&few, ops, enough, effort);
        let holds: Vec<u64> =
            inside.into_iter().map(|(at, offset)| packing.offsets[at] + offset).collect();
        packing.offsets.truncate(first_hold);
        packing.offsets.extend(holds);
        packing
    }
}
