//! The text files of a pipeline folder: configurations as diffusers and transformers write them, tokenizers
//! taken over from another folder.

use plimsoll_models::{FluxModel, flux};
use serde_json::{Value, json};

use crate::failure::Failure;

/// Folders whose files are taken over.
const TOKENIZERS: [&str; 2] = ["tokenizer", "tokenizer_2"];

/// Gives a file by its path in the folder; `None` where there is none.
type Reader<'r> = dyn Fn(&str) -> Result<Option<Vec<u8>>, Failure> + 'r;

/// Text files by relative path. `read` gives a file of the folder that the tokenizers come from.
pub(super) fn files(
    model: &FluxModel,
    read: &Reader<'_>,
) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    let donor_clip = parsed(read, "text_encoder/config.json")?.unwrap_or_default();
    let mut found = vec![
        ("model_index.json".to_owned(), index()),
        ("scheduler/scheduler_config.json".to_owned(), scheduler(model)),
        (format!("{}/config.json", flux::CLIP), clip(model, &donor_clip)),
        (format!("{}/config.json", flux::T5), t5(model)),
        (format!("{}/config.json", flux::TRANSFORMER), transformer(model)),
        (format!("{}/config.json", flux::VAE), vae(model)),
    ]
    .into_iter()
    .map(|(path, json)| (path, text(&json)))
    .collect::<Vec<_>>();
    let lengths = [77, if model.transformer.guidance_embeds { 512 } else { 256 }];
    for (folder, length) in TOKENIZERS.into_iter().zip(lengths) {
        let path = format!("{folder}/tokenizer_config.json");
        let mut config = parsed(read, &path)?
            .ok_or_else(|| Failure::Usage(format!("the folder of the tokenizers has no {path}")))?;
        config["model_max_length"] = json!(length);
        found.push((path, text(&config)));
        for name in [
            "tokenizer.json",
            "vocab.json",
            "merges.txt",
            "spiece.model",
            "special_tokens_map.json",
        ] {
            let path = format!("{folder}/{name}");
            if let Some(bytes) = read(&path)? {
                found.push((path, bytes));
            }
        }
    }
    Ok(found)
}

fn parsed(read: &Reader<'_>, path: &str) -> Result<Option<Value>, Failure> {
    let Some(bytes) = read(path)? else { return Ok(None) };
    let value = serde_json::from_slice(&bytes);
    value.map(Some).map_err(|error| Failure::Usage(format!("{path} is not JSON: {error}")))
}

fn text(value: &Value) -> Vec<u8> {
    let mut bytes = format!("{value:#}").into_bytes();
    bytes.push(b'\n');
    bytes
}

fn index() -> Value {
    json!({
        "_class_name": "FluxPipeline",
        "_diffusers_version": "0.42.1",
        "feature_extractor": [null, null],
        "image_encoder": [null, null],
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "text_encoder_2": ["transformers", "T5EncoderModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "tokenizer_2": ["transformers", "T5TokenizerFast"],
        "transformer": ["diffusers", "FluxTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    })
}

/// Dev shifts its sigmas by the picture's size, schnell does not.
fn scheduler(model: &FluxModel) -> Value {
    json!({
        "_class_name": "FlowMatchEulerDiscreteScheduler",
        "base_image_seq_len": 256,
        "base_shift": 0.5,
        "max_image_seq_len": 4096,
        "max_shift": 1.15,
        "num_train_timesteps": 1000,
        "shift": if model.transformer.guidance_embeds { 3.0 } else { 1.0 },
        "use_dynamic_shifting": model.transformer.guidance_embeds,
    })
}

/// The ids of special tokens are the tokenizer's own.
fn clip(model: &FluxModel, donor: &Value) -> Value {
    let clip = &model.clip;
    let eos = donor.get("eos_token_id").cloned().unwrap_or(json!(clip.eos_token_id));
    let bos = donor.get("bos_token_id").cloned().unwrap_or(json!(49406));
    json!({
        "architectures": ["CLIPTextModel"],
        "attention_dropout": 0.0,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": eos,
        "dtype": "bfloat16",
        "hidden_act": clip.hidden_act,
        "hidden_size": clip.hidden_size,
        "intermediate_size": clip.intermediate_size,
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": clip.max_position_embeddings,
        "model_type": "clip_text_model",
        "num_attention_heads": clip.num_attention_heads,
        "num_hidden_layers": clip.num_hidden_layers,
        "projection_dim": clip.hidden_size,
        "vocab_size": clip.vocab_size,
    })
}

fn t5(model: &FluxModel) -> Value {
    let t5 = &model.t5;
    json!({
        "architectures": ["T5EncoderModel"],
        "d_ff": t5.d_ff,
        "d_kv": t5.d_kv,
        "d_model": t5.d_model,
        "decoder_start_token_id": 0,
        "dense_act_fn": "gelu_new",
        "dropout_rate": 0.0,
        "dtype": "bfloat16",
        "eos_token_id": 1,
        "feed_forward_proj": t5.feed_forward_proj,
        "is_encoder_decoder": false,
        "is_gated_act": true,
        "layer_norm_epsilon": 1e-6,
        "model_type": "t5",
        "num_decoder_layers": t5.num_layers,
        "num_heads": t5.num_heads,
        "num_layers": t5.num_layers,
        "pad_token_id": 0,
        "relative_attention_max_distance": t5.relative_attention_max_distance,
        "relative_attention_num_buckets": t5.relative_attention_num_buckets,
        "tie_word_embeddings": false,
        "use_cache": false,
        "vocab_size": t5.vocab_size,
    })
}

fn transformer(model: &FluxModel) -> Value {
    let flux = &model.transformer;
    json!({
        "_class_name": "FluxTransformer2DModel",
        "attention_head_dim": flux.attention_head_dim,
        "axes_dims_rope": flux.axes_dims_rope,
        "guidance_embeds": flux.guidance_embeds,
        "in_channels": flux.in_channels,
        "joint_attention_dim": flux.joint_attention_dim,
        "num_attention_heads": flux.num_attention_heads,
        "num_layers": flux.num_layers,
        "num_single_layers": flux.num_single_layers,
        "out_channels": flux.out_channels,
        "patch_size": flux.patch_size,
        "pooled_projection_dim": flux.pooled_projection_dim,
    })
}

fn vae(model: &FluxModel) -> Value {
    let vae = &model.vae;
    let levels = vae.block_out_channels.len();
    json!({
        "_class_name": "AutoencoderKL",
        "act_fn": vae.act_fn,
        "block_out_channels": vae.block_out_channels,
        "down_block_types": vec!["DownEncoderBlock2D"; levels],
        "force_upcast": false,
        "in_channels": vae.out_channels,
        "latent_channels": vae.latent_channels,
        "layers_per_block": vae.layers_per_block,
        "mid_block_add_attention": vae.mid_block_add_attention,
        "norm_num_groups": vae.norm_num_groups,
        "out_channels": vae.out_channels,
        "sample_size": 1024,
        "scaling_factor": vae.scaling_factor,
        "shift_factor": vae.shift_factor,
        "up_block_types": vec!["UpDecoderBlock2D"; levels],
        "use_post_quant_conv": vae.use_post_quant_conv,
        "use_quant_conv": false,
    })
}
