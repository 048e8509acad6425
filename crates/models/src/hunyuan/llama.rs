//! The Llama 3 8B encoder of HunyuanVideo: its states two layers before the end.
//!
//! The last two of its 32 layers, the final norm and the head are not used, so they are not in the graph. The prompt
//! stands in a template of 95 tokens, which are cropped afterwards.

use plimsoll_graph::{Activation, Builder, DType, Dependence, Norm, PhaseKind, Residual, Value};

use super::TEXT_TOKENS;
use crate::layers::{stacked, vector};

const WIDTH: u64 = 4096;
const HEADS: u64 = 32;
const KV_HEADS: u64 = 8;
const HEAD_DIM: u64 = 128;
const FEED_FORWARD: u64 = 14_336;
const LAYERS_USED: u64 = 30;
const VOCABULARY: u64 = 128_320;
const TEMPLATE_TOKENS: u64 = 95;

/// Traces the encoder; gives the states of the prompt, `[256, 4096]`.
pub(super) fn trace(b: &mut Builder<'_>, component: &str) -> Value {
    let id = b.component(component);
    let tokens = TEXT_TOKENS + TEMPLATE_TOKENS;
    let kv = KV_HEADS * HEAD_DIM;
    b.phase(PhaseKind::Encode, &format!("encode {component}"));
    b.block(id, "llama.embed");
    let x = b.gather("llama", "model.embed_tokens.weight", [VOCABULARY, WIDTH], tokens);
    let rope = b.input("llama.rope", tokens, HEAD_DIM, DType::F32, Dependence::Run);
    for layer in 0..LAYERS_USED {
        b.block(id, format!("llama.layer.{layer}"));
        let at = format!("model.layers.{layer}");
        let rms = |b: &mut Builder<'_>, name: &str| Norm::Rms {
            eps: 1e-5,
            weight: vector(b, &format!("{at}.{name}.weight"), WIDTH),
        };
        let norm = rms(b, "input_layernorm");
        let n = b.norm("norm", x, norm);
        let [q, k, v, o] = ["q", "k", "v", "o"].map(|name| format!("{at}.self_attn.{name}_proj"));
        let qkv = stacked(b, "qkv", &[(&q, WIDTH), (&k, kv), (&v, kv)], WIDTH, false);
        let qkv = b.linear("qkv", n, qkv.weight, None, Activation::None);
        let (q, k) = (qkv.slice_cols(0, WIDTH), qkv.slice_cols(WIDTH, kv));
        b.rope("q.rope", q, rope, HEADS);
        b.rope("k.rope", k, rope, KV_HEADS);
        let all = [q, k, qkv.slice_cols(WIDTH + kv, kv)];
        let attended = b.grouped_attention("attention", all, HEADS, KV_HEADS);
        let o = stacked(b, "o", &[(&o, WIDTH)], WIDTH, false);
        let residual = Some(Residual { base: x, gate: None });
        let plain = Activation::None;
        b.linear_into("o", attended, o.weight, None, plain, residual.clone(), x);

        let norm = rms(b, "post_attention_layernorm");
        let n = b.norm("ff_norm", x, norm);
        let [gate, up, down] = ["gate", "up", "down"].map(|name| format!("{at}.mlp.{name}_proj"));
        let wi = [(gate.as_str(), FEED_FORWARD), (up.as_str(), FEED_FORWARD)];
        let wi = stacked(b, "gate_up", &wi, WIDTH, false);
        let wide = b.linear("gate_up", n, wi.weight, None, plain);
        let wide = b.swiglu("swiglu", wide);
        let wo = stacked(b, "down", &[(&down, WIDTH)], FEED_FORWARD, false);
        b.linear_into("down", wide, wo.weight, None, plain, residual, x);
    }
    x.slice_rows(TEMPLATE_TOKENS, TEXT_TOKENS)
}
