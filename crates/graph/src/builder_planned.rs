//! Recording the ops that can be planned and not yet run.

use crate::builder::{Builder, Value};
use crate::graph::{ComponentId, Dependence, WeightId};
use crate::op::{Norm, OpKind};
use crate::planned::{PlannedOp, conv_size};

/// A convolution's numbers by axis: frames, rows, columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvShape {
    /// Of the input, before enlarging.
    pub size: [u64; 3],
    /// Kernel.
    pub kernel: [u64; 3],
    /// Stride.
    pub stride: [u64; 3],
    /// Enlargement of the input.
    pub upscale: [u64; 3],
}

impl ConvShape {
    /// A plain 3x3 convolution of one picture.
    pub fn plain([height, width]: [u64; 2]) -> Self {
        Self { size: [1, height, width], kernel: [1, 3, 3], stride: [1; 3], upscale: [1; 3] }
    }

    /// Frames, height and width of the result.
    pub fn result(&self) -> [u64; 3] {
        conv_size(self.size, self.stride, self.upscale)
    }
}

impl Builder<'_> {
    /// The component of the present block; the first where there is none.
    pub fn component_of_block(&self) -> ComponentId {
        self.blocks.last().map_or(ComponentId(0), |block| block.component)
    }

    /// A part of `x` as a matrix of its own shape.
    pub fn tile(&mut self, name: &str, x: Value, rows: u64, cols: u64) -> Value {
        let out = self.result(name, rows, cols, &[x]);
        self.push(name, OpKind::Planned(PlannedOp::Tile { x, out }));
        out
    }

    /// `x * factor`.
    pub fn scale(&mut self, name: &str, x: Value, factor: Value) -> Value {
        let out = self.result(name, x.rows, x.cols, &[x, factor]);
        self.push(name, OpKind::Planned(PlannedOp::Scale { x, factor, out }));
        out
    }

    /// Classifier-free guidance, in the dtype of `uncond`.
    pub fn guide(&mut self, name: &str, cond: Value, uncond: Value, scale: f32) -> Value {
        let dtype = self.tensors[uncond.tensor.index()].dtype;
        let out = self.buffer(name, uncond.rows, uncond.cols, dtype, Dependence::Latent);
        self.push(name, OpKind::Planned(PlannedOp::Guide { cond, uncond, scale, out }));
        out
    }

    /// Rotary embedding in place.
    pub fn rope(&mut self, name: &str, x: Value, rope: Value, heads: u64) {
        self.push(name, OpKind::Planned(PlannedOp::Rope { x, rope, heads }));
    }

    /// RMS norm of each head, in place.
    pub fn head_norm(&mut self, name: &str, x: Value, weight: WeightId, heads: u64, eps: f32) {
        self.push(name, OpKind::Planned(PlannedOp::HeadNorm { x, weight, heads, eps }));
    }

    /// GELU by the error function; gated: half of the columns, the second half being the gate.
    pub fn gelu_erf(&mut self, name: &str, x: Value, is_gated: bool) -> Value {
        let cols = if is_gated { x.cols / 2 } else { x.cols };
        let out = self.result(name, x.rows, cols, &[x]);
        self.push(name, OpKind::Planned(PlannedOp::GeluErf { x, is_gated, out }));
        out
    }

    /// `silu(x[:, ..n]) * x[:, n..]`.
    pub fn swiglu(&mut self, name: &str, x: Value) -> Value {
        let out = self.result(name, x.rows, x.cols / 2, &[x]);
        self.swiglu_into(name, x, out);
        out
    }

    /// The same into a place that exists.
    pub fn swiglu_into(&mut self, name: &str, x: Value, out: Value) {
        self.push(name, OpKind::Planned(PlannedOp::SwiGlu { x, out }));
    }

    /// Causal attention with shared heads of keys.
    pub fn grouped_attention(
        &mut self,
        name: &str,
        [q, k, v]: [Value; 3],
        heads: u64,
        kv_heads: u64,
    ) -> Value {
        let out = self.result(name, q.rows, q.cols, &[q, k, v]);
        let kind = PlannedOp::GroupedAttention { q, k, v, heads, kv_heads, out };
        self.push(name, OpKind::Planned(kind));
        out
    }

    /// Normalises rows into a place that exists, which may be `x`.
    pub fn norm_into(&mut self, name: &str, x: Value, norm: Norm, out: Value) {
        self.push(name, OpKind::Norm { x, norm, out });
    }

    /// GroupNorm with an `eps` of its own.
    pub fn group_norm_with(
        &mut self,
        name: &str,
        x: Value,
        [weight, bias]: [WeightId; 2],
        groups: u64,
        eps: f32,
        silu: bool,
    ) -> Value {
        let out = self.result(name, x.rows, x.cols, &[x]);
        self.push(name, OpKind::GroupNorm { x, weight, bias, groups, eps, silu, out });
        out
    }

    /// Convolution over frames, rows and columns.
    pub fn conv(
        &mut self,
        name: &str,
        x: Value,
        shape: ConvShape,
        [weight, bias]: [WeightId; 2],
        residual: Option<Value>,
        history: Option<Value>,
    ) -> Value {
        let ConvShape { size, kernel, stride, upscale } = shape;
        let rows = shape.result().iter().fold(1u64, |all, one| all.saturating_mul(*one));
        let cols = self.weights[weight.index()].rows;
        let out = self.result(name, rows, cols, &[x]);
        let kind = PlannedOp::Conv {
            x,
            size,
            kernel,
            stride,
            upscale,
            weight,
            bias,
            residual,
            history,
            out,
        };
        self.push(name, OpKind::Planned(kind));
        out
    }
}
