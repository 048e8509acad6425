//! What a graph will ask of libraries, before it has a plan.

use plimsoll_device::{BoundOp, Mat, Region};
use plimsoll_graph::{DType, Graph, Op, OpKind};

use crate::lower::{tasks, workspace_bytes};
use crate::shape::bound_shapes;
use crate::task::{Backends, Sdpa, Task};

/// Attentions that a library computes, each shape once, at offset 0: what its plans can be built for ahead. A plan that
/// cuts an attention's rows asks for other shapes.
pub fn library_attentions(graph: &Graph, backends: Backends) -> Vec<Sdpa> {
    let place = |rows: u64, cols: u64, stride: u64, dtype: DType| Mat {
        offset: 0,
        rows,
        cols,
        stride,
        dtype,
        step_bytes: 0,
    };
    let attentions = graph.ops.iter().filter(|op| matches!(op.kind, OpKind::Attention { .. }));
    let bound: Vec<BoundOp> = attentions
        .map(|op| {
            let kind = op.kind.map(
                &mut |view, _| {
                    let tensor = graph.tensor(view.tensor);
                    place(view.rows, view.cols, tensor.cols, tensor.dtype)
                },
                &mut |id| {
                    let weight = graph.weight(*id);
                    place(weight.rows, weight.cols, weight.cols, weight.dtype)
                },
            );
            let bytes = workspace_bytes(&bound_shapes(&kind), backends);
            let op = Op { name: op.name.clone(), kind };
            BoundOp { op, workspace: Region { offset: 0, bytes } }
        })
        .collect();
    bound_attentions(&bound, backends)
}

/// The same of ops that have their places.
pub fn bound_attentions(ops: &[BoundOp], backends: Backends) -> Vec<Sdpa> {
    let attentions = ops.iter().filter(|op| matches!(op.op.kind, OpKind::Attention { .. }));
    let mut found = Vec::new();
    // What is not supported is told when the op is carried out.
    for task in attentions.filter_map(|op| tasks(op, backends).ok()).flatten() {
        let Task::Sdpa(mut sdpa) = task else { continue };
        let Sdpa { q, k, v, out, workspace, .. } = &mut sdpa;
        workspace.offset = 0;
        [q, k, v, out].into_iter().for_each(|matrix| matrix.offset = 0);
        if !found.contains(&sdpa) {
            found.push(sdpa);
        }
    }
    found
}
