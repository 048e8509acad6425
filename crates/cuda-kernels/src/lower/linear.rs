use plimsoll_device::BoundOp;
use plimsoll_graph::OpKind;

use crate::shape::Shape;
use crate::task::{Backends, Task, Unsupported};

pub(super) fn tasks(op: &BoundOp, _backends: Backends) -> Result<Vec<Task>, Unsupported> {
    Err(Unsupported { what: op.op.name.clone() })
}

pub(super) fn workspace_bytes(_op: &OpKind<Shape, Shape>, _backends: Backends) -> u64 {
    0
}
