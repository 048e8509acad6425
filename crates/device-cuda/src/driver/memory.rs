//! Memory of the device, pinned host memory, and host pages lent to the card.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys;

use super::{Address, Context, Result, check};

/// Plain device memory.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    context: Arc<Context>,
    base: Address,
}

impl DeviceMemory {
    /// Takes `bytes`, more than 0.
    pub(crate) fn new(context: &Arc<Context>, bytes: u64) -> Result<Self> {
        let mut base = 0;
        // What does not fit `usize` is refused by the driver as out of memory.
        let size = usize::try_from(bytes).unwrap_or(usize::MAX);
        driver!(cuMemAlloc_v2(&raw mut base, size))?;
        Ok(Self { context: Arc::clone(context), base })
    }

    /// Its address.
    pub(crate) fn base(&self) -> Address {
        self.base
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // Nobody reads a failure here and below: see `Context`.
        let _ = self.context.enter().and_then(|()| driver!(cuMemFree_v2(self.base)));
    }
}

/// Page-locked host memory that the card reads and writes.
#[derive(Debug)]
pub(crate) struct PinnedMemory {
    context: Arc<Context>,
    base: *mut u8,
    bytes: usize,
}

// SAFETY: it is memory; who may touch it when is ruled by its owner.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Takes `bytes`, more than 0.
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        let mut base = ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE;
        driver!(cuMemHostAlloc(&raw mut base, bytes, flags))?;
        Ok(Self { context: Arc::clone(context), base: base.cast(), bytes })
    }

    /// Its first byte.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// Its length.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        let base = self.base.cast::<c_void>();
        let _ = self.context.enter().and_then(|()| driver!(cuMemFreeHost(base)));
    }
}

/// Lends host pages to the card, read-only; whole or partial pages.
///
/// # Safety
/// The range stays mapped until [`unregister`] is called with its first byte.
pub(crate) unsafe fn register(range: &[u8]) -> Result<()> {
    let flags = sys::CU_MEMHOSTREGISTER_READ_ONLY | sys::CU_MEMHOSTREGISTER_PORTABLE;
    let base = range.as_ptr().cast_mut().cast::<c_void>();
    driver!(cuMemHostRegister_v2(base, range.len(), flags))
}

/// Takes pages back that [`register`] lent, by their first byte; nothing is being copied from them.
pub(crate) fn unregister(first: *const u8) -> Result<()> {
    driver!(cuMemHostUnregister(first.cast_mut().cast::<c_void>()))
}
