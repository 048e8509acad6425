//! How much scratch an op needs: from its shape alone, so that a plan can place it.

use plimsoll_graph::{Graph, Op, OpKind};

use super::parallel::strands_for;
use super::{attention, conv, elementwise, group_norm, linear};
use crate::Mat;

/// Rows and columns of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

impl Shape {
    /// Sizes that no memory could hold saturate; such an op is refused elsewhere.
    fn new(rows: u64, cols: u64) -> Self {
        let size = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        Self { rows: size(rows), cols: size(cols) }
    }
}

/// Shapes of an op of a graph.
pub(crate) fn graph_shapes(graph: &Graph, op: &Op) -> OpKind<Shape, Shape> {
    op.kind.map(&mut |view, _| Shape::new(view.rows, view.cols), &mut |id| {
        let weight = graph.weight(*id);
        Shape::new(weight.rows, weight.cols)
    })
}

/// Shapes of an op with addresses.
pub(crate) fn bound_shapes(op: &OpKind<Mat, Mat>) -> OpKind<Shape, Shape> {
    op.map(&mut |mat, _| Shape::new(mat.rows, mat.cols), &mut |mat| Shape::new(mat.rows, mat.cols))
}

/// Bytes of scratch.
///
/// Dtypes do not matter: every operand is brought to `f32` on its way into the scratch.
pub(crate) fn workspace_bytes(op: &OpKind<Shape, Shape>) -> u64 {
    let floats = match op {
        OpKind::Linear { x, weight, .. } => {
            linear::Blocking::new(x.rows, weight.rows, x.cols).scratch_floats()
        }
        OpKind::Attention { q, k, heads, .. } => {
            let heads = usize::try_from(*heads).unwrap_or(1);
            attention::Blocking::new(q.rows, k.rows, q.cols, heads).scratch_floats()
        }
        OpKind::GroupNorm { x, .. } => group_norm::scratch_floats(x.rows, x.cols),
        OpKind::Conv3x3 { x, height, width, upscale, weight, .. } => {
            let size = [height * upscale, width * upscale]
                .map(|pixels| usize::try_from(pixels).unwrap_or(usize::MAX));
            conv::Blocking::new(size, x.cols, weight.rows).scratch_floats()
        }
        _ => 0,
    };
    floats as u64 * 4
}

/// How many tasks an op is cut into.
pub(crate) fn strands(op: &OpKind<Shape, Shape>) -> usize {
    let by_rows = |shape: &Shape, grain: usize| {
        strands_for(shape.rows.saturating_mul(shape.cols), grain).min(shape.rows)
    };
    match op {
        OpKind::Linear { x, weight, .. } => {
            linear::Blocking::new(x.rows, weight.rows, x.cols).strands()
        }
        OpKind::Attention { q, k, heads, .. } => {
            let heads = usize::try_from(*heads).unwrap_or(1);
            attention::Blocking::new(q.rows, k.rows, q.cols, heads).strands()
        }
        OpKind::Conv3x3 { x, height, width, upscale, weight, .. } => {
            let size = [height * upscale, width * upscale]
                .map(|pixels| usize::try_from(pixels).unwrap_or(usize::MAX));
            conv::Blocking::new(size, x.cols, weight.rows).strands()
        }
        OpKind::GroupNorm { x, .. } => by_rows(x, group_norm::GRAIN),
        OpKind::Norm { out, .. } => by_rows(out, elementwise::GRAIN / 2),
        OpKind::QkNormRope { q, .. } => by_rows(q, elementwise::GRAIN / 4),
        OpKind::Copy { out, .. }
        | OpKind::Add { out, .. }
        | OpKind::AddWeight { out, .. }
        | OpKind::Activate { out, .. }
        | OpKind::GluGelu { out, .. }
        | OpKind::Unpatchify { out, .. } => by_rows(out, elementwise::GRAIN),
        OpKind::Euler { latent, .. } => by_rows(latent, elementwise::GRAIN),
        _ => 1,
    }
}
