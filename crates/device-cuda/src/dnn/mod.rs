//! Attention by cuDNN: its unified node, one engine, a plan for each shape.
//!
//! The engine is a function of the shape, the card and the library's version (`plan`). Rows of queries have the same
//! bits whatever their number (`tests/card_dnn.rs`).
//!
//! # Invariants
//! - [`Dnn::prepare`] builds the plan; plans of one shape are shared.
//! - [`Dnn::launch`] takes no memory but the first time for an arena, when it writes down the addresses.
//! - A plan never asks for more scratch than its task has: that is refused when it is prepared.

mod building;
mod functions;
mod node;
mod plan;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::cudnn::sys::cudnnBackendAttributeName_t as Name;
use cudarc::cudnn::sys::cudnnBackendAttributeType_t as Type;
use cudarc::cudnn::sys::cudnnBackendDescriptorType_t as Kind;
use cudarc::driver::sys::{CUdeviceptr, CUstream};
use plimsoll_cuda_kernels::{Matrix, Sdpa};
use plimsoll_graph::DType;
use plimsoll_plan::Region;

use self::node::Node;
use self::plan::{Handle, K, OUT, Plan, Q, SCALE, Shape, V, shape_of, unsupported};
use crate::CudaError;
use crate::loader::find::mapped_files;

pub(crate) use self::building::Building;
pub(crate) use self::functions::DnnFunctions;

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

impl Dnn {
    /// Makes a handle in the current context.
    ///
    /// # Errors
    /// [`CudaError::Library`]: parts of the library that are missing, or a driver that is too old for it.
    pub(crate) fn open(functions: DnnFunctions) -> Result<Self, CudaError> {
        let handle = Arc::new(Handle::new(functions)?);
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
        // Building uses the handle. Held before the plans are looked at: two threads that want one plan build it once.
        let held = lock(&self.stream);
        let known = lock(&self.plans).get(&shape).cloned();
        let plan = match known {
            Some(plan) => plan,
            None => {
                let built = Arc::new(Plan::build(&self.handle, &shape)?);
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
            let status = unsafe { (self.functions.cudnnSetStream)(self.handle.raw(), stream) };
            self.functions.check(|| "cudnnSetStream".to_owned(), status)?;
            *current = Some(stream as usize);
        }
        // SAFETY: plan and addresses are finalized descriptors of one shape; the lock keeps the handle.
        let status = unsafe {
            (self.functions.cudnnBackendExecute)(self.handle.raw(), prepared.plan.raw(), node.raw())
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
        code: None,
        status: format!("parts come from both {} and {}", first.display(), second.display()),
    })
}
