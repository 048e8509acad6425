//! Reads the FLUX.1 transformer in the names of its authors (BFL) as the same model in diffusers'
//! names, without moving a byte.
//!
//! BFL fuses q, k and v (in single blocks also the MLP's first layer) into one matrix by rows, so
//! each part is a row range of the fused tensor. Its last modulation gives (shift, scale) where
//! diffusers has (scale, shift): that entry is the two halves in exchanged order. The modulations
//! inside the blocks have the same order in both.
//! Source: huggingface/diffusers 58eb52c, `src/diffusers/loaders/single_file_utils.py`,
//! `convert_flux_transformer_checkpoint_to_diffusers`.

use std::collections::BTreeMap;
use std::path::Path;

use crate::catalog::Entry;
use crate::entries::{Entries, insert};
use crate::error::WeightsError;

/// Layers outside the blocks.
const TOP: [(&str, &str); 9] = [
    ("img_in", "x_embedder"),
    ("txt_in", "context_embedder"),
    ("time_in.in_layer", "time_text_embed.timestep_embedder.linear_1"),
    ("time_in.out_layer", "time_text_embed.timestep_embedder.linear_2"),
    ("guidance_in.in_layer", "time_text_embed.guidance_embedder.linear_1"),
    ("guidance_in.out_layer", "time_text_embed.guidance_embedder.linear_2"),
    ("vector_in.in_layer", "time_text_embed.text_embedder.linear_1"),
    ("vector_in.out_layer", "time_text_embed.text_embedder.linear_2"),
    ("final_layer.linear", "proj_out"),
];

/// Layers of a double block that are one layer in both layouts.
const DOUBLE: [(&str, &str); 12] = [
    ("img_mod.lin", "norm1.linear"),
    ("txt_mod.lin", "norm1_context.linear"),
    ("img_attn.norm.query_norm", "attn.norm_q"),
    ("img_attn.norm.key_norm", "attn.norm_k"),
    ("txt_attn.norm.query_norm", "attn.norm_added_q"),
    ("txt_attn.norm.key_norm", "attn.norm_added_k"),
    ("img_attn.proj", "attn.to_out.0"),
    ("txt_attn.proj", "attn.to_add_out"),
    ("img_mlp.0", "ff.net.0.proj"),
    ("img_mlp.2", "ff.net.2"),
    ("txt_mlp.0", "ff_context.net.0.proj"),
    ("txt_mlp.2", "ff_context.net.2"),
];

/// Layers of a single block that are one layer in both layouts.
const SINGLE: [(&str, &str); 4] = [
    ("modulation.lin", "norm.linear"),
    ("linear2", "proj_out"),
    ("norm.query_norm", "attn.norm_q"),
    ("norm.key_norm", "attn.norm_k"),
];

/// Renames and slices the tensors of a BFL transformer file.
///
/// A name that BFL's transformer does not have stays as it is, so that the check against the model
/// reports it.
///
/// # Errors
/// [`WeightsError::Split`] where a fused tensor has not the rows of its parts,
/// [`WeightsError::Twice`] where the file already holds a tensor of the canonical name.
pub(crate) fn to_diffusers(raw: &Entries, path: &Path) -> Result<Entries, WeightsError> {
    let mut entries = BTreeMap::new();
    for (name, entry) in raw {
        for (canonical, part) in parts(raw, name, entry, path)? {
            insert(&mut entries, canonical, part, name, path)?;
        }
    }
    Ok(entries)
}

/// The canonical tensors that one tensor of the file holds.
fn parts(
    raw: &Entries,
    name: &str,
    entry: &Entry,
    path: &Path,
) -> Result<Vec<(String, Entry)>, WeightsError> {
    let unknown = || Ok(vec![(name.to_owned(), entry.clone())]);
    let Some((layer, leaf)) = name.rsplit_once('.') else {
        return unknown();
    };
    // The scale of an RMS norm is called `weight` in diffusers.
    let leaf = match leaf {
        "weight" | "bias" => leaf,
        "scale" if layer.ends_with("_norm") => "weight",
        _ => return unknown(),
    };
    let rename = |table: &[(&str, &str)], layer: &str, block: &str| {
        let (_, to) = table.iter().find(|(from, _)| *from == layer)?;
        Some(vec![(format!("{block}{to}.{leaf}"), entry.clone())])
    };
    let split = |parts: &'static str| WeightsError::Split {
        path: path.to_owned(),
        tensor: name.to_owned(),
        shape: entry.shape.clone(),
        parts,
    };

    if layer == "final_layer.adaLN_modulation.1" {
        let swapped = swap_halves(entry).ok_or_else(|| split("a shift and a scale"))?;
        return Ok(vec![(format!("norm_out.linear.{leaf}"), swapped)]);
    }
    if let Some((index, layer)) = block_of(layer, "double_blocks.") {
        let block = format!("transformer_blocks.{index}.");
        let fused = match layer {
            "img_attn.qkv" => ["attn.to_q", "attn.to_k", "attn.to_v"],
            "txt_attn.qkv" => ["attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"],
            _ => return rename(&DOUBLE, layer, &block).map_or_else(unknown, Ok),
        };
        let rows = entry.shape.first().copied().unwrap_or(0);
        let third = (rows.is_multiple_of(3)).then_some(rows / 3);
        return third
            .and_then(|third| slice(entry, &fused, &[third; 3], &block, leaf))
            .ok_or_else(|| split("q, k and v of equal size"));
    }
    if let Some((index, layer)) = block_of(layer, "single_blocks.") {
        let block = format!("single_transformer_blocks.{index}.");
        if layer != "linear1" {
            return rename(&SINGLE, layer, &block).map_or_else(unknown, Ok);
        }
        // Rows are q, k and v of the model's width each, and the MLP with the rest; the width is
        // the columns of the weight, which a bias has not.
        let weight = raw.get(&format!("{}.weight", &name[..name.rfind('.').unwrap_or(0)]));
        let Some(&[_, width]) = weight.map(|weight| &weight.shape[..]) else {
            return unknown();
        };
        let rows = entry.shape.first().copied().unwrap_or(0);
        let fused = ["attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"];
        return (width.checked_mul(3))
            .and_then(|qkv| rows.checked_sub(qkv))
            .filter(|&mlp| mlp > 0)
            .and_then(|mlp| slice(entry, &fused, &[width, width, width, mlp], &block, leaf))
            .ok_or_else(|| split("q, k, v and the MLP"));
    }
    rename(&TOP, layer, "").map_or_else(unknown, Ok)
}

/// Index and inner name of a layer of the blocks `prefix`.
fn block_of<'a>(layer: &'a str, prefix: &str) -> Option<(u32, &'a str)> {
    let (index, inner) = layer.strip_prefix(prefix)?.split_once('.')?;
    let number: u32 = index.parse().ok()?;
    // `01` and `+1` parse too, but no such block exists.
    (number.to_string() == index).then_some((number, inner))
}

/// Successive row ranges of `entry` under their canonical names.
fn slice(
    entry: &Entry,
    names: &[&str],
    rows: &[u64],
    block: &str,
    leaf: &str,
) -> Option<Vec<(String, Entry)>> {
    let mut begin = 0u64;
    let mut parts = Vec::with_capacity(names.len());
    for (name, &count) in names.iter().zip(rows) {
        let end = begin.checked_add(count)?;
        parts.push((format!("{block}{name}.{leaf}"), entry.rows(begin..end)?));
        begin = end;
    }
    Some(parts)
}

/// The second half of the rows, then the first.
fn swap_halves(entry: &Entry) -> Option<Entry> {
    let rows = *entry.shape.first()?;
    let half = rows.is_multiple_of(2).then_some(rows / 2)?;
    let mut swapped = entry.rows(half..rows)?;
    swapped.pieces.extend(entry.rows(0..half)?.pieces);
    swapped.shape.clone_from(&entry.shape);
    Some(swapped)
}
