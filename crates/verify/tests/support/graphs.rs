//! Small graphs that have everything a plan can get wrong.

use plimsoll_graph::{
    Activation, Builder, DType, Dependence, Graph, LowerOptions, PhaseKind, Residual,
};
use plimsoll_models::{ClipConfig, FluxConfig, FluxModel, FluxRun, T5Config, VaeConfig};

/// A whole FLUX.1 of a few kilobytes: the op mix of the real one.
pub fn tiny_flux(steps: u32, samples: u32, hoist: bool) -> Graph {
    let model = FluxModel {
        clip: ClipConfig {
            hidden_size: 8,
            intermediate_size: 16,
            num_attention_heads: 2,
            num_hidden_layers: 2,
            vocab_size: 16,
            max_position_embeddings: 4,
            ..ClipConfig::vit_l()
        },
        t5: T5Config {
            d_model: 8,
            d_kv: 4,
            d_ff: 16,
            num_heads: 2,
            num_layers: 2,
            vocab_size: 16,
            ..T5Config::xxl()
        },
        transformer: FluxConfig {
            in_channels: 8,
            num_layers: 2,
            num_single_layers: 3,
            attention_head_dim: 8,
            num_attention_heads: 2,
            joint_attention_dim: 8,
            pooled_projection_dim: 8,
            axes_dims_rope: vec![2, 2, 4],
            ..FluxConfig::dev()
        },
        vae: VaeConfig {
            block_out_channels: vec![4, 4],
            layers_per_block: 1,
            latent_channels: 2,
            norm_num_groups: 2,
            ..VaeConfig::flux()
        },
    };
    let run = FluxRun {
        width: 8,
        height: 4,
        steps,
        samples,
        text_tokens: 3,
        dtype: DType::BF16,
        hoist,
        vae_tile: None,
    };
    model.graph(&run, &|_, _| DType::BF16).expect("tiny FLUX")
}

/// Real FLUX.1-dev from its shapes.
pub fn flux_dev(steps: u32) -> Graph {
    let run = FluxRun {
        width: 1024,
        height: 1024,
        steps,
        samples: 1,
        text_tokens: 512,
        dtype: DType::BF16,
        hoist: true,
        vae_tile: None,
    };
    FluxModel::dev().graph(&run, &|_, _| DType::BF16).expect("FLUX.1-dev")
}

/// Two components whose blocks interleave, skips over several blocks, a concatenation filled by columns, a
/// hoisted table and blocks of unequal size.
pub fn skips(steps: u32, samples: u32) -> Graph {
    let f32 = |_: &str, _: &str| DType::F32;
    let mut b = Builder::new(DType::F32, &f32);
    let weight = |b: &mut Builder<'_>, name: &str, rows: u64, cols: u64| {
        b.weight(name, &[(name.to_owned(), vec![rows, cols])])
    };
    let none = Activation::None;
    let (unet, control) = (b.component("unet"), b.component("control"));
    b.phase(PhaseKind::Denoise, "denoise");
    b.block(unet, "in");
    let latent = b.input("noise", 4, 8, DType::F32, Dependence::Latent);
    let dsigma = b.input("dsigma", 1, 1, DType::F32, Dependence::Step);
    let time = b.input("time", 1, 1, DType::F32, Dependence::Step);
    let wave = b.sinusoid("wave", time, 8);
    let w = weight(&mut b, "time.w", 32, 8);
    let table = b.linear("table", wave, w, None, Activation::Silu);
    let w = weight(&mut b, "in.w", 16, 8);
    let mut h = b.linear("in", latent, w, None, none);
    let mut skips = Vec::new();
    for index in 0..2u64 {
        let width = 16 * (1 + 3 * index);
        b.block(control, format!("control.{index}"));
        let w = weight(&mut b, &format!("control.{index}.up"), width, 16);
        let up = b.linear("up", h, w, None, Activation::GeluTanh);
        let w = weight(&mut b, &format!("control.{index}.down"), 16, width);
        let hint = b.linear("down", up, w, None, none);
        b.block(unet, format!("down.{index}"));
        let w = weight(&mut b, &format!("down.{index}.w"), 16, 16);
        let bias = weight(&mut b, &format!("down.{index}.b"), 1, 16);
        let shift = table.slice_cols(16 * index, 16);
        let normed = b.modulated_norm("norm", h, shift, shift);
        let out = b.linear("w", normed, w, Some(bias), none);
        h = b.add("hint", out, hint);
        skips.push(h);
    }
    for index in 0..2u64 {
        b.block(unet, format!("up.{index}"));
        let cat = b.buffer("cat", 4, 32, DType::F32, Dependence::Latent);
        b.copy("left", h, cat.slice_cols(0, 16));
        let skip = skips.pop().expect("as many as blocks");
        b.copy("right", skip, cat.slice_cols(16, 16));
        let w = weight(&mut b, &format!("up.{index}.w"), 16, 32);
        let next = b.buffer("next", 4, 16, DType::F32, Dependence::Latent);
        b.linear_into("w", cat, w, None, none, Some(Residual { base: h, gate: None }), next);
        h = next;
    }
    b.block(unet, "out");
    let w = weight(&mut b, "out.w", 8, 16);
    let velocity = b.linear("out", h, w, None, none);
    b.euler("euler", latent, velocity, dsigma);
    b.phase(PhaseKind::Decode, "decode");
    let vae = b.component("vae");
    b.block(vae, "decoder");
    let w = weight(&mut b, "decoder.w", 64, 8);
    let wide = b.linear("wide", latent, w, None, none);
    let squashed = b.glu_gelu("squash", wide);
    b.output("image", squashed);
    b.finish(&LowerOptions { steps, samples, hoist: true }).expect("skips")
}
