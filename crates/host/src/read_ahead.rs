//! Reader threads that bring a range of a file from the disk a few windows ahead of whoever uses it.
//!
//! One read at a time keeps a disk idle while its bytes are copied on; an SSD wants several in flight. The owner
//! starts threads that call [`ReadAhead::serve`]; one thread at a time then calls [`ReadAhead::read`] and gets the
//! bytes in order. Nothing is allocated after [`ReadAhead::new`].
//!
//! Order: parts have numbers; number `n` uses window `n % WINDOWS`, once number `n - WINDOWS` has been given out.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::disk::{DiskFiles, Place, Scratch};
use crate::error::HostError;

/// Bytes of a window.
const WINDOW_BYTES: usize = 2 << 20;

/// Windows: 16 MiB in all.
const WINDOWS: usize = 8;

/// Threads that are worth starting; they sleep in the disk's driver most of the time.
pub const READERS: usize = 4;

/// How long a sleep goes without a look at whether all is over.
const NAP: Duration = Duration::from_millis(20);

/// Windows between a disk and one user of its bytes.
#[derive(Debug)]
pub struct ReadAhead<'f> {
    files: &'f DiskFiles,
    windows: Vec<Mutex<Window>>,
    state: Mutex<State>,
    /// Something of `state` has changed.
    changed: Condvar,
    is_closed: AtomicBool,
}

#[derive(Debug)]
struct Window {
    scratch: Scratch,
    /// Where its bytes are.
    range: Range<usize>,
    /// The number that it was last filled for, plus one.
    filled: u64,
}

#[derive(Debug, Default)]
struct State {
    /// What is left to be taken of the range that is asked for.
    next: Option<(Place, usize)>,
    /// Numbers taken by readers.
    taken: u64,
    /// Numbers given out.
    given: u64,
    /// The first number of the read that goes on.
    first: u64,
    /// The number that each window was last filled for, plus one, as the window itself has it.
    filled: [u64; WINDOWS],
    failure: Option<HostError>,
}

impl<'f> ReadAhead<'f> {
    /// Takes the windows.
    ///
    /// # Errors
    /// [`HostError::Memory`].
    pub fn new(files: &'f DiskFiles) -> Result<Self, HostError> {
        let window = |_| {
            Ok(Mutex::new(Window { scratch: Scratch::new(WINDOW_BYTES)?, range: 0..0, filled: 0 }))
        };
        Ok(Self {
            files,
            windows: (0..WINDOWS).map(window).collect::<Result<_, HostError>>()?,
            state: Mutex::default(),
            changed: Condvar::new(),
            is_closed: AtomicBool::new(false),
        })
    }

    /// Ends the threads in [`ReadAhead::serve`].
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.changed.notify_all();
    }

    /// A reader's thread from start to end.
    pub fn serve(&self) {
        while let Some((number, place, bytes)) = self.take() {
            self.fill(number, place, bytes);
        }
    }

    /// Fills the window of a number that was taken.
    fn fill(&self, number: u64, place: Place, bytes: usize) {
        let at = index(number);
        let mut window = lock(&self.windows[at]);
        let Window { scratch, range, filled } = &mut *window;
        // A number of a read that was left off, whose window has gone on to a later one meanwhile.
        if *filled > number {
            return;
        }
        let read = self.files.fill(place, bytes, scratch);
        let mut state = lock(&self.state);
        match read {
            Ok(found) => (*range, *filled) = (found, number + 1),
            // What a read that was left off meets is nobody's failure.
            Err(_) if number < state.first => return,
            Err(error) => {
                state.failure.get_or_insert(error);
            }
        }
        state.filled[at] = number + 1;
        drop(state);
        self.changed.notify_all();
    }

    /// The next part that has a window; `None` at the end.
    fn take(&self) -> Option<(u64, Place, usize)> {
        let mut state = lock(&self.state);
        loop {
            if self.is_closed.load(Ordering::SeqCst) {
                return None;
            }
            let has_window = state.taken < state.given + WINDOWS as u64;
            if let Some((place, left)) = state.next.filter(|_| has_window) {
                let bytes = left.min(WINDOW_BYTES);
                let after = Place { offset: place.offset + bytes as u64, ..place };
                state.next = (left > bytes).then_some((after, left - bytes));
                let number = state.taken;
                state.taken += 1;
                return Some((number, place, bytes));
            }
            state = self.nap(state);
        }
    }

    /// Hands the bytes of `source` to `sink` in order, as [`DiskFiles::read`] does; false once `is_over`, and the bytes
    /// are then not whole. Called by one thread at a time.
    ///
    /// # Errors
    /// As [`DiskFiles::read`].
    pub fn read(
        &self,
        source: &[u8],
        is_over: &dyn Fn() -> bool,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, HostError> {
        let Some(place) = self.files.find(source).filter(|_| !source.is_empty()) else {
            sink(source);
            return Ok(true);
        };
        let mut state = lock(&self.state);
        // What a read that was left off has taken is given to nobody.
        state.given = state.taken;
        state.first = state.taken;
        state.failure = None;
        state.next = Some((place, source.len()));
        self.changed.notify_all();
        let parts = source.len().div_ceil(WINDOW_BYTES) as u64;
        let last = state.given + parts;
        while state.given < last {
            if let Some(failure) = state.failure.take() {
                state.next = None;
                return Err(failure);
            }
            if is_over() {
                state.next = None;
                return Ok(false);
            }
            let number = state.given;
            if state.filled[index(number)] <= number {
                state = self.nap(state);
                continue;
            }
            drop(state);
            let window = lock(&self.windows[index(number)]);
            sink(window.scratch.bytes(window.range.clone()));
            drop(window);
            state = lock(&self.state);
            state.given = number + 1;
            self.changed.notify_all();
        }
        Ok(true)
    }

    fn nap<'s>(&self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        let woken = self.changed.wait_timeout(state, NAP);
        woken.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Locks without caring for a panic elsewhere: what the locks hold is whole at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Window of a number.
#[expect(clippy::cast_possible_truncation, reason = "less than WINDOWS")]
fn index(number: u64) -> usize {
    (number % WINDOWS as u64) as usize
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::files::SharedMapping;

    /// A reader that took a part of a read that was left off, and comes to its window when a later one has filled it.
    #[test]
    fn a_late_reader_leaves_a_later_part_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let content: Vec<u8> = (0..=8u8).flat_map(|part| [part; 4096]).collect();
        std::fs::write(&path, &content).unwrap();
        let mapping = SharedMapping::open(&path).unwrap();
        let files = DiskFiles::open(std::slice::from_ref(&mapping)).unwrap();
        let part = |at: usize| files.find(&mapping.bytes()[at * 4096..]).unwrap();
        let ahead = ReadAhead::new(&files).unwrap();
        ahead.fill(WINDOWS as u64, part(WINDOWS), 4096);
        ahead.fill(0, part(0), 4096);
        let window = lock(&ahead.windows[0]);
        assert!(window.scratch.bytes(window.range.clone()).iter().all(|byte| *byte == 8));
        assert_eq!(lock(&ahead.state).filled[0], WINDOWS as u64 + 1);
    }
}
