//! A thin layer over the driver: context, arena, streams, events, modules, graphs.
//!
//! Everything is at the `sys` level on purpose: it is the level that the CUDA room will use (`cudarc`'s safe layer allocates behind the caller's back).
//! Handles are released when the process ends: a diagnostic of one minute keeps no pool.

use std::ffi::{CString, c_void};
use std::ptr;

use cudarc::driver::sys;

use crate::error::{Error, Result, driver};

/// Address of device memory.
pub(crate) type Address = sys::CUdeviceptr;

/// The primary context of the first device.
pub(crate) struct Gpu {
    device: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: the driver lets any thread make a context current and serialises its own state.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// Starts the driver and makes the first device's primary context current, or says that there is no driver.
    pub(crate) fn start() -> Result<Self> {
        // SAFETY: opening a library by name runs its initialisers only.
        // The gate is needed: without a driver `cudarc` panics at its first call.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::LibraryAbsent {
                name: "cuda",
                searched: "the loader's path".into(),
            });
        }
        driver!(cuInit(0))?;
        let mut device = 0;
        driver!(cuDeviceGet(&mut device, 0))?;
        let mut context = ptr::null_mut();
        driver!(cuDevicePrimaryCtxRetain(&mut context, device))?;
        driver!(cuCtxSetCurrent(context))?;
        Ok(Self { device, context })
    }

    /// Makes the context current in the calling thread too.
    pub(crate) fn enter(&self) -> Result<()> {
        driver!(cuCtxSetCurrent(self.context))
    }

    /// The device's name.
    pub(crate) fn name(&self) -> Result<String> {
        let mut bytes = [0_u8; 128];
        driver!(cuDeviceGetName(bytes.as_mut_ptr().cast(), 128, self.device))?;
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }

    /// One attribute of the device.
    pub(crate) fn attribute(&self, which: sys::CUdevice_attribute) -> Result<i32> {
        let mut value = 0;
        driver!(cuDeviceGetAttribute(&mut value, which, self.device))?;
        Ok(value)
    }

    /// The CUDA version of the driver, 13000 for 13.0.
    pub(crate) fn driver_version(&self) -> Result<i32> {
        let mut version = 0;
        driver!(cuDriverGetVersion(&mut version))?;
        Ok(version)
    }

    /// Bytes in use on the whole device, as the driver counts them.
    pub(crate) fn used_bytes(&self) -> Result<u64> {
        let (mut free, mut total) = (0, 0);
        driver!(cuMemGetInfo_v2(&mut free, &mut total))?;
        Ok((total - free) as u64)
    }

    /// Waits for everything.
    pub(crate) fn synchronize(&self) -> Result<()> {
        driver!(cuCtxSynchronize())
    }
}

/// One plain `cuMemAlloc`, handed out from the front in 256-byte units.
pub(crate) struct Arena {
    base: Address,
    bytes: u64,
    next: u64,
}

impl Arena {
    /// Takes the arena.
    pub(crate) fn new(bytes: u64) -> Result<Self> {
        let mut base = 0;
        driver!(cuMemAlloc_v2(&mut base, bytes as usize))?;
        Ok(Self { base, bytes, next: 0 })
    }

    /// The next `bytes` of the arena.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<Address> {
        let start = self.next.next_multiple_of(256);
        let end = start + bytes;
        if end > self.bytes {
            return Err(Error::ArenaFull { capacity_bytes: self.bytes, wanted_bytes: bytes });
        }
        self.next = end;
        Ok(self.base + start)
    }

    /// Forgets what was handed out after `mark`, so that the next case reuses it.
    pub(crate) fn reset(&mut self, mark: u64) {
        self.next = mark;
    }

    /// What is handed out so far.
    pub(crate) fn mark(&self) -> u64 {
        self.next
    }
}

/// A stream that does not wait for the default stream.
#[derive(Clone, Copy)]
pub(crate) struct Stream {
    /// The driver's handle.
    pub(crate) raw: sys::CUstream,
}

impl Stream {
    /// Creates a stream.
    pub(crate) fn new() -> Result<Self> {
        let mut raw = ptr::null_mut();
        driver!(cuStreamCreate(&mut raw, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32))?;
        Ok(Self { raw })
    }

    /// Waits until the stream is empty.
    pub(crate) fn synchronize(self) -> Result<()> {
        driver!(cuStreamSynchronize(self.raw))
    }

    /// Later work of this stream waits for the last record of `event`.
    pub(crate) fn wait(self, event: Event) -> Result<()> {
        driver!(cuStreamWaitEvent(self.raw, event.raw, 0))
    }

    /// Copies host bytes to the device.
    ///
    /// The host range is a live mapping of at least `bytes` bytes, which the caller keeps until the stream has drained.
    pub(crate) fn copy_in(self, target: Address, source: *const u8, bytes: u64) -> Result<()> {
        driver!(cuMemcpyHtoDAsync_v2(target, source.cast(), bytes as usize, self.raw))
    }

    /// Sets every byte of a device range.
    pub(crate) fn fill(self, target: Address, byte: u8, bytes: u64) -> Result<()> {
        driver!(cuMemsetD8Async(target, byte, bytes as usize, self.raw))
    }

    /// Captures what `enqueue` puts on this stream, and on streams that it joins to this one, as a graph.
    pub(crate) fn capture(self, enqueue: impl FnOnce() -> Result<()>) -> Result<Graph> {
        driver!(cuStreamBeginCapture_v2(
            self.raw,
            sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        ))?;
        let enqueued = enqueue();
        let mut raw = ptr::null_mut();
        let ended = driver!(cuStreamEndCapture(self.raw, &mut raw));
        enqueued?;
        ended?;
        Graph::instantiate(raw)
    }

    /// Milliseconds that `enqueue` takes on the device, between two events.
    pub(crate) fn time_ms(self, enqueue: impl FnOnce() -> Result<()>) -> Result<f64> {
        let (begin, end) = (Event::timed()?, Event::timed()?);
        begin.record(self)?;
        enqueue()?;
        end.record(self)?;
        let elapsed = end.since_ms(begin);
        driver!(cuEventDestroy_v2(begin.raw))?;
        driver!(cuEventDestroy_v2(end.raw))?;
        elapsed
    }
}

/// A point in a stream.
#[derive(Clone, Copy)]
pub(crate) struct Event {
    raw: sys::CUevent,
}

impl Event {
    /// An event that orders and keeps no time.
    pub(crate) fn new() -> Result<Self> {
        Self::with(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32)
    }

    /// An event that keeps time.
    pub(crate) fn timed() -> Result<Self> {
        Self::with(sys::CUevent_flags::CU_EVENT_DEFAULT as u32)
    }

    fn with(flags: u32) -> Result<Self> {
        let mut raw = ptr::null_mut();
        driver!(cuEventCreate(&mut raw, flags))?;
        Ok(Self { raw })
    }

    /// Marks the present end of `stream`.
    pub(crate) fn record(self, stream: Stream) -> Result<()> {
        driver!(cuEventRecord(self.raw, stream.raw))
    }

    /// Whether the device has passed this event.
    pub(crate) fn is_reached(self) -> Result<bool> {
        match driver!(cuEventQuery(self.raw)) {
            Ok(()) => Ok(true),
            Err(Error::Driver { code, .. }) if code == "CUDA_ERROR_NOT_READY" => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Milliseconds from `begin` to this event; waits for this event.
    pub(crate) fn since_ms(self, begin: Event) -> Result<f64> {
        driver!(cuEventSynchronize(self.raw))?;
        let mut elapsed = 0.0_f32;
        driver!(cuEventElapsedTime_v2(&mut elapsed, begin.raw, self.raw))?;
        Ok(f64::from(elapsed))
    }
}

/// An instantiated graph.
pub(crate) struct Graph {
    raw: sys::CUgraphExec,
    /// Nodes of the graph.
    pub(crate) node_count: usize,
    /// Dependencies between its nodes.
    pub(crate) edge_count: usize,
}

impl Graph {
    fn instantiate(graph: sys::CUgraph) -> Result<Self> {
        let (mut node_count, mut edge_count) = (0, 0);
        driver!(cuGraphGetNodes(graph, ptr::null_mut(), &mut node_count))?;
        driver!(cuGraphGetEdges_v2(
            graph,
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::null_mut(),
            &mut edge_count
        ))?;
        let mut raw = ptr::null_mut();
        driver!(cuGraphInstantiateWithFlags(&mut raw, graph, 0))?;
        driver!(cuGraphDestroy(graph))?;
        Ok(Self { raw, node_count, edge_count })
    }

    /// Moves the graph's own data to the device before the first launch.
    pub(crate) fn upload(&self, stream: Stream) -> Result<()> {
        driver!(cuGraphUpload(self.raw, stream.raw))
    }

    /// Replays the graph.
    pub(crate) fn launch(&self, stream: Stream) -> Result<()> {
        driver!(cuGraphLaunch(self.raw, stream.raw))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // A failure here has no reader: the process is about to end or the next case will report the same error.
        let _ = driver!(cuGraphExecDestroy(self.raw));
    }
}

/// Our kernels.
pub(crate) struct Kernels {
    module: sys::CUmodule,
}

/// A kernel argument: every argument of `smoke.cu` is eight bytes, or four stored in the low half.
#[derive(Clone, Copy)]
pub(crate) enum Argument {
    /// A pointer or 64-bit count.
    Word(u64),
    /// A 32-bit float.
    Float(f32),
    /// A 32-bit integer.
    Int(i32),
}

impl Argument {
    fn bits(self) -> u64 {
        match self {
            Self::Word(value) => value,
            Self::Float(value) => u64::from(value.to_bits()),
            Self::Int(value) => u64::from(value.cast_unsigned()),
        }
    }
}

impl Kernels {
    /// Loads the cubin that `kernels/build.py` made.
    pub(crate) fn load() -> Result<Self> {
        static CUBIN: &[u8] = include_bytes!("../kernels/smoke.sm_90.cubin");
        let mut module = ptr::null_mut();
        driver!(cuModuleLoadData(&mut module, CUBIN.as_ptr().cast()))?;
        Ok(Self { module })
    }

    /// Launches a kernel of `smoke.cu`; the arguments are in the order of its declaration.
    pub(crate) fn launch(
        &self,
        name: &'static str,
        (blocks, threads, shared_bytes): (u32, u32, u32),
        arguments: &[Argument],
        stream: Stream,
    ) -> Result<()> {
        let Ok(symbol) = CString::new(name) else { unreachable!("kernel names hold no NUL") };
        let mut function = ptr::null_mut();
        driver!(cuModuleGetFunction(&mut function, self.module, symbol.as_ptr()))?;
        let mut values: Vec<u64> = arguments.iter().map(|argument| argument.bits()).collect();
        let mut pointers: Vec<*mut c_void> =
            values.iter_mut().map(|value| ptr::from_mut(value).cast()).collect();
        driver!(cuLaunchKernel(
            function,
            blocks,
            1,
            1,
            threads,
            1,
            1,
            shared_bytes,
            stream.raw,
            pointers.as_mut_ptr(),
            ptr::null_mut()
        ))
    }
}

/// Reads `count` 64-bit words from the device; waits for the default stream only.
pub(crate) fn read_words(source: Address, count: usize) -> Result<Vec<u64>> {
    let mut words = vec![0_u64; count];
    driver!(cuMemcpyDtoH_v2(words.as_mut_ptr().cast(), source, count * 8))?;
    Ok(words)
}

/// Writes 64-bit words to the device.
pub(crate) fn write_words(target: Address, words: &[u64]) -> Result<()> {
    driver!(cuMemcpyHtoD_v2(target, words.as_ptr().cast(), words.len() * 8))
}

/// The middle value.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Bytes in MiB, for reports.
pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
