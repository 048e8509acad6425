//! Configuration of the FLUX.1 transformer.

use serde::Deserialize;

use crate::ModelError;
use crate::config::{COUNT_MAX, WIDTH_MAX, bounded, check, parse};

/// Fields of `transformer/config.json`.
///
/// Source: `FluxTransformer2DModel` of diffusers 0.42.1; defaults are its own.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct FluxConfig {
    /// Columns of a packed latent token, 4 x latent channels.
    #[serde(default = "in_channels")]
    pub in_channels: u64,
    /// Columns of the prediction; the same as `in_channels` where absent.
    #[serde(default)]
    pub out_channels: Option<u64>,
    /// Double-stream blocks.
    #[serde(default = "num_layers")]
    pub num_layers: u64,
    /// Single-stream blocks.
    #[serde(default = "num_single_layers")]
    pub num_single_layers: u64,
    /// Width of a head.
    #[serde(default = "attention_head_dim")]
    pub attention_head_dim: u64,
    /// Heads.
    #[serde(default = "num_attention_heads")]
    pub num_attention_heads: u64,
    /// Width of the T5 states.
    #[serde(default = "joint_attention_dim")]
    pub joint_attention_dim: u64,
    /// Width of the pooled CLIP state.
    #[serde(default = "pooled_projection_dim")]
    pub pooled_projection_dim: u64,
    /// Whether the distilled guidance is an input (dev) or not (schnell).
    #[serde(default)]
    pub guidance_embeds: bool,
    /// Rotary dimensions by axis: index, row, column.
    #[serde(default = "axes_dims_rope")]
    pub axes_dims_rope: Vec<u64>,
    /// Always 1: latents are packed 2x2 before they get here.
    #[serde(default = "patch_size")]
    pub patch_size: u64,
}

fn in_channels() -> u64 {
    64
}
fn num_layers() -> u64 {
    19
}
fn num_single_layers() -> u64 {
    38
}
fn attention_head_dim() -> u64 {
    128
}
fn num_attention_heads() -> u64 {
    24
}
fn joint_attention_dim() -> u64 {
    4096
}
fn pooled_projection_dim() -> u64 {
    768
}
fn axes_dims_rope() -> Vec<u64> {
    vec![16, 56, 56]
}
fn patch_size() -> u64 {
    1
}

impl FluxConfig {
    /// FLUX.1-dev: 11,901,408,320 parameters.
    pub fn dev() -> Self {
        Self {
            in_channels: in_channels(),
            out_channels: None,
            num_layers: num_layers(),
            num_single_layers: num_single_layers(),
            attention_head_dim: attention_head_dim(),
            num_attention_heads: num_attention_heads(),
            joint_attention_dim: joint_attention_dim(),
            pooled_projection_dim: pooled_projection_dim(),
            guidance_embeds: true,
            axes_dims_rope: axes_dims_rope(),
            patch_size: patch_size(),
        }
    }

    /// FLUX.1-schnell: 11,891,178,560 parameters.
    pub fn schnell() -> Self {
        Self { guidance_embeds: false, ..Self::dev() }
    }

    /// Width of the residual stream.
    pub fn hidden(&self) -> u64 {
        self.num_attention_heads * self.attention_head_dim
    }

    /// Width of the feed-forward layers.
    pub fn mlp_hidden(&self) -> u64 {
        4 * self.hidden()
    }

    /// Reads and checks a `config.json`.
    ///
    /// # Errors
    /// [`ModelError::Config`] where a field has another type, [`ModelError::Value`] where one is out of
    /// range.
    pub fn from_json(component: &str, json: &str) -> Result<Self, ModelError> {
        let config: Self = parse(component, json)?;
        config.check(component)?;
        Ok(config)
    }

    /// Checks that the fields fit together.
    ///
    /// # Errors
    /// [`ModelError::Value`] with the field.
    pub fn check(&self, component: &str) -> Result<(), ModelError> {
        for (field, value, max) in [
            ("in_channels", self.in_channels, COUNT_MAX),
            ("num_attention_heads", self.num_attention_heads, COUNT_MAX),
            ("attention_head_dim", self.attention_head_dim, COUNT_MAX),
            ("joint_attention_dim", self.joint_attention_dim, WIDTH_MAX),
            ("pooled_projection_dim", self.pooled_projection_dim, WIDTH_MAX),
            ("num_layers", self.num_layers, COUNT_MAX),
            ("num_single_layers", self.num_single_layers, COUNT_MAX),
        ] {
            bounded(component, field, value, max)?;
        }
        check(component, "patch_size", self.patch_size, self.patch_size == 1, || "1".to_owned())?;
        let out = self.out_channels.unwrap_or(self.in_channels);
        check(component, "out_channels", out, out == self.in_channels, || {
            format!("in_channels, {}: control and fill variants come later", self.in_channels)
        })?;
        let axes = &self.axes_dims_rope;
        let sum = axes.iter().fold(0u64, |sum, axis| sum.saturating_add(*axis));
        let even = axes.len() == 3 && axes.iter().all(|axis| *axis > 0 && axis % 2 == 0);
        check(
            component,
            "axes_dims_rope",
            format!("{axes:?}"),
            even && sum == self.attention_head_dim,
            || format!("three even numbers with the sum {}", self.attention_head_dim),
        )
    }
}
