//! The op set: what a device must be able to do.
//!
//! Fusion is in the op set (norm with modulation, QK-norm with RoPE, linear with bias, activation and gated
//! residual), not in a compiler. An op is generic over its operands: [`View`] and [`WeightId`] in a graph,
//! addresses once a plan has placed them.

use crate::access::{Access, READ, UPDATE, WRITE};
use crate::graph::{InputId, OutputId, TableId, View, WeightId};
use crate::planned::PlannedOp;
use crate::tiles::TileOp;

/// What a linear layer applies to its result before it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// Nothing.
    None,
    /// `x * sigmoid(x)`.
    Silu,
    /// `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.
    GeluTanh,
    /// `x * sigmoid(1.702 x)`.
    QuickGelu,
}

/// How rows are normalised. Statistics are taken in `f32` over the columns of each row.
#[derive(Clone, Debug, PartialEq)]
pub enum Norm<V = View, W = WeightId> {
    /// LayerNorm without parameters, then `x * (1 + scale) + shift`; `scale` and `shift` are `[1, cols]`.
    LayerModulated {
        /// Added to the variance.
        eps: f32,
        /// Multiplier less one.
        scale: V,
        /// Addend.
        shift: V,
    },
    /// LayerNorm with parameters, each `[1, cols]`.
    LayerAffine {
        /// Added to the variance.
        eps: f32,
        /// Multiplier.
        weight: W,
        /// Addend.
        bias: W,
    },
    /// `x * rsqrt(mean(x^2) + eps)` rounded to the output's dtype, then times `weight` `[1, cols]`.
    Rms {
        /// Added to the mean square.
        eps: f32,
        /// Multiplier.
        weight: W,
    },
}

/// What a result is added to before it is stored: `base + gate * result`.
#[derive(Clone, Debug, PartialEq)]
pub struct Residual<V = View> {
    /// Same shape as the result; may be the very place the result goes to.
    pub base: V,
    /// `[1, cols]`, one factor a column; absent means 1.
    pub gate: Option<V>,
}

/// Additive attention bias by relative position: `scores[h, i, j] += bias[h, j - i + (rows - 1)]`.
#[derive(Clone, Debug, PartialEq)]
pub struct RelativeBias<V = View> {
    /// `[heads, 2 * rows - 1]` in `f32`.
    pub bias: V,
}

/// An op's kind and operands.
///
/// Shapes are given for a [`View`]; `x` is read, `out` is written, and any op may be given the same view for
/// both only where its text says so.
#[derive(Clone, Debug, PartialEq)]
pub enum OpKind<V = View, W = WeightId> {
    /// Host values to device: `out` is filled from the input's bytes.
    Input {
        /// Which host values.
        input: InputId,
        /// Same shape and dtype as the input.
        out: V,
    },
    /// Rows of a host table by index: `out[i] = table[ids[i]]`, cast to `out`'s dtype.
    Gather {
        /// `[n, cols]` in host memory.
        table: TableId,
        /// `[rows, 1]` indices in host memory.
        ids: InputId,
        /// `[rows, cols]`.
        out: V,
    },
    /// Device values to host.
    Output {
        /// Where the host receives them.
        output: OutputId,
        /// Same shape and dtype as the output.
        x: V,
    },
    /// `out = x`, cast where the dtypes differ.
    Copy {
        /// Source.
        x: V,
        /// Same shape.
        out: V,
    },
    /// `out = a + b`; `out` may be `a`.
    Add {
        /// Addend.
        a: V,
        /// Same shape, or one row that is added to every row.
        b: V,
        /// Same shape as `a`.
        out: V,
    },
    /// `out = a + weight` where the weight has the same shape (position embeddings); `out` may be `a`.
    AddWeight {
        /// Addend.
        a: V,
        /// First `rows` rows are used.
        weight: W,
        /// Same shape as `a`.
        out: V,
    },
    /// `out = activation(x)`; `out` may be `x`.
    Activate {
        /// Source.
        x: V,
        /// Function.
        activation: Activation,
        /// Same shape.
        out: V,
    },
    /// Gated GELU: `out[:, j] = gelu_tanh(x[:, j]) * x[:, cols + j]`.
    GluGelu {
        /// `[rows, 2 * cols]`.
        x: V,
        /// `[rows, cols]`.
        out: V,
    },
    /// Timestep embedding: cosines then sines of `1000 * x * exp(-ln(10000) k / half)`.
    Sinusoid {
        /// `[rows, 1]` in `f32`, each in 0..1 (or the guidance).
        x: V,
        /// `[rows, 2 * half]`.
        out: V,
    },
    /// `out = residual + activation(x w^T + b)`.
    ///
    /// A weight stored as [`F8E4M3`](crate::DType::F8E4M3) has a scale for each of its rows; what is multiplied is
    /// `w = bf16(f32(stored) * scale)`, rounded to nearest even, so that the op has the bits that it has over those
    /// `w` stored as `bf16`. A device whose arithmetic says so multiplies 8 bits by 8 bits instead: each row of `x` is
    /// put in 8 bits by a scale of its own, its greatest magnitude over 448, and both scales multiply the sum.
    ///
    /// Rule of rows: a row of `out` has the same bits whatever the number of rows.
    Linear {
        /// `[rows, k]`.
        x: V,
        /// `[n, k]`.
        weight: W,
        /// `[1, n]` in `f32`: what each row of the weight is multiplied by; there for `F8E4M3` and only then.
        weight_scale: Option<W>,
        /// `[1, n]`.
        bias: Option<W>,
        /// Applied after the bias.
        activation: Activation,
        /// Added last.
        residual: Option<Residual<V>>,
        /// `[rows, n]`.
        out: V,
    },
    /// Normalisation of each row; `out` may be `x`.
    Norm {
        /// `[rows, cols]`.
        x: V,
        /// Which norm.
        norm: Norm<V, W>,
        /// Same shape.
        out: V,
    },
    /// RMS norm of each head of Q and K, then rotary embedding of adjacent pairs, in place.
    QkNormRope {
        /// `[rows, heads * head_dim]`, read and written.
        q: V,
        /// Same shape.
        k: V,
        /// `[1, head_dim]`.
        q_weight: W,
        /// `[1, head_dim]`.
        k_weight: W,
        /// `[rows, head_dim]` in `f32`: `head_dim / 2` cosines, then as many sines.
        rope: V,
        /// Number of heads.
        heads: u64,
        /// Added to the mean square.
        eps: f32,
    },
    /// Softmax attention per head.
    ///
    /// Rule of rows: a row of `out` does not depend on how many query rows there are.
    Attention {
        /// `[queries, heads * head_dim]`.
        q: V,
        /// `[keys, heads * head_dim]`.
        k: V,
        /// `[keys, heads * head_dim]`.
        v: V,
        /// Number of heads.
        heads: u64,
        /// Factor of the scores.
        scale: f32,
        /// A query sees only keys at or before its own position.
        causal: bool,
        /// Added to the scores.
        bias: Option<RelativeBias<V>>,
        /// `[queries, heads * head_dim]`.
        out: V,
    },
    /// Expands a bias table by bucket: `out[h, r] = weight[buckets[r], h]`.
    ExpandBias {
        /// `[buckets, heads]`.
        weight: W,
        /// `[2 * rows - 1, 1]` bucket of each relative position; one past the end takes the last row.
        buckets: V,
        /// `[heads, 2 * rows - 1]` in `f32`.
        out: V,
    },
    /// One row of `x` by index: `out = x[index]`.
    SelectRow {
        /// `[rows, cols]`.
        x: V,
        /// `[1, 1]` index in `u32`; an index past the end takes the last row.
        index: V,
        /// `[1, cols]`.
        out: V,
    },
    /// Euler step in place: `latent += dsigma * velocity`, in `f32`.
    Euler {
        /// `[rows, cols]` in `f32`, read and written.
        latent: V,
        /// Same shape.
        velocity: V,
        /// `[1, 1]` in `f32`: sigma of the next step less sigma of this one.
        dsigma: V,
    },
    /// Packed tokens to pixels of the latent: `out = x / scale + shift`.
    Unpatchify {
        /// `[height/2 * width/2, 4 * channels]`, column `c * 4 + dy * 2 + dx`.
        x: V,
        /// Latent height.
        height: u64,
        /// Latent width.
        width: u64,
        /// Divisor.
        scale: f32,
        /// Addend after the division.
        shift: f32,
        /// `[height * width, channels]`.
        out: V,
    },
    /// GroupNorm over all pixels, then SiLU where asked; `out` may be `x`.
    GroupNorm {
        /// `[pixels, channels]`.
        x: V,
        /// `[1, channels]`.
        weight: W,
        /// `[1, channels]`.
        bias: W,
        /// Number of groups.
        groups: u64,
        /// Added to the variance.
        eps: f32,
        /// Apply SiLU to the result.
        silu: bool,
        /// Same shape.
        out: V,
    },
    /// 3x3 convolution, stride 1, zero padding 1, of the input enlarged `upscale` times (nearest).
    ///
    /// Rule of rows: a pixel of `out` has the same bits whatever band of the picture is computed with it.
    Conv3x3 {
        /// `[height * width, in]`.
        x: V,
        /// Input height, before enlarging.
        height: u64,
        /// Input width, before enlarging.
        width: u64,
        /// 1 or 2.
        upscale: u64,
        /// Rows of `x` above and below the others, 0 or 1 each, that are seen and have no result: of a band of a
        /// picture, where zeros are seen past the picture's own edges only.
        margin: [u64; 2],
        /// `[out, in * 9]`, column `c * 9 + ky * 3 + kx`.
        weight: W,
        /// `[1, out]`.
        bias: W,
        /// Added last; same shape as `out`, and may be the very place.
        residual: Option<V>,
        /// `[(height - margin[0] - margin[1]) * width * upscale^2, out]`.
        out: V,
    },
    /// An op of a picture that is decoded in tiles.
    Tile(TileOp<V>),
    /// An op that can be planned and that no device runs yet.
    Planned(PlannedOp<V, W>),
}

/// A named op.
#[derive(Clone, Debug, PartialEq)]
pub struct Op<V = View, W = WeightId> {
    /// Name for ledgers and traces, unique within its block.
    pub name: String,
    /// Kind and operands.
    pub kind: OpKind<V, W>,
}

impl<V, W> OpKind<V, W> {
    /// Stable name of the kind, for rates and ledgers.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Input { .. } => "input",
            Self::Gather { .. } => "gather",
            Self::Output { .. } => "output",
            Self::Copy { .. } => "copy",
            Self::Add { .. } => "add",
            Self::AddWeight { .. } => "add_weight",
            Self::Activate { .. } => "activate",
            Self::GluGelu { .. } => "glu_gelu",
            Self::Sinusoid { .. } => "sinusoid",
            Self::Linear { .. } => "linear",
            Self::Norm { .. } => "norm",
            Self::QkNormRope { .. } => "qk_norm_rope",
            Self::Attention { .. } => "attention",
            Self::ExpandBias { .. } => "expand_bias",
            Self::SelectRow { .. } => "select_row",
            Self::Euler { .. } => "euler",
            Self::Unpatchify { .. } => "unpatchify",
            Self::GroupNorm { .. } => "group_norm",
            Self::Conv3x3 { .. } => "conv3x3",
            Self::Tile(op) => op.label(),
            Self::Planned(op) => op.label(),
        }
    }

    /// The same op over other operands; calls `view` and `weight` once for each operand, in a fixed order.
    pub fn map<V2, W2>(
        &self,
        view: &mut impl FnMut(&V, Access) -> V2,
        weight: &mut impl FnMut(&W) -> W2,
    ) -> OpKind<V2, W2> {
        match self {
            Self::Input { input, out } => OpKind::Input { input: *input, out: view(out, WRITE) },
            Self::Gather { table, ids, out } => {
                OpKind::Gather { table: *table, ids: *ids, out: view(out, WRITE) }
            }
            Self::Output { output, x } => OpKind::Output { output: *output, x: view(x, READ) },
            Self::Copy { x, out } => OpKind::Copy { x: view(x, READ), out: view(out, WRITE) },
            Self::Add { a, b, out } => {
                OpKind::Add { a: view(a, READ), b: view(b, READ), out: view(out, WRITE) }
            }
            Self::AddWeight { a, weight: w, out } => {
                OpKind::AddWeight { a: view(a, READ), weight: weight(w), out: view(out, WRITE) }
            }
            Self::Activate { x, activation, out } => OpKind::Activate {
                x: view(x, READ),
                activation: *activation,
                out: view(out, WRITE),
            },
            Self::GluGelu { x, out } => OpKind::GluGelu { x: view(x, READ), out: view(out, WRITE) },
            Self::Sinusoid { x, out } => {
                OpKind::Sinusoid { x: view(x, READ), out: view(out, WRITE) }
            }
            Self::Linear { x, weight: w, weight_scale, bias, activation, residual, out } => {
                OpKind::Linear {
                    x: view(x, READ),
                    weight: weight(w),
                    weight_scale: weight_scale.as_ref().map(&mut *weight),
                    bias: bias.as_ref().map(&mut *weight),
                    activation: *activation,
                    residual: residual.as_ref().map(|residual| Residual {
                        base: view(&residual.base, READ),
                        gate: residual.gate.as_ref().map(|gate| view(gate, READ)),
                    }),
                    out: view(out, WRITE),
                }
            }
            Self::Norm { x, norm, out } => OpKind::Norm {
                x: view(x, READ),
                norm: match norm {
                    Norm::LayerModulated { eps, scale, shift } => Norm::LayerModulated {
                        eps: *eps,
                        scale: view(scale, READ),
                        shift: view(shift, READ),
                    },
                    Norm::LayerAffine { eps, weight: w, bias } => {
                        Norm::LayerAffine { eps: *eps, weight: weight(w), bias: weight(bias) }
                    }
                    Norm::Rms { eps, weight: w } => Norm::Rms { eps: *eps, weight: weight(w) },
                },
                out: view(out, WRITE),
            },
            Self::QkNormRope { q, k, q_weight, k_weight, rope, heads, eps } => OpKind::QkNormRope {
                q: view(q, UPDATE),
                k: view(k, UPDATE),
                q_weight: weight(q_weight),
                k_weight: weight(k_weight),
                rope: view(rope, READ),
                heads: *heads,
                eps: *eps,
            },
            Self::Attention { q, k, v, heads, scale, causal, bias, out } => OpKind::Attention {
                q: view(q, READ),
                k: view(k, READ),
                v: view(v, READ),
                heads: *heads,
                scale: *scale,
                causal: *causal,
                bias: bias.as_ref().map(|bias| RelativeBias { bias: view(&bias.bias, READ) }),
                out: view(out, WRITE),
            },
            Self::ExpandBias { weight: w, buckets, out } => OpKind::ExpandBias {
                weight: weight(w),
                buckets: view(buckets, READ),
                out: view(out, WRITE),
            },
            Self::SelectRow { x, index, out } => OpKind::SelectRow {
                x: view(x, READ),
                index: view(index, READ),
                out: view(out, WRITE),
            },
            Self::Euler { latent, velocity, dsigma } => OpKind::Euler {
                latent: view(latent, UPDATE),
                velocity: view(velocity, READ),
                dsigma: view(dsigma, READ),
            },
            Self::Unpatchify { x, height, width, scale, shift, out } => OpKind::Unpatchify {
                x: view(x, READ),
                height: *height,
                width: *width,
                scale: *scale,
                shift: *shift,
                out: view(out, WRITE),
            },
            Self::GroupNorm { x, weight: w, bias, groups, eps, silu, out } => OpKind::GroupNorm {
                x: view(x, READ),
                weight: weight(w),
                bias: weight(bias),
                groups: *groups,
                eps: *eps,
                silu: *silu,
                out: view(out, WRITE),
            },
            Self::Conv3x3 { x, height, width, upscale, margin, weight: w, bias, residual, out } => {
                OpKind::Conv3x3 {
                    x: view(x, READ),
                    height: *height,
                    width: *width,
                    upscale: *upscale,
                    margin: *margin,
                    weight: weight(w),
                    bias: weight(bias),
                    residual: residual.as_ref().map(|residual| view(residual, READ)),
                    out: view(out, WRITE),
                }
            }
            Self::Tile(op) => OpKind::Tile(op.map(view)),
            Self::Planned(op) => OpKind::Planned(op.map(view, weight)),
        }
    }
}

impl<V, W> Op<V, W> {
    /// The same op over other operands, see [`OpKind::map`].
    pub fn map<V2, W2>(
        &self,
        view: &mut impl FnMut(&V, Access) -> V2,
        weight: &mut impl FnMut(&W) -> W2,
    ) -> Op<V2, W2> {
        Op { name: self.name.clone(), kind: self.kind.map(view, weight) }
    }

    /// Calls `f` with each tensor operand and how it is used.
    pub fn for_each_view(&self, mut f: impl FnMut(&V, Access)) {
        let _mapped: OpKind<(), ()> =
            self.kind.map(&mut |view, access| f(view, access), &mut |_| ());
    }

    /// Calls `f` with each weight operand.
    pub fn for_each_weight(&self, mut f: impl FnMut(&W)) {
        let _mapped: OpKind<(), ()> = self.kind.map(&mut |_, _| (), &mut |weight| f(weight));
    }
}
