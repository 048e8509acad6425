//! The plan's figures, counted again: peak, bytes copied in a step and in the whole run.

use plimsoll_graph::Graph;
use plimsoll_plan::{ALIGNMENT, Plan};

use crate::Violation;
use crate::order::Loop;

pub(crate) fn check(graph: &Graph, plan: &Plan, step_loop: Option<&Loop>) -> Result<(), Violation> {
    residents(plan)?;
    same("side of a tile", plan.decode_tile.unwrap_or(0), graph.decode_tile.unwrap_or(0))?;
    let steady = step_loop.map(|step_loop| u32::from(step_loop.steps > 1));
    let mut copied_bytes = 0;
    let mut copied_bytes_per_step = 0;
    for copy in &plan.copies {
        let bytes = arriving_bytes(graph, plan, copy.load);
        copied_bytes += bytes;
        if copy.step.is_some() && copy.step == steady {
            copied_bytes_per_step += bytes;
        }
    }
    let predicted = &plan.predicted;
    same("VRAM peak in bytes", predicted.vram_peak_bytes, peak_bytes(plan))?;
    // `places` has shown that the sum is at most the line.
    let process_bytes = plan.arena_bytes + plan.reserved_bytes;
    same("VRAM of the process in bytes", predicted.vram_process_bytes, process_bytes)?;
    same("bytes copied per step", predicted.copied_bytes_per_step, copied_bytes_per_step)?;
    same("bytes copied", predicted.copied_bytes, copied_bytes)
}

fn same(what: &'static str, predicted: u64, recomputed: u64) -> Result<(), Violation> {
    if predicted == recomputed {
        Ok(())
    } else {
        Err(Violation::Prediction { what, predicted, recomputed })
    }
}

/// Bytes that one copy of a load brings: its weights, without the padding between them.
fn arriving_bytes(graph: &Graph, plan: &Plan, load: u32) -> u64 {
    let unit = &plan.units[plan.loads[load as usize].unit as usize];
    unit.weights.iter().map(|entry| graph.weight(entry.weight).bytes()).sum()
}

/// One past the highest byte of anything that is touched, rounded up: tensors of some op, workspaces, loads
/// that are copied. `places` has shown each to lie inside the arena, whose size is aligned.
fn peak_bytes(plan: &Plan) -> u64 {
    let loads = plan.copies.iter().map(|copy| &plan.loads[copy.load as usize].region);
    plan.tensors
        .iter()
        .chain(&plan.workspaces)
        .chain(loads)
        .filter(|region| region.bytes > 0)
        .map(|region| region.end().next_multiple_of(ALIGNMENT))
        .max()
        .unwrap_or(0)
}

/// A resident load is copied exactly once.
fn residents(plan: &Plan) -> Result<(), Violation> {
    let mut counts = vec![0; plan.loads.len()];
    for copy in &plan.copies {
        counts[copy.load as usize] += 1;
    }
    for (load, (entry, copies)) in plan.loads.iter().zip(counts).enumerate() {
        if entry.is_resident && copies != 1 {
            let unit = plan.units[entry.unit as usize].name.clone();
            return Err(Violation::ResidentCopies { load, unit, copies });
        }
    }
    Ok(())
}
