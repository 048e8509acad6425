//! AutoencoderKL: the decoder from latents to pixels.
//!
//! Source: `AutoencoderKL` of diffusers 0.42.1. Pixels are rows and channels are columns, so a 1x1
//! convolution is a linear layer and the attention of the middle is plain attention with one head.
//!
//! What a decode needs is a few pictures at full resolution, so each is written over another where nothing reads that
//! any more, with the bits of one beside the other. A resnet's second norm goes over what it norms and its second
//! convolution over what it is added to. Where a resnet changes the channels its shortcut is taken first, and then the
//! first norm goes over the input. The last level's first resnet narrows: its input, twice as wide as anything after
//! it, is where a decode is fullest. There the first convolution goes over the input as well, band by band of rows
//! from above, each into the left columns of rows that no later band reads; for that the input has
//! [`headroom`] above it. FLUX.1 at full resolution so takes 256 channels, their headroom of an eighth, and 128 of the
//! shortcut, in place of 256, 256 and 128: 0.82 GiB for 1024x1024, not 1.25 GiB.

use plimsoll_graph::{
    Activation, Builder, ComponentId, DType, Dependence, PhaseKind, Residual, Value, WeightId,
};
use serde::Deserialize;

use crate::ModelError;
use crate::config::{COUNT_MAX, bounded, check, parse};
use crate::layers::{affine, conv3x3, linear};
use crate::tiles::side;

/// Bands in which a convolution goes over its own input.
const BANDS: u64 = 8;

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

/// Rows of a band of a picture of `height` rows.
fn band_rows(height: u64) -> u64 {
    height.div_ceil(BANDS).max(1)
}

/// Rows above a picture of `height` rows over which a convolution goes: those of a band, and one, because a band still
/// reads the last row of the one before.
fn headroom(height: u64) -> u64 {
    band_rows(height) + 1
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

        x = self.resnet(b, "decoder.mid_block.resnets.0", x, None, [height, width], [low, low]);
        if config.mid_block_add_attention {
            x = self.attention(b, "decoder.mid_block.attentions.0", x, low);
        }
        x = self.resnet(b, "decoder.mid_block.resnets.1", x, None, [height, width], [low, low]);

        let mut channels = low;
        // Where the next resnet's input has headroom: the two of them.
        let mut room = None;
        let levels = config.block_out_channels.len();
        for (level, &out) in config.block_out_channels.iter().rev().enumerate() {
            for layer in 0..=config.layers_per_block {
                let name = format!("decoder.up_blocks.{level}.resnets.{layer}");
                x = self.resnet(b, &name, x, room.take(), [height, width], [channels, out]);
                channels = out;
            }
            if level + 1 < levels {
                let name = format!("decoder.up_blocks.{level}.upsamplers.0.conv");
                b.block_again(self.id, &format!("vae.up_blocks.{level}.upsampler"));
                let (weight, bias) = conv3x3(b, &name, channels, channels);
                let size = [height, width];
                (height, width) = (height * 2, width * 2);
                let narrows = level + 2 == levels && config.block_out_channels[0] < channels;
                let above = if narrows { headroom(height) } else { 0 };
                let rows = (above + height).saturating_mul(width);
                let whole = b.buffer("conv", rows, channels, dtype, Dependence::Latent);
                let out = whole.slice_rows(above * width, height * width);
                b.conv3x3_into("conv", x, size, 2, [weight, bias], None, out);
                (x, room) = (out, narrows.then_some(whole));
            }
        }

        b.block_again(self.id, "vae.conv_out");
        self.norm_silu(b, "norm_out", "decoder.conv_norm_out", x, x);
        let (weight, bias) = conv3x3(b, "decoder.conv_out", config.out_channels, channels);
        let size = [height, width];
        b.conv3x3("image", x, size, 1, weight, bias, None, DType::F32)
    }

    /// `out = silu(norm(x))`; `out` may be `x`.
    fn norm_silu(&self, b: &mut Builder<'_>, label: &str, name: &str, x: Value, out: Value) {
        let (weight, bias) = affine(b, name, x.cols);
        b.group_norm_into(label, x, [weight, bias], self.config.norm_num_groups, true, out);
    }

    /// `shortcut(x) + conv2(silu(norm2(conv1(silu(norm1(x))))))`, over `x` where the channels stay as they are.
    ///
    /// `room` is `x` with [`headroom`] above it, where the first convolution is to go over `x`.
    fn resnet(
        &self,
        b: &mut Builder<'_>,
        name: &str,
        x: Value,
        room: Option<Value>,
        size: [u64; 2],
        [input, out]: [u64; 2],
    ) -> Value {
        let dtype = b.dtype();
        b.block_again(self.id, &name.replacen("decoder", "vae", 1));
        let (base, n) = if input == out {
            (x, b.buffer("norm1", x.rows, input, dtype, Dependence::Latent))
        } else {
            let entry = format!("{name}.conv_shortcut");
            let weight = b.weight(
                "conv_shortcut.weight",
                &[(format!("{entry}.weight"), vec![out, input, 1, 1])],
            );
            let bias = b.weight("conv_shortcut.bias", &[(format!("{entry}.bias"), vec![out])]);
            (b.linear("shortcut", x, weight, Some(bias), Activation::None), x)
        };
        self.norm_silu(b, "norm1", &format!("{name}.norm1"), x, n);
        let (weight, bias) = conv3x3(b, &format!("{name}.conv1"), out, input);
        let h = match room {
            None => b.conv3x3("conv1", n, size, 1, weight, bias, None, dtype),
            Some(room) => conv_over(b, n, room, size, [weight, bias], out),
        };
        self.norm_silu(b, "norm2", &format!("{name}.norm2"), h, h);
        let (weight, bias) = conv3x3(b, &format!("{name}.conv2"), out, out);
        b.conv3x3_into("conv2", h, size, 1, [weight, bias], Some(base), base);
        base
    }

    /// One head over all pixels.
    fn attention(&self, b: &mut Builder<'_>, name: &str, x: Value, channels: u64) -> Value {
        b.block_again(self.id, &name.replacen("decoder", "vae", 1));
        let (weight, bias) = affine(b, &format!("{name}.group_norm"), channels);
        let n = b.group_norm("norm", x, weight, bias, self.config.norm_num_groups, false);
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

/// The convolution of `x` over `x` itself, which lies at the end of `room`: its result is the beginning of `room`, in
/// as many columns as it has.
///
/// A band of the result goes as far up as the headroom is high. There the rows of `x` above the ones that the band
/// reads have been read by all bands that do.
fn conv_over(
    b: &mut Builder<'_>,
    x: Value,
    room: Value,
    [height, width]: [u64; 2],
    weights: [WeightId; 2],
    channels: u64,
) -> Value {
    let result = room.slice_rows(0, height * width).slice_cols(0, channels);
    let band = band_rows(height);
    for index in 0..height.div_ceil(band) {
        let start = index * band;
        let rows = start..height.min(start + band);
        let out = result.slice_rows(start * width, (rows.end - start) * width);
        b.conv3x3_band(&format!("conv1.{index}"), x, [height, width], rows, weights, out);
    }
    result
}
