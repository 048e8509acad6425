//! What planning asks of a graph and a machine, asked once and checked once.
//!
//! Everything after this file computes with these numbers only: sizes are rounded up to the allocation unit,
//! their sum is known to be far below `u64::MAX`, op ranges are known to be in order. So the rest of the
//! planner needs no checked sums.

use plimsoll_graph::{Graph, Op, Tensor, Weight};

use crate::error::PlanError;
use crate::machine::Machine;
use crate::types::ALIGNMENT;

/// Nothing that is planned may add up to more: 2^60 bytes.
const BYTES_MOST: u64 = 1 << 60;

/// Most entries of a lane, steps unrolled.
const ENTRIES_MOST: u64 = 1 << 24;

/// `bytes` rounded up to the allocation unit.
pub(crate) const fn round_up(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGNMENT)
}

/// A range of ops, inclusive at both ends: when something must keep its place.
pub(crate) type Span = (u32, u32);

/// A part of the run as a range of ops.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PhaseOps {
    /// First op.
    pub(crate) start: u32,
    /// One past the last op.
    pub(crate) end: u32,
    /// 1, or the number of steps.
    pub(crate) repeat: u32,
}

/// A block's ops as the graph has them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockVisit {
    /// Index of the phase.
    pub(crate) phase: u32,
    /// First op.
    pub(crate) start: u32,
    /// One past the last op.
    pub(crate) end: u32,
}

/// A weight that ops read.
#[derive(Clone, Debug)]
pub(crate) struct WeightFacts {
    /// Index in the graph.
    pub(crate) weight: u32,
    /// The block that owns it.
    pub(crate) block: u32,
    /// Its bytes.
    pub(crate) bytes: u64,
    /// Pieces of files that it is copied from.
    pub(crate) segments: u64,
    /// The ops that read it, ascending.
    pub(crate) readers: Vec<u32>,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Facts<'g> {
    pub(crate) graph: &'g Graph,
    /// What the process takes of the device beside the arena.
    pub(crate) reserved_bytes: u64,
    /// Bytes of each tensor, not rounded.
    pub(crate) tensor_bytes: Vec<u64>,
    /// When each tensor must keep its place.
    pub(crate) tensor_spans: Vec<Option<Span>>,
    /// Workspace of each op, not rounded.
    pub(crate) workspace_bytes: Vec<u64>,
    /// Seconds of each op.
    pub(crate) op_seconds: Vec<f64>,
    /// Share of the compute lane's speed that a copy in flight takes.
    pub(crate) copy_share: f64,
    /// Live tensors and workspace at each op, rounded.
    pub(crate) activation_bytes: Vec<u64>,
    /// Weights that ops read, in order of their first reader, then of their place in the graph.
    pub(crate) weights: Vec<WeightFacts>,
    /// For each op the positions in `weights` of what it reads, each once.
    pub(crate) op_weights: Vec<Vec<u32>>,
    pub(crate) phases: Vec<PhaseOps>,
    /// Visits that have ops, in order.
    pub(crate) visits: Vec<BlockVisit>,
}

impl<'g> Facts<'g> {
    /// Gathers the facts.
    ///
    /// # Errors
    /// [`PlanError::Malformed`] where the graph's tables do not fit together, [`PlanError::TooLarge`] where
    /// its sizes do not fit the arithmetic.
    pub(crate) fn new(graph: &'g Graph, machine: &dyn Machine) -> Result<Self, PlanError> {
        let (phases, visits) = ranges(graph)?;
        let tensor_bytes = tensor_bytes(graph)?;
        let tensor_spans = graph.lifetimes();
        let workspace_bytes: Vec<u64> =
            graph.ops.iter().map(|op| machine.workspace_bytes(graph, op)).collect();
        let (weights, op_weights) = weights(graph)?;
        let reserved_bytes = machine.reserved_bytes();
        let mut total = 0u64;
        let sizes = tensor_bytes.iter().chain(&workspace_bytes).copied();
        let sizes = sizes.chain([reserved_bytes]);
        for bytes in sizes.chain(weights.iter().map(|weight| weight.bytes)) {
            total = bytes
                .checked_next_multiple_of(ALIGNMENT)
                .and_then(|bytes| total.checked_add(bytes))
                .filter(|total| *total <= BYTES_MOST)
                .ok_or(PlanError::TooLarge { what: "the sum of all sizes" })?;
        }
        let op_seconds =
            graph.ops.iter().map(|op| seconds(machine.op_seconds(graph, op))).collect();
        let activation_bytes = live_bytes(
            graph.ops.len(),
            tensor_spans
                .iter()
                .zip(&tensor_bytes)
                .filter_map(|(span, bytes)| span.map(|span| (span, round_up(*bytes)))),
            workspace_bytes.iter().map(|bytes| round_up(*bytes)),
        );
        Ok(Self {
            graph,
            reserved_bytes,
            tensor_bytes,
            tensor_spans,
            workspace_bytes,
            op_seconds,
            copy_share: share(machine.copy_share()),
            activation_bytes,
            weights,
            op_weights,
            phases,
            visits,
        })
    }

    /// The phase that an op is in.
    pub(crate) fn phase_of(&self, op: u32) -> usize {
        self.phases.partition_point(|phase| phase.end <= op)
    }
}

/// A time that arithmetic can rely on: not negative, not infinite.
pub(crate) fn seconds(seconds: f64) -> f64 {
    if seconds.is_finite() && seconds > 0.0 { seconds } else { 0.0 }
}

/// A share that arithmetic can rely on.
pub(crate) fn share(share: f64) -> f64 {
    if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) }
}

/// Bytes alive at each op: `base` plus what `spans` keep.
pub(crate) fn live_bytes(
    ops: usize,
    spans: impl Iterator<Item = (Span, u64)>,
    base: impl Iterator<Item = u64>,
) -> Vec<u64> {
    let mut rises = vec![0u64; ops + 1];
    let mut falls = vec![0u64; ops + 1];
    for ((first, last), bytes) in spans {
        rises[first as usize] += bytes;
        falls[last as usize + 1] += bytes;
    }
    let mut live = 0;
    base.zip(rises.iter().zip(&falls))
        .map(|(base, (rise, fall))| {
            live = live + rise - fall;
            live + base
        })
        .collect()
}

fn ranges(graph: &Graph) -> Result<(Vec<PhaseOps>, Vec<BlockVisit>), PlanError> {
    let count = u32::try_from(graph.ops.len())
        .ok()
        .filter(|count| *count < 1 << 30)
        .ok_or(PlanError::TooLarge { what: "the number of ops" })?;
    let (mut phases, mut visits) = (Vec::new(), Vec::new());
    let (mut at, mut entries) = (0, 0u64);
    for (index, phase) in graph.phases.iter().enumerate() {
        let start = at;
        for visit in &phase.visits {
            let in_order = visit.ops_start == at && visit.ops_end >= at && visit.ops_end <= count;
            if !in_order {
                return Err(PlanError::Malformed { what: "the visits' ops are not in order" });
            }
            at = visit.ops_end;
            if visit.ops_start < visit.ops_end {
                let phase = u32::try_from(index).unwrap_or(u32::MAX);
                visits.push(BlockVisit { phase, start: visit.ops_start, end: visit.ops_end });
            }
        }
        if at == start || phase.repeat == 0 {
            return Err(PlanError::Malformed { what: "a phase of no ops" });
        }
        entries = entries.saturating_add(u64::from(at - start) * u64::from(phase.repeat));
        phases.push(PhaseOps { start, end: at, repeat: phase.repeat });
    }
    if at != count {
        return Err(PlanError::Malformed { what: "ops after the last phase" });
    }
    if entries > ENTRIES_MOST {
        return Err(PlanError::TooLarge { what: "the number of ops over all steps" });
    }
    Ok((phases, visits))
}

fn tensor_bytes(graph: &Graph) -> Result<Vec<u64>, PlanError> {
    graph
        .tensors
        .iter()
        .map(|Tensor { rows, cols, dtype, .. }| {
            checked_bytes(*rows, *cols, dtype.bytes())
                .ok_or(PlanError::TooLarge { what: "a tensor" })
        })
        .collect()
}

fn checked_bytes(rows: u64, cols: u64, width: u64) -> Option<u64> {
    rows.checked_mul(cols)?.checked_mul(width).filter(|bytes| *bytes <= BYTES_MOST)
}

type WeightTables = (Vec<WeightFacts>, Vec<Vec<u32>>);

fn weights(graph: &Graph) -> Result<WeightTables, PlanError> {
    let mut owner = vec![None; graph.weights.len()];
    for (index, block) in graph.blocks.iter().enumerate() {
        for id in &block.weights {
            owner[id.index()] = u32::try_from(index).ok();
        }
    }
    let mut known: Vec<Option<u32>> = vec![None; graph.weights.len()];
    let mut weights: Vec<WeightFacts> = Vec::new();
    let mut op_weights = Vec::with_capacity(graph.ops.len());
    for (at, op) in graph.ops.iter().enumerate() {
        let at = u32::try_from(at).unwrap_or(u32::MAX);
        let mut mine: Vec<u32> = Vec::new();
        for id in distinct_weights(op) {
            let position = match known[id] {
                Some(position) => position,
                None => {
                    let Weight { rows, cols, dtype, coding, parts, .. } = &graph.weights[id];
                    // The plain size is checked as well, so that a coding hides no overflow.
                    let bytes = checked_bytes(*rows, *cols, dtype.bytes())
                        .and_then(|_| coding.bytes(*rows, *cols, *dtype))
                        .ok_or(PlanError::TooLarge { what: "a weight" })?;
                    let block = owner[id]
                        .ok_or(PlanError::Malformed { what: "a weight that no block owns" })?;
                    let position = u32::try_from(weights.len()).unwrap_or(u32::MAX);
                    known[id] = Some(position);
                    weights.push(WeightFacts {
                        weight: u32::try_from(id).unwrap_or(u32::MAX),
                        block,
                        bytes,
                        segments: parts.len().max(1) as u64,
                        readers: Vec::new(),
                    });
                    position
                }
            };
            weights[position as usize].readers.push(at);
            mine.push(position);
        }
        op_weights.push(mine);
    }
    Ok((weights, op_weights))
}

/// Indices of the weights that an op reads, each once.
fn distinct_weights(op: &Op) -> Vec<usize> {
    let mut ids = Vec::new();
    op.for_each_weight(|id| {
        if !ids.contains(&id.index()) {
            ids.push(id.index());
        }
    });
    ids
}
