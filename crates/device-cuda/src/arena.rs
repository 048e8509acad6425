//! The arena: one plain allocation of the card, its pattern, and the step counter behind it.
//!
//! Layout: the arena's bytes, then a guard up to the end of the last granule, then [`TAIL_BYTES`] for the step
//! counter and the scan's result. The guard holds the pattern too, so that a write past the arena's end shows in
//! the high-water mark.

use std::sync::Arc;

use crate::CudaError;
use crate::driver::{Address, Context, DeviceMemory, LaunchShape, PinnedMemory, Rows, Stream};
use crate::kernels::Kernels;

/// The driver gives out device memory in pieces of this size.
pub(crate) const GRANULE_BYTES: u64 = 2 << 20;

/// For the step counter and the scan's result.
const TAIL_BYTES: u64 = 256;

/// Where in the tail the scan's result is.
const RESULT_OFFSET: u64 = 64;

/// The high-water mark is rounded up to this.
const GRAIN: u64 = 256;

/// Enough blocks for every card: each strides over the arena.
const SCAN_SHAPE: LaunchShape =
    LaunchShape { grid: [2048, 1, 1], block: [512, 1, 1], shared_bytes: 0 };

/// The arena of a device.
#[derive(Debug)]
pub(crate) struct Arena {
    memory: DeviceMemory,
    arena_bytes: u64,
    taken_bytes: u64,
    /// Receives the scan's result.
    result: PinnedMemory,
}

/// Bytes that an arena of `arena_bytes` takes of the device; `None` past the end of numbers.
pub(crate) fn taken_bytes(arena_bytes: u64) -> Option<u64> {
    arena_bytes.checked_add(TAIL_BYTES)?.checked_next_multiple_of(GRANULE_BYTES)
}

impl Arena {
    /// Takes the arena and fills it with the pattern.
    pub(crate) fn new(
        context: &Arc<Context>,
        kernels: &Kernels,
        stream: &Stream,
        arena_bytes: u64,
    ) -> Result<Self, CudaError> {
        let taken_bytes = taken_bytes(arena_bytes).ok_or_else(|| CudaError::Unsupported {
            what: format!("an arena of {arena_bytes} bytes"),
        })?;
        let memory = DeviceMemory::new(context, taken_bytes)?;
        let result = PinnedMemory::new(context, 8)?;
        let arena = Self { memory, arena_bytes, taken_bytes, result };
        // SAFETY: the tail's words are the allocation's.
        unsafe { stream.set_words(arena.step_counter(), 0, 1) }?;
        arena.fill(kernels, stream)?;
        Ok(arena)
    }

    /// Address of the arena's first byte.
    pub(crate) fn base(&self) -> Address {
        self.memory.base()
    }

    /// Bytes that programs may use.
    pub(crate) fn bytes(&self) -> u64 {
        self.arena_bytes
    }

    /// Address of the counter (`u32`) that holds the step of the loop.
    pub(crate) fn step_counter(&self) -> Address {
        self.memory.base() + self.taken_bytes - TAIL_BYTES
    }

    /// Pairs of words that hold the pattern: the arena and the guard.
    fn pairs(&self) -> u64 {
        (self.taken_bytes - TAIL_BYTES) / 16
    }

    /// Fills the arena with its pattern: afterwards nothing counts as touched. Returns when it is done.
    pub(crate) fn fill(&self, kernels: &Kernels, stream: &Stream) -> Result<(), CudaError> {
        let fill = kernels.function("runtime_fill", 0)?;
        let (mut base, mut pairs) = (self.base(), self.pairs());
        let arguments = [(&raw mut base).cast(), (&raw mut pairs).cast()];
        // SAFETY: two parameters of 8 bytes; the range is the allocation less its tail.
        unsafe { stream.launch(fill, SCAN_SHAPE, &arguments) }?;
        stream.synchronize()
    }

    /// One past the highest byte that differs from the pattern, rounded up to 256: of the arena or the guard.
    pub(crate) fn high_water_bytes(
        &self,
        kernels: &Kernels,
        stream: &Stream,
    ) -> Result<u64, CudaError> {
        let scan = kernels.function("runtime_scan", 0)?;
        let (mut base, mut pairs) = (self.base(), self.pairs());
        let mut result = self.step_counter() + RESULT_OFFSET;
        let arguments = [(&raw mut base).cast(), (&raw mut pairs).cast(), (&raw mut result).cast()];
        // SAFETY: two words of the tail, aligned to 4.
        unsafe { stream.set_words(result, 0, 2) }?;
        // SAFETY: three parameters of 8 bytes; the range is the allocation less its tail, the result in the tail.
        unsafe { stream.launch(scan, SCAN_SHAPE, &arguments) }?;
        let word = Rows { rows: 1, row_bytes: 8, pitch_bytes: 8 };
        // SAFETY: the result is 8 bytes of the tail; the pinned word is left alone until the stream is empty.
        unsafe { stream.copy_rows_out(self.result.base(), result, word) }?;
        stream.synchronize()?;
        // SAFETY: 8 bytes, aligned to a page, that the stream has written and left.
        let end = unsafe { self.result.base().cast::<u64>().read() };
        Ok(end.next_multiple_of(GRAIN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_takes_whole_granules() {
        assert_eq!(taken_bytes(0), Some(GRANULE_BYTES));
        assert_eq!(taken_bytes(GRANULE_BYTES - 256), Some(GRANULE_BYTES));
        assert_eq!(taken_bytes(GRANULE_BYTES - 255), Some(2 * GRANULE_BYTES));
        assert_eq!(taken_bytes(8 << 30), Some((8 << 30) + GRANULE_BYTES));
        assert_eq!(taken_bytes(u64::MAX - 3), None);
    }
}
