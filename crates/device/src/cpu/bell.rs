//! Waiting for another thread: a short spin, then sleep.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Looks before a waiter sleeps: a few microseconds, in which a neighbour that is about to finish does.
const SPINS: u32 = 64;

/// A sleeper looks again after this long, since a stop from outside rings no bell.
const NAP: Duration = Duration::from_millis(5);

/// A place to sleep until something has become true.
#[derive(Default)]
pub(crate) struct Bell {
    sleepers: AtomicU32,
    lock: Mutex<()>,
    awake: Condvar,
}

impl Bell {
    /// Returns once `is_ready` holds. Whoever makes it hold calls [`Bell::ring`] afterwards.
    pub(crate) fn wait_until(&self, is_ready: impl FnMut() -> bool) {
        self.wait_long(SPINS, is_ready);
    }

    /// The same, looking `spins` times before it sleeps, and now and then letting others run.
    pub(crate) fn wait_long(&self, spins: u32, mut is_ready: impl FnMut() -> bool) {
        for spin in 1..=spins {
            if is_ready() {
                return;
            }
            if spin.is_multiple_of(256) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !is_ready() {
            guard = match self.awake.wait_timeout(guard, NAP) {
                Ok((guard, _)) => guard,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes the sleepers, if there are any.
    pub(crate) fn ring(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // A sleeper that has counted itself but does not sleep yet holds the lock.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.awake.notify_all();
        }
    }
}
