//! From the names in the files to the canonical names of diffusers and transformers.
//!
//! The versions of both libraries differ among themselves: CLIP is written with and without
//! `text_model.`, T5's one embedding under either of two names or both, and the attention of old
//! VAEs has other names and shapes. All of that ends here; graphs know one name for each tensor.

use std::path::Path;

use crate::bfl;
use crate::catalog::{Blob, Catalog, Entry, Piece};
use crate::entries::{Entries, insert};
use crate::error::WeightsError;
use crate::header::Tensor;
use crate::layout::{Architecture, Layout};
use crate::packed;
use crate::recognise::Recognised;
use crate::source::refuse_layout;

/// Builds the catalog of a component from the tensors of its files, or refuses what they are.
///
/// `tensors` gives each tensor with the index of its blob.
pub(crate) fn catalog(
    blobs: Vec<Blob>,
    tensors: impl IntoIterator<Item = (usize, Tensor)>,
    recognised: Recognised,
) -> Result<Catalog, WeightsError> {
    let Recognised { architecture, layout, prefix } = recognised;
    let path = blobs.first().map_or(Path::new(""), Blob::path).to_owned();
    if layout.refusal().is_some() {
        return Err(refuse_layout(&path, layout));
    }
    if let Some(advice) = architecture.refusal() {
        return Err(WeightsError::Architecture { path, architecture, advice });
    }

    let mut raw = Entries::new();
    for (blob, tensor) in tensors {
        if layout == Layout::Packed && packed::is_padding(&tensor) {
            continue;
        }
        let Tensor { name, dtype, shape, offset, bytes } = tensor;
        let entry = Entry { dtype, shape, pieces: vec![Piece { blob, offset, bytes }] };
        let canonical = name.strip_prefix(prefix).unwrap_or(&name).to_owned();
        insert(&mut raw, canonical, entry, &name, &path)?;
    }
    if layout == Layout::Packed {
        packed::check(&raw, &path)?;
    }
    let entries = match (architecture, layout) {
        (Architecture::Flux1, Layout::Original) => bfl::to_diffusers(&raw, &path)?,
        (Architecture::AutoencoderKl, Layout::Original) => {
            let advice =
                "a VAE in the names of ldm is not read yet: use the diffusers folder `vae`";
            return Err(WeightsError::Layout { path, layout, advice });
        }
        (Architecture::T5Encoder, _) => t5(raw, &path)?,
        (Architecture::ClipText, _) => rename(raw, &path, clip_name)?,
        (Architecture::AutoencoderKl, _) => vae(raw, &path)?,
        _ => raw,
    };
    Ok(Catalog { blobs, architecture, layout, entries })
}

fn rename(
    raw: Entries,
    path: &Path,
    canonical: impl Fn(&str) -> String,
) -> Result<Entries, WeightsError> {
    let mut entries = Entries::new();
    for (name, entry) in raw {
        insert(&mut entries, canonical(&name), entry, &name, path)?;
    }
    Ok(entries)
}

/// T5 has one embedding, `shared.weight`; files hold it under that name, as
/// `encoder.embed_tokens.weight`, or twice.
fn t5(mut raw: Entries, path: &Path) -> Result<Entries, WeightsError> {
    const SHARED: &str = "shared.weight";
    for tied in ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"] {
        let Some(entry) = raw.remove(tied) else {
            continue;
        };
        match raw.get(SHARED) {
            None => {
                raw.insert(SHARED.to_owned(), entry);
            }
            Some(shared) if (shared.dtype, &shared.shape) == (entry.dtype, &entry.shape) => {}
            Some(_) => {
                let (tensor, canonical) = (tied.to_owned(), SHARED.to_owned());
                return Err(WeightsError::Twice { path: path.to_owned(), tensor, canonical });
            }
        }
    }
    Ok(raw)
}

/// CLIP's text model by the names it has inside the whole of CLIP.
fn clip_name(name: &str) -> String {
    let is_bare = ["embeddings.", "encoder.layers.", "final_layer_norm."]
        .iter()
        .any(|begin| name.starts_with(begin));
    if is_bare { format!("text_model.{name}") } else { name.to_owned() }
}

/// Attention layers of a VAE, by the names before diffusers 0.12 and now.
/// Source: huggingface/diffusers 58eb52c, `src/diffusers/loaders/single_file_utils.py` and
/// `modeling_utils.py`, `_convert_deprecated_attention_blocks`.
const VAE_ATTENTION: [(&str, &str); 4] =
    [("query", "to_q"), ("key", "to_k"), ("value", "to_v"), ("proj_attn", "to_out.0")];

fn vae(raw: Entries, path: &Path) -> Result<Entries, WeightsError> {
    let mut entries = Entries::new();
    for (name, mut entry) in raw {
        let mut canonical = name.clone();
        if let Some((block, layer)) = name.split_once(".attentions.0.")
            && let Some((layer, leaf)) = layer.rsplit_once('.')
            && layer != "group_norm"
        {
            let renamed = VAE_ATTENTION.iter().find(|(old, _)| *old == layer);
            let layer = renamed.map_or(layer, |(_, new)| new);
            canonical = format!("{block}.attentions.0.{layer}.{leaf}");
            // Older files keep the projections as 1x1 convolutions: the same bytes.
            if let [rows, columns, 1, 1] = entry.shape[..] {
                entry.shape = vec![rows, columns];
            }
        }
        insert(&mut entries, canonical, entry, &name, path)?;
    }
    Ok(entries)
}
