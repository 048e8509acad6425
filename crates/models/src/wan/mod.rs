//! Wan 2.1, text to video: UMT5, the transformer with both branches of guidance, the causal video VAE.
//!
//! The graph has the shapes, bytes and operations of a run; running it waits for its ops. Where it differs from the
//! reference in what it would compute: the columns of a packed token are in FLUX.1's order and the latents are not
//! rescaled by channel (both are permutations or scalings of weights at load), and the sampler is Euler's, where the
//! reference keeps two predictions more (19 MB at 720p).

mod transformer;
mod vae;

use plimsoll_graph::{Builder, Coding, DType, Graph, LowerOptions};

use crate::video::{Tiles, VideoRun};
use crate::{ModelError, T5Config};

/// Component names of a Wan pipeline folder.
pub const UMT5: &str = "text_encoder";
/// See [`UMT5`].
pub const TRANSFORMER: &str = "transformer";
/// See [`UMT5`].
pub const VAE: &str = "vae";

/// Length of a prompt.
const TEXT_TOKENS: u64 = 512;

/// Sizes of the Wan 2.1 transformer.
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
    /// `coding(component, block)` says how matrices are kept.
    ///
    /// # Errors
    /// A request that does not fit, or sizes beyond the arithmetic.
    pub fn graph(
        &self,
        run: &VideoRun,
        coding: &dyn Fn(&str, &str) -> Coding,
    ) -> Result<Graph, ModelError> {
        let [frames, rows, cols] = self.tokens(run)?;
        let tiles = self.tiles(run)?;
        let mut b = Builder::new(run.dtype, &|_, _| DType::BF16).with_coding(coding);
        let text = T5Config::umt5_xxl();
        let contexts = text.trace_prompts(&mut b, UMT5, TEXT_TOKENS, true, ["", ".negative"]);
        let latent = transformer::Transformer {
            config: self,
            tokens: frames * rows * cols,
            chunks: run.row_chunks,
        }
        .trace(&mut b, contexts);
        vae::trace(&mut b, VAE, latent, [frames, 2 * rows, 2 * cols], tiles.size);
        let options = LowerOptions { steps: run.steps, samples: run.samples, hoist: run.hoist };
        Ok(b.finish(&options)?)
    }
}
