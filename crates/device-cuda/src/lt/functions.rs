//! The functions of cuBLASLt that are used, and its calls with checked statuses.

use std::ffi::c_void;
use std::ptr;

use cudarc::cublaslt::sys;
use libloading::os::unix::Library;

use crate::CudaError;
use crate::loader::find::functions;

/// Name in errors.
const LIBRARY: &str = "cuBLASLt";

/// What the heuristic or a check says of an algorithm; the layout is `cublasLtMatmulHeuristicResult_t`'s.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Offer {
    pub(crate) algorithm: sys::cublasLtMatmulAlgo_t,
    pub(crate) workspace_bytes: usize,
    pub(crate) status: i32,
    waves: f32,
    reserved: [i32; 4],
}

impl Offer {
    pub(crate) const EMPTY: Self = Self {
        algorithm: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
        workspace_bytes: 0,
        status: 0,
        waves: 0.0,
        reserved: [0; 4],
    };
}

const _: () = assert!(size_of::<Offer>() == size_of::<sys::cublasLtMatmulHeuristicResult_t>());

type Handle = sys::cublasLtHandle_t;
type Desc = sys::cublasLtMatmulDesc_t;
type Layout = sys::cublasLtMatrixLayout_t;
type Preference = sys::cublasLtMatmulPreference_t;
type Algorithm = sys::cublasLtMatmulAlgo_t;
type Type = sys::cudaDataType_t;

functions! {
    /// cuBLASLt, as far as it is used.
    LtFunctions {
        cublasLtCreate: fn(*mut Handle) -> i32;
        cublasLtDestroy: fn(Handle) -> i32;
        cublasLtGetVersion: fn() -> usize;
        cublasLtMatmulDescCreate: fn(*mut Desc, sys::cublasComputeType_t, Type) -> i32;
        cublasLtMatmulDescDestroy: fn(Desc) -> i32;
        cublasLtMatmulDescSetAttribute:
            fn(Desc, sys::cublasLtMatmulDescAttributes_t, *const c_void, usize) -> i32;
        cublasLtMatrixLayoutCreate: fn(*mut Layout, Type, u64, u64, i64) -> i32;
        cublasLtMatrixLayoutDestroy: fn(Layout) -> i32;
        cublasLtMatmulPreferenceCreate: fn(*mut Preference) -> i32;
        cublasLtMatmulPreferenceDestroy: fn(Preference) -> i32;
        cublasLtMatmulPreferenceSetAttribute:
            fn(Preference, sys::cublasLtMatmulPreferenceAttributes_t, *const c_void, usize) -> i32;
        cublasLtMatmulAlgoGetHeuristic:
            fn(Handle, Desc, Layout, Layout, Layout, Layout, Preference, i32, *mut Offer, *mut i32) -> i32;
        cublasLtMatmulAlgoCheck:
            fn(Handle, Desc, Layout, Layout, Layout, Layout, *const Algorithm, *mut Offer) -> i32;
        cublasLtMatmulAlgoConfigGetAttribute: fn(
            *const Algorithm,
            sys::cublasLtMatmulAlgoConfigAttributes_t,
            *mut c_void,
            usize,
            *mut usize,
        ) -> i32;
        cublasLtMatmul: fn(
            Handle,
            Desc,
            *const c_void,
            *const c_void,
            Layout,
            *const c_void,
            Layout,
            *const c_void,
            *const c_void,
            Layout,
            *mut c_void,
            Layout,
            *const Algorithm,
            *mut c_void,
            usize,
            cudarc::driver::sys::CUstream,
        ) -> i32;
    }
}

impl LtFunctions {
    /// Takes a library of major version 12 or 13.
    pub(crate) fn accept(library: &Library) -> Result<(Self, String), String> {
        let functions = Self::resolve(library)?;
        let version = functions.version();
        if matches!(version.0, 12 | 13) {
            Ok((functions, version_text(version)))
        } else {
            Err(format!("version {}, and 12 or 13 is needed", version_text(version)))
        }
    }

    /// Major, minor and patch.
    pub(crate) fn version(&self) -> (usize, usize, usize) {
        // SAFETY: the call takes nothing and reads a constant.
        let number = unsafe { (self.cublasLtGetVersion)() };
        // 130100 is 13.1.0; 120803 is 12.8.3.
        (number / 10_000, number / 100 % 100, number % 100)
    }
}

/// `13.1.0`.
pub(crate) fn version_text((major, minor, patch): (usize, usize, usize)) -> String {
    format!("{major}.{minor}.{patch}")
}

/// Names a status that is not success.
pub(crate) fn check(call: &'static str, status: i32) -> Result<(), CudaError> {
    let name = match status {
        0 => return Ok(()),
        1 => "not initialized",
        3 => "allocation failed",
        7 => "invalid value",
        8 => "architecture mismatch",
        11 => "mapping error",
        13 => "execution failed",
        14 => "internal error",
        15 => "not supported",
        16 => "license error",
        _ => "unknown status",
    };
    Err(CudaError::Library {
        library: LIBRARY,
        call: call.to_owned(),
        code: Some(status),
        status: format!("{name} ({status})"),
    })
}

/// An error of our own about a product.
pub(crate) fn unsupported(what: String) -> CudaError {
    CudaError::Unsupported { what: format!("cuBLASLt: {what}") }
}

/// A value as the attribute calls take it.
pub(crate) fn bytes_of<T>(value: &T) -> (*const c_void, usize) {
    (ptr::from_ref(value).cast(), size_of::<T>())
}
