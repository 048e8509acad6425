//! Proves a plan before it runs: a plain walk that knows the plan's data types and shares no code with the
//! planner.
//!
//! The planner is clever and may be wrong; this crate is neither meant to be clever nor allowed to be wrong. It
//! recomputes everything from the graph and the plan alone and believes no number that the planner derived.
//! Read in this order:
//!
//! 1. `places`: each region is aligned, inside the arena, as large as what it holds; units are sound;
//! 2. `order`: visits, phases and the compute lane are the graph with its loop unrolled; each weight that an
//!    op reads is in exactly one of the visit's loads;
//! 3. `lanes`: what the edges order, no deadlock;
//! 4. `race`: what the edges do not order touches different bytes, so every execution is equivalent to one;
//! 5. `operands`: within one op too;
//! 6. `contents`: in that one execution every read finds exactly what it should;
//! 7. `seam` and the figures: the steady step is periodic, predicted bytes are counted again.
//!
//! From 3 to 6 follows: a device that keeps each lane in order and honours the edges computes what the graph
//! says, at any speed of either lane, within `arena_bytes + reserved_bytes <= line_bytes`. `tests/` hold this against an
//! oracle that runs plans byte by byte under random interleavings, and against the simulated device.
//!
//! Not proved here: that the graph is the right model (golden tests), that a device's op stays inside its
//! operands (the device's tests), predicted seconds (a test against the simulated device).

#![forbid(unsafe_code)]
#![deny(clippy::cast_possible_truncation)]

mod cells;
mod contents;
mod figures;
mod lanes;
mod operands;
mod order;
mod places;
mod race;
mod seam;
mod violation;

use plimsoll_graph::{Graph, Op};
use plimsoll_plan::Plan;

pub use violation::Violation;

/// A plan that was proved. Only [`verify`] makes one; the executor takes no other.
#[derive(Clone, Copy, Debug)]
pub struct Verified<'p> {
    graph: &'p Graph,
    plan: &'p Plan,
}

impl<'p> Verified<'p> {
    /// The graph that the plan was proved for.
    pub fn graph(&self) -> &'p Graph {
        self.graph
    }

    /// The plan.
    pub fn plan(&self) -> &'p Plan {
        self.plan
    }
}

/// Proves a plan for a graph.
///
/// The other arguments are the device's own rules: `reserved_bytes`, what the process takes of it beside the arena, and
/// `workspace_bytes`, the scratch bytes that its implementation of an op needs.
///
/// Memory: some words for each op, each copy and each region that a visit touches. Time: about 10 ms for
/// FLUX.1-dev with 50 steps, be it 20,000 visits in leaves.
///
/// # Errors
/// The first [`Violation`] in the order of the checks above.
pub fn verify<'p>(
    graph: &'p Graph,
    plan: &'p Plan,
    reserved_bytes: u64,
    workspace_bytes: &dyn Fn(&Op) -> u64,
) -> Result<Verified<'p>, Violation> {
    graph.validate().map_err(Violation::Graph)?;
    places::check(graph, plan, reserved_bytes, workspace_bytes)?;
    let step_loop = order::check(graph, plan)?;
    let lanes = lanes::Lanes::new(plan)?;
    race::check(graph, plan, &lanes)?;
    operands::check(graph, plan)?;
    contents::check(graph, plan, &lanes, step_loop.as_ref())?;
    if let Some(step_loop) = &step_loop {
        seam::check(plan, &lanes, step_loop)?;
    }
    figures::check(graph, plan, step_loop.as_ref())?;
    Ok(Verified { graph, plan })
}

/// Name of the unit that the copy at a position brings.
fn unit_name(plan: &Plan, copy: usize) -> String {
    let load = &plan.loads[plan.copies[copy].load as usize];
    plan.units[load.unit as usize].name.clone()
}
