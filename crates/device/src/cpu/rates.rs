//! Seconds of ops that nobody has measured, from a few rates.
//!
//! An op is sums (multiply-adds of its padded rows) and passes over elements (packing, activation, storing); both
//! are shared by as many workers as it has strands. Figures of [`Rates::default`]: Xeon with AVX-512 at about
//! 2.7 GHz, November 2026, `examples/bench_ops.rs`.

use plimsoll_graph::{Activation, OpKind, PlannedOp, TileOp};

use super::gemm::LANES;
use super::workspace::{Shape, Work};

/// Rates of one worker, and of the copy lane.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    /// Operations a second of products with 17 rows and more, two a multiply-add.
    pub product_flops_per_second: f64,
    /// The same with up to 16 rows, padded to 16.
    pub narrow_flops_per_second: f64,
    /// Seconds to bring one element of a weight to the product.
    pub weight_seconds: f64,
    /// Seconds to load or store one element of a result or operand.
    pub element_seconds: f64,
    /// Seconds of one exponential: an activation, or a score of attention.
    pub exp_seconds: f64,
    /// Seconds from an op's end to the next one's start.
    pub op_seconds: f64,
    /// Bytes a second of the copy lane.
    pub copy_bytes_per_second: f64,
    /// Seconds of a copy whatever its size: its commands, and waking the lane.
    pub copy_seconds: f64,
    /// Seconds of a segment whatever its size.
    pub segment_seconds: f64,
    /// Share of the compute lane's speed that a copy in flight takes, where workers fill all cores.
    pub copy_share: f64,
    /// Factor on all ops, from a measurement of some.
    pub scale: f64,
}

impl Default for Rates {
    fn default() -> Self {
        Self {
            product_flops_per_second: 125e9,
            narrow_flops_per_second: 85e9,
            weight_seconds: 0.1e-9,
            element_seconds: 0.4e-9,
            exp_seconds: 0.6e-9,
            op_seconds: 2.5e-6,
            copy_bytes_per_second: 7e9,
            copy_seconds: 10e-6,
            segment_seconds: 0.1e-6,
            copy_share: 0.75,
            scale: 1.0,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "seconds are an estimate")]
fn count(shape: &Shape) -> f64 {
    shape.rows as f64 * shape.cols as f64
}

/// The larger dimension's rows, padded to whole lanes.
#[expect(clippy::cast_precision_loss, reason = "seconds are an estimate")]
fn padded(rows: usize) -> f64 {
    rows.next_multiple_of(LANES) as f64
}

impl Rates {
    /// Seconds of the copy lane for a unit.
    #[expect(clippy::cast_precision_loss, reason = "seconds are an estimate")]
    pub(crate) fn copy_seconds(&self, bytes: u64, segments: u64) -> f64 {
        self.copy_seconds
            + segments as f64 * self.segment_seconds
            + bytes as f64 / self.copy_bytes_per_second
    }

    /// Seconds of the compute lane for an op.
    #[expect(clippy::cast_precision_loss, reason = "seconds are an estimate")]
    pub(crate) fn op_seconds(&self, op: &OpKind<Shape, Shape>, workers: usize) -> f64 {
        let product = |rows: usize| {
            let narrow = rows <= LANES;
            if narrow { self.narrow_flops_per_second } else { self.product_flops_per_second }
        };
        let work = match op {
            OpKind::Linear { x, weight, activation, residual, out, .. } => {
                let sums = 2.0 * padded(x.rows) * count(weight) / product(x.rows);
                // Every strand of rows and every tile of 192 rows brings the weights again.
                let passes = x.rows.div_ceil(192) as f64;
                let exps = if *activation == Activation::None { 0.0 } else { self.exp_seconds };
                let base = if residual.is_some() { 1.0 } else { 0.0 };
                sums + passes * count(weight) * self.weight_seconds
                    + count(x) * self.element_seconds
                    + count(out) * (exps + (1.0 + base) * self.element_seconds)
            }
            OpKind::Attention { q, k, heads, causal, .. } => {
                let share = if *causal { 0.5 } else { 1.0 };
                let scores = share * padded(q.rows) * k.rows as f64;
                let blocks = q.rows.div_ceil(64) as f64;
                4.0 * scores * q.cols as f64 / product(q.rows)
                    + scores * *heads as f64 * self.exp_seconds
                    + (2.0 * count(q) + share * 2.0 * blocks * count(k) / 4.0)
                        * self.element_seconds
            }
            OpKind::Conv3x3 { x, weight, residual, out, .. } => {
                let base = if residual.is_some() { 1.0 } else { 0.0 };
                let tiles = (out.rows as f64 / 256.0).max(1.0);
                2.0 * out.rows as f64 * count(weight) * 1.25 / self.product_flops_per_second
                    + tiles * count(weight) * self.weight_seconds
                    + 2.0 * out.rows as f64 * x.cols as f64 * self.element_seconds
                    + count(out) * (1.0 + base) * self.element_seconds
            }
            OpKind::GroupNorm { x, silu, .. } => {
                let exps = if *silu { self.exp_seconds } else { 0.0 };
                count(x) * (exps + 2.8 * self.element_seconds)
            }
            OpKind::Norm { x, .. } => count(x) * 3.0 * self.element_seconds,
            OpKind::QkNormRope { q, .. } => 2.0 * count(q) * 3.0 * self.element_seconds,
            OpKind::Activate { x, .. } => count(x) * (self.exp_seconds + self.element_seconds),
            OpKind::GluGelu { out, .. } => {
                count(out) * (self.exp_seconds + 1.5 * self.element_seconds)
            }
            // Two series in double precision.
            OpKind::Sinusoid { out, .. } => count(out) * 100.0 * self.element_seconds,
            OpKind::Add { out, .. }
            | OpKind::AddWeight { out, .. }
            | OpKind::Copy { out, .. }
            | OpKind::Gather { out, .. }
            | OpKind::SelectRow { out, .. } => count(out) * 0.7 * self.element_seconds,
            OpKind::Input { out, .. } => count(out) * 0.5 * self.element_seconds,
            OpKind::Output { x, .. } => count(x) * 0.5 * self.element_seconds,
            OpKind::Tile(TileOp::Clear { out }) => count(out) * self.element_seconds,
            OpKind::Tile(TileOp::Crop { out, .. }) => count(out) * 1.5 * self.element_seconds,
            OpKind::Tile(TileOp::Blend { out, .. }) => count(out) * 10.0 * self.element_seconds,
            OpKind::Euler { latent, .. } => count(latent) * self.element_seconds,
            OpKind::ExpandBias { out, .. } | OpKind::Unpatchify { out, .. } => {
                count(out) * 10.0 * self.element_seconds
            }
            // Of what cannot run there is no rate: as a convolution, or by its elements.
            OpKind::Planned(PlannedOp::Conv { weight, out, .. }) => {
                2.0 * out.rows as f64 * count(weight) / self.product_flops_per_second
            }
            OpKind::Planned(PlannedOp::GroupedAttention { q, k, .. }) => {
                4.0 * count(q) * k.rows as f64 / self.product_flops_per_second
            }
            OpKind::Planned(_) => {
                let mut elements = 0.0;
                let _mapped: OpKind<(), ()> =
                    op.map(&mut |shape, _| elements += count(shape), &mut |_| ());
                elements * self.element_seconds
            }
        };
        let shared_by = (Work::of(op).strands as usize).min(workers).max(1) as f64;
        self.op_seconds + self.scale * work / shared_by
    }
}
