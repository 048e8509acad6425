//! Concurrency: what may run at the same time touches different bytes.
//!
//! Only a copy and a visit can be concurrent, since each lane is in order. For each copy this walks the visits
//! that may run beside it (`lanes`) and asks whether one touches a byte of its target, reading or writing:
//! its tensors, its workspaces, all of the loads that it names.
//!
//! With every conflicting pair ordered, all executions of the lanes give the same result as any one order
//! that respects the edges. `contents` then needs to walk just one such order.
//!
//! A tensor counts as touched from its first to its last byte, however little of it a visit uses: the step of
//! a view does not matter here and what a visit touches is the same in every step.

use plimsoll_graph::Graph;
use plimsoll_plan::{Plan, Region};

use crate::Violation;
use crate::lanes::Lanes;

pub(crate) fn check(graph: &Graph, plan: &Plan, lanes: &Lanes) -> Result<(), Violation> {
    let touched: Vec<Vec<Region>> =
        plan.visits.iter().map(|visit| touched_by(graph, plan, visit)).collect();
    for (copy, (entry, window)) in plan.copies.iter().zip(lanes.windows()).enumerate() {
        let target = plan.loads[entry.load as usize].region;
        for compute in window {
            let regions = &touched[plan.computes[compute].visit as usize];
            // The first that ends behind the target's begin is the only one that can hold that byte or the next.
            let next = regions.partition_point(|region| region.end() <= target.offset);
            if regions.get(next).is_some_and(|region| region.overlaps(&target)) {
                return Err(race(graph, plan, copy, compute));
            }
        }
    }
    Ok(())
}

/// All that a visit touches, ascending; regions that meet or overlap are one.
fn touched_by(graph: &Graph, plan: &Plan, visit: &plimsoll_plan::Visit) -> Vec<Region> {
    let mut regions: Vec<Region> =
        visit.loads.iter().map(|load| plan.loads[*load as usize].region).collect();
    for op in visit.ops_start as usize..visit.ops_end as usize {
        regions.push(plan.workspaces[op]);
        graph.ops[op].for_each_view(|view, _| regions.push(plan.tensors[view.tensor.index()]));
    }
    regions.retain(|region| region.bytes > 0);
    regions.sort_unstable_by_key(|region| region.offset);
    regions.dedup_by(|next, before| {
        let meets = next.offset <= before.end();
        if meets {
            before.bytes = before.bytes.max(next.end() - before.offset);
        }
        meets
    });
    regions
}

/// Finds the op and operand that two concurrent entries meet in, for the message.
fn race(graph: &Graph, plan: &Plan, copy: usize, compute: usize) -> Violation {
    let target = plan.loads[plan.copies[copy].load as usize].region;
    let entry = plan.computes[compute];
    let visit = &plan.visits[entry.visit as usize];
    let mut hit: Option<(usize, u64, String)> = None;
    let mut meet = |op: usize, region: Region, operand: &dyn Fn() -> String| {
        if hit.is_none() && region.overlaps(&target) {
            hit = Some((op, region.offset.max(target.offset), operand()));
        }
    };
    for op in visit.ops_start as usize..visit.ops_end as usize {
        meet(op, plan.workspaces[op], &|| "its workspace".to_owned());
        graph.ops[op].for_each_view(|view, _| {
            meet(op, plan.tensors[view.tensor.index()], &|| {
                format!("tensor {}", graph.tensor(view.tensor).name)
            });
        });
    }
    for load in &visit.loads {
        let load = &plan.loads[*load as usize];
        meet(visit.ops_start as usize, load.region, &|| {
            format!("load of unit {}", plan.units[load.unit as usize].name)
        });
    }
    let (op, offset, operand) = hit.unwrap_or((visit.ops_start as usize, 0, String::new()));
    Violation::Race {
        copy,
        unit: crate::unit_name(plan, copy),
        compute,
        op: graph.ops[op].name.clone(),
        step: entry.step,
        offset,
        operand,
    }
}
