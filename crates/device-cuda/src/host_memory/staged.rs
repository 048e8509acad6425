//! Copies through windows: reader threads fill pinned memory ahead of the card, casting where types differ.
//!
//! For what is not lent to the card: data built into the program, files that cannot be registered, every copy that
//! casts, and what RAM cannot hold, which the readers fetch from the disk. A copy is cut into chunks of at most a window; chunks have sequence numbers in
//! the order in which copies are announced, which is that of the copy lane, and number `s` uses window `s % W`.
//!
//! Relies on, for soundness:
//! 1. a reader writes window `s % W` only for a number `s` that it alone has taken, after number `s - W` was
//!    issued and its event, recorded behind its last copy, was passed by the card;
//! 2. the copy lane issues number `s` only after its reader has said that it is filled;
//! 3. windows outlive the run, and a run ends with its streams empty.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};

use plimsoll_device::{HostDType, cpu};
use plimsoll_graph::DType;
use plimsoll_host::{DiskFiles, READERS, Scratch, let_go};

use super::buffer::HostBuffer;
use crate::CudaError;
use crate::driver::{Address, Context, Event, Stream};
use crate::signals::{lock, sleep_until};

/// Bytes of a window. With windows of 16 MiB the same readers move a fifth less (`bench/runs/2026-11-30-h200/raw/stage.txt`, 16
/// cores: 12 readers 48 GB/s, with 4 MiB 60), most likely since these stay in the processor's cache.
pub(crate) const WINDOW_BYTES: usize = 4 << 20;

/// Windows: 80 MiB in all, enough for every reader to fill one while others are copied. Pinning takes 0.6 ms a MiB.
const WINDOWS: usize = 20;

/// Reader threads: one moves some 5 GB/s, so that a link of 55 wants more than ten.
const READERS_MAX: usize = 14;

/// Bytes of one read from the disk.
const DISK_READ_BYTES: usize = 4 << 20;

/// Places in a window are multiples of this.
const WINDOW_ALIGNMENT: usize = 256;

/// The windows of a device, taken once.
#[derive(Debug)]
pub(crate) struct Windows {
    buffers: Vec<HostBuffer>,
    /// Behind the last copy from each.
    passed: Vec<Event>,
}

impl Windows {
    /// Takes the windows.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        let buffer = |_| HostBuffer::new(context, WINDOW_BYTES, WINDOW_BYTES);
        let passed = (0..WINDOWS).map(|_| Event::new(context)).collect::<Result<_, _>>()?;
        Ok(Self { buffers: (0..WINDOWS).map(buffer).collect(), passed })
    }

    /// Whether all are page-locked.
    pub(crate) fn are_pinned(&self) -> bool {
        self.buffers.iter().all(HostBuffer::is_pinned)
    }
}

/// One contiguous range on its way through a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lot<'h> {
    source: &'h [u8],
    /// Element types, where they differ.
    cast: Option<(HostDType, DType)>,
    /// Place in the window.
    window: usize,
    /// Read from the disk rather than through the mapping.
    from_disk: bool,
    /// Its pages may leave the page tables afterwards.
    is_last: bool,
    /// Bytes in the window and the arena.
    bytes: usize,
    /// Place in the arena.
    target: u64,
}

impl Lot<'_> {
    /// Bytes that so many of the source become.
    fn bytes_of(&self, source_bytes: usize) -> usize {
        match self.cast {
            Some((from, to)) => {
                let (wide, narrow) = units(from, to);
                source_bytes / wide * narrow
            }
            None => source_bytes,
        }
    }

    /// Writes a part of the source, of whole elements, to its place.
    fn put(&self, part: &[u8], target: &mut [u8]) {
        match self.cast {
            Some((from, to)) => cpu::cast(part, from, target, to),
            None => target.copy_from_slice(part),
        }
    }
}

/// Cuts copies into chunks.
#[derive(Debug, Default)]
pub(crate) struct Chunks<'h> {
    lots: Vec<Lot<'h>>,
    /// Lots of each chunk.
    chunks: Vec<Range<usize>>,
    /// Bytes taken of the chunk that is being filled.
    filled: usize,
    /// Of the copy that is being cut.
    is_last: bool,
}

impl<'h> Chunks<'h> {
    /// Chunks so far.
    pub(crate) fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Begins a copy: its chunks hold nothing of another's. `is_last`: what it reads will hardly be read again.
    pub(crate) fn begin(&mut self, is_last: bool) {
        self.filled = WINDOW_BYTES;
        self.is_last = is_last;
    }

    /// Adds a range, cast where types are given; then its elements (rows, where it is put in 8 bits) lie whole in it.
    pub(crate) fn add(
        &mut self,
        source: &'h [u8],
        cast: Option<(HostDType, DType)>,
        target: u64,
        from_disk: bool,
    ) {
        let (wide, narrow) = cast.map_or((1, 1), |(source, target)| units(source, target));
        // What the disk gives may end within a row, and rows are put in 8 bits whole.
        let is_by_rows = cast.is_some_and(|(source, _)| source.is_by_rows());
        let from_disk = from_disk && !is_by_rows;
        let (mut source, mut target) = (source, target);
        while !source.is_empty() {
            let start = self.filled.next_multiple_of(WINDOW_ALIGNMENT);
            let room = WINDOW_BYTES.saturating_sub(start) / narrow;
            if room == 0 {
                self.chunks.push(self.lots.len()..self.lots.len());
                self.filled = 0;
                continue;
            }
            let elements = room.min(source.len() / wide);
            let (here, after) = source.split_at(elements * wide);
            let bytes = elements * narrow;
            let is_last = self.is_last;
            let lot = Lot { source: here, cast, window: start, from_disk, is_last, bytes, target };
            self.lots.push(lot);
            if let Some(chunk) = self.chunks.last_mut() {
                chunk.end = self.lots.len();
            }
            self.filled = start + bytes;
            source = after;
            target += bytes as u64;
        }
    }

    /// Whether any of it comes from the disk.
    fn reads_disk(&self) -> bool {
        self.lots.iter().any(|lot| lot.from_disk)
    }

    fn lots(&self, chunk: usize) -> &[Lot<'h>] {
        &self.lots[self.chunks[chunk].clone()]
    }
}

/// Bytes of what is cast as one, in host memory and on the card. At most a window: no row is that long.
fn units(source: HostDType, target: DType) -> (usize, usize) {
    let wide = source.unit_bytes();
    let narrow = wide / source.bytes() * target.bytes();
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    (size(wide), size(narrow))
}

#[derive(Debug, Default)]
struct State {
    /// Chunks of announced copies that no reader has come to.
    announced: VecDeque<Range<usize>>,
    /// Numbers taken by readers.
    taken: u64,
    /// Numbers whose copies are on the stream, the event behind them recorded.
    issued: u64,
    /// The number that each window was last filled for, plus one.
    filled: [u64; WINDOWS],
}

/// A run's traffic through the windows.
#[derive(Debug)]
pub(crate) struct Stager<'r, 'h> {
    chunks: &'r Chunks<'h>,
    windows: &'r Windows,
    /// Where any chunk comes from it.
    disk: Option<&'r DiskFiles>,
    state: Mutex<State>,
    /// Something of `state` has changed.
    changed: Condvar,
}

impl<'r, 'h> Stager<'r, 'h> {
    /// Nothing is announced; at most `copies` will be at once.
    pub(crate) fn new(
        chunks: &'r Chunks<'h>,
        windows: &'r Windows,
        disk: Option<&'r DiskFiles>,
        copies: usize,
    ) -> Self {
        let state = State { announced: VecDeque::with_capacity(copies), ..State::default() };
        let disk = disk.filter(|_| chunks.reads_disk());
        Self { chunks, windows, disk, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Threads that are worth starting: one core is left to the lanes. Those that read from the disk sleep in its
    /// driver most of the time, and it wants several reads in flight.
    pub(crate) fn readers(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let least = if self.disk.is_some() { READERS } else { 1 };
        (cores - 1).clamp(least, READERS_MAX)
    }

    /// Says that a copy of these chunks will come, after those announced before.
    pub(crate) fn announce(&self, chunks: Range<usize>) {
        if !chunks.is_empty() {
            lock(&self.state).announced.push_back(chunks);
            self.changed.notify_all();
        }
    }

    /// Wakes everyone, so that they look whether all is closed or over.
    pub(crate) fn wake(&self) {
        self.changed.notify_all();
    }

    /// A reader's thread from start to end: fills windows until `is_done` (nothing more will be announced that
    /// anyone waits for).
    pub(crate) fn read(&self, is_done: impl Fn() -> bool) -> Result<(), CudaError> {
        let mut disk = match self.disk {
            Some(disk) => Some((disk, Scratch::new(DISK_READ_BYTES)?)),
            None => None,
        };
        while let Some((number, chunk)) = self.take(&is_done) {
            let window = index(number);
            if number >= WINDOWS as u64 {
                self.windows.passed[window].synchronize()?;
            }
            let base = self.windows.buffers[window].base();
            for lot in self.chunks.lots(chunk) {
                let target = base.wrapping_add(lot.window);
                // SAFETY: `Chunks::add` has kept the lot in the window, which is this reader's alone (1).
                let target = unsafe { std::slice::from_raw_parts_mut(target, lot.bytes) };
                match &mut disk {
                    Some((disk, scratch)) if lot.from_disk => {
                        let mut rest = target;
                        disk.read(lot.source, scratch, &mut |part| {
                            let (here, after) =
                                std::mem::take(&mut rest).split_at_mut(lot.bytes_of(part.len()));
                            lot.put(part, here);
                            rest = after;
                            true
                        })?;
                    }
                    _ => {
                        lot.put(lot.source, target);
                        if lot.is_last {
                            let_go(lot.source);
                        }
                    }
                }
            }
            lock(&self.state).filled[window] = number + 1;
            self.changed.notify_all();
        }
        Ok(())
    }

    /// The next number and its chunk, once its window's last copy is issued.
    fn take(&self, is_done: &impl Fn() -> bool) -> Option<(u64, usize)> {
        let mut state = sleep_until(&self.state, &self.changed, |state| {
            let has_window = state.taken < state.issued + WINDOWS as u64;
            (has_window && !state.announced.is_empty()) || is_done()
        });
        if is_done() {
            return None;
        }
        let chunks = state.announced.front_mut()?;
        let chunk = chunks.start;
        chunks.start += 1;
        if chunks.start == chunks.end {
            state.announced.pop_front();
        }
        let number = state.taken;
        state.taken += 1;
        Some((number, chunk))
    }

    /// Puts a copy's chunks on the copy lane's stream, in the order of announcement; called by that lane only.
    /// False if `is_over` came first: the copy is then not whole.
    pub(crate) fn issue(
        &self,
        chunks: Range<usize>,
        arena: Address,
        stream: &Stream,
        is_over: impl Fn() -> bool,
    ) -> Result<bool, CudaError> {
        for chunk in chunks {
            let state = sleep_until(&self.state, &self.changed, |state| {
                state.filled[index(state.issued)] == state.issued + 1 || is_over()
            });
            let number = state.issued;
            drop(state);
            if is_over() {
                return Ok(false);
            }
            let window = index(number);
            let base = self.windows.buffers[window].base();
            for lot in self.chunks.lots(chunk) {
                let source = base.wrapping_add(lot.window);
                // SAFETY: the lot's target was checked against the arena when the program was loaded; the window is
                // filled (2) and left alone until the stream has passed the event below (1).
                unsafe { stream.copy_in(arena + lot.target, source, lot.bytes) }?;
            }
            stream.record(&self.windows.passed[window])?;
            lock(&self.state).issued = number + 1;
            self.changed.notify_all();
        }
        Ok(true)
    }
}

/// Window of a number.
#[expect(clippy::cast_possible_truncation, reason = "less than WINDOWS")]
fn index(number: u64) -> usize {
    (number % WINDOWS as u64) as usize
}

#[cfg(test)]
mod tests {
    use plimsoll_device::{HostRows, WideDType};

    use super::*;

    #[test]
    fn chunks_hold_every_element_once_and_stay_in_their_windows() {
        let source = vec![0u8; 3 * WINDOW_BYTES + 12];
        let mut chunks = Chunks::default();
        let mut copies = Vec::new();
        let cases: [&[(usize, HostDType, DType)]; 4] = [
            &[(300, HostDType::BF16, DType::BF16), (3 * WINDOW_BYTES, HostDType::F32, DType::BF16)],
            &[(WINDOW_BYTES, HostDType::F16, DType::F32), (4, HostDType::F32, DType::F32)],
            &[],
            &[(12, HostDType::F32, DType::F32), (WINDOW_BYTES - 256, HostDType::BF16, DType::BF16)],
        ];
        for lots in cases {
            chunks.begin(true);
            let first = chunks.len();
            let mut target = 0;
            for (bytes, from, to) in lots {
                let cast = (from.bytes() != to.bytes()).then_some((*from, *to));
                chunks.add(&source[..*bytes], cast, target, false);
                target += *bytes as u64 / from.bytes() * to.bytes();
            }
            copies.push((first..chunks.len(), target));
        }
        assert!(copies[2].0.is_empty());
        for (range, bytes) in copies {
            let mut arrived = 0;
            for chunk in range {
                let mut filled = 0;
                for lot in chunks.lots(chunk) {
                    assert!(lot.window >= filled && lot.window % WINDOW_ALIGNMENT == 0);
                    assert_eq!(lot.target, arrived, "lots follow each other");
                    filled = lot.window + lot.bytes;
                    arrived += lot.bytes as u64;
                    let (from, to) = lot.cast.map_or((1, 1), |(f, t)| (f.bytes(), t.bytes()));
                    assert_eq!(lot.bytes as u64, lot.source.len() as u64 / from * to);
                }
                assert!(filled > 0 && filled <= WINDOW_BYTES);
            }
            assert_eq!(arrived, bytes);
        }
        // Rows that are put in 8 bits stay whole, and their scales come of whole rows.
        let rows = HostRows { stored: WideDType::BF16, cols: 15_000 };
        let matrix = &source[..source.len() / 30_000 * 30_000];
        for (from, to, row_bytes) in [
            (HostDType::Codes(rows), DType::F8E4M3, 15_000),
            (HostDType::Scales(rows), DType::F32, 4),
        ] {
            let mut chunks = Chunks::default();
            chunks.begin(true);
            chunks.add(matrix, Some((from, to)), 0, false);
            let lots = || (0..chunks.len()).flat_map(|chunk| chunks.lots(chunk));
            assert!(lots().all(|lot| lot.source.len().is_multiple_of(30_000)));
            assert!(lots().all(|lot| lot.bytes == lot.source.len() / 30_000 * row_bytes));
            assert_eq!(lots().map(|lot| lot.source.len()).sum::<usize>(), matrix.len());
        }
        // The last case: 12 bytes, then all that a window has left, in one.
        assert_eq!(chunks.lots(chunks.len() - 1).len(), 2);
    }
}
