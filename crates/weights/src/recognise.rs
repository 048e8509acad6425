//! Tells from tensor names which model a safetensors file holds and how its weights are coded.
//!
//! Names are all there is: files carry no trustworthy description of themselves.
//! The order of the rules matters, because relatives share names: Chroma and HunyuanVideo files
//! also hold FLUX.1-like tensors, a FLUX ControlNet holds FLUX blocks.
//! Source of the original-layout keys: huggingface/diffusers 58eb52c,
//! `src/diffusers/loaders/single_file_utils.py`, `CHECKPOINT_KEY_NAMES`.

use std::collections::{BTreeMap, BTreeSet};

use crate::layout::{Architecture, Layout};
use crate::packed::PACK_KEY;

/// What a set of tensors is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recognised {
    /// The model.
    pub(crate) architecture: Architecture,
    /// How it is stored.
    pub(crate) layout: Layout,
    /// What stands before the model's own names, such as `model.diffusion_model.`.
    pub(crate) prefix: &'static str,
}

/// Prefixes that tools put before a transformer's names.
const PREFIXES: [&str; 7] = [
    "",
    "model.diffusion_model.",
    "diffusion_model.",
    "transformer.",
    "net.",
    "model.",
    "model.diffusion_model.model.diffusion_model.",
];

/// The parts of an all-in-one checkpoint: prefix and component. Longer prefixes come first.
pub(crate) const PARTS: [(&str, &str); 12] = [
    ("model.diffusion_model.", "transformer"),
    ("text_encoders.clip_l.transformer.", "text_encoder"),
    ("text_encoders.clip_l.", "text_encoder"),
    ("text_encoders.t5xxl.transformer.", "text_encoder_2"),
    ("text_encoders.t5xxl.", "text_encoder_2"),
    ("text_encoders.", "text_encoder_3"),
    ("conditioner.embedders.0.transformer.", "text_encoder"),
    ("conditioner.embedders.1.model.", "text_encoder_2"),
    ("conditioner.", "text_encoder"),
    ("cond_stage_model.transformer.", "text_encoder"),
    ("vae.", "vae"),
    ("first_stage_model.", "vae"),
];

/// A name that only this architecture has, with whose names the file then uses. First hit wins.
const RULES: [(&str, Architecture, Layout); 55] = {
    use Architecture as A;
    use Layout::{Diffusers as D, Original as O};
    [
        ("single_stream_modulation.lin.weight", A::Flux2, O),
        ("single_stream_modulation.linear.weight", A::Flux2, D),
        ("distilled_guidance_layer.in_proj.bias", A::Chroma, O),
        ("distilled_guidance_layer.in_proj.weight", A::Chroma, O),
        ("controlnet_x_embedder.weight", A::ControlNet, D),
        ("controlnet_blocks.0.weight", A::ControlNet, D),
        ("controlnet_cond_embedding.conv_in.weight", A::ControlNet, D),
        ("control_model.time_embed.0.weight", A::ControlNet, O),
        ("input_hint_block.0.weight", A::ControlNet, O),
        ("ip_adapter_proj_model.proj.weight", A::ImagePrompt, O),
        ("image_proj.proj.weight", A::ImagePrompt, O),
        ("redux_up.weight", A::ImagePrompt, O),
        ("txt_in.individual_token_refiner.blocks.0.adaLN_modulation.1.bias", A::HunyuanVideo, O),
        ("context_embedder.token_refiner.refiner_blocks.0.attn.to_q.weight", A::HunyuanVideo, D),
        ("double_blocks.0.img_attn.norm.key_norm.scale", A::Flux1, O),
        ("double_blocks.0.img_attn.qkv.weight", A::Flux1, O),
        ("single_blocks.0.linear1.weight", A::Flux1, O),
        ("joint_blocks.0.context_block.adaLN_modulation.1.bias", A::StableDiffusion3, O),
        ("pos_embed.proj.weight", A::StableDiffusion3, D),
        ("transformer_blocks.0.img_mod.1.weight", A::QwenImage, D),
        ("single_transformer_blocks.0.proj_mlp.weight", A::Flux1, D),
        ("single_transformer_blocks.0.attn.norm_q.weight", A::Flux1, D),
        ("time_text_embed.text_embedder.linear_1.weight", A::Flux1, D),
        ("transformer_blocks.0.norm1_context.linear.weight", A::Flux1, D),
        ("head.modulation", A::Wan, O),
        ("condition_embedder.time_proj.weight", A::Wan, D),
        ("label_emb.0.0.weight", A::Sdxl, O),
        ("add_embedding.linear_1.weight", A::Sdxl, D),
        ("input_blocks.0.0.weight", A::StableDiffusion1, O),
        ("time_embedding.linear_1.weight", A::StableDiffusion1, D),
        ("patchify_proj.weight", A::LtxVideo, O),
        ("layers.0.adaLN_modulation.0.weight", A::ZImage, O),
        ("cap_embedder.0.weight", A::Lumina2, O),
        ("double_stream_blocks.0.block.adaLN_modulation.1.bias", A::HiDream, D),
        ("blocks.0.attn.qkv_x.weight", A::Mochi, O),
        ("double_layers.0.attn.w1q.weight", A::AuraFlow, O),
        ("blocks.0.cross_attn.q_linear.weight", A::Sana, O),
        ("blocks.block1.blocks.0.block.attn.to_q.0.weight", A::Cosmos, O),
        ("x_embedder.proj.1.weight", A::Cosmos, O),
        ("encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight", A::Umt5Encoder, D),
        ("encoder.block.0.layer.0.SelfAttention.q.weight", A::T5Encoder, D),
        ("encoder.final_layer_norm.weight", A::T5Encoder, D),
        ("enc.blk.0.attn_q.weight", A::T5Encoder, O),
        ("text_model.embeddings.token_embedding.weight", A::ClipText, D),
        ("text_model.encoder.layers.0.self_attn.q_proj.weight", A::ClipText, D),
        ("embeddings.token_embedding.weight", A::ClipText, D),
        ("vision_model.embeddings.patch_embedding.weight", A::ImageEncoder, D),
        ("transformer.resblocks.0.attn.in_proj_weight", A::OpenClipText, O),
        ("decoder.middle.0.residual.0.gamma", A::WanVae, O),
        ("decoder.mid_block.resnets.0.norm1.gamma", A::WanVae, D),
        ("decoder.up_blocks.0.resnets.0.conv1.weight", A::AutoencoderKl, D),
        ("decoder.mid_block.resnets.0.conv1.weight", A::AutoencoderKl, D),
        ("decoder.mid.block_1.conv1.weight", A::AutoencoderKl, O),
        ("encoder.mid.block_1.conv1.weight", A::AutoencoderKl, O),
        ("layers.0.self_attn.q_proj.weight", A::LanguageModel, D),
    ]
};

/// Recognises a set of tensors by its names and the file's metadata.
pub(crate) fn recognise<'a>(
    names: impl Iterator<Item = &'a str>,
    metadata: &BTreeMap<String, String>,
) -> Recognised {
    let names: BTreeSet<&str> = names.collect();
    let coding = coding(&names, metadata);
    let begins = |prefix: &str| names.iter().any(|name| name.starts_with(prefix));
    if names.iter().any(|name| is_adapter(name)) {
        let layout = coding.unwrap_or(Layout::Original);
        return Recognised { architecture: Architecture::Lora, layout, prefix: "" };
    }
    let (architecture, named, prefix) = architecture(&names);
    let others =
        ["text_encoders.", "conditioner.", "cond_stage_model.", "vae.", "first_stage_model."];
    let is_all_in_one =
        begins("model.diffusion_model.") && others.iter().any(|other| begins(other));
    let is_packed = metadata.contains_key(PACK_KEY)
        && named == Layout::Diffusers
        && coding.is_none_or(|coding| coding == Layout::ScaledWeights);
    let layout = match coding {
        _ if is_all_in_one => Layout::ComfyAllInOne,
        _ if is_packed => Layout::Packed,
        coding => coding.unwrap_or(named),
    };
    Recognised { architecture, layout, prefix }
}

fn architecture(names: &BTreeSet<&str>) -> (Architecture, Layout, &'static str) {
    let mut prefixed = String::new();
    for (needle, architecture, layout) in RULES {
        for prefix in PREFIXES {
            prefixed.clear();
            prefixed.push_str(prefix);
            prefixed.push_str(needle);
            if names.contains(prefixed.as_str()) {
                return (architecture, layout, prefix);
            }
        }
    }
    (Architecture::Unknown, Layout::Original, "")
}

/// The coding of the weights, if they are not plain numbers.
fn coding(names: &BTreeSet<&str>, metadata: &BTreeMap<String, String>) -> Option<Layout> {
    if metadata.get("quantization_config").is_some_and(|text| text.contains("svdquant")) {
        return Some(Layout::SvdQuant);
    }
    if metadata.contains_key("_quantization_metadata") {
        return Some(Layout::ComfyQuant);
    }
    // One scale tensor may belong to several families; the most telling mark of the file decides.
    names.iter().filter_map(|name| coding_of_name(name)).min()
}

/// The coding that one tensor name betrays. Families are ranked by [`Layout`]'s order.
fn coding_of_name(name: &str) -> Option<Layout> {
    let (parent, leaf) = name.rsplit_once('.').unwrap_or(("", name));
    let layout = match leaf {
        "absmax" | "nested_absmax" | "quant_map" | "nested_quant_map" => Layout::Bnb4Bit,
        "bitsandbytes__nf4" | "bitsandbytes__fp4" if parent.ends_with(".quant_state") => {
            Layout::Bnb4Bit
        }
        "SCB" => Layout::Bnb8Bit,
        "wscales" | "smooth_orig" | "wcscales" | "wtscale" | "lora_down" | "lora_up" => {
            Layout::SvdQuant
        }
        "qweight" | "qzeros" | "g_idx" => Layout::PackedInt4,
        "encoded_exponent" | "sign_mantissa" | "output_positions" => Layout::DFloat11,
        "scaled_fp8" | "scale_weight" | "scale_input" => Layout::ComfyScaledFp8,
        "comfy_quant" => Layout::ComfyQuant,
        "weight_scale" | "weight_scale_2" | "weight_scale_inv" | "input_scale" => {
            Layout::ScaledWeights
        }
        _ if leaf.starts_with("_weight_") => Layout::TorchAo,
        _ => return None,
    };
    Some(layout)
}

/// Whether a tensor is a difference to another model's weight.
fn is_adapter(name: &str) -> bool {
    const INNER: [&str; 14] = [
        ".lora_A.",
        ".lora_B.",
        ".lora_down.",
        ".lora_up.",
        ".lora.down.",
        ".lora.up.",
        "_lora.down.",
        "_lora.up.",
        "_lora1.down.",
        "_lora2.down.",
        ".lora_linear_layer.",
        ".lokr_",
        ".hada_",
        ".dora_scale",
    ];
    INNER.iter().any(|inner| name.contains(inner))
        || name.ends_with(".diff")
        || name.ends_with(".diff_b")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(names: &[&str], architecture: Architecture, layout: Layout, prefix: &str) {
        let found = recognise(names.iter().copied(), &BTreeMap::new());
        assert_eq!(
            (found.architecture, found.layout, found.prefix),
            (architecture, layout, prefix),
            "{names:?}"
        );
    }

    #[test]
    fn every_rule_is_reachable_and_alone_decides() {
        for (needle, architecture, layout) in RULES {
            check(&[needle], architecture, layout, "");
        }
    }

    #[test]
    fn relatives_of_flux_are_not_flux() {
        use Architecture as A;
        let flux = "double_blocks.0.img_attn.norm.key_norm.scale";
        check(&[flux], A::Flux1, Layout::Original, "");
        check(
            &["model.diffusion_model.double_blocks.0.img_attn.norm.key_norm.scale"],
            A::Flux1,
            Layout::Original,
            "model.diffusion_model.",
        );
        check(&[flux, "distilled_guidance_layer.in_proj.bias"], A::Chroma, Layout::Original, "");
        check(&[flux, "single_stream_modulation.lin.weight"], A::Flux2, Layout::Original, "");
        check(&[flux, "double_blocks.0.img_attn.qkv.lora_A.weight"], A::Lora, Layout::Original, "");
        check(
            &["lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight"],
            A::Lora,
            Layout::Original,
            "",
        );
        check(
            &["transformer.transformer_blocks.0.attn.to_q.lora_B.default.weight"],
            A::Lora,
            Layout::Original,
            "",
        );
    }

    #[test]
    fn codings_are_told_apart() {
        use Architecture::Flux1;
        let diffusers = "single_transformer_blocks.0.attn.norm_q.weight";
        let bfl = "double_blocks.0.img_attn.norm.key_norm.scale";
        check(&[diffusers, "a.qweight", "a.wscales", "a.lora_down"], Flux1, Layout::SvdQuant, "");
        check(
            &[bfl, "a.weight", "a.weight.absmax", "a.weight.quant_state.bitsandbytes__nf4"],
            Flux1,
            Layout::Bnb4Bit,
            "",
        );
        check(&[bfl, "scaled_fp8", "a.scale_weight"], Flux1, Layout::ComfyScaledFp8, "");
        check(&[bfl, "a.comfy_quant", "a.weight_scale"], Flux1, Layout::ComfyQuant, "");
        check(&[bfl, "a.weight_scale"], Flux1, Layout::ScaledWeights, "");
        check(&[diffusers, "a.encoded_exponent", "a.sign_mantissa"], Flux1, Layout::DFloat11, "");
        check(&[diffusers, "a.qweight", "a.qzeros"], Flux1, Layout::PackedInt4, "");
        let metadata = [("_quantization_metadata".to_owned(), "{}".to_owned())].into();
        assert_eq!(recognise([bfl].into_iter(), &metadata).layout, Layout::ComfyQuant);
    }

    #[test]
    fn an_all_in_one_checkpoint_is_more_than_its_transformer() {
        let transformer = "model.diffusion_model.double_blocks.0.img_attn.norm.key_norm.scale";
        check(
            &[transformer, "vae.decoder.conv_in.weight"],
            Architecture::Flux1,
            Layout::ComfyAllInOne,
            "model.diffusion_model.",
        );
        check(
            &["model.diffusion_model.label_emb.0.0.weight", "conditioner.embedders.0.x"],
            Architecture::Sdxl,
            Layout::ComfyAllInOne,
            "model.diffusion_model.",
        );
    }
}
