//! What the planner is told about the CPU device.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]
#![allow(missing_docs)]

use plimsoll_device::cpu::{CpuMachine, Rates};
use plimsoll_graph::{
    Activation, Builder, DType, Dependence, Graph, LowerOptions, Norm, PhaseKind,
};
use plimsoll_plan::Machine;

/// One block of every costly kind, over `tokens` tokens.
fn graph(tokens: u64) -> Graph {
    let weight_dtype = |_: &str, _: &str| DType::BF16;
    let mut b = Builder::new(DType::F32, &weight_dtype);
    let component = b.component("net");
    b.phase(PhaseKind::Denoise, "denoise");
    b.block(component, "one");
    let part = |name: &str, shape: &[u64]| vec![(name.to_owned(), shape.to_vec())];
    let x = b.input("noise", tokens, 192, DType::F32, Dependence::Latent);
    let ones = b.weight("ones", &part("ones", &[192]));
    let normal = b.norm("norm", x, Norm::LayerAffine { eps: 1e-6, weight: ones, bias: ones });
    let qkv_weight = b.weight("qkv", &part("qkv", &[576, 192]));
    let qkv = b.linear("qkv", normal, qkv_weight, None, Activation::None);
    let heads = [qkv.slice_cols(0, 192), qkv.slice_cols(192, 192), qkv.slice_cols(384, 192)];
    let out = b.buffer("attention", tokens, 192, DType::F32, Dependence::Latent);
    b.attention_into("attention", heads, 3, 0.125, false, None, out);
    let again = b.linear("qkv2", out, qkv_weight, None, Activation::None);
    let sum = b.add("sum", again.slice_cols(0, 192), x);
    b.output("out", sum);
    b.finish(&LowerOptions { steps: 2, samples: 1, hoist: true }).unwrap()
}

#[test]
fn a_calibration_measures_each_distinct_op_once() {
    let graph = graph(96);
    let machine = CpuMachine::calibrate(&graph, 2).unwrap();
    // The two products differ only in their operands' names.
    assert_eq!(machine.measured_count(), graph.ops.len() - 1);
    let seconds: Vec<f64> = graph.ops.iter().map(|op| machine.op_seconds(&graph, op)).collect();
    for (op, seconds) in graph.ops.iter().zip(&seconds) {
        println!("{:12} {:8.2} us", op.name, seconds * 1e6);
        assert!(*seconds > 0.0 && *seconds < 1.0, "{}: {seconds} s", op.name);
    }
    let of =
        |name: &str| graph.ops.iter().position(|op| op.name == name).map(|at| seconds[at]).unwrap();
    assert_eq!(of("qkv"), of("qkv2"));
    let rates = machine.rates();
    assert!(rates.copy_bytes_per_second > 1e8 && rates.copy_bytes_per_second < 1e12);
    assert!(rates.copy_seconds >= 0.0 && rates.copy_seconds < 0.1);
    assert!((0.0..=1.0).contains(&rates.copy_share));
    assert_eq!(machine.copy_share(), rates.copy_share);
    assert!(rates.scale > 0.0);
    println!("{rates:?}");
}

#[test]
fn what_has_no_weights_is_calibrated_too() {
    let weight_dtype = |_: &str, _: &str| DType::BF16;
    let mut b = Builder::new(DType::F32, &weight_dtype);
    let component = b.component("net");
    b.phase(PhaseKind::Denoise, "denoise");
    b.block(component, "one");
    let x = b.input("noise", 16, 64, DType::F32, Dependence::Latent);
    let sum = b.add("sum", x, x);
    b.output("out", sum);
    let graph = b.finish(&LowerOptions { steps: 1, samples: 1, hoist: true }).unwrap();
    let machine = CpuMachine::calibrate(&graph, 1).unwrap();
    assert_eq!(machine.measured_count(), graph.ops.len());
    // Nothing says what copies take.
    assert_eq!(machine.copy_share(), Rates::default().copy_share);
}

#[test]
fn workspace_follows_from_the_shape_alone() {
    let graph = graph(96);
    let one = CpuMachine::default_rates(1);
    let many = CpuMachine::with_rates(64, Rates { op_seconds: 1.0, ..Rates::default() });
    for op in &graph.ops {
        let bytes = one.workspace_bytes(&graph, op);
        assert_eq!(bytes, many.workspace_bytes(&graph, op));
        let has_scratch = matches!(op.kind.label(), "linear" | "attention");
        assert_eq!(bytes > 0, has_scratch, "{}", op.name);
    }
}

#[test]
fn more_work_takes_longer_and_workers_share_it() {
    let (small, large) = (graph(96), graph(960));
    let one = CpuMachine::default_rates(1);
    let four = CpuMachine::default_rates(4).with_vram_bytes(1 << 30);
    assert_eq!(four.vram_bytes(), 1 << 30);
    for (small_op, large_op) in small.ops.iter().zip(&large.ops) {
        let seconds = one.op_seconds(&large, large_op);
        assert!(seconds > one.op_seconds(&small, small_op), "{}", large_op.name);
        assert!(seconds >= four.op_seconds(&large, large_op));
    }
    assert!(one.copy_seconds(1 << 20, 3) > one.copy_seconds(1 << 10, 3));
}
