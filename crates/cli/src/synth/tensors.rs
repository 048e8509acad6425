//! Which tensors a published checkpoint has, and how its random stand-ins are spread.

use std::collections::BTreeMap;

use plimsoll_graph::DType;
use plimsoll_models::{FluxModel, FluxRun, ModelError, VaeConfig, flux};

/// A tensor's name and shape in its component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) name: String,
    pub(super) shape: Vec<u64>,
}

/// Tensors of each component in the order in which the model uses them, the encoder of the VAE last.
pub(super) fn by_component(model: &FluxModel) -> Result<BTreeMap<String, Vec<Named>>, ModelError> {
    let run = FluxRun {
        width: model.pixels_per_token(),
        height: model.pixels_per_token(),
        steps: 1,
        samples: 1,
        text_tokens: 1,
        dtype: DType::BF16,
        hoist: true,
        vae_tile: None,
    };
    let graph = model.graph(&run, &|_, _| DType::BF16)?;
    let weights = graph
        .weights
        .iter()
        .flat_map(|weight| weight.parts.iter().map(move |part| (weight.component, part)));
    let tables = graph.tables.iter().map(|table| (table.component, &table.part));
    let mut components: BTreeMap<String, Vec<Named>> = BTreeMap::new();
    for (component, part) in tables.chain(weights) {
        let name = graph.components[component.index()].name.clone();
        components
            .entry(name)
            .or_default()
            .push(Named { name: part.entry.clone(), shape: part.shape.clone() });
    }
    components.entry(flux::VAE.to_owned()).or_default().extend(vae_encoder(&model.vae));
    Ok(components)
}

/// The half of the VAE that a text-to-image run never reads, but that a checkpoint has.
///
/// Source: `Encoder` of diffusers 0.42.1, `models/autoencoders/vae.py`.
fn vae_encoder(config: &VaeConfig) -> Vec<Named> {
    let mut found = Vec::new();
    let mut put = |name: String, shape: &[u64]| found.push(Named { name, shape: shape.to_vec() });
    let affine = |put: &mut dyn FnMut(String, &[u64]), name: String, shape: &[u64]| {
        put(format!("{name}.weight"), shape);
        put(format!("{name}.bias"), &shape[..1]);
    };
    let resnet = |put: &mut dyn FnMut(String, &[u64]), name: &str, from: u64, to: u64| {
        affine(put, format!("{name}.norm1"), &[from]);
        affine(put, format!("{name}.conv1"), &[to, from, 3, 3]);
        affine(put, format!("{name}.norm2"), &[to]);
        affine(put, format!("{name}.conv2"), &[to, to, 3, 3]);
        if from != to {
            affine(put, format!("{name}.conv_shortcut"), &[to, from, 1, 1]);
        }
    };
    let channels = &config.block_out_channels;
    let (Some(first), Some(last)) = (channels.first(), channels.last()) else { return found };
    let mut from = *first;
    for (level, to) in channels.iter().enumerate() {
        for at in 0..config.layers_per_block {
            resnet(&mut put, &format!("encoder.down_blocks.{level}.resnets.{at}"), from, *to);
            from = *to;
        }
        if level + 1 < channels.len() {
            let name = format!("encoder.down_blocks.{level}.downsamplers.0.conv");
            put(format!("{name}.weight"), &[*to, *to, 3, 3]);
            put(format!("{name}.bias"), &[*to]);
        }
    }
    for at in 0..2 {
        resnet(&mut put, &format!("encoder.mid_block.resnets.{at}"), *last, *last);
    }
    for part in ["group_norm", "to_q", "to_k", "to_v", "to_out.0"] {
        let name = format!("encoder.mid_block.attentions.0.{part}");
        let shape: &[u64] = if part == "group_norm" { &[*last] } else { &[*last, *last] };
        put(format!("{name}.weight"), shape);
        put(format!("{name}.bias"), &[*last]);
    }
    for (name, shape) in [
        ("conv_in", vec![*first, config.out_channels, 3, 3]),
        ("conv_norm_out", vec![*last]),
        ("conv_out", vec![2 * config.latent_channels, *last, 3, 3]),
    ] {
        put(format!("encoder.{name}.weight"), &shape);
        put(format!("encoder.{name}.bias"), &shape[..1]);
    }
    found
}

/// Mean and standard deviation of a tensor's values: such that activations keep about the size that they
/// have in the trained model, from the first block to the last.
pub(super) fn spread(component: &str, tensor: &Named) -> (f64, f64) {
    let name = tensor.name.as_str();
    let fan_in = tensor.shape.iter().skip(1).product::<u64>().max(1) as f64;
    let is_bias = name.ends_with(".bias");
    if tensor.shape.len() == 1 {
        return if is_bias { (0.0, 0.02) } else { (1.0, 0.1) };
    }
    if name.contains("relative_attention_bias") {
        return (0.0, 1.0);
    }
    if component == flux::CLIP && name.contains("embedding") {
        return (0.0, 0.02);
    }
    if name.contains("shared") || name.contains("embed_tokens") {
        return (0.0, 1.0);
    }
    let gain = if component == flux::T5 && name.ends_with("SelfAttention.q.weight") {
        // T5 does not divide its scores by the root of the head's width; its queries are that much smaller.
        0.125
    } else if component == flux::TRANSFORMER && name.contains("norm") {
        // Modulation: shifts, scales and gates of some tenths.
        0.3
    } else if name == "decoder.conv_out.weight" {
        // Pixels between black and white, mostly.
        0.4
    } else {
        1.0
    };
    (0.0, gain / fan_in.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Published sizes: the transformer's 11,901,408,320 parameters, T5-XXL's encoder 4,762,310,656, CLIP-L's
    /// text half 123,060,480, the VAE's 83,819,683.
    #[test]
    fn flux_dev_has_the_published_number_of_parameters() {
        let components = by_component(&FluxModel::dev()).expect("FLUX.1-dev");
        let count = |name: &str| -> u64 {
            components[name].iter().map(|tensor| tensor.shape.iter().product::<u64>()).sum()
        };
        assert_eq!(count(flux::TRANSFORMER), 11_901_408_320);
        assert_eq!(count(flux::T5), 4_762_310_656);
        assert_eq!(count(flux::CLIP), 123_060_480);
        assert_eq!(count(flux::VAE), 83_819_683);
        for tensors in components.values() {
            let names: std::collections::BTreeSet<_> =
                tensors.iter().map(|tensor| &tensor.name).collect();
            assert_eq!(names.len(), tensors.len());
        }
    }
}
