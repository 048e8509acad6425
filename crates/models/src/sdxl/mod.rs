//! SDXL base: two CLIP encoders, the UNet with both branches of guidance, the VAE.
//!
//! The graph has the shapes, bytes and operations of a run; running it waits for its ops.

mod text;
mod unet;

use plimsoll_graph::{DType, Dependence, Graph, LowerOptions};

use crate::paper::Paper;
use crate::video::{Tiles, VideoRun, picture_tiles};
use crate::{ModelError, VaeConfig};

/// Component names of an SDXL pipeline folder.
pub const CLIP_L: &str = "text_encoder";
/// See [`CLIP_L`].
pub const CLIP_G: &str = "text_encoder_2";
/// See [`CLIP_L`].
pub const UNET: &str = "unet";
/// See [`CLIP_L`].
pub const VAE: &str = "vae";

/// SDXL base 1.0: 2,567,463,684 parameters in the UNet.
///
/// Source: `UNet2DConditionModel` of diffusers with the configuration of SDXL base.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SdxlModel;

impl SdxlModel {
    /// Latent rows and columns.
    ///
    /// # Errors
    /// [`ModelError::Request`] for sizes that the model cannot take.
    pub fn latents(&self, run: &VideoRun) -> Result<[u64; 2], ModelError> {
        // Three levels halve the latent twice, the VAE eight times.
        run.check(32, false)?;
        Ok([run.height / 8, run.width / 8])
    }

    /// The decoder's tiles.
    ///
    /// # Errors
    /// As [`SdxlModel::latents`].
    pub fn tiles(&self, run: &VideoRun) -> Result<Tiles, ModelError> {
        picture_tiles(self.latents(run)?, run.tile)
    }

    /// The 4-channel VAE of SD and SDXL.
    pub fn vae() -> VaeConfig {
        VaeConfig {
            latent_channels: 4,
            scaling_factor: 0.130_25,
            shift_factor: None,
            use_post_quant_conv: true,
            ..VaeConfig::flux()
        }
    }

    /// The graph of a run: encode, hoist, denoise, decode.
    ///
    /// # Errors
    /// A request that does not fit, or sizes beyond the arithmetic.
    pub fn graph(&self, run: &VideoRun, paper: &Paper<'_>) -> Result<Graph, ModelError> {
        let size = self.latents(run)?;
        let mut b = paper.builder(run.dtype);
        let low = text::Encoder::clip_l().trace(&mut b, CLIP_L);
        let high = text::Encoder::clip_g().trace(&mut b, CLIP_G);
        let latent = unet::trace(&mut b, size, [low.states, high.states], high.pooled);
        let scale = {
            b.phase(plimsoll_graph::PhaseKind::Decode, "decode");
            let id = b.component(VAE);
            b.block(id, "vae.z");
            b.output("latent", latent);
            let factor = b.input("vae.scale", 1, 1, DType::F32, Dependence::Run);
            b.scale("z", latent, factor)
        };
        let [_, height, width] = self.tiles(run)?.size;
        let z = if [height, width] == size {
            scale
        } else {
            b.tile("tile", scale, height * width, Self::vae().latent_channels)
        };
        Self::vae().trace_pixels(&mut b, z, [height, width]);
        let options = LowerOptions { steps: run.steps, samples: run.samples, hoist: run.hoist };
        Ok(b.finish(&options)?)
    }
}
