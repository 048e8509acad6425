//! The UNet of SDXL: three levels down, the middle, three levels up, with skips across.
//!
//! Both branches of guidance pass through a block while its weights are there. A skip is kept from where it is made to
//! where it is read; what is joined by columns is copied into one place.

use plimsoll_graph::{
    Activation, Builder, ComponentId, ConvShape, DType, Dependence, Norm, PhaseKind, Residual,
    Value,
};

use super::UNET;
use super::text::BRANCHES;
use crate::layers::{affine, conv3x3, linear, stacked, vector};

const CHANNELS: u64 = 4;
const WIDTHS: [u64; 3] = [320, 640, 1280];
/// Transformer layers of each level; none at the first.
const DEPTHS: [u64; 3] = [0, 2, 10];
const RESNETS: u64 = 2;
const TIME: u64 = 1280;
const POOLED: u64 = 1280;
const SIZES: u64 = 6 * 256;
const CONTEXT: u64 = 2048;
const HEAD_DIM: u64 = 64;
const GROUPS: u64 = 32;

/// A value of both branches.
type Pair = [Value; 2];

/// Applies `f` to both branches with their suffix.
fn both(pair: Pair, mut f: impl FnMut(Value, &'static str, usize) -> Value) -> Pair {
    [f(pair[0], BRANCHES[0], 0), f(pair[1], BRANCHES[1], 1)]
}

struct Unet {
    id: ComponentId,
    /// `[1, 1280]`, SiLU of the conditioning.
    time: Pair,
    /// `[77, 2048]`.
    context: Pair,
}

/// Traces one step over latents of `[height, width]`; gives the latent state.
pub(super) fn trace(
    b: &mut Builder<'_>,
    size: [u64; 2],
    states: [[Value; 2]; 2],
    pooled: Option<[Value; 2]>,
) -> Value {
    let id = b.component(UNET);
    b.phase(PhaseKind::Denoise, "denoise");
    b.block(id, "embed");
    let pixels = size[0] * size[1];
    let latent = b.input("noise", pixels, CHANNELS, DType::F32, Dependence::Latent);
    let dsigma = b.input("dsigma", 1, 1, DType::F32, Dependence::Step);
    let factor = b.input("input_scale", 1, 1, DType::F32, Dependence::Step);
    let wave = b.input("timestep.wave", 1, WIDTHS[0], b.dtype(), Dependence::Step);
    let sizes = b.input("sizes.wave", 1, SIZES, b.dtype(), Dependence::Run);
    let time = mlp(b, "time_embedding", wave, "");
    let context = both(states[0], |low, s, branch| {
        let high = states[1][branch];
        let all = b.buffer(&format!("context{s}"), low.rows, CONTEXT, b.dtype(), Dependence::Run);
        b.copy(&format!("context.l{s}"), low, all.slice_cols(0, low.cols));
        b.copy(&format!("context.g{s}"), high, all.slice_cols(low.cols, high.cols));
        all
    });
    let first = linear(b, "add_embedding.linear_1", TIME, POOLED + SIZES);
    let second = linear(b, "add_embedding.linear_2", TIME, TIME);
    let pooled = pooled.unwrap_or(states[1]);
    let time = both(pooled, |pooled, s, _| {
        let name = |what: &str| format!("{what}{s}");
        let all = b.buffer(&name("added"), 1, POOLED + SIZES, b.dtype(), Dependence::Run);
        b.copy(&name("added.pooled"), pooled.slice_rows(0, 1), all.slice_cols(0, POOLED));
        b.copy(&name("added.sizes"), sizes, all.slice_cols(POOLED, SIZES));
        let h = b.linear(&name("added.1"), all, first.weight, first.bias, Activation::Silu);
        let added = b.linear(&name("added.2"), h, second.weight, second.bias, Activation::None);
        let all = b.add(&name("time+added"), time, added);
        b.activate(&name("silu(time)"), all, Activation::Silu)
    });
    let scaled = b.scale("input", latent, factor);
    let (weight, bias) = conv3x3(b, "conv_in", WIDTHS[0], CHANNELS);
    let dtype = b.dtype();
    let x = both([scaled; 2], |x, s, _| {
        b.conv3x3(&format!("conv_in{s}"), x, size, 1, weight, bias, None, dtype)
    });
    let unet = Unet { id, time, context };
    let x = unet.levels(b, x, size);
    let (weight, bias) = affine(b, "conv_norm_out", WIDTHS[0]);
    let out = conv3x3(b, "conv_out", CHANNELS, WIDTHS[0]);
    let [cond, uncond] = both(x, |x, s, _| {
        let n = b.group_norm_with(&format!("norm{s}"), x, [weight, bias], GROUPS, 1e-5, true);
        b.conv3x3(&format!("conv_out{s}"), n, size, 1, out.0, out.1, None, DType::F32)
    });
    let noise = b.guide("guidance", cond, uncond, 5.0);
    b.euler("euler", latent, noise, dsigma);
    latent
}

/// Linear, SiLU, Linear.
fn mlp(b: &mut Builder<'_>, name: &str, x: Value, suffix: &str) -> Value {
    let first = linear(b, &format!("{name}.linear_1"), TIME, x.cols);
    let h = b.linear(&format!("{name}.1{suffix}"), x, first.weight, first.bias, Activation::Silu);
    let second = linear(b, &format!("{name}.linear_2"), TIME, TIME);
    b.linear(&format!("{name}.2{suffix}"), h, second.weight, second.bias, Activation::None)
}

impl Unet {
    fn levels(&self, b: &mut Builder<'_>, mut x: Pair, mut size: [u64; 2]) -> Pair {
        let mut skips = vec![x];
        for (level, width) in WIDTHS.into_iter().enumerate() {
            let at = format!("down_blocks.{level}");
            for layer in 0..RESNETS {
                x = self.resnet(b, &format!("{at}.resnets.{layer}"), x, size, width);
                if DEPTHS[level] > 0 {
                    x = self.transformer(b, &format!("{at}.attentions.{layer}"), x, DEPTHS[level]);
                }
                skips.push(x);
            }
            if level + 1 < WIDTHS.len() {
                (x, size) = self.downsample(b, &format!("{at}.downsamplers.0.conv"), x, size);
                skips.push(x);
            }
        }
        let width = WIDTHS[2];
        x = self.resnet(b, "mid_block.resnets.0", x, size, width);
        x = self.transformer(b, "mid_block.attentions.0", x, DEPTHS[2]);
        x = self.resnet(b, "mid_block.resnets.1", x, size, width);
        for (level, width) in WIDTHS.into_iter().rev().enumerate() {
            let at = format!("up_blocks.{level}");
            for layer in 0..=RESNETS {
                if let Some(skip) = skips.pop() {
                    x = self.join(b, &format!("{at}.resnets.{layer}"), x, skip);
                }
                x = self.resnet(b, &format!("{at}.resnets.{layer}"), x, size, width);
                let depth = DEPTHS[2 - level];
                if depth > 0 {
                    x = self.transformer(b, &format!("{at}.attentions.{layer}"), x, depth);
                }
            }
            if level + 1 < WIDTHS.len() {
                let name = format!("{at}.upsamplers.0.conv");
                b.block(self.id, name.clone());
                let (weight, bias) = conv3x3(b, &name, width, width);
                let dtype = b.dtype();
                x = both(x, |x, s, _| {
                    b.conv3x3(&format!("conv{s}"), x, size, 2, weight, bias, None, dtype)
                });
                size = size.map(|side| 2 * side);
            }
        }
        b.block(self.id, "out");
        x
    }

    /// Present columns first, then the skip's.
    fn join(&self, b: &mut Builder<'_>, name: &str, x: Pair, skip: Pair) -> Pair {
        b.block(self.id, format!("{name}.join"));
        both(x, |x, s, branch| {
            let skip = skip[branch];
            let cols = x.cols + skip.cols;
            let all = b.buffer(&format!("join{s}"), x.rows, cols, b.dtype(), Dependence::Latent);
            b.copy(&format!("join.x{s}"), x, all.slice_cols(0, x.cols));
            b.copy(&format!("join.skip{s}"), skip, all.slice_cols(x.cols, skip.cols));
            all
        })
    }

    fn downsample(
        &self,
        b: &mut Builder<'_>,
        name: &str,
        x: Pair,
        size: [u64; 2],
    ) -> (Pair, [u64; 2]) {
        b.block(self.id, name.to_owned());
        let (weight, bias) = conv3x3(b, name, x[0].cols, x[0].cols);
        let shape = ConvShape { stride: [1, 2, 2], ..ConvShape::plain(size) };
        let x =
            both(x, |x, s, _| b.conv(&format!("conv{s}"), x, shape, [weight, bias], None, None));
        let [_, height, width] = shape.result();
        (x, [height, width])
    }

    fn resnet(&self, b: &mut Builder<'_>, name: &str, x: Pair, size: [u64; 2], out: u64) -> Pair {
        b.block(self.id, name.to_owned());
        let input = x[0].cols;
        let norm1 = affine(b, &format!("{name}.norm1"), input);
        let conv1 = conv3x3(b, &format!("{name}.conv1"), out, input);
        let time = linear(b, &format!("{name}.time_emb_proj"), out, TIME);
        let norm2 = affine(b, &format!("{name}.norm2"), out);
        let conv2 = conv3x3(b, &format!("{name}.conv2"), out, out);
        let shortcut = (input != out).then(|| {
            let entry = format!("{name}.conv_shortcut");
            let weight = b.weight(
                "conv_shortcut.weight",
                &[(format!("{entry}.weight"), vec![out, input, 1, 1])],
            );
            (weight, vector(b, &format!("{entry}.bias"), out))
        });
        let dtype = b.dtype();
        both(x, |x, s, branch| {
            let label = |what: &str| format!("{what}{s}");
            let pair = [norm1.0, norm1.1];
            let n = b.group_norm_with(&label("norm1"), x, pair, GROUPS, 1e-5, true);
            let h = b.conv3x3(&label("conv1"), n, size, 1, conv1.0, conv1.1, None, dtype);
            let plain = Activation::None;
            let shift = b.linear(&label("time"), self.time[branch], time.weight, time.bias, plain);
            let h = b.add(&label("conv1+time"), h, shift);
            let pair = [norm2.0, norm2.1];
            let n = b.group_norm_with(&label("norm2"), h, pair, GROUPS, 1e-5, true);
            let base = match shortcut {
                Some((weight, bias)) => b.linear(&label("shortcut"), x, weight, Some(bias), plain),
                None => x,
            };
            b.conv3x3(&label("conv2"), n, size, 1, conv2.0, conv2.1, Some(base), dtype)
        })
    }

    fn transformer(&self, b: &mut Builder<'_>, name: &str, x: Pair, depth: u64) -> Pair {
        let d = x[0].cols;
        b.block(self.id, format!("{name}.in"));
        let (weight, bias) = affine(b, &format!("{name}.norm"), d);
        let layer = linear(b, &format!("{name}.proj_in"), d, d);
        let plain = Activation::None;
        let h = both(x, |x, s, _| {
            let n = b.group_norm_with(&format!("norm{s}"), x, [weight, bias], GROUPS, 1e-6, false);
            b.linear(&format!("proj_in{s}"), n, layer.weight, layer.bias, plain)
        });
        for index in 0..depth {
            self.block(b, &format!("{name}.transformer_blocks.{index}"), h);
        }
        b.block(self.id, format!("{name}.out"));
        let layer = linear(b, &format!("{name}.proj_out"), d, d);
        both(h, |h, s, branch| {
            let base = x[branch];
            let y = b.buffer(&format!("y{s}"), base.rows, d, b.dtype(), Dependence::Latent);
            let residual = Some(Residual { base, gate: None });
            b.linear_into(&format!("out{s}"), h, layer.weight, layer.bias, plain, residual, y);
            y
        })
    }

    fn block(&self, b: &mut Builder<'_>, at: &str, h: Pair) {
        let d = h[0].cols;
        let heads = d / HEAD_DIM;
        #[expect(clippy::cast_precision_loss, reason = "a head's width is far below 2^24")]
        let scale = (HEAD_DIM as f32).sqrt().recip();
        b.block(self.id, at.to_owned());
        let [norm1, norm2, norm3] =
            ["norm1", "norm2", "norm3"].map(|name| affine(b, &format!("{at}.{name}"), d));
        let names = ["attn1.to_q", "attn1.to_k", "attn1.to_v"].map(|name| format!("{at}.{name}"));
        let [q, k, v] = &names;
        let qkv = stacked(b, "qkv", &[(q, d), (k, d), (v, d)], d, false);
        let out1 = linear(b, &format!("{at}.attn1.to_out.0"), d, d);
        let names = ["attn2.to_q", "attn2.to_k", "attn2.to_v"].map(|name| format!("{at}.{name}"));
        let [q2, k2, v2] = &names;
        let query = stacked(b, "attn2.to_q", &[(q2, d)], d, false);
        let keys = stacked(b, "attn2.kv", &[(k2, d), (v2, d)], CONTEXT, false);
        let out2 = linear(b, &format!("{at}.attn2.to_out.0"), d, d);
        let up = linear(b, &format!("{at}.ff.net.0.proj"), 8 * d, d);
        let down = linear(b, &format!("{at}.ff.net.2"), d, 4 * d);
        let plain = Activation::None;
        for (branch, (x, s)) in h.into_iter().zip(BRANCHES).enumerate() {
            let label = |what: &str| format!("{what}{s}");
            let residual = || Some(Residual { base: x, gate: None });
            let norm = |(weight, bias)| Norm::LayerAffine { eps: 1e-5, weight, bias };
            let attended = |b: &mut Builder<'_>, name: &str, qkv: [Value; 3]| {
                let out = b.buffer(name, x.rows, d, b.dtype(), Dependence::Latent);
                b.attention_into(name, qkv, heads, scale, false, None, out);
                out
            };
            let n = b.norm(&label("norm1"), x, norm(norm1));
            let all = b.linear(&label("qkv"), n, qkv.weight, None, plain);
            let all = [0, d, 2 * d].map(|col| all.slice_cols(col, d));
            let a = attended(b, &label("attn1"), all);
            b.linear_into(&label("attn1.out"), a, out1.weight, out1.bias, plain, residual(), x);

            let kv = b.linear(&label("attn2.kv"), self.context[branch], keys.weight, None, plain);
            let n = b.norm(&label("norm2"), x, norm(norm2));
            let q = b.linear(&label("attn2.q"), n, query.weight, None, plain);
            let all = [q, kv.slice_cols(0, d), kv.slice_cols(d, d)];
            let a = attended(b, &label("attn2"), all);
            b.linear_into(&label("attn2.out"), a, out2.weight, out2.bias, plain, residual(), x);

            let n = b.norm(&label("norm3"), x, norm(norm3));
            let wide = b.linear(&label("ff.0"), n, up.weight, up.bias, plain);
            let wide = b.gelu_erf(&label("ff.gelu"), wide, true);
            b.linear_into(&label("ff.2"), wide, down.weight, down.bias, plain, residual(), x);
        }
    }
}
