//! Finds the weight files of one component's folder, and joins the shards of a split set.
//!
//! An index is as untrusted as the rest: every shard it names must be a file inside the folder,
//! every tensor must be where the index puts it, and no shard may hold another.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::catalog::Blob;
use crate::error::WeightsError;
use crate::header::{Pairs, Tensor};
use crate::layout::Layout;
use crate::recognise::{Recognised, recognise};
use crate::source::{Opened, Source, is_plain, refuse_layout};

/// Greatest `*.index.json`; that of a 100,000-tensor model takes 10 MB.
const INDEX_BYTES_MAX: u64 = 16 << 20;

/// Most shards of one component.
const SHARDS_MAX: usize = 1024;

/// The safetensors files of one component.
pub(crate) struct Weights {
    /// The files.
    pub(crate) blobs: Vec<Blob>,
    /// Each tensor with the index of its file.
    pub(crate) tensors: Vec<(usize, Tensor)>,
    /// Metadata of the first file.
    pub(crate) metadata: BTreeMap<String, String>,
}

impl Weights {
    pub(crate) fn recognise(&self) -> Recognised {
        recognise(self.tensors.iter().map(|(_, tensor)| tensor.name.as_str()), &self.metadata)
    }
}

/// What a component's folder holds.
pub(crate) enum Found {
    /// One safetensors file or a sharded set.
    Weights(Weights),
    /// Something that is recognised and not read.
    Foreign(Blob, Layout),
    /// SVDQuant's older form: two files of one model.
    SvdQuantPair,
    /// No weights.
    Nothing,
}

impl Found {
    /// The weights, or the reason why there are none that can be read.
    pub(crate) fn weights(self, source: &Source, folder: &str) -> Result<Weights, WeightsError> {
        match self {
            Self::Weights(weights) => Ok(weights),
            Self::Foreign(blob, layout) => Err(refuse_layout(blob.path(), layout)),
            Self::SvdQuantPair => Err(refuse_layout(&source.shown(folder), Layout::SvdQuant)),
            Self::Nothing => {
                let why = "a folder of weights needs a .safetensors file or its index";
                Err(WeightsError::Missing { path: source.shown(folder), why })
            }
        }
    }
}

/// Opens the weights in `folder`.
pub(crate) fn find(source: &Source, folder: &str) -> Result<Found, WeightsError> {
    let names = source.list(folder)?;
    let has = |name: &str| names.iter().any(|other| other == name);
    let ending = |end: &str| -> Vec<&String> {
        names.iter().filter(|name| name.to_ascii_lowercase().ends_with(end)).collect()
    };

    // The libraries' own names first, in the order in which each library looks for them.
    const DIFFUSERS: &str = "diffusion_pytorch_model.safetensors";
    const TRANSFORMERS: &str = "model.safetensors";
    let diffusers_index = format!("{DIFFUSERS}.index.json");
    let transformers_index = format!("{TRANSFORMERS}.index.json");
    if has(&diffusers_index) {
        return sharded(source, folder, &diffusers_index);
    }
    for single_file in [DIFFUSERS, TRANSFORMERS] {
        if has(single_file) {
            return single(source, folder, single_file);
        }
    }
    if has(&transformers_index) {
        return sharded(source, folder, &transformers_index);
    }

    // Then variants (`model.fp16.safetensors`) and files named by people, if there is no doubt.
    if has("transformer_blocks.safetensors") && has("unquantized_layers.safetensors") {
        return Ok(Found::SvdQuantPair);
    }
    let indexes: Vec<&String> =
        ending(".json").into_iter().filter(|name| name.contains(".safetensors.index.")).collect();
    let mut files = ending(".safetensors");
    files.extend(ending(".sft"));
    match (&indexes[..], &files[..]) {
        ([index], _) => return sharded(source, folder, index),
        ([], [file]) => return single(source, folder, file),
        ([], []) => {}
        _ => {
            let listed = if indexes.is_empty() { files } else { indexes };
            let files = listed.into_iter().cloned().collect();
            return Err(WeightsError::Ambiguous { path: source.shown(folder), files });
        }
    }

    // No safetensors: name what is there instead.
    for end in [".gguf", ".bin", ".pt", ".pth", ".ckpt"] {
        if let Some(file) = ending(end).first() {
            return single(source, folder, file);
        }
    }
    Ok(Found::Nothing)
}

fn join(folder: &str, file: &str) -> String {
    if folder.is_empty() { file.to_owned() } else { format!("{folder}/{file}") }
}

fn single(source: &Source, folder: &str, file: &str) -> Result<Found, WeightsError> {
    Ok(match source.open(&join(folder, file), "the weights")? {
        Opened::Foreign(blob, layout) => Found::Foreign(blob, layout),
        Opened::Safetensors(blob, header) => Found::Weights(Weights {
            blobs: vec![blob],
            tensors: header.tensors.into_iter().map(|tensor| (0, tensor)).collect(),
            metadata: header.metadata,
        }),
    })
}

/// A `*.safetensors.index.json` as written.
#[derive(Deserialize)]
struct Index {
    #[serde(default)]
    metadata: IndexMetadata,
    weight_map: Pairs<String>,
}

#[derive(Default, Deserialize)]
struct IndexMetadata {
    total_size: Option<serde_json::Number>,
}

fn sharded(source: &Source, folder: &str, index_name: &str) -> Result<Found, WeightsError> {
    let relative = join(folder, index_name);
    let path = source.shown(&relative);
    let Some(text) = source.read(&relative, INDEX_BYTES_MAX, "an index of shards")? else {
        return Err(WeightsError::Missing { path, why: "the index of shards" });
    };
    let index: Index = serde_json::from_slice(&text).map_err(|e| WeightsError::json(&path, e))?;

    let mut shard_of: BTreeMap<String, String> = BTreeMap::new();
    for (tensor, shard) in index.weight_map.0 {
        if !is_plain(&shard) {
            return Err(WeightsError::UnsafeName { path, name: shard });
        }
        if shard_of.contains_key(&tensor) {
            return Err(WeightsError::json(&path, format!("the tensor `{tensor}` occurs twice")));
        }
        shard_of.insert(tensor, shard);
    }
    let shards: BTreeSet<&String> = shard_of.values().collect();
    if shards.len() > SHARDS_MAX {
        let reason = format!("{} shards, over the cap of {SHARDS_MAX}", shards.len());
        return Err(WeightsError::json(&path, reason));
    }

    let mut weights = Weights { blobs: Vec::new(), tensors: Vec::new(), metadata: BTreeMap::new() };
    let mut seen: BTreeSet<String> = BTreeSet::new();
    for &shard in &shards {
        let opened = source.open(&join(folder, shard), "the index names it as a shard")?;
        let (blob, header) = opened.safetensors()?;
        let blob_index = weights.blobs.len();
        weights.blobs.push(blob);
        if blob_index == 0 {
            weights.metadata = header.metadata;
        }
        for tensor in header.tensors {
            if shard_of.get(&tensor.name) != Some(shard) {
                let (tensor, shard) = (tensor.name, shard.clone());
                return Err(WeightsError::NotInIndex { path, tensor, shard });
            }
            seen.insert(tensor.name.clone());
            weights.tensors.push((blob_index, tensor));
        }
    }
    if let Some((tensor, shard)) = shard_of.iter().find(|(tensor, _)| !seen.contains(*tensor)) {
        let (tensor, shard) = (tensor.clone(), shard.clone());
        return Err(WeightsError::NotInShard { path, tensor, shard });
    }

    let shard_bytes: u64 = weights.tensors.iter().map(|(_, tensor)| tensor.bytes).sum();
    if let Some(total_bytes) = total_size(&index.metadata)
        && total_bytes / 5 * 4 > shard_bytes
    {
        return Err(WeightsError::IndexTotal { path, total_bytes, shard_bytes });
    }
    Ok(Found::Weights(weights))
}

/// `metadata.total_size`, which some writers give as a float.
///
/// Only a value far above the truth is refused: indexes in the wild count tied tensors once or
/// twice, and stay behind when a file is changed. That each tensor is there is checked by name.
fn total_size(metadata: &IndexMetadata) -> Option<u64> {
    let total = metadata.total_size.as_ref()?;
    // The cast saturates; NaN cannot be written in JSON.
    total.as_u64().or_else(|| total.as_f64().map(|float| float.max(0.0) as u64))
}
