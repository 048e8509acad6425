//! The planner against the verifier: random graphs, lines and strategies.
//!
//! Every plan is proved. It then runs on the simulated device, first as it is, where the clock must agree with
//! the planner's own simulation, then with seeded delays on both lanes, where no hazard may show. Some run in
//! a real arena of bytes under random interleavings and must give what the graph says. At last a wait is left
//! out: where the verifier refuses the plan without that edge, the simulated device must find the hazard.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_device::DeviceError;
use plimsoll_device::sim::SimFaults;
use plimsoll_graph::Graph;
use plimsoll_plan::testing::{FlatMachine, Rng, random_graph};
use plimsoll_plan::{
    ALIGNMENT, Line, Machine, Offload, Plan, PlanError, Request, lower_bound, plan, simulate,
};
use plimsoll_verify::Violation;
use support::{oracle, simulated};

const GRAPHS: u64 = 10_000;
/// One graph in so many runs in a real arena, which takes longer than all the rest.
const ORACLE_EVERY: u64 = 100;

fn below(rng: &mut Rng, count: u64) -> usize {
    usize::try_from(rng.within(0, count.max(1) - 1)).expect("small")
}

fn machine(rng: &mut Rng) -> FlatMachine {
    FlatMachine {
        workspace_divisor: [0, 1, 8][below(rng, 3)],
        copy_bytes_per_second: 1e9 * rng.within(1, 50) as f64,
        flops_per_second: 1e9 * rng.within(1, 1000) as f64,
        copy_seconds_latency: 1e-9 * rng.within(0, 1000) as f64,
        copy_share: [0.0, 0.006, 0.5, 1.0][below(rng, 4)],
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

#[derive(Default)]
struct Counts {
    plans: AtomicU64,
    infeasible: AtomicU64,
    computes: AtomicU64,
    copies: AtomicU64,
    /// Edges left out that matter, and those of them that the simulated device found.
    planted: AtomicU64,
    found: AtomicU64,
}

fn verify(graph: &Graph, machine: &FlatMachine, plan: &Plan) -> Result<(), Violation> {
    let rule = |op: &_| machine.workspace_bytes(graph, op);
    plimsoll_verify::verify(graph, plan, machine.reserved_bytes, &rule).map(|_| ())
}

fn check(seed: u64, counts: &Counts) {
    let (graph, traits) = random_graph(seed);
    let mut rng = Rng::new(seed ^ 0x5EED);
    let machine = machine(&mut rng);
    let (offload, prefetch) = (offload(&mut rng), !rng.one_in(4));
    let bound = lower_bound(&graph, &machine);
    let weights: u64 = graph.weights.iter().map(|weight| weight.bytes()).sum();
    let line = bound / 2 + rng.within(1, weights + bound);
    let what = format!("seed {seed}, line {line}, {offload}, prefetch {prefetch}, {traits:?}");
    let at =
        |bytes| plan(&graph, &machine, &Request { line: Line::Bytes(bytes), offload, prefetch });
    let plan = match at(line) {
        Ok(plan) => plan,
        Err(PlanError::Infeasible { smallest_bytes, .. }) => {
            counts.infeasible.fetch_add(1, Ordering::Relaxed);
            let less = smallest_bytes - ALIGNMENT;
            assert!(less == 0 || at(less).is_err(), "{what}: {less} works");
            at(smallest_bytes).unwrap_or_else(|error| panic!("{what}: {error}"))
        }
        Err(error) => panic!("{what}: {error}"),
    };
    counts.plans.fetch_add(1, Ordering::Relaxed);
    counts.computes.fetch_add(plan.computes.len() as u64, Ordering::Relaxed);
    counts.copies.fetch_add(plan.copies.len() as u64, Ordering::Relaxed);
    verify(&graph, &machine, &plan).unwrap_or_else(|violation| panic!("{what}: {violation}"));
    on_the_simulated_device(&graph, &machine, &plan, seed, &what);
    if seed.is_multiple_of(ORACLE_EVERY) {
        oracle::agrees(&graph, &plan, &oracle::reference(&graph), 2)
            .unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    leave_out_an_edge(&graph, &machine, &plan, &mut rng, counts, &what);
}

fn on_the_simulated_device(
    graph: &Graph,
    machine: &FlatMachine,
    plan: &Plan,
    seed: u64,
    what: &str,
) {
    let costs = simulated::costs(graph, plan, machine);
    let run = |faults| {
        simulated::run_with(graph, plan, costs.clone(), faults)
            .unwrap_or_else(|error| panic!("{what}: {error}"))
    };
    let quiet = run(SimFaults::default());
    let timeline = simulate(graph, plan, machine);
    let off = (quiet.seconds - timeline.seconds_total).abs();
    assert!(
        off <= 1e-9 * timeline.seconds_total,
        "{what}: {} {}",
        quiet.seconds,
        timeline.seconds_total
    );
    assert_eq!(quiet.copied_bytes, plan.predicted.copied_bytes, "{what}");
    let steady = quiet.copied_bytes_by_step.get(1).or(quiet.copied_bytes_by_step.first());
    let has_loop = graph.phases.iter().any(|phase| phase.name == "denoise");
    if has_loop {
        assert_eq!(steady, Some(&plan.predicted.copied_bytes_per_step), "{what}");
    }
    assert_eq!(quiet.high_water_bytes, plan.predicted.vram_peak_bytes, "{what}");
    let most = timeline.seconds_total / 4.0;
    run(SimFaults { seed, copy_delay_seconds: most, ..SimFaults::default() });
    run(SimFaults { seed, copy_delay_seconds: most, op_delay_seconds: most, dropped_wait: None });
}

/// Takes back one edge by one entry. If the verifier minds, so must the device.
fn leave_out_an_edge(
    graph: &Graph,
    machine: &FlatMachine,
    plan: &Plan,
    rng: &mut Rng,
    counts: &Counts,
    what: &str,
) {
    let mut plan = plan.clone();
    if rng.one_in(2) && !plan.copies.is_empty() {
        let copy = below(rng, plan.copies.len() as u64);
        let after = &mut plan.copies[copy].after;
        *after = after.saturating_sub(1);
    } else {
        let compute = below(rng, plan.computes.len() as u64);
        let needs = &mut plan.computes[compute].needs;
        *needs = needs.saturating_sub(1);
    }
    match verify(graph, machine, &plan) {
        Ok(()) => {
            let harmless = simulated::run(graph, &plan, SimFaults::default());
            assert!(harmless.is_ok(), "{what}: accepted without an edge, but {harmless:?}");
        }
        Err(Violation::Race { .. }) => {
            counts.planted.fetch_add(1, Ordering::Relaxed);
            let found = simulated::run(graph, &plan, SimFaults::default());
            let is_found =
                matches!(found, Err(DeviceError::Hazard { .. } | DeviceError::WrongContent { .. }));
            counts.found.fetch_add(u64::from(is_found), Ordering::Relaxed);
        }
        // An earlier copy is then taken for the one that is needed, or the steady step is none.
        Err(_) => {}
    }
}

#[test]
fn ten_thousand_random_plans() {
    let (counts, next) = (Counts::default(), AtomicU64::new(0));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= GRAPHS {
                        break;
                    }
                    check(seed, &counts);
                }
            });
        }
    });
    let Counts { plans, infeasible, computes, copies, planted, found } = counts;
    let [plans, infeasible, computes, copies, planted, found] =
        [plans, infeasible, computes, copies, planted, found].map(AtomicU64::into_inner);
    println!(
        "{plans} plans proved ({infeasible} of them at the smallest line that an infeasible request \
         named), {computes} computes, {copies} copies; of {planted} edges taken back that mattered the \
         simulated device found {found}"
    );
    assert_eq!(plans, GRAPHS);
    // The device sees what ops touch, the verifier whole tensors and visits: it may refuse a little more.
    assert!(planted > GRAPHS / 20 && found * 100 >= planted * 98, "{found} of {planted}");
}
