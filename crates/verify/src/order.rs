//! Order within the lanes: every op once, in the graph's order, the loop unrolled; every weight at home.

use plimsoll_graph::{Graph, PhaseKind};
use plimsoll_plan::Plan;

use crate::Violation;

/// The computes of the step loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loop {
    /// Position of its first entry in the compute lane.
    pub(crate) start: usize,
    /// Entries of one step.
    pub(crate) length: usize,
    /// Steps.
    pub(crate) steps: u32,
}

impl Loop {
    /// Step of the loop that the compute at `position` belongs to, if it is in the loop.
    pub(crate) fn step_of(&self, position: usize, step: u32) -> Option<u32> {
        let end = self.start + self.length * self.steps as usize;
        (self.start..end).contains(&position).then_some(step)
    }
}

/// Checks visits, phases and the compute lane against the graph; gives the loop, if there is one.
pub(crate) fn check(graph: &Graph, plan: &Plan) -> Result<Option<Loop>, Violation> {
    visits(graph, plan)?;
    phases(graph, plan)?;
    weight_homes(graph, plan)?;
    computes(plan)
}

fn visits(graph: &Graph, plan: &Plan) -> Result<(), Violation> {
    let end = u32::try_from(graph.ops.len()).unwrap_or(u32::MAX);
    let mut expected = 0;
    for (index, visit) in plan.visits.iter().enumerate() {
        let goes_on = visit.ops_start == expected && visit.ops_end > visit.ops_start;
        if !goes_on || visit.ops_end > end {
            return Err(Violation::OpOrder {
                visit: index,
                ops_start: visit.ops_start,
                ops_end: visit.ops_end,
                expected,
            });
        }
        expected = visit.ops_end;
    }
    if expected == end {
        Ok(())
    } else {
        let visit = plan.visits.len();
        Err(Violation::OpOrder { visit, ops_start: end, ops_end: end, expected })
    }
}

/// The plan's phases are the graph's: same names, kinds and repeats over the same ops.
///
/// A plan may cut a phase into more or fewer visits than the graph does, but never across a phase's end.
fn phases(graph: &Graph, plan: &Plan) -> Result<(), Violation> {
    if plan.phases.len() != graph.phases.len() {
        return Err(Violation::Count {
            what: "phases",
            found: plan.phases.len(),
            expected: graph.phases.len(),
        });
    }
    let mut next_visit = 0;
    for (found, expected) in plan.phases.iter().zip(&graph.phases) {
        let differs = |what| Violation::Phase { phase: expected.name.clone(), what };
        if found.name != expected.name {
            return Err(differs("name"));
        }
        if found.kind != expected.kind {
            return Err(differs("kind"));
        }
        // A step past the graph's steps would select rows that no table has.
        if found.repeat != expected.repeat || found.repeat > graph.steps.max(1) {
            return Err(differs("repeat"));
        }
        let visits = found.visits_start as usize..found.visits_end as usize;
        if visits.start != next_visit || visits.is_empty() || visits.end > plan.visits.len() {
            return Err(differs("range of visits"));
        }
        next_visit = visits.end;
        let (Some(first), Some(last)) = (expected.visits.first(), expected.visits.last()) else {
            return Err(differs("range of visits"));
        };
        let first_op = plan.visits[visits.start].ops_start;
        let last_op = plan.visits[visits.end - 1].ops_end;
        if (first_op, last_op) != (first.ops_start, last.ops_end) {
            return Err(differs("range of ops"));
        }
    }
    if next_visit == plan.visits.len() {
        Ok(())
    } else {
        let phase = plan.phases.last().map_or_else(String::new, |phase| phase.name.clone());
        Err(Violation::Phase { phase, what: "range of visits" })
    }
}

fn weight_homes(graph: &Graph, plan: &Plan) -> Result<(), Violation> {
    for (index, visit) in plan.visits.iter().enumerate() {
        for op in &graph.ops[visit.ops_start as usize..visit.ops_end as usize] {
            let mut problem = None;
            op.for_each_weight(|id| {
                let homes = visit
                    .loads
                    .iter()
                    .flat_map(|load| &plan.units[plan.loads[*load as usize].unit as usize].weights)
                    .filter(|entry| entry.weight == *id)
                    .count();
                if homes != 1 {
                    problem.get_or_insert((*id, homes));
                }
            });
            if let Some((id, homes)) = problem {
                return Err(Violation::WeightHome {
                    op: op.name.clone(),
                    visit: index,
                    weight: graph.weight(id).name.clone(),
                    homes,
                });
            }
        }
    }
    Ok(())
}

/// The compute lane is `phases x repeat x visits`, in that nesting.
fn computes(plan: &Plan) -> Result<Option<Loop>, Violation> {
    let mut position = 0;
    let mut found_loop = None;
    for phase in &plan.phases {
        let length = (phase.visits_end - phase.visits_start) as usize;
        if phase.kind == PhaseKind::Denoise && found_loop.is_none() {
            found_loop = Some(Loop { start: position, length, steps: phase.repeat });
        }
        for expected_step in 0..phase.repeat {
            for expected_visit in phase.visits_start..phase.visits_end {
                let Some(entry) = plan.computes.get(position) else {
                    return Err(compute_count(plan));
                };
                if (entry.visit, entry.step) != (expected_visit, expected_step) {
                    return Err(Violation::ComputeOrder {
                        compute: position,
                        visit: entry.visit,
                        step: entry.step,
                        expected_visit,
                        expected_step,
                    });
                }
                position += 1;
            }
        }
    }
    if position == plan.computes.len() { Ok(found_loop) } else { Err(compute_count(plan)) }
}

fn compute_count(plan: &Plan) -> Violation {
    let expected = plan
        .phases
        .iter()
        .map(|phase| (phase.visits_end - phase.visits_start) as usize * phase.repeat as usize)
        .sum();
    Violation::Count { what: "computes", found: plan.computes.len(), expected }
}
