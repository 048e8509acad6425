//! The ledger: who has how much of the arena, by phase and component.
//!
//! It is read off the finished plan and the graph, not kept while planning: what it says holds for any plan. A load
//! has its bytes from the visit before which its copy may begin to the last op that reads it, after which a tensor of
//! the same visit may take its place; so at every moment the sum of a row is at most the arena, and the rest is what
//! the offsets lose between places.

use std::fmt;

use plimsoll_graph::{ComponentId, Graph};
use serde::Serialize;

use crate::error::PeakAt;
use crate::facts::{live_bytes, round_up};
use crate::line::Bytes;
use crate::types::{Offload, Plan};

/// An explained plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ledger {
    /// Id of the plan.
    pub plan_id: String,
    /// Strategy.
    pub offload: Offload,
    /// Whether copies run ahead.
    pub prefetch: bool,
    /// The line.
    pub line_bytes: u64,
    /// What the plan takes of it.
    pub arena_bytes: u64,
    /// What the process takes of it beside the arena.
    pub reserved_bytes: u64,
    /// By phase and component, in order of their first visit.
    pub rows: Vec<LedgerRow>,
    /// The fullest moment.
    pub peak: PeakAt,
    /// Bytes of weights copied in a steady step.
    pub copied_bytes_per_step: u64,
    /// Bytes of weights copied in the run.
    pub copied_bytes: u64,
    /// Seconds of a steady step.
    pub seconds_per_step: f64,
    /// Seconds of the run.
    pub seconds_total: f64,
}

/// A component in a phase, at its fullest op; in a loop in a steady step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LedgerRow {
    /// Name of the phase.
    pub phase: String,
    /// Name of the component.
    pub component: String,
    /// How often the phase is carried out.
    pub repeat: u32,
    /// Units that stay through the phase.
    pub resident_units: u32,
    /// Units that are copied for each use.
    pub streamed_units: u32,
    /// Weights that stay, from their first reader on, of all components.
    pub resident_bytes: u64,
    /// Places of streamed weights, and of any that may already be on their way.
    pub slot_bytes: u64,
    /// Live tensors.
    pub activation_bytes: u64,
    /// Scratch of the op.
    pub workspace_bytes: u64,
    /// Sum of the four.
    pub live_bytes: u64,
    /// Bytes of weights that one repetition of the phase copies for the component.
    pub copied_bytes: u64,
}

/// Explains a plan of a graph.
pub fn explain(graph: &Graph, plan: &Plan) -> Ledger {
    let book = Book::new(graph, plan);
    let mut rows: Vec<LedgerRow> = Vec::new();
    let mut fullest: Option<PeakAt> = None;
    let mut fullest_bytes = 0;
    for phase in 0..plan.phases.len() {
        for component in book.components_of(phase) {
            let Some((row, at)) = book.row(phase, component) else { continue };
            if fullest.is_none() || row.live_bytes > fullest_bytes {
                fullest_bytes = row.live_bytes;
                fullest = Some(at);
            }
            rows.push(row);
        }
    }
    let peak = fullest.unwrap_or(PeakAt {
        phase: String::new(),
        block: String::new(),
        op: String::new(),
        tensor_bytes: 0,
        workspace_bytes: 0,
        weight_bytes: 0,
    });
    Ledger {
        plan_id: plan.id.clone(),
        offload: plan.offload,
        prefetch: plan.prefetch,
        line_bytes: plan.line_bytes,
        arena_bytes: plan.arena_bytes,
        reserved_bytes: plan.reserved_bytes,
        rows,
        peak,
        copied_bytes_per_step: plan.predicted.copied_bytes_per_step,
        copied_bytes: plan.predicted.copied_bytes,
        seconds_per_step: plan.predicted.seconds_per_step,
        seconds_total: plan.predicted.seconds_total,
    }
}

struct Book<'a> {
    graph: &'a Graph,
    plan: &'a Plan,
    /// Live tensors at each op.
    tensors: Vec<u64>,
    /// Resident and streamed weights at each entry of the compute lane.
    resident: Vec<u64>,
    slots: Vec<u64>,
    /// Loads that are read for the last time at each entry of the compute lane.
    ends: Vec<Vec<u32>>,
    /// Block of each op.
    blocks: Vec<u32>,
    /// First entry of the compute lane of each phase.
    base: Vec<usize>,
}

impl<'a> Book<'a> {
    fn new(graph: &'a Graph, plan: &'a Plan) -> Self {
        let spans = graph.lifetimes().into_iter().zip(&plan.tensors);
        let tensors = live_bytes(
            graph.ops.len(),
            spans.filter_map(|(span, region)| span.map(|span| (span, round_up(region.bytes)))),
            std::iter::repeat(0),
        );
        let mut blocks = vec![0; graph.ops.len()];
        for visit in graph.phases.iter().flat_map(|phase| &phase.visits) {
            blocks[visit.ops_start as usize..visit.ops_end as usize].fill(visit.block.0);
        }
        let mut base = Vec::with_capacity(plan.phases.len());
        let mut entries = 0;
        for phase in &plan.phases {
            base.push(entries);
            entries += (phase.visits_end - phase.visits_start) as usize * phase.repeat as usize;
        }
        let Held { resident, slots, ends } = held(plan);
        Self { graph, plan, tensors, resident, slots, ends, blocks, base }
    }

    /// Bytes of residents and of streamed loads that are spoken for at each op of a visit.
    fn weights(&self, visit: usize, entry: usize) -> Vec<[u64; 2]> {
        let visit = &self.plan.visits[visit];
        let ops = visit.ops_start..visit.ops_end;
        let mut held = vec![[self.resident[entry], self.slots[entry]]; ops.len()];
        for load in &self.ends[entry] {
            let load = &self.plan.loads[*load as usize];
            let unit = &self.plan.units[load.unit as usize];
            let is_reader = |op: &u32| {
                let mut reads = false;
                self.graph.ops[*op as usize].for_each_weight(|id| {
                    reads |= unit.weights.iter().any(|entry| entry.weight == *id);
                });
                reads
            };
            let free_from = ops.clone().rev().find(is_reader).map_or(ops.start, |last| last + 1);
            for held in &mut held[(free_from - ops.start) as usize..] {
                let held = &mut held[usize::from(!load.is_resident)];
                *held = held.saturating_sub(round_up(load.region.bytes));
            }
        }
        held
    }

    fn component(&self, op: u32) -> ComponentId {
        self.graph.blocks[self.blocks[op as usize] as usize].component
    }

    /// Components of a phase in order of their first visit.
    fn components_of(&self, phase: usize) -> Vec<ComponentId> {
        let mut components = Vec::new();
        for visit in self.visits_of(phase) {
            let component = self.component(self.plan.visits[visit].ops_start);
            if !components.contains(&component) {
                components.push(component);
            }
        }
        components
    }

    fn visits_of(&self, phase: usize) -> std::ops::Range<usize> {
        let phase = &self.plan.phases[phase];
        phase.visits_start as usize..phase.visits_end as usize
    }

    fn row(&self, phase: usize, component: ComponentId) -> Option<(LedgerRow, PeakAt)> {
        let plan = self.plan;
        let visits = self.visits_of(phase);
        let steady = usize::from(plan.phases[phase].repeat > 1);
        let entry_of =
            |visit: usize| self.base[phase] + steady * visits.len() + (visit - visits.start);
        let mut units: Vec<(u32, bool)> = Vec::new();
        let mut most: Option<(u64, usize, [u64; 2])> = None;
        for visit in visits.clone() {
            let ops = plan.visits[visit].ops_start..plan.visits[visit].ops_end;
            if self.component(ops.start) != component {
                continue;
            }
            let loads = plan.visits[visit].loads.iter().map(|load| &plan.loads[*load as usize]);
            units.extend(loads.map(|load| (load.unit, load.is_resident)));
            let weights = self.weights(visit, entry_of(visit));
            for (op, weights) in (ops.start as usize..ops.end as usize).zip(weights) {
                let live = weights.iter().sum::<u64>()
                    + self.tensors[op]
                    + round_up(plan.workspaces[op].bytes);
                if most.is_none_or(|(most, ..)| live > most) {
                    most = Some((live, op, weights));
                }
            }
        }
        units.sort_unstable();
        units.dedup();
        let (live, op, [resident_bytes, slot_bytes]) = most?;
        let count = |resident: bool| units.iter().filter(|unit| unit.1 == resident).count();
        let workspace_bytes = round_up(plan.workspaces[op].bytes);
        let row = LedgerRow {
            phase: plan.phases[phase].name.clone(),
            component: self.graph.components[component.index()].name.clone(),
            repeat: plan.phases[phase].repeat,
            resident_units: u32::try_from(count(true)).unwrap_or(u32::MAX),
            streamed_units: u32::try_from(count(false)).unwrap_or(u32::MAX),
            resident_bytes,
            slot_bytes,
            activation_bytes: self.tensors[op],
            workspace_bytes,
            live_bytes: live,
            copied_bytes: self.copied(phase, component),
        };
        let at = PeakAt {
            phase: row.phase.clone(),
            block: self.graph.blocks[self.blocks[op] as usize].name.clone(),
            op: self.graph.ops[op].name.clone(),
            tensor_bytes: row.activation_bytes,
            workspace_bytes,
            weight_bytes: row.resident_bytes + row.slot_bytes,
        };
        Some((row, at))
    }

    /// Bytes of weights that copies bring for visits of a component in one repetition of a phase (a steady one).
    fn copied(&self, phase: usize, component: ComponentId) -> u64 {
        let plan = self.plan;
        let visits = self.visits_of(phase);
        let mut first_visit = vec![usize::MAX; plan.loads.len()];
        for (at, visit) in plan.visits.iter().enumerate() {
            for load in &visit.loads {
                let first = &mut first_visit[*load as usize];
                *first = (*first).min(at);
            }
        }
        let step = (plan.phases[phase].repeat > 1).then_some(1);
        let copies = plan.copies.iter().filter(|copy| {
            let first = first_visit[copy.load as usize];
            visits.contains(&first)
                && (step.is_none() || copy.step == step)
                && self.component(plan.visits[first].ops_start) == component
        });
        copies
            .map(|copy| {
                let unit = &plan.units[plan.loads[copy.load as usize].unit as usize];
                let weights = unit.weights.iter();
                weights.map(|entry| self.graph.weight(entry.weight).bytes()).sum::<u64>()
            })
            .sum()
    }
}

/// At each entry of the compute lane.
struct Held {
    /// Bytes of resident loads that are spoken for.
    resident: Vec<u64>,
    /// Likewise of streamed loads.
    slots: Vec<u64>,
    /// Loads that are read for the last time.
    ends: Vec<Vec<u32>>,
}

fn held(plan: &Plan) -> Held {
    let count = plan.computes.len();
    let mut changes = [vec![0i64; count + 1], vec![0i64; count + 1]];
    let mut serving: Vec<Option<usize>> = vec![None; plan.loads.len()];
    let mut readers: Vec<Option<(usize, usize)>> = vec![None; plan.copies.len()];
    let mut arrived = 0;
    for (at, compute) in plan.computes.iter().enumerate() {
        while arrived < compute.needs as usize {
            serving[plan.copies[arrived].load as usize] = Some(arrived);
            arrived += 1;
        }
        for load in &plan.visits[compute.visit as usize].loads {
            if let Some(copy) = serving[*load as usize] {
                let first = readers[copy].map_or(at, |(first, _)| first);
                readers[copy] = Some((first, at));
            }
        }
    }
    let mut ends = vec![Vec::new(); count];
    for (copy, readers) in plan.copies.iter().zip(readers) {
        let load = &plan.loads[copy.load as usize];
        let bytes = i64::try_from(round_up(load.region.bytes)).unwrap_or(i64::MAX);
        if let Some((_, last)) = readers {
            ends[last].push(copy.load);
        }
        let (first, last) = readers.unwrap_or((count, count));
        let stays = if load.is_resident { first } else { last + 1 };
        add(&mut changes[1], count, copy.after as usize, stays, bytes);
        add(&mut changes[0], count, stays, last + 1, bytes);
    }
    let [resident, slots] = changes.map(|changes| {
        let mut held = 0;
        let running = changes.into_iter().take(count).map(|change| {
            held += change;
            u64::try_from(held).unwrap_or(0)
        });
        running.collect()
    });
    Held { resident, slots, ends }
}

/// Adds `bytes` to the entries `from..to`.
fn add(changes: &mut [i64], count: usize, from: usize, to: usize, bytes: i64) {
    if from < to {
        changes[from.min(count)] += bytes;
        changes[to.min(count)] -= bytes;
    }
}

/// One screen.
impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefetch = if self.prefetch { "on" } else { "off" };
        writeln!(f, "plan {}  offload {}, prefetch {prefetch}", self.plan_id, self.offload)?;
        writeln!(
            f,
            "line {}  arena {}  fullest at {}",
            Bytes(self.line_bytes),
            Bytes(self.arena_bytes),
            self.peak
        )?;
        if self.reserved_bytes > 0 {
            writeln!(
                f,
                "beside the arena {} (context, code, libraries)  whole process {}",
                Bytes(self.reserved_bytes),
                Bytes(self.arena_bytes.saturating_add(self.reserved_bytes))
            )?;
        }
        let width = |name: fn(&LedgerRow) -> &String, head: &str| {
            self.rows.iter().map(|row| name(row).len()).max().unwrap_or(0).max(head.len())
        };
        let (a, b) = (width(|row| &row.phase, "phase"), width(|row| &row.component, "component"));
        writeln!(
            f,
            "{:<a$} {:<b$} {:>6} {:>9} {:>10} {:>10} {:>11} {:>10} {:>10} {:>10}",
            "phase",
            "component",
            "times",
            "stay/copy",
            "resident",
            "slots",
            "activations",
            "workspace",
            "live",
            "copied"
        )?;
        for row in &self.rows {
            writeln!(
                f,
                "{:<a$} {:<b$} {:>6} {:>9} {:>10} {:>10} {:>11} {:>10} {:>10} {:>10}",
                row.phase,
                row.component,
                row.repeat,
                format!("{}/{}", row.resident_units, row.streamed_units),
                Bytes(row.resident_bytes),
                Bytes(row.slot_bytes),
                Bytes(row.activation_bytes),
                Bytes(row.workspace_bytes),
                Bytes(row.live_bytes),
                Bytes(row.copied_bytes)
            )?;
        }
        write!(
            f,
            "a step copies {} in {:.4} s; the run copies {} in {:.3} s",
            Bytes(self.copied_bytes_per_step),
            self.seconds_per_step,
            Bytes(self.copied_bytes),
            self.seconds_total
        )
    }
}
