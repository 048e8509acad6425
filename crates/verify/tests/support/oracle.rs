//! Runs a plan in a real arena of bytes, the two lanes interleaved at random, and compares what every op
//! reads and makes with a run in which every tensor and weight has memory of its own.
//!
//! Ops are made-up functions of all their operand bytes. They are as nasty as the contract allows: a row is
//! made at a time, all operands are read anew for it, the workspace is scribbled over before it; copies
//! arrive in small pieces and fill their padding with garbage. The arena begins as garbage.

use plimsoll_graph::{Access, Graph, Op, OpKind, RowSelect, View, WeightId};
use plimsoll_plan::{Plan, Region};

use super::Random;

/// Who goes next where both lanes can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bias {
    CopyFirst,
    ComputeFirst,
    Random,
}

/// A sum of all bytes that each op read and wrote, in the order of the compute lane.
pub type Trace = Vec<u64>;

const CHUNK: usize = 192;

fn mix(hash: u64, word: u64) -> u64 {
    (hash ^ word).wrapping_mul(0x0100_0000_01B3).rotate_left(23)
}

/// Mixes bytes in, eight at a time.
fn mix_bytes(mut hash: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        hash = mix(hash, u64::from_le_bytes(*word));
    }
    rest.iter().fold(hash, |hash, byte| mix(hash, u64::from(*byte)))
}

fn weight_byte(id: WeightId, at: usize) -> u8 {
    (mix(mix(0x77, u64::from(id.0)), at as u64) >> 17) as u8
}

/// Where operands lie.
trait Memory {
    fn bytes(&mut self) -> &mut [u8];
    /// Place of the first byte of row `row` of a view.
    fn row(&self, graph: &Graph, view: &View, row: u64, step: u32) -> usize;
    fn weight(&self, op: u32, id: WeightId) -> usize;
}

fn row_bytes(graph: &Graph, view: &View) -> usize {
    (view.cols * graph.tensor(view.tensor).dtype.bytes()) as usize
}

fn offset_in_tensor(graph: &Graph, view: &View, row: u64, step: u32) -> u64 {
    let tensor = graph.tensor(view.tensor);
    let first = match view.row {
        RowSelect::At(first) => first,
        RowSelect::Step => u64::from(step),
    };
    ((first + row) * tensor.cols + view.col) * tensor.dtype.bytes()
}

/// The operand that may lie where the result goes, by its place among the views.
fn shared_operand(kind: &OpKind) -> Option<usize> {
    match kind {
        OpKind::Add { .. }
        | OpKind::AddWeight { .. }
        | OpKind::Activate { .. }
        | OpKind::Norm { .. }
        | OpKind::GroupNorm { .. } => Some(0),
        OpKind::Linear { residual: Some(_), .. } => Some(1),
        _ => None,
    }
}

/// An op under way: which row of its results is next.
struct Going {
    views: Vec<(View, Access)>,
    shared: Option<usize>,
    row: u64,
    rows: u64,
    sum: u64,
}

impl Going {
    fn new(op: &Op) -> Self {
        let mut views = Vec::new();
        op.for_each_view(|view, access| views.push((*view, access)));
        let written = views.iter().filter(|(_, access)| access.writes);
        let rows = written.map(|(view, _)| view.rows).max().unwrap_or(1);
        Self { views, shared: shared_operand(&op.kind), row: 0, rows, sum: 0 }
    }

    /// Makes a row; true when it was the last.
    fn go_on(&mut self, graph: &Graph, index: u32, step: u32, memory: &mut dyn Memory) -> bool {
        let op = &graph.ops[index as usize];
        let mut hash = mix(u64::from(index), u64::from(step));
        for (at, (view, access)) in self.views.iter().enumerate() {
            if access.writes || Some(at) == self.shared {
                continue;
            }
            for row in 0..view.rows {
                let place = memory.row(graph, view, row, step);
                hash = mix_bytes(hash, &memory.bytes()[place..place + row_bytes(graph, view)]);
            }
        }
        op.for_each_weight(|id| {
            let place = memory.weight(index, *id);
            let bytes = graph.weight(*id).bytes() as usize;
            hash = mix_bytes(hash, &memory.bytes()[place..place + bytes]);
        });
        self.sum = mix(self.sum, hash);
        for (view, access) in &self.views {
            if !access.writes || self.row >= view.rows {
                continue;
            }
            // What an op updates, or reads from where the result goes, it reads element by element.
            let base = match self.shared {
                Some(shared) => Some(self.views[shared].0),
                None => access.reads.then_some(*view),
            };
            let target = memory.row(graph, view, self.row, step);
            let source = base.map(|base| memory.row(graph, &base, self.row, step));
            for byte in 0..row_bytes(graph, view) {
                let old = source.map_or(0, |source| memory.bytes()[source + byte]);
                let new = mix(hash, u64::from(old) << 32 | self.row << 16 | byte as u64);
                memory.bytes()[target + byte] = (new >> 29) as u8;
                self.sum = mix(self.sum, new);
            }
        }
        self.row += 1;
        self.row >= self.rows
    }
}

struct Apart {
    bytes: Vec<u8>,
    tensors: Vec<usize>,
    weights: Vec<usize>,
}

impl Memory for Apart {
    fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
    fn row(&self, graph: &Graph, view: &View, row: u64, step: u32) -> usize {
        self.tensors[view.tensor.index()] + offset_in_tensor(graph, view, row, step) as usize
    }
    fn weight(&self, _op: u32, id: WeightId) -> usize {
        self.weights[id.index()]
    }
}

/// What the graph says, with memory for everything.
pub fn reference(graph: &Graph) -> Trace {
    let mut memory = Apart { bytes: Vec::new(), tensors: Vec::new(), weights: Vec::new() };
    for tensor in &graph.tensors {
        memory.tensors.push(memory.bytes.len());
        memory.bytes.resize(memory.bytes.len() + tensor.bytes() as usize, 0);
    }
    for (at, weight) in graph.weights.iter().enumerate() {
        memory.weights.push(memory.bytes.len());
        let id = WeightId(at as u32);
        memory.bytes.extend((0..weight.bytes() as usize).map(|byte| weight_byte(id, byte)));
    }
    let mut trace = Vec::new();
    for phase in &graph.phases {
        for step in 0..phase.repeat {
            for visit in &phase.visits {
                for op in visit.ops_start..visit.ops_end {
                    let mut going = Going::new(&graph.ops[op as usize]);
                    while !going.go_on(graph, op, step, &mut memory) {}
                    trace.push(going.sum);
                }
            }
        }
    }
    trace
}

struct Arena<'a> {
    bytes: Vec<u8>,
    plan: &'a Plan,
    /// Visit of each op.
    visit_of: Vec<u32>,
}

impl Memory for Arena<'_> {
    fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
    fn row(&self, graph: &Graph, view: &View, row: u64, step: u32) -> usize {
        let place = self.plan.tensors[view.tensor.index()].offset;
        (place + offset_in_tensor(graph, view, row, step)) as usize
    }
    fn weight(&self, op: u32, id: WeightId) -> usize {
        let visit = &self.plan.visits[self.visit_of[op as usize] as usize];
        let homes = visit.loads.iter().flat_map(|load| {
            let load = &self.plan.loads[*load as usize];
            let unit = &self.plan.units[load.unit as usize];
            let mine = unit.weights.iter().filter(|entry| entry.weight == id);
            mine.map(|entry| (load.region.offset + entry.offset) as usize)
        });
        homes.last().expect("a home")
    }
}

/// Runs the plan; the trace, or how the lanes got stuck.
pub fn run(graph: &Graph, plan: &Plan, bias: Bias, seed: u64) -> Result<Trace, String> {
    let mut random = Random::new(seed + 1);
    let mut visit_of = vec![0; graph.ops.len()];
    for (at, visit) in plan.visits.iter().enumerate() {
        visit_of[visit.ops_start as usize..visit.ops_end as usize].fill(at as u32);
    }
    let bytes = (0..plan.arena_bytes).map(|_| random.next() as u8).collect();
    let mut arena = Arena { bytes, plan, visit_of };
    let (mut copied, mut arrived, mut computed) = (0usize, 0usize, 0usize);
    let mut op: Option<(u32, Going)> = None;
    let mut trace = Vec::new();
    while copied < plan.copies.len() || computed < plan.computes.len() {
        let can_copy = plan.copies.get(copied).is_some_and(|copy| copy.after as usize <= computed);
        let can_compute =
            plan.computes.get(computed).is_some_and(|compute| compute.needs as usize <= copied);
        // A compute under way has waited already, and so has a copy.
        let can_copy = can_copy || arrived > 0;
        let goes_copy = match (can_copy, can_compute || op.is_some(), bias) {
            (false, false, _) => return Err(format!("stuck at copy {copied}, compute {computed}")),
            (true, false, _) | (true, true, Bias::CopyFirst) => true,
            (false, true, _) | (true, true, Bias::ComputeFirst) => false,
            (true, true, Bias::Random) => random.next() >> 63 == 0,
        };
        if goes_copy {
            arrived = copy_chunk(graph, plan, &mut arena, copied, arrived, &mut random);
            copied += usize::from(arrived == 0);
            continue;
        }
        let entry = plan.computes[computed];
        let visit = &plan.visits[entry.visit as usize];
        let (index, going) = op.get_or_insert_with(|| {
            (visit.ops_start, Going::new(&graph.ops[visit.ops_start as usize]))
        });
        let Region { offset, bytes } = plan.workspaces[*index as usize];
        for place in offset..offset + bytes {
            arena.bytes[place as usize] = random.next() as u8;
        }
        if going.go_on(graph, *index, entry.step, &mut arena) {
            trace.push(going.sum);
            let next = *index + 1;
            op = (next < visit.ops_end).then(|| (next, Going::new(&graph.ops[next as usize])));
            computed += usize::from(op.is_none());
        }
    }
    Ok(trace)
}

/// Copies some bytes of a load; how many have arrived, 0 once it is whole.
fn copy_chunk(
    graph: &Graph,
    plan: &Plan,
    arena: &mut Arena<'_>,
    copy: usize,
    arrived: usize,
    random: &mut Random,
) -> usize {
    let load = &plan.loads[plan.copies[copy].load as usize];
    let unit = &plan.units[load.unit as usize];
    let end = (arrived + CHUNK).min(load.region.bytes as usize);
    for at in arrived..end {
        let held = unit.weights.iter().find_map(|entry| {
            let inside = (at as u64).checked_sub(entry.offset)?;
            let is_mine = inside < graph.weight(entry.weight).bytes();
            is_mine.then(|| weight_byte(entry.weight, inside as usize))
        });
        arena.bytes[load.region.offset as usize + at] = held.unwrap_or(random.next() as u8);
    }
    if end == load.region.bytes as usize { 0 } else { end }
}

/// Whether the plan gives what the graph says under several interleavings.
pub fn agrees(graph: &Graph, plan: &Plan, expected: &Trace, seeds: u64) -> Result<(), String> {
    let runs = [(Bias::CopyFirst, 0), (Bias::ComputeFirst, 0)];
    let random = (0..seeds).map(|seed| (Bias::Random, seed));
    for (bias, seed) in runs.into_iter().chain(random) {
        let trace = run(graph, plan, bias, seed)?;
        if let Some(at) = trace.iter().zip(expected).position(|(found, wanted)| found != wanted) {
            return Err(format!("op {at} of the run differs ({bias:?}, seed {seed})"));
        }
        if trace.len() != expected.len() {
            return Err(format!("{} ops were run of {}", trace.len(), expected.len()));
        }
    }
    Ok(())
}
