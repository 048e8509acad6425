//! Shape rules and costs of ops: what fits together, how many FLOPs, how many bytes.

use crate::graph::{Graph, RowSelect, View, WeightId};
use crate::op::{Norm, Op, OpKind};
use crate::{DType, GraphError};

impl Op {
    /// Floating-point operations, two a multiply-add, over all rows.
    pub fn flops(&self, graph: &Graph) -> u64 {
        let weight = |id: &WeightId| {
            let weight = graph.weight(*id);
            weight.rows * weight.cols
        };
        match &self.kind {
            OpKind::Linear { x, weight: w, .. } => 2 * x.rows * weight(w),
            OpKind::Conv3x3 { out, weight: w, .. } => 2 * out.rows * weight(w),
            OpKind::Attention { q, k, causal, .. } => {
                let full = 4 * q.rows * k.rows * q.cols;
                if *causal { full / 2 } else { full }
            }
            OpKind::Input { .. }
            | OpKind::Gather { .. }
            | OpKind::Output { .. }
            | OpKind::Copy { .. }
            | OpKind::SelectRow { .. }
            | OpKind::ExpandBias { .. } => 0,
            OpKind::Add { out, .. } | OpKind::AddWeight { out, .. } => out.rows * out.cols,
            OpKind::Euler { latent, .. } => 2 * latent.rows * latent.cols,
            OpKind::Activate { out, .. }
            | OpKind::GluGelu { out, .. }
            | OpKind::Sinusoid { out, .. }
            | OpKind::Norm { out, .. }
            | OpKind::Unpatchify { out, .. }
            | OpKind::GroupNorm { out, .. } => 8 * out.rows * out.cols,
            OpKind::QkNormRope { q, .. } => 24 * q.rows * q.cols,
            OpKind::Tile(op) => op.flops(),
            OpKind::Planned(op) => op.flops(graph),
        }
    }

    /// Bytes of device memory that the op must read and write, each operand once, weights included.
    pub fn bytes(&self, graph: &Graph) -> u64 {
        let mut bytes = 0;
        self.for_each_view(|view, access| {
            let width = graph.tensor(view.tensor).dtype.bytes();
            let times = u64::from(access.reads) + u64::from(access.writes);
            bytes += view.rows * view.cols * width * times;
        });
        self.for_each_weight(|id| bytes += graph.weight(*id).bytes());
        bytes
    }

    fn problem(&self, what: String) -> GraphError {
        GraphError::Shape { op: format!("{} {}", self.kind.label(), self.name), what }
    }

    fn require(&self, holds: bool, what: impl FnOnce() -> String) -> Result<(), GraphError> {
        if holds { Ok(()) } else { Err(self.problem(what())) }
    }

    fn same(&self, what: &str, a: &View, b: &View) -> Result<(), GraphError> {
        self.require(a.rows == b.rows && a.cols == b.cols, || {
            format!("{what}: {}x{} and {}x{}", a.rows, a.cols, b.rows, b.cols)
        })
    }

    fn weight_is(
        &self,
        graph: &Graph,
        what: &str,
        id: &WeightId,
        rows: u64,
        cols: u64,
    ) -> Result<(), GraphError> {
        let weight = graph.weight(*id);
        self.require(weight.rows == rows && weight.cols == cols, || {
            format!("{what} is {}x{}, expected {rows}x{cols}", weight.rows, weight.cols)
        })
    }

    fn row_is(&self, what: &str, view: &View, cols: u64) -> Result<(), GraphError> {
        self.require(view.rows == 1 && view.cols == cols, || {
            format!("{what} is {}x{}, expected 1x{cols}", view.rows, view.cols)
        })
    }

    fn dtype_is(
        &self,
        graph: &Graph,
        what: &str,
        view: &View,
        dtype: DType,
    ) -> Result<(), GraphError> {
        let found = graph.tensor(view.tensor).dtype;
        self.require(found == dtype, || {
            format!("{what} is {}, expected {}", found.name(), dtype.name())
        })
    }

    /// Checks that every view lies inside its tensor and that operands fit together.
    ///
    /// # Errors
    /// [`GraphError::Shape`] with the sizes.
    pub(crate) fn check_shapes(&self, graph: &Graph) -> Result<(), GraphError> {
        let mut outside = None;
        self.for_each_view(|view, _| {
            let tensor = graph.tensor(view.tensor);
            let rows_fit = match view.row {
                RowSelect::At(row) => {
                    view.rows > 0
                        && row.checked_add(view.rows).is_some_and(|end| end <= tensor.rows)
                }
                RowSelect::Step => view.rows == 1 && u64::from(graph.steps) <= tensor.rows,
            };
            let cols_fit = view.cols > 0
                && view.col.checked_add(view.cols).is_some_and(|end| end <= tensor.cols);
            if !(rows_fit && cols_fit) {
                outside.get_or_insert(view.tensor);
            }
        });
        if let Some(id) = outside {
            let name = &graph.tensor(id).name;
            return Err(self.problem(format!("a view outside of tensor {name}")));
        }
        self.check_stored(graph)?;
        self.check_operands(graph)
    }

    /// Nothing but the matrix of a linear layer is stored in 8 bits.
    fn check_stored(&self, graph: &Graph) -> Result<(), GraphError> {
        let matrix = match &self.kind {
            OpKind::Linear { weight, .. } => Some(*weight),
            _ => None,
        };
        let mut misplaced = None;
        self.for_each_view(|view, _| {
            let tensor = graph.tensor(view.tensor);
            if tensor.dtype == DType::F8E4M3 {
                misplaced.get_or_insert(&tensor.name);
            }
        });
        self.for_each_weight(|id| {
            let weight = graph.weight(*id);
            if weight.dtype == DType::F8E4M3 && Some(*id) != matrix {
                misplaced.get_or_insert(&weight.name);
            }
        });
        match misplaced {
            None => Ok(()),
            Some(name) => Err(self.problem(format!(
                "{name} is {}, which only matrices of linear layers can be",
                DType::F8E4M3.name()
            ))),
        }
    }

    fn check_operands(&self, graph: &Graph) -> Result<(), GraphError> {
        match &self.kind {
            OpKind::Input { input, out } => {
                let input = &graph.inputs[input.index()];
                self.dtype_is(graph, "input", out, input.dtype)?;
                self.require(out.rows == input.rows && out.cols == input.cols, || {
                    format!("input {}x{}, out {}x{}", input.rows, input.cols, out.rows, out.cols)
                })
            }
            OpKind::Gather { table, ids, out } => {
                let shape = &graph.tables[table.index()].part.shape;
                let rows = graph.inputs[ids.index()].rows;
                self.require(shape.len() == 2 && shape[1] == out.cols && rows == out.rows, || {
                    format!("table {shape:?}, {rows} indices, out {}x{}", out.rows, out.cols)
                })
            }
            OpKind::Output { output, x } => {
                let output = &graph.outputs[output.index()];
                self.dtype_is(graph, "output", x, output.dtype)?;
                self.require(x.rows == output.rows && x.cols == output.cols, || {
                    format!("output {}x{}, x {}x{}", output.rows, output.cols, x.rows, x.cols)
                })
            }
            OpKind::Copy { x, out } | OpKind::Activate { x, out, .. } => {
                self.same("x, out", x, out)
            }
            OpKind::Add { a, b, out } => {
                self.same("a, out", a, out)?;
                let fits = b.cols == a.cols && (b.rows == a.rows || b.rows == 1);
                self.require(fits, || format!("a has {} rows, b {}x{}", a.rows, b.rows, b.cols))
            }
            OpKind::AddWeight { a, weight, out } => {
                self.same("a, out", a, out)?;
                let weight = graph.weight(*weight);
                self.require(weight.cols == a.cols && a.rows <= weight.rows, || {
                    format!("weight {}x{} for {}x{}", weight.rows, weight.cols, a.rows, a.cols)
                })
            }
            OpKind::GluGelu { x, out } => self
                .require(x.rows == out.rows && x.cols == 2 * out.cols, || {
                    format!("x {}x{}, out {}x{}", x.rows, x.cols, out.rows, out.cols)
                }),
            OpKind::Sinusoid { x, out } => {
                self.dtype_is(graph, "x", x, DType::F32)?;
                let fits = x.rows == out.rows && x.cols == 1 && out.cols % 2 == 0;
                self.require(fits, || format!("x {}x{}, out {} columns", x.rows, x.cols, out.cols))
            }
            OpKind::Linear { x, weight, weight_scale, bias, residual, out, .. } => {
                self.weight_is(graph, "weight", weight, out.cols, x.cols)?;
                let is_scaled = graph.weight(*weight).dtype == DType::F8E4M3;
                self.require(is_scaled == weight_scale.is_some(), || {
                    let found = graph.weight(*weight).dtype.name();
                    let scale = if is_scaled { "without" } else { "with" };
                    format!("a weight of {found} {scale} a scale a row")
                })?;
                if let Some(scale) = weight_scale {
                    self.weight_is(graph, "weight scale", scale, 1, out.cols)?;
                    let found = graph.weight(*scale).dtype;
                    self.require(found == DType::F32, || {
                        format!("weight scale is {}, expected f32", found.name())
                    })?;
                }
                if let Some(bias) = bias {
                    self.weight_is(graph, "bias", bias, 1, out.cols)?;
                }
                if let Some(residual) = residual {
                    self.same("base, out", &residual.base, out)?;
                    if let Some(gate) = &residual.gate {
                        self.row_is("gate", gate, out.cols)?;
                    }
                }
                self.require(x.rows == out.rows, || format!("{} rows to {}", x.rows, out.rows))
            }
            OpKind::Norm { x, norm, out } => {
                self.same("x, out", x, out)?;
                match norm {
                    Norm::LayerModulated { scale, shift, .. } => {
                        self.row_is("scale", scale, x.cols)?;
                        self.row_is("shift", shift, x.cols)
                    }
                    Norm::LayerAffine { weight, bias, .. } => {
                        self.weight_is(graph, "weight", weight, 1, x.cols)?;
                        self.weight_is(graph, "bias", bias, 1, x.cols)
                    }
                    Norm::Rms { weight, .. } => self.weight_is(graph, "weight", weight, 1, x.cols),
                }
            }
            OpKind::QkNormRope { q, k, q_weight, k_weight, rope, heads, .. } => {
                self.same("q, k", q, k)?;
                self.require(
                    *heads > 0 && q.cols % heads == 0 && (q.cols / heads) % 2 == 0,
                    || format!("{} columns in {heads} heads", q.cols),
                )?;
                let head_dim = q.cols / heads;
                self.weight_is(graph, "q norm", q_weight, 1, head_dim)?;
                self.weight_is(graph, "k norm", k_weight, 1, head_dim)?;
                self.dtype_is(graph, "rope", rope, DType::F32)?;
                self.require(rope.rows == q.rows && rope.cols == head_dim, || {
                    format!("rope {}x{} for {} rows of {head_dim}", rope.rows, rope.cols, q.rows)
                })
            }
            OpKind::Attention { q, k, v, heads, bias, out, causal, .. } => {
                self.same("q, out", q, out)?;
                self.same("k, v", k, v)?;
                self.require(*heads > 0 && q.cols % heads == 0 && q.cols == k.cols, || {
                    format!("q {} columns, k {}, {heads} heads", q.cols, k.cols)
                })?;
                self.require(!causal || q.rows == k.rows, || {
                    format!("causal over {} queries and {} keys", q.rows, k.rows)
                })?;
                let Some(bias) = bias else { return Ok(()) };
                self.dtype_is(graph, "bias", &bias.bias, DType::F32)?;
                let fits = q.rows == k.rows
                    && bias.bias.rows == *heads
                    && bias.bias.cols == 2 * q.rows - 1;
                self.require(fits, || format!("bias {}x{}", bias.bias.rows, bias.bias.cols))
            }
            OpKind::ExpandBias { weight, buckets, out } => {
                let weight = graph.weight(*weight);
                self.dtype_is(graph, "buckets", buckets, DType::U32)?;
                self.dtype_is(graph, "out", out, DType::F32)?;
                let fits = weight.cols == out.rows && buckets.rows == out.cols && buckets.cols == 1;
                self.require(fits, || format!("{} heads, out {} rows", weight.cols, out.rows))
            }
            OpKind::SelectRow { x, index, out } => {
                self.dtype_is(graph, "index", index, DType::U32)?;
                self.row_is("index", index, 1)?;
                self.row_is("out", out, x.cols)
            }
            OpKind::Euler { latent, velocity, dsigma } => {
                self.same("latent, velocity", latent, velocity)?;
                self.dtype_is(graph, "latent", latent, DType::F32)?;
                self.dtype_is(graph, "dsigma", dsigma, DType::F32)?;
                self.row_is("dsigma", dsigma, 1)
            }
            OpKind::Unpatchify { x, height, width, out, .. } => {
                let fits = height % 2 == 0
                    && width % 2 == 0
                    && x.rows * 4 == height * width
                    && out.rows == height * width
                    && x.cols == 4 * out.cols;
                self.require(fits, || format!("{} tokens for {height}x{width}", x.rows))
            }
            OpKind::GroupNorm { x, weight, bias, groups, out, .. } => {
                self.same("x, out", x, out)?;
                self.weight_is(graph, "weight", weight, 1, x.cols)?;
                self.weight_is(graph, "bias", bias, 1, x.cols)?;
                self.require(*groups > 0 && x.cols % groups == 0, || {
                    format!("{} channels in {groups} groups", x.cols)
                })
            }
            OpKind::Conv3x3 {
                x,
                height,
                width,
                upscale,
                margin: [above, below],
                weight,
                bias,
                residual,
                out,
            } => {
                self.weight_is(graph, "weight", weight, out.cols, 9 * x.cols)?;
                self.weight_is(graph, "bias", bias, 1, out.cols)?;
                if let Some(residual) = residual {
                    self.same("residual, out", residual, out)?;
                }
                let seen = above.saturating_add(*below).saturating_mul(*width);
                let fits = matches!(upscale, 1 | 2)
                    && matches!((above, below), (0 | 1, 0 | 1))
                    && x.rows == height * width
                    && x.rows > seen
                    && out.rows == (x.rows - seen) * upscale * upscale;
                self.require(fits, || {
                    format!("{} pixels, {seen} of them seen only, to {}", x.rows, out.rows)
                })
            }
            OpKind::Tile(op) => match op.misfit(graph) {
                None => Ok(()),
                Some(what) => Err(self.problem(what)),
            },
            OpKind::Planned(op) => match op.misfit(graph) {
                None => Ok(()),
                Some(what) => Err(self.problem(what)),
            },
        }
    }
}
