//! HunyuanVideo, text to video: Llama and CLIP, the token refiner, the transformer, the causal video VAE.
//!
//! The graph has the shapes, bytes and operations of a run; running it waits for its ops. Where it differs from the
//! reference in what it would compute: the prompt is taken at its full length (the reference leaves padding out of
//! attention), and the masked mean of the text states is their first row.

mod transformer;
mod vae;

use plimsoll_graph::{Graph, LowerOptions};

use crate::language::LLAMA_3_8B;
use crate::paper::Paper;
use crate::video::{Tiles, VideoRun};
use crate::{ClipConfig, ModelError};

/// Component names of a HunyuanVideo pipeline folder.
pub const LLAMA: &str = "text_encoder";
/// See [`LLAMA`].
pub const CLIP: &str = "text_encoder_2";
/// See [`LLAMA`].
pub const TRANSFORMER: &str = "transformer";
/// See [`LLAMA`].
pub const VAE: &str = "vae";

/// Length of a prompt that the transformer sees.
pub const TEXT_TOKENS: u64 = 256;

/// Tokens of the template around a prompt.
const TEMPLATE_TOKENS: u64 = 95;

/// Latent frames and side of the decoder's tile where none is asked for: 16 frames of 256 pixels, as the reference.
const TILE: [u64; 2] = [5, 32];

/// Sizes of the HunyuanVideo transformer.
///
/// Source: `HYVideoDiffusionTransformer` of the HunyuanVideo repository, diffusers for the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HunyuanModel {
    /// Heads of 128.
    pub heads: u64,
    /// Double-stream blocks.
    pub double_blocks: u64,
    /// Single-stream blocks.
    pub single_blocks: u64,
    /// Blocks of the token refiner.
    pub refiner_blocks: u64,
}

impl HunyuanModel {
    /// The published model: 12,821,012,544 parameters in the transformer.
    pub fn t2v() -> Self {
        Self { heads: 24, double_blocks: 20, single_blocks: 40, refiner_blocks: 2 }
    }

    /// Width of the residual stream.
    pub fn hidden(&self) -> u64 {
        self.heads * 128
    }

    /// Tokens of the picture: latent frames by rows and columns of 16 pixels.
    ///
    /// # Errors
    /// [`ModelError::Request`] for sizes that the model cannot take.
    pub fn tokens(&self, run: &VideoRun) -> Result<[u64; 3], ModelError> {
        run.check(16, true)?;
        Ok([run.latent_frames(), run.height / 16, run.width / 16])
    }

    /// The decoder's tiles: 5 latent frames of 32 x 32, of which three quarters are new on each axis, as the reference.
    ///
    /// # Errors
    /// As [`HunyuanModel::tokens`].
    pub fn tiles(&self, run: &VideoRun) -> Result<Tiles, ModelError> {
        let [frames, rows, cols] = self.tokens(run)?;
        let side = if run.tile == 0 { TILE[1] } else { (run.tile / 8).max(4) };
        let ([h, w], stride) = ([2 * rows, 2 * cols], side * 3 / 4);
        let time = TILE[0] - 1;
        let count = frames.div_ceil(time * 3 / 4) * h.div_ceil(stride) * w.div_ceil(stride);
        Ok(Tiles { size: [TILE[0].min(frames), side.min(h), side.min(w)], count })
    }

    /// The graph of a run: encode, hoist, denoise, decode of one tile.
    ///
    /// # Errors
    /// A request that does not fit, or sizes beyond the arithmetic.
    pub fn graph(&self, run: &VideoRun, paper: &Paper<'_>) -> Result<Graph, ModelError> {
        let [frames, rows, cols] = self.tokens(run)?;
        let tiles = self.tiles(run)?;
        let mut b = paper.builder(run.dtype);
        let pooled = ClipConfig::vit_l().trace(&mut b, CLIP);
        // The prompt stands in a template, which is cropped afterwards.
        let states = LLAMA_3_8B.trace(&mut b, LLAMA, TEXT_TOKENS + TEMPLATE_TOKENS);
        let states = states.slice_rows(TEMPLATE_TOKENS, TEXT_TOKENS);
        let transformer = transformer::Transformer {
            config: self,
            image_tokens: frames * rows * cols,
            chunks: run.row_chunks,
        };
        let latent = transformer.trace(&mut b, states, pooled);
        vae::trace(&mut b, VAE, latent, [frames, 2 * rows, 2 * cols], tiles.size);
        let options = LowerOptions { steps: run.steps, samples: run.samples, hoist: run.hoist };
        Ok(b.finish(&options)?)
    }
}
