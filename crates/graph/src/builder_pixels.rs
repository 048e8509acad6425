//! Recording what is done to pixels: groups of channels, and 3x3 neighbourhoods.
//!
//! An `_into` of an op goes into a place that exists. That may be the place of an operand where the op's text says so:
//! a decoder's memory is a few pictures at full resolution, and each that is not made anew is one less.

use std::ops::Range;

use crate::DType;
use crate::builder::{Builder, Value};
use crate::graph::WeightId;
use crate::op::OpKind;

impl Builder<'_> {
    /// Packed tokens to latent pixels, `x / scale + shift`.
    pub fn unpatchify(
        &mut self,
        name: &str,
        x: Value,
        [height, width]: [u64; 2],
        scale: f32,
        shift: f32,
    ) -> Value {
        let out = self.result(name, height * width, x.cols / 4, &[x]);
        self.push(name, OpKind::Unpatchify { x, height, width, scale, shift, out });
        out
    }

    /// GroupNorm, with SiLU where asked.
    pub fn group_norm(
        &mut self,
        name: &str,
        x: Value,
        weight: WeightId,
        bias: WeightId,
        groups: u64,
        silu: bool,
    ) -> Value {
        let out = self.result(name, x.rows, x.cols, &[x]);
        self.group_norm_into(name, x, [weight, bias], groups, silu, out);
        out
    }

    /// GroupNorm with weight and bias, with SiLU where asked, into a place that exists, which may be `x`.
    pub fn group_norm_into(
        &mut self,
        name: &str,
        x: Value,
        [weight, bias]: [WeightId; 2],
        groups: u64,
        silu: bool,
        out: Value,
    ) {
        let eps = 1e-6;
        self.push(name, OpKind::GroupNorm { x, weight, bias, groups, eps, silu, out });
    }

    /// 3x3 convolution of the input enlarged `upscale` times, stored as `dtype`.
    #[expect(clippy::too_many_arguments, reason = "each is an operand of the one op")]
    pub fn conv3x3(
        &mut self,
        name: &str,
        x: Value,
        size: [u64; 2],
        upscale: u64,
        weight: WeightId,
        bias: WeightId,
        residual: Option<Value>,
        dtype: DType,
    ) -> Value {
        let cols = self.weights[weight.index()].rows;
        let rows = x.rows.saturating_mul(upscale * upscale);
        let dependence = self.tensors[x.tensor.index()].dependence;
        let out = self.buffer(name, rows, cols, dtype, dependence);
        self.conv3x3_into(name, x, size, upscale, [weight, bias], residual, out);
        out
    }

    /// 3x3 convolution by weight and bias of the input enlarged `upscale` times, into a place that exists, which may be
    /// the residual's.
    #[expect(clippy::too_many_arguments, reason = "each is an operand of the one op")]
    pub fn conv3x3_into(
        &mut self,
        name: &str,
        x: Value,
        [height, width]: [u64; 2],
        upscale: u64,
        [weight, bias]: [WeightId; 2],
        residual: Option<Value>,
        out: Value,
    ) {
        let margin = [0, 0];
        self.push(
            name,
            OpKind::Conv3x3 { x, height, width, upscale, margin, weight, bias, residual, out },
        );
    }

    /// Rows `rows` of the 3x3 convolution of a picture `x` by weight and bias, into a place that exists.
    ///
    /// A row more on either side is read, where the picture has one; nothing else of it need be there.
    pub fn conv3x3_band(
        &mut self,
        name: &str,
        x: Value,
        [height, width]: [u64; 2],
        rows: Range<u64>,
        [weight, bias]: [WeightId; 2],
        out: Value,
    ) {
        let margin = [u64::from(rows.start > 0), u64::from(rows.end < height)];
        let seen = rows.start - margin[0]..rows.end + margin[1];
        let height = seen.end - seen.start;
        let x = x.slice_rows(seen.start * width, height * width);
        let (upscale, residual) = (1, None);
        self.push(
            name,
            OpKind::Conv3x3 { x, height, width, upscale, margin, weight, bias, residual, out },
        );
    }
}
