//! A whole pipeline: which component is in which sub-folder, its config, and its catalog.
//!
//! `model_index.json` names the components; nothing in the folder is believed beyond that: each
//! component's tensors must be those of its class.
//! Configs stay raw text here, since their meaning belongs to the models.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::canonical;
use crate::catalog::Catalog;
use crate::component::{CONFIG_BYTES_MAX, Component, read_config, refuse_quantized};
use crate::error::WeightsError;
use crate::header::Pairs;
use crate::layout::Architecture;
use crate::shards;
use crate::source::{Source, is_plain, open_path};
use crate::transformer;

/// Greatest tokenizer file. T5's takes 2.4 MB, that of a 256,000-entry vocabulary 33 MB.
const TOKENIZER_BYTES_MAX: u64 = 64 << 20;

/// A pipeline's own defaults (size, steps, ...), which is ours and not of diffusers.
const DEFAULTS_FILE: &str = "plimsoll.json";

/// The component classes whose weights are read, with the model that each is.
const CLASSES: [(&str, Architecture); 4] = [
    ("FluxTransformer2DModel", Architecture::Flux1),
    ("CLIPTextModel", Architecture::ClipText),
    ("T5EncoderModel", Architecture::T5Encoder),
    ("AutoencoderKL", Architecture::AutoencoderKl),
];

/// The components of `FluxPipeline` that must be of one of [`CLASSES`].
const WEIGHTED: [&str; 4] = ["transformer", "text_encoder", "text_encoder_2", "vae"];

/// The files of a tokenizer that are kept.
const TOKENIZER_FILES: [&str; 7] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "spiece.model",
];

/// A pipeline, from a folder or from bytes built into the program.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The folder as given, or a name for built-in bytes.
    pub path: PathBuf,
    /// Class of the pipeline, such as `FluxPipeline`.
    pub pipeline_class: String,
    /// The components by the name of their sub-folder.
    pub components: BTreeMap<String, Component>,
    /// The small files of schedulers and tokenizers by relative path, such as
    /// `tokenizer/tokenizer.json`.
    pub files: BTreeMap<String, Cow<'static, [u8]>>,
}

/// Opens a diffusers pipeline folder: reads its small files whole and of its weights the headers.
///
/// # Errors
/// Any [`WeightsError`]; each names the file and says what is wrong with it or what it is instead.
pub fn open_folder(path: impl AsRef<Path>) -> Result<Checkpoint, WeightsError> {
    let path = path.as_ref();
    if path.is_file() {
        return Err(refuse_file(path));
    }
    open(&Source::folder(path)?)
}

/// Opens a pipeline whose files are built into the program, as (relative path, bytes).
///
/// # Errors
/// As [`open_folder`].
pub fn open_embedded(files: &[(&'static str, &'static [u8])]) -> Result<Checkpoint, WeightsError> {
    open(&Source::Embedded(files.iter().copied().collect()))
}

impl Checkpoint {
    /// The bytes of a small file, by its relative path.
    pub fn file(&self, relative: &str) -> Option<&[u8]> {
        self.files.get(relative).map(AsRef::as_ref)
    }

    /// Puts another transformer in place of the folder's own, as from
    /// [`open_transformer_file`](crate::open_transformer_file).
    ///
    /// What the new one's tensors tell replaces the folder's config, what they cannot tell (the
    /// RoPE axes) stays.
    pub fn replace_transformer(&mut self, mut transformer: Component) {
        if let Some(old) = self.components.get("transformer") {
            transformer.config_json =
                transformer::merge_config(&old.config_json, &transformer.config_json);
        }
        self.components.insert("transformer".to_owned(), transformer);
    }
}

/// Says what a single file is, where a pipeline folder was asked for.
fn refuse_file(path: &Path) -> WeightsError {
    let found = || {
        let (blob, header) = open_path(path)?.safetensors()?;
        let tensors = header.tensors.into_iter().map(|tensor| (0, tensor));
        let weights = shards::Weights {
            blobs: vec![blob],
            tensors: tensors.collect(),
            metadata: header.metadata,
        };
        let recognised = weights.recognise();
        canonical::catalog(weights.blobs, weights.tensors, recognised)
    };
    match found() {
        Err(error) => error,
        Ok(Catalog { architecture, .. }) => WeightsError::Architecture {
            path: path.to_owned(),
            architecture,
            advice: "one component alone: give the pipeline folder (the one with model_index.json)",
        },
    }
}

fn open(source: &Source) -> Result<Checkpoint, WeightsError> {
    let (pipeline_class, classes) = model_index(source)?;
    let index = source.shown("model_index.json");
    if pipeline_class != "FluxPipeline" {
        return Err(WeightsError::Pipeline { path: index, class_name: pipeline_class });
    }

    let mut checkpoint = Checkpoint {
        path: source.shown(""),
        pipeline_class,
        components: BTreeMap::new(),
        files: BTreeMap::new(),
    };
    for (name, class_name) in classes {
        let component = if let Some(&(_, expected)) =
            CLASSES.iter().find(|(known, _)| *known == class_name)
        {
            weighted(source, &name, class_name, expected)?
        } else if WEIGHTED.contains(&name.as_str()) {
            let reason = format!("the {name} is a `{class_name}`, which is not supported yet");
            return Err(WeightsError::json(&index, reason));
        } else {
            let is_tokenizer = class_name.contains("Tokenizer");
            let config =
                if is_tokenizer { "tokenizer_config.json" } else { "scheduler_config.json" };
            let kept = if is_tokenizer { &TOKENIZER_FILES[..] } else { &["scheduler_config.json"] };
            for file in kept {
                let relative = format!("{name}/{file}");
                let read = source.read(&relative, TOKENIZER_BYTES_MAX, "a tokenizer file")?;
                if let Some(data) = read {
                    checkpoint.files.insert(relative, data);
                }
            }
            let config_json = read_config(source, &format!("{name}/{config}"))?.unwrap_or_default();
            Component { class_name, config_json, catalog: None }
        };
        checkpoint.components.insert(name, component);
    }
    if let Some(data) = source.read(DEFAULTS_FILE, CONFIG_BYTES_MAX, "a file of defaults")? {
        checkpoint.files.insert(DEFAULTS_FILE.to_owned(), data);
    }
    Ok(checkpoint)
}

/// Whether the folder holds one of a component with weights, as a pipeline's does.
pub(crate) fn has_components(source: &Source) -> Result<bool, WeightsError> {
    for name in WEIGHTED {
        if !source.list(name)?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The refusal of a pipeline folder that does not say what is in it.
pub(crate) fn without_index(path: PathBuf) -> WeightsError {
    WeightsError::Missing { path, why: "every pipeline folder has one" }
}

/// The pipeline's class, and name and class of each component that is not null.
pub(crate) fn model_index(
    source: &Source,
) -> Result<(String, Vec<(String, String)>), WeightsError> {
    let path = source.shown("model_index.json");
    let json = |reason: &str| WeightsError::json(&path, reason);
    let text = source.read("model_index.json", CONFIG_BYTES_MAX, "a model index")?;
    let Some(text) = text else {
        // If the folder is clearly something else, say what. A file beside the folders of components is not.
        if !has_components(source)?
            && let Ok(found) = shards::find(source, "")
            && !matches!(found, shards::Found::Nothing)
        {
            let weights = found.weights(source, "")?;
            let recognised = weights.recognise();
            if recognised.architecture != Architecture::Unknown {
                canonical::catalog(weights.blobs, weights.tensors, recognised)?;
            }
        }
        return Err(without_index(path));
    };
    let Pairs(pairs) =
        serde_json::from_slice::<Pairs<Value>>(&text).map_err(|e| WeightsError::json(&path, e))?;

    let mut class_name = None;
    let mut components: BTreeMap<String, String> = BTreeMap::new();
    for (key, value) in pairs {
        if key == "_class_name" {
            let name = value.as_str().ok_or_else(|| json("`_class_name` is not a text"))?;
            if class_name.replace(name.to_owned()).is_some() {
                return Err(json("`_class_name` occurs twice"));
            }
        } else if !key.starts_with('_')
            && let Value::Array(pair) = value
            && let [_, Value::String(class)] = &pair[..]
        {
            if !is_plain(&key) || key.contains('/') {
                return Err(WeightsError::UnsafeName { path, name: key });
            }
            if components.contains_key(&key) {
                return Err(json(&format!("the component `{key}` occurs twice")));
            }
            components.insert(key, class.clone());
        }
    }
    let class_name = class_name.ok_or_else(|| json("`_class_name` is missing"))?;
    Ok((class_name, components.into_iter().collect()))
}

/// Opens a component that has weights.
fn weighted(
    source: &Source,
    folder: &str,
    class_name: String,
    expected: Architecture,
) -> Result<Component, WeightsError> {
    let config_path = format!("{folder}/config.json");
    let Some(config_json) = read_config(source, &config_path)? else {
        let why = "every component with weights has one";
        return Err(WeightsError::Missing { path: source.shown(&config_path), why });
    };
    refuse_quantized(&source.shown(&config_path), &config_json)?;
    let weights = shards::find(source, folder)?.weights(source, folder)?;
    let recognised = weights.recognise();
    let found = recognised.architecture;
    let catalog = canonical::catalog(weights.blobs, weights.tensors, recognised)?;
    if found != expected {
        let path = catalog.path().to_owned();
        return Err(WeightsError::ClassMismatch { path, class_name, expected, found });
    }
    Ok(Component { class_name, config_json, catalog: Some(catalog) })
}
