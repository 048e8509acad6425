//! cuBLASLt with an algorithm that the caller pins: descriptors, the heuristic, an algorithm's configuration and its reconstruction.
//!
//! Row-major `out (M, N) = x (M, K) . w (N, K)^T + bias (N)` is column-major `D (N x M) = W^T . X`, the "TN" layout, which fp8 requires.
//! So cuBLASLt's A is our weight, its B our activation, its m our N and its n our M; a bias runs along its m.
//! Descriptors are not destroyed: a case makes a few dozen and the process is short.

use std::ffi::c_void;
use std::ptr;

use cudarc::cublaslt::sys;
use cudarc::cublaslt::sys::cublasLtMatmulAlgoConfigAttributes_t as Field;
use cudarc::cublaslt::sys::cublasLtMatmulDescAttributes_t as Attribute;
use cudarc::cublaslt::sys::cublasLtMatmulMatrixScale_t as Scale;
use cudarc::cublaslt::sys::cublasLtMatmulPreferenceAttributes_t as Preference;
use cudarc::cublaslt::sys::cudaDataType_t as Type;

use crate::error::{Error, Result};
use crate::gpu::{Address, Stream};

/// `cublasOperation_t`, which cuBLASLt shares with cuBLAS and these bindings leave out.
const AS_IS: i32 = 0;
const TRANSPOSED: i32 = 1;

macro_rules! lt {
    ($call:ident ( $($argument:expr),* $(,)? )) => {{
        // SAFETY: handles and descriptors live as long as the process; pointers outlive the call.
        let status = unsafe { sys::$call($($argument),*) };
        if status == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
            Ok(())
        } else {
            Err(Error::BlasLt { call: stringify!($call), status: format!("{status:?}") })
        }
    }};
}

/// Number format of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// bf16 operands.
    Bf16,
    /// e4m3 operands, a float scale for each row of x and each row of w.
    Fp8Rows {
        /// Accumulate in the tensor core's own precision between promotions.
        fast: bool,
    },
    /// e4m3 operands, one float scale each.
    Fp8Tensor {
        /// As above.
        fast: bool,
    },
}

impl Kind {
    /// Name in the tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::Fp8Rows { fast: false } => "fp8 rows",
            Self::Fp8Rows { fast: true } => "fp8 rows, fast acc.",
            Self::Fp8Tensor { fast: false } => "fp8 tensor",
            Self::Fp8Tensor { fast: true } => "fp8 tensor, fast acc.",
        }
    }

    /// Bytes of one operand element.
    pub(crate) fn element_bytes(self) -> u64 {
        if self == Self::Bf16 { 2 } else { 1 }
    }

    fn operand_type(self) -> Type {
        if self == Self::Bf16 { Type::CUDA_R_16BF } else { Type::CUDA_R_8F_E4M3 }
    }
}

/// What a product computes beside the product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Epilogue {
    /// `+ bias`.
    Bias,
    /// `gelu(. + bias)`, tanh form.
    GeluBias,
    /// Nothing.
    None,
}

/// Addresses of the small operands of a product.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Side {
    /// bf16 bias (N).
    pub(crate) bias: Address,
    /// f32 scale (M) or (1) of the activation.
    pub(crate) x_scale: Address,
    /// f32 scale (N) or (1) of the weight.
    pub(crate) w_scale: Address,
}

/// The fields that identify an algorithm; together with the library's version they are what a plan can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Config {
    id: i32,
    tile: u32,
    stages: u32,
    /// Parts into which K is split; 0 and 1 both mean none.
    pub(crate) split: i32,
    reduction: u32,
    swizzle: u32,
    custom: u32,
    inner: u16,
    cluster: u16,
}

impl std::fmt::Display for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { id, tile, stages, split, reduction, swizzle, custom, inner, cluster } = self;
        write!(f, "{id}/{tile}/{stages}/{split}/{reduction}/{swizzle}/{custom}/{inner}/{cluster}")
    }
}

/// One algorithm that the heuristic offers.
#[derive(Clone, Copy)]
pub(crate) struct Candidate {
    /// The opaque algorithm.
    pub(crate) algorithm: sys::cublasLtMatmulAlgo_t,
    /// Workspace it needs at the shape it was offered for.
    pub(crate) workspace_bytes: u64,
    /// Its configuration, read back.
    pub(crate) config: Config,
}

/// Descriptors of one product at one number of rows.
pub(crate) struct Product {
    kind: Kind,
    description: sys::cublasLtMatmulDesc_t,
    weight: sys::cublasLtMatrixLayout_t,
    activation: sys::cublasLtMatrixLayout_t,
    output: sys::cublasLtMatrixLayout_t,
}

/// Operands and workspace of one call.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    /// Activation (M, K).
    pub(crate) x: Address,
    /// Weight (N, K).
    pub(crate) w: Address,
    /// Output (M, N), bf16.
    pub(crate) out: Address,
    /// Workspace.
    pub(crate) workspace: Address,
    /// Its size.
    pub(crate) workspace_bytes: u64,
}

/// The library.
pub(crate) struct Lt {
    handle: sys::cublasLtHandle_t,
}

impl Lt {
    /// Creates a handle.
    pub(crate) fn new() -> Result<Self> {
        let mut handle = ptr::null_mut();
        lt!(cublasLtCreate(&mut handle))?;
        Ok(Self { handle })
    }

    /// The library's version, 130100 for 13.1.0.
    pub(crate) fn version() -> usize {
        // SAFETY: the call takes nothing and reads a constant.
        unsafe { sys::cublasLtGetVersion() }
    }

    /// Describes a product of `rows` x `depth` by `columns` x `depth`.
    pub(crate) fn product(
        kind: Kind,
        (rows, columns, depth): (u64, u64, u64),
        epilogue: Epilogue,
        side: Side,
    ) -> Result<Product> {
        let mut description = ptr::null_mut();
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        lt!(cublasLtMatmulDescCreate(&mut description, compute, Type::CUDA_R_32F))?;
        set(description, Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &TRANSPOSED)?;
        set(description, Attribute::CUBLASLT_MATMUL_DESC_TRANSB, &AS_IS)?;
        let epilogue = match epilogue {
            Epilogue::Bias => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS,
            Epilogue::GeluBias => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_GELU_BIAS,
            Epilogue::None => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT,
        };
        set(description, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
        if epilogue != sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT {
            set(description, Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &side.bias)?;
            set(description, Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &Type::CUDA_R_16BF)?;
        }
        let scaling = match kind {
            Kind::Bf16 => None,
            Kind::Fp8Rows { fast } => {
                Some((Scale::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F, fast))
            }
            Kind::Fp8Tensor { fast } => {
                Some((Scale::CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, fast))
            }
        };
        if let Some((mode, fast)) = scaling {
            set(description, Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode)?;
            set(description, Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode)?;
            set(description, Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &side.w_scale)?;
            set(description, Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &side.x_scale)?;
            set(description, Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM, &i8::from(fast))?;
        }
        Ok(Product {
            kind,
            description,
            weight: layout(kind.operand_type(), depth, columns)?,
            activation: layout(kind.operand_type(), depth, rows)?,
            output: layout(Type::CUDA_R_16BF, columns, rows)?,
        })
    }

    /// What the heuristic offers within `workspace_max` bytes, best first; `split` allows partial sums over K.
    pub(crate) fn candidates(
        &self,
        product: &Product,
        workspace_max: u64,
        split: bool,
        count: usize,
    ) -> Result<Vec<Candidate>> {
        let mut preference = ptr::null_mut();
        lt!(cublasLtMatmulPreferenceCreate(&mut preference))?;
        let prefer = |attribute, value: *const c_void, bytes| {
            lt!(cublasLtMatmulPreferenceSetAttribute(preference, attribute, value, bytes))
        };
        prefer(
            Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
            ptr::from_ref(&workspace_max).cast(),
            8,
        )?;
        if !split {
            let reductions = 0_u32;
            prefer(
                Preference::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                ptr::from_ref(&reductions).cast(),
                4,
            )?;
        }
        // SAFETY: the result is plain data for which all zeroes are valid.
        let mut results: Vec<sys::cublasLtMatmulHeuristicResult_t> =
            vec![unsafe { std::mem::zeroed() }; count];
        let mut found = 0;
        lt!(cublasLtMatmulAlgoGetHeuristic(
            self.handle,
            product.description,
            product.weight,
            product.activation,
            product.output,
            product.output,
            preference,
            count as i32,
            results.as_mut_ptr(),
            &mut found
        ))?;
        lt!(cublasLtMatmulPreferenceDestroy(preference))?;
        let good = results[..found as usize]
            .iter()
            .filter(|result| result.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
        let candidates = good.map(|result| {
            Ok(Candidate {
                algorithm: result.algo,
                workspace_bytes: result.workspaceSize as u64,
                config: config(&result.algo)?,
            })
        });
        let candidates: Vec<Candidate> = candidates.collect::<Result<_>>()?;
        Ok(candidates
            .into_iter()
            .filter(|candidate| split || candidate.config.split <= 1)
            .collect())
    }

    /// Whether an algorithm can compute `product`, and the workspace that it needs there.
    pub(crate) fn check(
        &self,
        product: &Product,
        algorithm: &sys::cublasLtMatmulAlgo_t,
    ) -> Result<u64> {
        // SAFETY: as in `candidates`.
        let mut result: sys::cublasLtMatmulHeuristicResult_t = unsafe { std::mem::zeroed() };
        lt!(cublasLtMatmulAlgoCheck(
            self.handle,
            product.description,
            product.weight,
            product.activation,
            product.output,
            product.output,
            algorithm,
            &mut result
        ))?;
        Ok(result.workspaceSize as u64)
    }

    /// Makes an algorithm from its configuration alone, as a plan read from a file would.
    pub(crate) fn rebuild(
        &self,
        product: &Product,
        config: &Config,
    ) -> Result<sys::cublasLtMatmulAlgo_t> {
        // SAFETY: as in `candidates`.
        let mut algorithm: sys::cublasLtMatmulAlgo_t = unsafe { std::mem::zeroed() };
        let operand = product.kind.operand_type();
        lt!(cublasLtMatmulAlgoInit(
            self.handle,
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
            Type::CUDA_R_32F,
            operand,
            operand,
            Type::CUDA_R_16BF,
            Type::CUDA_R_16BF,
            config.id,
            &mut algorithm
        ))?;
        let mut put = |field, value: *const c_void, bytes| {
            lt!(cublasLtMatmulAlgoConfigSetAttribute(&mut algorithm, field, value, bytes))
        };
        put(Field::CUBLASLT_ALGO_CONFIG_TILE_ID, ptr::from_ref(&config.tile).cast(), 4)?;
        put(Field::CUBLASLT_ALGO_CONFIG_STAGES_ID, ptr::from_ref(&config.stages).cast(), 4)?;
        put(Field::CUBLASLT_ALGO_CONFIG_SPLITK_NUM, ptr::from_ref(&config.split).cast(), 4)?;
        put(
            Field::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
            ptr::from_ref(&config.reduction).cast(),
            4,
        )?;
        put(Field::CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, ptr::from_ref(&config.swizzle).cast(), 4)?;
        put(Field::CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, ptr::from_ref(&config.custom).cast(), 4)?;
        put(Field::CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, ptr::from_ref(&config.inner).cast(), 2)?;
        put(
            Field::CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID,
            ptr::from_ref(&config.cluster).cast(),
            2,
        )?;
        Ok(algorithm)
    }

    /// Enqueues the product.
    pub(crate) fn run(
        &self,
        product: &Product,
        algorithm: &sys::cublasLtMatmulAlgo_t,
        call: Call,
        stream: Stream,
    ) -> Result<()> {
        let (one, zero) = (1.0_f32, 0.0_f32);
        lt!(cublasLtMatmul(
            self.handle,
            product.description,
            ptr::from_ref(&one).cast(),
            call.w as *const c_void,
            product.weight,
            call.x as *const c_void,
            product.activation,
            ptr::from_ref(&zero).cast(),
            call.out as *const c_void,
            product.output,
            call.out as *mut c_void,
            product.output,
            algorithm,
            call.workspace as *mut c_void,
            call.workspace_bytes as usize,
            stream.raw.cast()
        ))
    }
}

fn set<T>(description: sys::cublasLtMatmulDesc_t, attribute: Attribute, value: &T) -> Result<()> {
    lt!(cublasLtMatmulDescSetAttribute(
        description,
        attribute,
        ptr::from_ref(value).cast(),
        size_of::<T>()
    ))
}

fn layout(kind: Type, rows: u64, columns: u64) -> Result<sys::cublasLtMatrixLayout_t> {
    let mut raw = ptr::null_mut();
    lt!(cublasLtMatrixLayoutCreate(&mut raw, kind, rows, columns, rows.cast_signed()))?;
    Ok(raw)
}

fn config(algorithm: &sys::cublasLtMatmulAlgo_t) -> Result<Config> {
    fn get<T: Default>(algorithm: &sys::cublasLtMatmulAlgo_t, field: Field) -> Result<T> {
        let (mut value, mut written) = (T::default(), 0);
        lt!(cublasLtMatmulAlgoConfigGetAttribute(
            algorithm,
            field,
            ptr::from_mut(&mut value).cast(),
            size_of::<T>(),
            &mut written
        ))?;
        Ok(value)
    }
    Ok(Config {
        id: get(algorithm, Field::CUBLASLT_ALGO_CONFIG_ID)?,
        tile: get(algorithm, Field::CUBLASLT_ALGO_CONFIG_TILE_ID)?,
        stages: get(algorithm, Field::CUBLASLT_ALGO_CONFIG_STAGES_ID)?,
        split: get(algorithm, Field::CUBLASLT_ALGO_CONFIG_SPLITK_NUM)?,
        reduction: get(algorithm, Field::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME)?,
        swizzle: get(algorithm, Field::CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING)?,
        custom: get(algorithm, Field::CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION)?,
        inner: get(algorithm, Field::CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID)?,
        cluster: get(algorithm, Field::CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID)?,
    })
}
