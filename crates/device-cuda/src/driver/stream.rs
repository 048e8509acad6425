//! Streams, and the events that mark points in them.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys;

use super::{Address, Context, Function, Result, check};
use crate::CudaError;

/// A point in a stream.
#[derive(Debug)]
pub(crate) struct Event {
    context: Arc<Context>,
    raw: sys::CUevent,
}

// SAFETY: point 3 of the file's head.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// An event that orders and keeps no time; waiting for it sleeps.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self> {
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        Self::with(context, flags)
    }

    /// An event that keeps time.
    pub(crate) fn timed(context: &Arc<Context>) -> Result<Self> {
        Self::with(context, 0)
    }

    fn with(context: &Arc<Context>, flags: u32) -> Result<Self> {
        let flags = flags | sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32;
        let mut raw = ptr::null_mut();
        driver!(cuEventCreate(&raw mut raw, flags))?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    /// Sleeps until the device has passed it; returns at once where it was never recorded.
    pub(crate) fn synchronize(&self) -> Result<()> {
        driver!(cuEventSynchronize(self.raw))
    }

    /// Seconds from `begin` to this event, both timed and passed.
    pub(crate) fn seconds_since(&self, begin: &Event) -> Result<f64> {
        let mut milliseconds = 0.0f32;
        let elapsed = elapsed_time()?;
        // SAFETY: both events are live and the out-pointer is that of a local.
        let status = unsafe { elapsed(&raw mut milliseconds, begin.raw, self.raw) };
        check(ELAPSED_TIME, status)?;
        Ok(f64::from(milliseconds) * 1e-3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = self.context.enter().and_then(|()| driver!(cuEventDestroy_v2(self.raw)));
    }
}

/// In every driver, unlike its successor, which alone the bindings of CUDA 13 have.
pub(super) const ELAPSED_TIME: &str = "cuEventElapsedTime";

type ElapsedTime = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;

fn elapsed_time() -> Result<ElapsedTime> {
    static FUNCTION: OnceLock<std::result::Result<ElapsedTime, String>> = OnceLock::new();
    let found = FUNCTION.get_or_init(|| {
        // SAFETY: the library is there: an event exists, so `load` has succeeded.
        let library = unsafe { sys::culib() };
        // SAFETY: the function has had this type since CUDA 2.
        let symbol = unsafe { library.get::<ElapsedTime>(ELAPSED_TIME.as_bytes()) };
        symbol.map(|symbol| *symbol).map_err(|error| error.to_string())
    });
    found.clone().map_err(|cause| CudaError::DriverUnusable { cause })
}

/// An order of work on the device.
#[derive(Debug)]
pub(crate) struct Stream {
    context: Arc<Context>,
    raw: sys::CUstream,
}

// SAFETY: point 3 of the file's head.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

/// Rows that lie apart on the device and together on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    /// Number of rows.
    pub(crate) rows: usize,
    /// Bytes of one.
    pub(crate) row_bytes: usize,
    /// Bytes from one row's start to the next on the device.
    pub(crate) pitch_bytes: usize,
}

impl Rows {
    fn is_dense(&self) -> bool {
        self.rows == 1 || self.row_bytes == self.pitch_bytes
    }

    fn plan(&self) -> sys::CUDA_MEMCPY2D {
        sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
            srcHost: ptr::null(),
            srcDevice: 0,
            srcArray: ptr::null_mut(),
            srcPitch: 0,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
            dstHost: ptr::null_mut(),
            dstDevice: 0,
            dstArray: ptr::null_mut(),
            dstPitch: 0,
            WidthInBytes: self.row_bytes,
            Height: self.rows,
        }
    }
}

impl Stream {
    /// A stream that does not wait for the default stream.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self> {
        let mut raw = ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        driver!(cuStreamCreate(&raw mut raw, flags))?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    /// The driver's handle, for libraries.
    pub(crate) fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// Sleeps until the stream is empty.
    pub(crate) fn synchronize(&self) -> Result<()> {
        driver!(cuStreamSynchronize(self.raw))
    }

    /// Marks the stream's present end.
    pub(crate) fn record(&self, event: &Event) -> Result<()> {
        driver!(cuEventRecord(event.raw, self.raw))
    }

    /// Later work waits for the last record of `event`.
    pub(crate) fn wait(&self, event: &Event) -> Result<()> {
        driver!(cuStreamWaitEvent(self.raw, event.raw, 0))
    }

    /// Copies host bytes to the device; returns before it is done where the memory is page-locked.
    ///
    /// # Safety
    /// `target` is device memory of that size; the source stays as it is until the stream has passed the copy.
    pub(crate) unsafe fn copy_in(
        &self,
        target: Address,
        source: *const u8,
        bytes: usize,
    ) -> Result<()> {
        driver!(cuMemcpyHtoDAsync_v2(target, source.cast(), bytes, self.raw))
    }

    /// Copies rows from the host, where they lie together, to the device.
    ///
    /// # Safety
    /// As [`Stream::copy_in`].
    pub(crate) unsafe fn copy_rows_in(
        &self,
        target: Address,
        source: *const u8,
        rows: Rows,
    ) -> Result<()> {
        if rows.is_dense() {
            // SAFETY: the caller's.
            return unsafe { self.copy_in(target, source, rows.rows * rows.row_bytes) };
        }
        let mut plan = rows.plan();
        plan.srcHost = source.cast();
        plan.srcPitch = rows.row_bytes;
        plan.dstMemoryType = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE;
        plan.dstDevice = target;
        plan.dstPitch = rows.pitch_bytes;
        driver!(cuMemcpy2DAsync_v2(&raw const plan, self.raw))
    }

    /// Copies rows from the device to the host, where they come to lie together.
    ///
    /// # Safety
    /// `source` is device memory; `target` has room and is left alone until the stream has passed the copy.
    pub(crate) unsafe fn copy_rows_out(
        &self,
        target: *mut u8,
        source: Address,
        rows: Rows,
    ) -> Result<()> {
        if rows.is_dense() {
            let bytes = rows.rows * rows.row_bytes;
            return driver!(cuMemcpyDtoHAsync_v2(target.cast(), source, bytes, self.raw));
        }
        let mut plan = rows.plan();
        plan.srcMemoryType = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE;
        plan.srcDevice = source;
        plan.srcPitch = rows.pitch_bytes;
        plan.dstHost = target.cast();
        plan.dstPitch = rows.row_bytes;
        driver!(cuMemcpy2DAsync_v2(&raw const plan, self.raw))
    }

    /// Sets 32-bit words of device memory.
    ///
    /// # Safety
    /// `target` is device memory of `words` words, aligned to 4.
    pub(crate) unsafe fn set_words(&self, target: Address, word: u32, words: usize) -> Result<()> {
        driver!(cuMemsetD32Async(target, word, words, self.raw))
    }

    /// Launches a kernel.
    ///
    /// # Safety
    /// `arguments` are pointers to as many values as the kernel has parameters, each of its parameter's size, and
    /// what the kernel reads and writes through them is its own.
    pub(crate) unsafe fn launch(
        &self,
        function: Function,
        shape: LaunchShape,
        arguments: &[*mut c_void],
    ) -> Result<()> {
        let LaunchShape { grid: [gx, gy, gz], block: [bx, by, bz], shared_bytes } = shape;
        // The driver reads the pointers and does not write through them.
        let arguments = arguments.as_ptr().cast_mut();
        driver!(cuLaunchKernel(
            function.raw,
            gx,
            gy,
            gz,
            bx,
            by,
            bz,
            shared_bytes,
            self.raw,
            arguments,
            ptr::null_mut()
        ))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.context.enter().and_then(|()| driver!(cuStreamDestroy_v2(self.raw)));
    }
}

/// Blocks, threads and dynamic shared memory of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaunchShape {
    /// Blocks.
    pub(crate) grid: [u32; 3],
    /// Threads of a block.
    pub(crate) block: [u32; 3],
    /// Bytes of a block.
    pub(crate) shared_bytes: u32,
}
