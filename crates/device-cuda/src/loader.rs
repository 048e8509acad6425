//! Finds the libraries that may be there: none are looked for yet.

use cudarc::driver::sys::{CUdeviceptr, CUstream};

use crate::CudaError;
use crate::dnn::Dnn;
use crate::lt::Lt;

/// Where to look for libraries and which to use.
#[derive(Clone, Debug, Default)]
pub struct LibraryOptions {}

/// Libraries that were found and opened.
#[derive(Debug, Default)]
pub struct Libraries {
    /// cuBLASLt.
    pub lt: Option<Lt>,
    /// cuDNN.
    pub dnn: Option<Dnn>,
}

impl Libraries {
    /// Opens what is there; what is not is absent. The context is current.
    pub fn open(_options: &LibraryOptions) -> Self {
        Self::default()
    }

    /// Uses each library once, so that all device memory that they take is taken; `scratch` are device bytes.
    ///
    /// # Errors
    /// A library's failure.
    pub fn warm_up(
        &self,
        _scratch: CUdeviceptr,
        _scratch_bytes: u64,
        _stream: CUstream,
    ) -> Result<(), CudaError> {
        Ok(())
    }
}
