//! Shapes of operands: all that scratch sizes and the choice of kernels depend on.

use plimsoll_device::Mat;
use plimsoll_graph::{DType, Graph, Op, OpKind};

/// Rows, columns and element type of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows.
    pub rows: u64,
    /// Columns.
    pub cols: u64,
    /// Element type.
    pub dtype: DType,
}

/// Shapes of an op of a graph.
pub fn graph_shapes(graph: &Graph, op: &Op) -> OpKind<Shape, Shape> {
    op.kind.map(
        &mut |view, _| {
            let dtype = graph.tensor(view.tensor).dtype;
            Shape { rows: view.rows, cols: view.cols, dtype }
        },
        &mut |id| {
            let weight = graph.weight(*id);
            Shape { rows: weight.rows, cols: weight.cols, dtype: weight.dtype }
        },
    )
}

/// Shapes of an op with addresses.
pub fn bound_shapes(op: &OpKind<Mat, Mat>) -> OpKind<Shape, Shape> {
    let shape = |mat: &Mat| Shape { rows: mat.rows, cols: mat.cols, dtype: mat.dtype };
    op.map(&mut |mat, _| shape(mat), &mut |mat| shape(mat))
}
