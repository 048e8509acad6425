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
    is_fused: bool,
}

/// What a machine without fused attention keeps of scores at a time; at least those of one row.
const SCORES_MOST: u64 = 256 << 20;

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
            is_fused: true,
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

    /// The same without fused attention, as on cards before Ampere: scores are in memory, a piece of their rows after
    /// the other.
    #[must_use]
    pub fn without_fused_attention(self) -> Self {
        Self { is_fused: false, ..self }
    }

    /// Bytes of all scores of an attention that is not fused, and of one row of them.
    fn scores(&self, op: &Op) -> Option<[u64; 2]> {
        let (q, k, heads) = match &op.kind {
            OpKind::Attention { q, k, heads, .. }
            | OpKind::Planned(PlannedOp::GroupedAttention { q, k, heads, .. }) => (q, k, heads),
            _ => return None,
        };
        let row = heads.saturating_mul(k.rows).saturating_mul(4);
        (!self.is_fused).then(|| [row.saturating_mul(q.rows), row])
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
        let scores = self.scores(op).map_or(0, |[all, row]| all.min(SCORES_MOST).max(row));
        if matches!(op.kind, OpKind::Planned(_)) {
            return scores;
        }
        let unpacked = match Self::coded(graph, op) {
            Some((elements, coding)) if self.unpacks(coding) => 2 * elements,
            _ => 0,
        };
        self.inner.workspace_bytes(graph, op).max(scores) + unpacked
    }

    #[expect(clippy::cast_precision_loss, reason = "seconds are an estimate")]
    fn op_seconds(&self, graph: &Graph, op: &Op) -> f64 {
        let profile = self.inner.profile();
        if let Some([all, row]) = self.scores(op) {
            // Two products, and a softmax that reads and writes what they hand over.
            let pieces = (all / SCORES_MOST.max(row)).max(1) as f64;
            let rows = SCORES_MOST / row.max(1);
            let rates = profile.libraries.as_ref().unwrap_or(&profile.own);
            let products = op.flops(graph) as f64 / rates.gemm_flops_per_second(rows.max(1));
            return products + self.moved(4.0 * all as f64) + 3.0 * pieces * profile.launch_seconds;
        }
        let (flops, bytes) = (op.flops(graph) as f64, op.bytes(graph) as f64);
        if let OpKind::Planned(planned) = &op.kind {
            let rate = match planned {
                PlannedOp::Conv { .. } => profile.conv_flops_per_second,
                PlannedOp::GroupedAttention { .. } => {
                    profile.libraries.as_ref().unwrap_or(&profile.own).attention_flops_per_second
                }
                PlannedOp::LowRank { out, .. } => {
                    let rates = profile.libraries.as_ref().unwrap_or(&profile.own);
                    rates.gemm_flops_per_second(out.rows)
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
