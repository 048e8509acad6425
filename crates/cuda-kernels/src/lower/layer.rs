//! A linear layer as all ways to compute it take it.

use plimsoll_device::Mat;
use plimsoll_graph::{Activation, DType, OpKind, Residual};

use crate::shape::Shape;
use crate::task::Matrix;

/// Scratch of the library for a product: a counter of tiles was the most it took.
pub(super) const LIBRARY_BYTES: u64 = 256;

/// Alignment of what stands behind it.
pub(super) const SCRATCH_ALIGNMENT: u64 = 256;

/// What a route depends on: sizes, types (`None` where the operand is absent) and what follows the product.
pub(super) struct Types {
    pub(super) rows: u64,
    pub(super) n: u64,
    pub(super) k: u64,
    pub(super) x: DType,
    /// In which the weight lies in memory.
    pub(super) stored: DType,
    pub(super) bias: Option<DType>,
    pub(super) activation: Activation,
    pub(super) base: Option<DType>,
    pub(super) gate: Option<DType>,
    pub(super) out: DType,
}

impl Types {
    /// Of a linear layer; `None` for another op.
    pub(super) fn of(op: &OpKind<Shape, Shape>) -> Option<Self> {
        let OpKind::Linear { x, weight, weight_scale: _, bias, activation, residual, out } = op
        else {
            return None;
        };
        Some(Self {
            rows: x.rows,
            n: weight.rows,
            k: x.cols,
            x: x.dtype,
            stored: weight.dtype,
            bias: bias.as_ref().map(|bias| bias.dtype),
            activation: *activation,
            base: residual.as_ref().map(|residual| residual.base.dtype),
            gate: residual
                .as_ref()
                .and_then(|residual| residual.gate.as_ref())
                .map(|gate| gate.dtype),
            out: out.dtype,
        })
    }

    /// The type in which the weight meets its product where it is unpacked.
    pub(super) fn multiplied(&self) -> DType {
        if self.stored == DType::F8E4M3 { DType::BF16 } else { self.stored }
    }
}

/// A layer's operands.
pub(super) struct Layer<'a> {
    pub(super) name: &'a str,
    pub(super) x: &'a Mat,
    pub(super) weight: &'a Mat,
    pub(super) bias: Option<&'a Mat>,
    pub(super) activation: Activation,
    pub(super) residual: &'a Option<Residual<Mat>>,
    pub(super) out: &'a Mat,
}

/// An operand as a library takes it.
pub(super) fn matrix(mat: &Mat) -> Matrix {
    Matrix {
        offset: mat.offset,
        rows: mat.rows,
        cols: mat.cols,
        stride: mat.stride,
        dtype: mat.dtype,
    }
}
