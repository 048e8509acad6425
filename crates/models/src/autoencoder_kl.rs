//! AutoencoderKL: the decoder from latents to pixels.
//!
//! Source: `AutoencoderKL` of diffusers 0.42.1. Pixels are rows and channels are columns, so a 1x1
//! convolution is a linear layer and the attention of the middle is plain attention with one head.

use plimsoll_graph::{
    Activation, Builder, ComponentId, DType, Dependence, PhaseKind, Residual, Value,
};
use serde::Deserialize;

use crate::ModelError;
use crate::config::{COUNT_MAX, bounded, check, parse};
use crate::layers::{affine, conv3x3, linear};
use crate::tiles::side;

/// Fields of `vae/config.json` that shape the decoder.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct VaeConfig {
    /// Channels from the highest resolution to the lowest.
    pub block_out_channels: Vec<u64>,
    /// Residual blocks of an encoder level; a decoder level has one more.
    pub layers_per_block: u64,
    /// Channels of a latent.
    pub latent_channels: u64,
    /// Channels of a picture.
    #[serde(default = "rgb")]
    pub out_channels: u64,
    /// Groups of every GroupNorm.
    #[serde(default = "groups")]
    pub norm_num_groups: u64,
    /// Factor that normalises latents.
    pub scaling_factor: f32,
    /// Mean that is taken off before scaling.
    #[serde(default)]
    pub shift_factor: Option<f32>,
    /// Attention in the middle.
    #[serde(default = "yes")]
    pub mid_block_add_attention: bool,
    /// A 1x1 convolution before the decoder (SD, SDXL).
    #[serde(default = "yes")]
    pub use_post_quant_conv: bool,
    /// `silu`.
    #[serde(default = "silu")]
    pub act_fn: String,
    /// Level classes; only `UpDecoderBlock2D` is known.
    #[serde(default)]
    pub up_block_types: Vec<String>,
}

fn rgb() -> u64 {
    3
}
fn groups() -> u64 {
    32
}
fn yes() -> bool {
    true
}
fn silu() -> String {
    "silu".to_owned()
}

impl VaeConfig {
    /// The 16-channel VAE of FLUX.1 (`ae.safetensors`).
    pub fn flux() -> Self {
        Self {
            block_out_channels: vec![128, 256, 512, 512],
            layers_per_block: 2,
            latent_channels: 16,
            out_channels: 3,
            norm_num_groups: 32,
            scaling_factor: 0.3611,
            shift_factor: Some(0.1159),
            mid_block_add_attention: true,
            use_post_quant_conv: false,
            act_fn: silu(),
            up_block_types: Vec::new(),
        }
    }

    /// Reads and checks a `config.json`.
    ///
    /// # Errors
    /// [`ModelError::Config`] where a field is missing, [`ModelError::Value`] where one is out of range.
    pub fn from_json(component: &str, json: &str) -> Result<Self, ModelError> {
        let config: Self = parse(component, json)?;
        let levels = config.block_out_channels.len();
        check(component, "block_out_channels", levels, (1..=8).contains(&levels), || {
            "1 to 8 levels".to_owned()
        })?;
        bounded(component, "layers_per_block", config.layers_per_block, 64)?;
        bounded(component, "latent_channels", config.latent_channels, COUNT_MAX)?;
        check(component, "out_channels", config.out_channels, config.out_channels == 3, || {
            "3".to_owned()
        })?;
        bounded(component, "norm_num_groups", config.norm_num_groups, COUNT_MAX)?;
        for channels in &config.block_out_channels {
            bounded(component, "block_out_channels", *channels, 1 << 14)?;
            let groups = config.norm_num_groups;
            check(component, "block_out_channels", channels, channels % groups == 0, || {
                format!("a multiple of norm_num_groups {groups}")
            })?;
        }
        let scale = config.scaling_factor;
        check(component, "scaling_factor", scale, scale.is_finite() && scale != 0.0, || {
            "a number other than 0".to_owned()
        })?;
        let shift = config.shift_factor.unwrap_or(0.0);
        check(component, "shift_factor", shift, shift.is_finite(), || "a number".to_owned())?;
        check(component, "act_fn", &config.act_fn, config.act_fn == "silu", silu)?;
        for class in &config.up_block_types {
            check(component, "up_block_types", class, class == "UpDecoderBlock2D", || {
                "UpDecoderBlock2D".to_owned()
            })?;
        }
        Ok(config)
    }

    /// Picture pixels a side of a latent pixel.
    pub fn downscale(&self) -> u64 {
        1 << (self.block_out_channels.len() - 1)
    }

    /// Traces the decoder over packed latents `[height/2 * width/2, 4 * channels]`, which become output
    /// `latent`; the picture becomes output `image`, `[height * width * downscale^2, 3]` in `f32`, nominally in -1..1.
    ///
    /// With `tile` it is decoded in tiles of at most so many picture pixels a side, one after the other, which changes it
    /// a little: GroupNorm and attention see a tile at a time. `image` is then `[height * downscale, width * downscale * 3]`:
    /// the same bytes. A picture no larger than a tile is decoded whole.
    pub(crate) fn trace(
        &self,
        b: &mut Builder<'_>,
        component: &str,
        latent: Value,
        size: [u64; 2],
        tile: Option<u64>,
    ) {
        let id = b.component(component);
        b.phase(PhaseKind::Decode, "decode");
        let decoder = Decoder { config: self, id };
        decoder.trace(b, latent, size, tile);
    }

    /// As [`VaeConfig::trace`], on paper: one of the tiles of `[1, height, width]` latents that it is decoded in.
    pub(crate) fn trace_tile(
        &self,
        b: &mut Builder<'_>,
        component: &str,
        latent: Value,
        size: [u64; 2],
        [_, height, width]: [u64; 3],
    ) {
        let id = b.component(component);
        b.phase(PhaseKind::Decode, "decode");
        b.block(id, "vae.conv_in");
        b.output("latent", latent);
        let shift = self.shift_factor.unwrap_or(0.0);
        let z = b.unpatchify("z", latent, size, self.scaling_factor, shift);
        let z = b.tile("tile", z, height * width, self.latent_channels);
        Decoder { config: self, id }.trace_pixels(b, z, [height, width]);
    }

    /// Traces the decoder over latent pixels `[height * width, channels]` in the present decode phase, in blocks of its
    /// component.
    pub(crate) fn trace_pixels(&self, b: &mut Builder<'_>, z: Value, size: [u64; 2]) {
        let id = b.component_of_block();
        let image = Decoder { config: self, id }.trace_pixels(b, z, size);
        b.output("image", image);
    }
}

struct Decoder<'c> {
    config: &'c VaeConfig,
    id: ComponentId,
}

impl Decoder<'_> {
    fn trace(&self, b: &mut Builder<'_>, latent: Value, size: [u64; 2], tile: Option<u64>) {
        b.block(self.id, "vae.conv_in");
        b.output("latent", latent);
        let shift = self.config.shift_factor.unwrap_or(0.0);
        let z = b.unpatchify("z", latent, size, self.config.scaling_factor, shift);
        let unit = self.config.downscale();
        let edge =
            tile.map(|pixels| pixels / unit).filter(|edge| size.iter().any(|side| side > edge));
        let image = match edge {
            None => self.trace_pixels(b, z, size),
            Some(edge) => self.trace_tiles(b, z, size, edge),
        };
        b.output("image", image);
    }

    /// The picture `[height * downscale, width * downscale * 3]` of tiles of `edge` latent pixels a side.
    fn trace_tiles(
        &self,
        b: &mut Builder<'_>,
        z: Value,
        [height, width]: [u64; 2],
        edge: u64,
    ) -> Value {
        let (unit, channels) = (self.config.downscale(), self.config.out_channels);
        b.decode_in_tiles(edge * unit);
        let picture = b.clear_of("picture", height * unit, width * unit * channels, DType::F32);
        let (tile_height, rows) = side(height, edge, unit);
        let (tile_width, cols) = side(width, edge, unit);
        for row in &rows {
            for col in &cols {
                b.block_again(self.id, "vae.conv_in");
                let size = [tile_height, tile_width];
                let part = b.crop("tile", z, width, [row.start, col.start], size);
                let tile = self.trace_pixels(b, part, size);
                let target = picture
                    .slice_rows(row.first, row.pixels)
                    .slice_cols(col.first * channels, col.pixels * channels);
                b.blend("blend", tile, tile_width * unit, [row.fade, col.fade], target);
            }
        }
        picture
    }

    /// The picture `[pixels, 3]` of latent pixels.
    fn trace_pixels(
        &self,
        b: &mut Builder<'_>,
        z: Value,
        [mut height, mut width]: [u64; 2],
    ) -> Value {
        let config = self.config;
        let dtype = b.dtype();
        let low = *config.block_out_channels.last().unwrap_or(&0);
        let mut x = z;
        if config.use_post_quant_conv {
            let channels = config.latent_channels;
            let weight = b.weight(
                "post_quant_conv.weight",
                &[("post_quant_conv.weight".to_owned(), vec![channels, channels, 1, 1])],
            );
            let bias = b.weight(
                "post_quant_conv.bias",
                &[("post_quant_conv.bias".to_owned(), vec![channels])],
            );
            x = b.linear("post_quant_conv", x, weight, Some(bias), Activation::None);
        }
        let (weight, bias) = conv3x3(b, "decoder.conv_in", low, config.latent_channels);
        let mut x = b.conv3x3("conv_in", x, [height, width], 1, weight, bias, None, dtype);

        x = self.resnet(b, "decoder.mid_block.resnets.0", x, [height, width], low, low);
        if config.mid_block_add_attention {
            x = self.attention(b, "decoder.mid_block.attentions.0", x, low);
        }
        x = self.resnet(b, "decoder.mid_block.resnets.1", x, [height, width], low, low);

        let mut channels = low;
        let levels = config.block_out_channels.len();
        for (level, &out) in config.block_out_channels.iter().rev().enumerate() {
            for layer in 0..=config.layers_per_block {
                let name = format!("decoder.up_blocks.{level}.resnets.{layer}");
                x = self.resnet(b, &name, x, [height, width], channels, out);
                channels = out;
            }
            if level + 1 < levels {
                let name = format!("decoder.up_blocks.{level}.upsamplers.0.conv");
                b.block_again(self.id, &format!("vae.up_blocks.{level}.upsampler"));
                let (weight, bias) = conv3x3(b, &name, channels, channels);
                x = b.conv3x3("conv", x, [height, width], 2, weight, bias, None, dtype);
                (height, width) = (height * 2, width * 2);
            }
        }

        b.block_again(self.id, "vae.conv_out");
        let n = self.group_norm(b, "norm_out", "decoder.conv_norm_out", x, channels, true);
        let (weight, bias) = conv3x3(b, "decoder.conv_out", config.out_channels, channels);
        let size = [height, width];
        b.conv3x3("image", n, size, 1, weight, bias, None, DType::F32)
    }

    fn group_norm(
        &self,
        b: &mut Builder<'_>,
        label: &str,
        name: &str,
        x: Value,
        channels: u64,
        silu: bool,
    ) -> Value {
        let (weight, bias) = affine(b, name, channels);
        b.group_norm(label, x, weight, bias, self.config.norm_num_groups, silu)
    }

    /// `shortcut(x) + conv2(silu(norm2(conv1(silu(norm1(x))))))`.
    fn resnet(
        &self,
        b: &mut Builder<'_>,
        name: &str,
        x: Value,
        size: [u64; 2],
        input: u64,
        out: u64,
    ) -> Value {
        let dtype = b.dtype();
        b.block_again(self.id, &name.replacen("decoder", "vae", 1));
        let n = self.group_norm(b, "norm1", &format!("{name}.norm1"), x, input, true);
        let (weight, bias) = conv3x3(b, &format!("{name}.conv1"), out, input);
        let h = b.conv3x3("conv1", n, size, 1, weight, bias, None, dtype);
        let n = self.group_norm(b, "norm2", &format!("{name}.norm2"), h, out, true);
        let shortcut = if input == out {
            x
        } else {
            let entry = format!("{name}.conv_shortcut");
            let weight = b.weight(
                "conv_shortcut.weight",
                &[(format!("{entry}.weight"), vec![out, input, 1, 1])],
            );
            let bias = b.weight("conv_shortcut.bias", &[(format!("{entry}.bias"), vec![out])]);
            b.linear("shortcut", x, weight, Some(bias), Activation::None)
        };
        let (weight, bias) = conv3x3(b, &format!("{name}.conv2"), out, out);
        b.conv3x3("conv2", n, size, 1, weight, bias, Some(shortcut), dtype)
    }

    /// One head over all pixels.
    fn attention(&self, b: &mut Builder<'_>, name: &str, x: Value, channels: u64) -> Value {
        b.block_again(self.id, &name.replacen("decoder", "vae", 1));
        let n = self.group_norm(b, "norm", &format!("{name}.group_norm"), x, channels, false);
        let parts = ["to_q", "to_k", "to_v"].map(|part| format!("{name}.{part}"));
        let [q, k, v] = &parts;
        let qkv = crate::layers::stacked(
            b,
            "qkv",
            &[(q, channels), (k, channels), (v, channels)],
            channels,
            true,
        );
        let qkv = b.linear("qkv", n, qkv.weight, qkv.bias, Activation::None);
        let heads_of = [0, channels, 2 * channels].map(|col| qkv.slice_cols(col, channels));
        let attended = b.buffer("attention", x.rows, channels, b.dtype(), Dependence::Latent);
        #[expect(clippy::cast_precision_loss, reason = "channels are far below 2^24")]
        let scale = (channels as f32).sqrt().recip();
        b.attention_into("attention", heads_of, 1, scale, false, None, attended);
        let out = linear(b, &format!("{name}.to_out.0"), channels, channels);
        let y = b.buffer("y", x.rows, channels, b.dtype(), Dependence::Latent);
        let residual = Some(Residual { base: x, gate: None });
        b.linear_into("out", attended, out.weight, out.bias, Activation::None, residual, y);
        y
    }
}
