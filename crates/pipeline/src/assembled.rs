//! A pipeline with all that belongs to it, before anything has a place.

use std::path::Path;
use std::sync::OnceLock;

use plimsoll_device::{HostRows, WideDType};
use plimsoll_graph::{DType, Graph};
use plimsoll_host::{HostFiles, SharedMapping};
use plimsoll_models::{ClipConfig, FluxConfig, FluxModel, FluxRun, T5Config, VaeConfig, flux};
use plimsoll_weights::{Catalog, Checkpoint, Component, Entry, WeightDType};
use serde::Deserialize;

use crate::failure::PipelineError;
use crate::host_limits::HostLimits;
use crate::scheduler::FlowMatchEuler;
use crate::tokenize::{PromptTokenizer, TextFamily, TokenizerFiles};

/// The weighted components in the order of their catalogs in [`HostFiles`].
pub(crate) const COMPONENTS: [&str; 4] = [flux::CLIP, flux::T5, flux::TRANSFORMER, flux::VAE];

/// What a pipeline is asked for where a request says nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Defaults {
    /// Name of the model in records and pictures.
    pub name: String,
    /// Picture width in pixels.
    pub width: u64,
    /// Picture height in pixels.
    pub height: u64,
    /// Steps.
    pub steps: u32,
    /// Distilled guidance; 0 where the model takes none.
    pub guidance: f32,
    /// Length of the T5 sequence.
    pub text_tokens: u64,
}

/// `plimsoll.json` in a pipeline's folder: its own [`Defaults`], each optional.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnDefaults {
    name: Option<String>,
    width: Option<u64>,
    height: Option<u64>,
    steps: Option<u32>,
    guidance: Option<f32>,
    text_tokens: Option<u64>,
}

/// A pipeline that is complete but not placed: components can be exchanged, nothing can run.
///
/// Everything that belongs to the pipeline is attached here; [`Assembled::place`](crate::Placed) takes it by
/// value, so that attaching after placing does not compile:
///
/// ```compile_fail
/// fn wrong(placed: plimsoll_pipeline::Placed) {
///     placed.replace_transformer("flux1-dev.safetensors");
/// }
/// ```
///
/// and neither does running what has no place:
///
/// ```compile_fail
/// fn wrong(assembled: plimsoll_pipeline::Assembled, prompt: &plimsoll_pipeline::Prompt) {
///     assembled.generate(prompt, &Default::default(), &mut |_| ());
/// }
/// ```
pub struct Assembled {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) model: FluxModel,
    pub(crate) defaults: Defaults,
    pub(crate) scheduler: FlowMatchEuler,
    pub(crate) clip_tokenizer: PromptTokenizer,
    pub(crate) t5_tokenizer: PromptTokenizer,
    pub(crate) host: HostFiles,
    pub(crate) host_limits: HostLimits,
    /// Bytes a second of the disk, once measured.
    pub(crate) disk_rate: OnceLock<f64>,
    /// Copies put the matrices of the transformer in 8 bits; see [`Assembled::narrow_transformer`].
    pub(crate) narrows: bool,
}

impl std::fmt::Debug for Assembled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Assembled").field("defaults", &self.defaults).finish_non_exhaustive()
    }
}

impl Assembled {
    /// Opens a pipeline: reads configurations and tokenizers, maps the weight files, checks that every
    /// tensor that the model needs is there with its shape, and none besides.
    ///
    /// Memory: the tokenizers; weights stay where they are.
    ///
    /// # Errors
    /// Whatever is wrong with a file, one line each.
    pub fn open(checkpoint: Checkpoint) -> Result<Self, PipelineError> {
        let path = checkpoint.path.display().to_string();
        if checkpoint.pipeline_class != "FluxPipeline" {
            let class = checkpoint.pipeline_class.clone();
            return Err(PipelineError::PipelineClass { path, class });
        }
        let config = |name: &str| component(&checkpoint, name).map(|found| &found.config_json);
        let clip = ClipConfig::from_json(flux::CLIP, config(flux::CLIP)?)?;
        let t5 = T5Config::from_json(flux::T5, config(flux::T5)?)?;
        let transformer = FluxConfig::from_json(flux::TRANSFORMER, config(flux::TRANSFORMER)?)?;
        let vae = VaeConfig::from_json(flux::VAE, config(flux::VAE)?)?;
        let model = FluxModel { clip, t5, transformer, vae };
        model.check()?;
        let schedule = config("scheduler")?;
        if schedule.is_empty() {
            let part =
                "scheduler/scheduler_config.json: it belongs to the model, get it from there";
            return Err(PipelineError::PartMissing { path, part: part.to_owned() });
        }
        let scheduler = FlowMatchEuler::parse(schedule.as_bytes())?;
        let tokenizer = |component: &'static str, family, vocab_size: u64| {
            let vocab_size = u32::try_from(vocab_size).unwrap_or(u32::MAX);
            PromptTokenizer::load(&tokenizer_files(&checkpoint, component), family, vocab_size)
                .map_err(|cause| PipelineError::Tokenizer { component, cause })
        };
        let clip_tokenizer = tokenizer("tokenizer", TextFamily::Clip, model.clip.vocab_size)?;
        let t5_tokenizer = tokenizer("tokenizer_2", TextFamily::T5, model.t5.vocab_size)?;
        let positions = model.clip.max_position_embeddings;
        if let Some(length) = clip_tokenizer.length_max().filter(|max| (*max as u64) < positions) {
            return Err(PipelineError::Model(plimsoll_models::ModelError::Value {
                component: "tokenizer".to_owned(),
                field: "model_max_length".to_owned(),
                value: length.to_string(),
                expected: format!("the {positions} positions of {}", flux::CLIP),
            }));
        }
        let defaults = defaults(&checkpoint, &model, t5_tokenizer.length_max())?;
        let host = HostFiles::open(&catalogs(&checkpoint)?)?;
        let assembled = Self {
            checkpoint,
            model,
            defaults,
            scheduler,
            clip_tokenizer,
            t5_tokenizer,
            host,
            host_limits: HostLimits::default(),
            disk_rate: OnceLock::new(),
            narrows: false,
        };
        assembled.check_tensors()?;
        Ok(assembled)
    }

    /// Opens a diffusers folder.
    ///
    /// # Errors
    /// As [`Assembled::open`].
    pub fn open_folder(path: impl AsRef<Path>) -> Result<Self, PipelineError> {
        Self::open(plimsoll_weights::open_folder(path)?)
    }

    /// Opens a pipeline that is built into the program.
    ///
    /// # Errors
    /// As [`Assembled::open`].
    pub fn open_embedded(files: &[(&'static str, &'static [u8])]) -> Result<Self, PipelineError> {
        Self::open(plimsoll_weights::open_embedded(files)?)
    }

    /// Puts the transformer of a single file (BFL or diffusers names) in place of the folder's own.
    ///
    /// # Errors
    /// As [`Assembled::open`]; the pipeline stays as it was.
    pub fn replace_transformer(&mut self, path: impl AsRef<Path>) -> Result<(), PipelineError> {
        *self = self.with_transformer(path)?;
        Ok(())
    }

    /// The pipeline with the transformer of a single file.
    ///
    /// # Errors
    /// As [`Assembled::replace_transformer`].
    pub fn with_transformer(&self, path: impl AsRef<Path>) -> Result<Self, PipelineError> {
        let transformer = plimsoll_weights::open_transformer_file(path)?;
        let mut checkpoint = self.checkpoint.clone();
        checkpoint.replace_transformer(transformer);
        Ok(Self { host_limits: self.host_limits, ..Self::open(checkpoint)? })
    }

    /// What a request that says nothing asks for.
    pub fn defaults(&self) -> &Defaults {
        &self.defaults
    }

    /// The networks.
    pub fn model(&self) -> &FluxModel {
        &self.model
    }

    /// The graph of a run over this checkpoint's dtypes.
    ///
    /// # Errors
    /// A size or count that the model cannot take.
    pub fn graph(&self, run: &FluxRun) -> Result<Graph, PipelineError> {
        self.probed_graph(run, &[])
    }

    pub(crate) fn probed_graph(
        &self,
        run: &FluxRun,
        probes: &[(&str, &str)],
    ) -> Result<Graph, PipelineError> {
        let of = |component: &str, entry: &str| {
            if self.narrows_entry(component, entry) {
                return DType::F8E4M3;
            }
            slot_dtype(self.stored_dtype(component, entry), run.dtype)
        };
        Ok(self.model.probed_graph(run, &of, probes)?)
    }

    pub(crate) fn stored_dtype(&self, component: &str, entry: &str) -> Option<WeightDType> {
        let catalog = self.checkpoint.components.get(component)?.catalog.as_ref()?;
        catalog.get(entry).map(|entry| entry.dtype)
    }

    /// Has the matrices that [`flux::is_block_matrix`] names put in 8 bits by the copies that bring them to the device.
    ///
    /// Graph, plan and bits are those of the folder that `plimsoll pack` writes of this one in fp8. Worth it where each
    /// matrix is copied once a run ([`Planned::narrows_once`](crate::Planned::narrows_once)): every copy computes the
    /// codes anew. A row with an element that is no number becomes NaN, where `pack` refuses it.
    ///
    /// # Errors
    /// [`PipelineError::WeightType`] for a type that is not narrowed, and for a file whose pieces split rows.
    pub fn narrow_transformer(&mut self) -> Result<(), PipelineError> {
        let catalog = catalog(&self.checkpoint, flux::TRANSFORMER)?;
        for (name, entry) in catalog.iter() {
            let is_mine = flux::is_block_matrix(flux::TRANSFORMER, name);
            if is_mine && entry.dtype != WeightDType::F8E4M3 {
                let rows = host_rows(entry);
                let whole = rows.is_some_and(|rows| {
                    entry.pieces.iter().all(|piece| piece.bytes.is_multiple_of(rows.bytes()))
                });
                if !whole {
                    return Err(PipelineError::WeightType {
                        component: flux::TRANSFORMER.to_owned(),
                        entry: name.clone(),
                        dtype: entry.dtype.name().to_owned(),
                    });
                }
            }
        }
        self.narrows = true;
        Ok(())
    }

    /// Whether copies put matrices of the transformer in 8 bits.
    pub fn narrows(&self) -> bool {
        self.narrows
    }

    /// Whether a tensor is put in 8 bits by the copy.
    pub(crate) fn narrows_entry(&self, component: &str, entry: &str) -> bool {
        self.narrows
            && flux::is_block_matrix(component, entry)
            && self.stored_dtype(component, entry) != Some(WeightDType::F8E4M3)
    }

    /// Whether a component's matrices come to the device in 8 bits; `None` where there is no such component.
    pub fn is_narrow(&self, component: &str) -> Option<bool> {
        let catalog = self.checkpoint.components.get(component)?.catalog.as_ref()?;
        if self.narrows && component == flux::TRANSFORMER {
            return Some(true);
        }
        Some(catalog.iter().any(|(_, entry)| entry.dtype == WeightDType::F8E4M3))
    }

    /// Checks that the weight files are those that were opened.
    ///
    /// # Errors
    /// The file that changed.
    pub fn recheck(&self) -> Result<(), PipelineError> {
        Ok(self.host.recheck()?)
    }

    /// The weight files, as they are mapped: what a device is told of that copies from them.
    pub fn mappings(&self) -> Vec<SharedMapping> {
        self.host.mappings()
    }

    /// The checkpoint: its small files, configurations and catalogs.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Every tensor that the graph reads is in its catalog, with its shape and a type that is read.
    fn check_tensors(&self) -> Result<(), PipelineError> {
        let run = FluxRun {
            width: self.model.pixels_per_token(),
            height: self.model.pixels_per_token(),
            steps: 1,
            samples: 1,
            text_tokens: 1,
            dtype: DType::F32,
            hoist: true,
            vae_tile: None,
        };
        let graph = self.graph(&run)?;
        for (at, name) in graph.components.iter().map(|component| &component.name).enumerate() {
            let weights = graph
                .weights
                .iter()
                .filter(|weight| weight.component.index() == at)
                .flat_map(|weight| &weight.parts);
            let tables = graph
                .tables
                .iter()
                .filter(|table| table.component.index() == at)
                .map(|table| &table.part);
            let is_table = |entry: &str| tables.clone().any(|part| part.entry == entry);
            let parts: Vec<_> = weights.chain(tables.clone()).collect();
            let catalog = catalog(&self.checkpoint, name)?;
            catalog.expect(parts.iter().map(|part| (&part.entry, &part.shape)))?;
            for part in parts {
                let dtype = catalog.get(&part.entry).map(|entry| entry.dtype);
                let is_read = match dtype {
                    Some(WeightDType::F32 | WeightDType::F16 | WeightDType::BF16) => true,
                    // The graph has checked that it is the matrix of a linear layer, not a table.
                    Some(WeightDType::F8E4M3) => !is_table(&part.entry),
                    _ => false,
                };
                if !is_read {
                    return Err(PipelineError::WeightType {
                        component: name.clone(),
                        entry: part.entry.clone(),
                        dtype: dtype.map_or("absent", WeightDType::name).to_owned(),
                    });
                }
            }
        }
        Ok(())
    }
}

/// The rows of a matrix that is put in 8 bits; `None` for a type or shape that is not.
pub(crate) fn host_rows(entry: &Entry) -> Option<HostRows> {
    let stored = match entry.dtype {
        WeightDType::F32 => WideDType::F32,
        WeightDType::F16 => WideDType::F16,
        WeightDType::BF16 => WideDType::BF16,
        _ => return None,
    };
    let &[_, cols] = entry.shape.as_slice() else { return None };
    let cols = u32::try_from(cols).ok().filter(|cols| *cols > 0)?;
    Some(HostRows { stored, cols })
}

/// How a stored tensor is kept in device memory: never wider than the run's dtype, and never widened.
fn slot_dtype(stored: Option<WeightDType>, run: DType) -> DType {
    match (stored, run) {
        // bf16 is exact in f32 arithmetic: widening it would only double the bytes that are copied.
        (Some(WeightDType::BF16), _) => DType::BF16,
        (Some(WeightDType::F8E4M3), _) => DType::F8E4M3,
        _ => run,
    }
}

pub(crate) fn component<'c>(
    checkpoint: &'c Checkpoint,
    name: &str,
) -> Result<&'c Component, PipelineError> {
    checkpoint.components.get(name).ok_or_else(|| PipelineError::PartMissing {
        path: checkpoint.path.display().to_string(),
        part: name.to_owned(),
    })
}

pub(crate) fn catalog<'c>(
    checkpoint: &'c Checkpoint,
    name: &str,
) -> Result<&'c Catalog, PipelineError> {
    component(checkpoint, name)?.catalog.as_ref().ok_or_else(|| PipelineError::PartMissing {
        path: checkpoint.path.display().to_string(),
        part: format!("weights of {name}"),
    })
}

fn catalogs(checkpoint: &Checkpoint) -> Result<Vec<&Catalog>, PipelineError> {
    COMPONENTS.iter().map(|name| catalog(checkpoint, name)).collect()
}

fn tokenizer_files(checkpoint: &Checkpoint, folder: &str) -> TokenizerFiles {
    let file = |name: &str| checkpoint.file(&format!("{folder}/{name}")).map(<[u8]>::to_vec);
    TokenizerFiles {
        tokenizer_json: file("tokenizer.json"),
        config_json: file("tokenizer_config.json"),
        vocab_json: file("vocab.json"),
        merges_txt: file("merges.txt"),
    }
}

/// The reference pipeline's defaults for the kind of model, then the folder's own.
fn defaults(
    checkpoint: &Checkpoint,
    model: &FluxModel,
    text_tokens_max: Option<usize>,
) -> Result<Defaults, PipelineError> {
    let own: OwnDefaults = match checkpoint.file("plimsoll.json") {
        None => OwnDefaults::default(),
        Some(bytes) => serde_json::from_slice(bytes).map_err(|error| {
            let (component, cause) = ("plimsoll.json".to_owned(), error.to_string());
            PipelineError::Model(plimsoll_models::ModelError::Config { component, cause })
        })?,
    };
    let is_dev = model.transformer.guidance_embeds;
    let name = checkpoint.path.file_name().map(|name| name.to_string_lossy().into_owned());
    // Lengths that the two models were trained with.
    let text_tokens = own.text_tokens.unwrap_or(if is_dev { 512 } else { 256 });
    let text_tokens_max = text_tokens_max.map_or(u64::MAX, |length| length as u64);
    Ok(Defaults {
        name: own.name.or(name).unwrap_or_else(|| "flux".to_owned()),
        width: own.width.unwrap_or(1024),
        height: own.height.unwrap_or(1024),
        steps: own.steps.unwrap_or(if is_dev { 28 } else { 4 }),
        guidance: own.guidance.unwrap_or(if is_dev { 3.5 } else { 0.0 }),
        text_tokens: text_tokens.min(text_tokens_max),
    })
}
