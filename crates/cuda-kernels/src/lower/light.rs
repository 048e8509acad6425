use plimsoll_device::BoundOp;
use plimsoll_graph::OpKind;

use crate::shape::Shape;
use crate::task::{Task, Unsupported};

pub(super) fn tasks(op: &BoundOp) -> Result<Vec<Task>, Unsupported> {
    Err(Unsupported { what: op.op.name.clone() })
}

pub(super) fn workspace_bytes(_op: &OpKind<Shape, Shape>) -> u64 {
    0
}
