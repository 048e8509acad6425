//! Cutting weights into units and ops into visits.
//!
//! A unit is what one copy brings; a visit is what waits for it. Between a whole block and a leaf (the
//! weights of one op) lies everything else: a block of more than `cap` bytes is cut into runs of leaves of at
//! most `cap` bytes each, so that one number says how fine the cut is, blocks of very unequal size come out
//! about equal, and `0` gives leaves.
//!
//! Invariants:
//! - A weight is in exactly one unit, a unit in exactly one block.
//! - Every op of a visit finds its weights in the visit's units; where a block is cut, a visit begins at each
//!   op that needs a unit which the visit before did not have.

use std::collections::BTreeMap;

use crate::facts::{Facts, round_up, seconds};
use crate::machine::Machine;

/// A unit before it has a place.
#[derive(Clone, Debug)]
pub(crate) struct UnitCut {
    /// Name such as `double.3` or `double.3/img.qkv`.
    pub(crate) name: String,
    /// Block in the graph.
    pub(crate) block: u32,
    /// Positions in [`Facts::weights`], in order of first use.
    pub(crate) weights: Vec<u32>,
    /// From the first weight to the end of the last, each aligned.
    pub(crate) bytes: u64,
    /// Weights alone: what a copy carries.
    pub(crate) payload_bytes: u64,
    /// Pieces of files.
    pub(crate) segments: u64,
    /// Seconds of its copy.
    pub(crate) seconds: f64,
}

/// A visit before its weights have places.
#[derive(Clone, Debug)]
pub(crate) struct VisitCut {
    /// First op.
    pub(crate) start: u32,
    /// One past the last op.
    pub(crate) end: u32,
    /// Index of the phase.
    pub(crate) phase: u32,
    /// Units that the ops read, with the last op that reads each, in order of first use.
    pub(crate) uses: Vec<(u32, u32)>,
    /// Seconds of the ops.
    pub(crate) seconds: f64,
}

/// One way of cutting a graph.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    pub(crate) units: Vec<UnitCut>,
    pub(crate) visits: Vec<VisitCut>,
    /// First visit of each phase, then the number of visits.
    pub(crate) phase_visits: Vec<u32>,
}

impl Cut {
    /// Cuts blocks of more than `cap` bytes into runs of leaves of at most `cap` bytes.
    pub(crate) fn new(facts: &Facts<'_>, machine: &dyn Machine, cap: u64) -> Self {
        let (mut units, unit_of, is_split) = cut_units(facts, cap);
        for unit in &mut units {
            unit.seconds = seconds(machine.copy_seconds(unit.payload_bytes, unit.segments));
        }
        let (visits, phase_visits) = cut_visits(facts, &unit_of, &is_split);
        Self { units, visits, phase_visits }
    }

    /// The visits of a phase.
    pub(crate) fn visits_of(&self, phase: usize) -> std::ops::Range<u32> {
        self.phase_visits[phase]..self.phase_visits[phase + 1]
    }

    /// The visit that an op is in.
    pub(crate) fn visit_of(&self, op: u32) -> u32 {
        position(self.visits.partition_point(|visit| visit.end <= op))
    }
}

/// Bytes of the largest unit at every level between leaves and blocks that is worth a try, the coarsest first.
pub(crate) fn caps(facts: &Facts<'_>) -> Vec<u64> {
    let mut blocks: BTreeMap<u32, u64> = BTreeMap::new();
    for weight in &facts.weights {
        *blocks.entry(weight.block).or_default() += round_up(weight.bytes);
    }
    let largest = blocks.values().copied().max().unwrap_or(0);
    let mut sizes: Vec<u64> = blocks.into_values().collect();
    sizes.sort_unstable();
    let median = sizes.get(sizes.len() / 2).copied().unwrap_or(0);
    let mut caps = vec![u64::MAX, median, largest / 2, largest / 4, 0];
    caps.sort_unstable_by(|a, b| b.cmp(a));
    caps.dedup();
    caps
}

fn position(at: usize) -> u32 {
    // Facts::new has refused what does not fit.
    u32::try_from(at).unwrap_or(u32::MAX)
}

type UnitTables = (Vec<UnitCut>, Vec<u32>, Vec<bool>);

/// Units, the unit of each weight, and which units are less than what a visit reads of their block.
fn cut_units(facts: &Facts<'_>, cap: u64) -> UnitTables {
    // Weights of a block that the same visits read stream together.
    let mut groups: BTreeMap<(u32, u32, Vec<u32>), Vec<u32>> = BTreeMap::new();
    let mut firsts: BTreeMap<(u32, Vec<u32>), u32> = BTreeMap::new();
    for (at, weight) in facts.weights.iter().enumerate() {
        let mut visits: Vec<u32> = weight
            .readers
            .iter()
            .map(|op| position(facts.visits.partition_point(|visit| visit.end <= *op)))
            .collect();
        visits.dedup();
        let first = *firsts.entry((weight.block, visits.clone())).or_insert(position(at));
        groups.entry((first, weight.block, visits)).or_default().push(position(at));
    }
    let mut units = Vec::new();
    let mut unit_of = vec![0; facts.weights.len()];
    let mut is_split = Vec::new();
    for ((_, block, _), weights) in groups {
        let total: u64 = sum_rounded(facts, &weights);
        let runs = if total <= cap { vec![weights] } else { runs_of_leaves(facts, &weights, cap) };
        let split = runs.len() > 1;
        for run in runs {
            for weight in &run {
                unit_of[*weight as usize] = position(units.len());
            }
            units.push(unit(facts, block, run, split));
            is_split.push(split || cap == 0);
        }
    }
    (units, unit_of, is_split)
}

fn sum_rounded(facts: &Facts<'_>, weights: &[u32]) -> u64 {
    weights.iter().map(|weight| round_up(facts.weights[*weight as usize].bytes)).sum()
}

/// Consecutive leaves, as many as fit `cap`, about equal.
fn runs_of_leaves(facts: &Facts<'_>, weights: &[u32], cap: u64) -> Vec<Vec<u32>> {
    let mut leaves: Vec<Vec<u32>> = Vec::new();
    let mut known: BTreeMap<&[u32], usize> = BTreeMap::new();
    for weight in weights {
        let readers = facts.weights[*weight as usize].readers.as_slice();
        let at = *known.entry(readers).or_insert(leaves.len());
        if at == leaves.len() {
            leaves.push(Vec::new());
        }
        leaves[at].push(*weight);
    }
    let total = sum_rounded(facts, weights);
    let target = total.checked_div(cap).map_or(0, |parts| total / (parts + 1));
    let mut runs: Vec<Vec<u32>> = Vec::new();
    let mut bytes = u64::MAX;
    for leaf in leaves {
        let size = sum_rounded(facts, &leaf);
        // Half of a leaf over the even share at most, and never over the cap.
        let fits = bytes.saturating_add(size) <= cap
            && bytes.saturating_add(size / 2) <= target.saturating_add(1);
        match runs.last_mut() {
            Some(run) if fits => {
                run.extend(leaf);
                bytes += size;
            }
            _ => {
                runs.push(leaf);
                bytes = size;
            }
        }
    }
    runs
}

fn unit(facts: &Facts<'_>, block: u32, weights: Vec<u32>, is_split: bool) -> UnitCut {
    let mut name = facts.graph.blocks[block as usize].name.clone();
    let op_name = |weight: &u32| {
        let op = facts.weights[*weight as usize].readers[0];
        facts.graph.ops[op as usize].name.as_str()
    };
    if let (true, Some(first), Some(last)) = (is_split, weights.first(), weights.last()) {
        name.push('/');
        name.push_str(op_name(first));
        if op_name(first) != op_name(last) {
            name.push_str("..");
            name.push_str(op_name(last));
        }
    }
    let (mut bytes, mut payload_bytes, mut segments) = (0, 0, 0u64);
    for weight in &weights {
        let weight = &facts.weights[*weight as usize];
        bytes = round_up(bytes) + weight.bytes;
        payload_bytes += weight.bytes;
        segments = segments.saturating_add(weight.segments);
    }
    UnitCut { name, block, weights, bytes, payload_bytes, segments, seconds: 0.0 }
}

fn cut_visits(facts: &Facts<'_>, unit_of: &[u32], is_split: &[bool]) -> (Vec<VisitCut>, Vec<u32>) {
    let mut visits: Vec<VisitCut> = Vec::new();
    let mut phase_visits = Vec::new();
    for block_visit in &facts.visits {
        while phase_visits.len() <= block_visit.phase as usize {
            phase_visits.push(position(visits.len()));
        }
        let ops = block_visit.start..block_visit.end;
        let is_whole = ops
            .clone()
            .flat_map(|op| &facts.op_weights[op as usize])
            .all(|weight| !is_split[unit_of[*weight as usize] as usize]);
        let empty = |start| VisitCut {
            start,
            end: start,
            phase: block_visit.phase,
            uses: Vec::new(),
            seconds: 0.0,
        };
        let mut visit = empty(block_visit.start);
        for op in ops {
            let weights = &facts.op_weights[op as usize];
            let knows = |visit: &VisitCut, unit: u32| visit.uses.iter().any(|(u, _)| *u == unit);
            let is_news = weights.iter().any(|weight| !knows(&visit, unit_of[*weight as usize]));
            if is_news && !is_whole && visit.end > visit.start {
                visits.push(std::mem::replace(&mut visit, empty(op)));
            }
            for weight in weights {
                let unit = unit_of[*weight as usize];
                match visit.uses.iter_mut().find(|(known, _)| *known == unit) {
                    Some((_, last)) => *last = op,
                    None => visit.uses.push((unit, op)),
                }
            }
            visit.end = op + 1;
            visit.seconds += facts.op_seconds[op as usize];
        }
        visits.push(visit);
    }
    while phase_visits.len() <= facts.phases.len() {
        phase_visits.push(position(visits.len()));
    }
    (visits, phase_visits)
}
