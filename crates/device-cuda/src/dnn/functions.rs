//! The functions of cuDNN that are used, and statuses in its own words.

use std::ffi::{CStr, c_char, c_void};

use cudarc::cudnn::sys;
use libloading::os::unix::Library;

use crate::CudaError;
use crate::loader::find::functions;

/// First version with attention as one node (9.13.1).
const OLDEST: usize = 91_301;

type Handle = sys::cudnnHandle_t;
type Descriptor = sys::cudnnBackendDescriptor_t;

functions! {
    /// cuDNN, as far as it is used.
    DnnFunctions {
        cudnnCreate: fn(*mut Handle) -> i32;
        cudnnDestroy: fn(Handle) -> i32;
        cudnnGetVersion: fn() -> usize;
        cudnnGetErrorString: fn(i32) -> *const c_char;
        cudnnGetLastErrorString: fn(*mut c_char, usize);
        cudnnSetStream: fn(Handle, cudarc::driver::sys::CUstream) -> i32;
        cudnnBackendCreateDescriptor: fn(sys::cudnnBackendDescriptorType_t, *mut Descriptor) -> i32;
        cudnnBackendDestroyDescriptor: fn(Descriptor) -> i32;
        cudnnBackendSetAttribute: fn(
            Descriptor,
            sys::cudnnBackendAttributeName_t,
            sys::cudnnBackendAttributeType_t,
            i64,
            *const c_void,
        ) -> i32;
        cudnnBackendGetAttribute: fn(
            Descriptor,
            sys::cudnnBackendAttributeName_t,
            sys::cudnnBackendAttributeType_t,
            i64,
            *mut i64,
            *mut c_void,
        ) -> i32;
        cudnnBackendFinalize: fn(Descriptor) -> i32;
        cudnnBackendExecute: fn(Handle, Descriptor, Descriptor) -> i32;
    }
}

impl DnnFunctions {
    /// Takes a library of version 9 that knows attention as one node.
    pub(crate) fn accept(library: &Library) -> Result<(Self, String), String> {
        let functions = Self::resolve(library)?;
        let (number, text) = (functions.number(), functions.version());
        if (OLDEST..100_000).contains(&number) {
            Ok((functions, text))
        } else {
            Err(format!("version {text}, and 9.13.1 or newer of 9 is needed"))
        }
    }

    fn number(&self) -> usize {
        // SAFETY: the call takes nothing and reads a constant.
        unsafe { (self.cudnnGetVersion)() }
    }

    /// `9.19.0`.
    pub(crate) fn version(&self) -> String {
        let number = self.number();
        format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100)
    }

    /// Turns a status into a `Result`, with the library's own words.
    pub(crate) fn check(
        &self,
        call: impl FnOnce() -> String,
        status: i32,
    ) -> Result<(), CudaError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the call gives a static text for every number, or null.
        let name = unsafe { (self.cudnnGetErrorString)(status) };
        let name = if name.is_null() {
            format!("status {status}")
        } else {
            // SAFETY: not null, and a text of the library that ends in NUL.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        };
        let mut text = [0_u8; 512];
        // SAFETY: the library writes at most the given length, with a final NUL.
        unsafe { (self.cudnnGetLastErrorString)(text.as_mut_ptr().cast(), text.len()) };
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default().to_string_lossy();
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        Err(CudaError::Library {
            library: "cuDNN",
            call: call(),
            code: Some(status),
            status: format!("{name}: {words}"),
        })
    }
}
