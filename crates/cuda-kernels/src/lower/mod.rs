//! From an op to what the device does for it.
//!
//! One file a family of ops: each has a function that makes the tasks of a bound op and, where the op needs
//! scratch, one that says how much from shapes alone.

mod attention;
mod conv;
#[cfg(test)]
mod heavy_tests;
mod layer;
mod light;
mod linear;
mod narrow;
mod product;
mod unpack;

use plimsoll_device::BoundOp;
use plimsoll_graph::OpKind;

pub use linear::is_narrow_product;
pub use unpack::unpacked_bytes;

use crate::shape::Shape;
use crate::task::{Backends, Task, Unsupported};

/// What the device does for an op, in order.
///
/// `Input`, `Gather` and `Output` move host memory and are the device's own business: they give no task.
///
/// # Errors
/// [`Unsupported`] for operand types or sizes that no kernel takes.
pub fn tasks(op: &BoundOp, backends: Backends) -> Result<Vec<Task>, Unsupported> {
    match &op.op.kind {
        OpKind::Input { .. } | OpKind::Gather { .. } | OpKind::Output { .. } => Ok(Vec::new()),
        OpKind::Linear { .. } => linear::tasks(op, backends),
        OpKind::Attention { .. } => attention::tasks(op, backends),
        OpKind::Conv3x3 { .. } => conv::tasks(op, backends),
        _ => light::tasks(op),
    }
}

/// Scratch bytes of an op: from its shapes and the backends alone.
pub fn workspace_bytes(op: &OpKind<Shape, Shape>, backends: Backends) -> u64 {
    match op {
        OpKind::Linear { .. } => linear::workspace_bytes(op, backends),
        OpKind::Attention { .. } => attention::workspace_bytes(op, backends),
        OpKind::Conv3x3 { .. } => conv::workspace_bytes(op, backends),
        _ => light::workspace_bytes(op),
    }
}
