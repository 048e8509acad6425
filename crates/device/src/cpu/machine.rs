//! What a planner asks about the CPU device.

use plimsoll_graph::{Graph, Op, OpKind};
use plimsoll_plan::Machine;

use super::workspace::{bound_shapes, graph_shapes, workspace_bytes};
use crate::Mat;

/// The CPU device as a planner sees it.
#[derive(Clone, Debug)]
pub struct CpuMachine {
    workers: usize,
    vram_bytes: u64,
}

impl CpuMachine {
    /// tmp
    pub fn new(workers: usize, vram_bytes: u64) -> Self {
        Self { workers, vram_bytes }
    }
    /// tmp
    pub fn default_rates(workers: usize) -> Self {
        Self { workers, vram_bytes: 16 << 30 }
    }
    /// tmp
    pub fn with_vram_bytes(self, vram_bytes: u64) -> Self {
        Self { vram_bytes, ..self }
    }
    /// tmp
    pub fn calibrate(_graph: &Graph, workers: usize) -> Self {
        Self::default_rates(workers)
    }
}

/// Scratch of an op with addresses: what [`Machine::workspace_bytes`] says for the same op of a graph.
pub fn bound_workspace_bytes(op: &OpKind<Mat, Mat>) -> u64 {
    workspace_bytes(&bound_shapes(op))
}

impl Machine for CpuMachine {
    fn name(&self) -> &str {
        "cpu"
    }

    fn vram_bytes(&self) -> u64 {
        self.vram_bytes
    }

    fn workspace_bytes(&self, graph: &Graph, op: &Op) -> u64 {
        workspace_bytes(&graph_shapes(graph, op))
    }

    fn op_seconds(&self, graph: &Graph, op: &Op) -> f64 {
        1e-6 + op.flops(graph) as f64 / 1e11 / self.workers as f64
    }

    fn copy_seconds(&self, bytes: u64, _segments: u64) -> f64 {
        bytes as f64 / 5e9
    }
}
