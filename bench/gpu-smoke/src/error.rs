//! What can go wrong in the smoke run: a library that is absent, or a call that a library refused.

use std::io;

/// An error of the smoke run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A shared library is neither on the search path nor in a folder given by `--lib-dir`.
    #[error("library {name} was not found in {searched}")]
    LibraryAbsent {
        /// Short name, `cublasLt` for instance.
        name: &'static str,
        /// Where it was looked for.
        searched: String,
    },
    /// A driver call failed.
    #[error("{call} failed: {code}")]
    Driver {
        /// The call.
        call: &'static str,
        /// The driver's name of the error.
        code: String,
    },
    /// A cuBLASLt call failed.
    #[error("{call} failed: {status}")]
    BlasLt {
        /// The call.
        call: &'static str,
        /// The library's status.
        status: String,
    },
    /// A cuDNN call failed.
    #[error("{call} failed: {status}: {message}")]
    Dnn {
        /// The call and what it was about.
        call: String,
        /// The library's status.
        status: String,
        /// What `cudnnGetLastErrorString` says.
        message: String,
    },
    /// The arena is too small for what a part places in it.
    #[error("arena of {capacity_bytes} bytes cannot take {wanted_bytes} more")]
    ArenaFull {
        /// Size of the arena.
        capacity_bytes: u64,
        /// Size of the request that did not fit.
        wanted_bytes: u64,
    },
    /// A file or mapping call failed.
    #[error("{what}")]
    Io {
        /// What was being done.
        what: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The command line is not understood.
    #[error(
        "usage: gpu-smoke start|gemm|step|bytes|attention [--lib-dir DIR]... [--file PATH]: {0}"
    )]
    Usage(String),
}

/// Short form used throughout.
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// Turns the status of a driver call into a `Result` that names the call.
macro_rules! driver {
    ($call:ident ( $($argument:expr),* $(,)? )) => {{
        // SAFETY: every caller passes handles that it owns and pointers that outlive the call.
        let status = unsafe { cudarc::driver::sys::$call($($argument),*) };
        if status == cudarc::driver::sys::CUresult::CUDA_SUCCESS {
            Ok(())
        } else {
            Err($crate::error::Error::Driver { call: stringify!($call), code: format!("{status:?}") })
        }
    }};
}
pub(crate) use driver;
