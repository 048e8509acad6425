//! T5 v1.1 encoder: relative position bias, RMS norms, gated GELU, no biases, no mask.
//!
//! Source: `T5EncoderModel` of transformers; FLUX passes no attention mask, so padding is attended to.

use plimsoll_graph::{Activation, Builder, DType, Dependence, Norm, PhaseKind, Residual, Value};
use serde::Deserialize;

use crate::ModelError;
use crate::config::{COUNT_MAX, WIDTH_MAX, bounded, check, parse};
use crate::layers::{stacked, vector};

/// Fields of `text_encoder_2/config.json` that shape the encoder.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct T5Config {
    /// Width of the residual stream.
    pub d_model: u64,
    /// Width of a head.
    pub d_kv: u64,
    /// Width of the feed-forward layer.
    pub d_ff: u64,
    /// Heads.
    pub num_heads: u64,
    /// Blocks.
    pub num_layers: u64,
    /// Rows of the embedding.
    pub vocab_size: u64,
    /// Buckets of the relative position bias.
    #[serde(default = "buckets")]
    pub relative_attention_num_buckets: u64,
    /// Distance from which all positions share the last bucket.
    #[serde(default = "distance")]
    pub relative_attention_max_distance: u64,
    /// Added to the mean square.
    #[serde(default = "epsilon")]
    pub layer_norm_epsilon: f32,
    /// `gated-gelu` is the one that FLUX's encoders have.
    #[serde(default = "relu")]
    pub feed_forward_proj: String,
}

fn buckets() -> u64 {
    32
}
fn distance() -> u64 {
    128
}
fn epsilon() -> f32 {
    1e-6
}
fn relu() -> String {
    "relu".to_owned()
}

impl T5Config {
    /// T5 v1.1 XXL, the encoder of FLUX.1 and SD3.
    pub fn xxl() -> Self {
        Self {
            d_model: 4096,
            d_kv: 64,
            d_ff: 10240,
            num_heads: 64,
            num_layers: 24,
            vocab_size: 32128,
            relative_attention_num_buckets: buckets(),
            relative_attention_max_distance: distance(),
            layer_norm_epsilon: epsilon(),
            feed_forward_proj: "gated-gelu".to_owned(),
        }
    }

    /// UMT5 XXL, the encoder of Wan: more words, and a bias table in every block.
    pub fn umt5_xxl() -> Self {
        Self { vocab_size: 256_384, ..Self::xxl() }
    }

    /// Reads and checks a `config.json`.
    ///
    /// # Errors
    /// [`ModelError::Config`] where a field is missing, [`ModelError::Value`] where one is out of range.
    pub fn from_json(component: &str, json: &str) -> Result<Self, ModelError> {
        let config: Self = parse(component, json)?;
        for (field, value, max) in [
            ("d_model", config.d_model, WIDTH_MAX),
            ("d_kv", config.d_kv, WIDTH_MAX),
            ("d_ff", config.d_ff, WIDTH_MAX),
            ("num_heads", config.num_heads, COUNT_MAX),
            ("num_layers", config.num_layers, COUNT_MAX),
            ("vocab_size", config.vocab_size, 1 << 24),
            ("relative_attention_num_buckets", config.relative_attention_num_buckets, 1 << 16),
            ("relative_attention_max_distance", config.relative_attention_max_distance, 1 << 20),
        ] {
            bounded(component, field, value, max)?;
        }
        let half = config.relative_attention_num_buckets / 2;
        let spread = config.relative_attention_num_buckets.is_multiple_of(2)
            && half >= 2
            && config.relative_attention_max_distance > half / 2;
        check(component, "relative_attention_num_buckets", half * 2, spread, || {
            "an even number above 2 with its half below twice the distance".to_owned()
        })?;
        check(
            component,
            "feed_forward_proj",
            &config.feed_forward_proj,
            config.feed_forward_proj == "gated-gelu",
            || "gated-gelu".to_owned(),
        )?;
        let eps = config.layer_norm_epsilon;
        check(component, "layer_norm_epsilon", eps, eps > 0.0 && eps < 1.0, || {
            "0 to 1".to_owned()
        })?;
        Ok(config)
    }

    /// Traces the encoder over `tokens` tokens; gives the last hidden state `[tokens, d_model]`.
    ///
    /// Host inputs: `t5.ids` `[tokens, 1]`, `t5.buckets` `[2 * tokens - 1, 1]`.
    pub(crate) fn trace(&self, b: &mut Builder<'_>, component: &str, tokens: u64) -> Value {
        let [states] = self.trace_prompts(b, component, tokens, false, [""]);
        states
    }

    /// The same over several prompts of one length, whose ops are named apart by `suffixes`; each block's weights
    /// serve all of them. UMT5 has a bias table of its own in every block.
    pub(crate) fn trace_prompts<const N: usize>(
        &self,
        b: &mut Builder<'_>,
        component: &str,
        tokens: u64,
        is_umt5: bool,
        suffixes: [&str; N],
    ) -> [Value; N] {
        let id = b.component(component);
        let (d, heads) = (self.d_model, self.num_heads);
        let inner = heads * self.d_kv;
        b.phase(PhaseKind::Encode, &format!("encode {component}"));

        b.block(id, "t5.embed");
        let table = [self.vocab_size, d];
        let xs = suffixes.map(|s| b.gather(&format!("t5{s}"), "shared.weight", table, tokens));
        let buckets = b.input("t5.buckets", 2 * tokens - 1, 1, DType::U32, Dependence::Run);

        let mut bias = None;
        for layer in 0..self.num_layers {
            b.block(id, format!("t5.block.{layer}"));
            let at = format!("encoder.block.{layer}.layer");
            if is_umt5 {
                bias = None;
            }
            let bias = *bias.get_or_insert_with(|| {
                let name = format!("{at}.0.SelfAttention.relative_attention_bias.weight");
                let shape = vec![self.relative_attention_num_buckets, heads];
                let table = b.weight("relative_attention_bias", &[(name, shape)]);
                b.expand_bias("bias", table, buckets)
            });

            let norm = vector(b, &format!("{at}.0.layer_norm.weight"), d);
            let [q, k, v, o] =
                ["q", "k", "v", "o"].map(|name| format!("{at}.0.SelfAttention.{name}"));
            let qkv = stacked(b, "qkv", &[(&q, inner), (&k, inner), (&v, inner)], d, false);
            let o = stacked(b, "o", &[(&o, d)], inner, false);
            let ff_norm = vector(b, &format!("{at}.1.layer_norm.weight"), d);
            let [gate, up, down] =
                ["wi_0", "wi_1", "wo"].map(|name| format!("{at}.1.DenseReluDense.{name}"));
            let wi = stacked(b, "wi", &[(&gate, self.d_ff), (&up, self.d_ff)], d, false);
            let wo = stacked(b, "wo", &[(&down, d)], self.d_ff, false);
            for (x, s) in xs.into_iter().zip(suffixes) {
                let eps = self.layer_norm_epsilon;
                let n = b.norm(&format!("norm{s}"), x, Norm::Rms { eps, weight: norm });
                let qkv = b.linear(&format!("qkv{s}"), n, qkv.weight, None, Activation::None);
                let heads_of = [0, inner, 2 * inner].map(|col| qkv.slice_cols(col, inner));
                let name = format!("attention{s}");
                let attended = b.buffer(&name, tokens, inner, b.dtype(), Dependence::Run);
                // T5 does not scale its scores; the initialisation of Q does.
                b.attention_into(&name, heads_of, heads, 1.0, false, Some(bias), attended);
                let residual = Some(Residual { base: x, gate: None });
                let plain = Activation::None;
                let name = format!("o{s}");
                b.linear_into(&name, attended, o.weight, None, plain, residual.clone(), x);

                let n = b.norm(&format!("ff_norm{s}"), x, Norm::Rms { eps, weight: ff_norm });
                let wide = b.linear(&format!("wi{s}"), n, wi.weight, None, plain);
                let wide = b.glu_gelu(&format!("gelu{s}"), wide);
                b.linear_into(&format!("wo{s}"), wide, wo.weight, None, plain, residual, x);
            }
        }

        b.block(id, "t5.final");
        let weight = vector(b, "encoder.final_layer_norm.weight", d);
        let mut at = 0;
        xs.map(|x| {
            let name = format!("last_hidden_state{}", suffixes[at]);
            at += 1;
            b.norm(&name, x, Norm::Rms { eps: self.layer_norm_epsilon, weight })
        })
    }
}
