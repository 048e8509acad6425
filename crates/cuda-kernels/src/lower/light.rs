//! Ops whose time is that of their bytes: everything but products, attention and convolution.
//!
//! Every op here has own kernels only. Vectors of 8 are used where all operands are aligned for them; that,
//! the grids and the chunks depend on shapes and strides alone, never on the card or on what else is placed.

mod group_norm;
mod map;
mod norm;
mod operands;
mod small;
#[cfg(test)]
mod tests;
mod tiles;

use plimsoll_device::BoundOp;
use plimsoll_graph::OpKind;

// For the tails of products that a library computes.
#[allow(unused_imports, reason = "which of them a product needs is the business of `linear`")]
pub(super) use map::{activate, copy, gated_residual};
pub(super) use operands::blocks;

use crate::shape::Shape;
use crate::task::{Task, Unsupported};

pub(super) fn tasks(op: &BoundOp) -> Result<Vec<Task>, Unsupported> {
    let name = op.op.name.as_str();
    let launch = match &op.op.kind {
        OpKind::Copy { x, out } => map::copy(name, x, out)?,
        OpKind::Add { a, b, out } => map::add(name, a, b, out)?,
        OpKind::AddWeight { a, weight, out } => map::add_weight(name, a, weight, out)?,
        OpKind::Activate { x, activation, out } => map::activate(name, x, *activation, out)?,
        OpKind::GluGelu { x, out } => map::glu_gelu(name, x, out)?,
        OpKind::Euler { latent, velocity, dsigma } => map::euler(name, latent, velocity, dsigma)?,
        OpKind::Norm { x, norm, out } => norm::rows(name, x, norm, out)?,
        OpKind::QkNormRope { q, k, q_weight, k_weight, rope, heads, eps } => {
            norm::heads(name, [q, k], [q_weight, k_weight], rope, *heads, *eps)?
        }
        OpKind::Sinusoid { x, out } => small::sinusoid(name, x, out)?,
        OpKind::ExpandBias { weight, buckets, out } => {
            small::expand_bias(name, weight, buckets, out)?
        }
        OpKind::SelectRow { x, index, out } => small::select_row(name, x, index, out)?,
        OpKind::Unpatchify { x, height: _, width, scale, shift, out } => {
            small::unpatchify(name, x, *width, [*scale, *shift], out)?
        }
        OpKind::Tile(op) => tiles::launch(name, op)?,
        OpKind::GroupNorm { x, weight, bias, groups, eps, silu, out } => {
            let numbers = group_norm::Numbers { groups: *groups, eps: *eps, silu: *silu };
            let launches =
                group_norm::launches(name, x, [weight, bias], numbers, out, op.workspace)?;
            return Ok(launches.into_iter().map(Task::Launch).collect());
        }
        _ => return Err(Unsupported { what: format!("{name} ({})", op.op.kind.label()) }),
    };
    Ok(vec![Task::Launch(launch)])
}

pub(super) fn workspace_bytes(op: &OpKind<Shape, Shape>) -> u64 {
    match op {
        OpKind::GroupNorm { x, groups, .. } => {
            group_norm::Chunks::of_sums(x.rows, x.cols).scratch_bytes(*groups)
        }
        _ => 0,
    }
}
