//! What the planner asks about a machine.

use plimsoll_graph::{Graph, Op};

/// Rates and rules of a device, fixed before planning.
///
/// Implementations are pure: the same op gives the same answer, whatever the clock or free memory. Workspace
/// sizes are part of a plan and so of its id; seconds are not.
pub trait Machine {
    /// Name, as reports quote it.
    fn name(&self) -> &str;

    /// Name of the arithmetic: kernels, libraries and versions that decide the bits of results.
    ///
    /// It is part of a plan and its id: runs of one arithmetic give the same bits, whatever the placement.
    fn arithmetic(&self) -> &str {
        self.name()
    }

    /// Bytes of device memory that there are; a line in percent refers to them.
    fn vram_bytes(&self) -> u64;

    /// Bytes of device memory that the process takes beside the arena: context, loaded code, libraries, a margin.
    ///
    /// Part of a plan and so of its id; the line is for both together.
    fn reserved_bytes(&self) -> u64 {
        0
    }

    /// Scratch bytes that the device's implementation of the op needs while it runs.
    fn workspace_bytes(&self, graph: &Graph, op: &Op) -> u64;

    /// Seconds of the op on the compute lane.
    fn op_seconds(&self, graph: &Graph, op: &Op) -> f64;

    /// Seconds of one copy of `bytes` in `segments` pieces on the copy lane.
    fn copy_seconds(&self, bytes: u64, segments: u64) -> f64;

    /// What a copy costs the compute lane: the share of its speed, 0 to 1, that ops lose while one is in flight.
    ///
    /// About 0 on a card with copy engines of its own; much on a CPU whose workers fill the cores that copy.
    fn copy_share(&self) -> f64 {
        0.0
    }
}
