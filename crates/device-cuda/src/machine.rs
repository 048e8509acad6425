//! A card as a planner sees it.

use plimsoll_cuda_kernels::{
    Arch, AttentionBackend, Backends, GemmBackend, graph_shapes, workspace_bytes,
};
use plimsoll_graph::{Activation, Graph, Op, OpKind};
use plimsoll_plan::Machine;
use sha2::{Digest, Sha256};

use crate::profile::{CardProfile, Rates};

/// Every architecture, to find one by its name in a profile.
const ARCHES: [Arch; 6] =
    [Arch::Sm80, Arch::Sm86, Arch::Sm89, Arch::Sm90a, Arch::Sm100a, Arch::Sm120a];

/// A card, or the profile of one that is not there.
///
/// Workspace sizes follow from shapes and [`Backends`]; the arithmetic's name holds the kernels' digest and the
/// libraries' versions, since these decide bits. Seconds come from the profile.
#[derive(Clone, Debug)]
pub struct CudaMachine {
    profile: CardProfile,
    backends: Backends,
    arithmetic: String,
    vram_bytes: u64,
    reserved_bytes: u64,
}

impl CudaMachine {
    /// A card with a profile's memory; `libraries` names those in use as [`crate::loader::Libraries::arithmetic`]
    /// does (" cublaslt 13.1.0 cudnn 9.19.0", or nothing).
    pub fn new(profile: CardProfile, backends: Backends, libraries: &str) -> Self {
        let digest = ARCHES.into_iter().find(|arch| arch.name() == profile.arch).map(digest);
        let arithmetic = format!(
            "cuda {} {}{libraries}",
            profile.arch,
            digest.as_deref().unwrap_or("no kernels")
        );
        let (vram_bytes, reserved_bytes) = (profile.vram_bytes, profile.reserved_bytes);
        Self { profile, backends, arithmetic, vram_bytes, reserved_bytes }
    }

    /// The same with memory as a card that is there has it.
    #[must_use]
    pub fn with_memory(self, vram_bytes: u64, reserved_bytes: u64) -> Self {
        Self { vram_bytes, reserved_bytes, ..self }
    }

    /// The card's rates.
    pub fn profile(&self) -> &CardProfile {
        &self.profile
    }

    /// What computes products and attention.
    pub fn backends(&self) -> Backends {
        self.backends
    }

    fn rates(&self, is_library: bool) -> &Rates {
        match &self.profile.libraries {
            Some(libraries) if is_library => libraries,
            _ => &self.profile.own,
        }
    }

    /// Seconds to move bytes of device memory.
    fn moved(&self, bytes: f64) -> f64 {
        bytes / self.profile.memory_bytes_per_second
    }
}

/// First half of the SHA-256 of an architecture's images with their names.
fn digest(arch: Arch) -> String {
    let mut hash = Sha256::new();
    for cubin in arch.cubins() {
        hash.update((cubin.name.len() as u64).to_le_bytes());
        hash.update(cubin.name);
        hash.update((cubin.image.len() as u64).to_le_bytes());
        hash.update(cubin.image);
    }
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

impl Machine for CudaMachine {
    fn name(&self) -> &str {
        &self.profile.name
    }

    fn arithmetic(&self) -> &str {
        &self.arithmetic
    }

    fn vram_bytes(&self) -> u64 {
        self.vram_bytes
    }

    fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    fn workspace_bytes(&self, graph: &Graph, op: &Op) -> u64 {
        workspace_bytes(&graph_shapes(graph, op), self.backends)
    }

    #[expect(clippy::cast_precision_loss, reason = "seconds are an estimate")]
    fn op_seconds(&self, graph: &Graph, op: &Op) -> f64 {
        let flops = op.flops(graph) as f64;
        let bytes = op.bytes(graph) as f64;
        let passes = extra_passes(&op.kind, self.backends.gemm);
        let (launches, seconds) = match &op.kind {
            OpKind::Linear { x, out, .. } => {
                let rates = self.rates(self.backends.gemm == GemmBackend::CublasLt);
                let sums = flops / rates.gemm_flops_per_second(x.rows);
                let width = graph.tensor(out.tensor).dtype.bytes();
                let again = (out.rows * out.cols * width) as f64 * passes.operands;
                (1 + passes.launches, sums.max(self.moved(bytes)) + self.moved(again))
            }
            OpKind::Attention { q, heads, causal, bias, .. } => {
                let is_library = self.backends.attention == AttentionBackend::Cudnn
                    && matches!(q.cols / (*heads).max(1), 64 | 128)
                    && !causal
                    && bias.is_none();
                let rate = self.rates(is_library).attention_flops_per_second;
                (1, (flops / rate).max(self.moved(bytes)))
            }
            OpKind::Conv3x3 { .. } => {
                (1, (flops / self.profile.conv_flops_per_second).max(self.moved(bytes)))
            }
            // Statistics are a pass of their own.
            OpKind::GroupNorm { .. } => (2, self.moved(1.5 * bytes)),
            OpKind::Input { .. } | OpKind::Gather { .. } | OpKind::Output { .. } => {
                (1, self.profile.copy_seconds + bytes / self.profile.link_bytes_per_second)
            }
            _ => (1, self.moved(bytes)),
        };
        f64::from(launches) * self.profile.launch_seconds + seconds
    }

    #[expect(clippy::cast_precision_loss, reason = "seconds are an estimate")]
    fn copy_seconds(&self, bytes: u64, segments: u64) -> f64 {
        segments as f64 * self.profile.copy_seconds
            + bytes as f64 / self.profile.link_bytes_per_second
    }

    fn copy_share(&self) -> f64 {
        self.profile.copy_share
    }
}

/// What a linear layer does after its product.
struct Passes {
    launches: u32,
    /// Operands of the result's size that are read or written.
    operands: f64,
}

/// cuBLASLt takes a bias, GELU and a plain residual with the product; a gate or another activation is a pass of
/// its own over the result. Own kernels take everything.
fn extra_passes(kind: &OpKind, backend: GemmBackend) -> Passes {
    let none = Passes { launches: 0, operands: 0.0 };
    let OpKind::Linear { activation, residual, .. } = kind else { return none };
    if backend == GemmBackend::Own {
        return none;
    }
    let is_gated = residual.as_ref().is_some_and(|residual| residual.gate.is_some());
    let is_fused = matches!(activation, Activation::None | Activation::GeluTanh);
    match (is_gated, is_fused) {
        (false, true) => none,
        // The product is written and read once more; base and result count already.
        _ => Passes { launches: 1, operands: 2.0 },
    }
}
