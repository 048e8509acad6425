//! What a graph will ask of libraries, before it has a plan.

use plimsoll_device::{BoundOp, Mat, Region};
use plimsoll_graph::{Graph, Op, OpKind};

use crate::lower::{tasks, workspace_bytes};
use crate::shape::bound_shapes;
use crate::task::{Backends, Sdpa, Task};

/// Attentions that a library computes, each shape once, at offset 0: what its plans can be built for ahead. A plan that
/// cuts an attention's rows asks for other shapes.
pub fn library_attentions(graph: &Graph, backends: Backends) -> Vec<Sdpa> {
    let mut found = Vec::new();
    let is_attention = |op: &&Op| matches!(op.kind, OpKind::Attention { .. });
    for op in graph.ops.iter().filter(is_attention) {
        let kind = op.kind.map(
            &mut |view, _| {
                let tensor = graph.tensor(view.tensor);
                Mat {
                    offset: 0,
                    rows: view.rows,
                    cols: view.cols,
                    stride: tensor.cols,
                    dtype: tensor.dtype,
                    step_bytes: 0,
                }
            },
            &mut |id| {
                let weight = graph.weight(*id);
                Mat {
                    offset: 0,
                    rows: weight.rows,
                    cols: weight.cols,
                    stride: weight.cols,
                    dtype: weight.dtype,
                    step_bytes: 0,
                }
            },
        );
        let bytes = workspace_bytes(&bound_shapes(&kind), backends);
        let op = Op { name: op.name.clone(), kind };
        let bound = BoundOp { op, workspace: Region { offset: 0, bytes } };
        // What is not supported is told when the op is carried out.
        for task in tasks(&bound, backends).unwrap_or_default() {
            match task {
                Task::Sdpa(sdpa) if !found.contains(&sdpa) => found.push(sdpa),
                _ => {}
            }
        }
    }
    found
}
