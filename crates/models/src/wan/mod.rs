//! Wan 2.1 and 2.2 A14B, text to video: UMT5, the transformer with both branches of guidance, the causal video VAE.
//!
//! The graph has the shapes, bytes and operations of a run; running it waits for its ops. Where it differs from the
//! reference in what it would compute: the columns of a packed token are in FLUX.1's order and the latents are not
//! rescaled by channel (both are permutations or scalings of weights at load), and the sampler is Euler's, where the
//! reference keeps two predictions more (19 MB at 720p).

mod transformer;
mod vae;

use plimsoll_graph::{Builder, Dependence, Graph, LowerOptions, PhaseKind, Value};

use crate::paper::Paper;
use crate::video::{Tiles, VideoRun};
use crate::{ModelError, T5Config};

/// Component names of a Wan pipeline folder.
pub const UMT5: &str = "text_encoder";
/// See [`UMT5`].
pub const TRANSFORMER: &str = "transformer";
/// The second expert of Wan 2.2; see [`UMT5`].
pub const TRANSFORMER_2: &str = "transformer_2";
/// See [`UMT5`].
pub const VAE: &str = "vae";

/// Length of a prompt.
const TEXT_TOKENS: u64 = 512;

/// Width of an encoded prompt.
const TEXT_DIM: u64 = 4096;

/// Which transformer of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expert {
    /// The only one (Wan 2.1).
    Only,
    /// The first of Wan 2.2: from the prompt to a latent that is half done.
    HighNoise,
    /// The second of Wan 2.2: from there to the film.
    LowNoise,
}

/// Sizes of the Wan 2.1 transformer, and of each expert of Wan 2.2 A14B.
///
/// Source: `WanModel` of the Wan 2.1 repository, `WanTransformer3DModel` of diffusers for the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WanModel {
    /// Width of the residual stream.
    pub dim: u64,
    /// Width of the feed-forward layers.
    pub ffn_dim: u64,
    /// Heads of 128.
    pub heads: u64,
    /// Blocks.
    pub layers: u64,
}

impl WanModel {
    /// T2V 14B: 14,288,491,584 parameters in the transformer.
    pub fn t2v_14b() -> Self {
        Self { dim: 5120, ffn_dim: 13_824, heads: 40, layers: 40 }
    }

    /// T2V 1.3B: 1,418,996,800 parameters in the transformer.
    pub fn t2v_1_3b() -> Self {
        Self { dim: 1536, ffn_dim: 8960, heads: 12, layers: 30 }
    }

    /// Tokens of a step: latent frames by rows and columns of 16 pixels.
    ///
    /// # Errors
    /// [`ModelError::Request`] for sizes that the model cannot take.
    pub fn tokens(&self, run: &VideoRun) -> Result<[u64; 3], ModelError> {
        run.check(16, true)?;
        Ok([run.latent_frames(), run.height / 16, run.width / 16])
    }

    /// The decoder's tiles: a latent frame at a time, as the causal VAE takes them.
    ///
    /// # Errors
    /// As [`WanModel::tokens`].
    pub fn tiles(&self, run: &VideoRun) -> Result<Tiles, ModelError> {
        let [frames, rows, cols] = self.tokens(run)?;
        let (side, [h, w]) = (run.tile / 8, [2 * rows, 2 * cols]);
        if side == 0 || (side >= h && side >= w) {
            return Ok(Tiles { size: [1, h, w], count: frames });
        }
        // Of a tile's side, three quarters are new, as in the reference.
        let stride = (side * 3 / 4).max(1);
        let count = frames * h.div_ceil(stride) * w.div_ceil(stride);
        Ok(Tiles { size: [1, side.min(h), side.min(w)], count })
    }

    /// The graph of a run: encode, hoist, denoise, decode of one tile.
    ///
    /// # Errors
    /// A request that does not fit, or sizes beyond the arithmetic.
    pub fn graph(&self, run: &VideoRun, paper: &Paper<'_>) -> Result<Graph, ModelError> {
        self.expert_graph(run, paper, Expert::Only)
    }

    /// The graph of one expert's part of a run; `run.steps` are that expert's.
    ///
    /// # Errors
    /// As [`WanModel::graph`].
    pub fn expert_graph(
        &self,
        run: &VideoRun,
        paper: &Paper<'_>,
        expert: Expert,
    ) -> Result<Graph, ModelError> {
        let [frames, rows, cols] = self.tokens(run)?;
        let tiles = self.tiles(run)?;
        let mut b = paper.builder(run.dtype);
        let contexts = match expert {
            Expert::LowNoise => handed_over(&mut b),
            Expert::Only | Expert::HighNoise => {
                let text = T5Config::umt5_xxl();
                text.trace_prompts(&mut b, UMT5, TEXT_TOKENS, true, ["", ".negative"])
            }
        };
        let component = if expert == Expert::LowNoise { TRANSFORMER_2 } else { TRANSFORMER };
        let latent = transformer::Transformer {
            config: self,
            tokens: frames * rows * cols,
            chunks: run.row_chunks,
        }
        .trace(&mut b, component, contexts);
        if expert == Expert::HighNoise {
            let id = b.component_of_block();
            b.phase(PhaseKind::Decode, "handover");
            b.block(id, "handover");
            b.output("latent", latent);
            for (name, context) in CONTEXTS.into_iter().zip(contexts) {
                b.output(name, context);
            }
        } else {
            vae::trace(&mut b, VAE, latent, [frames, 2 * rows, 2 * cols], tiles.size);
        }
        let options = LowerOptions { steps: run.steps, samples: run.samples, hoist: run.hoist };
        Ok(b.finish(&options)?)
    }
}

/// Encoded prompts that an expert hands to the next.
const CONTEXTS: [&str; 2] = ["context", "context.negative"];

/// The encoded prompts as the host kept them.
fn handed_over(b: &mut Builder<'_>) -> [Value; 2] {
    let id = b.component(UMT5);
    b.phase(PhaseKind::Encode, "handover");
    b.block(id, "handover");
    CONTEXTS.map(|name| b.input(name, TEXT_TOKENS, TEXT_DIM, b.dtype(), Dependence::Run))
}

/// Steps of the high-noise expert of Wan 2.2 T2V A14B out of all: those at a noise level of 0.875 and above, with the
/// schedule shifted by 12.
pub fn high_noise_steps(steps: u32) -> u32 {
    let (boundary, shift) = (0.875, 12.0);
    let level = |step: u32| {
        let t = 1.0 - f64::from(step) / f64::from(steps);
        shift * t / (1.0 + (shift - 1.0) * t)
    };
    u32::try_from((0..steps).filter(|step| level(*step) >= boundary).count()).unwrap_or(steps)
}
