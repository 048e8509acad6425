//! Places: every region of the plan lies inside the arena, aligned, and is as large as what it is for.
//!
//! Everything here is about one table entry at a time. Whether two places may share bytes is a question of
//! time, which `race` and `contents` answer.

use plimsoll_graph::{Graph, Op};
use plimsoll_plan::{ALIGNMENT, Plan, Region};

use crate::Violation;

/// The plan format that is checked here.
pub(crate) const VERSION: u32 = 2;

/// Tables have the graph's lengths, indices point into their tables, regions are sound.
pub(crate) fn check(
    graph: &Graph,
    plan: &Plan,
    reserved_bytes: u64,
    workspace_bytes: &dyn Fn(&Op) -> u64,
) -> Result<(), Violation> {
    if plan.version != VERSION {
        return Err(Violation::Version { found: plan.version, known: VERSION });
    }
    count("places of tensors", plan.tensors.len(), graph.tensors.len())?;
    count("workspaces", plan.workspaces.len(), graph.ops.len())?;
    indices(graph, plan)?;
    if plan.reserved_bytes < reserved_bytes {
        return Err(Violation::ReserveTooSmall {
            reserved_bytes: plan.reserved_bytes,
            needed: reserved_bytes,
        });
    }
    let process_bytes = plan.arena_bytes.checked_add(plan.reserved_bytes);
    if process_bytes.is_none_or(|bytes| bytes > plan.line_bytes) {
        return Err(Violation::OverLine {
            arena_bytes: plan.arena_bytes,
            reserved_bytes: plan.reserved_bytes,
            line_bytes: plan.line_bytes,
        });
    }
    aligned(|| "the arena's size".to_owned(), plan.arena_bytes)?;
    tensors(graph, plan)?;
    workspaces(graph, plan, workspace_bytes)?;
    units(graph, plan)?;
    for (index, load) in plan.loads.iter().enumerate() {
        let unit = &plan.units[load.unit as usize];
        let what = || format!("load {index} of unit {}", unit.name);
        size(what, load.region.bytes, unit.bytes)?;
        inside(what, load.region, plan.arena_bytes)?;
    }
    Ok(())
}

fn count(what: &'static str, found: usize, expected: usize) -> Result<(), Violation> {
    if found == expected { Ok(()) } else { Err(Violation::Count { what, found, expected }) }
}

fn index_in(
    what: impl FnOnce() -> String,
    table: &'static str,
    index: u32,
    len: usize,
) -> Result<(), Violation> {
    if (index as usize) < len {
        Ok(())
    } else {
        Err(Violation::Index { what: what(), table, index, len })
    }
}

fn size(what: impl FnOnce() -> String, found: u64, expected: u64) -> Result<(), Violation> {
    if found == expected { Ok(()) } else { Err(Violation::Size { what: what(), found, expected }) }
}

fn aligned(what: impl FnOnce() -> String, offset: u64) -> Result<(), Violation> {
    if offset.is_multiple_of(ALIGNMENT) {
        Ok(())
    } else {
        Err(Violation::Misaligned { what: what(), offset, alignment: ALIGNMENT })
    }
}

fn inside(what: impl Fn() -> String, region: Region, arena_bytes: u64) -> Result<(), Violation> {
    aligned(&what, region.offset)?;
    let Region { offset, bytes } = region;
    if offset.checked_add(bytes).is_some_and(|end| end <= arena_bytes) {
        Ok(())
    } else {
        Err(Violation::OutsideArena { what: what(), offset, bytes, arena_bytes })
    }
}

/// Every index of the plan points to an entry, so that what follows may index without asking.
fn indices(graph: &Graph, plan: &Plan) -> Result<(), Violation> {
    for unit in &plan.units {
        let what = || format!("unit {}", unit.name);
        index_in(what, "block", unit.block.0, graph.blocks.len())?;
        for entry in &unit.weights {
            index_in(what, "weight", entry.weight.0, graph.weights.len())?;
        }
    }
    for (index, load) in plan.loads.iter().enumerate() {
        index_in(|| format!("load {index}"), "unit", load.unit, plan.units.len())?;
    }
    for (index, visit) in plan.visits.iter().enumerate() {
        for load in &visit.loads {
            index_in(|| format!("visit {index}"), "load", *load, plan.loads.len())?;
        }
    }
    for (index, copy) in plan.copies.iter().enumerate() {
        index_in(|| format!("copy {index}"), "load", copy.load, plan.loads.len())?;
    }
    for (index, compute) in plan.computes.iter().enumerate() {
        index_in(|| format!("compute {index}"), "visit", compute.visit, plan.visits.len())?;
    }
    Ok(())
}

/// A tensor that an op touches has exactly its bytes, any other none.
fn tensors(graph: &Graph, plan: &Plan) -> Result<(), Violation> {
    let mut is_touched = vec![false; graph.tensors.len()];
    for op in &graph.ops {
        op.for_each_view(|view, _| is_touched[view.tensor.index()] = true);
    }
    for ((tensor, region), is_touched) in graph.tensors.iter().zip(&plan.tensors).zip(is_touched) {
        let what = || format!("tensor {}", tensor.name);
        size(what, region.bytes, if is_touched { tensor.bytes() } else { 0 })?;
        inside(what, *region, plan.arena_bytes)?;
    }
    Ok(())
}

fn workspaces(
    graph: &Graph,
    plan: &Plan,
    workspace_bytes: &dyn Fn(&Op) -> u64,
) -> Result<(), Violation> {
    for (op, region) in graph.ops.iter().zip(&plan.workspaces) {
        let needed = workspace_bytes(op);
        if region.bytes < needed {
            let op = op.name.clone();
            return Err(Violation::WorkspaceTooSmall { op, bytes: region.bytes, needed });
        }
        inside(|| format!("workspace of op {}", op.name), *region, plan.arena_bytes)?;
    }
    Ok(())
}

/// Weights of a unit are of its block, ascending, aligned, apart, and fill it to its end.
fn units(graph: &Graph, plan: &Plan) -> Result<(), Violation> {
    for unit in &plan.units {
        let block = &graph.blocks[unit.block.index()];
        let mut end = 0u64;
        for entry in &unit.weights {
            let weight = graph.weight(entry.weight);
            if !block.weights.contains(&entry.weight) {
                return Err(Violation::UnitForeign {
                    unit: unit.name.clone(),
                    weight: weight.name.clone(),
                    block: block.name.clone(),
                });
            }
            aligned(|| format!("weight {} in unit {}", weight.name, unit.name), entry.offset)?;
            if entry.offset < end {
                return Err(Violation::UnitOverlap {
                    unit: unit.name.clone(),
                    weight: weight.name.clone(),
                    offset: entry.offset,
                    previous_end: end,
                });
            }
            end = entry.offset.checked_add(weight.bytes()).ok_or_else(|| Violation::Size {
                what: format!("unit {}", unit.name),
                found: unit.bytes,
                expected: u64::MAX,
            })?;
        }
        size(|| format!("unit {}", unit.name), unit.bytes, end)?;
    }
    Ok(())
}
