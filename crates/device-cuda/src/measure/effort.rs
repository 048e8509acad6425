//! What is measured: the ops and where their operands lie.

use plimsoll_device::Mat;
use plimsoll_graph::{Activation, DType, OpKind};

/// Places among which weights rotate.
pub(super) const PLACES: u64 = 4;

/// What is measured, and for how long.
#[derive(Clone, Debug)]
pub struct Effort {
    /// Rows of the products, ascending; the last is measured for `sustained_seconds`.
    pub rows: Vec<u64>,
    /// Columns of the products.
    pub n: u64,
    /// Depth of the products.
    pub k: u64,
    /// Queries and keys of attention.
    pub tokens: u64,
    /// Its heads.
    pub heads: u64,
    /// Columns of a head.
    pub head_dim: u64,
    /// Side of the picture that is convolved.
    pub side: u64,
    /// Its channels.
    pub channels: u64,
    /// A small and a large copy.
    pub copy_bytes: [u64; 2],
    /// Of one measurement.
    pub seconds: f64,
    /// Of the ones that heat the card.
    pub sustained_seconds: f64,
}

impl Effort {
    /// FLUX's shapes; 10 s on an H200.
    pub fn full() -> Self {
        Self {
            rows: vec![1, 77, 256, 512, 1024, 4608],
            n: 12_288,
            k: 3072,
            tokens: 4608,
            heads: 24,
            head_dim: 128,
            side: 256,
            channels: 512,
            copy_bytes: [1 << 20, 64 << 20],
            seconds: 0.1,
            sustained_seconds: 1.5,
        }
    }

    fn weight_bytes(&self) -> u64 {
        (self.n * self.k * 2).next_multiple_of(256)
    }

    /// Bytes that are filled with random values.
    pub(super) fn random_bytes(&self) -> u64 {
        let rows = self.rows.last().copied().unwrap_or(1);
        let most = [
            PLACES * self.weight_bytes(),
            rows * self.k.max(self.n) * 4,
            3 * self.tokens * self.heads * self.head_dim * 2,
            self.side * self.side * self.channels * 2,
            self.channels * self.channels * 18,
            self.copy_bytes[1],
        ];
        most.into_iter().max().unwrap_or(0).next_multiple_of(256)
    }

    pub(super) fn out_bytes(&self) -> u64 {
        let rows = self.rows.last().copied().unwrap_or(1);
        let most = [
            rows * self.n * 2,
            self.tokens * self.heads * self.head_dim * 2,
            self.side * self.side * self.channels * 2,
        ];
        most.into_iter().max().unwrap_or(0).next_multiple_of(256)
    }
}

fn mat(offset: u64, rows: u64, cols: u64) -> Mat {
    Mat { offset, rows, cols, stride: cols, dtype: DType::BF16, step_bytes: 0 }
}

/// Bytes of an arena for a measurement of `effort`, given the largest scratch of its ops.
pub fn arena_bytes(effort: &Effort, workspace_bytes: &dyn Fn(&OpKind<Mat, Mat>) -> u64) -> u64 {
    let ops = all_ops(effort);
    let scratch = ops.iter().map(workspace_bytes).max().unwrap_or(0);
    effort.random_bytes() + effort.out_bytes() + scratch.next_multiple_of(256)
}

fn all_ops(effort: &Effort) -> Vec<OpKind<Mat, Mat>> {
    let products = effort.rows.iter().map(|rows| product(effort, *rows, 0));
    let narrow = effort.rows.iter().map(|rows| narrow_product(effort, *rows, 0));
    products
        .chain(narrow)
        .chain([attention(effort), convolution(effort), addition(effort), tiny(effort)])
        .collect()
}

pub(super) fn product(effort: &Effort, rows: u64, place: u64) -> OpKind<Mat, Mat> {
    let Effort { n, k, .. } = *effort;
    OpKind::Linear {
        x: mat(0, rows, k),
        weight: mat(place * effort.weight_bytes(), n, k),
        weight_scale: None,
        bias: Some(mat(0, 1, n)),
        activation: Activation::None,
        residual: None,
        out: mat(effort.random_bytes(), rows, n),
    }
}

/// The same over a weight stored in 8 bits; any bytes are such numbers, and two random bf16 numbers are a scale.
pub(super) fn narrow_product(effort: &Effort, rows: u64, place: u64) -> OpKind<Mat, Mat> {
    let mut op = product(effort, rows, place);
    if let OpKind::Linear { weight, weight_scale, .. } = &mut op {
        weight.dtype = DType::F8E4M3;
        *weight_scale = Some(Mat { dtype: DType::F32, ..mat(0, 1, effort.n) });
    }
    op
}

pub(super) fn attention(effort: &Effort) -> OpKind<Mat, Mat> {
    let Effort { tokens, heads, head_dim, .. } = *effort;
    let cols = heads * head_dim;
    let part = |index: u64| Mat { stride: 3 * cols, ..mat(index * cols * 2, tokens, cols) };
    #[expect(clippy::cast_precision_loss, reason = "a head's width is far below 2^24")]
    let scale = (head_dim as f32).sqrt().recip();
    OpKind::Attention {
        q: part(0),
        k: part(1),
        v: part(2),
        heads,
        scale,
        causal: false,
        bias: None,
        out: mat(effort.random_bytes(), tokens, cols),
    }
}

pub(super) fn convolution(effort: &Effort) -> OpKind<Mat, Mat> {
    let Effort { side, channels, .. } = *effort;
    OpKind::Conv3x3 {
        x: mat(0, side * side, channels),
        height: side,
        width: side,
        upscale: 1,
        margin: [0, 0],
        weight: mat(0, channels, 9 * channels),
        bias: mat(0, 1, channels),
        residual: None,
        out: mat(effort.random_bytes(), side * side, channels),
    }
}

pub(super) fn addition(effort: &Effort) -> OpKind<Mat, Mat> {
    let rows = effort.rows.last().copied().unwrap_or(1);
    OpKind::Add {
        a: mat(0, rows, effort.n),
        b: mat(rows * effort.n * 2, rows, effort.n),
        out: mat(effort.random_bytes(), rows, effort.n),
    }
}

/// An op whose time is that of its launch.
pub(super) fn tiny(effort: &Effort) -> OpKind<Mat, Mat> {
    let out = mat(effort.random_bytes(), 1, 64);
    OpKind::Activate { x: mat(0, 1, 64), activation: Activation::Silu, out }
}
