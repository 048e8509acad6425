//! An independent lower bound: no plan can be smaller, however its offsets are chosen.
//!
//! This shares no code with the planner on purpose: it is what the planner's smallest line is held against.

use plimsoll_graph::Graph;

use crate::machine::Machine;
use crate::types::ALIGNMENT;

/// The most bytes that any single op needs at once: every tensor that must be kept then, the op's workspace, and
/// the weights that it reads, each rounded up to [`ALIGNMENT`]; and what the process takes beside the arena.
///
/// Saturates where the sizes do not fit.
pub fn lower_bound(graph: &Graph, machine: &dyn Machine) -> u64 {
    let unit = |bytes: u64| bytes.div_ceil(ALIGNMENT).saturating_mul(ALIGNMENT);
    let size =
        |rows: u64, cols: u64, width: u64| unit(rows.saturating_mul(cols).saturating_mul(width));
    let lifetimes = graph.lifetimes();
    let mut most = 0;
    for (at, op) in graph.ops.iter().enumerate() {
        let mut bytes = unit(machine.workspace_bytes(graph, op));
        for (tensor, lifetime) in graph.tensors.iter().zip(&lifetimes) {
            if lifetime.is_some_and(|(first, last)| (first as usize..=last as usize).contains(&at))
            {
                let tensor_bytes = size(tensor.rows, tensor.cols, tensor.dtype.bytes());
                bytes = bytes.saturating_add(tensor_bytes);
            }
        }
        let mut seen = Vec::new();
        op.for_each_weight(|id| {
            if !seen.contains(id) {
                seen.push(*id);
                bytes = bytes.saturating_add(unit(graph.weight(*id).bytes()));
            }
        });
        most = most.max(bytes);
    }
    most.saturating_add(machine.reserved_bytes())
}
