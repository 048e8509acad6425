//! A machine that plans what no device runs yet: coded weights, and ops that have no kernels.
//!
//! For everything that runs it is [`CudaMachine`], so that a forecast of FLUX.1 in bf16 is the plan of its run.

use plimsoll_cuda_kernels::{Arch, Backends};
use plimsoll_device_cuda::CudaMachine;
use plimsoll_graph::{Coding, Graph, Op, OpKind, PlannedOp};
use plimsoll_plan::Machine;

use crate::machines::Known;

/// A card on a bus, with host memory and a disk behind it.
#[derive(Clone, Debug)]
pub struct Forecast {
    inner: CudaMachine,
    fp8_speedup: Option<f64>,
    vram_bytes: u64,
    link_bytes_per_second: f64,
}

impl Forecast {
    /// The card of a profile with its libraries.
    pub fn new(known: &Known) -> Self {
        Self::with_backends(known, Backends::libraries(Arch::named(&known.profile.arch)))
    }

    /// The card of a profile with given kernels.
    pub fn with_backends(known: &Known, backends: Backends) -> Self {
        Self {
            fp8_speedup: known.fp8_speedup,
            vram_bytes: known.profile.vram_bytes,
            link_bytes_per_second: known.profile.link_bytes_per_second,
            inner: CudaMachine::new(known.profile.clone(), backends, ""),
        }
    }

    /// The same with another amount of device memory, to see what a plan would take that does not fit.
    #[must_use]
    pub fn with_vram(self, vram_bytes: u64) -> Self {
        Self { vram_bytes, ..self }
    }

    /// The same with weights that come no faster than a disk gives them.
    #[must_use]
    pub fn behind(self, bytes_per_second: f64) -> Self {
        let link = self.link_bytes_per_second.min(bytes_per_second);
        Self { link_bytes_per_second: link, ..self }
    }

    /// Bytes a second that weights come with.
    pub fn link_bytes_per_second(&self) -> f64 {
        self.link_bytes_per_second
    }

    fn moved(&self, bytes: f64) -> f64 {
        bytes / self.inner.profile().memory_bytes_per_second
    }

    /// Elements of a matrix that is not kept plain, and how.
    fn coded(graph: &Graph, op: &Op) -> Option<(u64, Coding)> {
        let OpKind::Linear { weight, .. } = &op.kind else { return None };
        let weight = graph.weight(*weight);
        (weight.coding != Coding::Plain).then_some((weight.rows * weight.cols, weight.coding))
    }

    /// Whether the op unpacks its weights to bf16 first.
    fn unpacks(&self, coding: Coding) -> bool {
        match coding {
            Coding::Plain => false,
            Coding::Fp8 => self.fp8_speedup.is_none(),
            Coding::Nf4 => true,
        }
    }
}

impl Machine for Forecast {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn arithmetic(&self) -> &str {
        self.inner.arithmetic()
    }

    fn vram_bytes(&self) -> u64 {
        self.vram_bytes
    }

    fn reserved_bytes(&self) -> u64 {
        self.inner.reserved_bytes()
    }

    fn workspace_bytes(&self, graph: &Graph, op: &Op) -> u64 {
        if matches!(op.kind, OpKind::Planned(_)) {
            return 0;
        }
        let unpacked = match Self::coded(graph, op) {
            Some((elements, coding)) if self.unpacks(coding) => 2 * elements,
            _ => 0,
        };
        self.inner.workspace_bytes(graph, op) + unpacked
    }

    #[expect(clippy::cast_precision_loss, reason = "seconds are an estimate")]
    fn op_seconds(&self, graph: &Graph, op: &Op) -> f64 {
        let profile = self.inner.profile();
        let (flops, bytes) = (op.flops(graph) as f64, op.bytes(graph) as f64);
        if let OpKind::Planned(planned) = &op.kind {
            let rate = match planned {
                PlannedOp::Conv { .. } => profile.conv_flops_per_second,
                PlannedOp::GroupedAttention { .. } => {
                    profile.libraries.as_ref().unwrap_or(&profile.own).attention_flops_per_second
                }
                _ => f64::INFINITY,
            };
            return profile.launch_seconds + (flops / rate).max(self.moved(bytes));
        }
        let seconds = self.inner.op_seconds(graph, op);
        let Some((elements, coding)) = Self::coded(graph, op) else { return seconds };
        let OpKind::Linear { x, .. } = &op.kind else { return seconds };
        if self.unpacks(coding) {
            // The coded bytes are in the product's; what is unpacked is written once and read once.
            return seconds + profile.launch_seconds + self.moved(4.0 * elements as f64);
        }
        let rates = profile.libraries.as_ref().unwrap_or(&profile.own);
        let (rate, floor) = (rates.gemm_flops_per_second(x.rows), self.moved(bytes));
        let faster = rate * self.fp8_speedup.unwrap_or(1.0);
        let saved = (flops / rate).max(floor) - (flops / faster).max(floor);
        // Its rows are scaled and cast first.
        seconds - saved + profile.launch_seconds + self.moved((3 * x.rows * x.cols) as f64)
    }

    #[expect(clippy::cast_precision_loss, reason = "seconds are an estimate")]
    fn copy_seconds(&self, bytes: u64, segments: u64) -> f64 {
        segments as f64 * self.inner.profile().copy_seconds
            + bytes as f64 / self.link_bytes_per_second
    }

    fn copy_share(&self) -> f64 {
        self.inner.copy_share()
    }
}
