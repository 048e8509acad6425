//! The lowered graph: tensors, weights, blocks, phases and the linear order of ops.

use crate::{DType, GraphError, Op};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// Position in the graph's table.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

id!(
    /// A [`Component`] of a [`Graph`].
    ComponentId
);
id!(
    /// A [`Tensor`] of a [`Graph`].
    TensorId
);
id!(
    /// A [`Weight`] of a [`Graph`].
    WeightId
);
id!(
    /// A [`Block`] of a [`Graph`].
    BlockId
);
id!(
    /// An [`Input`] of a [`Graph`].
    InputId
);
id!(
    /// An [`Output`] of a [`Graph`].
    OutputId
);
id!(
    /// A [`Table`] of a [`Graph`].
    TableId
);

/// A network of the pipeline: text encoder, transformer, VAE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Component {
    /// Name as in the pipeline folder (`transformer`, `text_encoder_2`, `vae`).
    pub name: String,
}

/// What a value depends on; decides what may leave the step loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dependence {
    /// Only on prompt, guidance and weights: the same at every step.
    Run,
    /// Also on the timestep, but not on the latent.
    Step,
    /// On the latent: other at every step and for every sample.
    Latent,
}

/// An activation, state or table in device memory.
///
/// Shapes: `[rows, cols]`, row-major. Memory: `rows * cols * dtype.bytes()`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Name for ledgers and traces.
    pub name: String,
    /// Tokens or pixels; for a hoisted value the number of steps.
    pub rows: u64,
    /// Features or channels.
    pub cols: u64,
    /// Element type.
    pub dtype: DType,
    /// What it depends on.
    pub dependence: Dependence,
}

impl Tensor {
    /// Bytes of the tensor; the builder has checked that the product does not overflow.
    pub fn bytes(&self) -> u64 {
        self.rows * self.cols * self.dtype.bytes()
    }
}

/// One checkpoint tensor that makes up some rows of a [`Weight`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Canonical name in the component's catalog.
    pub entry: String,
    /// Shape that the catalog's entry must have.
    pub shape: Vec<u64>,
}

/// A parameter as ops read it: one or more checkpoint tensors, one below the other.
///
/// Shapes: `[rows, cols]`; a convolution is `[out, in * kernel * kernel]`, a vector `[1, n]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weight {
    /// Name for ledgers and traces.
    pub name: String,
    /// Component that owns it.
    pub component: ComponentId,
    /// Checkpoint tensors in order of rows (Q, K and V side by side).
    pub parts: Vec<Part>,
    /// Output features.
    pub rows: u64,
    /// Input features.
    pub cols: u64,
    /// Element type in device memory; a wider file is cast while it is copied.
    pub dtype: DType,
    /// How its elements are kept; [`Coding::Plain`] is what every device runs.
    pub coding: Coding,
}

/// How the elements of a weight are kept in device memory and on the bus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Coding {
    /// As they are, in the weight's dtype.
    #[default]
    Plain,
    /// e4m3, a byte each, with an `f32` scale a row.
    Fp8,
    /// 4-bit normal floats with an `f32` scale for every 64 of them: 4.5 bits each.
    Nf4,
}

impl Coding {
    /// Elements that share a scale in [`Coding::Nf4`], as bitsandbytes has them.
    pub const NF4_GROUP: u64 = 64;

    /// Bytes of a matrix of elements of `dtype`; `None` where they overflow.
    pub fn bytes(self, rows: u64, cols: u64, dtype: DType) -> Option<u64> {
        let elements = rows.checked_mul(cols)?;
        match self {
            Self::Plain => elements.checked_mul(dtype.bytes()),
            Self::Fp8 => elements.checked_add(rows.checked_mul(4)?),
            Self::Nf4 => {
                let scales = elements.div_ceil(Self::NF4_GROUP).checked_mul(4)?;
                elements.div_ceil(2).checked_add(scales)
            }
        }
    }
}

impl Weight {
    /// Bytes in device memory; the largest number where they overflow.
    pub fn bytes(&self) -> u64 {
        self.coding.bytes(self.rows, self.cols, self.dtype).unwrap_or(u64::MAX)
    }
}

/// A weight that stays in host memory: rows of it are looked up there (token embeddings).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Component that owns it.
    pub component: ComponentId,
    /// The checkpoint tensor.
    pub part: Part,
}

/// A group of weights that is streamed as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Name such as `double.3`.
    pub name: String,
    /// Component that owns it.
    pub component: ComponentId,
    /// Weights in the order of their first use.
    pub weights: Vec<WeightId>,
}

/// Values that the host gives before the run (token ids, noise, sigmas).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// Name such as `noise`.
    pub name: String,
    /// Sample it belongs to, where each has its own.
    pub sample: Option<u32>,
    /// Shape `[rows, cols]`.
    pub rows: u64,
    /// See `rows`.
    pub cols: u64,
    /// Element type.
    pub dtype: DType,
}

/// Values that the host receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Name such as `image`.
    pub name: String,
    /// Sample it belongs to.
    pub sample: u32,
    /// Shape `[rows, cols]`.
    pub rows: u64,
    /// See `rows`.
    pub cols: u64,
    /// Element type.
    pub dtype: DType,
}

/// Which rows of a tensor a view starts at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RowSelect {
    /// A fixed first row.
    At(u64),
    /// The row of the step that is being carried out (a row of a hoisted table).
    Step,
}

/// A rectangle of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct View {
    /// The tensor.
    pub tensor: TensorId,
    /// First row.
    pub row: RowSelect,
    /// Number of rows.
    pub rows: u64,
    /// First column.
    pub col: u64,
    /// Number of columns.
    pub cols: u64,
}

/// What a phase is, and how often its visits run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PhaseKind {
    /// Text encoders.
    Encode,
    /// What left the step loop, for all steps ahead.
    Hoist,
    /// The step loop.
    Denoise,
    /// Latents to pixels, one sample after the other.
    Decode,
}

/// A block being carried out once: a run of ops in the linear order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visit {
    /// The block whose weights the ops read.
    pub block: BlockId,
    /// First op.
    pub ops_start: u32,
    /// One past the last op.
    pub ops_end: u32,
}

/// A part of the run: visits in order, carried out `repeat` times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Name such as `denoise`.
    pub name: String,
    /// What it is.
    pub kind: PhaseKind,
    /// 1, or the number of steps.
    pub repeat: u32,
    /// Visits in order; their op ranges are contiguous and follow those of the phase before.
    pub visits: Vec<Visit>,
}

/// Everything that a run computes, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// Networks.
    pub components: Vec<Component>,
    /// Activations, states, tables.
    pub tensors: Vec<Tensor>,
    /// Parameters in device memory.
    pub weights: Vec<Weight>,
    /// Parameters looked up in host memory.
    pub tables: Vec<Table>,
    /// Units of streaming.
    pub blocks: Vec<Block>,
    /// What the host gives.
    pub inputs: Vec<Input>,
    /// What the host receives.
    pub outputs: Vec<Output>,
    /// Ops in the order of execution; a loop's body stands here once.
    pub ops: Vec<Op>,
    /// Parts of the run in order.
    pub phases: Vec<Phase>,
    /// Steps of the loop.
    pub steps: u32,
    /// Pictures made in one run.
    pub samples: u32,
    /// Most pixels of a side of the tiles in which the picture is decoded; `None` where it is decoded whole.
    ///
    /// Results of another tiling are other results, so it is in the plan and its id.
    pub decode_tile: Option<u64>,
}

impl Graph {
    /// The tensor of an id.
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.index()]
    }

    /// The weight of an id.
    pub fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.index()]
    }

    /// Byte range of a view inside its tensor: from its first to one past its last element.
    ///
    /// A view of the current step's row counts as the whole tensor, since any row may be meant.
    pub fn view_extent(&self, view: &View) -> (u64, u64) {
        let tensor = self.tensor(view.tensor);
        match view.row {
            RowSelect::Step => (0, tensor.bytes()),
            RowSelect::At(row) => {
                let width = tensor.dtype.bytes();
                let first = (row * tensor.cols + view.col) * width;
                let last_row = row + view.rows.saturating_sub(1);
                (first, (last_row * tensor.cols + view.col + view.cols) * width)
            }
        }
    }

    /// First and last op (in the linear order) between which each tensor's bytes must be kept.
    ///
    /// A tensor written before a loop and used inside it is kept to the loop's end, since the next step
    /// reads it again. `None` for a tensor that no op touches.
    pub fn lifetimes(&self) -> Vec<Option<(u32, u32)>> {
        let mut spans: Vec<Option<(u32, u32)>> = vec![None; self.tensors.len()];
        for phase in &self.phases {
            let (Some(first), Some(last)) = (phase.visits.first(), phase.visits.last()) else {
                continue;
            };
            let (phase_start, phase_end) = (first.ops_start, last.ops_end);
            for at in phase_start..phase_end {
                self.ops[at as usize].for_each_view(|view, _| {
                    let span = &mut spans[view.tensor.index()];
                    let start = span.map_or(at, |(start, _)| start);
                    let end = if phase.repeat > 1 && start < phase_start {
                        phase_end - 1
                    } else {
                        span.map_or(at, |(_, end)| end.max(at))
                    };
                    *span = Some((start, end));
                });
            }
        }
        spans
    }

    /// Checks shapes of every op and that nothing is read before it is written.
    ///
    /// # Errors
    /// The first op whose operands do not fit, or that reads what nothing wrote.
    pub fn validate(&self) -> Result<(), GraphError> {
        let mut written = vec![false; self.tensors.len()];
        for op in &self.ops {
            op.check_shapes(self)?;
            let mut unread = None;
            op.for_each_view(|view, access| {
                if access.reads && !written[view.tensor.index()] {
                    unread = Some(view.tensor);
                }
            });
            if let Some(tensor) = unread {
                return Err(GraphError::ReadBeforeWrite {
                    op: op.name.clone(),
                    tensor: self.tensor(tensor).name.clone(),
                });
            }
            op.for_each_view(|view, access| {
                if access.writes {
                    written[view.tensor.index()] = true;
                }
            });
        }
        Ok(())
    }

    /// Bytes of all weights of a component in device memory.
    pub fn component_weight_bytes(&self, component: ComponentId) -> u64 {
        self.weights.iter().filter(|weight| weight.component == component).map(Weight::bytes).sum()
    }
}
