//! The decoder of HunyuanVideo's causal video VAE, a tile at a time.
//!
//! A tile is decoded by itself, with no history: tiles overlap by a quarter on every axis and are blended.

use plimsoll_graph::{
    Activation, Builder, ComponentId, ConvShape, Dependence, PhaseKind, Residual, Value,
};

use crate::layers::{affine, linear, vector};

const CHANNELS: u64 = 16;
/// Channels of the levels, from the lowest resolution.
const LEVELS: [u64; 4] = [512, 512, 256, 128];
/// What each level but the last enlarges: frames, rows, columns.
const UP: [[u64; 3]; 3] = [[1, 2, 2], [2, 2, 2], [2, 2, 2]];
const RESNETS: u64 = 3;
const GROUPS: u64 = 32;

/// Traces the decode of one tile of `tile` latents out of all; outputs `latent` and `image`.
pub(super) fn trace(
    b: &mut Builder<'_>,
    component: &str,
    latent: Value,
    [frames, rows, cols]: [u64; 3],
    tile: [u64; 3],
) {
    let id = b.component(component);
    b.phase(PhaseKind::Decode, "decode");
    b.block(id, "vae.conv_in");
    b.output("latent", latent);
    let all = b.unpatchify("z", latent, [frames * rows, cols], 0.476_986, 0.0);
    let z = b.tile("tile", all, tile.iter().product(), CHANNELS);
    let weight = b.weight(
        "post_quant_conv.weight",
        &[("post_quant_conv.weight".to_owned(), vec![CHANNELS, CHANNELS, 1, 1, 1])],
    );
    let bias = vector(b, "post_quant_conv.bias", CHANNELS);
    let z = b.linear("post_quant_conv", z, weight, Some(bias), Activation::None);

    let mut size = tile;
    let decoder = Decoder { id };
    let low = LEVELS[0];
    let mut x = decoder.conv(b, "decoder.conv_in", z, size, [1; 3], low, None);
    x = decoder.resnet(b, "decoder.mid_block.resnets.0", x, size, low);
    x = decoder.attention(b, x);
    x = decoder.resnet(b, "decoder.mid_block.resnets.1", x, size, low);
    for (level, out) in LEVELS.into_iter().enumerate() {
        for layer in 0..RESNETS {
            let name = format!("decoder.up_blocks.{level}.resnets.{layer}");
            x = decoder.resnet(b, &name, x, size, out);
        }
        let Some(up) = UP.get(level) else { continue };
        let name = format!("decoder.up_blocks.{level}.upsamplers.0.conv");
        b.block(id, format!("vae.up_blocks.{level}.upsampler"));
        x = decoder.conv(b, &name, x, size, *up, out, None);
        size = shape(size, *up).result();
    }
    b.block(id, "vae.conv_out");
    let (weight, bias) = affine(b, "decoder.conv_norm_out", x.cols);
    let n = b.group_norm("norm_out", x, weight, bias, GROUPS, true);
    let image = decoder.conv(b, "decoder.conv_out", n, size, [1; 3], 3, None);
    b.output("image", image);
}

fn shape(size: [u64; 3], upscale: [u64; 3]) -> ConvShape {
    ConvShape { size, kernel: [3; 3], stride: [1; 3], upscale }
}

struct Decoder {
    id: ComponentId,
}

impl Decoder {
    #[expect(clippy::too_many_arguments, reason = "each is an operand of the one op")]
    fn conv(
        &self,
        b: &mut Builder<'_>,
        name: &str,
        x: Value,
        size: [u64; 3],
        upscale: [u64; 3],
        out: u64,
        residual: Option<Value>,
    ) -> Value {
        let weight = b.weight(
            &format!("{}.weight", name.rsplit('.').next().unwrap_or(name)),
            &[(format!("{name}.conv.weight"), vec![out, x.cols, 3, 3, 3])],
        );
        let bias = vector(b, &format!("{name}.conv.bias"), out);
        b.conv(name, x, shape(size, upscale), [weight, bias], residual, None)
    }

    fn resnet(&self, b: &mut Builder<'_>, name: &str, x: Value, size: [u64; 3], out: u64) -> Value {
        b.block(self.id, name.replacen("decoder", "vae", 1));
        let (weight, bias) = affine(b, &format!("{name}.norm1"), x.cols);
        let n = b.group_norm("norm1", x, weight, bias, GROUPS, true);
        let h = self.conv(b, &format!("{name}.conv1"), n, size, [1; 3], out, None);
        let (weight, bias) = affine(b, &format!("{name}.norm2"), out);
        let n = b.group_norm("norm2", h, weight, bias, GROUPS, true);
        let shortcut = if x.cols == out {
            x
        } else {
            let entry = format!("{name}.conv_shortcut.conv");
            let weight = b.weight(
                "conv_shortcut.weight",
                &[(format!("{entry}.weight"), vec![out, x.cols, 1, 1, 1])],
            );
            let bias = vector(b, &format!("{entry}.bias"), out);
            b.linear("shortcut", x, weight, Some(bias), Activation::None)
        };
        self.conv(b, &format!("{name}.conv2"), n, size, [1; 3], out, Some(shortcut))
    }

    /// One head over the pixels of all frames; a frame sees those before it.
    fn attention(&self, b: &mut Builder<'_>, x: Value) -> Value {
        let c = x.cols;
        let name = "decoder.mid_block.attentions.0";
        b.block(self.id, name.replacen("decoder", "vae", 1));
        let (weight, bias) = affine(b, &format!("{name}.group_norm"), c);
        let n = b.group_norm("norm", x, weight, bias, GROUPS, false);
        let parts = ["to_q", "to_k", "to_v"].map(|part| format!("{name}.{part}"));
        let [q, k, v] = &parts;
        let qkv = crate::layers::stacked(b, "qkv", &[(q, c), (k, c), (v, c)], c, true);
        let qkv = b.linear("qkv", n, qkv.weight, qkv.bias, Activation::None);
        let heads_of = [0, c, 2 * c].map(|col| qkv.slice_cols(col, c));
        let attended = b.buffer("attention", x.rows, c, b.dtype(), Dependence::Latent);
        #[expect(clippy::cast_precision_loss, reason = "channels are far below 2^24")]
        let scale = (c as f32).sqrt().recip();
        b.attention_into("attention", heads_of, 1, scale, true, None, attended);
        let out = linear(b, &format!("{name}.to_out.0"), c, c);
        let y = b.buffer("y", x.rows, c, b.dtype(), Dependence::Latent);
        let residual = Some(Residual { base: x, gate: None });
        b.linear_into("out", attended, out.weight, out.bias, Activation::None, residual, y);
        y
    }
}
