//! Weight files read from the disk past the page cache, for what RAM cannot hold.
//!
//! A streamed weight is read again in every step. Where the files exceed the RAM that is free for them, the page
//! cache keeps none of a cyclic scan: every page is dropped just before it is wanted. So what does not fit is read
//! with `O_DIRECT` into windows of fixed size, and what fits keeps its pages. Where the file system does not take
//! `O_DIRECT`, reads are ordinary ones whose pages are dropped at once.
//!
//! A file's mapping is its name here: a source is a range of a mapping's addresses, none of whose pages is touched.
//!
//! Invariants: reads are aligned to [`ALIGNMENT`] on both sides; a file that has become shorter is an error.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use memmap2::MmapMut;
use plimsoll_weights::{DraftFolder, FileIdentity, sweep};

use crate::error::HostError;
use crate::files::{SharedMapping, compare};

/// Of places and sizes of direct reads: the largest sector of a disk, and a page.
const ALIGNMENT: usize = 4096;

/// Bytes of a read when the rate is measured.
const MEASURED_READ_BYTES: usize = 4 << 20;

/// Bytes that are written to measure a disk, and how long they are read at most.
const WRITTEN_BYTES: usize = 256 << 20;
const WRITTEN_LIMIT: Duration = Duration::from_secs(2);

/// Page-aligned memory that a read goes to.
#[derive(Debug)]
pub struct Scratch {
    memory: MmapMut,
}

impl Scratch {
    /// Memory for reads of `bytes` from any place of a file.
    ///
    /// # Errors
    /// [`HostError::Memory`].
    pub fn new(bytes: usize) -> Result<Self, HostError> {
        let whole = bytes.next_multiple_of(ALIGNMENT) + ALIGNMENT;
        let memory = MmapMut::map_anon(whole)
            .map_err(|source| HostError::Memory { bytes: whole as u64, source })?;
        Ok(Self { memory })
    }

    /// Most bytes of a read: a multiple of 4, so that no element of a tensor is cut.
    fn capacity(&self) -> usize {
        self.memory.len() - ALIGNMENT
    }

    /// Bytes that a read has brought.
    pub(crate) fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.memory[range]
    }
}

/// Mapped files, opened once more for reads from the disk.
#[derive(Debug)]
pub struct DiskFiles {
    /// By the address of their mapping.
    files: Vec<DiskFile>,
}

#[derive(Debug)]
struct DiskFile {
    mapping: SharedMapping,
    file: File,
    is_direct: bool,
}

/// A range of one of the files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Index of the file.
    pub(crate) file: usize,
    /// Byte offset in the file.
    pub(crate) offset: u64,
}

impl DiskFiles {
    /// Opens the files of some mappings.
    ///
    /// # Errors
    /// [`HostError::Io`]; [`HostError::Replaced`] or [`HostError::LengthChanged`] where a path no longer names the
    /// file that is mapped.
    pub fn open(mappings: &[SharedMapping]) -> Result<Self, HostError> {
        let mut files =
            mappings.iter().map(DiskFile::open).collect::<Result<Vec<_>, HostError>>()?;
        files.sort_by_key(|file| file.start());
        Ok(Self { files })
    }

    /// Whether every file is read past the page cache.
    pub fn is_direct(&self) -> bool {
        self.files.iter().all(|file| file.is_direct)
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.mapping.bytes().len() as u64).sum()
    }

    /// Whether `source` is of one of these files.
    pub fn holds(&self, source: &[u8]) -> bool {
        self.find(source).is_some()
    }

    /// Which range of which file `source` is.
    pub(crate) fn find(&self, source: &[u8]) -> Option<Place> {
        let start = source.as_ptr() as usize;
        let at = self.files.partition_point(|file| file.start() <= start).checked_sub(1)?;
        let offset = start - self.files[at].start();
        let end = offset.checked_add(source.len())?;
        let is_inside = end <= self.files[at].mapping.bytes().len();
        is_inside.then_some(Place { file: at, offset: offset as u64 })
    }

    /// Reads `source` from the disk and hands its bytes to `sink` in order, in parts of a multiple of 4 bytes but for
    /// the last. What is in none of the files is handed on as it lies in memory. `sink` says whether to go on.
    ///
    /// # Errors
    /// [`HostError::Io`], and [`HostError::LengthChanged`] for a file that has become shorter.
    pub fn read(
        &self,
        source: &[u8],
        scratch: &mut Scratch,
        sink: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<(), HostError> {
        let Some(mut place) = self.find(source) else {
            sink(source);
            return Ok(());
        };
        let mut left = source.len();
        while left > 0 {
            let bytes = left.min(scratch.capacity());
            let range = self.fill(place, bytes, scratch)?;
            if !sink(scratch.bytes(range)) {
                break;
            }
            place.offset += bytes as u64;
            left -= bytes;
        }
        Ok(())
    }

    /// Reads `bytes` from `place` on; says where in the scratch they are.
    pub(crate) fn fill(
        &self,
        place: Place,
        bytes: usize,
        scratch: &mut Scratch,
    ) -> Result<Range<usize>, HostError> {
        let file = &self.files[place.file];
        let start = place.offset / ALIGNMENT as u64 * ALIGNMENT as u64;
        #[expect(clippy::cast_possible_truncation, reason = "less than ALIGNMENT")]
        let head = (place.offset - start) as usize;
        let end = head + bytes;
        file.read(start, end, &mut scratch.memory[..end.next_multiple_of(ALIGNMENT)])?;
        Ok(head..end)
    }

    /// Bytes a second that `threads` readers get from the disk, by reading for at most `limit`; `None` where the
    /// files hold nothing.
    ///
    /// # Errors
    /// As [`DiskFiles::read`].
    #[expect(clippy::cast_precision_loss, reason = "a rate is an estimate")]
    pub fn measure(&self, threads: usize, limit: Duration) -> Result<Option<f64>, HostError> {
        let read = MEASURED_READ_BYTES;
        let parts: Vec<(usize, u64)> = self
            .files
            .iter()
            .enumerate()
            .flat_map(|(at, file)| {
                let bytes = file.mapping.bytes().len() as u64;
                (0..bytes).step_by(read).map(move |offset| (at, offset))
            })
            .collect();
        let (next, done) = (AtomicUsize::new(0), AtomicU64::new(0));
        let begin = Instant::now();
        let reader = || -> Result<(), HostError> {
            let mut scratch = Scratch::new(read)?;
            while begin.elapsed() < limit {
                let part = parts.get(next.fetch_add(1, Ordering::Relaxed));
                let Some(&(at, offset)) = part else { break };
                let file = &self.files[at];
                let left = file.mapping.bytes().len() as u64 - offset;
                let bytes = usize::try_from(left).unwrap_or(read).min(read);
                file.forget(offset, bytes);
                self.fill(Place { file: at, offset }, bytes, &mut scratch)?;
                done.fetch_add(bytes as u64, Ordering::Relaxed);
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(reader)).collect();
            readers.into_iter().try_for_each(|reader| match reader.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })?;
        let (bytes, seconds) = (done.into_inner(), begin.elapsed().as_secs_f64());
        Ok((bytes > 0 && seconds > 0.0).then(|| bytes as f64 / seconds))
    }
}

/// Bytes a second that a folder's disk gives: a file of random bytes is written there, read past the page cache and
/// removed. `None` where the folder is on no disk, or on one that cannot be read so.
///
/// # Errors
/// [`HostError::Io`] for a file that cannot be written, and as [`DiskFiles::measure`].
pub fn measure_disk(folder: &Path) -> Result<Option<f64>, HostError> {
    let io = |source| HostError::Io { path: folder.to_owned(), action: "write a file in", source };
    // Removed when dropped; what a process that was killed left there is removed by the next.
    sweep(folder);
    let draft = DraftFolder::create(folder).map_err(io)?;
    let path = draft.path().join("measured");
    write_random(&path).map_err(io)?;
    let disk = DiskFiles::open(&[SharedMapping::open(&path)?])?;
    if !disk.is_direct() {
        return Ok(None);
    }
    disk.measure(crate::READERS, WRITTEN_LIMIT)
}

/// Bytes that no disk or file system can pack, written through to the disk.
fn write_random(path: &Path) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut part = vec![0u8; MEASURED_READ_BYTES];
    for _ in 0..WRITTEN_BYTES / MEASURED_READ_BYTES {
        for word in part.as_chunks_mut::<8>().0 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *word = state.to_le_bytes();
        }
        file.write_all(&part)?;
    }
    file.sync_all()
}

impl DiskFile {
    fn open(mapping: &SharedMapping) -> Result<Self, HostError> {
        let path = mapping.path();
        let io = |source| HostError::Io { path: path.to_owned(), action: "open the file", source };
        let direct = open_direct(path).filter(|file| takes_direct_reads(file, mapping));
        let is_direct = direct.is_some();
        let file = match direct {
            Some(file) => file,
            None => File::open(path).map_err(io)?,
        };
        let metadata = file.metadata().map_err(io)?;
        compare(path, &metadata, mapping.bytes().len() as u64, mapping.identity())?;
        Ok(Self { mapping: mapping.clone(), file, is_direct })
    }

    fn start(&self) -> usize {
        self.mapping.bytes().as_ptr() as usize
    }

    /// Reads from `start`, which is aligned, at least `needed` bytes to the front of `target`.
    fn read(&self, start: u64, needed: usize, target: &mut [u8]) -> Result<(), HostError> {
        let mut got = 0;
        while got < needed {
            match read_at(&self.file, &mut target[got..], start + got as u64) {
                Ok(0) => return Err(self.is_short()),
                Ok(bytes) => {
                    got += bytes;
                    // A direct read stops short of a sector only where the file ends.
                    if got < needed && self.is_direct && !got.is_multiple_of(512) {
                        return Err(self.is_short());
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(source) => {
                    let path = self.mapping.path().to_owned();
                    return Err(HostError::Io { path, action: "read the file", source });
                }
            }
        }
        self.forget(start, got);
        Ok(())
    }

    fn is_short(&self) -> HostError {
        HostError::LengthChanged {
            path: self.mapping.path().to_owned(),
            bytes_before: self.mapping.bytes().len() as u64,
            bytes_now: self.file.metadata().map_or(0, |metadata| metadata.len()),
        }
    }

    /// Lets go of the pages that an ordinary read has left behind: a hint that cannot fail.
    fn forget(&self, start: u64, bytes: usize) {
        if !self.is_direct {
            drop_pages(&self.file, start, bytes);
        }
    }
}

/// Whether the file system takes reads of this alignment: some open a file and then refuse them.
fn takes_direct_reads(file: &File, mapping: &SharedMapping) -> bool {
    let is_same =
        file.metadata().is_ok_and(|metadata| FileIdentity::of(&metadata) == mapping.identity());
    let Ok(mut scratch) = Scratch::new(ALIGNMENT) else { return false };
    is_same && read_at(file, &mut scratch.memory[..ALIGNMENT], 0).is_ok()
}

#[cfg(target_os = "linux")]
fn open_direct(path: &Path) -> Option<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = i32::try_from(rustix::fs::OFlags::DIRECT.bits()).ok()?;
    File::options().read(true).custom_flags(flags).open(path).ok()
}

#[cfg(not(target_os = "linux"))]
fn open_direct(_path: &Path) -> Option<File> {
    None
}

#[cfg(target_os = "linux")]
fn drop_pages(file: &File, start: u64, bytes: usize) {
    let length = std::num::NonZeroU64::new(bytes as u64);
    // A hint: the bytes are right whether or not their pages stay.
    let _ = rustix::fs::fadvise(file, start, length, rustix::fs::Advice::DontNeed);
}

#[cfg(not(target_os = "linux"))]
fn drop_pages(_file: &File, _start: u64, _bytes: usize) {}

#[cfg(unix)]
fn read_at(file: &File, target: &mut [u8], offset: u64) -> std::io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, target, offset)
}

#[cfg(windows)]
fn read_at(file: &File, target: &mut [u8], offset: u64) -> std::io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, target, offset)
}
