//! Products by cuBLASLt, with bits that do not depend on the number of rows.
//!
//! # Which algorithm
//! A product's *class* is everything that decides its bits but the rows: columns, depth, types, epilogue, the
//! task's scratch. Its reference algorithm is the first that the heuristic offers for [`REFERENCE_ROWS`] contiguous
//! rows without a split of K. Other rows use the same algorithm, which the library checks for them: an algorithm
//! without a split sums K for each element in one order, whatever the tiles beside it. That costs up to 4.6 times
//! the fastest at few rows (512 rows of 12288 x 3072: 127 us instead of 53).
//!
//! So where a *family* of algorithms was proven bit-equal on a card and version (`PROVEN`, by
//! `bench/runs/2026-11-30-h200` and `tests/card_lt.rs`), rows use the family's algorithm that the heuristic puts
//! first for them, or the one that `plimsoll probe` has found to be the quickest on the card (`tune`). Which bits there
//! are is a function of the shape, the card and the library's version; no clock, no free memory and no trial decides.
//!
//! # Invariants
//! - [`Lt::prepare`] makes every descriptor; [`Lt::launch`] takes no memory.
//! - An algorithm never asks for more scratch than its task has: that is refused when it is prepared.

mod functions;
mod product;
mod tune;

use std::collections::HashMap;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::cublaslt::sys;
use cudarc::cublaslt::sys::cublasLtMatmulDescAttributes_t as Attribute;
use cudarc::driver::sys::{CUdeviceptr, CUstream};
use plimsoll_cuda_kernels::{Arch, Gemm, GemmActivation, Matrix, RowScales};
use plimsoll_graph::DType;
use plimsoll_plan::Region;

use self::functions::{check, unsupported, version_text};
use self::product::{Algorithm, Class, Descriptors, Extent, describe};
use crate::CudaError;

pub(crate) use self::functions::LtFunctions;
pub(crate) use self::tune::tuning_bytes;
pub use self::tune::{TUNED_MOST, TunedProduct};

/// Rows for which a class's reference is chosen: FLUX's at 1024x1024.
pub const REFERENCE_ROWS: u64 = 4608;

/// Version from which on a product of e4m3 operands takes a scale for each row, on Hopper alone. Source: cuBLAS release
/// notes of CUDA 12.9.
const F8_ROWS_SINCE: (usize, usize, usize) = (12, 9, 0);

/// Card, library version and algorithm number of families in which tile, stages, cluster and order of blocks
/// change no bit.
const PROVEN: [(Arch, (usize, usize, usize), i32); 1] = [(Arch::Sm90a, (13, 1, 0), 66)];

/// cuBLASLt.
#[derive(Debug)]
pub struct Lt {
    functions: LtFunctions,
    handle: sys::cublasLtHandle_t,
    arch: Option<Arch>,
    has_f8_rows: bool,
    /// Choices among a family that `probe` has made with this version.
    tuned: Vec<TunedProduct>,
    references: Mutex<HashMap<Class, Algorithm>>,
    choices: Mutex<HashMap<(Class, Extent), Algorithm>>,
}

// SAFETY: the library's handle may be used by any thread, as its documentation says.
unsafe impl Send for Lt {}
// SAFETY: as above.
unsafe impl Sync for Lt {}

/// A product with its algorithm and descriptors.
#[derive(Debug)]
pub struct PreparedGemm {
    descriptors: Descriptors,
    algorithm: Algorithm,
    a: u64,
    b: u64,
    scales: Option<RowScales>,
    bias: Option<u64>,
    add: Option<u64>,
    out: u64,
    workspace: Region,
    /// Arena for which the descriptor's own pointers, bias and scales, stand; held while the descriptor is used.
    pointed: Mutex<Option<CUdeviceptr>>,
}

impl PreparedGemm {
    /// Number, tile, stages, split, reduction, swizzle, custom option, inner shape and cluster of the algorithm.
    pub fn algorithm(&self) -> String {
        self.algorithm.config.to_string()
    }

    /// Scratch that the algorithm uses.
    pub fn workspace_bytes(&self) -> u64 {
        self.algorithm.workspace_bytes
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lt {
    /// Makes a handle in the current context; 8 bits are multiplied by 8 bits where `narrow` allows it and the card
    /// and the version have it.
    ///
    /// # Errors
    /// [`CudaError::Library`]: a driver that is too old for the library, for instance.
    pub(crate) fn open(
        functions: LtFunctions,
        arch: Option<Arch>,
        narrow: bool,
        tuned: &[TunedProduct],
    ) -> Result<Self, CudaError> {
        let mut handle = ptr::null_mut();
        // SAFETY: the pointer is to a local.
        check("cublasLtCreate", unsafe { (functions.cublasLtCreate)(&mut handle) })?;
        let version = version_text(functions.version());
        let is_of_version = |tuned: &&TunedProduct| tuned.version == version;
        Ok(Self {
            functions,
            handle,
            arch,
            tuned: tuned.iter().filter(is_of_version).cloned().collect(),
            has_f8_rows: narrow
                && arch == Some(Arch::Sm90a)
                && functions.version() >= F8_ROWS_SINCE,
            references: Mutex::default(),
            choices: Mutex::default(),
        })
    }

    /// The library's version, `13.1.0`.
    pub fn version(&self) -> String {
        version_text(self.functions.version())
    }

    /// Picks the algorithm and builds the descriptors.
    ///
    /// # Errors
    /// [`CudaError::Unsupported`] for types, alignments or scratch that do not serve, with the figures;
    /// [`CudaError::Library`].
    pub fn prepare(&self, gemm: &Gemm) -> Result<PreparedGemm, CudaError> {
        let (class, extent) = describe(gemm)?;
        let descriptors = Descriptors::new(self.functions, &class, &extent)?;
        let known = lock(&self.choices).get(&(class, extent)).copied();
        let algorithm = match known {
            Some(algorithm) => algorithm,
            None => {
                let chosen = self.choose(&class, extent.rows, &descriptors)?;
                lock(&self.choices).insert((class, extent), chosen);
                chosen
            }
        };
        Ok(PreparedGemm {
            descriptors,
            algorithm,
            a: gemm.a.offset,
            b: gemm.b.offset,
            scales: gemm.scales,
            bias: gemm.bias,
            add: gemm.add.map(|add| add.offset),
            out: gemm.out.offset,
            workspace: gemm.workspace,
            pointed: Mutex::new(None),
        })
    }

    /// Prepares a product with each algorithm of its class that the heuristic offers for its rows, the one that
    /// [`Lt::prepare`] takes first: what a test of `PROVEN` compares.
    ///
    /// # Errors
    /// As [`Lt::prepare`].
    pub fn prepare_each(&self, gemm: &Gemm) -> Result<Vec<PreparedGemm>, CudaError> {
        let first = self.prepare(gemm)?;
        let id = first.algorithm.config.id;
        let offers = first.descriptors.offers(self.handle, gemm.workspace.bytes)?;
        let mut each = vec![first];
        for algorithm in offers.into_iter().filter(|offer| offer.config.id == id) {
            each.push(PreparedGemm { algorithm, ..self.prepare(gemm)? });
        }
        Ok(each)
    }

    /// What a proven family offers for a product, the heuristic's first offer first; empty where none is proven.
    fn family(&self, gemm: &Gemm) -> Result<Vec<PreparedGemm>, CudaError> {
        let (class, extent) = describe(gemm)?;
        let reference = self.reference(&class)?;
        let descriptors = Descriptors::new(self.functions, &class, &extent)?;
        let offers = self.offers_of_family(&class, &reference, &descriptors);
        offers
            .into_iter()
            .map(|algorithm| Ok(PreparedGemm { algorithm, ..self.prepare(gemm)? }))
            .collect()
    }

    fn offers_of_family(
        &self,
        class: &Class,
        reference: &Algorithm,
        descriptors: &Descriptors,
    ) -> Vec<Algorithm> {
        if !self.is_proven(reference.config.id) {
            return Vec::new();
        }
        // A heuristic that refuses some rows is no bar: the reference may run there.
        let mut offers = descriptors.offers(self.handle, class.workspace_bytes).unwrap_or_default();
        offers.retain(|offer| {
            offer.config.id == reference.config.id && offer.workspace_bytes <= class.workspace_bytes
        });
        offers
    }

    /// The class's algorithm for so many rows: of a proven family the one that was found to be the quickest, else the
    /// heuristic's first; else the reference.
    fn choose(
        &self,
        class: &Class,
        rows: u64,
        descriptors: &Descriptors,
    ) -> Result<Algorithm, CudaError> {
        let reference = self.reference(class)?;
        let family = self.offers_of_family(class, &reference, descriptors);
        let tuned = self.tuned.iter().find(|tuned| tuned.is_of(class, rows));
        let quickest =
            tuned.and_then(|tuned| family.iter().find(|a| a.config.to_string() == tuned.algorithm));
        if let Some(chosen) = quickest.or(family.first()) {
            return Ok(*chosen);
        }
        let workspace_bytes = descriptors.check(self.handle, &reference.blob)?;
        if workspace_bytes > class.workspace_bytes {
            return Err(unsupported(format!(
                "a product of {} x {} needs {workspace_bytes} bytes of scratch and its task has {}",
                class.n, class.k, class.workspace_bytes
            )));
        }
        Ok(Algorithm { workspace_bytes, ..reference })
    }

    fn is_proven(&self, id: i32) -> bool {
        let version = self.functions.version();
        self.arch.is_some_and(|arch| PROVEN.contains(&(arch, version, id)))
    }

    fn reference(&self, class: &Class) -> Result<Algorithm, CudaError> {
        if let Some(known) = lock(&self.references).get(class) {
            return Ok(*known);
        }
        let extent = Extent::contiguous(class, REFERENCE_ROWS);
        let descriptors = Descriptors::new(self.functions, class, &extent)?;
        let offers = descriptors.offers(self.handle, class.workspace_bytes)?;
        let first = offers.into_iter().next().ok_or_else(|| {
            unsupported(format!(
                "no algorithm without a split for {} x {} within {} bytes of scratch",
                class.n, class.k, class.workspace_bytes
            ))
        })?;
        lock(&self.references).insert(*class, first);
        Ok(first)
    }

    /// Puts the product on a stream.
    ///
    /// # Errors
    /// [`CudaError::Library`].
    ///
    /// # Safety
    /// - `stream` is a live stream of the context in which the library was opened.
    /// - Every operand and the task's scratch lie in the arena at `arena_base`, which outlives the stream's work.
    pub unsafe fn launch(
        &self,
        prepared: &PreparedGemm,
        arena_base: CUdeviceptr,
        stream: CUstream,
    ) -> Result<(), CudaError> {
        const ONE: f32 = 1.0;
        const ZERO: f32 = 0.0;
        let at = |offset: u64| (arena_base + offset) as *mut std::ffi::c_void;
        let descriptors = &prepared.descriptors;
        let mut pointed = lock(&prepared.pointed);
        if *pointed != Some(arena_base) {
            if let Some(bias) = prepared.bias {
                let address = arena_base + bias;
                descriptors.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &address)?;
            }
            if let Some(RowScales { a, b }) = prepared.scales {
                descriptors.set_scales([a, b].map(|offset| arena_base + offset))?;
            }
            *pointed = Some(arena_base);
        }
        let (beta, add, add_layout) = match prepared.add {
            Some(add) => (&ONE, add, descriptors.add),
            None => (&ZERO, prepared.out, descriptors.out),
        };
        // SAFETY: handle and descriptors are alive and the lock keeps their pointers; the addresses are the
        // card's, which the host does not follow.
        let status = unsafe {
            (self.functions.cublasLtMatmul)(
                self.handle,
                descriptors.product,
                ptr::from_ref(&ONE).cast(),
                at(prepared.b),
                descriptors.b,
                at(prepared.a),
                descriptors.a,
                ptr::from_ref(beta).cast(),
                at(add),
                add_layout,
                at(prepared.out),
                descriptors.out,
                &prepared.algorithm.blob,
                at(prepared.workspace.offset),
                usize::try_from(prepared.workspace.bytes).unwrap_or(usize::MAX),
                stream,
            )
        };
        check("cublasLtMatmul", status)
    }

    /// Whether it multiplies 8 bits by 8 bits with a scale for each row.
    pub fn has_f8_rows(&self) -> bool {
        self.has_f8_rows
    }

    /// Runs small products in `scratch`, so that the library has taken what it takes of the device.
    ///
    /// # Safety
    /// `stream` is a live stream of this context, and `scratch` so many bytes that outlive its work.
    pub(crate) unsafe fn warm_up(
        &self,
        scratch: CUdeviceptr,
        scratch_bytes: u64,
        stream: CUstream,
    ) -> Result<(), CudaError> {
        const SIDE: u64 = 256;
        let bytes = SIDE * SIDE * 2;
        if scratch_bytes < 4 * bytes {
            return Err(unsupported(format!(
                "{scratch_bytes} bytes to warm up, and {} are needed",
                4 * bytes
            )));
        }
        let matrix = |index: u64, dtype: DType| Matrix {
            offset: index * bytes,
            rows: SIDE,
            cols: SIDE,
            stride: SIDE,
            dtype,
        };
        let product = |dtype: DType, scales: Option<RowScales>| Gemm {
            a: matrix(0, dtype),
            b: matrix(1, dtype),
            scales,
            bias: None,
            activation: GemmActivation::None,
            add: None,
            out: matrix(2, DType::BF16),
            workspace: Region { offset: 3 * bytes, bytes: bytes / 2 },
        };
        let scales = RowScales { a: 3 * bytes + bytes / 2, b: 3 * bytes + bytes / 2 };
        let narrow = self.has_f8_rows().then(|| product(DType::F8E4M3, Some(scales)));
        for gemm in [Some(product(DType::BF16, None)), narrow].into_iter().flatten() {
            let prepared = self.prepare(&gemm)?;
            // SAFETY: as this function's; all operands lie in the scratch, by the check above.
            unsafe { self.launch(&prepared, scratch, stream) }?;
        }
        Ok(())
    }
}

impl Drop for Lt {
    fn drop(&mut self) {
        // SAFETY: ours, and not used again; a failure has no reader.
        unsafe { (self.functions.cublasLtDestroy)(self.handle) };
    }
}
