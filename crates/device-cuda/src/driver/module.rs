//! Loaded code and its kernels.

use std::ffi::CString;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys;

use super::{Context, Result, check};
use crate::CudaError;

/// A kernel; valid as long as its [`Module`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function {
    pub(super) raw: sys::CUfunction,
}

// SAFETY: point 3 of the file's head.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// Lets a block have that much dynamic shared memory.
    pub(crate) fn allow_shared_bytes(self, bytes: u32) -> Result<()> {
        let which = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        driver!(cuFuncSetAttribute(self.raw, which, i32::try_from(bytes).unwrap_or(i32::MAX)))
    }
}

/// Loaded code.
#[derive(Debug)]
pub(crate) struct Module {
    context: Arc<Context>,
    raw: sys::CUmodule,
}

// SAFETY: point 3 of the file's head.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads an image, which states its own size.
    pub(crate) fn new(context: &Arc<Context>, image: &[u8]) -> Result<Self> {
        let mut raw = ptr::null_mut();
        driver!(cuModuleLoadData(&raw mut raw, image.as_ptr().cast()))?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    /// A kernel by name; it is on the device afterwards.
    pub(crate) fn function(&self, name: &str) -> Result<Function> {
        let Ok(name) = CString::new(name) else {
            return Err(CudaError::Unsupported { what: format!("a kernel named {name:?}") });
        };
        let mut raw = ptr::null_mut();
        driver!(cuModuleGetFunction(&raw mut raw, self.raw, name.as_ptr()))?;
        Ok(Function { raw })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let _ = self.context.enter().and_then(|()| driver!(cuModuleUnload(self.raw)));
    }
}
