//! FLUX.1-dev at 1024x1024 from its shapes alone: time to plan, smallest line, distance from the floor.
#![allow(clippy::expect_used, reason = "a test")]

use plimsoll_graph::{DType, Graph};
use plimsoll_models::{FluxModel, FluxRun};
use plimsoll_plan::testing::FlatMachine;
use plimsoll_plan::{Line, Machine, Offload, Request, lower_bound, plan};

fn flux() -> Graph {
    let run = FluxRun {
        width: 1024,
        height: 1024,
        steps: 28,
        samples: 1,
        text_tokens: 512,
        dtype: DType::BF16,
        hoist: true,
    };
    FluxModel::dev().graph(&run, &|_, _| DType::BF16).expect("FLUX.1-dev")
}

#[test]
fn smallest_line_is_near_the_bound() {
    let graph = flux();
    let machine = FlatMachine::server();
    let bound = lower_bound(&graph, &machine);
    let request = Request { line: Line::Min, offload: Offload::Auto, prefetch: true };
    let plan = plan(&graph, &machine, &request).expect("min always works");
    let ratio = plan.line_bytes as f64 / bound as f64;
    println!("smallest line {} over bound {bound}: {ratio:.4}", plan.line_bytes);
    assert!(ratio <= 1.03, "{ratio}");
    assert!(machine.vram_bytes() > plan.arena_bytes);
}
