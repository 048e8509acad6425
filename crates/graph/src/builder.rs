//! Writing a model down: one sample, one step, in the order of its paper.
//!
//! The builder only records. What each op depends on follows from its operands, so that hoisting needs no
//! annotation in a model; a buffer that several ops fill piece by piece states its dependence itself.

use std::collections::BTreeMap;

use crate::graph::{
    Block, BlockId, Coding, Component, ComponentId, Dependence, Input, InputId, Output, OutputId,
    Part, PhaseKind, RowSelect, Table, TableId, Tensor, TensorId, View, Weight, WeightId,
};
use crate::op::{Activation, Norm, Op, OpKind, RelativeBias, Residual};
use crate::{DType, GraphError};

/// A rectangle of a traced tensor: what ops read and write.
pub type Value = View;

/// A phase of the trace: its visits carry each block's ops.
#[derive(Clone, Debug)]
pub struct PhaseSpec {
    pub(crate) name: String,
    pub(crate) kind: PhaseKind,
    pub(crate) visits: Vec<(BlockId, Vec<Op>)>,
}

/// Records a model.
pub struct Builder<'a> {
    pub(crate) dtype: DType,
    pub(crate) weight_dtype: &'a dyn Fn(&str, &str) -> DType,
    pub(crate) coding: &'a dyn Fn(&str, &str) -> Coding,
    /// Rank of the adapter beside the products of a component's block; 0 for none.
    pub(crate) adapter: &'a dyn Fn(&str, &str) -> u64,
    pub(crate) components: Vec<Component>,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) weights: Vec<Weight>,
    pub(crate) tables: Vec<Table>,
    pub(crate) blocks: Vec<Block>,
    pub(crate) inputs: Vec<Input>,
    pub(crate) outputs: Vec<Output>,
    pub(crate) phases: Vec<PhaseSpec>,
    /// The scales of weights that are stored in 8 bits.
    pub(crate) scales: BTreeMap<WeightId, WeightId>,
    /// The block that was gone back to, while it is the present one.
    pub(crate) again: Option<BlockId>,
    pub(crate) decode_tile: Option<u64>,
    /// Both halves of the adapters of weights that have one.
    pub(crate) adapters: BTreeMap<WeightId, [WeightId; 2]>,
    pub(crate) problem: Option<GraphError>,
}

impl View {
    /// Rows `start .. start + rows` of this view. A view of the current step has one row only.
    pub fn slice_rows(self, start: u64, rows: u64) -> Self {
        let row = match self.row {
            RowSelect::At(first) => RowSelect::At(first + start),
            RowSelect::Step => RowSelect::Step,
        };
        Self { row, rows, ..self }
    }

    /// Columns `start .. start + cols` of this view.
    pub fn slice_cols(self, start: u64, cols: u64) -> Self {
        Self { col: self.col + start, cols, ..self }
    }
}

impl<'a> Builder<'a> {
    /// An empty trace whose activations are of `dtype`.
    ///
    /// `weight_dtype(component, entry)` is the dtype in which a checkpoint tensor is kept in device memory.
    pub fn new(dtype: DType, weight_dtype: &'a dyn Fn(&str, &str) -> DType) -> Self {
        Self {
            dtype,
            weight_dtype,
            coding: &|_, _| Coding::Plain,
            adapter: &|_, _| 0,
            components: Vec::new(),
            tensors: Vec::new(),
            weights: Vec::new(),
            tables: Vec::new(),
            blocks: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            phases: Vec::new(),
            scales: BTreeMap::new(),
            again: None,
            decode_tile: None,
            adapters: BTreeMap::new(),
            problem: None,
        }
    }

    /// The same with weights kept in other codings: `coding(component, block)` is that of its matrices.
    ///
    /// Vectors (norms, biases) and tables stay as they are.
    #[must_use]
    pub fn with_coding(self, coding: &'a dyn Fn(&str, &str) -> Coding) -> Self {
        Self { coding, ..self }
    }

    /// The same with a low-rank adapter (LoRA) beside the products of more than one row:
    /// `adapter(component, block)` is its rank, 0 for none. It can be planned, not run.
    #[must_use]
    pub fn with_adapter(self, adapter: &'a dyn Fn(&str, &str) -> u64) -> Self {
        Self { adapter, ..self }
    }

    /// The activations' dtype.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Declares a network; ops come to it through [`Builder::block`].
    pub fn component(&mut self, name: &str) -> ComponentId {
        self.components.push(Component { name: name.to_owned() });
        ComponentId(index(self.components.len() - 1))
    }

    /// Begins a phase. A trace has any number of encode phases, one denoise phase and one decode phase.
    pub fn phase(&mut self, kind: PhaseKind, name: &str) {
        self.phases.push(PhaseSpec { name: name.to_owned(), kind, visits: Vec::new() });
    }

    /// Begins a block: the unit of streaming. Following weights and ops belong to it.
    pub fn block(&mut self, component: ComponentId, name: impl Into<String>) {
        self.blocks.push(Block { name: name.into(), component, weights: Vec::new() });
        let block = BlockId(index(self.blocks.len() - 1));
        self.again = None;
        match self.phases.last_mut() {
            Some(phase) => phase.visits.push((block, Vec::new())),
            None => self.fail("a block before any phase"),
        }
    }

    pub(crate) fn fail(&mut self, what: &str) {
        self.problem.get_or_insert(GraphError::Structure { what: what.to_owned() });
    }

    /// A new tensor, all of it.
    pub fn buffer(
        &mut self,
        name: &str,
        rows: u64,
        cols: u64,
        dtype: DType,
        dependence: Dependence,
    ) -> Value {
        if rows
            .checked_mul(cols)
            .and_then(|n| n.checked_mul(8))
            .is_none_or(|bytes| i64::try_from(bytes).is_err())
        {
            self.problem.get_or_insert(GraphError::TooLarge { what: format!("tensor {name}") });
        }
        let scope = self.block_position().map_or("", |at| self.blocks[at].name.as_str());
        self.tensors.push(Tensor {
            name: format!("{scope}.{name}"),
            rows,
            cols,
            dtype,
            dependence,
        });
        let tensor = TensorId(index(self.tensors.len() - 1));
        View { tensor, row: RowSelect::At(0), rows, col: 0, cols }
    }

    /// A new tensor in the activations' dtype that depends on what `sources` depend on.
    pub(crate) fn result(&mut self, name: &str, rows: u64, cols: u64, sources: &[Value]) -> Value {
        let dependence = sources
            .iter()
            .map(|view| self.tensors[view.tensor.index()].dependence)
            .max()
            .unwrap_or(Dependence::Run);
        self.buffer(name, rows, cols, self.dtype, dependence)
    }

    pub(crate) fn push(&mut self, name: &str, kind: OpKind) {
        let visit = self.phases.last_mut().and_then(|phase| phase.visits.last_mut());
        match visit {
            Some((_, ops)) => ops.push(Op { name: name.to_owned(), kind }),
            None => self.fail("an op before any block"),
        }
    }

    /// Host values of the given dependence; see [`OpKind::Input`].
    ///
    /// An input of dependence [`Dependence::Step`] is `[1, cols]` here and `[steps, cols]` to the host; one
    /// of [`Dependence::Latent`] is given for each sample.
    pub fn input(
        &mut self,
        name: &str,
        rows: u64,
        cols: u64,
        dtype: DType,
        dependence: Dependence,
    ) -> Value {
        let out = self.buffer(name, rows, cols, dtype, dependence);
        self.inputs.push(Input { name: name.to_owned(), sample: None, rows, cols, dtype });
        let input = InputId(index(self.inputs.len() - 1));
        self.push(name, OpKind::Input { input, out });
        out
    }

    /// Rows of a host table (token embeddings) by the host's indices `ids`, which never reach the device.
    pub fn gather(&mut self, name: &str, entry: &str, shape: [u64; 2], rows: u64) -> Value {
        let component = self.blocks.last().map_or(ComponentId(0), |block| block.component);
        let part = Part { entry: entry.to_owned(), shape: shape.to_vec() };
        self.tables.push(Table { component, part });
        let table = TableId(index(self.tables.len() - 1));
        let ids_name = format!("{name}.ids");
        self.inputs.push(Input { name: ids_name, sample: None, rows, cols: 1, dtype: DType::U32 });
        let ids = InputId(index(self.inputs.len() - 1));
        let out = self.buffer(name, rows, shape[1], self.dtype, Dependence::Run);
        self.push(name, OpKind::Gather { table, ids, out });
        out
    }

    /// Gives `x` to the host as output `name`, once for each sample.
    pub fn output(&mut self, name: &str, x: Value) {
        let dtype = self.tensors[x.tensor.index()].dtype;
        let (rows, cols) = (x.rows, x.cols);
        self.outputs.push(Output { name: name.to_owned(), sample: 0, rows, cols, dtype });
        let output = OutputId(index(self.outputs.len() - 1));
        self.push(name, OpKind::Output { output, x });
    }

    /// Gives what op `op` of block `block` writes to the host as well, as output `BLOCK/OP`.
    ///
    /// For comparing intermediate values with a reference; call it when the trace is complete. In a loop the
    /// last step's value stays.
    ///
    /// # Errors
    /// [`GraphError::Structure`] if the trace has no such op.
    pub fn probe(&mut self, block: &str, op: &str) -> Result<(), GraphError> {
        for phase in &mut self.phases {
            for (id, ops) in &mut phase.visits {
                if self.blocks[id.index()].name != block {
                    continue;
                }
                let Some(at) = ops.iter().position(|known| known.name == op) else { continue };
                let mut written = None;
                ops[at].for_each_view(|view, access| {
                    if access.writes {
                        written = Some(*view);
                    }
                });
                let Some(x) = written else { continue };
                let (name, dtype) = (format!("{block}/{op}"), self.tensors[x.tensor.index()].dtype);
                let output = OutputId(index(self.outputs.len()));
                let (rows, cols) = (x.rows, x.cols);
                self.outputs.push(Output { name: name.clone(), sample: 0, rows, cols, dtype });
                ops.insert(at + 1, Op { name, kind: OpKind::Output { output, x } });
                return Ok(());
            }
        }
        Err(GraphError::Structure { what: format!("no op {op} in a block {block}") })
    }

    /// `out = x`.
    pub fn copy(&mut self, name: &str, x: Value, out: Value) {
        self.push(name, OpKind::Copy { x, out });
    }

    /// `a + b`; `b` may be one row.
    pub fn add(&mut self, name: &str, a: Value, b: Value) -> Value {
        let out = self.result(name, a.rows, a.cols, &[a, b]);
        self.push(name, OpKind::Add { a, b, out });
        out
    }

    /// `a + b` into a place that exists, which may be `a`.
    pub fn add_into(&mut self, name: &str, a: Value, b: Value, out: Value) {
        self.push(name, OpKind::Add { a, b, out });
    }

    /// `a + weight`.
    pub fn add_weight(&mut self, name: &str, a: Value, weight: WeightId) -> Value {
        let out = self.result(name, a.rows, a.cols, &[a]);
        self.push(name, OpKind::AddWeight { a, weight, out });
        out
    }

    /// `activation(x)`.
    pub fn activate(&mut self, name: &str, x: Value, activation: Activation) -> Value {
        let out = self.result(name, x.rows, x.cols, &[x]);
        self.push(name, OpKind::Activate { x, activation, out });
        out
    }

    /// `gelu(x[:, ..n]) * x[:, n..]`.
    pub fn glu_gelu(&mut self, name: &str, x: Value) -> Value {
        let out = self.result(name, x.rows, x.cols / 2, &[x]);
        self.push(name, OpKind::GluGelu { x, out });
        out
    }

    /// Timestep embedding of `cols` columns.
    pub fn sinusoid(&mut self, name: &str, x: Value, cols: u64) -> Value {
        let out = self.result(name, x.rows, cols, &[x]);
        self.push(name, OpKind::Sinusoid { x, out });
        out
    }

    /// `activation(x w^T + b)`.
    pub fn linear(
        &mut self,
        name: &str,
        x: Value,
        weight: WeightId,
        bias: Option<WeightId>,
        activation: Activation,
    ) -> Value {
        let cols = self.weights[weight.index()].rows;
        let out = self.result(name, x.rows, cols, &[x]);
        self.linear_into(name, x, weight, bias, activation, None, out);
        out
    }

    /// `out = residual + activation(x w^T + b)` into a place that exists.
    #[expect(clippy::too_many_arguments, reason = "each is an operand of the one op")]
    pub fn linear_into(
        &mut self,
        name: &str,
        x: Value,
        weight: WeightId,
        bias: Option<WeightId>,
        activation: Activation,
        residual: Option<Residual>,
        out: Value,
    ) {
        match self.adapter_of(weight, x.rows) {
            Some(adapter) => {
                self.adapted(
                    name,
                    x,
                    [weight, adapter[0], adapter[1]],
                    bias,
                    activation,
                    residual,
                    out,
                );
            }
            None => self.plain_linear(name, x, weight, bias, activation, residual, out),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "each is an operand of the one op")]
    pub(crate) fn plain_linear(
        &mut self,
        name: &str,
        x: Value,
        weight: WeightId,
        bias: Option<WeightId>,
        activation: Activation,
        residual: Option<Residual>,
        out: Value,
    ) {
        let weight_scale = self.scales.get(&weight).copied();
        self.push(
            name,
            OpKind::Linear { x, weight, weight_scale, bias, activation, residual, out },
        );
    }

    /// Normalises rows.
    pub fn norm(&mut self, name: &str, x: Value, norm: Norm) -> Value {
        let mut sources = vec![x];
        if let Norm::LayerModulated { scale, shift, .. } = &norm {
            sources.extend([*scale, *shift]);
        }
        let out = self.result(name, x.rows, x.cols, &sources);
        self.push(name, OpKind::Norm { x, norm, out });
        out
    }

    /// LayerNorm with modulation `x * (1 + scale) + shift`.
    pub fn modulated_norm(&mut self, name: &str, x: Value, scale: Value, shift: Value) -> Value {
        self.norm(name, x, Norm::LayerModulated { eps: 1e-6, scale, shift })
    }

    /// RMS norm of each head of `q` and `k`, then rotary embedding, in place.
    #[expect(clippy::too_many_arguments, reason = "each is an operand of the one op")]
    pub fn qk_norm_rope(
        &mut self,
        name: &str,
        q: Value,
        k: Value,
        q_weight: WeightId,
        k_weight: WeightId,
        rope: Value,
        heads: u64,
    ) {
        let eps = 1e-6;
        self.push(name, OpKind::QkNormRope { q, k, q_weight, k_weight, rope, heads, eps });
    }

    /// Softmax attention into a place that exists.
    #[expect(clippy::too_many_arguments, reason = "each is an operand of the one op")]
    pub fn attention_into(
        &mut self,
        name: &str,
        [q, k, v]: [Value; 3],
        heads: u64,
        scale: f32,
        causal: bool,
        bias: Option<Value>,
        out: Value,
    ) {
        let bias = bias.map(|bias| RelativeBias { bias });
        self.push(name, OpKind::Attention { q, k, v, heads, scale, causal, bias, out });
    }

    /// Bias table by relative position, `[heads, 2 * rows - 1]` in `f32`.
    pub fn expand_bias(&mut self, name: &str, weight: WeightId, buckets: Value) -> Value {
        let heads = self.weights[weight.index()].cols;
        let out = self.buffer(name, heads, buckets.rows, DType::F32, Dependence::Run);
        self.push(name, OpKind::ExpandBias { weight, buckets, out });
        out
    }

    /// `x[index]`.
    pub fn select_row(&mut self, name: &str, x: Value, index: Value) -> Value {
        let out = self.result(name, 1, x.cols, &[x, index]);
        self.push(name, OpKind::SelectRow { x, index, out });
        out
    }

    /// `latent += dsigma * velocity`.
    pub fn euler(&mut self, name: &str, latent: Value, velocity: Value, dsigma: Value) {
        self.push(name, OpKind::Euler { latent, velocity, dsigma });
    }
}

/// Table positions are far below `u32::MAX`; a trace that is not would exhaust memory first.
#[expect(clippy::cast_possible_truncation, reason = "see above")]
pub(crate) fn index(position: usize) -> u32 {
    position as u32
}
