//! Z-Image-Turbo: Qwen 3 4B, a single-stream transformer with refiners before it, the VAE of FLUX.1.
//!
//! The graph has the shapes, bytes and operations of a run; running it waits for its ops. Where it differs from the
//! reference in what it would compute: a norm's weight is added to its modulation row and the gate of a residual is left
//! out (each is one row beside a matrix of tokens), and tokens that only pad are not replaced by the pad vectors.

use plimsoll_graph::{
    Activation, Builder, ComponentId, DType, Dependence, Graph, LowerOptions, Norm, PhaseKind,
    Value,
};

use crate::language::QWEN_3_4B;
use crate::layers::{linear, stacked, vector};
use crate::paper::Paper;
use crate::video::{Tiles, VideoRun, picture_tiles};
use crate::{ModelError, VaeConfig};

/// Component names of a Z-Image pipeline folder.
pub const QWEN: &str = "text_encoder";
/// See [`QWEN`].
pub const TRANSFORMER: &str = "transformer";
/// See [`QWEN`].
pub const VAE: &str = "vae";

/// Length of a prompt.
const TEXT_TOKENS: u64 = 512;
const TEXT_DIM: u64 = 2560;
const CHANNELS: u64 = 64;
const HEAD_DIM: u64 = 128;
const WAVE_COLS: u64 = 256;
const TIME_HIDDEN: u64 = 1024;
/// Columns of the time embedding that modulates.
const TIME_COLS: u64 = 256;
const EPS: f32 = 1e-5;

/// Sizes of the Z-Image transformer.
///
/// Source: `ZImageTransformer2DModel` of diffusers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZImageModel {
    /// Heads of 128.
    pub heads: u64,
    /// Blocks over text and image together.
    pub layers: u64,
    /// Blocks over the image alone and over the text alone, each.
    pub refiners: u64,
}

/// One of the kinds of blocks.
struct Span<'a> {
    at: &'a str,
    x: Value,
    rope: Value,
    /// `[1, 256]`; blocks over the text alone have no modulation.
    time: Option<Value>,
    dependence: Dependence,
}

impl ZImageModel {
    /// The published model: 6,154,908,736 parameters in the transformer, of which a run does not read the two pad
    /// vectors.
    pub fn turbo() -> Self {
        Self { heads: 30, layers: 30, refiners: 2 }
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
    /// As [`ZImageModel::tokens`].
    pub fn tiles(&self, run: &VideoRun) -> Result<Tiles, ModelError> {
        let [rows, cols] = self.tokens(run)?;
        picture_tiles([2 * rows, 2 * cols], run.tile)
    }

    /// The graph of a run: encode, hoist, denoise, decode of one tile.
    ///
    /// # Errors
    /// A request that does not fit, or sizes beyond the arithmetic.
    pub fn graph(&self, run: &VideoRun, paper: &Paper<'_>) -> Result<Graph, ModelError> {
        let [rows, cols] = self.tokens(run)?;
        let tile = self.tiles(run)?.size;
        let mut b = paper.builder(run.dtype);
        let text = QWEN_3_4B.trace(&mut b, QWEN, TEXT_TOKENS);
        let latent = self.transformer(&mut b, text, rows * cols);
        VaeConfig::flux().trace_tile(&mut b, VAE, latent, [2 * rows, 2 * cols], tile);
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
        let tokens = image_tokens + TEXT_TOKENS;
        let rope = b.input("rope", tokens, HEAD_DIM, DType::F32, Dependence::Run);
        let timestep = b.input("timestep", 1, 1, DType::F32, Dependence::Step);
        let wave = b.sinusoid("wave", timestep, WAVE_COLS);
        let first = linear(b, "t_embedder.mlp.0", TIME_HIDDEN, WAVE_COLS);
        let h = b.linear("time.0", wave, first.weight, first.bias, Activation::Silu);
        let second = linear(b, "t_embedder.mlp.2", TIME_COLS, TIME_HIDDEN);
        let time = b.linear("time.2", h, second.weight, second.bias, Activation::None);

        let weight = vector(b, "cap_embedder.0.weight", TEXT_DIM);
        let caption = b.norm("caption.norm", text, Norm::Rms { eps: EPS, weight });
        let layer = linear(b, "cap_embedder.1", d, TEXT_DIM);
        let caption = b.linear("caption", caption, layer.weight, layer.bias, Activation::None);
        // The image stands before the text.
        let x = b.buffer("x", tokens, d, b.dtype(), Dependence::Latent);
        let image = x.slice_rows(0, image_tokens);
        let layer = linear(b, "all_x_embedder.2-1", d, CHANNELS);
        let none = Activation::None;
        b.linear_into("image", latent, layer.weight, layer.bias, none, None, image);

        let image_rope = rope.slice_rows(0, image_tokens);
        let text_rope = rope.slice_rows(image_tokens, TEXT_TOKENS);
        let (time_of, latent_kind) = (Some(time), Dependence::Latent);
        for (name, x, rope, time, dependence) in [
            ("noise_refiner", image, image_rope, time_of, latent_kind),
            ("context_refiner", caption, text_rope, None, Dependence::Run),
        ] {
            for index in 0..self.refiners {
                b.block(id, format!("{name}.{index}"));
                let at = format!("{name}.{index}");
                self.layer(b, &Span { at: &at, x, rope, time, dependence });
            }
        }
        for index in 0..self.layers {
            self.open(b, id, index, caption, x.slice_rows(image_tokens, TEXT_TOKENS));
            let at = format!("layers.{index}");
            let span = Span { at: &at, x, rope, time: time_of, dependence: latent_kind };
            self.layer(b, &span);
        }

        b.block(id, "final");
        let at = "all_final_layer.2-1";
        let silu = b.activate("silu(time)", time, Activation::Silu);
        let layer = linear(b, &format!("{at}.adaLN_modulation.1"), d, TIME_COLS);
        let scale = b.linear("modulation", silu, layer.weight, layer.bias, none);
        let h = b.modulated_norm("norm", image, scale, scale);
        let layer = linear(b, &format!("{at}.linear"), CHANNELS, d);
        let f32 = DType::F32;
        let velocity = b.buffer("velocity", image_tokens, CHANNELS, f32, Dependence::Latent);
        b.linear_into("velocity", h, layer.weight, layer.bias, none, None, velocity);
        b.euler("euler", latent, velocity, dsigma);
        latent
    }

    /// Begins a block over all tokens; the first takes the text in.
    fn open(&self, b: &mut Builder<'_>, id: ComponentId, index: u64, caption: Value, text: Value) {
        b.block(id, format!("layer.{index}"));
        if index == 0 {
            b.copy("text", caption, text);
        }
    }

    fn layer(&self, b: &mut Builder<'_>, span: &Span<'_>) {
        let (d, at, x) = (self.hidden(), span.at, span.x);
        let hidden = d / 3 * 8;
        let none = Activation::None;
        // Scale of attention, gate, scale of feed-forward, gate.
        let row = span.time.map(|time| {
            let layer = linear(b, &format!("{at}.adaLN_modulation.0"), 4 * d, TIME_COLS);
            b.linear("modulation", time, layer.weight, layer.bias, none)
        });
        let before = |b: &mut Builder<'_>, name: &str, part: u64| {
            let weight = vector(b, &format!("{at}.{name}.weight"), d);
            match row {
                Some(row) => {
                    let scale = row.slice_cols(part * d, d);
                    let scale = b.add_weight(&format!("{name}.scale"), scale, weight);
                    b.modulated_norm(name, x, scale, scale)
                }
                None => b.norm(name, x, Norm::Rms { eps: EPS, weight }),
            }
        };
        let h = before(b, "attention_norm1", 0);
        let parts = ["to_q", "to_k", "to_v"].map(|part| format!("{at}.attention.{part}"));
        let [q, k, v] = &parts;
        let weight = stacked(b, "qkv", &[(q, d), (k, d), (v, d)], d, false).weight;
        let qkv = b.linear("qkv", h, weight, None, none);
        let norms = ["norm_q", "norm_k"];
        let [q, k] =
            norms.map(|name| vector(b, &format!("{at}.attention.{name}.weight"), HEAD_DIM));
        let rope = span.rope;
        let (left, right) = (qkv.slice_cols(0, d), qkv.slice_cols(d, d));
        b.qk_norm_rope("rope", left, right, q, k, rope, self.heads);
        let attended = b.buffer("attention", x.rows, d, b.dtype(), span.dependence);
        #[expect(clippy::cast_precision_loss, reason = "a head's width is far below 2^24")]
        let scale = (HEAD_DIM as f32).sqrt().recip();
        let heads_of = [0, d, 2 * d].map(|col| qkv.slice_cols(col, d));
        b.attention_into("attention", heads_of, self.heads, scale, false, None, attended);
        let name = format!("{at}.attention.to_out.0");
        let weight = stacked(b, "out", &[(&name, d)], d, false).weight;
        let y = b.linear("out", attended, weight, None, none);
        self.after(b, span, "attention_norm2", y);

        let h = before(b, "ffn_norm1", 2);
        let [gate, up, down] = ["w1", "w3", "w2"].map(|name| format!("{at}.feed_forward.{name}"));
        let both = [(gate.as_str(), hidden), (up.as_str(), hidden)];
        let weight = stacked(b, "w1|w3", &both, d, false).weight;
        let wide = b.linear("w1|w3", h, weight, None, none);
        let wide = b.swiglu("swiglu", wide);
        let weight = stacked(b, "w2", &[(&down, d)], hidden, false).weight;
        let y = b.linear("w2", wide, weight, None, none);
        self.after(b, span, "ffn_norm2", y);
    }

    /// `x += norm(y)`.
    fn after(&self, b: &mut Builder<'_>, span: &Span<'_>, name: &str, y: Value) {
        let weight = vector(b, &format!("{}.{name}.weight", span.at), self.hidden());
        b.norm_into(name, y, Norm::Rms { eps: EPS, weight }, y);
        b.add_into(&format!("{name}.add"), span.x, y, span.x);
    }
}
