//! The Wan transformer: self-attention over all tokens, cross-attention to the text, feed-forward.
//!
//! Both branches of guidance pass through a block while its weights are there. What stands for itself in every row is
//! done in pieces of the rows where asked: keys and values are complete before the first query, so each piece of
//! queries may replace its rows of the residual stream.

use plimsoll_graph::{
    Activation, Builder, ComponentId, DType, Dependence, Norm, PhaseKind, Residual, Value, WeightId,
};

use super::{TEXT_DIM, WanModel};
use crate::layers::{Linear, affine, linear, stacked, vector};
use crate::video::pieces;

const LATENT_COLS: u64 = 64;
const TIMESTEP_COLS: u64 = 256;
const HEAD_DIM: u64 = 128;
const EPS: f32 = 1e-6;

pub(super) struct Transformer<'c> {
    pub(super) config: &'c WanModel,
    pub(super) tokens: u64,
    pub(super) chunks: u64,
}

/// What every block reads.
struct State {
    component: ComponentId,
    x: [Value; 2],       // [L, d] of each branch
    context: [Value; 2], // [512, d] of each branch
    time: Value,         // [1, 6 d]
    rope: Value,         // [L, 128]
}

/// Names of the two branches in their ops.
const BRANCHES: [&str; 2] = ["", ".uncond"];

impl Transformer<'_> {
    pub(super) fn trace(&self, b: &mut Builder<'_>, component: &str, texts: [Value; 2]) -> Value {
        let d = self.config.dim;
        let id = b.component(component);
        b.phase(PhaseKind::Denoise, "denoise");
        b.block(id, "embed");
        let latent = b.input("noise", self.tokens, LATENT_COLS, DType::F32, Dependence::Latent);
        let dsigma = b.input("dsigma", 1, 1, DType::F32, Dependence::Step);
        let rope = b.input("rope", self.tokens, HEAD_DIM, DType::F32, Dependence::Run);

        let timestep = b.input("timestep", 1, 1, DType::F32, Dependence::Step);
        let wave = b.sinusoid("wave", timestep, TIMESTEP_COLS);
        let at = "condition_embedder";
        let time = self.mlp(b, &format!("{at}.time_embedder"), wave, Activation::Silu, "");
        let silu = b.activate("silu(time)", time, Activation::Silu);
        let layer = linear(b, &format!("{at}.time_proj"), 6 * d, d);
        let time6 = b.linear("time_proj", silu, layer.weight, layer.bias, Activation::None);

        let first = linear(b, &format!("{at}.text_embedder.linear_1"), d, TEXT_DIM);
        let second = linear(b, &format!("{at}.text_embedder.linear_2"), d, d);
        let mut branch = 0;
        let context = texts.map(|text| {
            let name = format!("text{}", BRANCHES[branch]);
            branch += 1;
            let gelu = Activation::GeluTanh;
            let h = b.linear(&format!("{name}.1"), text, first.weight, first.bias, gelu);
            b.linear(&format!("{name}.2"), h, second.weight, second.bias, Activation::None)
        });

        let name = "patch_embedding";
        let patch = b.weight(
            "patch_embedding.weight",
            &[(format!("{name}.weight"), vec![d, LATENT_COLS / 4, 1, 2, 2])],
        );
        let bias = vector(b, &format!("{name}.bias"), d);
        let x = BRANCHES.map(|suffix| {
            let name = format!("patches{suffix}");
            b.linear(&name, latent, patch, Some(bias), Activation::None)
        });
        let state = State { component: id, x, context, time: time6, rope };
        for index in 0..self.config.layers {
            self.block(b, &state, index);
        }
        self.last_layer(b, &state, time, latent, dsigma);
        latent
    }

    fn mlp(
        &self,
        b: &mut Builder<'_>,
        name: &str,
        x: Value,
        activation: Activation,
        suffix: &str,
    ) -> Value {
        let d = self.config.dim;
        let first = linear(b, &format!("{name}.linear_1"), d, x.cols);
        let h = b.linear(&format!("{name}.1{suffix}"), x, first.weight, first.bias, activation);
        let second = linear(b, &format!("{name}.linear_2"), d, d);
        b.linear(&format!("{name}.2{suffix}"), h, second.weight, second.bias, Activation::None)
    }

    fn block(&self, b: &mut Builder<'_>, state: &State, index: u64) {
        let (d, f) = (self.config.dim, self.config.ffn_dim);
        b.block(state.component, format!("block.{index}"));
        let at = format!("blocks.{index}");
        let table =
            b.weight("scale_shift_table", &[(format!("{at}.scale_shift_table"), vec![1, 6, d])]);
        let row = b.add_weight("modulation", state.time, table);
        let m = |part: u64| row.slice_cols(part * d, d);

        let norms = |b: &mut Builder<'_>, attention: &str| {
            ["norm_q", "norm_k"]
                .map(|name| vector(b, &format!("{at}.{attention}.{name}.weight"), d))
        };
        let [q1, k1, v1, q2, k2, v2] =
            ["attn1.to_q", "attn1.to_k", "attn1.to_v", "attn2.to_q", "attn2.to_k", "attn2.to_v"]
                .map(|name| format!("{at}.{name}"));
        let q = stacked(b, "attn1.to_q", &[(&q1, d)], d, true);
        let kv = stacked(b, "attn1.kv", &[(&k1, d), (&v1, d)], d, true);
        let self_norms = norms(b, "attn1");
        let self_out = linear(b, &format!("{at}.attn1.to_out.0"), d, d);
        let (norm2, norm2_bias) = affine(b, &format!("{at}.norm2"), d);
        let cross_q = stacked(b, "attn2.to_q", &[(&q2, d)], d, true);
        let cross_norms = norms(b, "attn2");
        let cross_k = stacked(b, "attn2.to_k", &[(&k2, d)], d, true);
        let cross_v = stacked(b, "attn2.to_v", &[(&v2, d)], d, true);
        let cross_out = linear(b, &format!("{at}.attn2.to_out.0"), d, d);
        let up = linear(b, &format!("{at}.ffn.net.0.proj"), f, d);
        let down = linear(b, &format!("{at}.ffn.net.2"), d, f);

        // Pieces and branches take the same places one after the other; what attention gives lies where its normed input
        // was.
        let most = pieces(self.tokens, self.chunks).map(|(_, rows)| rows).max().unwrap_or(0);
        for (branch, s) in BRANCHES.into_iter().enumerate() {
            let x = state.x[branch];
            let mut room = |what: &str, cols: u64| {
                b.buffer(&format!("{what}{s}"), most, cols, b.dtype(), Dependence::Latent)
            };
            let [normed_kv, normed, query_of, normed_cross, query_cross, normed_ffn] =
                ["norm1.kv", "norm1", "q", "norm2", "cross.q", "norm3"].map(|what| room(what, d));
            let wide_of = room("ffn.0", f);
            let keys = b.buffer(&format!("kv{s}"), x.rows, 2 * d, b.dtype(), Dependence::Latent);
            for (piece, (start, rows)) in pieces(x.rows, self.chunks).enumerate() {
                let name = |what: &str| format!("{what}{s}.{piece}");
                let h = normed_kv.slice_rows(0, rows);
                modulated(b, &name("norm1.kv"), x.slice_rows(start, rows), [m(1), m(0)], h);
                let out = keys.slice_rows(start, rows);
                self.into(b, &name("kv"), h, kv, out);
                let rope = state.rope.slice_rows(start, rows);
                self.norm_rope(b, &name("k"), out.slice_cols(0, d), self_norms[1], Some(rope));
            }
            let context = state.context[branch];
            let k = b.linear(
                &format!("text.k{s}"),
                context,
                cross_k.weight,
                cross_k.bias,
                Activation::None,
            );
            let v = b.linear(
                &format!("text.v{s}"),
                context,
                cross_v.weight,
                cross_v.bias,
                Activation::None,
            );
            let rms = Norm::Rms { eps: EPS, weight: cross_norms[1] };
            let k = b.norm(&format!("text.k.norm{s}"), k, rms);

            for (piece, (start, rows)) in pieces(x.rows, self.chunks).enumerate() {
                let name = |what: &str| format!("{what}{s}.{piece}");
                let x = x.slice_rows(start, rows);
                let h = normed.slice_rows(0, rows);
                modulated(b, &name("norm1"), x, [m(1), m(0)], h);
                let query = query_of.slice_rows(0, rows);
                self.into(b, &name("q"), h, q, query);
                let rope = state.rope.slice_rows(start, rows);
                self.norm_rope(b, &name("q"), query, self_norms[0], Some(rope));
                let all = [query, keys.slice_cols(0, d), keys.slice_cols(d, d)];
                self.attention(b, &name("attention"), all, h);
                self.back(b, &name("out"), h, self_out, x, Some(m(2)));
            }
            for (piece, (start, rows)) in pieces(x.rows, self.chunks).enumerate() {
                let name = |what: &str| format!("{what}{s}.{piece}");
                let x = x.slice_rows(start, rows);
                let norm = Norm::LayerAffine { eps: EPS, weight: norm2, bias: norm2_bias };
                let h = normed_cross.slice_rows(0, rows);
                b.norm_into(&name("norm2"), x, norm, h);
                let query = query_cross.slice_rows(0, rows);
                self.into(b, &name("cross.q"), h, cross_q, query);
                self.norm_rope(b, &name("cross.q"), query, cross_norms[0], None);
                self.attention(b, &name("cross"), [query, k, v], h);
                self.back(b, &name("cross.out"), h, cross_out, x, None);
            }
            for (piece, (start, rows)) in pieces(x.rows, self.chunks).enumerate() {
                let name = |what: &str| format!("{what}{s}.{piece}");
                let x = x.slice_rows(start, rows);
                let h = normed_ffn.slice_rows(0, rows);
                modulated(b, &name("norm3"), x, [m(4), m(3)], h);
                let wide = wide_of.slice_rows(0, rows);
                let gelu = Activation::GeluTanh;
                b.linear_into(&name("ffn.0"), h, up.weight, up.bias, gelu, None, wide);
                self.back(b, &name("ffn.2"), wide, down, x, Some(m(5)));
            }
        }
    }

    fn into(&self, b: &mut Builder<'_>, name: &str, x: Value, layer: Linear, out: Value) {
        b.linear_into(name, x, layer.weight, layer.bias, Activation::None, None, out);
    }

    /// `x += gate * layer(h)`.
    fn back(
        &self,
        b: &mut Builder<'_>,
        name: &str,
        h: Value,
        layer: Linear,
        x: Value,
        gate: Option<Value>,
    ) {
        let residual = Some(Residual { base: x, gate });
        b.linear_into(name, h, layer.weight, layer.bias, Activation::None, residual, x);
    }

    /// RMS norm over all heads together, then rotary embedding, in place.
    fn norm_rope(
        &self,
        b: &mut Builder<'_>,
        name: &str,
        x: Value,
        weight: WeightId,
        rope: Option<Value>,
    ) {
        b.norm_into(&format!("{name}.norm"), x, Norm::Rms { eps: EPS, weight }, x);
        if let Some(rope) = rope {
            b.rope(&format!("{name}.rope"), x, rope, self.config.heads);
        }
    }

    fn attention(&self, b: &mut Builder<'_>, name: &str, qkv: [Value; 3], out: Value) {
        #[expect(clippy::cast_precision_loss, reason = "a head's width is far below 2^24")]
        let scale = (HEAD_DIM as f32).sqrt().recip();
        b.attention_into(name, qkv, self.config.heads, scale, false, None, out);
    }

    fn last_layer(
        &self,
        b: &mut Builder<'_>,
        state: &State,
        time: Value,
        latent: Value,
        dsigma: Value,
    ) {
        let d = self.config.dim;
        b.block(state.component, "final");
        let table =
            b.weight("scale_shift_table", &[("scale_shift_table".to_owned(), vec![1, 2, d])]);
        let twice = b.buffer("time|time", 1, 2 * d, b.dtype(), Dependence::Step);
        b.copy("time.0", time, twice.slice_cols(0, d));
        b.copy("time.1", time, twice.slice_cols(d, d));
        let row = b.add_weight("modulation", twice, table);
        let layer = linear(b, "proj_out", LATENT_COLS, d);
        let mut branch = 0;
        let [cond, uncond] = state.x.map(|x| {
            let s = BRANCHES[branch];
            branch += 1;
            let (shift, scale) = (row.slice_cols(0, d), row.slice_cols(d, d));
            let out = b.buffer(
                &format!("velocity{s}"),
                self.tokens,
                LATENT_COLS,
                DType::F32,
                Dependence::Latent,
            );
            for (piece, (start, rows)) in pieces(x.rows, self.chunks).enumerate() {
                let name = format!("norm{s}.{piece}");
                let h = b.modulated_norm(&name, x.slice_rows(start, rows), scale, shift);
                let name = format!("velocity{s}.{piece}");
                self.into(b, &name, h, layer, out.slice_rows(start, rows));
            }
            out
        });
        let velocity = b.guide("guidance", cond, uncond, 5.0);
        b.euler("euler", latent, velocity, dsigma);
    }
}

/// LayerNorm with modulation into a place that exists; the row is scale, then shift.
fn modulated(b: &mut Builder<'_>, name: &str, x: Value, [scale, shift]: [Value; 2], out: Value) {
    b.norm_into(name, x, Norm::LayerModulated { eps: EPS, scale, shift }, out);
}
