//! Linear layers: one launch of an own kernel, or a library's product with at most one launch after it; before either,
//! a weight stored in 8 bits is unpacked.
//!
//! What a library computes is decided by shapes and types, so that the scratch asked for is the scratch used.
//! Where addresses then do not suit it, an own kernel computes the layer, without scratch.

use plimsoll_device::{BoundOp, Mat, Region};
use plimsoll_graph::{Activation, DType, OpKind, Residual};

use super::light;
use super::product::{Product, THIN_ROWS, Tail, is_aligned, launch};
use super::unpack::{self, unpack};
use crate::shape::Shape;
use crate::task::{Backends, Gemm, GemmActivation, GemmBackend, Matrix, Task, Unsupported};

/// Scratch of the library for a product: a counter of tiles was the most it took.
const LIBRARY_BYTES: u64 = 256;

/// Alignment of what stands behind it.
const SCRATCH_ALIGNMENT: u64 = 256;

/// Who computes what of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    /// An own kernel, all of it.
    Own,
    /// A library, all of it.
    Library,
    /// A library up to the bias, into the result; the activation there, in place.
    ThenActivation,
    /// A library up to the activation, into scratch; then the residual.
    ThenResidual,
}

/// The types that a route depends on; `None` where the operand is absent.
struct Types {
    rows: u64,
    x: DType,
    w: DType,
    bias: Option<DType>,
    base: Option<DType>,
    has_gate: bool,
    out: DType,
}

fn route(types: &Types, activation: Activation, backends: Backends) -> Route {
    let is_library = backends.gemm == GemmBackend::CublasLt
        // Own kernels read the weight at the rate of memory there.
        && types.rows > THIN_ROWS
        && [types.x, types.w, types.out].iter().all(|dtype| *dtype == DType::BF16)
        && types.bias.is_none_or(|bias| bias == types.out);
    if !is_library {
        return Route::Own;
    }
    let is_fused = matches!(activation, Activation::None | Activation::GeluTanh);
    match types.base {
        None if is_fused => Route::Library,
        None => Route::ThenActivation,
        Some(base) if activation == Activation::None && !types.has_gate && base == types.out => {
            Route::Library
        }
        Some(_) if is_fused => Route::ThenResidual,
        Some(_) => Route::Own,
    }
}

/// The type in which a weight meets its product.
fn multiplied(stored: DType) -> DType {
    if stored == DType::F8E4M3 { DType::BF16 } else { stored }
}

fn scratch_bytes(route: Route, rows: u64, cols: u64) -> u64 {
    match route {
        Route::Own => 0,
        Route::Library | Route::ThenActivation => LIBRARY_BYTES,
        Route::ThenResidual => {
            LIBRARY_BYTES + (rows * cols * DType::BF16.bytes()).next_multiple_of(SCRATCH_ALIGNMENT)
        }
    }
}

pub(super) fn workspace_bytes(op: &OpKind<Shape, Shape>, backends: Backends) -> u64 {
    let OpKind::Linear { x, weight, weight_scale: _, bias, activation, residual, out } = op else {
        return 0;
    };
    let types = Types {
        rows: x.rows,
        x: x.dtype,
        w: multiplied(weight.dtype),
        bias: bias.as_ref().map(|bias| bias.dtype),
        base: residual.as_ref().map(|residual| residual.base.dtype),
        has_gate: residual.as_ref().is_some_and(|residual| residual.gate.is_some()),
        out: out.dtype,
    };
    unpack::bytes(weight.rows, weight.cols, weight.dtype)
        + scratch_bytes(route(&types, *activation, backends), out.rows, out.cols)
}

pub(super) fn tasks(op: &BoundOp, backends: Backends) -> Result<Vec<Task>, Unsupported> {
    let name = op.op.name.as_str();
    let OpKind::Linear { x, weight: stored, weight_scale, bias, activation, residual, out } =
        &op.op.kind
    else {
        return Err(Unsupported { what: name.to_owned() });
    };
    let mut workspace = op.workspace;
    let (first, weight) = match weight_scale {
        None => (None, *stored),
        Some(scale) => {
            let (launch, unpacked) = unpack(name, stored, scale, workspace)?;
            let taken = unpack::bytes(stored.rows, stored.cols, stored.dtype);
            workspace.offset += taken;
            workspace.bytes -= taken;
            (Some(Task::Launch(launch)), unpacked)
        }
    };
    let weight = &weight;
    let types = Types {
        rows: x.rows,
        x: x.dtype,
        w: weight.dtype,
        bias: bias.map(|bias| bias.dtype),
        base: residual.as_ref().map(|residual| residual.base.dtype),
        has_gate: residual.as_ref().is_some_and(|residual| residual.gate.is_some()),
        out: out.dtype,
    };
    let layer =
        Layer { name, x, weight, bias: bias.as_ref(), activation: *activation, residual, out };
    let route = route(&types, *activation, backends);
    if route == Route::Own || !layer.suits_library(route) {
        return Ok(first.into_iter().chain([layer.own()?]).collect());
    }
    if workspace.bytes < scratch_bytes(route, out.rows, out.cols) {
        return Err(Unsupported {
            what: format!("{name} in {} bytes of scratch", workspace.bytes),
        });
    }
    let tasks = layer.with_library(route, workspace.offset)?;
    Ok(first.into_iter().chain(tasks).collect())
}

struct Layer<'a> {
    name: &'a str,
    x: &'a Mat,
    weight: &'a Mat,
    bias: Option<&'a Mat>,
    activation: Activation,
    residual: &'a Option<Residual<Mat>>,
    out: &'a Mat,
}

impl Layer<'_> {
    fn own(&self) -> Result<Task, Unsupported> {
        let residual = self.residual.as_ref();
        let tail = Tail {
            bias: self.bias,
            activation: self.activation,
            gate: residual.and_then(|residual| residual.gate.as_ref()),
            base: residual.map(|residual| &residual.base),
            out: self.out,
        };
        let product = Product { x: self.x, w: self.weight, tail };
        Ok(Task::Launch(launch(self.name, &product)?))
    }

    /// Whether the library can be given these addresses: aligned, and none that moves with the step.
    fn suits_library(&self, route: Route) -> bool {
        let base = self.residual.as_ref().map(|residual| &residual.base);
        let added = base.filter(|_| route == Route::Library);
        let written = (route != Route::ThenResidual).then_some(self.out);
        [Some(self.x), Some(self.weight), self.bias, added, written]
            .into_iter()
            .flatten()
            .all(|mat| is_aligned(mat) && mat.step_bytes == 0)
    }

    fn with_library(&self, route: Route, scratch: u64) -> Result<Vec<Task>, Unsupported> {
        let residual = self.residual.as_ref();
        let product = match route {
            Route::ThenResidual => Mat {
                offset: scratch + LIBRARY_BYTES,
                stride: self.out.cols,
                dtype: DType::BF16,
                step_bytes: 0,
                ..*self.out
            },
            _ => *self.out,
        };
        let gemm = Task::Gemm(Gemm {
            a: matrix(self.x),
            b: matrix(self.weight),
            bias: self.bias.map(|bias| bias.offset),
            activation: match self.activation {
                Activation::GeluTanh => GemmActivation::GeluTanh,
                _ => GemmActivation::None,
            },
            add: residual
                .filter(|_| route == Route::Library)
                .map(|residual| matrix(&residual.base)),
            out: matrix(&product),
            workspace: Region { offset: scratch, bytes: LIBRARY_BYTES },
        });
        let after = match (route, residual) {
            (Route::ThenActivation, _) => {
                Some(light::activate(self.name, self.out, self.activation, self.out)?)
            }
            (Route::ThenResidual, Some(residual)) => Some(light::gated_residual(
                self.name,
                &residual.base,
                &product,
                residual.gate.as_ref(),
                self.out,
            )?),
            _ => None,
        };
        Ok([gemm].into_iter().chain(after.map(Task::Launch)).collect())
    }
}

fn matrix(mat: &Mat) -> Matrix {
    Matrix {
        offset: mat.offset,
        rows: mat.rows,
        cols: mat.cols,
        stride: mat.stride,
        dtype: mat.dtype,
    }
}
