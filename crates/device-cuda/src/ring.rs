//! Commands on their way to a lane: a queue of fixed size whose ends sleep.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex};

use crate::signals::{lock, sleep_until};

/// A bounded queue; takes its memory once.
#[derive(Debug)]
pub(crate) struct Ring<T> {
    items: Mutex<VecDeque<T>>,
    capacity: usize,
    filled: Condvar,
    drained: Condvar,
}

/// What came out of a ring.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Popped<T> {
    /// The next item.
    Item(T),
    /// No more will come.
    Closed,
    /// Everyone is to stop.
    Over,
}

impl<T> Ring<T> {
    /// A ring that holds at most `capacity` items.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            items: Mutex::new(VecDeque::with_capacity(capacity)),
            capacity,
            filled: Condvar::new(),
            drained: Condvar::new(),
        }
    }

    /// Adds an item, sleeping while the ring is full; false if all is over instead.
    pub(crate) fn push(&self, item: T, is_over: impl Fn() -> bool) -> bool {
        let is_full = lock(&self.items).len() >= self.capacity;
        // Once full, half of the ring is awaited: one sleep for many items.
        let room = if is_full { self.capacity / 2 } else { self.capacity - 1 };
        let mut items =
            sleep_until(&self.items, &self.drained, |items| items.len() <= room || is_over());
        if is_over() {
            return false;
        }
        items.push_back(item);
        drop(items);
        self.filled.notify_one();
        true
    }

    /// Takes the next item, sleeping while there is none.
    pub(crate) fn pop(
        &self,
        is_closed: impl Fn() -> bool,
        is_over: impl Fn() -> bool,
    ) -> Popped<T> {
        let mut closed = false;
        let mut items = sleep_until(&self.items, &self.filled, |items| {
            // Read under the lock: who closes has pushed everything before.
            closed = is_closed();
            !items.is_empty() || closed || is_over()
        });
        if is_over() {
            return Popped::Over;
        }
        match items.pop_front() {
            Some(item) => {
                if items.len() <= self.capacity / 2 {
                    self.drained.notify_all();
                }
                Popped::Item(item)
            }
            None if closed => Popped::Closed,
            None => Popped::Over,
        }
    }

    /// Wakes both ends, so that they look whether all is closed or over.
    pub(crate) fn wake(&self) {
        self.filled.notify_all();
        self.drained.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn items_come_out_in_order_and_a_full_ring_holds_back() {
        for capacity in [1, 2, 8, 512] {
            let ring = Ring::new(capacity);
            let is_closed = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for at in 0..5000 {
                        assert!(ring.push(at, || false));
                    }
                    is_closed.store(true, Ordering::SeqCst);
                    ring.wake();
                });
                for at in 0..5000 {
                    let popped = ring.pop(|| is_closed.load(Ordering::SeqCst), || false);
                    assert_eq!(popped, Popped::Item(at));
                    assert!(lock(&ring.items).len() <= capacity);
                }
                let popped = ring.pop(|| is_closed.load(Ordering::SeqCst), || false);
                assert_eq!(popped, Popped::Closed);
            });
        }
    }

    #[test]
    fn a_stop_frees_both_ends() {
        let ring = Ring::new(2);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| while ring.push(0, || is_over.load(Ordering::SeqCst)) {});
            std::thread::sleep(std::time::Duration::from_millis(20));
            is_over.store(true, Ordering::SeqCst);
        });
        assert_eq!(ring.pop(|| false, || is_over.load(Ordering::SeqCst)), Popped::Over);
    }
}
