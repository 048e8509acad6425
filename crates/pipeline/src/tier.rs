//! Where streamed weights come from: RAM, or the disk where RAM is short.
//!
//! Known before anything runs: the plan says which weights are copied again and again, the system how much RAM is
//! free for them. Where it is too little, what fits stays in RAM and the rest is read from the disk in every step, at
//! the rate that the disk was measured to have; the plan is made for that rate, and says so. The bits are the same.

use std::collections::BTreeSet;
use std::time::Duration;

use plimsoll_graph::{Graph, Op};
use plimsoll_host::{DiskFiles, READERS, memory};
use plimsoll_plan::{Bytes, Machine, Plan};

use crate::assembled::{Assembled, catalog};
use crate::failure::PipelineError;
use crate::host_limits::{HostLimits, HostTier};

/// How long the disk is measured.
const MEASURED: Duration = Duration::from_millis(300);

/// Windows, pinned or not, and what else a run takes of RAM.
const OWN_BYTES: u64 = 512 << 20;

/// What of the streamed weights comes from the disk, and how fast.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskShare {
    /// Bytes of files that are copied again and again.
    pub streamed_bytes: u64,
    /// What of RAM is for them.
    pub ram_bytes: u64,
    /// Measured rate of the disk.
    pub bytes_per_second: f64,
}

impl DiskShare {
    /// Bytes that come from the disk in each step.
    pub fn disk_bytes(&self) -> u64 {
        self.streamed_bytes.saturating_sub(self.ram_bytes)
    }

    /// Share of the streamed bytes that comes from the disk.
    #[expect(clippy::cast_precision_loss, reason = "seconds are an estimate")]
    fn share(&self) -> f64 {
        if self.streamed_bytes == 0 {
            return 1.0;
        }
        self.disk_bytes() as f64 / self.streamed_bytes as f64
    }

    /// The figures by name.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "streamed_bytes": self.streamed_bytes,
            "ram_bytes": self.ram_bytes,
            "disk_bytes": self.disk_bytes(),
            "bytes_per_second": self.bytes_per_second,
        })
    }

    /// The one line for a person.
    pub fn notice(&self, seconds_per_step: f64) -> String {
        format!(
            "{} of RAM are for weights and {} are streamed: {} a step come from the disk at {:.2} GB/s; predicted \
             {seconds_per_step:.3} s a step",
            Bytes(self.ram_bytes),
            Bytes(self.streamed_bytes),
            Bytes(self.disk_bytes()),
            self.bytes_per_second / 1e9,
        )
    }
}

/// A machine whose copies come from the disk in part: on average each waits for its share.
pub(crate) struct DiskMachine<'m> {
    pub(crate) machine: &'m dyn Machine,
    pub(crate) disk: DiskShare,
}

impl Machine for DiskMachine<'_> {
    fn name(&self) -> &str {
        self.machine.name()
    }

    fn arithmetic(&self) -> &str {
        self.machine.arithmetic()
    }

    fn vram_bytes(&self) -> u64 {
        self.machine.vram_bytes()
    }

    fn reserved_bytes(&self) -> u64 {
        self.machine.reserved_bytes()
    }

    fn workspace_bytes(&self, graph: &Graph, op: &Op) -> u64 {
        self.machine.workspace_bytes(graph, op)
    }

    fn op_seconds(&self, graph: &Graph, op: &Op) -> f64 {
        self.machine.op_seconds(graph, op)
    }

    #[expect(clippy::cast_precision_loss, reason = "seconds are an estimate")]
    fn copy_seconds(&self, bytes: u64, segments: u64) -> f64 {
        let disk = bytes as f64 * self.disk.share() / self.disk.bytes_per_second;
        self.machine.copy_seconds(bytes, segments).max(disk)
    }

    fn copy_share(&self) -> f64 {
        self.machine.copy_share()
    }
}

impl Assembled {
    /// States what runs may use of the host; free RAM decides where nothing is stated.
    pub fn limit_host(&mut self, limits: HostLimits) {
        self.host_limits = limits;
    }

    /// What of a plan's weights has to come from the disk; `None` where RAM holds all, or nothing is on a disk.
    ///
    /// # Errors
    /// A file that cannot be read, where the disk is measured.
    pub(crate) fn disk_share(
        &self,
        graph: &Graph,
        plan: &Plan,
    ) -> Result<Option<DiskShare>, PipelineError> {
        let HostLimits { tier, ram_bytes, shares_ram } = self.host_limits;
        if matches!(tier, HostTier::Mapped | HostTier::Pinned) || self.host.mappings().is_empty() {
            return Ok(None);
        }
        let streamed_bytes = self.streamed_bytes(graph, plan)?;
        let ram_bytes = match (tier, ram_bytes) {
            (_, Some(stated)) => stated,
            (HostTier::Disk, None) => 0,
            (_, None) => {
                let Some(free) = memory::available_bytes() else { return Ok(None) };
                let arena = if shares_ram { plan.arena_bytes } else { 0 };
                // An eighth is left to others.
                (free - free / 8).saturating_sub(OWN_BYTES.saturating_add(arena))
            }
        };
        if tier == HostTier::Auto && streamed_bytes <= ram_bytes {
            return Ok(None);
        }
        let bytes_per_second = match self.disk_rate.get() {
            Some(rate) => *rate,
            None => {
                let disk = DiskFiles::open(&self.host.mappings())?;
                let rate = disk.measure(READERS, MEASURED)?.unwrap_or(f64::INFINITY);
                *self.disk_rate.get_or_init(|| rate)
            }
        };
        Ok(Some(DiskShare { streamed_bytes, ram_bytes, bytes_per_second }))
    }

    /// Bytes of files whose weights are copied more than once in a run.
    fn streamed_bytes(&self, graph: &Graph, plan: &Plan) -> Result<u64, PipelineError> {
        let (mut once, mut again) = (BTreeSet::new(), BTreeSet::new());
        for copy in &plan.copies {
            let unit = plan.loads[copy.load as usize].unit;
            if !once.insert(unit) {
                again.insert(unit);
            }
        }
        let mut bytes = 0;
        for unit in again {
            for placed in &plan.units[unit as usize].weights {
                let weight = graph.weight(placed.weight);
                let name = &graph.components[weight.component.index()].name;
                let catalog = catalog(&self.checkpoint, name)?;
                let parts = weight.parts.iter().filter_map(|part| catalog.get(&part.entry));
                bytes += parts.map(plimsoll_weights::Entry::bytes).sum::<u64>();
            }
        }
        Ok(bytes)
    }
}
