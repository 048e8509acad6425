//! Models that are planned by name: their components, defaults and graphs.

use plimsoll_graph::{Coding, DType, Graph};
use plimsoll_models::flux::is_block_matrix;
use plimsoll_models::wan::high_noise_steps;
use plimsoll_models::{
    Expert, Flux2Model, FluxModel, FluxRun, HunyuanModel, Paper, SdxlModel, VideoRun, WanModel,
    ZImageModel,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{LedgerError, unknown};

/// A model known by name.
#[derive(Clone, Debug, PartialEq)]
pub enum Architecture {
    /// FLUX.1.
    Flux(Box<FluxModel>),
    /// FLUX.2.
    Flux2(Flux2Model),
    /// Z-Image.
    ZImage(ZImageModel),
    /// SDXL base.
    Sdxl,
    /// Wan 2.1, text to video.
    Wan(WanModel),
    /// Wan 2.2, text to video: two transformers, one after the other.
    WanExperts(WanModel),
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
pub const NAMES: [&str; 9] = [
    "flux.1-dev",
    "flux.1-schnell",
    "flux.2-dev",
    "z-image-turbo",
    "sdxl",
    "wan2.1-t2v-1.3b",
    "wan2.1-t2v-14b",
    "wan2.2-t2v-a14b",
    "hunyuanvideo",
];

/// More tiles of a picture than this are not planned: each is in the graph.
const TILES_MOST: u64 = 256;
/// More tiles side by side are not planned: the verifier tells 64 bands of columns of a picture apart, and where tiles
/// lie over each other is a band of its own.
const TILES_ACROSS_MOST: u64 = 32;
/// More ControlNets than this are a slip of the hand.
const CONTROLNETS_MOST: u32 = 16;
/// More pieces of rows bring a plan nothing but launches, and each is ops of the graph.
const ROW_CHUNKS_MOST: u64 = 64;
/// A LoRA's rank above this is one too.
const RANK_MOST: u64 = 1024;

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
    /// See [`VideoRun::row_chunks`]; `None` for as few as the line asks for, which is 1 where nothing else is known.
    pub row_chunks: Option<u64>,
    /// See [`VideoRun::tile`]; `None` for the largest that the line allows, the whole where nothing else is known.
    pub tile: Option<u64>,
    /// How weights are kept.
    pub codings: Codings,
    /// Whether fp8 of the denoiser is what `plimsoll pack` writes (the matrices that every token passes, each with a
    /// scale a row) instead of a cast of all of its blocks' matrices.
    pub packed: bool,
    /// Rank of a LoRA beside the denoiser's blocks; 0 for none.
    pub lora_rank: u64,
    /// ControlNets beside FLUX.1.
    pub controlnets: u32,
}

/// A graph with what it does not say itself.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// The run, or its first part; the decode of one tile.
    pub graph: Graph,
    /// Steps of this part.
    pub steps: u32,
    /// Tiles that are decoded one after the other.
    pub tiles: u64,
    /// What runs afterwards in the same memory: the second expert of Wan 2.2, which begins when the first has ended.
    pub next: Option<Box<Recipe>>,
}

impl Recipe {
    /// The parts in the order in which they run.
    pub fn parts(&self) -> impl Iterator<Item = &Recipe> {
        std::iter::successors(Some(self), |part| part.next.as_deref())
    }

    /// Parameters and bytes by component, in order of first use.
    pub fn components(&self) -> Vec<ComponentRow> {
        let mut all: Vec<ComponentRow> = Vec::new();
        for row in self.parts().flat_map(|part| components(&part.graph)) {
            if !all.iter().any(|known| known.component == row.component) {
                all.push(row);
            }
        }
        all
    }
}

/// A component's parameters and bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
    let picture = |name, architecture, denoiser, steps, text_tokens| KnownModel {
        name,
        architecture,
        denoiser,
        size: [1024, 1024, 1],
        steps,
        text_tokens,
    };
    let lower = name.to_ascii_lowercase();
    let Some(name) = NAMES.into_iter().find(|known| *known == lower) else {
        return Err(unknown("model", name, NAMES.into_iter()));
    };
    Ok(match name {
        "flux.1-dev" => flux(name, FluxModel::dev(), 28, 512),
        "flux.1-schnell" => flux(name, FluxModel::schnell(), 4, 256),
        "flux.2-dev" => {
            let model = Architecture::Flux2(Flux2Model::dev());
            picture(name, model, "transformer", 50, 512)
        }
        "z-image-turbo" => {
            let model = Architecture::ZImage(ZImageModel::turbo());
            picture(name, model, "transformer", 9, 512)
        }
        "sdxl" => picture(name, Architecture::Sdxl, "unet", 50, 77),
        "wan2.1-t2v-1.3b" => wan(name, WanModel::t2v_1_3b(), [832, 480, 81]),
        "wan2.1-t2v-14b" => wan(name, WanModel::t2v_14b(), [1280, 720, 81]),
        "wan2.2-t2v-a14b" => KnownModel {
            architecture: Architecture::WanExperts(WanModel::t2v_14b()),
            steps: 40,
            ..wan(name, WanModel::t2v_14b(), [1280, 720, 81])
        },
        _ => KnownModel {
            name,
            architecture: Architecture::Hunyuan(HunyuanModel::t2v()),
            denoiser: "transformer",
            size: [1280, 720, 129],
            steps: 50,
            text_tokens: 256,
        },
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
            row_chunks: None,
            tile: None,
            codings: Codings::default(),
            packed: false,
            lora_rank: 0,
            controlnets: 0,
        }
    }

    /// Whether a device runs it today.
    pub fn runs(&self) -> bool {
        matches!(self.architecture, Architecture::Flux(_))
    }

    /// Whether a device runs it with what is asked.
    pub fn runs_as(&self, ask: &Ask) -> bool {
        let is_stored = match ask.codings.denoiser {
            Coding::Plain => true,
            Coding::Fp8 => ask.packed,
            Coding::Nf4 => false,
        };
        self.runs()
            && is_stored
            && ask.codings.text == Coding::Plain
            && ask.lora_rank == 0
            && ask.controlnets == 0
    }

    /// Whether its activations can be taken in pieces of their rows.
    pub fn is_video(&self) -> bool {
        matches!(
            self.architecture,
            Architecture::Wan(_) | Architecture::WanExperts(_) | Architecture::Hunyuan(_)
        )
    }

    fn is_denoiser(&self, component: &str) -> bool {
        component == self.denoiser || component == plimsoll_models::wan::TRANSFORMER_2
    }

    /// The graph of a run; what the line may choose is taken as the model's makers do it.
    ///
    /// # Errors
    /// [`LedgerError::Option`] for an option that the model has no use for, [`LedgerError::Model`] for sizes that it
    /// cannot take.
    pub fn recipe(&self, ask: &Ask) -> Result<Recipe, LedgerError> {
        let option = |option| LedgerError::Option { model: self.name.to_owned(), option };
        let (row_chunks, tile) = (ask.row_chunks.unwrap_or(1), ask.tile.unwrap_or(0));
        if !self.is_video() && row_chunks != 1 {
            return Err(option("row chunks"));
        }
        if !self.is_video() && ask.size[2] != 1 {
            return Err(option("number of frames but 1"));
        }
        let is_flux = matches!(self.architecture, Architecture::Flux(_));
        if !is_flux && ask.controlnets > 0 {
            return Err(option("ControlNet in a plan: FLUX.1 does"));
        }
        if ask.controlnets > CONTROLNETS_MOST {
            return Err(option("more than 16 ControlNets"));
        }
        if row_chunks > ROW_CHUNKS_MOST {
            return Err(option("more than 64 row chunks"));
        }
        if ask.lora_rank > RANK_MOST {
            return Err(option("LoRA of a rank above 1024"));
        }
        let is_packed = is_flux && ask.packed && ask.codings.denoiser == Coding::Fp8;
        let is_edge = |block: &str| ["embed", "final", "out", "text"].contains(&block);
        let coding = |component: &str, block: &str| {
            if self.is_denoiser(component) {
                let is_kept = is_packed || is_edge(block);
                if is_kept { Coding::Plain } else { ask.codings.denoiser }
            } else if component.starts_with("text_encoder") {
                ask.codings.text
            } else {
                Coding::Plain
            }
        };
        let weight_dtype = |component: &str, entry: &str| {
            let is_narrow = is_packed && is_block_matrix(component, entry);
            if is_narrow { DType::F8E4M3 } else { DType::BF16 }
        };
        let adapter = |component: &str, block: &str| {
            if self.is_denoiser(component) && !is_edge(block) { ask.lora_rank } else { 0 }
        };
        let paper = Paper {
            weight_dtype: &weight_dtype,
            coding: &coding,
            adapter: &adapter,
            controlnets: ask.controlnets,
            tile,
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
            row_chunks,
            tile,
        };
        let whole = |graph, tiles: u64| Recipe { graph, steps: ask.steps, tiles, next: None };
        Ok(match &self.architecture {
            Architecture::Flux(model) => {
                let run = FluxRun {
                    width,
                    height,
                    steps: ask.steps,
                    samples: ask.samples,
                    text_tokens: ask.text_tokens,
                    dtype: ask.dtype,
                    hoist: ask.hoist,
                    // Tiles that run: all of them are in the graph.
                    vae_tile: (tile > 0).then_some(tile),
                };
                if tile > 0 && !is_in_few_tiles(width, height, tile) {
                    return Err(option("decode in more than 256 tiles, or 32 side by side"));
                }
                whole(model.paper_graph(&run, &Paper { tile: 0, ..paper })?, 1)
            }
            Architecture::Flux2(model) => {
                whole(model.graph(&video, &paper)?, model.tiles(&video)?.count)
            }
            Architecture::ZImage(model) => {
                whole(model.graph(&video, &paper)?, model.tiles(&video)?.count)
            }
            Architecture::Sdxl => {
                whole(SdxlModel.graph(&video, &paper)?, SdxlModel.tiles(&video)?.count)
            }
            Architecture::Wan(model) => {
                whole(model.graph(&video, &paper)?, model.tiles(&video)?.count)
            }
            Architecture::WanExperts(model) => experts(model, &video, &paper)?,
            Architecture::Hunyuan(model) => {
                whole(model.graph(&video, &paper)?, model.tiles(&video)?.count)
            }
        })
    }
}

/// Whether all tiles of a picture may be in a graph. About three quarters of each are new on each axis.
pub(crate) fn is_in_few_tiles(width: u64, height: u64, tile: u64) -> bool {
    let stride = (tile / 4 * 3).max(1);
    let across = width.div_ceil(stride);
    across <= TILES_ACROSS_MOST && across.saturating_mul(height.div_ceil(stride)) <= TILES_MOST
}

/// Both experts of Wan 2.2; of a single step there is but the first.
fn experts(model: &WanModel, run: &VideoRun, paper: &Paper<'_>) -> Result<Recipe, LedgerError> {
    let tiles = model.tiles(run)?.count;
    let high = high_noise_steps(run.steps);
    let low = run.steps - high;
    let of = |steps, expert| model.expert_graph(&VideoRun { steps, ..*run }, paper, expert);
    if low == 0 {
        return Ok(Recipe { graph: of(high, Expert::Only)?, steps: high, tiles, next: None });
    }
    let graph = of(low, Expert::LowNoise)?;
    let second = Recipe { graph, steps: low, tiles, next: None };
    let graph = of(high, Expert::HighNoise)?;
    Ok(Recipe { graph, steps: high, tiles: 1, next: Some(Box::new(second)) })
}

/// Parameters and bytes by component, in order of first use.
pub(crate) fn components(graph: &Graph) -> Vec<ComponentRow> {
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
