//! FLUX.1: T5 and CLIP, the transformer, the VAE, and the graph of a run.

mod config;
mod control;
mod step;
mod transformer;

use plimsoll_graph::{Builder, DType, Graph, LowerOptions};

pub use config::FluxConfig;

use crate::config::check;
use crate::paper::Paper;
use crate::tiles::{EDGE_TOKENS_MIN, are_few};
use crate::video::{Tiles, picture_tiles};
use crate::{ClipConfig, ModelError, T5Config, VaeConfig};

/// Component names of a FLUX pipeline folder.
pub const CLIP: &str = "text_encoder";
/// See [`CLIP`].
pub const T5: &str = "text_encoder_2";
/// See [`CLIP`].
pub const TRANSFORMER: &str = "transformer";
/// See [`CLIP`].
pub const VAE: &str = "vae";

/// Largest picture side, in pixels.
const SIDE_MAX: u64 = 16_384;
/// Largest number of steps.
const STEPS_MAX: u32 = 1_000;
/// Largest number of pictures made together.
pub const SAMPLES_MAX: u32 = 64;

/// Whether a tensor is a matrix that may be stored in 8 bits: those of the transformer's blocks that every token passes
/// in every step, of attention and feed-forward layers.
///
/// Everything else keeps its type. Biases and norms are small. Embedders and the last layer stand where an error has
/// nothing to average out against, and take 1 % of the bytes. Modulation (`norm*.linear`, 27 % of the bytes) is computed
/// once a run, for one row a step: it takes no byte out of the step loop, and an error in a shift, scale or gate is every
/// token's.
pub fn is_block_matrix(component: &str, entry: &str) -> bool {
    const BLOCKS: [&str; 2] = ["transformer_blocks.", "single_transformer_blocks."];
    const LAYERS: [&str; 6] =
        [".attn.to_", ".attn.add_", ".ff.net.", ".ff_context.net.", ".proj_mlp.", ".proj_out."];
    let is_in_block = BLOCKS.iter().any(|begin| entry.starts_with(begin));
    let is_layer = LAYERS.iter().any(|layer| entry.contains(layer));
    component == TRANSFORMER && is_in_block && is_layer && entry.ends_with(".weight")
}

/// The networks of a FLUX.1 pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct FluxModel {
    /// CLIP text encoder.
    pub clip: ClipConfig,
    /// T5 encoder.
    pub t5: T5Config,
    /// Transformer.
    pub transformer: FluxConfig,
    /// VAE.
    pub vae: VaeConfig,
}

/// What a run asks of the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FluxRun {
    /// Picture width in pixels, a multiple of 16.
    pub width: u64,
    /// Picture height in pixels, a multiple of 16.
    pub height: u64,
    /// Steps.
    pub steps: u32,
    /// Pictures made together from one prompt.
    pub samples: u32,
    /// Length of the T5 sequence.
    pub text_tokens: u64,
    /// Dtype of activations.
    pub dtype: DType,
    /// Take out of the step loop what does not depend on the latent.
    pub hoist: bool,
    /// Most pixels of a side of the tiles in which the picture is decoded, a multiple of a token's; whole where absent.
    pub vae_tile: Option<u64>,
}

impl FluxModel {
    /// FLUX.1-dev with its text encoders and VAE.
    pub fn dev() -> Self {
        Self {
            clip: ClipConfig::vit_l(),
            t5: T5Config::xxl(),
            transformer: FluxConfig::dev(),
            vae: VaeConfig::flux(),
        }
    }

    /// FLUX.1-schnell with its text encoders and VAE.
    pub fn schnell() -> Self {
        Self { transformer: FluxConfig::schnell(), ..Self::dev() }
    }

    /// Checks that the networks fit together.
    ///
    /// # Errors
    /// [`ModelError::Value`] with the field that does not fit.
    pub fn check(&self) -> Result<(), ModelError> {
        let flux = &self.transformer;
        flux.check(TRANSFORMER)?;
        let (joint, pooled) = (flux.joint_attention_dim, flux.pooled_projection_dim);
        check(TRANSFORMER, "joint_attention_dim", joint, joint == self.t5.d_model, || {
            format!("the width of {T5}, {}", self.t5.d_model)
        })?;
        let width = self.clip.hidden_size;
        check(TRANSFORMER, "pooled_projection_dim", pooled, pooled == width, || {
            format!("the width of {CLIP}, {width}")
        })?;
        let channels = 4 * self.vae.latent_channels;
        check(TRANSFORMER, "in_channels", flux.in_channels, flux.in_channels == channels, || {
            format!("4 x the latent channels of {VAE}, {channels}")
        })
    }

    /// Pixels of a picture's side that one token stands for.
    pub fn pixels_per_token(&self) -> u64 {
        2 * self.vae.downscale()
    }

    /// Smallest side of a tile in which a run's pictures are decoded, in pixels: a decoder has to see something of its
    /// picture, and there are to be no more tiles than can be planned and proved.
    pub fn tile_edge_min(&self, run: &FluxRun) -> u64 {
        let (unit, latents) = (self.pixels_per_token(), self.vae.downscale());
        let size = [run.height, run.width].map(|side| side.min(SIDE_MAX) / latents);
        let mut edges = (EDGE_TOKENS_MIN..=SIDE_MAX / unit).map(|tokens| tokens * unit);
        let pictures = u64::from(run.samples);
        edges.find(|edge| are_few(size, edge / latents, pictures)).unwrap_or(SIDE_MAX)
    }

    fn check_tile(&self, run: &FluxRun, edge: u64) -> Result<u64, ModelError> {
        let (unit, least) = (self.pixels_per_token(), self.tile_edge_min(run));
        if edge >= least && edge <= SIDE_MAX && edge.is_multiple_of(unit) {
            return Ok(edge);
        }
        let nearest = edge.saturating_add(unit / 2) / unit * unit;
        let nearest = nearest.clamp(least, SIDE_MAX / unit * unit);
        Err(ModelError::Request {
            what: "side of a tile of the VAE".to_owned(),
            value: edge.to_string(),
            expected: format!(
                "a multiple of {unit} from {least} on is needed here; {nearest} is the nearest"
            ),
        })
    }

    /// Rows and columns of image tokens.
    ///
    /// # Errors
    /// [`ModelError::Request`] for a side that is zero, too large or not a multiple of the token's.
    pub fn image_tokens(&self, run: &FluxRun) -> Result<[u64; 2], ModelError> {
        let unit = self.pixels_per_token();
        for (what, side) in [("width", run.width), ("height", run.height)] {
            if side == 0 || side % unit != 0 || side > SIDE_MAX {
                return Err(ModelError::Request {
                    what: what.to_owned(),
                    value: side.to_string(),
                    expected: format!("a multiple of {unit} from {unit} to {SIDE_MAX} is needed"),
                });
            }
        }
        Ok([run.height / unit, run.width / unit])
    }

    /// The graph of a run: encode, hoist, denoise, decode.
    ///
    /// `weight_dtype(component, entry)` is the dtype in which a checkpoint tensor is kept in device memory.
    /// Host inputs, in the graph's own order, by name: `clip.ids`, `clip.eos`, `t5.ids`, `t5.buckets`,
    /// `noise` (each sample), `dsigma`, `rope`, `timestep`, `guidance` (dev only). Outputs, each sample:
    /// `latent` `[tokens, channels]` and `image` `[height * width, 3]`, both `f32`.
    ///
    /// # Errors
    /// A request or configuration that does not fit, or sizes beyond the arithmetic.
    pub fn graph(
        &self,
        run: &FluxRun,
        weight_dtype: &dyn Fn(&str, &str) -> DType,
    ) -> Result<Graph, ModelError> {
        self.probed_graph(run, weight_dtype, &[])
    }

    /// As [`FluxModel::graph`], on paper: with coded matrices, adapters, ControlNets, and the decode of one tile. It can
    /// be planned, not run.
    ///
    /// # Errors
    /// As [`FluxModel::graph`].
    pub fn paper_graph(&self, run: &FluxRun, paper: &Paper<'_>) -> Result<Graph, ModelError> {
        self.trace(run, paper.builder(run.dtype), paper, &[])
    }

    /// The decoder's tiles of a run on paper.
    ///
    /// # Errors
    /// As [`FluxModel::image_tokens`], and for a tile that no decoder can take.
    pub fn tiles(&self, run: &FluxRun, tile: u64) -> Result<Tiles, ModelError> {
        let [rows, cols] = self.image_tokens(run)?;
        picture_tiles([2 * rows, 2 * cols], tile)
    }

    /// As [`FluxModel::graph`], with the results of ops given as `(block, op)` as further outputs.
    ///
    /// # Errors
    /// As [`FluxModel::graph`], and for an op that there is not.
    pub fn probed_graph(
        &self,
        run: &FluxRun,
        weight_dtype: &dyn Fn(&str, &str) -> DType,
        probes: &[(&str, &str)],
    ) -> Result<Graph, ModelError> {
        self.trace(run, Builder::new(run.dtype, weight_dtype), &Paper::default(), probes)
    }

    fn trace(
        &self,
        run: &FluxRun,
        mut b: Builder<'_>,
        paper: &Paper<'_>,
        probes: &[(&str, &str)],
    ) -> Result<Graph, ModelError> {
        self.check()?;
        let [rows, cols] = self.image_tokens(run)?;
        let request = |what: &str, value: u64, max: u64| {
            if (1..=max).contains(&value) {
                return Ok(());
            }
            let (what, value) = (what.to_owned(), value.to_string());
            Err(ModelError::Request { what, value, expected: format!("1 to {max} is needed") })
        };
        request("steps", u64::from(run.steps), u64::from(STEPS_MAX))?;
        request("number of pictures", u64::from(run.samples), u64::from(SAMPLES_MAX))?;
        request("text length", run.text_tokens, 4096)?;

        let pooled = self.clip.trace(&mut b, CLIP);
        let context = self.t5.trace(&mut b, T5, run.text_tokens);
        let transformer = transformer::Transformer {
            config: &self.transformer,
            text_tokens: run.text_tokens,
            image_tokens: rows * cols,
        };
        let latent =
            step::trace(&transformer, &mut b, TRANSFORMER, context, pooled, paper.controlnets);
        let size = [2 * rows, 2 * cols];
        let edge = run.vae_tile.map(|edge| self.check_tile(run, edge)).transpose()?;
        match self.tiles(run, paper.tile)? {
            Tiles { count, size: tile, .. } if count > 1 && edge.is_none() => {
                self.vae.trace_tile(&mut b, VAE, latent, size, tile);
            }
            _ => self.vae.trace(&mut b, VAE, latent, size, edge),
        }
        for (block, op) in probes {
            b.probe(block, op)?;
        }
        let options = LowerOptions { steps: run.steps, samples: run.samples, hoist: run.hoist };
        Ok(b.finish(&options)?)
    }
}
