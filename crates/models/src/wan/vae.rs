//! The decoder of Wan's causal video VAE, a latent frame at a time.
//!
//! Each causal convolution keeps the last two frames of its input for the tile after; the graph holds that history
//! through the whole tile. The first latent frame gives one frame and all others four: every tile is taken as four.

use plimsoll_graph::{
    Activation, Builder, ComponentId, ConvShape, DType, Dependence, Norm, PhaseKind, Residual,
    Value,
};

use crate::layers::{linear, vector};

const CHANNELS: u64 = 16;
/// Channels after the middle and after each level of the decoder.
const LEVELS: [u64; 4] = [384, 384, 192, 96];
/// Whether a level doubles its frames as well.
const DOUBLES: [bool; 3] = [true, true, false];
const RESNETS: u64 = 3;

/// Weights of the decoder: `name` is the checkpoint's, `[out, in, kernel]`.
struct Decoder {
    id: ComponentId,
    history: Value,
    used: u64,
}

/// Elements of history that a tile of `[height, width]` latents needs.
fn history_elements([height, width]: [u64; 2]) -> u64 {
    let mut all = 0;
    let mut keep = |frames: u64, pixels: u64, channels: u64| all += frames * pixels * channels;
    let mut pixels = height * width;
    keep(2, pixels, CHANNELS);
    // The middle's two blocks.
    (0..4).for_each(|_| keep(2, pixels, LEVELS[0]));
    let mut input = LEVELS[0];
    for (level, out) in LEVELS.into_iter().enumerate() {
        for _ in 0..RESNETS {
            keep(2, pixels, input);
            keep(2, pixels, out);
            input = out;
        }
        if let Some(doubles) = DOUBLES.get(level) {
            if *doubles {
                keep(2, pixels, out);
            }
            pixels *= 4;
            input = out / 2;
        }
    }
    keep(2, pixels, LEVELS[3]);
    all
}

/// Traces the decode of one tile of `size` latents out of all `frames`; outputs `latent` and `image`.
pub(super) fn trace(
    b: &mut Builder<'_>,
    component: &str,
    latent: Value,
    [frames, rows, cols]: [u64; 3],
    [tile_frames, height, width]: [u64; 3],
) {
    let id = b.component(component);
    b.phase(PhaseKind::Decode, "decode");
    b.block(id, "vae.conv_in");
    b.output("latent", latent);
    let history = b.clear("history", history_elements([height, width]), 1);
    let all = b.unpatchify("z", latent, [frames * rows, cols], 1.0, 0.0);
    let z = b.tile("tile", all, tile_frames * height * width, CHANNELS);
    let weight = b.weight(
        "post_quant_conv.weight",
        &[("post_quant_conv.weight".to_owned(), vec![CHANNELS, CHANNELS, 1, 1, 1])],
    );
    let bias = vector(b, "post_quant_conv.bias", CHANNELS);
    let z = b.linear("post_quant_conv", z, weight, Some(bias), Activation::None);
    Decoder { id, history, used: 0 }.trace(b, z, [tile_frames, height, width]);
}

impl Decoder {
    fn trace(&mut self, b: &mut Builder<'_>, z: Value, mut size: [u64; 3]) {
        let low = LEVELS[0];
        let mut x = self.conv(
            b,
            "decoder.conv_in",
            z,
            ConvShape { size, kernel: [3; 3], stride: [1; 3], upscale: [1; 3] },
            low,
            None,
        );
        x = self.resnet(b, "decoder.mid_block.resnets.0", x, size, low);
        x = self.attention(b, x, size);
        x = self.resnet(b, "decoder.mid_block.resnets.1", x, size, low);
        for (level, out) in LEVELS.into_iter().enumerate() {
            for layer in 0..RESNETS {
                let name = format!("decoder.up_blocks.{level}.resnets.{layer}");
                x = self.resnet(b, &name, x, size, out);
            }
            let Some(doubles) = DOUBLES.get(level) else { continue };
            let at = format!("decoder.up_blocks.{level}.upsamplers.0");
            b.block(self.id, format!("vae.up_blocks.{level}.upsampler"));
            if *doubles {
                let shape = ConvShape { size, kernel: [3, 1, 1], stride: [1; 3], upscale: [1; 3] };
                let pairs = self.conv(b, &format!("{at}.time_conv"), x, shape, 2 * out, None);
                size[0] *= 2;
                x = b.tile("frames", pairs, size.iter().product(), out);
            }
            let shape = ConvShape { size, kernel: [1, 3, 3], stride: [1; 3], upscale: [1, 2, 2] };
            x = self.conv(b, &format!("{at}.resample.1"), x, shape, out / 2, None);
            size = shape.result();
        }
        b.block(self.id, "vae.conv_out");
        let n = self.norm_silu(b, "norm_out", "decoder.norm_out.gamma", x);
        let shape = ConvShape { size, kernel: [3; 3], stride: [1; 3], upscale: [1; 3] };
        let image = self.conv(b, "decoder.conv_out", n, shape, 3, None);
        b.output("image", image);
    }

    /// Channel-wise RMS norm, then SiLU.
    fn norm_silu(&self, b: &mut Builder<'_>, label: &str, name: &str, x: Value) -> Value {
        let weight = vector(b, name, x.cols);
        let n = b.norm(label, x, Norm::Rms { eps: 1e-12, weight });
        b.activate(&format!("{label}.silu"), n, Activation::Silu)
    }

    fn conv(
        &mut self,
        b: &mut Builder<'_>,
        name: &str,
        x: Value,
        shape: ConvShape,
        out: u64,
        residual: Option<Value>,
    ) -> Value {
        let mut dims = vec![out, x.cols];
        // The spatial part of an upsampler is a plain 2D convolution in the checkpoint.
        let first = usize::from(shape.kernel[0] == 1);
        dims.extend(&shape.kernel[first..]);
        let weight = b.weight(
            &format!("{}.weight", name.rsplit('.').next().unwrap_or(name)),
            &[(format!("{name}.weight"), dims)],
        );
        let bias = vector(b, &format!("{name}.bias"), out);
        let history = (shape.kernel[0] > 1).then(|| {
            let elements = 2 * shape.size[1] * shape.size[2] * x.cols;
            let view = self.history.slice_rows(self.used, elements);
            self.used += elements;
            view
        });
        b.conv(name, x, shape, [weight, bias], residual, history)
    }

    fn resnet(
        &mut self,
        b: &mut Builder<'_>,
        name: &str,
        x: Value,
        size: [u64; 3],
        out: u64,
    ) -> Value {
        b.block(self.id, name.replacen("decoder", "vae", 1));
        let shape = ConvShape { size, kernel: [3; 3], stride: [1; 3], upscale: [1; 3] };
        let n = self.norm_silu(b, "norm1", &format!("{name}.norm1.gamma"), x);
        let h = self.conv(b, &format!("{name}.conv1"), n, shape, out, None);
        let n = self.norm_silu(b, "norm2", &format!("{name}.norm2.gamma"), h);
        let shortcut = if x.cols == out {
            x
        } else {
            let entry = format!("{name}.conv_shortcut");
            let weight = b.weight(
                "conv_shortcut.weight",
                &[(format!("{entry}.weight"), vec![out, x.cols, 1, 1, 1])],
            );
            let bias = vector(b, &format!("{entry}.bias"), out);
            b.linear("shortcut", x, weight, Some(bias), Activation::None)
        };
        self.conv(b, &format!("{name}.conv2"), n, shape, out, Some(shortcut))
    }

    /// One head over the pixels of each frame.
    fn attention(&self, b: &mut Builder<'_>, x: Value, size: [u64; 3]) -> Value {
        let c = x.cols;
        let name = "decoder.mid_block.attentions.0";
        b.block(self.id, name.replacen("decoder", "vae", 1));
        let weight = vector(b, &format!("{name}.norm.gamma"), c);
        let n = b.norm("norm", x, Norm::Rms { eps: 1e-12, weight });
        let qkv = linear(b, &format!("{name}.to_qkv"), 3 * c, c);
        let qkv = b.linear("qkv", n, qkv.weight, qkv.bias, Activation::None);
        let attended = b.buffer("attention", x.rows, c, DType::BF16, Dependence::Latent);
        #[expect(clippy::cast_precision_loss, reason = "channels are far below 2^24")]
        let scale = (c as f32).sqrt().recip();
        let pixels = size[1] * size[2];
        for frame in 0..size[0] {
            let rows = |view: Value| view.slice_rows(frame * pixels, pixels);
            let heads = [0, c, 2 * c].map(|col| rows(qkv).slice_cols(col, c));
            let name = format!("attention.{frame}");
            b.attention_into(&name, heads, 1, scale, false, None, rows(attended));
        }
        let out = linear(b, &format!("{name}.proj"), c, c);
        let y = b.buffer("y", x.rows, c, b.dtype(), Dependence::Latent);
        let residual = Some(Residual { base: x, gate: None });
        b.linear_into("out", attended, out.weight, out.bias, Activation::None, residual, y);
        y
    }
}
