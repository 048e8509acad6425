//! A card as a planner sees it.

use plimsoll_cuda_kernels::{
    Arch, AttentionBackend, Backends, NarrowBackend, graph_shapes, is_narrow_product,
    unpacked_bytes, workspace_bytes,
};
use plimsoll_graph::{Activation, Graph, Op, OpKind, Residual};
use plimsoll_plan::Machine;
use sha2::{Digest, Sha256};

use crate::profile::{CardProfile, Rates};

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
        let digest = Arch::named(&profile.arch).map(digest);
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
        let (launches, seconds) = match &op.kind {
            OpKind::Linear { x, activation, residual, out, .. }
                if is_narrow_product(&graph_shapes(graph, op), self.backends) =>
            {
                let is_library = self.backends.narrow == NarrowBackend::CublasLtRows;
                let product = flops / self.rates(is_library).narrow_flops_per_second(x.rows);
                // `x` is read and written in half as many bytes; the product adds a residual, unless it is a library's and
                // an activation is between.
                let width = graph.tensor(out.tensor).dtype.bytes();
                let quantized = (x.rows * x.cols * (width + 1)) as f64;
                let passed = (out.rows * out.cols * width) as f64 * 3.0;
                let is_after = is_library && residual.is_some() && *activation != Activation::None;
                let passes = u32::from(is_after);
                let after = f64::from(passes) * self.moved(passed);
                (2 + passes, product.max(self.moved(bytes)) + self.moved(quantized) + after)
            }
            OpKind::Linear { x, activation, residual, out, .. } => {
                // A library's product asks for scratch; what asks for none is an own kernel's, all of it.
                let unpacked = unpacked_bytes(&graph_shapes(graph, op));
                let is_library = self.workspace_bytes(graph, op) > unpacked;
                let rate = self.rates(is_library).gemm_flops_per_second(x.rows);
                let product = (flops / rate).max(self.moved(bytes));
                let after = if is_library { passes(*activation, residual.as_ref()) } else { 0.0 };
                let width = graph.tensor(out.tensor).dtype.bytes();
                let passed = (out.rows * out.cols * width) as f64 * after;
                // One byte is read and two are written.
                let unpacking = self.moved(unpacked as f64 * 1.5);
                let launches = 1 + u32::from(after > 0.0) + u32::from(unpacked > 0);
                (launches, product + self.moved(passed) + unpacking)
            }
            OpKind::Attention { q, k, heads, causal, bias, .. } => {
                let is_whole = matches!(q.cols / (*heads).max(1), 64 | 128);
                let is_library = self.backends.attention == AttentionBackend::Cudnn
                    && is_whole
                    && !causal
                    && bias.is_none();
                if is_whole {
                    let rate = self.rates(is_library).attention_flops_per_second;
                    (1, (flops / rate).max(self.moved(bytes)))
                } else {
                    // Two products and a softmax over scores that are in memory.
                    let scores = (heads * q.rows * k.rows * 4) as f64;
                    let products = flops / self.profile.own.gemm_flops_per_second(q.rows);
                    (3, products + self.moved(4.0 * scores))
                }
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

/// How often a result is read or written after its product by a library, which takes a bias, GELU and a plain
/// residual with it: a gate, or an activation of another kind, is a pass of its own.
fn passes(activation: Activation, residual: Option<&Residual>) -> f64 {
    let is_fused = matches!(activation, Activation::None | Activation::GeluTanh);
    match residual {
        None if is_fused => 0.0,
        None => 2.0,
        Some(residual) if residual.gate.is_none() && activation == Activation::None => 0.0,
        // The product and the base are read, the result is written.
        Some(_) => 3.0,
    }
}
