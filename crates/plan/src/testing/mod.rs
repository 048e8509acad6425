//! For tests of this room and of those that read plans: a machine with flat rates and random graphs.
//!
//! Behind the feature `testing`, so that no build of the program carries it.

mod graphs;
mod rng;

pub use graphs::{GraphTraits, random_graph};
pub use rng::Rng;

use plimsoll_graph::{Graph, Op, OpKind};

use crate::machine::Machine;

/// A machine whose times follow from four numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct FlatMachine {
    /// Bytes of device memory.
    pub vram_bytes: u64,
    /// Floating-point operations a second.
    pub flops_per_second: f64,
    /// Bytes of device memory that ops read and write a second.
    pub memory_bytes_per_second: f64,
    /// Bytes that the copy lane moves a second.
    pub copy_bytes_per_second: f64,
    /// Seconds added to each copy.
    pub copy_seconds_latency: f64,
    /// Linear layers, attention and convolutions need their output's bytes divided by this as workspace; 0 for
    /// none.
    pub workspace_divisor: u64,
    /// Bytes of device memory beside the arena.
    pub reserved_bytes: u64,
    /// Share of the compute lane's speed that a copy in flight takes.
    pub copy_share: f64,
}

impl FlatMachine {
    /// A fast card on a fast bus, by round numbers: 600 TFLOP/s, 4 TB/s, 55 GB/s, 8 us.
    pub fn server() -> Self {
        Self {
            vram_bytes: 140 << 30,
            flops_per_second: 600e12,
            memory_bytes_per_second: 4e12,
            copy_bytes_per_second: 55e9,
            copy_seconds_latency: 8e-6,
            workspace_divisor: 8,
            reserved_bytes: 0,
            copy_share: 0.0,
        }
    }

    /// A small card on a slower bus: 50 TFLOP/s, 400 GB/s, 24 GB/s, 8 us.
    pub fn desktop() -> Self {
        Self {
            vram_bytes: 12 << 30,
            flops_per_second: 50e12,
            memory_bytes_per_second: 4e11,
            copy_bytes_per_second: 24e9,
            copy_seconds_latency: 8e-6,
            workspace_divisor: 8,
            reserved_bytes: 0,
            copy_share: 0.0,
        }
    }
}

impl Machine for FlatMachine {
    fn name(&self) -> &str {
        "flat"
    }

    fn vram_bytes(&self) -> u64 {
        self.vram_bytes
    }

    fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    fn workspace_bytes(&self, graph: &Graph, op: &Op) -> u64 {
        let out = match &op.kind {
            OpKind::Linear { out, .. }
            | OpKind::Attention { out, .. }
            | OpKind::Conv3x3 { out, .. } => out,
            _ => return 0,
        };
        let bytes = out.rows * out.cols * graph.tensor(out.tensor).dtype.bytes();
        bytes.checked_div(self.workspace_divisor).unwrap_or(0)
    }

    fn op_seconds(&self, graph: &Graph, op: &Op) -> f64 {
        let compute = op.flops(graph) as f64 / self.flops_per_second;
        compute.max(op.bytes(graph) as f64 / self.memory_bytes_per_second)
    }

    fn copy_seconds(&self, bytes: u64, _segments: u64) -> f64 {
        self.copy_seconds_latency + bytes as f64 / self.copy_bytes_per_second
    }

    fn copy_share(&self) -> f64 {
        self.copy_share
    }
}
