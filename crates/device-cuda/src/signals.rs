//! A lane's signals: counts that never go back, kept in a fixed pool of events.
//!
//! Count `c` (from 1) is recorded in slot `(c - 1) % N`. A slot is recorded again, for count `c + N`, only after
//! its old record is known to be complete:
//! - the lane's thread sleeps on the slot's event before it records it anew, and only then raises `completed`;
//! - who wants to order a stream behind count `c` looks at `completed` and uses the slot under one lock with the
//!   raising and the new record; so either `c` is complete and needs no event, or the slot still holds `c`.
//!
//! Sleeping on a slot happens without the lock. If the slot is recorded anew in between, `c` was complete, and the
//! sleeper wakes late, at `c + N`; never early, and never not at all: an event is waited for only once it is
//! recorded, and all that a recorded event waits for on the device is recorded as well, so the device passes it
//! without any further help of the host. For the same reason two streams cannot wait for each other in a circle.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::CudaError;

/// A sleeper looks again after this long, since a stop from outside wakes nobody.
pub(crate) const NAP: Duration = Duration::from_millis(5);

/// Locks without caring for a panic elsewhere: what the locks of this crate hold is whole at any time.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sleeps on `awake` until `is_ready` holds, looking again now and then.
pub(crate) fn sleep_until<'m, T>(
    mutex: &'m Mutex<T>,
    awake: &Condvar,
    mut is_ready: impl FnMut(&mut T) -> bool,
) -> MutexGuard<'m, T> {
    let mut guard = lock(mutex);
    while !is_ready(&mut guard) {
        guard = match awake.wait_timeout(guard, NAP) {
            Ok((guard, _)) => guard,
            Err(poisoned) => poisoned.into_inner().0,
        };
    }
    guard
}

#[derive(Debug, Default)]
struct Counts {
    /// Put on the stream.
    recorded: u64,
    /// Known to have been passed by the device.
    completed: u64,
}

/// A pool of points: `P` is an event, or a stand-in for tests.
#[derive(Debug)]
pub(crate) struct Signals<P> {
    points: Vec<P>,
    counts: Mutex<Counts>,
    came: Condvar,
}

impl<P> Signals<P> {
    /// A pool of some points, at least one.
    pub(crate) fn new(points: Vec<P>) -> Self {
        assert!(!points.is_empty(), "a pool without events");
        Self { points, counts: Mutex::default(), came: Condvar::new() }
    }

    /// Begins at 0 again; nothing is in flight and nobody waits.
    pub(crate) fn reset(&mut self) {
        *self.counts.get_mut().unwrap_or_else(PoisonError::into_inner) = Counts::default();
    }

    fn point(&self, count: u64) -> &P {
        let index = (count - 1) % self.points.len() as u64;
        #[expect(clippy::cast_possible_truncation, reason = "less than a length")]
        &self.points[index as usize]
    }

    /// Adds one; called by the lane's own thread only.
    pub(crate) fn signal(
        &self,
        record: impl FnOnce(&P) -> Result<(), CudaError>,
        sleep: impl FnOnce(&P) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let (next, completed) = {
            let counts = lock(&self.counts);
            (counts.recorded + 1, counts.completed)
        };
        let point = self.point(next);
        let old = next.saturating_sub(self.points.len() as u64);
        if old > completed {
            sleep(point)?;
        }
        let mut counts = lock(&self.counts);
        counts.completed = counts.completed.max(old);
        record(point)?;
        counts.recorded = next;
        drop(counts);
        self.came.notify_all();
        Ok(())
    }

    /// Sleeps until `count` is recorded, or `is_over`; says whether it is.
    pub(crate) fn await_recorded(&self, count: u64, is_over: impl Fn() -> bool) -> bool {
        let counts =
            sleep_until(&self.counts, &self.came, |counts| counts.recorded >= count || is_over());
        counts.recorded >= count
    }

    /// Orders something behind `count`, which is recorded; nothing is called where it is complete.
    pub(crate) fn order(
        &self,
        count: u64,
        wait: impl FnOnce(&P) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let counts = lock(&self.counts);
        if count <= counts.completed {
            return Ok(());
        }
        assert!(count <= counts.recorded, "a wait for what is not recorded");
        wait(self.point(count))
    }

    /// Sleeps until the device has passed `count`, which is recorded.
    pub(crate) fn await_completed(
        &self,
        count: u64,
        sleep: impl FnOnce(&P) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        {
            let counts = lock(&self.counts);
            if count <= counts.completed {
                return Ok(());
            }
        }
        sleep(self.point(count))?;
        let mut counts = lock(&self.counts);
        counts.completed = counts.completed.max(count);
        Ok(())
    }

    /// Wakes who sleeps in [`Signals::await_recorded`], so that it looks whether all is over.
    pub(crate) fn wake(&self) {
        self.came.notify_all();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// An event of a stand-in device: the count it was recorded for. The device's thread passes counts in order.
    #[derive(Default)]
    struct Fake {
        recorded: AtomicU64,
    }

    struct Device {
        recorded: AtomicU64,
        passed: AtomicU64,
    }

    impl Device {
        fn sleep(&self, point: &Fake) -> Result<(), CudaError> {
            let until = point.recorded.load(Ordering::SeqCst);
            while self.passed.load(Ordering::SeqCst) < until {
                std::thread::yield_now();
            }
            Ok(())
        }
    }

    /// A lane, a waiter on another lane, a sleeping caller and a device, for pools from tiny to ample.
    #[test]
    fn a_slot_is_never_taken_from_who_needs_it() {
        for (pool, total) in [(1, 300u64), (2, 1000), (7, 2000), (64, 2000), (256, 300)] {
            let signals = Signals::new((0..pool).map(|_| Fake::default()).collect::<Vec<_>>());
            let device = Device { recorded: AtomicU64::new(0), passed: AtomicU64::new(0) };
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for count in 1..=total {
                        while device.recorded.load(Ordering::SeqCst) < count {
                            std::thread::yield_now();
                        }
                        if count % 5 == 0 {
                            std::thread::yield_now();
                        }
                        device.passed.store(count, Ordering::SeqCst);
                    }
                });
                scope.spawn(|| {
                    for count in 1..=total {
                        let record = |point: &Fake| {
                            let old = point.recorded.swap(count, Ordering::SeqCst);
                            assert!(
                                old <= device.passed.load(Ordering::SeqCst),
                                "count {old} was in flight when its event was recorded anew"
                            );
                            device.recorded.store(count, Ordering::SeqCst);
                            Ok(())
                        };
                        signals.signal(record, |point| device.sleep(point)).unwrap();
                    }
                });
                for stride in [1, 3] {
                    let (signals, device) = (&signals, &device);
                    scope.spawn(move || {
                        for count in (1..=total).step_by(stride) {
                            assert!(signals.await_recorded(count, || false));
                            let mut was_needed = false;
                            signals
                                .order(count, |point| {
                                    was_needed = true;
                                    assert_eq!(point.recorded.load(Ordering::SeqCst), count);
                                    Ok(())
                                })
                                .unwrap();
                            assert!(was_needed || device.passed.load(Ordering::SeqCst) >= count);
                        }
                    });
                }
                for count in (1..=total).step_by(2) {
                    assert!(signals.await_recorded(count, || false));
                    signals.await_completed(count, |point| device.sleep(point)).unwrap();
                    assert!(device.passed.load(Ordering::SeqCst) >= count, "woken early");
                }
            });
        }
    }

    #[test]
    fn a_wait_ends_when_all_is_over() {
        let mut signals = Signals::new(vec![Fake::default()]);
        assert!(!signals.await_recorded(1, || true));
        signals.signal(|_| Ok(()), |_| unreachable!()).unwrap();
        assert!(signals.await_recorded(1, || true));
        assert!(signals.await_recorded(0, || true));
        signals.order(0, |_| unreachable!()).unwrap();
        signals.reset();
        assert!(!signals.await_recorded(1, || true));
    }
}
