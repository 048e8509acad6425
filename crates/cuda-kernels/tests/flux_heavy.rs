//! Products, attention and convolutions of FLUX.1-dev at 1024x1024: which kernel or library each takes.
#![allow(clippy::expect_used, reason = "a test")]

use std::collections::BTreeMap;

use plimsoll_cuda_kernels::{
    Arch, AttentionBackend, Backends, GemmBackend, NarrowBackend, Task, bound_attentions,
    bound_shapes, graph_shapes, library_attentions, tasks, workspace_bytes,
};
use plimsoll_device::{BoundOp, Mat};
use plimsoll_graph::{DType, Graph, Op, OpKind, RowSelect};
use plimsoll_models::flux::is_block_matrix;
use plimsoll_models::{FluxModel, FluxRun};
use plimsoll_plan::Region;

const OWN: Backends = Backends::OWN;
const LIBRARIES: Backends = Backends {
    gemm: GemmBackend::CublasLt,
    narrow: NarrowBackend::Unpacked,
    attention: AttentionBackend::Cudnn,
};

fn flux(dtype: DType) -> Graph {
    flux_of(dtype, &|_, _| dtype)
}

fn flux_of(dtype: DType, weights: &dyn Fn(&str, &str) -> DType) -> Graph {
    let (width, height, steps, samples) = (1024, 1024, 4, 1);
    let run = FluxRun {
        width,
        height,
        steps,
        samples,
        text_tokens: 512,
        dtype,
        hoist: true,
        vae_tile: None,
    };
    FluxModel::dev().graph(&run, weights).expect("FLUX.1-dev")
}

/// An op with each tensor and weight in a place of its own.
fn bound(graph: &Graph, op: &Op, backends: Backends) -> BoundOp {
    /// More than any tensor or weight has.
    const EACH: u64 = 1 << 34;
    let kind = op.kind.map(
        &mut |view, _| {
            let tensor = graph.tensor(view.tensor);
            let width = tensor.dtype.bytes();
            let (row, step_bytes) = match view.row {
                RowSelect::At(row) => (row, 0),
                RowSelect::Step => (0, tensor.cols * width),
            };
            Mat {
                offset: view.tensor.index() as u64 * EACH + (row * tensor.cols + view.col) * width,
                rows: view.rows,
                cols: view.cols,
                stride: tensor.cols,
                dtype: tensor.dtype,
                step_bytes,
            }
        },
        &mut |id| {
            let weight = graph.weight(*id);
            let (rows, cols, dtype) = (weight.rows, weight.cols, weight.dtype);
            let offset = (graph.tensors.len() + id.index()) as u64 * EACH;
            Mat { offset, rows, cols, stride: cols, dtype, step_bytes: 0 }
        },
    );
    let bytes = workspace_bytes(&bound_shapes(&kind), backends);
    assert_eq!(bytes, workspace_bytes(&graph_shapes(graph, op), backends), "{}", op.name);
    let offset = (graph.tensors.len() + graph.weights.len()) as u64 * EACH;
    BoundOp { op: Op { name: op.name.clone(), kind }, workspace: Region { offset, bytes } }
}

/// How often each kernel is launched on Hopper and each library asked, and the most scratch of an op.
fn census(graph: &Graph, backends: Backends) -> (BTreeMap<&'static str, usize>, u64) {
    let (mut found, mut scratch) = (BTreeMap::new(), 0);
    for op in &graph.ops {
        use OpKind::{Attention, Conv3x3, Linear};
        if !matches!(op.kind, Linear { .. } | Attention { .. } | Conv3x3 { .. }) {
            continue;
        }
        let op = bound(graph, op, backends);
        scratch = scratch.max(op.workspace.bytes);
        for task in tasks(&op, backends).expect("a kernel") {
            let name = match task {
                Task::Launch(launch) => Arch::Sm90a.variant(launch).kernel,
                Task::Gemm(_) => "cublaslt",
                Task::Sdpa(_) => "cudnn",
            };
            *found.entry(name).or_insert(0) += 1;
        }
    }
    println!("{found:?}, {scratch} bytes");
    (found, scratch)
}

#[test]
fn own_kernels_are_the_fast_ones() {
    let (found, scratch) = census(&flux(DType::BF16), OWN);
    assert_eq!(found["attention_128_hopper"], 19 + 38);
    // T5's 24 layers and CLIP's 12.
    assert_eq!(found["attention_64_masked"], 24 + 12);
    // The latent is f32: into the transformer.
    assert_eq!(found["gemm_any"], 1);
    // The last layer of the decoder has three channels.
    assert_eq!(found["conv_128x16"], 1);
    // The decoder's attention: a band of 1024 x 16384 scores, and its turned values.
    assert_eq!(scratch, (64 << 20) + 512 * 16384 * 2);
}

#[test]
fn eight_bit_weights_are_unpacked_for_the_same_kernels() {
    let narrow = |component: &str, entry: &str| {
        if is_block_matrix(component, entry) { DType::F8E4M3 } else { DType::BF16 }
    };
    for backends in [OWN, LIBRARIES] {
        let (plain, _) = census(&flux(DType::BF16), backends);
        let (mut found, scratch) = census(&flux_of(DType::BF16, &narrow), backends);
        assert_eq!(found.remove("unpack_f8_16"), Some(19 * 8 + 38 * 3));
        assert_eq!(found, plain);
        // The widest weight in bf16, before what a library's product asks for behind it.
        assert!(scratch >= 2 * 3072 * 15360, "{scratch}");
    }
}

#[test]
fn hopper_multiplies_eight_bits_as_they_are_stored() {
    let narrow = |component: &str, entry: &str| {
        if is_block_matrix(component, entry) { DType::F8E4M3 } else { DType::BF16 }
    };
    let backends = Backends::libraries(Some(Arch::Sm90a));
    let (found, scratch) = census(&flux_of(DType::BF16, &narrow), backends);
    assert!(!found.keys().any(|kernel| kernel.starts_with("unpack")), "{found:?}");
    let quantized = found["quantize_f8_4"] + found["quantize_f8_16"];
    assert_eq!(quantized, 19 * 8 + 38 * 3);
    // The widest operand in 8 bits beside its product, or the decoder's attention.
    assert!(scratch <= 4608 * (15360 + 4 + 2 * 3072) + 1024 || scratch <= 80 << 20, "{scratch}");
}

#[test]
fn the_driver_alone_multiplies_eight_bits_where_tensor_cores_do() {
    let narrow = |component: &str, entry: &str| {
        if is_block_matrix(component, entry) { DType::F8E4M3 } else { DType::BF16 }
    };
    let graph = flux_of(DType::BF16, &narrow);
    let products = |arch: Arch, backends: fn(Option<Arch>) -> Backends| {
        let (found, _) = census(&graph, backends(Some(arch)));
        let sum = |prefix: &str| -> usize {
            found.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, count)| count).sum()
        };
        [sum("gemm_f8"), sum("unpack")]
    };
    let all = 19 * 8 + 38 * 3;
    for arch in [Arch::Sm89, Arch::Sm90a, Arch::Sm120a] {
        assert_eq!(products(arch, Backends::own), [all, 0], "{arch:?}");
    }
    assert_eq!(products(Arch::Sm89, Backends::libraries), [all, 0]);
    assert_eq!(products(Arch::Sm90a, Backends::libraries), [0, 0]);
    for arch in [Arch::Sm80, Arch::Sm86, Arch::Sm100a] {
        assert_eq!(products(arch, Backends::own), [0, all], "{arch:?}");
    }
}

#[test]
fn attentions_are_known_before_there_is_a_plan() {
    let graph = flux(DType::BF16);
    let expected = library_attentions(&graph, LIBRARIES);
    // A double block's and a single block's results lie in tensors of different widths; the last block has fewer queries.
    assert_eq!(expected.len(), 3);
    let placed: Vec<BoundOp> = graph.ops.iter().map(|op| bound(&graph, op, LIBRARIES)).collect();
    assert_eq!(bound_attentions(&placed, LIBRARIES), expected);
    assert_eq!(library_attentions(&graph, OWN), []);
}

#[test]
fn libraries_compute_what_they_can() {
    let (found, _) = census(&flux(DType::BF16), LIBRARIES);
    assert_eq!(found["cudnn"], 19 + 38);
    assert!(!found.contains_key("attention_128_hopper"));
    // Two gated layers a stream of a double block and one a single block.
    assert_eq!(found.get("gated_residual_8"), Some(&(19 * 4 + 38)));
    // CLIP's quick GELU.
    assert_eq!(found.get("activate_8"), Some(&12));
}

#[test]
fn single_precision_needs_no_tensor_cores() {
    let (found, _) = census(&flux(DType::F32), OWN);
    let plain = ["gemm_any", "conv_any", "attention_softmax", "attention_transpose"];
    assert!(found.keys().all(|name| plain.contains(name)), "{found:?}");
}
