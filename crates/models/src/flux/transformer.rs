//! The FLUX.1 transformer: double-stream blocks, then single-stream blocks over text and image together.
//!
//! Source: `FluxTransformer2DModel` of diffusers 0.42.1; shapes in comments are for FLUX.1-dev at 1024x1024
//! (T = 512 text tokens, S = 4096 image tokens, N = T + S, D = 3072).

use plimsoll_graph::{Activation, Builder, ComponentId, DType, Dependence, Residual, Value};

use super::FluxConfig;
use crate::layers::{Linear, linear, stacked, vector};

const TIMESTEP_COLS: u64 = 256;

/// Where a block's modulation stands in its row: shift, scale, gate, in this order.
struct Modulation {
    shift: Value,
    scale: Value,
    gate: Value,
}

/// The `index`-th triple of a modulation row.
fn modulation(row: Value, index: u64, d: u64) -> Modulation {
    let at = |part: u64| row.slice_cols((3 * index + part) * d, d);
    Modulation { shift: at(0), scale: at(1), gate: at(2) }
}

/// One of the two streams of a double block.
struct Stream {
    label: &'static str,
    rows: Value,
    qkv: Value,
    attended: Value,
    rope: Value,
    norm: &'static str,
    projections: [&'static str; 3],
    norms: [&'static str; 2],
    out: &'static str,
    feed_forward: &'static str,
}

pub(super) struct Transformer<'c> {
    pub(super) config: &'c FluxConfig,
    pub(super) text_tokens: u64,
    pub(super) image_tokens: u64,
}

/// What every block reads: the residual stream and the tables.
pub(super) struct State {
    pub(super) component: ComponentId,
    /// Before the names of blocks: nothing, but of a ControlNet.
    pub(super) prefix: &'static str,
    pub(super) x: Value, // [N, D], text first
    vec: Value,          // [1, D], SiLU of the conditioning
    rope: Value,         // [N, head_dim]
}

impl Transformer<'_> {
    /// The image's rows of the residual stream.
    pub(super) fn image(&self, state: &State) -> Value {
        state.x.slice_rows(self.text_tokens, self.image_tokens)
    }

    pub(super) fn embed(
        &self,
        b: &mut Builder<'_>,
        component: ComponentId,
        prefix: &'static str,
        latent: Value,
        context: Value,
        pooled: Value,
    ) -> State {
        let d = self.config.hidden();
        let tokens = self.text_tokens + self.image_tokens;
        let head_dim = self.config.attention_head_dim;
        let named = |name: &str| format!("{prefix}{name}");
        let rope = b.input(&named("rope"), tokens, head_dim, DType::F32, Dependence::Run);

        let timestep = b.input(&named("timestep"), 1, 1, DType::F32, Dependence::Step);
        let mut vec = self.scalar_embedding(b, "timestep", timestep);
        if self.config.guidance_embeds {
            let guidance = b.input(&named("guidance"), 1, 1, DType::F32, Dependence::Run);
            let guidance = self.scalar_embedding(b, "guidance", guidance);
            vec = b.add("time+guidance", vec, guidance);
        }
        let text = self.mlp(b, "time_text_embed.text_embedder", pooled);
        vec = b.add("vec", vec, text);
        let vec = b.activate("silu(vec)", vec, Activation::Silu);

        let layer = linear(b, "context_embedder", d, self.config.joint_attention_dim);
        let text = b.linear("context", context, layer.weight, layer.bias, Activation::None);
        let x = b.buffer("x", tokens, d, b.dtype(), Dependence::Latent);
        b.copy("text", text, x.slice_rows(0, self.text_tokens));
        let layer = linear(b, "x_embedder", d, self.config.in_channels);
        let image = x.slice_rows(self.text_tokens, self.image_tokens);
        b.linear_into("image", latent, layer.weight, layer.bias, Activation::None, None, image);
        State { component, prefix, x, vec, rope }
    }

    /// Sinusoid and MLP of a scalar in 0..1 (the guidance is not scaled to it; the reference does not).
    fn scalar_embedding(&self, b: &mut Builder<'_>, name: &str, x: Value) -> Value {
        let wave = b.sinusoid(&format!("{name}.wave"), x, TIMESTEP_COLS);
        self.mlp(b, &format!("time_text_embed.{name}_embedder"), wave)
    }

    fn mlp(&self, b: &mut Builder<'_>, name: &str, x: Value) -> Value {
        let d = self.config.hidden();
        let first = linear(b, &format!("{name}.linear_1"), d, x.cols);
        let h = b.linear(&format!("{name}.1"), x, first.weight, first.bias, Activation::Silu);
        let second = linear(b, &format!("{name}.linear_2"), d, d);
        b.linear(&format!("{name}.2"), h, second.weight, second.bias, Activation::None)
    }

    fn project(&self, b: &mut Builder<'_>, label: &str, layer: Linear, x: Value, out: Value) {
        b.linear_into(label, x, layer.weight, layer.bias, Activation::None, None, out);
    }

    pub(super) fn double_block(&self, b: &mut Builder<'_>, state: &State, index: u64) {
        let (d, heads) = (self.config.hidden(), self.config.num_attention_heads);
        let (t, s) = (self.text_tokens, self.image_tokens);
        b.block(state.component, format!("{}double.{index}", state.prefix));
        let at = format!("transformer_blocks.{index}");
        let qkv = b.buffer("qkv", t + s, 3 * d, b.dtype(), Dependence::Latent);
        let attended = b.buffer("attention", t + s, d, b.dtype(), Dependence::Latent);
        let text = Stream {
            label: "txt",
            rows: state.x.slice_rows(0, t),
            qkv: qkv.slice_rows(0, t),
            attended: attended.slice_rows(0, t),
            rope: state.rope.slice_rows(0, t),
            norm: "norm1_context",
            projections: ["add_q_proj", "add_k_proj", "add_v_proj"],
            norms: ["norm_added_q", "norm_added_k"],
            out: "to_add_out",
            feed_forward: "ff_context",
        };
        let image = Stream {
            label: "img",
            rows: state.x.slice_rows(t, s),
            qkv: qkv.slice_rows(t, s),
            attended: attended.slice_rows(t, s),
            rope: state.rope.slice_rows(t, s),
            norm: "norm1",
            projections: ["to_q", "to_k", "to_v"],
            norms: ["norm_q", "norm_k"],
            out: "to_out.0",
            feed_forward: "ff",
        };
        let mut modulations = Vec::new();
        for stream in [&text, &image] {
            let label = stream.label;
            let layer = linear(b, &format!("{at}.{}.linear", stream.norm), 6 * d, d);
            let row = b.linear(
                &format!("{label}.modulation"),
                state.vec,
                layer.weight,
                layer.bias,
                Activation::None,
            );
            let (first, second) = (modulation(row, 0, d), modulation(row, 1, d));
            let h =
                b.modulated_norm(&format!("{label}.norm1"), stream.rows, first.scale, first.shift);
            let parts = stream.projections.map(|name| format!("{at}.attn.{name}"));
            let [q, k, v] = &parts;
            let layer = stacked(b, &format!("{label}.qkv"), &[(q, d), (k, d), (v, d)], d, true);
            self.project(b, &format!("{label}.qkv"), layer, h, stream.qkv);
            self.norm_rope(b, &at, label, stream.norms, stream.qkv, stream.rope);
            modulations.push((first, second));
        }
        let heads_of = [0, d, 2 * d].map(|col| qkv.slice_cols(col, d));
        b.attention_into("attention", heads_of, heads, self.scale(), false, None, attended);

        for (stream, (first, second)) in [&text, &image].into_iter().zip(modulations) {
            let label = stream.label;
            let x = stream.rows;
            let gated = |gate: Value| Some(Residual { base: x, gate: Some(gate) });
            let out = linear(b, &format!("{at}.attn.{}", stream.out), d, d);
            b.linear_into(
                &format!("{label}.out"),
                stream.attended,
                out.weight,
                out.bias,
                Activation::None,
                gated(first.gate),
                x,
            );
            let h = b.modulated_norm(&format!("{label}.norm2"), x, second.scale, second.shift);
            let hidden = self.config.mlp_hidden();
            let up = linear(b, &format!("{at}.{}.net.0.proj", stream.feed_forward), hidden, d);
            let wide =
                b.linear(&format!("{label}.mlp.0"), h, up.weight, up.bias, Activation::GeluTanh);
            let down = linear(b, &format!("{at}.{}.net.2", stream.feed_forward), d, hidden);
            b.linear_into(
                &format!("{label}.mlp.2"),
                wide,
                down.weight,
                down.bias,
                Activation::None,
                gated(second.gate),
                x,
            );
        }
    }

    pub(super) fn single_block(&self, b: &mut Builder<'_>, state: &State, index: u64) {
        let (d, heads, hidden) =
            (self.config.hidden(), self.config.num_attention_heads, self.config.mlp_hidden());
        let x = state.x;
        // Nobody reads what the last block makes of the text: there its rows are keys and values, and nothing else.
        let is_last = index + 1 == self.config.num_single_layers;
        let first = if is_last { self.text_tokens } else { 0 };
        let wanted = |value: Value| value.slice_rows(first, x.rows - first);
        b.block(state.component, format!("single.{index}"));
        let at = format!("single_transformer_blocks.{index}");

        let layer = linear(b, &format!("{at}.norm.linear"), 3 * d, d);
        let row = b.linear("modulation", state.vec, layer.weight, layer.bias, Activation::None);
        let m = modulation(row, 0, d);
        let h = b.modulated_norm("norm", x, m.scale, m.shift);
        // One buffer for attention and MLP, so that the projection reads both as one row.
        let wide =
            b.buffer("attention|mlp", x.rows - first, d + hidden, b.dtype(), Dependence::Latent);
        let up = linear(b, &format!("{at}.proj_mlp"), hidden, d);
        let mlp = wide.slice_cols(d, hidden);
        b.linear_into("mlp", wanted(h), up.weight, up.bias, Activation::GeluTanh, None, mlp);
        let parts = ["to_q", "to_k", "to_v"].map(|name| format!("{at}.attn.{name}"));
        let [q, k, v] = &parts;
        let layer = stacked(b, "qkv", &[(q, d), (k, d), (v, d)], d, true);
        let qkv = b.linear("qkv", h, layer.weight, layer.bias, Activation::None);
        self.norm_rope(b, &at, "qk", ["norm_q", "norm_k"], qkv, state.rope);
        let [q, k, v] = [0, d, 2 * d].map(|col| qkv.slice_cols(col, d));
        let heads_of = [wanted(q), k, v];
        let attended = wide.slice_cols(0, d);
        b.attention_into("attention", heads_of, heads, self.scale(), false, None, attended);
        let out = linear(b, &format!("{at}.proj_out"), d, d + hidden);
        let x = wanted(x);
        let residual = Some(Residual { base: x, gate: Some(m.gate) });
        b.linear_into("out", wide, out.weight, out.bias, Activation::None, residual, x);
    }

    fn norm_rope(
        &self,
        b: &mut Builder<'_>,
        at: &str,
        label: &str,
        norms: [&str; 2],
        qkv: Value,
        rope: Value,
    ) {
        let d = self.config.hidden();
        let head_dim = self.config.attention_head_dim;
        let [q, k] = norms.map(|name| vector(b, &format!("{at}.attn.{name}.weight"), head_dim));
        b.qk_norm_rope(
            &format!("{label}.rope"),
            qkv.slice_cols(0, d),
            qkv.slice_cols(d, d),
            q,
            k,
            rope,
            self.config.num_attention_heads,
        );
    }

    pub(super) fn last_layer(
        &self,
        b: &mut Builder<'_>,
        state: &State,
        latent: Value,
        dsigma: Value,
    ) {
        let d = self.config.hidden();
        b.block(state.component, "final");
        let image = self.image(state);
        // Scale stands before shift here, unlike in the blocks.
        let layer = linear(b, "norm_out.linear", 2 * d, d);
        let row = b.linear("modulation", state.vec, layer.weight, layer.bias, Activation::None);
        let h = b.modulated_norm("norm", image, row.slice_cols(0, d), row.slice_cols(d, d));
        let channels = self.config.in_channels;
        let layer = linear(b, "proj_out", channels, d);
        let velocity =
            b.buffer("velocity", self.image_tokens, channels, DType::F32, Dependence::Latent);
        self.project(b, "velocity", layer, h, velocity);
        b.euler("euler", latent, velocity, dsigma);
    }

    fn scale(&self) -> f32 {
        #[expect(clippy::cast_precision_loss, reason = "a head's width is far below 2^24")]
        let width = self.config.attention_head_dim as f32;
        width.sqrt().recip()
    }
}
