//! Random graphs, lines and strategies: a plan fits its line, or the smallest line that is named works and one
//! allocation unit less does not; and that line is near a bound that knows nothing of the planner.
//!
//! Takes about 40 s on two cores. That the plans are sound is proved by `verify`, whose tests run over the same graphs.
#![allow(clippy::expect_used, reason = "a test")]

use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_graph::Graph;
use plimsoll_plan::testing::{FlatMachine, Rng, random_graph};
use plimsoll_plan::{ALIGNMENT, Line, Machine, Offload, PlanError, Request, lower_bound, plan};

const GRAPHS: u64 = 10_000;

fn machine(rng: &mut Rng) -> FlatMachine {
    FlatMachine {
        workspace_divisor: [0, 1, 8][usize::try_from(rng.within(0, 2)).expect("small")],
        copy_bytes_per_second: 1e9 * rng.within(1, 50) as f64,
        flops_per_second: 1e9 * rng.within(1, 1000) as f64,
        copy_seconds_latency: 1e-9 * rng.within(0, 1000) as f64,
        copy_share: [0.0, 0.006, 0.5, 1.0][usize::try_from(rng.within(0, 3)).expect("small")],
        reserved_bytes: rng.within(0, 1) * rng.within(0, 1 << 20),
        ..FlatMachine::server()
    }
}

fn offload(rng: &mut Rng) -> Offload {
    match rng.within(0, 9) {
        0 => Offload::None,
        1 => Offload::Model,
        2 => Offload::Sequential,
        3 => Offload::Group { blocks: u32::try_from(rng.within(1, 5)).expect("small") },
        _ => Offload::Auto,
    }
}

/// Checks one graph; gives the smallest line of `auto` and the bound.
fn check(seed: u64) -> (u64, u64) {
    let (graph, traits) = random_graph(seed);
    let mut rng = Rng::new(!seed);
    let machine = machine(&mut rng);
    let (offload, prefetch) = (offload(&mut rng), !rng.one_in(4));
    let what = format!("seed {seed}, {offload}, prefetch {prefetch}, {traits:?}");
    let bound = lower_bound(&graph, &machine);
    let weights: u64 = graph.weights.iter().map(|weight| weight.bytes()).sum();
    let line = bound / 2 + rng.within(1, weights + bound);
    let smallest = fits(&graph, &machine, line, offload, prefetch, &what);
    let least = Request { line: Line::Min, offload: Offload::Auto, prefetch };
    let least = plan(&graph, &machine, &least).expect(&what).line_bytes;
    assert!(least >= bound, "{what}: {least} is under the bound {bound}");
    assert!(smallest.is_none_or(|any| any == least), "{what}: {smallest:?}, {least}");
    (least, bound)
}

/// Checks one request; gives the smallest line of `auto` as the error names it, if there is an error.
fn fits(
    graph: &Graph,
    machine: &dyn Machine,
    line: u64,
    offload: Offload,
    prefetch: bool,
    what: &str,
) -> Option<u64> {
    let at = |bytes| plan(graph, machine, &Request { line: Line::Bytes(bytes), offload, prefetch });
    match at(line) {
        Ok(plan) => {
            let process_bytes = plan.predicted.vram_process_bytes;
            assert!(process_bytes <= line && plan.line_bytes == line, "{what}");
            assert_eq!(process_bytes, plan.arena_bytes + machine.reserved_bytes(), "{what}");
            assert_eq!(plan.predicted.vram_peak_bytes, plan.arena_bytes, "{what}");
            assert!(!line.is_multiple_of(8) || Ok(plan) == at(line), "{what}: not the same twice");
            None
        }
        Err(PlanError::Infeasible { line_bytes, smallest_bytes, smallest_any_bytes, .. }) => {
            assert!(line_bytes == line && smallest_bytes > line, "{what}");
            let least = at(smallest_bytes).expect(what);
            assert!(least.predicted.vram_process_bytes <= smallest_bytes, "{what}");
            let less = smallest_bytes - ALIGNMENT;
            assert!(less == 0 || at(less).is_err(), "{what}: {less} works too");
            Some(smallest_any_bytes)
        }
        Err(error) => panic!("{what}: {error}"),
    }
}

#[test]
fn ten_thousand_graphs_and_lines() {
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let next = AtomicU64::new(0);
    let mut ratios: Vec<(f64, u64)> = std::thread::scope(|scope| {
        let work = || {
            let mut ratios = Vec::new();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= GRAPHS {
                    return ratios;
                }
                let (least, bound) = check(seed);
                ratios.push((least as f64 / bound as f64, seed));
            }
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a failed graph")).collect()
    });
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    let at = |share: f64| ratios[((ratios.len() - 1) as f64 * share) as usize];
    println!(
        "smallest line over the bound: median {:?}, 99 % {:?}, worst {:?}",
        at(0.5),
        at(0.99),
        at(1.0)
    );
    assert!(at(0.5).0 <= 1.05, "median {:?}", at(0.5));
}
