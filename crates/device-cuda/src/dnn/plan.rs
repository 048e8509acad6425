//! Execution plans: which engine, and what it is told.
//!
//! # Which engine
//! Number 9 where the heuristic offers it (650 TFLOP/s at FLUX's shape on an H200, where engine 8 gives 317). Where it
//! does not, the engine that the same attention with [`REFERENCE_QUERIES`] queries takes, or none: engine 8, which
//! is offered for one query on Hopper, gives other bits than 9 does for the same row.

use std::ptr;
use std::sync::Arc;

use cudarc::cudnn::sys;
use cudarc::cudnn::sys::cudnnBackendAttributeName_t as Name;
use cudarc::cudnn::sys::cudnnBackendAttributeType_t as Type;
use cudarc::cudnn::sys::cudnnBackendDescriptorType_t as Kind;
use plimsoll_cuda_kernels::{Matrix, Sdpa};
use plimsoll_graph::DType;

use super::functions::DnnFunctions;
use super::node::Node;
use crate::CudaError;

/// The engine that is taken where it is offered.
const ENGINE: i64 = 9;
/// Every address and row must be a multiple of this.
const ALIGNMENT: u64 = 16;
/// Queries for which an attention's engine is chosen, where it is not [`ENGINE`].
const REFERENCE_QUERIES: i64 = 1024;
// Unique ids of the tensors in an operation graph.
pub(super) const Q: i64 = 1;
pub(super) const K: i64 = 2;
pub(super) const V: i64 = 3;
pub(super) const OUT: i64 = 4;
pub(super) const SCALE: i64 = 5;

/// What a plan is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    heads: i64,
    head_dim: i64,
    pub(super) queries: i64,
    pub(super) keys: i64,
    /// Elements from one row to the next of q, k, v and out.
    strides: [i64; 4],
}

/// A finished execution plan.
#[derive(Debug)]
pub(super) struct Plan {
    node: Node,
    pub(super) name: String,
    pub(super) workspace_bytes: u64,
    /// The plan refers to them.
    _parts: Vec<Node>,
    /// Last, since the plan goes before the handle that it was made with.
    _handle: Arc<Handle>,
}

/// The library's handle, destroyed after the last plan.
#[derive(Debug)]
pub(super) struct Handle {
    functions: DnnFunctions,
    raw: sys::cudnnHandle_t,
}

// SAFETY: the handle is used under the lock of `Dnn::stream`, by one thread at a time; a plan only keeps it.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: ours, and not used again; a failure has no reader.
        unsafe { (self.functions.cudnnDestroy)(self.raw) };
    }
}

impl Handle {
    pub(super) fn new(functions: DnnFunctions) -> Result<Self, CudaError> {
        let mut raw = ptr::null_mut();
        // SAFETY: the pointer is to a local.
        let status = unsafe { (functions.cudnnCreate)(&mut raw) };
        functions.check(|| "cudnnCreate".to_owned(), status)?;
        Ok(Self { functions, raw })
    }

    pub(super) fn raw(&self) -> sys::cudnnHandle_t {
        self.raw
    }

    fn tensor(
        &self,
        uid: i64,
        dims: [i64; 4],
        strides: [i64; 4],
        kind: sys::cudnnDataType_t,
    ) -> Result<Node, CudaError> {
        let node = Node::new(self.functions, Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?;
        let int = Type::CUDNN_TYPE_INT64;
        node.set(Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, int, &[uid])?;
        node.set(Name::CUDNN_ATTR_TENSOR_DATA_TYPE, Type::CUDNN_TYPE_DATA_TYPE, &[kind])?;
        node.set(Name::CUDNN_ATTR_TENSOR_DIMENSIONS, int, &dims)?;
        node.set(Name::CUDNN_ATTR_TENSOR_STRIDES, int, &strides)?;
        node.set(Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, int, &[ALIGNMENT.cast_signed()])?;
        node.set(Name::CUDNN_ATTR_TENSOR_IS_VIRTUAL, Type::CUDNN_TYPE_BOOLEAN, &[false])?;
        if uid == SCALE {
            node.set(Name::CUDNN_ATTR_TENSOR_IS_BY_VALUE, Type::CUDNN_TYPE_BOOLEAN, &[true])?;
        }
        node.finish(&format!("tensor {uid}"))?;
        Ok(node)
    }
}

pub(super) fn unsupported(what: String) -> CudaError {
    CudaError::Unsupported { what: format!("cuDNN: {what}") }
}

/// Checks an attention and takes its shape.
pub(super) fn shape_of(sdpa: &Sdpa) -> Result<Shape, CudaError> {
    let Sdpa { q, k, v, out, heads, .. } = sdpa;
    let fits = (q.rows, q.cols) == (out.rows, out.cols)
        && (k.rows, k.cols) == (v.rows, v.cols)
        && q.cols == k.cols
        && *heads > 0
        && q.cols % heads == 0
        && q.rows > 0
        && k.rows > 0;
    if !fits {
        return Err(unsupported(format!("operands that do not fit together: {sdpa:?}")));
    }
    let head_dim = q.cols / heads;
    if !matches!(head_dim, 64 | 128) {
        return Err(unsupported(format!("heads of {head_dim} columns, and 64 or 128 are needed")));
    }
    for (name, matrix) in [("q", q), ("k", k), ("v", v), ("out", out)] {
        let Matrix { offset, stride, cols, dtype, .. } = *matrix;
        if dtype != DType::BF16 {
            return Err(unsupported(format!("{name} of type {dtype:?}")));
        }
        if offset % ALIGNMENT != 0 || stride * 2 % ALIGNMENT != 0 || stride < cols {
            return Err(unsupported(format!(
                "{name} at byte {offset} with rows of {} bytes: both must be multiples of {ALIGNMENT}",
                stride * 2
            )));
        }
    }
    let count =
        |value: u64| i64::try_from(value).map_err(|_| unsupported(format!("a size of {value}")));
    Ok(Shape {
        heads: count(*heads)?,
        head_dim: count(head_dim)?,
        queries: count(q.rows)?,
        keys: count(k.rows)?,
        strides: [count(q.stride)?, count(k.stride)?, count(v.stride)?, count(out.stride)?],
    })
}

impl Plan {
    /// Builds the plan of a shape.
    pub(super) fn build(handle: &Arc<Handle>, shape: &Shape) -> Result<Self, CudaError> {
        let mut graph = OperationGraph::new(handle, shape)?;
        let offers = graph.offers()?;
        let engine = match offers.iter().find(|offer| offer.engine == ENGINE) {
            Some(offer) => Some(offer.engine),
            None => {
                let reference = Shape { queries: REFERENCE_QUERIES, ..*shape };
                let reference = OperationGraph::new(handle, &reference)?.offers()?;
                let is_offered = |engine: i64| reference.iter().any(|offer| offer.engine == engine);
                let first = reference.first().map(|offer| offer.engine);
                if is_offered(ENGINE) { Some(ENGINE) } else { first }
            }
        };
        let names: Vec<i64> = offers.iter().map(|offer| offer.engine).collect();
        let chosen = offers.into_iter().find(|offer| Some(offer.engine) == engine).ok_or_else(|| {
            unsupported(format!(
                "attention of {} by {} is offered engines {names:?}, and rows of more queries are computed by {engine:?}",
                shape.queries, shape.keys
            ))
        })?;
        let name = chosen.name()?;
        let node = Node::new(handle.functions, Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
        node.set(Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, Type::CUDNN_TYPE_HANDLE, &[handle.raw])?;
        node.refer(Name::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &chosen.config)?;
        node.finish(&format!("plan of {name}"))?;
        let workspace: i64 =
            node.get(Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, Type::CUDNN_TYPE_INT64)?;
        graph.parts.push(chosen.config);
        Ok(Self {
            node,
            name,
            workspace_bytes: workspace.max(0).cast_unsigned(),
            _parts: graph.parts,
            _handle: Arc::clone(handle),
        })
    }

    pub(super) fn raw(&self) -> sys::cudnnBackendDescriptor_t {
        self.node.raw()
    }
}

/// An attention as one operation.
struct OperationGraph<'h> {
    handle: &'h Handle,
    graph: Node,
    parts: Vec<Node>,
}

/// A configuration that the heuristic offers.
struct Offer {
    engine: i64,
    config: Node,
}

impl<'h> OperationGraph<'h> {
    fn new(handle: &'h Handle, shape: &Shape) -> Result<Self, CudaError> {
        let Shape { heads, head_dim, queries, keys, strides } = *shape;
        let bf16 = sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16;
        let of = |uid, rows: i64, stride: i64| {
            let dims = [1, heads, rows, head_dim];
            handle.tensor(uid, dims, [rows * stride, head_dim, stride, 1], bf16)
        };
        let mut parts = vec![
            of(Q, queries, strides[0])?,
            of(K, keys, strides[1])?,
            of(V, keys, strides[2])?,
            of(OUT, queries, strides[3])?,
            handle.tensor(SCALE, [1; 4], [1; 4], sys::cudnnDataType_t::CUDNN_DATA_FLOAT)?,
        ];
        let functions = handle.functions;
        let operation = Node::new(functions, Kind::CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR)?;
        let names = [
            Name::CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC,
            Name::CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC,
            Name::CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC,
            Name::CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC,
            Name::CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC,
        ];
        for (name, tensor) in names.into_iter().zip(&parts) {
            operation.refer(name, tensor)?;
        }
        operation.finish("attention")?;
        let graph = Node::new(functions, Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?;
        graph.refer(Name::CUDNN_ATTR_OPERATIONGRAPH_OPS, &operation)?;
        graph.set(
            Name::CUDNN_ATTR_OPERATIONGRAPH_HANDLE,
            Type::CUDNN_TYPE_HANDLE,
            &[handle.raw],
        )?;
        graph.finish("operation graph")?;
        parts.push(operation);
        Ok(Self { handle, graph, parts })
    }

    /// What the heuristic offers, best first.
    fn offers(&self) -> Result<Vec<Offer>, CudaError> {
        let heuristic =
            Node::new(self.handle.functions, Kind::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?;
        heuristic.refer(Name::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &self.graph)?;
        heuristic.set(
            Name::CUDNN_ATTR_ENGINEHEUR_MODE,
            Type::CUDNN_TYPE_HEUR_MODE,
            &[sys::cudnnBackendHeurMode_t::CUDNN_HEUR_MODE_A],
        )?;
        heuristic.finish("heuristic")?;
        let configs = heuristic.children(
            Name::CUDNN_ATTR_ENGINEHEUR_RESULTS,
            Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
        )?;
        let offers =
            configs.into_iter().map(|config| Ok(Offer { engine: engine_of(&config)?, config }));
        offers.collect()
    }
}

impl Offer {
    /// Engine number and knob choices: what a report can name.
    fn name(&self) -> Result<String, CudaError> {
        let mut name = format!("engine {}", self.engine);
        let knobs = self.config.children(
            Name::CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
            Kind::CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR,
        )?;
        for knob in knobs {
            let kind: i32 =
                knob.get(Name::CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, Type::CUDNN_TYPE_KNOB_TYPE)?;
            let value: i64 =
                knob.get(Name::CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, Type::CUDNN_TYPE_INT64)?;
            name += &format!(" k{kind}={value}");
        }
        Ok(name)
    }
}

fn engine_of(config: &Node) -> Result<i64, CudaError> {
    let engines = config
        .children(Name::CUDNN_ATTR_ENGINECFG_ENGINE, Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR)?;
    let Some(engine) = engines.first() else { return Ok(-1) };
    engine.get(Name::CUDNN_ATTR_ENGINE_GLOBAL_INDEX, Type::CUDNN_TYPE_INT64)
}
