//! FLUX.2-dev: Mistral Small 3.2, the transformer with shared modulation, the 32-channel VAE.
//!
//! The graph has the shapes, bytes and operations of a run; running it waits for its ops. Where it differs from the
//! reference in what it would compute: latents are not rescaled by the VAE's running statistics (a scaling of weights at
//! load).

use plimsoll_graph::{
    Activation, Builder, DType, Dependence, Graph, LowerOptions, PhaseKind, Residual, Value,
    WeightId,
};

use crate::language::MISTRAL_SMALL_24B;
use crate::layers::{stacked, vector};
use crate::paper::Paper;
use crate::video::{Tiles, VideoRun, picture_tiles};
use crate::{ModelError, VaeConfig};

/// Component names of a FLUX.2 pipeline folder.
pub const MISTRAL: &str = "text_encoder";
/// See [`MISTRAL`].
pub const TRANSFORMER: &str = "transformer";
/// See [`MISTRAL`].
pub const VAE: &str = "vae";

/// Length of a prompt.
const TEXT_TOKENS: u64 = 512;
const CHANNELS: u64 = 128;
const TEXT_DIM: u64 = 15_360;
const HEAD_DIM: u64 = 128;
const WAVE_COLS: u64 = 256;
/// Columns of a gated feed-forward layer's half, in widths.
const MLP: u64 = 3;

/// Sizes of the FLUX.2 transformer.
///
/// Source: `Flux2Transformer2DModel` of diffusers; its defaults are FLUX.2-dev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flux2Model {
    /// Heads of 128.
    pub heads: u64,
    /// Double-stream blocks.
    pub double_blocks: u64,
    /// Single-stream blocks.
    pub single_blocks: u64,
}

struct State {
    x: Value,          // [N, D], text first
    text: [Value; 2],  // [1, 3D] each, of both halves of a double block
    image: [Value; 2], // likewise
    single: Value,     // [1, 3D]
    rope: Value,       // [N, 128]
}

impl Flux2Model {
    /// The published model: 32,223,281,152 parameters in the transformer.
    pub fn dev() -> Self {
        Self { heads: 48, double_blocks: 8, single_blocks: 48 }
    }

    /// Width of the residual stream.
    pub fn hidden(&self) -> u64 {
        self.heads * HEAD_DIM
    }

    /// Rows and columns of image tokens, of 16 pixels.
    ///
    /// # Errors
    /// [`ModelError::Request`] for sizes that the model cannot take.
    pub fn tokens(&self, run: &VideoRun) -> Result<[u64; 2], ModelError> {
        run.check(16, false)?;
        Ok([run.height / 16, run.width / 16])
    }

    /// The decoder's tiles.
    ///
    /// # Errors
    /// As [`Flux2Model::tokens`].
    pub fn tiles(&self, run: &VideoRun) -> Result<Tiles, ModelError> {
        let [rows, cols] = self.tokens(run)?;
        picture_tiles([2 * rows, 2 * cols], run.tile)
    }

    /// The 32-channel VAE of FLUX.2.
    pub fn vae() -> VaeConfig {
        VaeConfig {
            latent_channels: 32,
            scaling_factor: 1.0,
            shift_factor: None,
            use_post_quant_conv: true,
            ..VaeConfig::flux()
        }
    }

    /// The graph of a run: encode, hoist, denoise, decode of one tile.
    ///
    /// # Errors
    /// A request that does not fit, or sizes beyond the arithmetic.
    pub fn graph(&self, run: &VideoRun, paper: &Paper<'_>) -> Result<Graph, ModelError> {
        let [rows, cols] = self.tokens(run)?;
        let tile = self.tiles(run)?.size;
        let mut b = paper.builder(run.dtype);
        let text = MISTRAL_SMALL_24B.trace(&mut b, MISTRAL, TEXT_TOKENS);
        let latent = self.transformer(&mut b, text, rows * cols);
        Self::vae().trace_tile(&mut b, VAE, latent, [2 * rows, 2 * cols], tile);
        let options = LowerOptions { steps: run.steps, samples: run.samples, hoist: run.hoist };
        Ok(b.finish(&options)?)
    }

    fn transformer(&self, b: &mut Builder<'_>, text: Value, image_tokens: u64) -> Value {
        let d = self.hidden();
        let id = b.component(TRANSFORMER);
        b.phase(PhaseKind::Denoise, "denoise");
        b.block(id, "embed");
        let latent = b.input("noise", image_tokens, CHANNELS, DType::F32, Dependence::Latent);
        let dsigma = b.input("dsigma", 1, 1, DType::F32, Dependence::Step);
        let tokens = TEXT_TOKENS + image_tokens;
        let rope = b.input("rope", tokens, HEAD_DIM, DType::F32, Dependence::Run);
        let timestep = b.input("timestep", 1, 1, DType::F32, Dependence::Step);
        let guidance = b.input("guidance", 1, 1, DType::F32, Dependence::Run);
        let time = scalar(b, "timestep", timestep, d);
        let guidance = scalar(b, "guidance", guidance, d);
        let vec = b.add("vec", time, guidance);
        let vec = b.activate("silu(vec)", vec, Activation::Silu);
        let mut rows = |name: &str, parts: u64| {
            let weight = plain(b, &format!("{name}.linear"), parts * d, d);
            b.linear(name, vec, weight, None, Activation::None)
        };
        let image = rows("double_stream_modulation_img", 6);
        let text_row = rows("double_stream_modulation_txt", 6);
        let single = rows("single_stream_modulation", 3);
        let halves = |row: Value| [0, 3 * d].map(|col| row.slice_cols(col, 3 * d));

        let x = b.buffer("x", tokens, d, b.dtype(), Dependence::Latent);
        let weight = plain(b, "context_embedder", d, TEXT_DIM);
        let context = b.linear("context", text, weight, None, Activation::None);
        b.copy("text", context, x.slice_rows(0, TEXT_TOKENS));
        let weight = plain(b, "x_embedder", d, CHANNELS);
        let pixels = x.slice_rows(TEXT_TOKENS, image_tokens);
        b.linear_into("image", latent, weight, None, Activation::None, None, pixels);
        let state = State { x, text: halves(text_row), image: halves(image), single, rope };
        for index in 0..self.double_blocks {
            b.block(id, format!("double.{index}"));
            self.double(b, &state, index);
        }
        for index in 0..self.single_blocks {
            b.block(id, format!("single.{index}"));
            self.single(b, &state, index);
        }

        b.block(id, "final");
        let weight = plain(b, "norm_out.linear", 2 * d, d);
        let row = b.linear("modulation", vec, weight, None, Activation::None);
        let h = b.modulated_norm("norm", pixels, row.slice_cols(0, d), row.slice_cols(d, d));
        let weight = plain(b, "proj_out", CHANNELS, d);
        let f32 = DType::F32;
        let velocity = b.buffer("velocity", image_tokens, CHANNELS, f32, Dependence::Latent);
        b.linear_into("velocity", h, weight, None, Activation::None, None, velocity);
        b.euler("euler", latent, velocity, dsigma);
        latent
    }

    fn double(&self, b: &mut Builder<'_>, state: &State, index: u64) {
        let d = self.hidden();
        let at = format!("transformer_blocks.{index}");
        let tokens = state.x.rows;
        let qkv = b.buffer("qkv", tokens, 3 * d, b.dtype(), Dependence::Latent);
        let attended = b.buffer("attention", tokens, d, b.dtype(), Dependence::Latent);
        let spans = [(0, TEXT_TOKENS), (TEXT_TOKENS, tokens - TEXT_TOKENS)];
        let streams = [
            ("txt", state.text, ["add_q_proj", "add_k_proj", "add_v_proj"], "norm_added_"),
            ("img", state.image, ["to_q", "to_k", "to_v"], "norm_"),
        ];
        for ((label, [first, _], parts, norm), (start, rows)) in streams.into_iter().zip(spans) {
            let x = state.x.slice_rows(start, rows);
            let h = normed(b, &format!("{label}.norm1"), x, first);
            let parts = parts.map(|part| format!("{at}.attn.{part}"));
            let [q, k, v] = &parts;
            let weight = stacked(b, "qkv", &[(q, d), (k, d), (v, d)], d, false).weight;
            let out = qkv.slice_rows(start, rows);
            b.linear_into(&format!("{label}.qkv"), h, weight, None, Activation::None, None, out);
            let norms = ["q", "k"].map(|part| format!("{at}.attn.{norm}{part}.weight"));
            self.rope(b, label, norms, out, state.rope.slice_rows(start, rows));
        }
        self.attend(b, qkv, attended);
        let outs = [("attn.to_add_out", "ff_context"), ("attn.to_out.0", "ff")];
        for (((label, halves, ..), (start, rows)), (out, ff)) in
            streams.into_iter().zip(spans).zip(outs)
        {
            let x = state.x.slice_rows(start, rows);
            let weight = plain(b, &format!("{at}.{out}"), d, d);
            let mine = attended.slice_rows(start, rows);
            back(b, &format!("{label}.out"), mine, weight, x, halves[0]);
            let h = normed(b, &format!("{label}.norm2"), x, halves[1]);
            let weight = plain(b, &format!("{at}.{ff}.linear_in"), 2 * MLP * d, d);
            let wide = b.linear(&format!("{label}.in"), h, weight, None, Activation::None);
            let wide = b.swiglu(&format!("{label}.swiglu"), wide);
            let weight = plain(b, &format!("{at}.{ff}.linear_out"), d, MLP * d);
            back(b, &format!("{label}.ff"), wide, weight, x, halves[1]);
        }
    }

    fn single(&self, b: &mut Builder<'_>, state: &State, index: u64) {
        let (d, x) = (self.hidden(), state.x);
        let at = format!("single_transformer_blocks.{index}.attn");
        let h = normed(b, "norm", x, state.single);
        let weight = plain(b, &format!("{at}.to_qkv_mlp_proj"), (3 + 2 * MLP) * d, d);
        let all = b.linear("qkv|mlp", h, weight, None, Activation::None);
        let qkv = all.slice_cols(0, 3 * d);
        let norms = ["q", "k"].map(|part| format!("{at}.norm_{part}.weight"));
        self.rope(b, "qk", norms, qkv, state.rope);
        // One buffer for attention and feed-forward, so that the projection reads both as one row.
        let both = b.buffer("attention|mlp", x.rows, (1 + MLP) * d, b.dtype(), Dependence::Latent);
        b.swiglu_into("swiglu", all.slice_cols(3 * d, 2 * MLP * d), both.slice_cols(d, MLP * d));
        self.attend(b, qkv, both.slice_cols(0, d));
        let weight = plain(b, &format!("{at}.to_out"), d, (1 + MLP) * d);
        back(b, "out", both, weight, x, state.single);
    }

    fn rope(&self, b: &mut Builder<'_>, label: &str, norms: [String; 2], qkv: Value, rope: Value) {
        let d = self.hidden();
        let [q, k] = norms.map(|name| vector(b, &name, HEAD_DIM));
        let (name, heads) = (format!("{label}.rope"), self.heads);
        b.qk_norm_rope(&name, qkv.slice_cols(0, d), qkv.slice_cols(d, d), q, k, rope, heads);
    }

    fn attend(&self, b: &mut Builder<'_>, qkv: Value, out: Value) {
        let d = self.hidden();
        let heads_of = [0, d, 2 * d].map(|col| qkv.slice_cols(col, d));
        #[expect(clippy::cast_precision_loss, reason = "a head's width is far below 2^24")]
        let scale = (HEAD_DIM as f32).sqrt().recip();
        b.attention_into("attention", heads_of, self.heads, scale, false, None, out);
    }
}

/// A matrix without a bias; the model has none anywhere.
fn plain(b: &mut Builder<'_>, name: &str, rows: u64, cols: u64) -> WeightId {
    stacked(b, name, &[(name, rows)], cols, false).weight
}

/// Sinusoid and MLP of a scalar.
fn scalar(b: &mut Builder<'_>, name: &str, x: Value, d: u64) -> Value {
    let at = format!("time_guidance_embed.{name}_embedder");
    let wave = b.sinusoid(&format!("{name}.wave"), x, WAVE_COLS);
    let first = plain(b, &format!("{at}.linear_1"), d, WAVE_COLS);
    let h = b.linear(&format!("{name}.1"), wave, first, None, Activation::Silu);
    let second = plain(b, &format!("{at}.linear_2"), d, d);
    b.linear(&format!("{name}.2"), h, second, None, Activation::None)
}

/// LayerNorm with the shift and scale of a row of shift, scale and gate.
fn normed(b: &mut Builder<'_>, name: &str, x: Value, row: Value) -> Value {
    let d = x.cols;
    b.modulated_norm(name, x, row.slice_cols(d, d), row.slice_cols(0, d))
}

/// `x += gate * w h`.
fn back(b: &mut Builder<'_>, name: &str, h: Value, weight: WeightId, x: Value, row: Value) {
    let gate = Some(row.slice_cols(2 * x.cols, x.cols));
    let residual = Some(Residual { base: x, gate });
    b.linear_into(name, h, weight, None, Activation::None, residual, x);
}
