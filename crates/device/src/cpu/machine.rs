//! What a planner asks about the CPU device: scratch, seconds, memory.

use std::collections::HashMap;

use plimsoll_graph::{Graph, Op, OpKind};
use plimsoll_plan::Machine;

use super::rates::Rates;
use super::signature::Signature;
use super::workspace::{Work, bound_shapes, graph_shapes};
use crate::Mat;

/// The CPU device as a planner sees it.
///
/// Workspace sizes follow from the ops alone and are the same for every machine and number of workers. Seconds
/// come from a measurement of the very op ([`CpuMachine::calibrate`]) where there is one, else from [`Rates`].
#[derive(Clone, Debug)]
pub struct CpuMachine {
    workers: usize,
    vram_bytes: u64,
    rates: Rates,
    measured: HashMap<Signature, f64>,
}

impl CpuMachine {
    /// A machine with the rates of [`Rates::default`], for `workers` threads and all of the host's memory.
    pub fn default_rates(workers: usize) -> Self {
        Self::with_rates(workers, Rates::default())
    }

    /// A machine with rates of its own.
    pub fn with_rates(workers: usize, rates: Rates) -> Self {
        let workers = workers.max(1);
        Self { workers, vram_bytes: host_memory_bytes(), rates, measured: HashMap::new() }
    }

    /// The same with another size of device memory, which a line in percent refers to.
    #[must_use]
    pub fn with_vram_bytes(self, vram_bytes: u64) -> Self {
        Self { vram_bytes, ..self }
    }

    /// The same with seconds of ops that were measured.
    pub(crate) fn with_measured(
        self,
        rates: Rates,
        measured: impl IntoIterator<Item = (Signature, f64)>,
    ) -> Self {
        Self { rates, measured: measured.into_iter().collect(), ..self }
    }

    /// Worker threads that the seconds are for.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Rates of what was not measured.
    pub fn rates(&self) -> &Rates {
        &self.rates
    }

    /// How many distinct ops were measured.
    pub fn measured_count(&self) -> usize {
        self.measured.len()
    }
}

/// Scratch of an op with addresses: what [`Machine::workspace_bytes`] says for the same op of a graph.
pub fn bound_workspace_bytes(op: &OpKind<Mat, Mat>) -> u64 {
    Work::of(&bound_shapes(op)).workspace_bytes()
}

impl Machine for CpuMachine {
    fn name(&self) -> &str {
        "cpu"
    }

    /// Raised whenever an op's bits change.
    fn arithmetic(&self) -> &str {
        "cpu 1"
    }

    fn vram_bytes(&self) -> u64 {
        self.vram_bytes
    }

    fn workspace_bytes(&self, graph: &Graph, op: &Op) -> u64 {
        Work::of(&graph_shapes(graph, op)).workspace_bytes()
    }

    fn op_seconds(&self, graph: &Graph, op: &Op) -> f64 {
        if !self.measured.is_empty()
            && let Some(seconds) = self.measured.get(&Signature::of(graph, op))
        {
            return *seconds;
        }
        self.rates.op_seconds(&graph_shapes(graph, op), self.workers)
    }

    fn copy_seconds(&self, bytes: u64, segments: u64) -> f64 {
        self.rates.copy_seconds(bytes, segments)
    }

    fn copy_share(&self) -> f64 {
        self.rates.copy_share
    }
}

/// Memory of the host, or 8 GiB where it does not say.
fn host_memory_bytes() -> u64 {
    let from_kernel = || {
        let text = std::fs::read_to_string("/proc/meminfo").ok()?;
        let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
        let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
        kib.checked_mul(1024)
    };
    from_kernel().unwrap_or(8 << 30)
}
