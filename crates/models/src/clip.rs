//! CLIP text encoder: causal attention, quick GELU, the last hidden state at the end-of-text token.
//!
//! Source: `CLIPTextModel` of transformers. FLUX takes the pooled state after the final norm, without the
//! text projection.

use plimsoll_graph::{Activation, Builder, DType, Dependence, Norm, PhaseKind, Residual, Value};
use serde::Deserialize;

use crate::ModelError;
use crate::config::{COUNT_MAX, WIDTH_MAX, bounded, check, parse};
use crate::layers::{affine, linear, stacked};

/// Fields of `text_encoder/config.json` that shape the encoder.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct ClipConfig {
    /// Width of the residual stream.
    pub hidden_size: u64,
    /// Width of the feed-forward layer.
    pub intermediate_size: u64,
    /// Heads.
    pub num_attention_heads: u64,
    /// Blocks.
    pub num_hidden_layers: u64,
    /// Rows of the token embedding.
    pub vocab_size: u64,
    /// Rows of the position embedding.
    pub max_position_embeddings: u64,
    /// Id of the end-of-text token; 2 in old configurations, whatever the tokenizer says.
    pub eos_token_id: u32,
    /// `quick_gelu`, or `gelu_new`/`gelu_pytorch_tanh`.
    pub hidden_act: String,
    /// Added to the variance.
    #[serde(default = "epsilon")]
    pub layer_norm_eps: f32,
}

fn epsilon() -> f32 {
    1e-5
}

impl ClipConfig {
    /// The text half of `clip-vit-large-patch14`.
    pub fn vit_l() -> Self {
        Self {
            hidden_size: 768,
            intermediate_size: 3072,
            num_attention_heads: 12,
            num_hidden_layers: 12,
            vocab_size: 49408,
            max_position_embeddings: 77,
            eos_token_id: 49407,
            hidden_act: "quick_gelu".to_owned(),
            layer_norm_eps: epsilon(),
        }
    }

    /// Reads and checks a `config.json`.
    ///
    /// # Errors
    /// [`ModelError::Config`] where a field is missing, [`ModelError::Value`] where one is out of range.
    pub fn from_json(component: &str, json: &str) -> Result<Self, ModelError> {
        let config: Self = parse(component, json)?;
        for (field, value, max) in [
            ("hidden_size", config.hidden_size, WIDTH_MAX),
            ("intermediate_size", config.intermediate_size, WIDTH_MAX),
            ("num_attention_heads", config.num_attention_heads, COUNT_MAX),
            ("num_hidden_layers", config.num_hidden_layers, COUNT_MAX),
            ("vocab_size", config.vocab_size, 1 << 24),
            ("max_position_embeddings", config.max_position_embeddings, 1 << 16),
        ] {
            bounded(component, field, value, max)?;
        }
        let heads = config.num_attention_heads;
        check(
            component,
            "num_attention_heads",
            heads,
            config.hidden_size.is_multiple_of(heads),
            || format!("a divisor of hidden_size {}", config.hidden_size),
        )?;
        let known = config.activation().is_some();
        check(component, "hidden_act", &config.hidden_act, known, || {
            "quick_gelu or gelu_pytorch_tanh".to_owned()
        })?;
        let eps = config.layer_norm_eps;
        check(component, "layer_norm_eps", eps, eps > 0.0 && eps < 1.0, || "0 to 1".to_owned())?;
        Ok(config)
    }

    fn activation(&self) -> Option<Activation> {
        match self.hidden_act.as_str() {
            "quick_gelu" => Some(Activation::QuickGelu),
            "gelu_new" | "gelu_pytorch_tanh" => Some(Activation::GeluTanh),
            _ => None,
        }
    }

    /// Traces the encoder; gives the pooled state `[1, hidden_size]`.
    ///
    /// Host inputs: `clip.ids` `[positions, 1]`, `clip.eos` `[1, 1]`, the row of the end-of-text token.
    pub(crate) fn trace(&self, b: &mut Builder<'_>, component: &str) -> Value {
        let id = b.component(component);
        let (d, heads, tokens) =
            (self.hidden_size, self.num_attention_heads, self.max_position_embeddings);
        #[expect(clippy::cast_precision_loss, reason = "a head's width is far below 2^24")]
        let scale = ((d / heads) as f32).sqrt().recip();
        b.phase(PhaseKind::Encode, &format!("encode {component}"));

        b.block(id, "clip.embed");
        let table = "text_model.embeddings.token_embedding.weight";
        let embedded = b.gather("clip", table, [self.vocab_size, d], tokens);
        let eos = b.input("clip.eos", 1, 1, DType::U32, Dependence::Run);
        let name = "text_model.embeddings.position_embedding.weight".to_owned();
        let positions = b.weight("position_embedding", &[(name, vec![tokens, d])]);
        let x = b.add_weight("x", embedded, positions);

        let activation = self.activation().unwrap_or(Activation::QuickGelu);
        for layer in 0..self.num_hidden_layers {
            let at = format!("text_model.encoder.layers.{layer}");
            b.block(id, format!("clip.layer.{layer}"));
            let n = self.layer_norm(b, "norm1", &format!("{at}.layer_norm1"), x);
            let [q, k, v] =
                ["q_proj", "k_proj", "v_proj"].map(|name| format!("{at}.self_attn.{name}"));
            let qkv = stacked(b, "qkv", &[(&q, d), (&k, d), (&v, d)], d, true);
            let qkv = b.linear("qkv", n, qkv.weight, qkv.bias, Activation::None);
            let attended = b.buffer("attention", tokens, d, b.dtype(), Dependence::Run);
            let heads_of = [0, d, 2 * d].map(|col| qkv.slice_cols(col, d));
            b.attention_into("attention", heads_of, heads, scale, true, None, attended);
            let out = linear(b, &format!("{at}.self_attn.out_proj"), d, d);
            let residual = Some(Residual { base: x, gate: None });
            let plain = Activation::None;
            b.linear_into("out", attended, out.weight, out.bias, plain, residual.clone(), x);

            let n = self.layer_norm(b, "norm2", &format!("{at}.layer_norm2"), x);
            let fc1 = linear(b, &format!("{at}.mlp.fc1"), self.intermediate_size, d);
            let wide = b.linear("fc1", n, fc1.weight, fc1.bias, activation);
            let fc2 = linear(b, &format!("{at}.mlp.fc2"), d, self.intermediate_size);
            b.linear_into("fc2", wide, fc2.weight, fc2.bias, plain, residual, x);
        }

        b.block(id, "clip.final");
        // A row's norm does not depend on the other rows: pick the row first.
        let row = b.select_row("eos", x, eos);
        self.layer_norm(b, "pooled", "text_model.final_layer_norm", row)
    }

    fn layer_norm(&self, b: &mut Builder<'_>, label: &str, name: &str, x: Value) -> Value {
        let (weight, bias) = affine(b, name, self.hidden_size);
        b.norm(label, x, Norm::LayerAffine { eps: self.layer_norm_eps, weight, bias })
    }
}
