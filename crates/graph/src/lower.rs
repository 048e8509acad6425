//! From a trace (one sample, one step) to the graph of a run.
//!
//! Three changes, each exact: ops that do not depend on the latent leave the step loop and run once for all
//! steps ahead (a row a step); ops that depend on it are repeated for every sample, block by block, so that
//! a block's weights are copied once for all samples; the decode phase is repeated sample by sample, so that
//! only one sample's pixels are live.

use crate::GraphError;
use crate::builder::{Builder, PhaseSpec};
use crate::graph::{
    Block, BlockId, Dependence, Graph, Input, InputId, Output, OutputId, Phase, PhaseKind,
    RowSelect, Tensor, TensorId, View, Visit, WeightId,
};
use crate::op::{Op, OpKind};

/// What a run repeats and whether it hoists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowerOptions {
    /// Steps of the loop, at least 1.
    pub steps: u32,
    /// Pictures made together, at least 1.
    pub samples: u32,
    /// Take out of the loop what does not depend on the latent. Off: only host inputs leave it. The bits of
    /// the result are the same.
    pub hoist: bool,
}

struct Lowering {
    graph: Graph,
    trace_tensors: Vec<Tensor>,
    trace_inputs: Vec<Input>,
    trace_outputs: Vec<Output>,
    /// `[sample][trace tensor]`; all samples share what does not depend on the latent.
    tensors: Vec<Vec<Option<TensorId>>>,
    inputs: Vec<Vec<Option<InputId>>>,
    /// Trace tensors that exist for all steps at once.
    is_table: Vec<bool>,
}

impl Builder<'_> {
    /// Lowers the trace to the graph of a run.
    ///
    /// # Errors
    /// What the trace did wrong first: structure, sizes, shapes, reads before writes.
    pub fn finish(mut self, options: &LowerOptions) -> Result<Graph, GraphError> {
        match self.problem.take() {
            Some(problem) => Err(problem),
            None => lower(self, options),
        }
    }
}

fn lower(trace: Builder<'_>, options: &LowerOptions) -> Result<Graph, GraphError> {
    if options.steps == 0 || options.samples == 0 {
        return Err(GraphError::Structure { what: "a run of no steps or no samples".to_owned() });
    }
    let samples = options.samples as usize;
    let tensor_count = trace.tensors.len();
    let input_count = trace.inputs.len();
    let mut lowering = Lowering {
        graph: Graph {
            components: trace.components,
            weights: trace.weights,
            tables: trace.tables,
            blocks: trace.blocks,
            steps: options.steps,
            samples: options.samples,
            decode_tile: trace.decode_tile,
            ..Graph::default()
        },
        trace_tensors: trace.tensors,
        trace_inputs: trace.inputs,
        trace_outputs: trace.outputs,
        tensors: vec![vec![None; tensor_count]; samples],
        inputs: vec![vec![None; input_count]; samples],
        is_table: vec![false; tensor_count],
    };
    for phase in &trace.phases {
        match phase.kind {
            PhaseKind::Encode | PhaseKind::Hoist => lowering.once(phase),
            PhaseKind::Denoise => lowering.denoise(phase, options)?,
            PhaseKind::Decode => lowering.decode(phase),
        }
    }
    let graph = lowering.graph;
    graph.validate()?;
    Ok(graph)
}

impl Lowering {
    fn op_dependence(&self, op: &Op) -> Dependence {
        let mut dependence = Dependence::Run;
        op.for_each_view(|view, _| {
            dependence = dependence.max(self.trace_tensors[view.tensor.index()].dependence);
        });
        dependence
    }

    fn op_position(&self) -> u32 {
        u32::try_from(self.graph.ops.len()).unwrap_or(u32::MAX)
    }

    fn tensor(&mut self, sample: usize, id: TensorId) -> TensorId {
        let traced = &self.trace_tensors[id.index()];
        let shared = traced.dependence < Dependence::Latent;
        let slot = if shared { 0 } else { sample };
        if let Some(known) = self.tensors[slot][id.index()] {
            return known;
        }
        let mut tensor = traced.clone();
        if self.is_table[id.index()] {
            tensor.rows = u64::from(self.graph.steps);
        }
        if !shared && self.graph.samples > 1 {
            tensor.name = format!("{}#{sample}", tensor.name);
        }
        self.graph.tensors.push(tensor);
        let new = TensorId(u32::try_from(self.graph.tensors.len() - 1).unwrap_or(u32::MAX));
        self.tensors[slot][id.index()] = Some(new);
        new
    }

    fn input(&mut self, sample: usize, id: InputId, dependence: Dependence) -> InputId {
        let shared = dependence < Dependence::Latent;
        let slot = if shared { 0 } else { sample };
        if let Some(known) = self.inputs[slot][id.index()] {
            return known;
        }
        let mut input = self.trace_inputs[id.index()].clone();
        if dependence == Dependence::Step {
            input.rows = u64::from(self.graph.steps);
        }
        if !shared {
            input.sample = u32::try_from(sample).ok();
        }
        self.graph.inputs.push(input);
        let new = InputId(u32::try_from(self.graph.inputs.len() - 1).unwrap_or(u32::MAX));
        self.inputs[slot][id.index()] = Some(new);
        new
    }

    /// Appends the op for one sample. `ahead` says that it runs for all steps at once.
    fn emit(&mut self, op: &Op, sample: usize, ahead: bool) {
        let mut dependence = self.op_dependence(op);
        if let OpKind::Gather { .. } = op.kind {
            dependence = Dependence::Run;
        }
        let steps = u64::from(self.graph.steps);
        let mut new = op.map(
            &mut |view: &View, _| {
                let mut placed = View { tensor: self.tensor(sample, view.tensor), ..*view };
                if self.is_table[view.tensor.index()] {
                    if ahead {
                        placed.rows = steps;
                    } else {
                        placed.row = RowSelect::Step;
                    }
                }
                placed
            },
            &mut |weight: &WeightId| *weight,
        );
        match &mut new.kind {
            OpKind::Input { input, .. } => *input = self.input(sample, *input, dependence),
            OpKind::Gather { ids, .. } => *ids = self.input(0, *ids, Dependence::Run),
            OpKind::Output { output, x } => {
                let mut out = self.trace_outputs[output.index()].clone();
                out.rows = x.rows;
                out.sample = u32::try_from(sample).unwrap_or(u32::MAX);
                self.graph.outputs.push(out);
                let last = self.graph.outputs.len() - 1;
                *output = OutputId(u32::try_from(last).unwrap_or(u32::MAX));
            }
            _ => {}
        }
        self.graph.ops.push(new);
    }

    fn phase(&mut self, name: &str, kind: PhaseKind, repeat: u32, visits: Vec<Visit>) {
        if !visits.is_empty() {
            self.graph.phases.push(Phase { name: name.to_owned(), kind, repeat, visits });
        }
    }

    fn once(&mut self, phase: &PhaseSpec) {
        let mut visits = Vec::new();
        for (block, ops) in &phase.visits {
            let ops_start = self.op_position();
            for op in ops {
                self.emit(op, 0, false);
            }
            visits.push(Visit { block: *block, ops_start, ops_end: self.op_position() });
        }
        self.phase(&phase.name, phase.kind, 1, visits);
    }

    fn decode(&mut self, phase: &PhaseSpec) {
        let mut visits = Vec::new();
        for sample in 0..self.graph.samples as usize {
            for (block, ops) in &phase.visits {
                let ops_start = self.op_position();
                for op in ops {
                    self.emit(op, sample, false);
                }
                visits.push(Visit { block: *block, ops_start, ops_end: self.op_position() });
            }
        }
        self.phase(&phase.name, phase.kind, 1, visits);
    }

    fn denoise(&mut self, phase: &PhaseSpec, options: &LowerOptions) -> Result<(), GraphError> {
        let hoisted = self.choose(phase, options);
        for ((_, ops), flags) in phase.visits.iter().zip(&hoisted) {
            for (op, ahead) in ops.iter().zip(flags) {
                if *ahead && self.op_dependence(op) == Dependence::Step {
                    op.for_each_view(|view, access| {
                        let traced = &self.trace_tensors[view.tensor.index()];
                        if access.writes && traced.dependence == Dependence::Step {
                            self.is_table[view.tensor.index()] = true;
                        }
                    });
                }
            }
        }
        self.check_tables(phase)?;
        let mut ahead_visits = Vec::new();
        let mut loop_visits = Vec::new();
        for ahead in [true, false] {
            for ((block, ops), flags) in phase.visits.iter().zip(&hoisted) {
                let mine: Vec<&Op> = ops
                    .iter()
                    .zip(flags)
                    .filter(|(_, flag)| **flag == ahead)
                    .map(|(op, _)| op)
                    .collect();
                if mine.is_empty() {
                    continue;
                }
                let block = self.split_block(*block, &mine, ahead);
                let ops_start = self.op_position();
                for sample in 0..self.graph.samples as usize {
                    for op in &mine {
                        if sample == 0 || self.op_dependence(op) == Dependence::Latent {
                            self.emit(op, sample, ahead);
                        }
                    }
                }
                let visit = Visit { block, ops_start, ops_end: self.op_position() };
                if ahead { ahead_visits.push(visit) } else { loop_visits.push(visit) }
            }
            if ahead {
                let visits = std::mem::take(&mut ahead_visits);
                self.phase("hoist", PhaseKind::Hoist, 1, visits);
            }
        }
        self.phase(&phase.name, PhaseKind::Denoise, options.steps, loop_visits);
        Ok(())
    }

    /// A hoisted value of a step is one row, or it could not become a row of a table.
    fn check_tables(&self, phase: &PhaseSpec) -> Result<(), GraphError> {
        for (tensor, _) in
            self.trace_tensors.iter().zip(&self.is_table).filter(|(_, table)| **table)
        {
            if tensor.rows != 1 {
                let what = format!(
                    "{} in {} depends on the step and has {} rows; one was expected",
                    tensor.name, phase.name, tensor.rows
                );
                return Err(GraphError::Structure { what });
            }
        }
        Ok(())
    }

    /// Which ops leave the loop, by visit and op.
    ///
    /// From the last op to the first: an op leaves if a hoisted op needs its result, or if the weight bytes
    /// that it takes out of every step are at least the bytes kept for the ops that stay.
    fn choose(&self, phase: &PhaseSpec, options: &LowerOptions) -> Vec<Vec<bool>> {
        let count = self.trace_tensors.len();
        let (mut needed, mut kept) = (vec![false; count], vec![false; count]);
        let mut flags: Vec<Vec<bool>> =
            phase.visits.iter().map(|(_, ops)| vec![false; ops.len()]).collect();
        for (visit, (_, ops)) in phase.visits.iter().enumerate().rev() {
            for (at, op) in ops.iter().enumerate().rev() {
                let dependence = self.op_dependence(op);
                let is_input = matches!(op.kind, OpKind::Input { .. } | OpKind::Gather { .. });
                let copies =
                    if dependence == Dependence::Step { u64::from(options.steps) } else { 1 };
                let (mut is_needed, mut kept_bytes) = (false, 0u64);
                op.for_each_view(|view, access| {
                    if access.writes {
                        is_needed |= needed[view.tensor.index()];
                        if kept[view.tensor.index()] {
                            let bytes = self.trace_tensors[view.tensor.index()].bytes();
                            kept_bytes = kept_bytes.saturating_add(bytes.saturating_mul(copies));
                        }
                    }
                });
                let mut weight_bytes = 0;
                op.for_each_weight(|id| weight_bytes += self.graph.weights[id.index()].bytes());
                let may = dependence < Dependence::Latent && options.hoist;
                let leaves = is_input || (may && (is_needed || weight_bytes >= kept_bytes));
                flags[visit][at] = leaves;
                op.for_each_view(|view, access| {
                    if access.reads {
                        let list = if leaves { &mut needed } else { &mut kept };
                        list[view.tensor.index()] = true;
                    }
                });
            }
        }
        flags
    }

    /// The block that holds just the weights of `ops`; the rest of the block stays where it is.
    fn split_block(&mut self, block: BlockId, ops: &[&Op], ahead: bool) -> BlockId {
        let mut used: Vec<WeightId> = Vec::new();
        for op in ops {
            op.for_each_weight(|id| {
                if !used.contains(id) {
                    used.push(*id);
                }
            });
        }
        if !ahead {
            return block;
        }
        let original = &mut self.graph.blocks[block.index()];
        original.weights.retain(|id| !used.contains(id));
        let (name, component) = (format!("{}.hoist", original.name), original.component);
        self.graph.blocks.push(Block { name, component, weights: used });
        BlockId(u32::try_from(self.graph.blocks.len() - 1).unwrap_or(u32::MAX))
    }
}
