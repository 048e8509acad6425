//! The driver: a gate that nothing passes without it, and owned handles over its calls.
//!
//! `cudarc` panics where the library or a symbol is missing, so [`load`] looks for the library and for every name
//! in [`SYMBOLS`] first; only then is anything called.
//!
//! Relies on, for soundness:
//! 1. a [`Context`] exists only after [`load`], and every handle holds the context it was made in;
//! 2. a thread that calls anything here has made the context current ([`Context::enter`]); handles enter it
//!    themselves when they are dropped;
//! 3. the driver's handles may be used from any thread, one call at a time or several;
//! 4. host memory and device ranges that are given to a stream stay valid until the stream has passed them: the
//!    callers' duty, stated at each `unsafe fn`.

use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys;

use crate::CudaError;

pub(crate) use cudarc::driver::sys::CUdevice_attribute as Attribute;

/// Address of device memory.
pub(crate) type Address = sys::CUdeviceptr;

type Result<T> = std::result::Result<T, CudaError>;

/// Oldest driver whose functions and images suffice, as the driver gives it.
const VERSION_MIN: u32 = 12_000;

/// Every function of the driver that is called in this crate.
pub(crate) const SYMBOLS: &[&str] = &[
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetPCIBusId",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxSetFlags_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuFuncSetAttribute",
    "cuGetErrorString",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemcpy2DAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD32Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];

/// Calls a function of the driver and names it where it fails.
macro_rules! driver {
    ($call:ident ( $($argument:expr),* $(,)? )) => {{
        // SAFETY: the gate has found the symbol (point 1 of the file's head); handles are owned by the caller and
        // out-pointers are those of live locals. What the call does to memory is the caller's `unsafe fn` to say.
        let status = unsafe { sys::$call($($argument),*) };
        check(stringify!($call), status)
    }};
}

mod memory;
mod module;
mod stream;

pub(crate) use memory::{DeviceMemory, PinnedMemory, register, unregister};
pub(crate) use module::{Function, Module};
pub(crate) use stream::{Event, LaunchShape, Rows, Stream};

/// Names the call and says the driver's words where a status is a failure.
fn check(call: &'static str, status: sys::CUresult) -> Result<()> {
    if status == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text: *const std::ffi::c_char = ptr::null();
    // SAFETY: the symbol is there (1); the text is static and NUL-terminated, or null.
    let found = unsafe { sys::cuGetErrorString(status, &raw mut text) };
    let text = if found == sys::CUresult::CUDA_SUCCESS && !text.is_null() {
        // SAFETY: as above.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    } else {
        "an error that the driver has no words for".to_owned()
    };
    Err(CudaError::Driver { call, code: status as u32, text })
}

/// Finds the driver and starts it.
///
/// # Errors
/// [`CudaError::NoDriver`], [`CudaError::OldDriver`], [`CudaError::DriverUnusable`], [`CudaError::Driver`].
pub(crate) fn load() -> Result<()> {
    // The last defence: what no check foresaw must not end the process.
    catch_unwind(AssertUnwindSafe(start)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(CudaError::DriverUnusable { cause: text.unwrap_or_else(|| "a panic".to_owned()) })
    })
}

/// Whether there is a driver at all, in any state; opens its library and calls nothing of it.
pub(crate) fn require() -> Result<()> {
    // SAFETY: opening the driver's library runs its initialisers only.
    if unsafe { sys::is_culib_present() } { Ok(()) } else { Err(CudaError::NoDriver) }
}

fn start() -> Result<()> {
    require()?;
    // SAFETY: the library is there, which is all that this may panic about.
    let library = unsafe { sys::culib() };
    for symbol in SYMBOLS {
        // SAFETY: the symbol is not called, only looked for; every one is a function.
        let found = unsafe { library.get::<unsafe extern "C" fn()>(symbol.as_bytes()) };
        if let Err(error) = found {
            return Err(CudaError::DriverUnusable { cause: format!("{symbol}: {error}") });
        }
    }
    let mut version = 0;
    driver!(cuDriverGetVersion(&raw mut version))?;
    let version = u32::try_from(version).unwrap_or(0);
    if version < VERSION_MIN {
        return Err(CudaError::OldDriver { version });
    }
    driver!(cuInit(0))
}

/// The CUDA version of the driver, 13000 for 13.0.
pub(crate) fn version() -> Result<u32> {
    let mut version = 0;
    driver!(cuDriverGetVersion(&raw mut version))?;
    Ok(u32::try_from(version).unwrap_or(0))
}

/// A card before it has a context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ordinal {
    device: sys::CUdevice,
}

impl Ordinal {
    /// The card of an index; [`load`] has succeeded.
    pub(crate) fn new(index: u32) -> Result<Self> {
        let mut count = 0;
        driver!(cuDeviceGetCount(&raw mut count))?;
        let count = u32::try_from(count).unwrap_or(0);
        let wanted = i32::try_from(index).ok().filter(|_| index < count);
        let Some(wanted) = wanted else {
            return Err(CudaError::NoSuchDevice { index, count });
        };
        let mut device = 0;
        driver!(cuDeviceGet(&raw mut device, wanted))?;
        Ok(Self { device })
    }

    /// Its name.
    pub(crate) fn name(self) -> Result<String> {
        let mut bytes = [0u8; 256];
        driver!(cuDeviceGetName(bytes.as_mut_ptr().cast(), 256, self.device))?;
        Ok(text_of(&bytes))
    }

    /// Its place on the bus, as NVML takes it.
    pub(crate) fn bus_id(self) -> Result<String> {
        let mut bytes = [0u8; 32];
        driver!(cuDeviceGetPCIBusId(bytes.as_mut_ptr().cast(), 32, self.device))?;
        Ok(text_of(&bytes))
    }

    /// An attribute; negative ones do not exist.
    pub(crate) fn attribute(self, which: Attribute) -> Result<u32> {
        let mut value = 0;
        driver!(cuDeviceGetAttribute(&raw mut value, which, self.device))?;
        Ok(u32::try_from(value).unwrap_or(0))
    }
}

fn text_of(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// A card's primary context, which its libraries use as well.
#[derive(Debug)]
pub(crate) struct Context {
    ordinal: Ordinal,
    raw: sys::CUcontext,
}

// SAFETY: point 3 of the file's head.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Takes the context, with waits that sleep, and makes it current.
    pub(crate) fn new(ordinal: Ordinal) -> Result<Arc<Self>> {
        let flags = sys::CUctx_flags::CU_CTX_SCHED_BLOCKING_SYNC as u32;
        driver!(cuDevicePrimaryCtxSetFlags_v2(ordinal.device, flags))?;
        let mut raw = ptr::null_mut();
        driver!(cuDevicePrimaryCtxRetain(&raw mut raw, ordinal.device))?;
        let context = Arc::new(Self { ordinal, raw });
        context.enter()?;
        Ok(context)
    }

    /// Makes the context current in the calling thread.
    pub(crate) fn enter(&self) -> Result<()> {
        driver!(cuCtxSetCurrent(self.raw))
    }

    /// The card.
    pub(crate) fn ordinal(&self) -> Ordinal {
        self.ordinal
    }

    /// Free and total bytes of the device, all processes counted.
    pub(crate) fn memory_info(&self) -> Result<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        driver!(cuMemGetInfo_v2(&raw mut free, &raw mut total))?;
        Ok((free as u64, total as u64))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // Nobody reads a failure: the process ends, or has met the same error before.
        let _ = driver!(cuDevicePrimaryCtxRelease_v2(self.ordinal.device));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call whose name the gate does not look for would panic on a driver that lacks it.
    #[test]
    fn the_gate_knows_every_call() {
        let source = [
            include_str!("driver.rs"),
            include_str!("driver/memory.rs"),
            include_str!("driver/module.rs"),
            include_str!("driver/stream.rs"),
        ]
        .concat();
        let marker = concat!("driver", "!(cu");
        let called: std::collections::BTreeSet<&str> = source
            .match_indices(marker)
            .map(|(at, _)| {
                let rest = &source[at + marker.len() - 2..];
                &rest[..rest.find('(').unwrap_or(rest.len())]
            })
            .chain(["cuGetErrorString", stream::ELAPSED_TIME])
            .collect();
        assert_eq!(called, SYMBOLS.iter().copied().collect());
    }

    #[test]
    fn without_a_driver_the_gate_is_shut() {
        // SAFETY: as in `start`.
        if unsafe { sys::is_culib_present() } {
            return;
        }
        assert_eq!(load(), Err(CudaError::NoDriver));
    }
}
