//! From a request to a plan, or to the reason why there is none.

use plimsoll_graph::Graph;

use crate::arena::{self, Effort};
use crate::assemble::{Draft, Terms, assemble};
use crate::auto;
use crate::error::{Advice, PeakAt, PlanError};
use crate::facts::Facts;
use crate::item::Packing;
use crate::line::Line;
use crate::machine::Machine;
use crate::named;
use crate::schedule::{Items, Schedule};
use crate::types::{Offload, Plan};
use crate::units::Cut;

/// What is asked of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// How much device memory.
    pub line: Line,
    /// Which strategy.
    pub offload: Offload,
    /// Whether copies may run while something computes.
    pub prefetch: bool,
}

/// Plans a run.
///
/// # Errors
/// - [`PlanError::Infeasible`]: the line is too low; the error names the smallest that works.
/// - [`PlanError::NoBlocks`]: a group of no blocks.
/// - [`PlanError::TooLarge`], [`PlanError::Malformed`]: the graph's sizes do not fit the arithmetic, or its tables
///   do not fit together.
///
/// # Determinism
/// The same arguments give the same plan, byte for byte: no clock, no randomness, no order of a hash table.
pub fn plan(graph: &Graph, machine: &dyn Machine, request: &Request) -> Result<Plan, PlanError> {
    if let Offload::Group { blocks: 0 } = request.offload {
        return Err(PlanError::NoBlocks);
    }
    let facts = Facts::new(graph, machine)?;
    let items = Items::activations(&facts);
    let planner = Planner { facts: &facts, machine, items: &items, prefetch: request.prefetch };
    let reserved = facts.reserved_bytes;
    let line = match request.line {
        Line::Min => planner.pack(&planner.leanest(request.offload), 0).peak + reserved,
        Line::Max => machine.vram_bytes(),
        line => line.bytes(machine.vram_bytes()).unwrap_or(0),
    };
    let draft = planner.under(request.offload, line)?;
    // `max` is what the plan makes of it.
    let line_bytes = if request.line == Line::Max { draft.packing.peak + reserved } else { line };
    let terms = Terms { line_bytes, offload: request.offload, prefetch: request.prefetch };
    Ok(assemble(&facts, machine, &items, &draft, terms))
}

struct Planner<'a, 'g> {
    facts: &'a Facts<'g>,
    machine: &'a dyn Machine,
    items: &'a Items,
    prefetch: bool,
}

impl Planner<'_, '_> {
    fn pack(&self, schedule: &Schedule, enough: u64) -> Packing {
        self.items.pack(self.facts, schedule, enough, Effort::Thorough)
    }

    /// The schedule that decides whether a strategy fits under a line.
    fn leanest(&self, offload: Offload) -> Schedule {
        let Self { facts, machine, .. } = *self;
        let blocks = || Cut::new(facts, machine, u64::MAX).into();
        match offload {
            Offload::Auto => auto::smallest(facts, machine, self.prefetch),
            Offload::None => named::none(facts, blocks(), self.prefetch),
            Offload::Model => named::model(facts, blocks()),
            Offload::Sequential => named::sequential(facts, machine),
            Offload::Group { blocks: n } => named::group(facts, blocks(), n, self.prefetch),
        }
    }

    /// The fastest draft whose arena has room under the line beside the reserve.
    fn under(&self, offload: Offload, line: u64) -> Result<Draft, PlanError> {
        let schedule = self.leanest(offload);
        let Some(room) = line.checked_sub(self.facts.reserved_bytes) else {
            let smallest = self.pack(&schedule, 0).peak;
            return Err(self.infeasible(offload, line, &schedule, smallest));
        };
        let packing = self.pack(&schedule, room);
        if packing.peak > room {
            // A packing that was stopped by nothing is the smallest.
            return Err(self.infeasible(offload, line, &schedule, packing.peak));
        }
        if offload == Offload::Auto {
            let least = (schedule, packing);
            return Ok(auto::search(
                self.facts,
                self.machine,
                self.items,
                least,
                room,
                self.prefetch,
            ));
        }
        Ok(Draft { schedule, packing, cost: 0.0 })
    }

    /// Why the leanest schedule of a strategy does not fit, whose arena takes `smallest` bytes.
    fn infeasible(
        &self,
        offload: Offload,
        line_bytes: u64,
        schedule: &Schedule,
        smallest: u64,
    ) -> PlanError {
        let reserved_bytes = self.facts.reserved_bytes;
        let smallest_bytes = smallest + reserved_bytes;
        let auto_bytes = || self.pack(&self.leanest(Offload::Auto), 0).peak + reserved_bytes;
        let smallest_any_bytes =
            if offload == Offload::Auto { smallest_bytes } else { auto_bytes() };
        let (at, activation_bytes) = self.peak_at(schedule);
        let is_group = matches!(offload, Offload::Group { .. });
        let room = line_bytes.saturating_sub(reserved_bytes);
        let advice = if self.prefetch
            && is_group
            && self.pack(&Self { prefetch: false, ..*self }.leanest(offload), room).peak <= room
        {
            Advice::PrefetchOff
        } else if smallest_any_bytes <= line_bytes {
            Advice::UseOffload(Offload::Auto)
        } else if activation_bytes > room && room > 0 {
            Advice::ShrinkActivations { bytes: smallest_any_bytes }
        } else {
            Advice::RaiseLine { bytes: smallest_any_bytes }
        };
        let at = Box::new(at);
        PlanError::Infeasible {
            line_bytes,
            smallest_bytes,
            smallest_any_bytes,
            reserved_bytes,
            at,
            advice,
        }
    }

    /// The fullest op of a schedule, and the most bytes of activations at any op.
    fn peak_at(&self, schedule: &Schedule) -> (PeakAt, u64) {
        let facts = self.facts;
        let live = arena::live(&self.items.with_holds(schedule), facts.graph.ops.len());
        let fullest = (0..live.len()).rev().max_by_key(|op| live[*op]).unwrap_or(0);
        let at = PeakAt::of(facts, fullest, live.get(fullest).copied().unwrap_or(0));
        (at, facts.activation_bytes.iter().copied().max().unwrap_or(0))
    }
}

impl PeakAt {
    /// Describes an op at which `live` bytes are alive.
    pub(crate) fn of(facts: &Facts<'_>, op: usize, live: u64) -> Self {
        let graph = facts.graph;
        let visit = facts.visits.iter().find(|visit| op < visit.end as usize);
        let phase = visit.map_or("", |visit| graph.phases[visit.phase as usize].name.as_str());
        let block = visit.and_then(|visit| {
            let visits = graph.phases[visit.phase as usize].visits.iter();
            visits.into_iter().find(|visit| op < visit.ops_end as usize)
        });
        let block = block.map_or("", |visit| graph.blocks[visit.block.index()].name.as_str());
        let activation = facts.activation_bytes.get(op).copied().unwrap_or(0);
        let workspace_bytes = facts.workspace_bytes.get(op).copied().unwrap_or(0);
        let workspace_bytes = crate::facts::round_up(workspace_bytes);
        Self {
            phase: phase.to_owned(),
            block: block.to_owned(),
            op: graph.ops.get(op).map_or_else(String::new, |op| op.name.clone()),
            tensor_bytes: activation - workspace_bytes,
            workspace_bytes,
            weight_bytes: live.saturating_sub(activation),
        }
    }
}
