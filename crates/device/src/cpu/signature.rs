//! What decides an op's seconds: its kind, shapes, element types and numbers, but not which tensors it names.

use plimsoll_graph::{Activation, DType, Graph, Norm, Op, OpKind, TileOp, View};

/// An op up to the names of its operands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Signature {
    label: &'static str,
    /// Rows, columns and row length of each tensor, rows and columns of each weight, each with its element type.
    shapes: Vec<(u64, u64, u64, DType)>,
    /// What else changes the work.
    numbers: [u64; 4],
}

impl Signature {
    /// The signature of an op of a graph.
    pub(crate) fn of(graph: &Graph, op: &Op) -> Self {
        let mut shapes = Vec::with_capacity(8);
        op.for_each_view(|view: &View, _| {
            let tensor = graph.tensor(view.tensor);
            shapes.push((view.rows, view.cols, tensor.cols, tensor.dtype));
        });
        op.for_each_weight(|id| {
            let weight = graph.weight(*id);
            shapes.push((weight.rows, weight.cols, weight.cols, weight.dtype));
        });
        Self { label: op.kind.label(), shapes, numbers: numbers(&op.kind) }
    }
}

fn activation_number(activation: Activation) -> u64 {
    match activation {
        Activation::None => 0,
        Activation::Silu => 1,
        Activation::GeluTanh => 2,
        Activation::QuickGelu => 3,
    }
}

fn numbers<V, W>(kind: &OpKind<V, W>) -> [u64; 4] {
    match kind {
        OpKind::Activate { activation, .. } => [activation_number(*activation), 0, 0, 0],
        OpKind::Linear { bias, activation, residual, .. } => [
            activation_number(*activation),
            u64::from(bias.is_some()),
            u64::from(residual.is_some()),
            u64::from(residual.as_ref().is_some_and(|residual| residual.gate.is_some())),
        ],
        OpKind::Norm { norm, .. } => {
            let kind = match norm {
                Norm::LayerModulated { .. } => 0,
                Norm::LayerAffine { .. } => 1,
                Norm::Rms { .. } => 2,
            };
            [kind, 0, 0, 0]
        }
        OpKind::QkNormRope { heads, .. } => [*heads, 0, 0, 0],
        OpKind::Attention { heads, causal, bias, .. } => {
            [*heads, u64::from(*causal), u64::from(bias.is_some()), 0]
        }
        OpKind::Unpatchify { height, width, .. } => [*height, *width, 0, 0],
        OpKind::Tile(TileOp::Crop { width, out_width, .. }) => [*width, *out_width, 0, 0],
        OpKind::Tile(TileOp::Blend { width, rows, cols, .. }) => {
            [*width, rows.rise + rows.fall, cols.rise + cols.fall, 0]
        }
        OpKind::GroupNorm { groups, silu, .. } => [*groups, u64::from(*silu), 0, 0],
        OpKind::Conv3x3 { height, width, upscale, margin: [above, below], residual, .. } => {
            [*height, *width, *upscale, u64::from(residual.is_some()) | above << 1 | below << 2]
        }
        _ => [0; 4],
    }
}
