//! Products by cuBLASLt.

use cudarc::driver::sys::{CUdeviceptr, CUstream};
use plimsoll_cuda_kernels::Gemm;

use crate::CudaError;

/// cuBLASLt.
#[derive(Debug)]
pub struct Lt {}

/// A product with its algorithm and descriptors.
#[derive(Debug)]
pub struct PreparedGemm {}

impl Lt {
    /// Picks the algorithm and builds the descriptors.
    ///
    /// # Errors
    /// [`CudaError::Unsupported`], [`CudaError::Library`].
    pub fn prepare(&self, gemm: &Gemm) -> Result<PreparedGemm, CudaError> {
        Err(CudaError::Unsupported { what: format!("a product of cuBLASLt ({gemm:?})") })
    }

    /// Puts the product on a stream.
    ///
    /// # Errors
    /// [`CudaError::Library`].
    pub fn launch(
        &self,
        _prepared: &PreparedGemm,
        _arena_base: CUdeviceptr,
        _stream: CUstream,
    ) -> Result<(), CudaError> {
        Err(CudaError::Unsupported { what: "a product of cuBLASLt".to_owned() })
    }
}
