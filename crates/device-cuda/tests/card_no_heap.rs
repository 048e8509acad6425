//! Between the first command and the last this program takes nothing from the heap on a card either; what the
//! driver and libraries take for themselves is not seen here.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]
#![allow(missing_docs)]

mod card;
#[path = "../../device/tests/common/mod.rs"]
mod common;
#[path = "../../device/tests/counting/mod.rs"]
mod counting;

use common::{Lab, bound, unit};
use counting::Counting;
use plimsoll_cuda_kernels::{bound_shapes, workspace_bytes};
use plimsoll_device::{Command, Control, Device, HostDType, Lane, Program, Region, Segment};
use plimsoll_graph::{Activation, DType, Norm, OpKind};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
#[ignore = "needs a CUDA card"]
fn a_run_takes_nothing_from_the_heap() {
    let Some(mut device) = card::device(256 << 20, card::options()) else { return };
    let mut lab = Lab::new(1);
    let x = lab.random(1024, 192, DType::BF16);
    let y = lab.empty(1024, 192, DType::BF16);
    let square = lab.random(192, 192, DType::BF16);
    let vector = lab.random(1, 192, DType::BF16);
    let kinds = [
        OpKind::Linear {
            x: x.mat,
            weight: square.mat,
            weight_scale: None,
            bias: Some(vector.mat),
            activation: Activation::Silu,
            residual: None,
            out: y.mat,
        },
        OpKind::Attention {
            q: x.mat,
            k: x.mat,
            v: x.mat,
            heads: 3,
            scale: 0.125,
            causal: false,
            bias: None,
            out: y.mat,
        },
        OpKind::Norm {
            x: x.mat,
            norm: Norm::LayerAffine { eps: 1e-6, weight: vector.mat, bias: vector.mat },
            out: y.mat,
        },
        OpKind::Add { a: y.mat, b: x.mat, out: y.mat },
    ];
    let backends = device.card().backends();
    let workspace = |kind: &OpKind<_, _>| workspace_bytes(&bound_shapes(kind), backends);
    let ops: Vec<_> = kinds
        .into_iter()
        .map(|kind| {
            let bytes = workspace(&kind);
            bound(kind, Region { offset: lab.end, bytes })
        })
        .collect();
    let host = vec![1u8; 4 << 20];
    let copy = |source_dtype| {
        let (source, target, target_dtype) = (&host[..], 128 << 20, DType::BF16);
        unit(Segment { source, source_dtype, target, target_dtype })
    };
    let copies = vec![copy(HostDType::BF16), copy(HostDType::F32)];
    let count = ops.len() as u32;
    let program = Program { ops, copies, trace: true, command_count: 10_000, ..Program::default() };
    let mut bytes = 0;
    device
        .run(&program, &Control::default(), &mut |queue| {
            let round = |from: u64| {
                for copy in 0..40 {
                    queue.enqueue(Lane::Copy, Command::Copy { copy: copy % 2, step: None })?;
                }
                queue.enqueue(Lane::Copy, Command::Signal)?;
                for op in (0..count).cycle().take(20 * count as usize) {
                    queue.enqueue(Lane::Compute, Command::Run { op, step: 0 })?;
                }
                queue.enqueue(Lane::Compute, Command::Signal)?;
                queue.wait(Lane::Copy, from)?;
                queue.wait(Lane::Compute, from)
            };
            // Threads that have just started still set themselves up.
            round(1)?;
            let before = counting::taken();
            round(2)?;
            [_, bytes] = counting::taken_since(before);
            Ok(())
        })
        .unwrap();
    assert_eq!(bytes, 0, "bytes taken from the heap while a program ran");
}
