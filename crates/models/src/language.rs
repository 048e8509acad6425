//! Language models as text encoders: Llama 3 (HunyuanVideo), Mistral Small 3 (FLUX.2), Qwen 3 (Z-Image).
//!
//! A decoder-only transformer is read up to the last layer whose states are used; the layers behind it, the last norm
//! and the head have no part in a run, so they are not in the graph. Files hold them all the same.

use plimsoll_graph::{Activation, Builder, DType, Dependence, Norm, PhaseKind, Residual, Value};

use crate::layers::{stacked, vector};

/// Sizes of a language model.
///
/// Source: `config.json` of each model, `LlamaModel`, `MistralModel` and `Qwen3Model` of transformers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LanguageModel {
    /// Prefix of block and op names.
    pub(crate) name: &'static str,
    /// Width of the residual stream.
    pub(crate) width: u64,
    /// Heads of queries, of 128.
    pub(crate) heads: u64,
    /// Heads of keys.
    pub(crate) kv_heads: u64,
    /// Width of the feed-forward layers.
    pub(crate) feed_forward: u64,
    /// Layers up to the last whose states are used.
    pub(crate) layers_used: u64,
    /// Words.
    pub(crate) vocabulary: u64,
    /// Whether heads of queries and keys are normalised (Qwen 3).
    pub(crate) has_head_norms: bool,
    /// Layers whose states are given, 1 for the first, ascending; the last is `layers_used`.
    pub(crate) taken: &'static [u64],
}

const HEAD_DIM: u64 = 128;

/// Llama 3 8B up to two layers before its end.
pub(crate) const LLAMA_3_8B: LanguageModel = LanguageModel {
    name: "llama",
    width: 4096,
    heads: 32,
    kv_heads: 8,
    feed_forward: 14_336,
    layers_used: 30,
    vocabulary: 128_320,
    has_head_norms: false,
    taken: &[30],
};

/// The language half of Mistral Small 3.2 24B, whose states after layers 10, 20 and 30 of 40 are laid side by side.
pub(crate) const MISTRAL_SMALL_24B: LanguageModel = LanguageModel {
    name: "mistral",
    width: 5120,
    heads: 32,
    kv_heads: 8,
    feed_forward: 32_768,
    layers_used: 30,
    vocabulary: 131_072,
    has_head_norms: false,
    taken: &[10, 20, 30],
};

/// Qwen 3 4B up to one layer before its end.
pub(crate) const QWEN_3_4B: LanguageModel = LanguageModel {
    name: "qwen",
    width: 2560,
    heads: 32,
    kv_heads: 8,
    feed_forward: 9728,
    layers_used: 35,
    vocabulary: 151_936,
    has_head_norms: true,
    taken: &[35],
};

impl LanguageModel {
    /// Traces the encoder over `tokens` tokens; gives the taken states side by side, `[tokens, width * taken]`.
    pub(crate) fn trace(&self, b: &mut Builder<'_>, component: &str, tokens: u64) -> Value {
        let Self { name, width, heads, kv_heads, feed_forward, .. } = *self;
        let id = b.component(component);
        let (inner, kv) = (heads * HEAD_DIM, kv_heads * HEAD_DIM);
        b.phase(PhaseKind::Encode, &format!("encode {component}"));
        b.block(id, format!("{name}.embed"));
        let words = [self.vocabulary, width];
        let x = b.gather(name, "model.embed_tokens.weight", words, tokens);
        let rope_name = format!("{name}.rope");
        let rope = b.input(&rope_name, tokens, HEAD_DIM, DType::F32, Dependence::Run);
        let several = u64::try_from(self.taken.len()).unwrap_or(1);
        let all = (several > 1)
            .then(|| b.buffer("states", tokens, several * width, b.dtype(), Dependence::Run));
        let mut taken = 0;
        for layer in 0..self.layers_used {
            b.block(id, format!("{name}.layer.{layer}"));
            let at = format!("model.layers.{layer}");
            let rms = |b: &mut Builder<'_>, name: &str| Norm::Rms {
                eps: 1e-5,
                weight: vector(b, &format!("{at}.{name}.weight"), width),
            };
            let norm = rms(b, "input_layernorm");
            let n = b.norm("norm", x, norm);
            let [q, k, v, o] =
                ["q", "k", "v", "o"].map(|name| format!("{at}.self_attn.{name}_proj"));
            let qkv = stacked(b, "qkv", &[(&q, inner), (&k, kv), (&v, kv)], width, false);
            let qkv = b.linear("qkv", n, qkv.weight, None, Activation::None);
            let (q, k) = (qkv.slice_cols(0, inner), qkv.slice_cols(inner, kv));
            if self.has_head_norms {
                for (name, x, heads) in [("q_norm", q, heads), ("k_norm", k, kv_heads)] {
                    let entry = format!("{at}.self_attn.{name}.weight");
                    let weight = vector(b, &entry, HEAD_DIM);
                    b.head_norm(name, x, weight, heads, 1e-6);
                }
            }
            b.rope("q.rope", q, rope, heads);
            b.rope("k.rope", k, rope, kv_heads);
            let attended = b.grouped_attention(
                "attention",
                [q, k, qkv.slice_cols(inner + kv, kv)],
                heads,
                kv_heads,
            );
            let o = stacked(b, "o", &[(&o, width)], inner, false);
            let residual = Some(Residual { base: x, gate: None });
            let plain = Activation::None;
            b.linear_into("o", attended, o.weight, None, plain, residual.clone(), x);

            let norm = rms(b, "post_attention_layernorm");
            let n = b.norm("ff_norm", x, norm);
            let [gate, up, down] =
                ["gate", "up", "down"].map(|name| format!("{at}.mlp.{name}_proj"));
            let wi = [(gate.as_str(), feed_forward), (up.as_str(), feed_forward)];
            let wi = stacked(b, "gate_up", &wi, width, false);
            let wide = b.linear("gate_up", n, wi.weight, None, plain);
            let wide = b.swiglu("swiglu", wide);
            let wo = stacked(b, "down", &[(&down, width)], feed_forward, false);
            b.linear_into("down", wide, wo.weight, None, plain, residual, x);
            if let Some(all) = all.filter(|_| self.taken.contains(&(layer + 1))) {
                b.copy("state", x, all.slice_cols(taken * width, width));
                taken += 1;
            }
        }
        all.unwrap_or(x)
    }
}
