//! The system's allocator with a count of what is taken; `#[global_allocator]` stands in the test that uses it.
#![allow(dead_code, unreachable_pub, missing_docs)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

pub struct Counting;

static CALLS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

/// Calls and bytes since the process began.
pub fn taken() -> [u64; 2] {
    [CALLS.load(Ordering::SeqCst), BYTES.load(Ordering::SeqCst)]
}

/// Calls and bytes since then.
pub fn taken_since(before: [u64; 2]) -> [u64; 2] {
    let now = taken();
    [now[0] - before[0], now[1] - before[1]]
}

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::SeqCst);
        BYTES.fetch_add(layout.size() as u64, Ordering::SeqCst);
        // SAFETY: as for this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as for this function.
        unsafe { System.dealloc(pointer, layout) }
    }
}
