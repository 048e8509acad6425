//! Between the first command and the last nothing is taken from the heap, the GEMM included.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]
#![allow(missing_docs)]

mod common;
mod counting;

use common::{Lab, bound};
use counting::Counting;
use plimsoll_device::cpu::{CpuDevice, bound_workspace_bytes};
use plimsoll_device::{Command, Control, Device, Lane, Program, Region};
use plimsoll_graph::{Activation, DType, Norm, OpKind};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_run_takes_nothing_from_the_heap() {
    let mut lab = Lab::new(1);
    let x = lab.random(1024, 192, DType::BF16);
    let y = lab.empty(1024, 192, DType::BF16);
    let square = lab.random(192, 192, DType::BF16);
    let kernel = lab.random(192, 192 * 9, DType::BF16);
    let vector = lab.random(1, 192, DType::F32);
    let kinds = [
        OpKind::Linear {
            x: x.mat,
            weight: square.mat,
            weight_scale: None,
            bias: Some(vector.mat),
            activation: Activation::GeluTanh,
            residual: None,
            out: y.mat,
        },
        OpKind::Attention {
            q: x.mat,
            k: x.mat,
            v: x.mat,
            heads: 3,
            scale: 0.125,
            causal: true,
            bias: None,
            out: y.mat,
        },
        OpKind::Norm {
            x: x.mat,
            norm: Norm::LayerAffine { eps: 1e-6, weight: vector.mat, bias: vector.mat },
            out: y.mat,
        },
        OpKind::GroupNorm {
            x: x.mat,
            weight: vector.mat,
            bias: vector.mat,
            groups: 32,
            eps: 1e-6,
            silu: true,
            out: y.mat,
        },
        OpKind::Conv3x3 {
            x: x.mat,
            height: 32,
            width: 32,
            upscale: 1,
            margin: [0, 0],
            weight: kernel.mat,
            bias: vector.mat,
            residual: None,
            out: y.mat,
        },
        OpKind::Add { a: y.mat, b: x.mat, out: y.mat },
    ];
    let most = kinds.iter().map(bound_workspace_bytes).max().unwrap_or(0);
    let ops = kinds
        .into_iter()
        .map(|kind| {
            let bytes = bound_workspace_bytes(&kind);
            bound(kind, Region { offset: lab.end, bytes })
        })
        .collect::<Vec<_>>();
    let count = ops.len() as u32;
    let program = Program { ops, trace: true, command_count: 10_000, ..Program::default() };
    for workers in [1, 2, 4] {
        let mut device = CpuDevice::new(lab.end + most, workers).unwrap();
        let (mut calls, mut bytes) = (0, 0);
        device
            .run(&program, &Control::default(), &mut |queue| {
                // Threads that have just started still set themselves up.
                for lane in [Lane::Copy, Lane::Compute] {
                    queue.enqueue(lane, Command::Signal)?;
                    queue.wait(lane, 1)?;
                }
                let before = counting::taken();
                for op in (0..count).cycle().take(20 * count as usize) {
                    queue.enqueue(Lane::Compute, Command::Run { op, step: 0 })?;
                }
                queue.enqueue(Lane::Compute, Command::Signal)?;
                queue.wait(Lane::Compute, 2)?;
                [calls, bytes] = counting::taken_since(before);
                Ok(())
            })
            .unwrap();
        println!("{workers} workers: {calls} allocations, {bytes} bytes");
        // The GEMM library is called for its micro-kernels only, so not even its scratch is taken.
        assert_eq!(bytes, 0, "with {workers} workers");
    }
}
