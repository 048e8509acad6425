//! Host memory of fixed size that the card copies from and to: page-locked, or ordinary where that is refused.

use std::sync::Arc;

use crate::driver::{Context, PinnedMemory};

/// The memory; copies from and to ordinary memory give the same bytes and take longer.
#[derive(Debug)]
pub(crate) struct HostBuffer {
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Pinned(PinnedMemory),
    Ordinary(OwnedBytes),
}

/// A boxed slice by its raw parts, so that lending its address out is no claim on its contents.
#[derive(Debug)]
struct OwnedBytes {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: it owns its bytes; who touches them when is ruled by the buffer's owner.
unsafe impl Send for OwnedBytes {}
// SAFETY: as above.
unsafe impl Sync for OwnedBytes {}

impl OwnedBytes {
    fn new(bytes: usize) -> Self {
        Self { base: Box::into_raw(vec![0u8; bytes].into_boxed_slice()).cast(), bytes }
    }
}

impl Drop for OwnedBytes {
    fn drop(&mut self) {
        let slice = std::ptr::slice_from_raw_parts_mut(self.base, self.bytes);
        // SAFETY: the slice that `new` took apart; the owner has seen to it that no copy is in flight.
        drop(unsafe { Box::from_raw(slice) });
    }
}

impl HostBuffer {
    /// Takes `bytes`, more than 0: page-locked if they are at most `pinned_max` and the system lets it.
    pub(crate) fn new(context: &Arc<Context>, bytes: usize, pinned_max: usize) -> Self {
        let pinned = (bytes <= pinned_max).then(|| PinnedMemory::new(context, bytes));
        let kind = match pinned {
            Some(Ok(pinned)) => Kind::Pinned(pinned),
            _ => Kind::Ordinary(OwnedBytes::new(bytes)),
        };
        Self { kind }
    }

    /// Whether it is page-locked.
    pub(crate) fn is_pinned(&self) -> bool {
        matches!(self.kind, Kind::Pinned(_))
    }

    /// Its first byte.
    pub(crate) fn base(&self) -> *mut u8 {
        match &self.kind {
            Kind::Pinned(pinned) => pinned.base(),
            Kind::Ordinary(owned) => owned.base,
        }
    }

    /// Its length.
    pub(crate) fn bytes(&self) -> usize {
        match &self.kind {
            Kind::Pinned(pinned) => pinned.bytes(),
            Kind::Ordinary(owned) => owned.bytes,
        }
    }

    /// All of it.
    ///
    /// # Safety
    /// No copy from or to it is in flight.
    pub(crate) unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: both kinds own that many bytes; exclusive by `&mut self` and the caller.
        unsafe { std::slice::from_raw_parts_mut(self.base(), self.bytes()) }
    }
}
