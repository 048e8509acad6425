//! Every light op of FLUX.1-dev at 1024x1024 has a kernel, and the fast one where it can.
#![allow(clippy::expect_used, reason = "a test")]

use std::collections::BTreeMap;

use plimsoll_cuda_kernels::{Backends, Task, bound_shapes, graph_shapes, tasks, workspace_bytes};
use plimsoll_device::{BoundOp, Mat};
use plimsoll_graph::{DType, Graph, Op, OpKind, RowSelect};
use plimsoll_models::{FluxModel, FluxRun};
use plimsoll_plan::Region;

const BACKENDS: Backends = Backends::OWN;

fn flux(dtype: DType, hoist: bool) -> Graph {
    let run = FluxRun {
        width: 1024,
        height: 1024,
        steps: 4,
        samples: 1,
        text_tokens: 512,
        dtype,
        hoist,
        vae_tile: None,
    };
    FluxModel::dev().graph(&run, &|_, _| dtype).expect("FLUX.1-dev")
}

/// Every tensor and weight in a place of its own.
fn place(graph: &Graph, op: &Op) -> BoundOp {
    let size = |rows: u64, cols: u64| (rows * cols * 4).next_multiple_of(256);
    let sizes = graph.tensors.iter().map(|tensor| size(tensor.rows, tensor.cols));
    let sizes = sizes.chain(graph.weights.iter().map(|weight| size(weight.rows, weight.cols)));
    let mut ends: Vec<u64> = sizes.collect();
    let mut end = 0;
    for offset in &mut ends {
        end += std::mem::replace(offset, end);
    }
    let kind = op.kind.map(
        &mut |view, _| {
            let tensor = graph.tensor(view.tensor);
            let width = tensor.dtype.bytes();
            let (row, step_bytes) = match view.row {
                RowSelect::At(row) => (row, 0),
                RowSelect::Step => (0, tensor.cols * width),
            };
            let offset = ends[view.tensor.index()] + (row * tensor.cols + view.col) * width;
            let (rows, cols, stride) = (view.rows, view.cols, tensor.cols);
            Mat { offset, rows, cols, stride, dtype: tensor.dtype, step_bytes }
        },
        &mut |id| {
            let weight = graph.weight(*id);
            let (rows, cols) = (weight.rows, weight.cols);
            let offset = ends[graph.tensors.len() + id.index()];
            Mat { offset, rows, cols, stride: cols, dtype: weight.dtype, step_bytes: 0 }
        },
    );
    let bytes = workspace_bytes(&bound_shapes(&kind), BACKENDS);
    assert_eq!(bytes, workspace_bytes(&graph_shapes(graph, op), BACKENDS), "{}", op.name);
    let workspace = Region { offset: end, bytes };
    BoundOp { op: Op { name: op.name.clone(), kind }, workspace }
}

/// How often each kernel is launched for the light ops.
fn kernels(graph: &Graph) -> BTreeMap<&'static str, usize> {
    let is_light = |op: &&Op| {
        use OpKind::{Attention, Conv3x3, Linear};
        !matches!(op.kind, Linear { .. } | Attention { .. } | Conv3x3 { .. })
    };
    let mut found = BTreeMap::new();
    for op in graph.ops.iter().filter(is_light) {
        for task in tasks(&place(graph, op), BACKENDS).expect("a kernel") {
            let Task::Launch(launch) = task else { panic!("{}: {task:?}", op.name) };
            *found.entry(launch.kernel).or_insert(0) += 1;
        }
    }
    found
}

#[test]
fn light_ops_take_the_fast_kernels() {
    for hoist in [true, false] {
        let found = kernels(&flux(DType::BF16, hoist));
        println!("{found:?}");
        let slow: Vec<&&str> = found
            .keys()
            .filter(|name| name.ends_with("_1") && **name != "norm_1" || name.contains("wide"))
            .collect();
        assert!(slow.is_empty(), "{slow:?}");
        // Two norms a stream of the 19 double blocks, one a single block, and the last.
        assert_eq!(found["norm_3"], 19 * 4 + 38 + 1);
        assert_eq!(found["norm_4"], 24 * 2 + 1);
        assert_eq!(found["norm_1"], 12 * 2 + 1);
        assert_eq!(found["qk_norm_rope_16"], 19 * 2 + 38);
    }
}

#[test]
fn light_ops_run_in_single_precision_too() {
    let found = kernels(&flux(DType::F32, true));
    assert_eq!(found["norm_wide_8"], 19 * 4 + 38 + 1 + 24 * 2 + 1 + 12 * 2 + 1);
}
