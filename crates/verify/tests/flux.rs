//! Plans of FLUX.1-dev at 1024x1024 with 50 steps are proved in well under 0.3 s.

mod support;

use std::time::{Duration, Instant};

use plimsoll_device::sim::SimFaults;
use plimsoll_graph::Graph;
use plimsoll_plan::testing::FlatMachine;
use plimsoll_plan::{Line, Machine, Offload, Plan, Request, plan};
use support::naive::{self, Style};
use support::{graphs, simulated};

const MOST: Duration = Duration::from_millis(300);

/// The quickest of some proofs: other work on the machine only adds.
fn prove(what: &str, graph: &Graph, plan: &Plan, workspace: &dyn Fn(&plimsoll_graph::Op) -> u64) {
    let quickest = (0..5)
        .map(|_| {
            let start = Instant::now();
            plimsoll_verify::verify(graph, plan, 0, workspace)
                .unwrap_or_else(|violation| panic!("{what}: {violation}"));
            start.elapsed()
        })
        .min()
        .expect("five");
    println!(
        "{what}: {} visits, {} loads, {} computes, {} copies, {:.1} GB copied per step, proved in {:.1} ms",
        plan.visits.len(),
        plan.loads.len(),
        plan.computes.len(),
        plan.copies.len(),
        plan.predicted.copied_bytes_per_step as f64 / 1e9,
        quickest.as_secs_f64() * 1e3,
    );
    assert!(quickest < MOST, "{what}: {quickest:?}");
}

#[test]
fn flux_dev_is_proved_quickly() {
    let graph = graphs::flux_dev(50);
    let machine = FlatMachine::server();
    let rule = |op: &_| machine.workspace_bytes(&graph, op);
    for (line, offload) in [
        (Line::Min, Offload::Auto),
        (Line::Bytes(6 << 30), Offload::Auto),
        (Line::Bytes(12 << 30), Offload::Auto),
        (Line::Max, Offload::None),
        (Line::Min, Offload::Sequential),
        (Line::Min, Offload::Model),
        (Line::Min, Offload::Group { blocks: 1 }),
    ] {
        let request = Request { line, offload, prefetch: true };
        let planned = plan(&graph, &machine, &request).expect("fits");
        prove(&format!("{offload} at {line}"), &graph, &planned, &rule);
    }
}

#[test]
fn flux_dev_runs_on_the_simulated_device() {
    let graph = graphs::flux_dev(50);
    let machine = FlatMachine::server();
    for line in [Line::Min, Line::Bytes(12 << 30)] {
        let request = Request { line, offload: Offload::Auto, prefetch: true };
        let planned = plan(&graph, &machine, &request).expect("fits");
        let costs = simulated::costs(&graph, &planned, &machine);
        let faults = SimFaults::default();
        let start = Instant::now();
        let quiet =
            simulated::run_with(&graph, &planned, costs.clone(), faults).expect("no hazard");
        println!(
            "auto at {line}: {:.1} s of virtual time in {:.2} s",
            quiet.seconds,
            start.elapsed().as_secs_f64()
        );
        let off = (quiet.seconds - planned.predicted.seconds_total).abs();
        assert!(off <= 1e-9 * quiet.seconds, "{quiet:?} for {:?}", planned.predicted);
        assert_eq!(quiet.high_water_bytes, planned.predicted.vram_peak_bytes);
        assert_eq!(quiet.copied_bytes, planned.predicted.copied_bytes);
        for seed in 0..3 {
            let faults = SimFaults { seed, copy_delay_seconds: 0.1, ..faults };
            simulated::run_with(&graph, &planned, costs.clone(), faults).expect("no hazard");
        }
    }
}

#[test]
fn a_plan_in_leaves_is_proved_quickly() {
    let graph = graphs::flux_dev(50);
    let plan = naive::plan(&graph, Style::Leaves(16));
    prove("leaves in 16 slots", &graph, &plan, &support::workspace_bytes);
    assert!(plan.computes.len() > 25_000, "{} computes", plan.computes.len());
}
