//! Linear layers: one launch of an own kernel, or a library's product with at most one launch after it.
//!
//! Over a weight stored in 8 bits either [`super::narrow`] multiplies 8 bits by 8 bits, or the weight is unpacked first.
//!
//! What a library computes is decided by shapes and types, so that the scratch asked for is the scratch used.
//! Where addresses then do not suit it, an own kernel computes the layer, without scratch.

use plimsoll_device::{BoundOp, Mat, Region};
use plimsoll_graph::{Activation, DType, OpKind};

use super::layer::{LIBRARY_BYTES, Layer, SCRATCH_ALIGNMENT, Types, matrix};
use super::light;
use super::narrow;
use super::product::{Product, THIN_ROWS, Tail, is_aligned, launch};
use super::unpack::{self, unpack};
use crate::shape::{Shape, bound_shapes};
use crate::task::{Backends, Gemm, GemmActivation, GemmBackend, Task, Unsupported};

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

fn route(types: &Types, backends: Backends) -> Route {
    let activation = types.activation;
    let is_library = backends.gemm == GemmBackend::CublasLt
        // Own kernels read the weight at the rate of memory there.
        && types.rows > THIN_ROWS
        && [types.x, types.multiplied(), types.out].iter().all(|dtype| *dtype == DType::BF16)
        && types.bias.is_none_or(|bias| bias == types.out);
    if !is_library {
        return Route::Own;
    }
    let is_fused = matches!(activation, Activation::None | Activation::GeluTanh);
    match types.base {
        None if is_fused => Route::Library,
        None => Route::ThenActivation,
        Some(base)
            if activation == Activation::None && types.gate.is_none() && base == types.out =>
        {
            Route::Library
        }
        Some(_) if is_fused => Route::ThenResidual,
        Some(_) => Route::Own,
    }
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

/// Whether an op is a product of 8-bit operands.
pub fn is_narrow_product(op: &OpKind<Shape, Shape>, backends: Backends) -> bool {
    Types::of(op).is_some_and(|types| narrow::takes(&types, backends))
}

pub(super) fn workspace_bytes(op: &OpKind<Shape, Shape>, backends: Backends) -> u64 {
    match Types::of(op) {
        None => 0,
        Some(types) if narrow::takes(&types, backends) => narrow::scratch_bytes(&types, backends),
        Some(types) => {
            unpack::bytes(types.n, types.k, types.stored)
                + scratch_bytes(route(&types, backends), types.rows, types.n)
        }
    }
}

pub(super) fn tasks(op: &BoundOp, backends: Backends) -> Result<Vec<Task>, Unsupported> {
    let name = op.op.name.as_str();
    let (
        OpKind::Linear { x, weight: stored, weight_scale, bias, activation, residual, out },
        Some(types),
    ) = (&op.op.kind, Types::of(&bound_shapes(&op.op.kind)))
    else {
        return Err(Unsupported { what: name.to_owned() });
    };
    let layer = |weight| Layer {
        name,
        x,
        weight,
        bias: bias.as_ref(),
        activation: *activation,
        residual,
        out,
    };
    let mut workspace = op.workspace;
    let (first, weight) = match weight_scale {
        None => (None, *stored),
        Some(scale) if narrow::takes(&types, backends) => {
            return narrow::tasks(&layer(stored), &types, scale, workspace, backends.narrow);
        }
        Some(scale) => {
            let (launch, unpacked) = unpack(name, stored, scale, workspace)?;
            let taken = unpack::bytes(stored.rows, stored.cols, stored.dtype);
            workspace.offset += taken;
            workspace.bytes -= taken;
            (Some(Task::Launch(launch)), unpacked)
        }
    };
    let layer = layer(&weight);
    let route = route(&types, backends);
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
            scales: None,
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
