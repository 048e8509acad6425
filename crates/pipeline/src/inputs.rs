//! The host's values of a run, in the order of the graph's inputs.

use bytemuck::cast_slice;
use half::bf16;
use plimsoll_graph::{Graph, Input};
use plimsoll_models::{FluxRun, flux};

use crate::assembled::Assembled;
use crate::failure::PipelineError;
use crate::host_tables::{RotaryTable, pack_latent, t5_position_buckets};
use crate::noise::TorchGenerator;
use crate::scheduler::TimestepRounding;
use crate::tokenize::pooled_position;

/// Base of the rotary frequencies of FLUX.1.
const ROPE_THETA: f64 = 10_000.0;

/// Which generator's stream the initial latent is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NoiseSource {
    /// Drawn in f32, whatever the run's dtype: the same latent in every mode and as in ComfyUI.
    #[default]
    F32,
    /// Drawn in the run's dtype, as a bf16 diffusers pipeline does.
    Diffusers,
}

/// What makes one picture other than the next.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// Text, for both encoders.
    pub text: String,
    /// Seed of the first picture; the next ones take the next seeds.
    pub seed: u64,
    /// Distilled guidance; ignored by a model that takes none.
    pub guidance: f32,
    /// Source of the initial latent.
    pub noise: NoiseSource,
}

/// Host bytes by input, and what the prompt lost.
pub(crate) struct Inputs {
    pub(crate) bytes: Vec<Vec<u8>>,
    pub(crate) notices: Vec<String>,
}

/// Computes every input of `graph`.
pub(crate) fn inputs(
    assembled: &Assembled,
    graph: &Graph,
    run: &FluxRun,
    prompt: &Prompt,
) -> Result<Inputs, PipelineError> {
    if !prompt.guidance.is_finite() || !(0.0..=1000.0).contains(&prompt.guidance) {
        let (what, value) = ("guidance", prompt.guidance.to_string());
        return Err(PipelineError::Request { what, value, expected: "a number from 0 to 1000" });
    }
    let model = &assembled.model;
    let [rows, cols] = model.image_tokens(run)?;
    let schedule = assembled.scheduler.schedule(run.steps, rows * cols, TimestepRounding::F32)?;
    let encode = |component: &'static str, length: u64| {
        let tokenizer = if component == "tokenizer" {
            &assembled.clip_tokenizer
        } else {
            &assembled.t5_tokenizer
        };
        tokenizer
            .encode(&prompt.text, usize::try_from(length).unwrap_or(usize::MAX))
            .map_err(|cause| PipelineError::Tokenizer { component, cause })
    };
    let clip = encode("tokenizer", model.clip.max_position_embeddings)?;
    let t5 = encode("tokenizer_2", run.text_tokens)?;
    let mut notices = Vec::new();
    for (encoder, tokens) in [("CLIP", &clip), ("T5", &t5)] {
        if let Some(dropped) = &tokens.dropped {
            let length = tokens.ids.len();
            notices.push(format!("{encoder} reads {length} tokens and not: {}", excerpt(dropped)));
        }
    }

    let bytes = graph
        .inputs
        .iter()
        .map(|input| {
            Ok(match input.name.as_str() {
                "clip.ids" => cast_slice(&clip.ids).to_vec(),
                "clip.eos" => {
                    let position = pooled_position(&clip.ids, model.clip.eos_token_id);
                    u32::try_from(position).unwrap_or(u32::MAX).to_ne_bytes().to_vec()
                }
                "t5.ids" => cast_slice(&t5.ids).to_vec(),
                "t5.buckets" => {
                    let t5 = &model.t5;
                    let buckets = t5_position_buckets(
                        small(run.text_tokens),
                        small(t5.relative_attention_num_buckets),
                        small(t5.relative_attention_max_distance),
                    )?;
                    cast_slice(&buckets).to_vec()
                }
                "noise" => noise(assembled, run, prompt, input, [2 * rows, 2 * cols])?,
                "timestep" => cast_slice(&schedule.timesteps).to_vec(),
                "dsigma" => cast_slice(&schedule.deltas).to_vec(),
                "guidance" => prompt.guidance.to_ne_bytes().to_vec(),
                "rope" => {
                    let axes = &model.transformer.axes_dims_rope;
                    let axes = [0, 1, 2].map(|axis| small(axes[axis]));
                    let text = small(run.text_tokens);
                    let table =
                        RotaryTable::flux(text, small(rows), small(cols), axes, ROPE_THETA)?;
                    cast_slice(&table.values).to_vec()
                }
                other => unreachable!("the {} graph has no input {other}", flux::TRANSFORMER),
            })
        })
        .collect::<Result<_, PipelineError>>()?;
    Ok(Inputs { bytes, notices })
}

/// The packed initial latent of one sample.
fn noise(
    assembled: &Assembled,
    run: &FluxRun,
    prompt: &Prompt,
    input: &Input,
    [height, width]: [u64; 2],
) -> Result<Vec<u8>, PipelineError> {
    let channels = assembled.model.vae.latent_channels;
    let [channels, height, width] = [channels, height, width].map(|side| small(side) as usize);
    let seed = prompt.seed.wrapping_add(u64::from(input.sample.unwrap_or(0)));
    let mut generator = TorchGenerator::new(seed);
    let mut latent = vec![0.0f32; channels * height * width];
    let in_bf16 =
        prompt.noise == NoiseSource::Diffusers && run.dtype == plimsoll_graph::DType::BF16;
    if in_bf16 {
        let mut drawn = vec![bf16::ZERO; latent.len()];
        generator.fill_bf16(&mut drawn);
        for (to, from) in latent.iter_mut().zip(drawn) {
            *to = from.to_f32();
        }
    } else {
        generator.fill_f32(&mut latent);
    }
    let packed = pack_latent(&latent, channels, height, width)?;
    Ok(cast_slice(&packed).to_vec())
}

/// The model has bounded its sizes far below `u32::MAX`.
fn small(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// Enough of a text to know it by.
fn excerpt(text: &str) -> String {
    const CHARS: usize = 80;
    if text.chars().count() <= CHARS {
        return format!("\"{text}\"");
    }
    let head: String = text.chars().take(CHARS).collect();
    format!("\"{head}...\" ({} characters)", text.chars().count())
}
