//! The FLUX.1 transformer on its own: one file in BFL's or diffusers' names, or its folder.
//!
//! BFL's files carry no config, and the config in a neighbouring file cannot be trusted to belong
//! to them, so what the shapes tell is taken from the shapes.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::canonical;
use crate::catalog::Catalog;
use crate::component::{Component, read_config, refuse_quantized};
use crate::error::WeightsError;
use crate::layout::Architecture;
use crate::shards::{self, Weights};
use crate::source::{Source, open_path};

const CLASS_NAME: &str = "FluxTransformer2DModel";

/// Opens a FLUX.1 transformer: a single safetensors file in the names of BFL (with or without
/// `model.diffusion_model.`) or of diffusers, or a folder of diffusers shards.
///
/// The component's config is derived from the tensors' shapes; a folder's `config.json` adds what
/// they cannot tell. `axes_dims_rope` is given only for heads of 128, where every published model
/// has `[16, 56, 56]`.
///
/// # Errors
/// Any [`WeightsError`]; a file of another layout or model is named.
pub fn open_transformer_file(path: impl AsRef<Path>) -> Result<Component, WeightsError> {
    let path = path.as_ref();
    let mut config = String::new();
    let weights = if path.is_dir() {
        let source = Source::folder(path)?;
        if let Some(text) = read_config(&source, "config.json")? {
            refuse_quantized(&source.shown("config.json"), &text)?;
            config = text;
        }
        shards::find(&source, "")?.weights(&source, "")?
    } else {
        let (blob, header) = open_path(path)?.safetensors()?;
        let tensors = header.tensors.into_iter().map(|tensor| (0, tensor)).collect();
        Weights { blobs: vec![blob], tensors, metadata: header.metadata }
    };
    let recognised = weights.recognise();
    let catalog = canonical::catalog(weights.blobs, weights.tensors, recognised)?;
    if catalog.architecture != Architecture::Flux1 {
        return Err(WeightsError::ClassMismatch {
            path: path.to_owned(),
            class_name: CLASS_NAME.to_owned(),
            expected: Architecture::Flux1,
            found: catalog.architecture,
        });
    }
    let config_json = merge_config(&config, &Value::Object(derive_config(&catalog)).to_string());
    Ok(Component { class_name: CLASS_NAME.to_owned(), config_json, catalog: Some(catalog) })
}

/// `base` with the fields of `over` put over it; both are JSON objects, or empty.
pub(crate) fn merge_config(base: &str, over: &str) -> String {
    let parse = |text: &str| match serde_json::from_str(text) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    };
    let mut fields = parse(base);
    fields.extend(parse(over));
    Value::Object(fields).to_string()
}

/// The fields of diffusers' `FluxTransformer2DModel` config that the tensors tell.
///
/// A field whose tensor is missing is left out; the check against the model then names the tensor.
fn derive_config(catalog: &Catalog) -> Map<String, Value> {
    let axis = |name: &str, index: usize| catalog.get(name)?.shape.get(index).copied();
    let mut fields = Map::new();
    let mut put = |key: &str, value: Option<u64>| {
        if let Some(value) = value {
            fields.insert(key.to_owned(), value.into());
        }
    };
    let hidden = axis("x_embedder.weight", 0);
    let head_dim = axis("transformer_blocks.0.attn.norm_q.weight", 0)
        .or_else(|| axis("single_transformer_blocks.0.attn.norm_q.weight", 0))
        .filter(|&head_dim| head_dim > 0);
    let heads = hidden.zip(head_dim).map(|(hidden, head_dim)| hidden / head_dim);
    put("num_layers", Some(blocks(catalog, "transformer_blocks.")));
    put("num_single_layers", Some(blocks(catalog, "single_transformer_blocks.")));
    put("attention_head_dim", head_dim);
    put("num_attention_heads", heads);
    put("in_channels", axis("x_embedder.weight", 1));
    put("out_channels", axis("proj_out.weight", 0));
    put("joint_attention_dim", axis("context_embedder.weight", 1));
    put("pooled_projection_dim", axis("time_text_embed.text_embedder.linear_1.weight", 1));
    put("patch_size", Some(1));
    let guidance = catalog.get("time_text_embed.guidance_embedder.linear_1.weight").is_some();
    fields.insert("guidance_embeds".to_owned(), guidance.into());
    fields.insert("_class_name".to_owned(), CLASS_NAME.into());
    if head_dim == Some(128) {
        // Source: black-forest-labs/flux 802fb47, `src/flux/util.py`, `axes_dim`.
        fields.insert("axes_dims_rope".to_owned(), json!([16, 56, 56]));
    }
    fields
}

/// How many different blocks have tensors under `prefix`.
fn blocks(catalog: &Catalog, prefix: &str) -> u64 {
    let indices: BTreeSet<&str> = catalog
        .iter()
        .filter_map(|(name, _)| name.strip_prefix(prefix)?.split_once('.'))
        .map(|(index, _)| index)
        .collect();
    indices.len() as u64
}
