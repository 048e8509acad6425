//! The text encoders of SDXL: states of the layer before the last, and the pooled state of the larger one.

use plimsoll_graph::{Activation, Builder, DType, Dependence, Norm, PhaseKind, Residual, Value};

use crate::layers::{affine, linear, stacked};

/// Positions of a prompt.
pub(super) const TOKENS: u64 = 77;
const VOCABULARY: u64 = 49_408;
const EPS: f32 = 1e-5;
/// Names of the two branches in their ops.
pub(super) const BRANCHES: [&str; 2] = ["", ".uncond"];

/// A CLIP text encoder.
pub(super) struct Encoder {
    label: &'static str,
    width: u64,
    heads: u64,
    layers: u64,
    /// GELU by the error function, or the quick one.
    is_erf: bool,
    /// The pooled state is used, with its projection; otherwise the last layer is not.
    is_pooled: bool,
}

/// What an encoder gives for both branches.
pub(super) struct Encoded {
    /// `[77, width]` of each.
    pub(super) states: [Value; 2],
    /// `[1, width]` of each, where there is one.
    pub(super) pooled: Option<[Value; 2]>,
}

impl Encoder {
    /// The text half of `clip-vit-large-patch14`.
    pub(super) fn clip_l() -> Self {
        Self { label: "clip", width: 768, heads: 12, layers: 12, is_erf: false, is_pooled: false }
    }

    /// The text half of OpenCLIP bigG.
    pub(super) fn clip_g() -> Self {
        Self { label: "clip_g", width: 1280, heads: 20, layers: 32, is_erf: true, is_pooled: true }
    }

    pub(super) fn trace(&self, b: &mut Builder<'_>, component: &str) -> Encoded {
        let (d, label) = (self.width, self.label);
        let id = b.component(component);
        b.phase(PhaseKind::Encode, &format!("encode {component}"));
        b.block(id, format!("{label}.embed"));
        let entry = "text_model.embeddings.position_embedding.weight".to_owned();
        let positions = b.weight("position_embedding", &[(entry, vec![TOKENS, d])]);
        let eos = b.input(&format!("{label}.eos"), 2, 1, DType::U32, Dependence::Run);
        let xs = BRANCHES.map(|s| {
            let table = "text_model.embeddings.token_embedding.weight";
            let embedded = b.gather(&format!("{label}{s}"), table, [VOCABULARY, d], TOKENS);
            b.add_weight(&format!("x{s}"), embedded, positions)
        });
        let mut states = xs;
        let used = if self.is_pooled { self.layers } else { self.layers - 1 };
        for layer in 0..used {
            b.block(id, format!("{label}.layer.{layer}"));
            if layer + 1 == self.layers {
                // The last layer changes the stream, the states before it are kept.
                states = xs.map(|_| b.buffer("states", TOKENS, d, b.dtype(), Dependence::Run));
                for (x, kept) in xs.into_iter().zip(states) {
                    b.copy("states", x, kept);
                }
            }
            self.layer(b, layer, xs);
        }
        let pooled = self.is_pooled.then(|| {
            b.block(id, format!("{label}.final"));
            let (weight, bias) = affine(b, "text_model.final_layer_norm", d);
            let projection = stacked(b, "text_projection", &[("text_projection", d)], d, false);
            let mut branch = 0;
            xs.map(|x| {
                let s = BRANCHES[branch];
                let row = b.select_row(&format!("eos{s}"), x, eos.slice_rows(branch as u64, 1));
                branch += 1;
                let norm = Norm::LayerAffine { eps: EPS, weight, bias };
                let n = b.norm(&format!("pooled{s}"), row, norm);
                b.linear(&format!("projection{s}"), n, projection.weight, None, Activation::None)
            })
        });
        Encoded { states, pooled }
    }

    fn layer(&self, b: &mut Builder<'_>, layer: u64, xs: [Value; 2]) {
        let (d, heads) = (self.width, self.heads);
        let at = format!("text_model.encoder.layers.{layer}");
        #[expect(clippy::cast_precision_loss, reason = "a head's width is far below 2^24")]
        let scale = ((d / heads) as f32).sqrt().recip();
        let norm1 = affine(b, &format!("{at}.layer_norm1"), d);
        let names = ["q_proj", "k_proj", "v_proj"].map(|name| format!("{at}.self_attn.{name}"));
        let [q, k, v] = &names;
        let qkv_layer = stacked(b, "qkv", &[(q, d), (k, d), (v, d)], d, true);
        let out = linear(b, &format!("{at}.self_attn.out_proj"), d, d);
        let norm2 = affine(b, &format!("{at}.layer_norm2"), d);
        let fc1 = linear(b, &format!("{at}.mlp.fc1"), 4 * d, d);
        let fc2 = linear(b, &format!("{at}.mlp.fc2"), d, 4 * d);
        let plain = Activation::None;
        for (x, s) in xs.into_iter().zip(BRANCHES) {
            let name = |what: &str| format!("{what}{s}");
            let (weight, bias) = norm1;
            let n = b.norm(&name("norm1"), x, Norm::LayerAffine { eps: EPS, weight, bias });
            let qkv = b.linear(&name("qkv"), n, qkv_layer.weight, qkv_layer.bias, plain);
            let attended = b.buffer(&name("attention"), TOKENS, d, b.dtype(), Dependence::Run);
            let heads_of = [0, d, 2 * d].map(|col| qkv.slice_cols(col, d));
            b.attention_into(&name("attention"), heads_of, heads, scale, true, None, attended);
            let residual = Some(Residual { base: x, gate: None });
            let label = name("out");
            b.linear_into(&label, attended, out.weight, out.bias, plain, residual.clone(), x);
            let (weight, bias) = norm2;
            let n = b.norm(&name("norm2"), x, Norm::LayerAffine { eps: EPS, weight, bias });
            let activation = if self.is_erf { plain } else { Activation::QuickGelu };
            let mut wide = b.linear(&name("fc1"), n, fc1.weight, fc1.bias, activation);
            if self.is_erf {
                wide = b.gelu_erf(&name("gelu"), wide, false);
            }
            b.linear_into(&name("fc2"), wide, fc2.weight, fc2.bias, plain, residual, x);
        }
    }
}
