//! Attention by cuDNN: its unified node, one engine, a plan for each shape.
//!
//! The engine is number 9 wherever it is offered (650 TFLOP/s at FLUX's shape on an H200, where engine 8 gives
//! 317), else the first that the heuristic offers; that is a function of the shape, the card and the library's
//! version. Rows of queries have the same bits whatever their number (`tests/card_dnn.rs`).
//!
//! # Invariants
//! - [`Dnn::prepare`] builds the plan; plans of one shape are shared.
//! - [`Dnn::launch`] takes no memory but the first time for an arena, when it writes down the addresses.
//! - A plan never asks for more scratch than its task has: that is refused when it is prepared.

mod functions;
mod node;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::cudnn::sys;
use cudarc::cudnn::sys::cudnnBackendAttributeName_t as Name;
use cudarc::cudnn::sys::cudnnBackendAttributeType_t as Type;
use cudarc::cudnn::sys::cudnnBackendDescriptorType_t as Kind;
use cudarc::driver::sys::{CUdeviceptr, CUstream};
use plimsoll_cuda_kernels::{Matrix, Sdpa};
use plimsoll_graph::DType;
use plimsoll_plan::Region;

use self::node::Node;
use crate::CudaError;
use crate::loader::mapped_files;

pub(crate) use self::functions::DnnFunctions;

/// The engine that is taken where it is offered.
const ENGINE: i64 = 9;
/// Every address and row must be a multiple of this.
const ALIGNMENT: u64 = 16;
// Unique ids of the tensors in an operation graph.
const Q: i64 = 1;
const K: i64 = 2;
const V: i64 = 3;
const OUT: i64 = 4;
const SCALE: i64 = 5;

/// What a plan is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shape {
    heads: i64,
    head_dim: i64,
    queries: i64,
    keys: i64,
    /// Elements from one row to the next of q, k, v and out.
    strides: [i64; 4],
}

/// A finished execution plan.
#[derive(Debug)]
struct Plan {
    node: Node,
    name: String,
    workspace_bytes: u64,
    /// The plan refers to them.
    _parts: Vec<Node>,
    /// Last, since the plan goes before the handle that it was made with.
    _handle: Arc<Handle>,
}

/// The library's handle, destroyed after the last plan.
#[derive(Debug)]
struct Handle {
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

/// cuDNN.
#[derive(Debug)]
pub struct Dnn {
    functions: DnnFunctions,
    handle: Arc<Handle>,
    /// Address of the handle's stream; held while the handle is used.
    stream: Mutex<Option<usize>>,
    plans: Mutex<HashMap<Shape, Arc<Plan>>>,
}

/// Attention with its execution plan.
#[derive(Debug)]
pub struct PreparedSdpa {
    plan: Arc<Plan>,
    /// Offsets of q, k, v and out.
    operands: [u64; 4],
    workspace: Region,
    /// Read by the library at each launch.
    scale: Box<f32>,
    /// The addresses for an arena.
    pack: Mutex<Option<(CUdeviceptr, Node)>>,
}

impl PreparedSdpa {
    /// Engine and knobs of the plan.
    pub fn engine(&self) -> &str {
        &self.plan.name
    }

    /// Scratch that the plan uses.
    pub fn workspace_bytes(&self) -> u64 {
        self.plan.workspace_bytes
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unsupported(what: String) -> CudaError {
    CudaError::Unsupported { what: format!("cuDNN: {what}") }
}

/// Checks an attention and takes its shape.
fn shape_of(sdpa: &Sdpa) -> Result<Shape, CudaError> {
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

impl Dnn {
    /// Makes a handle in the current context.
    ///
    /// # Errors
    /// [`CudaError::Library`]: parts of the library that are missing, or a driver that is too old for it.
    pub(crate) fn open(functions: DnnFunctions) -> Result<Self, CudaError> {
        let mut raw = ptr::null_mut();
        // SAFETY: the pointer is to a local.
        let status = unsafe { (functions.cudnnCreate)(&mut raw) };
        functions.check(|| "cudnnCreate".to_owned(), status)?;
        let handle = Arc::new(Handle { functions, raw });
        Ok(Self { functions, handle, stream: Mutex::default(), plans: Mutex::default() })
    }

    /// The library's version, `9.19.0`.
    pub fn version(&self) -> String {
        self.functions.version()
    }

    /// Builds the execution plan.
    ///
    /// # Errors
    /// [`CudaError::Unsupported`] for types, head sizes, alignments or scratch that do not serve, with the figures;
    /// [`CudaError::Library`].
    pub fn prepare(&self, sdpa: &Sdpa) -> Result<PreparedSdpa, CudaError> {
        let shape = shape_of(sdpa)?;
        let known = lock(&self.plans).get(&shape).cloned();
        // Building uses the handle.
        let held = lock(&self.stream);
        let plan = match known {
            Some(plan) => plan,
            None => {
                let built = Arc::new(self.build(&shape)?);
                lock(&self.plans).insert(shape, Arc::clone(&built));
                built
            }
        };
        drop(held);
        if plan.workspace_bytes > sdpa.workspace.bytes {
            return Err(unsupported(format!(
                "attention of {} by {} needs {} bytes of scratch and its task has {}",
                shape.queries, shape.keys, plan.workspace_bytes, sdpa.workspace.bytes
            )));
        }
        Ok(PreparedSdpa {
            plan,
            operands: [sdpa.q, sdpa.k, sdpa.v, sdpa.out].map(|matrix| matrix.offset),
            workspace: sdpa.workspace,
            scale: Box::new(sdpa.scale),
            pack: Mutex::new(None),
        })
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

    fn build(&self, shape: &Shape) -> Result<Plan, CudaError> {
        let Shape { heads, head_dim, queries, keys, strides } = *shape;
        let bf16 = sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16;
        let of = |uid, rows: i64, stride: i64| {
            let dims = [1, heads, rows, head_dim];
            self.tensor(uid, dims, [rows * stride, head_dim, stride, 1], bf16)
        };
        let tensors = [
            of(Q, queries, strides[0])?,
            of(K, keys, strides[1])?,
            of(V, keys, strides[2])?,
            of(OUT, queries, strides[3])?,
            self.tensor(SCALE, [1; 4], [1; 4], sys::cudnnDataType_t::CUDNN_DATA_FLOAT)?,
        ];
        let operation =
            Node::new(self.functions, Kind::CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR)?;
        let names = [
            Name::CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC,
            Name::CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC,
            Name::CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC,
            Name::CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC,
            Name::CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC,
        ];
        for (name, tensor) in names.into_iter().zip(&tensors) {
            operation.refer(name, tensor)?;
        }
        operation.finish("attention")?;
        let graph = Node::new(self.functions, Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?;
        graph.refer(Name::CUDNN_ATTR_OPERATIONGRAPH_OPS, &operation)?;
        graph.set(
            Name::CUDNN_ATTR_OPERATIONGRAPH_HANDLE,
            Type::CUDNN_TYPE_HANDLE,
            &[self.handle.raw],
        )?;
        graph.finish("operation graph")?;
        let config = self.pick(&graph)?;
        let mut plan = self.finish(config)?;
        plan._parts.extend(tensors);
        plan._parts.extend([operation, graph]);
        Ok(plan)
    }

    /// The configuration of [`ENGINE`], or else the first that is offered.
    fn pick(&self, graph: &Node) -> Result<Node, CudaError> {
        let heuristic = Node::new(self.functions, Kind::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?;
        heuristic.refer(Name::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)?;
        heuristic.set(
            Name::CUDNN_ATTR_ENGINEHEUR_MODE,
            Type::CUDNN_TYPE_HEUR_MODE,
            &[sys::cudnnBackendHeurMode_t::CUDNN_HEUR_MODE_A],
        )?;
        heuristic.finish("heuristic")?;
        let mut configs = heuristic.children(
            Name::CUDNN_ATTR_ENGINEHEUR_RESULTS,
            Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
        )?;
        let mut at = 0;
        for (index, config) in configs.iter().enumerate() {
            if engine_of(config)? == ENGINE {
                at = index;
                break;
            }
        }
        if configs.is_empty() {
            return Err(unsupported("no engine for this attention".to_owned()));
        }
        Ok(configs.swap_remove(at))
    }

    fn finish(&self, config: Node) -> Result<Plan, CudaError> {
        let name = name_of(&config)?;
        let node = Node::new(self.functions, Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
        node.set(
            Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE,
            Type::CUDNN_TYPE_HANDLE,
            &[self.handle.raw],
        )?;
        node.refer(Name::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &config)?;
        node.finish(&format!("plan of {name}"))?;
        let workspace: i64 =
            node.get(Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, Type::CUDNN_TYPE_INT64)?;
        Ok(Plan {
            node,
            name,
            workspace_bytes: workspace.max(0).cast_unsigned(),
            _parts: vec![config],
            _handle: Arc::clone(&self.handle),
        })
    }

    /// Writes down the addresses of an attention for an arena.
    fn pack(&self, prepared: &PreparedSdpa, arena_base: CUdeviceptr) -> Result<Node, CudaError> {
        let [q, k, v, out] = prepared.operands.map(|offset| arena_base + offset);
        let scale = ptr::from_ref::<f32>(&prepared.scale) as u64;
        let pack = Node::new(self.functions, Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?;
        pack.set(
            Name::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
            Type::CUDNN_TYPE_INT64,
            &[Q, K, V, OUT, SCALE],
        )?;
        pack.set(
            Name::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
            Type::CUDNN_TYPE_VOID_PTR,
            &[q, k, v, out, scale],
        )?;
        let workspace = arena_base + prepared.workspace.offset;
        pack.set(Name::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, Type::CUDNN_TYPE_VOID_PTR, &[workspace])?;
        pack.finish("addresses")?;
        Ok(pack)
    }

    /// Puts the attention on a stream.
    ///
    /// # Errors
    /// [`CudaError::Library`].
    ///
    /// # Safety
    /// - `stream` is a live stream of the context in which the library was opened.
    /// - Every operand and the task's scratch lie in the arena at `arena_base`, which outlives the stream's work.
    pub unsafe fn launch(
        &self,
        prepared: &PreparedSdpa,
        arena_base: CUdeviceptr,
        stream: CUstream,
    ) -> Result<(), CudaError> {
        let mut pack = lock(&prepared.pack);
        let node = match &*pack {
            Some((base, node)) if *base == arena_base => node,
            _ => &pack.insert((arena_base, self.pack(prepared, arena_base)?)).1,
        };
        let mut current = lock(&self.stream);
        if *current != Some(stream as usize) {
            // SAFETY: the handle is ours, the stream the caller's.
            let status = unsafe { (self.functions.cudnnSetStream)(self.handle.raw, stream) };
            self.functions.check(|| "cudnnSetStream".to_owned(), status)?;
            *current = Some(stream as usize);
        }
        // SAFETY: plan and addresses are finalized descriptors of one shape; the lock keeps the handle.
        let status = unsafe {
            (self.functions.cudnnBackendExecute)(
                self.handle.raw,
                prepared.plan.node.raw(),
                node.raw(),
            )
        };
        drop(current);
        self.functions.check(|| "cudnnBackendExecute".to_owned(), status)
    }

    /// Runs a small attention in `scratch`, so that the library has taken what it takes of the device.
    ///
    /// # Safety
    /// `stream` is a live stream of this context, and `scratch` so many bytes that outlive its work.
    pub(crate) unsafe fn warm_up(
        &self,
        scratch: CUdeviceptr,
        scratch_bytes: u64,
        stream: CUstream,
    ) -> Result<(), CudaError> {
        const ROWS: u64 = 128;
        const COLS: u64 = 256;
        let bytes = ROWS * COLS * 2;
        let needed = 8 * bytes;
        if scratch_bytes < needed {
            return Err(unsupported(format!(
                "{scratch_bytes} bytes to warm up, and {needed} are needed"
            )));
        }
        let matrix = |index: u64| Matrix {
            offset: index * bytes,
            rows: ROWS,
            cols: COLS,
            stride: COLS,
            dtype: DType::BF16,
        };
        let prepared = self.prepare(&Sdpa {
            q: matrix(0),
            k: matrix(1),
            v: matrix(2),
            out: matrix(3),
            heads: COLS / 128,
            scale: 0.088_388_35,
            workspace: Region { offset: 4 * bytes, bytes: 4 * bytes },
        })?;
        // SAFETY: as this function's; all operands lie in the scratch, by the check above.
        unsafe { self.launch(&prepared, scratch, stream) }?;
        one_folder(&mapped_files("cudnn"))
    }
}

/// Parts of two installations may look right and fail later, or compute something else.
fn one_folder(files: &[PathBuf]) -> Result<(), CudaError> {
    let mut folders: Vec<&Path> = files.iter().filter_map(|file| file.parent()).collect();
    folders.dedup();
    let [first, second, ..] = folders[..] else { return Ok(()) };
    Err(CudaError::Library {
        library: "cuDNN",
        call: "opening its parts".to_owned(),
        status: format!("parts come from both {} and {}", first.display(), second.display()),
    })
}

fn engine_of(config: &Node) -> Result<i64, CudaError> {
    let engines = config
        .children(Name::CUDNN_ATTR_ENGINECFG_ENGINE, Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR)?;
    let Some(engine) = engines.first() else { return Ok(-1) };
    engine.get(Name::CUDNN_ATTR_ENGINE_GLOBAL_INDEX, Type::CUDNN_TYPE_INT64)
}

/// Engine number and knob choices: what a report can name.
fn name_of(config: &Node) -> Result<String, CudaError> {
    let mut name = format!("engine {}", engine_of(config)?);
    let knobs = config.children(
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
