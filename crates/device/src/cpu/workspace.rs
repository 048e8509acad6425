//! How much scratch an op needs: from its shape alone, so that a plan can place it.

use plimsoll_graph::{Graph, Op, OpKind, TileOp};

use super::parallel::Grid;
use super::{attention, conv, elementwise, group_norm, linear, norm};
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

/// How an op is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    /// Rounds of all strands; the second begins when the first is done.
    pub(crate) phases: u32,
    pub(crate) strands: u32,
    /// Floats of a strand's scratch.
    pub(crate) strand_floats: usize,
}

impl Work {
    /// From the op's shapes. Dtypes do not matter: every operand is brought to `f32` on its way into the scratch.
    pub(crate) fn of(op: &OpKind<Shape, Shape>) -> Self {
        // At most 16 strands, by construction of every grid.
        let number = |strands: usize| u32::try_from(strands).unwrap_or(u32::MAX);
        let plain =
            |grid: Grid| Self { phases: 1, strands: number(grid.count()), strand_floats: 0 };
        let shared =
            |strands, strand_floats| Self { phases: 1, strands: number(strands), strand_floats };
        match op {
            OpKind::Linear { x, weight, .. } => {
                let blocking = linear::Blocking::new(x.rows, weight.rows, x.cols);
                shared(blocking.strands(), blocking.strand_floats())
            }
            OpKind::Attention { q, k, heads, .. } => {
                let heads = usize::try_from(*heads).unwrap_or(1);
                let blocking = attention::Blocking::new(q.rows, k.rows, q.cols, heads);
                shared(blocking.strands(), blocking.strand_floats())
            }
            OpKind::Conv3x3 { x, height, width, upscale, margin, weight, .. } => {
                let rows = height.saturating_sub(margin[0].saturating_add(margin[1]));
                let size = [rows * upscale, width * upscale]
                    .map(|pixels| usize::try_from(pixels).unwrap_or(usize::MAX));
                let blocking = conv::Blocking::new(size, x.cols, weight.rows);
                shared(blocking.strands(), blocking.strand_floats())
            }
            OpKind::GroupNorm { x, .. } => Self {
                phases: 2,
                strands: number(group_norm::grid(x.rows, x.cols).count()),
                strand_floats: group_norm::strand_floats(x.cols),
            },
            OpKind::Norm { out, .. } => plain(norm::grid(out.rows, out.cols)),
            OpKind::QkNormRope { q, .. } => plain(norm::grid(q.rows, 2 * q.cols)),
            OpKind::Copy { out, .. }
            | OpKind::Add { out, .. }
            | OpKind::AddWeight { out, .. }
            | OpKind::Activate { out, .. }
            | OpKind::GluGelu { out, .. }
            | OpKind::Tile(
                TileOp::Clear { out } | TileOp::Crop { out, .. } | TileOp::Blend { out, .. },
            )
            | OpKind::Unpatchify { out, .. } => plain(elementwise::grid(out.rows, out.cols)),
            OpKind::Euler { latent, .. } => plain(elementwise::grid(latent.rows, latent.cols)),
            _ => Self { phases: 1, strands: 1, strand_floats: 0 },
        }
    }

    /// Bytes of scratch of all strands.
    pub(crate) fn workspace_bytes(&self) -> u64 {
        u64::from(self.strands) * self.strand_floats as u64 * 4
    }
}
