//! Descriptors of a product.
//!
//! Row-major `out [m, n] = a [m, k] b [n, k]^T` is column-major `out^T [n, m] = b a^T`: the library's first matrix
//! is our `b` transposed, its second our `a` as it is ("TN", the layout that fp8 requires as well). A bias runs
//! along the library's rows, which are our columns.

use std::ptr;

use cudarc::cublaslt::sys;
use cudarc::cublaslt::sys::cublasLtMatmulAlgoConfigAttributes_t as Field;
use cudarc::cublaslt::sys::cublasLtMatmulDescAttributes_t as Attribute;
use cudarc::cublaslt::sys::cublasLtMatmulMatrixScale_t as Scale;
use cudarc::cublaslt::sys::cublasLtMatmulPreferenceAttributes_t as Preference;
use cudarc::cublaslt::sys::cudaDataType_t as Type;
use plimsoll_cuda_kernels::{Gemm, GemmActivation, Matrix};
use plimsoll_graph::DType;

use super::functions::{LtFunctions, Offer, bytes_of, check, unsupported};
use crate::CudaError;

/// `cublasOperation_t`, which cuBLASLt shares with cuBLAS and the bindings leave out.
const AS_IS: i32 = 0;
const TRANSPOSED: i32 = 1;
/// Every address and row must be a multiple of this: what the widest loads of any kernel ask for.
const ALIGNMENT: u64 = 16;

/// Number format of the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Format {
    /// bf16 operands, sums in `f32`.
    Bf16,
    /// e4m3 operands with an `f32` scale for each row of both, sums in the tensor cores' own accumulator: 4 to 20 %
    /// faster than with sums carried over to `f32` between, and its error is a tenth of what 8 bits cost already
    /// (`bench/runs/2026-11-30-h200`: 3.4e-3 against some 3e-2).
    F8Rows,
}

/// Element type of a result, its addend and its bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum OutType {
    Bf16,
    F32,
}

impl OutType {
    fn data_type(self) -> Type {
        match self {
            Self::Bf16 => Type::CUDA_R_16BF,
            Self::F32 => Type::CUDA_R_32F,
        }
    }
}

/// What decides the bits of a product's rows beside the library's version and the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Class {
    pub(super) format: Format,
    pub(super) out: OutType,
    pub(super) n: u64,
    pub(super) k: u64,
    pub(super) has_bias: bool,
    pub(super) activation: GemmActivation,
    pub(super) has_add: bool,
    /// Scratch that an algorithm may ask for.
    pub(super) workspace_bytes: u64,
}

/// Rows, and elements from one row to the next, of each operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Extent {
    pub(super) rows: u64,
    pub(super) a_stride: u64,
    pub(super) b_stride: u64,
    pub(super) add_stride: u64,
    pub(super) out_stride: u64,
}

impl Extent {
    /// Contiguous operands.
    pub(super) fn contiguous(class: &Class, rows: u64) -> Self {
        Self {
            rows,
            a_stride: class.k,
            b_stride: class.k,
            add_stride: class.n,
            out_stride: class.n,
        }
    }
}

/// Checks a product and takes its class and extent.
pub(super) fn describe(gemm: &Gemm) -> Result<(Class, Extent), CudaError> {
    let Gemm { a, b, scales, bias, activation, add, out, workspace } = gemm;
    let (m, n, k) = (out.rows, out.cols, a.cols);
    let fits = |add: &Matrix| (add.rows, add.cols, add.dtype) == (m, n, out.dtype);
    if a.rows != m || b.rows != n || b.cols != k || add.is_some_and(|add| !fits(&add)) {
        return Err(unsupported(format!("operands that do not fit together: {gemm:?}")));
    }
    if m == 0 || n == 0 || k == 0 {
        return Err(unsupported(format!("an empty product: {gemm:?}")));
    }
    let format = match (a.dtype, b.dtype, scales) {
        (DType::BF16, DType::BF16, None) => Format::Bf16,
        (DType::F8E4M3, DType::F8E4M3, Some(_)) => Format::F8Rows,
        types => return Err(unsupported(format!("operands of types {types:?}"))),
    };
    let out_type = match out.dtype {
        DType::BF16 => OutType::Bf16,
        DType::F32 => OutType::F32,
        other => return Err(unsupported(format!("a result of type {other:?}"))),
    };
    if add.is_some() && *activation != GemmActivation::None {
        return Err(unsupported("an addend after an activation".to_owned()));
    }
    for (name, matrix) in [("a", Some(*a)), ("b", Some(*b)), ("add", *add), ("out", Some(*out))] {
        let Some(matrix) = matrix else { continue };
        let row_bytes = matrix.stride * matrix.dtype.bytes();
        if matrix.offset % ALIGNMENT != 0
            || row_bytes % ALIGNMENT != 0
            || matrix.stride < matrix.cols
        {
            return Err(unsupported(format!(
                "{name} at byte {} with rows of {row_bytes} bytes: both must be multiples of {ALIGNMENT}",
                matrix.offset
            )));
        }
    }
    let scales = scales.iter().flat_map(|scales| [scales.a, scales.b]);
    if bias.iter().copied().chain(scales).any(|offset| offset % ALIGNMENT != 0) {
        return Err(unsupported(format!(
            "a bias or scales that are not at a multiple of {ALIGNMENT} bytes"
        )));
    }
    let class = Class {
        format,
        out: out_type,
        n,
        k,
        has_bias: bias.is_some(),
        activation: *activation,
        has_add: add.is_some(),
        workspace_bytes: workspace.bytes,
    };
    let extent = Extent {
        rows: m,
        a_stride: a.stride,
        b_stride: b.stride,
        add_stride: add.map_or(out.stride, |add| add.stride),
        out_stride: out.stride,
    };
    Ok((class, extent))
}

/// The fields that identify an algorithm; with the library's version they are what a report names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Config {
    pub(super) id: i32,
    pub(super) tile: u32,
    pub(super) stages: u32,
    /// Parts into which K is split; 0 and 1 both mean none.
    pub(super) split: i32,
    pub(super) reduction: u32,
    pub(super) swizzle: u32,
    pub(super) custom: u32,
    pub(super) inner: u16,
    pub(super) cluster: u16,
}

impl Config {
    /// Whether every sum over K is made by one block, in one order.
    pub(super) fn is_whole(&self) -> bool {
        self.split <= 1 && self.reduction == 0
    }
}

impl std::fmt::Display for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { id, tile, stages, split, reduction, swizzle, custom, inner, cluster } = self;
        write!(f, "{id}/{tile}/{stages}/{split}/{reduction}/{swizzle}/{custom}/{inner}/{cluster}")
    }
}

/// An algorithm, and the scratch that it needs at one number of rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Algorithm {
    pub(super) blob: sys::cublasLtMatmulAlgo_t,
    pub(super) config: Config,
    pub(super) workspace_bytes: u64,
}

/// The library's objects for one product; destroyed with it.
#[derive(Debug)]
pub(super) struct Descriptors {
    functions: LtFunctions,
    pub(super) product: sys::cublasLtMatmulDesc_t,
    pub(super) b: sys::cublasLtMatrixLayout_t,
    pub(super) a: sys::cublasLtMatrixLayout_t,
    pub(super) add: sys::cublasLtMatrixLayout_t,
    pub(super) out: sys::cublasLtMatrixLayout_t,
}

// SAFETY: the objects are plain host memory of the library, bound to no thread.
unsafe impl Send for Descriptors {}
// SAFETY: with a shared reference they are read only, but for the bias pointer, which `PreparedGemm` guards.
unsafe impl Sync for Descriptors {}

impl Descriptors {
    pub(super) fn new(
        functions: LtFunctions,
        class: &Class,
        extent: &Extent,
    ) -> Result<Self, CudaError> {
        let none = ptr::null_mut();
        let mut made =
            Self { functions, product: ptr::null_mut(), b: none, a: none, add: none, out: none };
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        // SAFETY: the pointer is to a field of a local.
        let status = unsafe {
            (functions.cublasLtMatmulDescCreate)(&mut made.product, compute, Type::CUDA_R_32F)
        };
        check("cublasLtMatmulDescCreate", status)?;
        made.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &TRANSPOSED)?;
        made.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, &AS_IS)?;
        use sys::cublasLtEpilogue_t as Epilogue;
        let epilogue = match (class.activation, class.has_bias) {
            (GemmActivation::None, false) => Epilogue::CUBLASLT_EPILOGUE_DEFAULT,
            (GemmActivation::None, true) => Epilogue::CUBLASLT_EPILOGUE_BIAS,
            (GemmActivation::GeluTanh, false) => Epilogue::CUBLASLT_EPILOGUE_GELU,
            (GemmActivation::GeluTanh, true) => Epilogue::CUBLASLT_EPILOGUE_GELU_BIAS,
        };
        made.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
        let out = class.out.data_type();
        if class.has_bias {
            made.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &out)?;
        }
        let operand = match class.format {
            Format::Bf16 => Type::CUDA_R_16BF,
            Format::F8Rows => {
                let mode = Scale::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
                made.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode)?;
                made.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode)?;
                // The heuristic asks whether there are scales and reads none of them.
                made.set_scales([ALIGNMENT; 2])?;
                made.set(Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM, &1_i8)?;
                Type::CUDA_R_8F_E4M3
            }
        };
        made.b = made.layout(operand, class.k, class.n, extent.b_stride)?;
        made.a = made.layout(operand, class.k, extent.rows, extent.a_stride)?;
        made.add = made.layout(out, class.n, extent.rows, extent.add_stride)?;
        made.out = made.layout(out, class.n, extent.rows, extent.out_stride)?;
        Ok(made)
    }

    pub(super) fn set<T>(&self, attribute: Attribute, value: &T) -> Result<(), CudaError> {
        let (value, bytes) = bytes_of(value);
        // SAFETY: the library copies `bytes` bytes of the value.
        let status = unsafe {
            (self.functions.cublasLtMatmulDescSetAttribute)(self.product, attribute, value, bytes)
        };
        check("cublasLtMatmulDescSetAttribute", status)
    }

    /// Addresses of the scales of `a`'s and `b`'s rows.
    pub(super) fn set_scales(&self, [a, b]: [u64; 2]) -> Result<(), CudaError> {
        // The library's first matrix is our second.
        self.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &b)?;
        self.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &a)
    }

    fn layout(
        &self,
        kind: Type,
        rows: u64,
        cols: u64,
        stride: u64,
    ) -> Result<sys::cublasLtMatrixLayout_t, CudaError> {
        let mut made = ptr::null_mut();
        let stride =
            i64::try_from(stride).map_err(|_| unsupported(format!("rows of {stride} elements")))?;
        // SAFETY: the pointer is to a local.
        let status = unsafe {
            (self.functions.cublasLtMatrixLayoutCreate)(&mut made, kind, rows, cols, stride)
        };
        check("cublasLtMatrixLayoutCreate", status)?;
        Ok(made)
    }

    /// What the heuristic offers within `workspace_bytes` without splitting K, best first.
    pub(super) fn offers(
        &self,
        handle: sys::cublasLtHandle_t,
        workspace_bytes: u64,
    ) -> Result<Vec<Algorithm>, CudaError> {
        const COUNT: usize = 32;
        let functions = &self.functions;
        let mut preference = ptr::null_mut();
        // SAFETY: the pointer is to a local.
        let status = unsafe { (functions.cublasLtMatmulPreferenceCreate)(&mut preference) };
        check("cublasLtMatmulPreferenceCreate", status)?;
        let prefer = |attribute, (value, bytes)| {
            // SAFETY: the library copies `bytes` bytes of the value.
            let status = unsafe {
                (functions.cublasLtMatmulPreferenceSetAttribute)(
                    preference, attribute, value, bytes,
                )
            };
            check("cublasLtMatmulPreferenceSetAttribute", status)
        };
        let mut offers = [Offer::EMPTY; COUNT];
        let mut count = 0;
        let asked = prefer(
            Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
            bytes_of(&workspace_bytes),
        )
        .and_then(|()| {
            prefer(Preference::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, bytes_of(&0_u32))
        })
        .and_then(|()| {
            // SAFETY: there is room for `COUNT` offers; the descriptors are alive.
            let status = unsafe {
                (functions.cublasLtMatmulAlgoGetHeuristic)(
                    handle,
                    self.product,
                    self.b,
                    self.a,
                    self.add,
                    self.out,
                    preference,
                    COUNT as i32,
                    offers.as_mut_ptr(),
                    &mut count,
                )
            };
            check("cublasLtMatmulAlgoGetHeuristic", status)
        });
        // SAFETY: made above and not used again; a failure has no reader.
        unsafe { (functions.cublasLtMatmulPreferenceDestroy)(preference) };
        asked?;
        let given = usize::try_from(count).unwrap_or(0);
        let served = offers.iter().take(given).filter(|offer| offer.status == 0);
        let made = served.map(|offer| {
            Ok(Algorithm {
                blob: offer.algorithm,
                config: self.config(&offer.algorithm)?,
                workspace_bytes: offer.workspace_bytes as u64,
            })
        });
        let made: Vec<Algorithm> = made.collect::<Result<_, CudaError>>()?;
        Ok(made.into_iter().filter(|algorithm| algorithm.config.is_whole()).collect())
    }

    /// Scratch that an algorithm needs for this product.
    ///
    /// # Errors
    /// The library's refusal.
    pub(super) fn check(
        &self,
        handle: sys::cublasLtHandle_t,
        blob: &sys::cublasLtMatmulAlgo_t,
    ) -> Result<u64, CudaError> {
        let mut offer = Offer::EMPTY;
        // SAFETY: the descriptors are alive; the pointers are to a local and an argument.
        let status = unsafe {
            (self.functions.cublasLtMatmulAlgoCheck)(
                handle,
                self.product,
                self.b,
                self.a,
                self.add,
                self.out,
                blob,
                &mut offer,
            )
        };
        check("cublasLtMatmulAlgoCheck", status)?;
        Ok(offer.workspace_bytes as u64)
    }

    fn field<T: Default>(
        &self,
        blob: &sys::cublasLtMatmulAlgo_t,
        field: Field,
    ) -> Result<T, CudaError> {
        let (mut value, mut written) = (T::default(), 0);
        // SAFETY: the library writes at most `size_of::<T>()` bytes to a local.
        let status = unsafe {
            (self.functions.cublasLtMatmulAlgoConfigGetAttribute)(
                blob,
                field,
                ptr::from_mut(&mut value).cast(),
                size_of::<T>(),
                &mut written,
            )
        };
        check("cublasLtMatmulAlgoConfigGetAttribute", status)?;
        Ok(value)
    }

    fn config(&self, blob: &sys::cublasLtMatmulAlgo_t) -> Result<Config, CudaError> {
        Ok(Config {
            id: self.field(blob, Field::CUBLASLT_ALGO_CONFIG_ID)?,
            tile: self.field(blob, Field::CUBLASLT_ALGO_CONFIG_TILE_ID)?,
            stages: self.field(blob, Field::CUBLASLT_ALGO_CONFIG_STAGES_ID)?,
            split: self.field(blob, Field::CUBLASLT_ALGO_CONFIG_SPLITK_NUM)?,
            reduction: self.field(blob, Field::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME)?,
            swizzle: self.field(blob, Field::CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING)?,
            custom: self.field(blob, Field::CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION)?,
            inner: self.field(blob, Field::CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID)?,
            cluster: self.field(blob, Field::CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID)?,
        })
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        for layout in [self.b, self.a, self.add, self.out] {
            if !layout.is_null() {
                // SAFETY: ours, and not used again; a failure has no reader.
                unsafe { (self.functions.cublasLtMatrixLayoutDestroy)(layout) };
            }
        }
        if !self.product.is_null() {
            // SAFETY: as above.
            unsafe { (self.functions.cublasLtMatmulDescDestroy)(self.product) };
        }
    }
}
