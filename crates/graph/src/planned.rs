//! Ops that can be planned and not yet run: what SDXL, Wan and HunyuanVideo need beside FLUX.1's ops.
//!
//! They have shapes, bytes and operations like any other, so that a run of these models can be planned, proved and
//! timed from their names. No device carries them out: each refuses them by name. An op that gets its kernels moves to
//! [`crate::OpKind`].

use crate::access::{Access, READ, UPDATE, WRITE};
use crate::graph::{Graph, View, WeightId};

/// Kind and operands of an op that no device runs yet; see [`crate::OpKind`] for how shapes are given.
#[derive(Clone, Debug, PartialEq)]
pub enum PlannedOp<V = View, W = WeightId> {
    /// A part of `x`, or all of it in another shape: what one tile of a decoder takes, channels that become frames.
    Tile {
        /// Source.
        x: V,
        /// At most as many elements.
        out: V,
    },
    /// `out = x * factor`.
    Scale {
        /// Source.
        x: V,
        /// `[1, 1]` in `f32`.
        factor: V,
        /// Same shape.
        out: V,
    },
    /// Classifier-free guidance: `out = uncond + scale * (cond - uncond)`.
    Guide {
        /// Prediction with the prompt.
        cond: V,
        /// Prediction without it, or with the negative one.
        uncond: V,
        /// Guidance.
        scale: f32,
        /// Same shape.
        out: V,
    },
    /// Rotary embedding without a norm, in place.
    Rope {
        /// `[rows, heads * head_dim]`, read and written.
        x: V,
        /// `[rows, head_dim]` in `f32`: cosines, then sines.
        rope: V,
        /// Number of heads.
        heads: u64,
    },
    /// RMS norm of each head without a rotary embedding, in place.
    HeadNorm {
        /// `[rows, heads * head_dim]`, read and written.
        x: V,
        /// `[1, head_dim]`.
        weight: W,
        /// Number of heads.
        heads: u64,
        /// Added to the mean square.
        eps: f32,
    },
    /// GELU by the error function; gated: `out[:, j] = x[:, j] * gelu(x[:, cols + j])`.
    GeluErf {
        /// `[rows, cols]`, or `[rows, 2 * cols]` where it is gated.
        x: V,
        /// Whether half of the columns are a gate.
        is_gated: bool,
        /// `[rows, cols]`.
        out: V,
    },
    /// `out[:, j] = silu(x[:, j]) * x[:, cols + j]`.
    SwiGlu {
        /// `[rows, 2 * cols]`.
        x: V,
        /// `[rows, cols]`.
        out: V,
    },
    /// Softmax attention in which several query heads share a head of keys and values.
    GroupedAttention {
        /// `[queries, heads * head_dim]`.
        q: V,
        /// `[keys, kv_heads * head_dim]`.
        k: V,
        /// Same shape as `k`.
        v: V,
        /// Heads of queries.
        heads: u64,
        /// Heads of keys, a divisor of `heads`.
        kv_heads: u64,
        /// Same shape as `q`.
        out: V,
    },
    /// The second half of a low-rank adapter (LoRA) beside a product: `out += h up^T`, or, where the product stands
    /// apart, `out += gate * (y + h up^T)`. `h` has the columns of one rank for each part of the weight.
    LowRank {
        /// `[rows, parts * rank]`: the input through the adapter's first half.
        h: V,
        /// `[cols, rank]`.
        up: W,
        /// The product, where `out` is what it is added to.
        y: Option<V>,
        /// `[1, cols]`, for a gated residual.
        gate: Option<V>,
        /// `[rows, cols]`, read and written.
        out: V,
    },
    /// Convolution over frames, rows and columns, of the input enlarged `upscale` times (nearest), stride by axis.
    ///
    /// Frames are padded before the first only, rows and columns on both sides, so that `out` has
    /// `ceil(size * upscale / stride)` of each; the first frame alone is not repeated.
    Conv {
        /// `[frames * height * width, in]`.
        x: V,
        /// Frames, height and width of the input, before enlarging.
        size: [u64; 3],
        /// Kernel by axis.
        kernel: [u64; 3],
        /// Stride by axis.
        stride: [u64; 3],
        /// Enlargement by axis.
        upscale: [u64; 3],
        /// `[out, in * kernel]`.
        weight: W,
        /// `[1, out]`.
        bias: W,
        /// Added last; same shape as `out`.
        residual: Option<V>,
        /// The last frames of the tile before, read and then replaced by those of this one.
        history: Option<V>,
        /// `[pixels, out]`.
        out: V,
    },
}

impl<V, W> PlannedOp<V, W> {
    /// Stable name of the kind.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Tile { .. } => "tile",
            Self::Scale { .. } => "scale",
            Self::Guide { .. } => "guide",
            Self::Rope { .. } => "rope",
            Self::HeadNorm { .. } => "head_norm",
            Self::GeluErf { .. } => "gelu_erf",
            Self::SwiGlu { .. } => "swiglu",
            Self::GroupedAttention { .. } => "grouped_attention",
            Self::LowRank { .. } => "low_rank",
            Self::Conv { .. } => "conv",
        }
    }

    /// See [`crate::OpKind::map`].
    pub(crate) fn map<V2, W2>(
        &self,
        view: &mut impl FnMut(&V, Access) -> V2,
        weight: &mut impl FnMut(&W) -> W2,
    ) -> PlannedOp<V2, W2> {
        match self {
            Self::Tile { x, out } => PlannedOp::Tile { x: view(x, READ), out: view(out, WRITE) },
            Self::Scale { x, factor, out } => PlannedOp::Scale {
                x: view(x, READ),
                factor: view(factor, READ),
                out: view(out, WRITE),
            },
            Self::Guide { cond, uncond, scale, out } => PlannedOp::Guide {
                cond: view(cond, READ),
                uncond: view(uncond, READ),
                scale: *scale,
                out: view(out, WRITE),
            },
            Self::Rope { x, rope, heads } => {
                PlannedOp::Rope { x: view(x, UPDATE), rope: view(rope, READ), heads: *heads }
            }
            Self::HeadNorm { x, weight: w, heads, eps } => PlannedOp::HeadNorm {
                x: view(x, UPDATE),
                weight: weight(w),
                heads: *heads,
                eps: *eps,
            },
            Self::GeluErf { x, is_gated, out } => {
                PlannedOp::GeluErf { x: view(x, READ), is_gated: *is_gated, out: view(out, WRITE) }
            }
            Self::SwiGlu { x, out } => {
                PlannedOp::SwiGlu { x: view(x, READ), out: view(out, WRITE) }
            }
            Self::GroupedAttention { q, k, v, heads, kv_heads, out } => {
                PlannedOp::GroupedAttention {
                    q: view(q, READ),
                    k: view(k, READ),
                    v: view(v, READ),
                    heads: *heads,
                    kv_heads: *kv_heads,
                    out: view(out, WRITE),
                }
            }
            Self::LowRank { h, up, y, gate, out } => PlannedOp::LowRank {
                h: view(h, READ),
                up: weight(up),
                y: y.as_ref().map(|y| view(y, READ)),
                gate: gate.as_ref().map(|gate| view(gate, READ)),
                out: view(out, UPDATE),
            },
            Self::Conv {
                x,
                size,
                kernel,
                stride,
                upscale,
                weight: w,
                bias,
                residual,
                history,
                out,
            } => PlannedOp::Conv {
                x: view(x, READ),
                size: *size,
                kernel: *kernel,
                stride: *stride,
                upscale: *upscale,
                weight: weight(w),
                bias: weight(bias),
                residual: residual.as_ref().map(|residual| view(residual, READ)),
                history: history.as_ref().map(|history| view(history, UPDATE)),
                out: view(out, WRITE),
            },
        }
    }
}

/// Frames, height and width of a convolution's result.
pub(crate) fn conv_size(size: [u64; 3], stride: [u64; 3], upscale: [u64; 3]) -> [u64; 3] {
    std::array::from_fn(|axis| {
        let large = size[axis].saturating_mul(upscale[axis]);
        let repeated = if axis == 0 { upscale[0].saturating_sub(1) } else { 0 };
        large.saturating_sub(repeated).div_ceil(stride[axis].max(1))
    })
}

impl PlannedOp {
    /// Floating-point operations, two a multiply-add, over all rows.
    pub(crate) fn flops(&self, graph: &Graph) -> u64 {
        match self {
            Self::Tile { .. } => 0,
            Self::Scale { out, .. } => out.rows * out.cols,
            Self::Guide { out, .. } => 3 * out.rows * out.cols,
            Self::Rope { x, .. } | Self::HeadNorm { x, .. } => 6 * x.rows * x.cols,
            Self::GeluErf { out, .. } | Self::SwiGlu { out, .. } => 8 * out.rows * out.cols,
            Self::GroupedAttention { q, k, .. } => 4 * q.rows * k.rows * q.cols / 2,
            Self::LowRank { up, out, .. } => out.rows * out.cols * (2 * graph.weight(*up).cols + 2),
            Self::Conv { out, weight, .. } => {
                let weight = graph.weight(*weight);
                2 * out.rows * weight.rows * weight.cols
            }
        }
    }

    /// What does not fit together, with the sizes.
    pub(crate) fn misfit(&self, graph: &Graph) -> Option<String> {
        let same = |a: &View, b: &View| a.rows == b.rows && a.cols == b.cols;
        let shape = |view: &View| format!("{}x{}", view.rows, view.cols);
        let fits = match self {
            Self::Tile { x, out } => out.rows * out.cols <= x.rows * x.cols,
            Self::Scale { x, factor, out } => same(x, out) && factor.rows == 1 && factor.cols == 1,
            Self::Guide { cond, uncond, out, .. } => same(cond, out) && same(uncond, out),
            Self::Rope { x, rope, heads } => {
                *heads > 0 && rope.rows == x.rows && rope.cols * heads == x.cols
            }
            Self::HeadNorm { x, weight, heads, .. } => {
                let weight = graph.weight(*weight);
                weight.rows == 1 && weight.cols * heads == x.cols
            }
            Self::GeluErf { x, is_gated, out } => {
                x.rows == out.rows && x.cols == out.cols * (1 + u64::from(*is_gated))
            }
            Self::SwiGlu { x, out } => x.rows == out.rows && x.cols == 2 * out.cols,
            Self::GroupedAttention { q, k, v, heads, kv_heads, out } => {
                let is_divided = *heads > 0 && *kv_heads > 0 && heads % kv_heads == 0;
                is_divided && same(q, out) && same(k, v) && q.cols / heads == k.cols / kv_heads
            }
            Self::LowRank { h, up, y, gate, out } => {
                let up = graph.weight(*up);
                let is_ranked = up.cols > 0 && h.cols % up.cols == 0;
                let is_gate = |gate: &View| gate.rows == 1 && gate.cols == out.cols;
                is_ranked
                    && h.rows == out.rows
                    && up.rows == out.cols
                    && y.as_ref().is_none_or(|y| same(y, out))
                    && gate.as_ref().is_none_or(is_gate)
            }
            Self::Conv {
                x, size, kernel, stride, upscale, weight, bias, residual, out, ..
            } => {
                let (weight, bias) = (graph.weight(*weight), graph.weight(*bias));
                let pixels: u64 = size.iter().product();
                let after: u64 = conv_size(*size, *stride, *upscale).iter().product();
                x.rows == pixels
                    && out.rows == after
                    && weight.rows == out.cols
                    && weight.cols == x.cols * kernel.iter().product::<u64>()
                    && bias.rows == 1
                    && bias.cols == out.cols
                    && residual.as_ref().is_none_or(|residual| same(residual, out))
            }
        };
        if fits {
            return None;
        }
        let mut shapes = Vec::new();
        let _mapped: PlannedOp<(), ()> =
            self.map(&mut |view, _| shapes.push(shape(view)), &mut |_| ());
        Some(format!("operands {}", shapes.join(", ")))
    }
}
