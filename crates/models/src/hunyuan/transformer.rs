//! The HunyuanVideo transformer: the token refiner, then double-stream and single-stream blocks, image first.
//!
//! What stands for itself in every row is done in pieces of the rows where asked: keys and values are complete before
//! the first query, so each piece of queries may replace its rows of the residual stream.

use plimsoll_graph::{
    Activation, Builder, ComponentId, DType, Dependence, Norm, PhaseKind, Residual, Value, WeightId,
};

use super::{HunyuanModel, TEXT_TOKENS, TRANSFORMER};
use crate::layers::{Linear, affine, linear, stacked, vector};
use crate::video::pieces;

const LATENT_COLS: u64 = 64;
const TIMESTEP_COLS: u64 = 256;
const TEXT_DIM: u64 = 4096;
const HEAD_DIM: u64 = 128;
const EPS: f32 = 1e-6;

pub(super) struct Transformer<'c> {
    pub(super) config: &'c HunyuanModel,
    pub(super) image_tokens: u64,
    pub(super) chunks: u64,
}

/// What every block reads.
struct State {
    component: ComponentId,
    x: Value,    // [S + T, d], image first
    vec: Value,  // [1, d], SiLU of the conditioning
    rope: Value, // [S + T, 128]; the text's angles are 0
}

/// Projections of a stream of rows to Q, and to K and V, with the norms of Q and K.
struct Projections {
    q: Linear,
    kv: Linear,
    norms: [WeightId; 2],
}

/// A stream of a double block.
struct Stream {
    label: &'static str,
    start: u64,
    rows: u64,
    projections: Projections,
    modulation: Value,
    out: Linear,
    up: Linear,
    down: Linear,
}

impl Transformer<'_> {
    pub(super) fn trace(&self, b: &mut Builder<'_>, states: Value, pooled: Value) -> Value {
        let d = self.config.hidden();
        let id = b.component(TRANSFORMER);
        b.phase(PhaseKind::Denoise, "denoise");
        b.block(id, "embed");
        let latent =
            b.input("noise", self.image_tokens, LATENT_COLS, DType::F32, Dependence::Latent);
        let dsigma = b.input("dsigma", 1, 1, DType::F32, Dependence::Step);
        let tokens = self.image_tokens + TEXT_TOKENS;
        let rope = b.input("rope", tokens, HEAD_DIM, DType::F32, Dependence::Run);
        let timestep = b.input("timestep", 1, 1, DType::F32, Dependence::Step);
        let guidance = b.input("guidance", 1, 1, DType::F32, Dependence::Run);
        let wave = b.sinusoid("timestep.wave", timestep, TIMESTEP_COLS);
        let guidance = b.sinusoid("guidance.wave", guidance, TIMESTEP_COLS);
        let at = "time_text_embed";
        let time = self.mlp(b, &format!("{at}.timestep_embedder"), wave);
        let guidance = self.mlp(b, &format!("{at}.guidance_embedder"), guidance);
        let text = self.mlp(b, &format!("{at}.text_embedder"), pooled);
        let vec = b.add("time+guidance", time, guidance);
        let vec = b.add("vec", vec, text);
        let vec = b.activate("silu(vec)", vec, Activation::Silu);

        let x = b.buffer("x", tokens, d, b.dtype(), Dependence::Latent);
        let patch = b.weight(
            "x_embedder.weight",
            &[("x_embedder.proj.weight".to_owned(), vec![d, LATENT_COLS / 4, 1, 2, 2])],
        );
        let bias = vector(b, "x_embedder.proj.bias", d);
        let image = x.slice_rows(0, self.image_tokens);
        b.linear_into("image", latent, patch, Some(bias), Activation::None, None, image);
        let refined = self.refine(b, id, states, wave);
        b.block(id, "text");
        b.copy("text", refined, x.slice_rows(self.image_tokens, TEXT_TOKENS));

        let state = State { component: id, x, vec, rope };
        for index in 0..self.config.double_blocks {
            self.double_block(b, &state, index);
        }
        for index in 0..self.config.single_blocks {
            self.single_block(b, &state, index);
        }
        self.last_layer(b, &state, latent, dsigma);
        latent
    }

    /// Linear, SiLU, Linear.
    fn mlp(&self, b: &mut Builder<'_>, name: &str, x: Value) -> Value {
        let d = self.config.hidden();
        let first = linear(b, &format!("{name}.linear_1"), d, x.cols);
        let h = b.linear(&format!("{name}.1"), x, first.weight, first.bias, Activation::Silu);
        let second = linear(b, &format!("{name}.linear_2"), d, d);
        b.linear(&format!("{name}.2"), h, second.weight, second.bias, Activation::None)
    }

    /// The token refiner: text states to the transformer's width, with the timestep; gives `[T, d]`.
    fn refine(
        &self,
        b: &mut Builder<'_>,
        component: ComponentId,
        states: Value,
        wave: Value,
    ) -> Value {
        let (d, heads) = (self.config.hidden(), self.config.heads);
        b.block(component, "refiner.embed");
        let at = "context_embedder";
        let time = self.mlp(b, &format!("{at}.time_text_embed.timestep_embedder"), wave);
        let mean = states.slice_rows(0, 1);
        let text = self.mlp(b, &format!("{at}.time_text_embed.text_embedder"), mean);
        let vec = b.add("vec", time, text);
        let vec = b.activate("silu(vec)", vec, Activation::Silu);
        let layer = linear(b, &format!("{at}.proj_in"), d, TEXT_DIM);
        let input = b.linear("proj_in", states, layer.weight, layer.bias, Activation::None);
        // The stream changes with the step: a copy of its own in each.
        let x = b.buffer("text", TEXT_TOKENS, d, b.dtype(), Dependence::Latent);
        b.copy("text", input, x);
        for index in 0..self.config.refiner_blocks {
            b.block(component, format!("refiner.{index}"));
            let at = format!("{at}.token_refiner.refiner_blocks.{index}");
            let layer = linear(b, &format!("{at}.norm_out.linear"), 2 * d, d);
            let gates = b.linear("gates", vec, layer.weight, layer.bias, Activation::None);
            let gated =
                |part: u64| Some(Residual { base: x, gate: Some(gates.slice_cols(part * d, d)) });
            let norm = self.layer_norm(b, &format!("{at}.norm1"));
            let n = b.norm("norm1", x, norm);
            let names = ["to_q", "to_k", "to_v"].map(|name| format!("{at}.attn.{name}"));
            let [q, k, v] = &names;
            let qkv = stacked(b, "qkv", &[(q, d), (k, d), (v, d)], d, true);
            let qkv = b.linear("qkv", n, qkv.weight, qkv.bias, Activation::None);
            let attended = b.buffer("attention", TEXT_TOKENS, d, b.dtype(), Dependence::Latent);
            let heads_of = [0, d, 2 * d].map(|col| qkv.slice_cols(col, d));
            b.attention_into("attention", heads_of, heads, self.scale(), false, None, attended);
            let out = linear(b, &format!("{at}.attn.to_out.0"), d, d);
            let plain = Activation::None;
            b.linear_into("out", attended, out.weight, out.bias, plain, gated(0), x);
            let norm = self.layer_norm(b, &format!("{at}.norm2"));
            let n = b.norm("norm2", x, norm);
            let up = linear(b, &format!("{at}.ff.net.0.proj"), 4 * d, d);
            let wide = b.linear("ff.0", n, up.weight, up.bias, Activation::Silu);
            let down = linear(b, &format!("{at}.ff.net.2"), d, 4 * d);
            b.linear_into("ff.2", wide, down.weight, down.bias, plain, gated(1), x);
        }
        x
    }

    fn layer_norm(&self, b: &mut Builder<'_>, name: &str) -> Norm {
        let (weight, bias) = affine(b, name, self.config.hidden());
        Norm::LayerAffine { eps: EPS, weight, bias }
    }

    fn projections(
        &self,
        b: &mut Builder<'_>,
        label: &str,
        names: [String; 3],
        norms: [String; 2],
    ) -> Projections {
        let d = self.config.hidden();
        let [q, k, v] = &names;
        let q = stacked(b, &format!("{label}.q"), &[(q, d)], d, true);
        let kv = stacked(b, &format!("{label}.kv"), &[(k, d), (v, d)], d, true);
        Projections { q, kv, norms: norms.map(|name| vector(b, &name, HEAD_DIM)) }
    }

    /// Keys and values of some rows into their place.
    fn keys(
        &self,
        b: &mut Builder<'_>,
        name: &str,
        h: Value,
        projections: &Projections,
        out: Value,
        rope: Value,
    ) {
        let d = self.config.hidden();
        let kv = projections.kv;
        b.linear_into(&format!("{name}.kv"), h, kv.weight, kv.bias, Activation::None, None, out);
        let weight = projections.norms[1];
        self.head_norm(b, &format!("{name}.k.norm"), out.slice_cols(0, d), weight);
        b.rope(&format!("{name}.k.rope"), out.slice_cols(0, d), rope, self.config.heads);
    }

    fn queries(
        &self,
        b: &mut Builder<'_>,
        name: &str,
        h: Value,
        projections: &Projections,
        rope: Value,
    ) -> Value {
        let q = projections.q;
        let query = b.linear(&format!("{name}.q"), h, q.weight, q.bias, Activation::None);
        self.head_norm(b, &format!("{name}.q.norm"), query, projections.norms[0]);
        b.rope(&format!("{name}.q.rope"), query, rope, self.config.heads);
        query
    }

    /// RMS norm of each head, in place.
    fn head_norm(&self, b: &mut Builder<'_>, name: &str, x: Value, weight: WeightId) {
        b.head_norm(name, x, weight, self.config.heads, EPS);
    }

    fn double_block(&self, b: &mut Builder<'_>, state: &State, index: u64) {
        let d = self.config.hidden();
        b.block(state.component, format!("double.{index}"));
        let at = format!("transformer_blocks.{index}");
        let stream = |b: &mut Builder<'_>, label: &'static str, start: u64, rows: u64| {
            let is_text = label == "txt";
            let pick = |text: &'static str, image: &'static str| if is_text { text } else { image };
            let names = if is_text {
                ["add_q_proj", "add_k_proj", "add_v_proj"]
            } else {
                ["to_q", "to_k", "to_v"]
            };
            let norms =
                if is_text { ["norm_added_q", "norm_added_k"] } else { ["norm_q", "norm_k"] };
            let layer =
                linear(b, &format!("{at}.{}.linear", pick("norm1_context", "norm1")), 6 * d, d);
            let plain = Activation::None;
            let name = format!("{label}.modulation");
            let modulation = b.linear(&name, state.vec, layer.weight, layer.bias, plain);
            let projections = self.projections(
                b,
                label,
                names.map(|name| format!("{at}.attn.{name}")),
                norms.map(|name| format!("{at}.attn.{name}.weight")),
            );
            let ff = pick("ff_context", "ff");
            Stream {
                label,
                start,
                rows,
                projections,
                modulation,
                out: linear(b, &format!("{at}.attn.{}", pick("to_add_out", "to_out.0")), d, d),
                up: linear(b, &format!("{at}.{ff}.net.0.proj"), 4 * d, d),
                down: linear(b, &format!("{at}.{ff}.net.2"), d, 4 * d),
            }
        };
        let image = stream(b, "img", 0, self.image_tokens);
        let text = stream(b, "txt", self.image_tokens, TEXT_TOKENS);
        let streams = [image, text];
        let tokens = state.x.rows;
        let keys = b.buffer("kv", tokens, 2 * d, b.dtype(), Dependence::Latent);
        let at = |stream: &Stream| -> Vec<(String, u64, u64)> {
            let cut = pieces(stream.rows, self.chunks).enumerate();
            cut.map(|(piece, (start, rows))| {
                (format!("{}.{piece}", stream.label), stream.start + start, rows)
            })
            .collect()
        };
        let part = |stream: &Stream, part: u64| stream.modulation.slice_cols(part * d, d);
        for stream in &streams {
            for (name, start, rows) in at(stream) {
                let x = state.x.slice_rows(start, rows);
                let h = b.modulated_norm(
                    &format!("{name}.norm1.kv"),
                    x,
                    part(stream, 1),
                    part(stream, 0),
                );
                let rope = state.rope.slice_rows(start, rows);
                let out = keys.slice_rows(start, rows);
                self.keys(b, &name, h, &stream.projections, out, rope);
            }
        }
        for stream in &streams {
            for (name, start, rows) in at(stream) {
                let x = state.x.slice_rows(start, rows);
                let h =
                    b.modulated_norm(&format!("{name}.norm1"), x, part(stream, 1), part(stream, 0));
                let rope = state.rope.slice_rows(start, rows);
                let query = self.queries(b, &name, h, &stream.projections, rope);
                let out =
                    b.buffer(&format!("{name}.attention"), rows, d, b.dtype(), Dependence::Latent);
                self.attend(b, &format!("{name}.attention"), query, keys, out);
                self.back(b, &format!("{name}.out"), out, stream.out, x, part(stream, 2));
            }
            for (name, start, rows) in at(stream) {
                let x = state.x.slice_rows(start, rows);
                let h =
                    b.modulated_norm(&format!("{name}.norm2"), x, part(stream, 4), part(stream, 3));
                let up = stream.up;
                let name0 = format!("{name}.mlp.0");
                let wide = b.linear(&name0, h, up.weight, up.bias, Activation::GeluTanh);
                self.back(b, &format!("{name}.mlp.2"), wide, stream.down, x, part(stream, 5));
            }
        }
    }

    fn single_block(&self, b: &mut Builder<'_>, state: &State, index: u64) {
        let d = self.config.hidden();
        b.block(state.component, format!("single.{index}"));
        let at = format!("single_transformer_blocks.{index}");
        let layer = linear(b, &format!("{at}.norm.linear"), 3 * d, d);
        let row = b.linear("modulation", state.vec, layer.weight, layer.bias, Activation::None);
        let [shift, scale, gate] = [0, 1, 2].map(|part| row.slice_cols(part * d, d));
        let projections = self.projections(
            b,
            "qkv",
            ["to_q", "to_k", "to_v"].map(|name| format!("{at}.attn.{name}")),
            ["norm_q", "norm_k"].map(|name| format!("{at}.attn.{name}.weight")),
        );
        let up = linear(b, &format!("{at}.proj_mlp"), 4 * d, d);
        let out = linear(b, &format!("{at}.proj_out"), d, 5 * d);
        let keys = b.buffer("kv", state.x.rows, 2 * d, b.dtype(), Dependence::Latent);
        let cut: Vec<_> = pieces(state.x.rows, self.chunks).enumerate().collect();
        for &(piece, (start, rows)) in &cut {
            let x = state.x.slice_rows(start, rows);
            let h = b.modulated_norm(&format!("norm.kv.{piece}"), x, scale, shift);
            let rope = state.rope.slice_rows(start, rows);
            self.keys(b, &format!("{piece}"), h, &projections, keys.slice_rows(start, rows), rope);
        }
        for &(piece, (start, rows)) in &cut {
            let x = state.x.slice_rows(start, rows);
            let h = b.modulated_norm(&format!("norm.{piece}"), x, scale, shift);
            // Attention and MLP side by side, so that the projection reads both as one row.
            let name = format!("attention|mlp.{piece}");
            let wide = b.buffer(&name, rows, 5 * d, b.dtype(), Dependence::Latent);
            let mlp = wide.slice_cols(d, 4 * d);
            let name = format!("mlp.{piece}");
            b.linear_into(&name, h, up.weight, up.bias, Activation::GeluTanh, None, mlp);
            let rope = state.rope.slice_rows(start, rows);
            let query = self.queries(b, &format!("{piece}"), h, &projections, rope);
            self.attend(b, &format!("attention.{piece}"), query, keys, wide.slice_cols(0, d));
            self.back(b, &format!("out.{piece}"), wide, out, x, gate);
        }
    }

    fn attend(&self, b: &mut Builder<'_>, name: &str, query: Value, keys: Value, out: Value) {
        let d = self.config.hidden();
        let all = [query, keys.slice_cols(0, d), keys.slice_cols(d, d)];
        b.attention_into(name, all, self.config.heads, self.scale(), false, None, out);
    }

    /// `x += gate * layer(h)`.
    fn back(
        &self,
        b: &mut Builder<'_>,
        name: &str,
        h: Value,
        layer: Linear,
        x: Value,
        gate: Value,
    ) {
        let residual = Some(Residual { base: x, gate: Some(gate) });
        b.linear_into(name, h, layer.weight, layer.bias, Activation::None, residual, x);
    }

    fn last_layer(&self, b: &mut Builder<'_>, state: &State, latent: Value, dsigma: Value) {
        let d = self.config.hidden();
        b.block(state.component, "final");
        let layer = linear(b, "norm_out.linear", 2 * d, d);
        let row = b.linear("modulation", state.vec, layer.weight, layer.bias, Activation::None);
        let layer = linear(b, "proj_out", LATENT_COLS, d);
        let velocity =
            b.buffer("velocity", self.image_tokens, LATENT_COLS, DType::F32, Dependence::Latent);
        for (piece, (start, rows)) in pieces(self.image_tokens, self.chunks).enumerate() {
            let x = state.x.slice_rows(start, rows);
            let (scale, shift) = (row.slice_cols(0, d), row.slice_cols(d, d));
            let h = b.modulated_norm(&format!("norm.{piece}"), x, scale, shift);
            let out = velocity.slice_rows(start, rows);
            let name = format!("velocity.{piece}");
            b.linear_into(&name, h, layer.weight, layer.bias, Activation::None, None, out);
        }
        b.euler("euler", latent, velocity, dsigma);
    }

    fn scale(&self) -> f32 {
        #[expect(clippy::cast_precision_loss, reason = "a head's width is far below 2^24")]
        let width = HEAD_DIM as f32;
        width.sqrt().recip()
    }
}
