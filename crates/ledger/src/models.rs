//! Models that are planned by name: their components, defaults and graphs.

use plimsoll_graph::{Coding, DType, Graph};
use plimsoll_models::{FluxModel, FluxRun, HunyuanModel, SdxlModel, VideoRun, WanModel};
use serde::Serialize;

use crate::error::{LedgerError, unknown};

/// A model known by name.
#[derive(Clone, Debug, PartialEq)]
pub enum Architecture {
    /// FLUX.1.
    Flux(Box<FluxModel>),
    /// SDXL base.
    Sdxl,
    /// Wan 2.1, text to video.
    Wan(WanModel),
    /// HunyuanVideo.
    Hunyuan(HunyuanModel),
}

/// A model with what its makers run it with.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownModel {
    /// Name, as `--model` takes it.
    pub name: &'static str,
    /// Shapes.
    pub architecture: Architecture,
    /// Component that denoises.
    pub denoiser: &'static str,
    /// Width, height and frames.
    pub size: [u64; 3],
    /// Steps.
    pub steps: u32,
    /// Length of the T5 sequence; fixed for all but FLUX.1.
    pub text_tokens: u64,
}

/// Names in the order in which they are listed.
pub const NAMES: [&str; 6] =
    ["flux.1-dev", "flux.1-schnell", "sdxl", "wan2.1-t2v-1.3b", "wan2.1-t2v-14b", "hunyuanvideo"];

/// Codings of the two parts of a model that are worth coding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Codings {
    /// Matrices in the blocks of the denoiser; its first and last layers stay plain.
    pub denoiser: Coding,
    /// Matrices in the blocks of the text encoders.
    pub text: Coding,
}

/// What is asked of a known model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ask {
    /// Width, height and frames.
    pub size: [u64; 3],
    /// Steps.
    pub steps: u32,
    /// Pictures made together.
    pub samples: u32,
    /// Length of the T5 sequence of FLUX.1.
    pub text_tokens: u64,
    /// Dtype of activations.
    pub dtype: DType,
    /// Take out of the loop what does not depend on the latent.
    pub hoist: bool,
    /// See [`VideoRun::row_chunks`]; 1 for models that have no such pieces.
    pub row_chunks: u64,
    /// See [`VideoRun::tile`].
    pub tile: u64,
    /// How weights are kept.
    pub codings: Codings,
}

/// A graph with what it does not say itself.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// The run; the decode of one tile.
    pub graph: Graph,
    /// Tiles that are decoded one after the other.
    pub tiles: u64,
}

/// A component's parameters and bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ComponentRow {
    /// Name.
    pub component: String,
    /// Parameters that a run reads.
    pub parameters: u64,
    /// Bytes of them that come to the device.
    pub device_bytes: u64,
    /// Bytes of tables that are looked up in host memory.
    pub table_bytes: u64,
    /// Blocks that have weights.
    pub blocks: u32,
    /// Bytes of the largest block: what moves as one.
    pub largest_block_bytes: u64,
}

/// The model of a name, in any case.
///
/// # Errors
/// [`LedgerError::Unknown`] with the nearest names.
pub fn known(name: &str) -> Result<KnownModel, LedgerError> {
    let flux = |name, model: FluxModel, steps, text_tokens| KnownModel {
        name,
        architecture: Architecture::Flux(Box::new(model)),
        denoiser: "transformer",
        size: [1024, 1024, 1],
        steps,
        text_tokens,
    };
    let wan = |name, model, size| KnownModel {
        name,
        architecture: Architecture::Wan(model),
        denoiser: "transformer",
        size,
        steps: 50,
        text_tokens: 512,
    };
    let lower = name.to_ascii_lowercase();
    Ok(match lower.as_str() {
        "flux.1-dev" => flux(NAMES[0], FluxModel::dev(), 28, 512),
        "flux.1-schnell" => flux(NAMES[1], FluxModel::schnell(), 4, 256),
        "sdxl" => KnownModel {
            name: NAMES[2],
            architecture: Architecture::Sdxl,
            denoiser: "unet",
            size: [1024, 1024, 1],
            steps: 50,
            text_tokens: 77,
        },
        "wan2.1-t2v-1.3b" => wan(NAMES[3], WanModel::t2v_1_3b(), [832, 480, 81]),
        "wan2.1-t2v-14b" => wan(NAMES[4], WanModel::t2v_14b(), [1280, 720, 81]),
        "hunyuanvideo" => KnownModel {
            name: NAMES[5],
            architecture: Architecture::Hunyuan(HunyuanModel::t2v()),
            denoiser: "transformer",
            size: [1280, 720, 129],
            steps: 50,
            text_tokens: 256,
        },
        _ => return Err(unknown("model", name, NAMES.into_iter())),
    })
}

impl KnownModel {
    /// What its makers run it with.
    pub fn defaults(&self) -> Ask {
        Ask {
            size: self.size,
            steps: self.steps,
            samples: 1,
            text_tokens: self.text_tokens,
            dtype: DType::BF16,
            hoist: true,
            row_chunks: 1,
            tile: 0,
            codings: Codings::default(),
        }
    }

    /// Whether a device runs it today.
    pub fn runs(&self) -> bool {
        matches!(self.architecture, Architecture::Flux(_))
    }

    /// Whether its activations can be taken in pieces and its frames decoded in tiles.
    pub fn is_video(&self) -> bool {
        matches!(self.architecture, Architecture::Wan(_) | Architecture::Hunyuan(_))
    }

    /// The graph of a run.
    ///
    /// # Errors
    /// [`LedgerError::Option`] for an option that the model has no use for, [`LedgerError::Model`] for sizes that it
    /// cannot take.
    pub fn recipe(&self, ask: &Ask) -> Result<Recipe, LedgerError> {
        let option = |option| LedgerError::Option { model: self.name.to_owned(), option };
        if !self.is_video() && ask.row_chunks > 1 {
            return Err(option("row chunks"));
        }
        if !self.is_video() && ask.tile > 0 {
            return Err(option("decoder tile: its decode is whole"));
        }
        if !self.is_video() && ask.size[2] != 1 {
            return Err(option("number of frames but 1"));
        }
        let coding = |component: &str, block: &str| {
            if component == self.denoiser {
                let is_edge = ["embed", "final", "out", "text"].contains(&block);
                if is_edge { Coding::Plain } else { ask.codings.denoiser }
            } else if component.starts_with("text_encoder") {
                ask.codings.text
            } else {
                Coding::Plain
            }
        };
        let [width, height, frames] = ask.size;
        let video = VideoRun {
            width,
            height,
            frames,
            steps: ask.steps,
            samples: ask.samples,
            dtype: ask.dtype,
            hoist: ask.hoist,
            row_chunks: ask.row_chunks,
            tile: ask.tile,
        };
        let recipe = match &self.architecture {
            Architecture::Flux(model) => {
                let run = FluxRun {
                    width,
                    height,
                    steps: ask.steps,
                    samples: ask.samples,
                    text_tokens: ask.text_tokens,
                    dtype: ask.dtype,
                    hoist: ask.hoist,
                    vae_tile: None,
                };
                Recipe { graph: model.coded_graph(&run, &coding)?, tiles: 1 }
            }
            Architecture::Sdxl => Recipe { graph: SdxlModel.graph(&video, &coding)?, tiles: 1 },
            Architecture::Wan(model) => {
                let graph = model.graph(&video, &coding)?;
                Recipe { graph, tiles: model.tiles(&video)?.count }
            }
            Architecture::Hunyuan(model) => {
                let graph = model.graph(&video, &coding)?;
                Recipe { graph, tiles: model.tiles(&video)?.count }
            }
        };
        Ok(recipe)
    }
}

/// Parameters and bytes by component, in order of first use.
pub fn components(graph: &Graph) -> Vec<ComponentRow> {
    let rows = graph.components.iter().enumerate().map(|(at, component)| {
        let weights = || graph.weights.iter().filter(move |weight| weight.component.index() == at);
        // A table that two prompts look up is one table.
        let mut parts: Vec<_> =
            graph.tables.iter().filter(|table| table.component.index() == at).collect();
        parts.dedup_by(|a, b| a.part == b.part);
        let tables: u64 = parts.iter().map(|table| table.part.shape.iter().product::<u64>()).sum();
        let blocks = graph.blocks.iter().filter(|block| block.component.index() == at);
        let blocks: Vec<u64> = blocks
            .map(|block| block.weights.iter().map(|id| graph.weight(*id).bytes()).sum())
            .filter(|bytes| *bytes > 0)
            .collect();
        ComponentRow {
            component: component.name.clone(),
            parameters: weights().map(|weight| weight.rows * weight.cols).sum::<u64>() + tables,
            device_bytes: weights().map(plimsoll_graph::Weight::bytes).sum(),
            table_bytes: tables * DType::BF16.bytes(),
            blocks: u32::try_from(blocks.len()).unwrap_or(u32::MAX),
            largest_block_bytes: blocks.into_iter().max().unwrap_or(0),
        }
    });
    rows.collect()
}
