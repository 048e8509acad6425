//! Attention by cuDNN.

use cudarc::driver::sys::{CUdeviceptr, CUstream};
use plimsoll_cuda_kernels::Sdpa;

use crate::CudaError;

/// cuDNN.
#[derive(Debug)]
pub struct Dnn {}

/// Attention with its execution plan.
#[derive(Debug)]
pub struct PreparedSdpa {}

impl Dnn {
    /// Builds the execution plan.
    ///
    /// # Errors
    /// [`CudaError::Unsupported`], [`CudaError::Library`].
    pub fn prepare(&self, sdpa: &Sdpa) -> Result<PreparedSdpa, CudaError> {
        Err(CudaError::Unsupported { what: format!("attention of cuDNN ({sdpa:?})") })
    }

    /// Puts the attention on a stream.
    ///
    /// # Errors
    /// [`CudaError::Library`].
    pub fn launch(
        &self,
        _prepared: &PreparedSdpa,
        _arena_base: CUdeviceptr,
        _stream: CUstream,
    ) -> Result<(), CudaError> {
        Err(CudaError::Unsupported { what: "attention of cuDNN".to_owned() })
    }
}
