//! A stand-in for a checkpoint: a file of random bf16 weights, mapped `MAP_SHARED` and read-only, and registered for DMA in pieces.
//!
//! `MAP_PRIVATE` is never registered: on the machine measured before, that call did not come back.
//! The bytes are sane weights (magnitudes 2^-7 to 2^-5), so that products over them are finite and can be compared.

use std::fs::File;
use std::io::Error as IoError;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr;
use std::time::Instant;

use cudarc::driver::sys;

use crate::error::{Error, Result, driver};

const CHUNK_BYTES: usize = 4 << 20;

/// A read-only shared mapping of a whole file.
pub(crate) struct Mapping {
    base: *mut libc::c_void,
    /// Length of the file.
    pub(crate) bytes: u64,
}

impl Mapping {
    /// Writes `bytes` bytes of random weights to `path` with `threads` threads.
    pub(crate) fn create(path: &Path, bytes: u64, threads: u64) -> Result<()> {
        let file = File::create(path).map_err(|source| failed("creating", path, source))?;
        file.set_len(bytes).map_err(|source| failed("sizing", path, source))?;
        let chunks = bytes / CHUNK_BYTES as u64;
        let written = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|thread| {
                    scope.spawn({
                        let file = &file;
                        move || {
                            (thread..chunks).step_by(threads as usize).try_for_each(|chunk| {
                                file.write_all_at(&weights(chunk), chunk * CHUNK_BYTES as u64)
                            })
                        }
                    })
                })
                .collect();
            workers.into_iter().map(|worker| worker.join()).collect::<Vec<_>>()
        });
        for outcome in written {
            match outcome {
                Ok(result) => result.map_err(|source| failed("writing", path, source))?,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(())
    }

    /// Maps a file and brings it into the page cache.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|source| failed("opening", path, source))?;
        let bytes =
            file.metadata().map_err(|source| failed("reading the size of", path, source))?.len();
        // SAFETY: a new mapping at an address of the kernel's choice; the file is ours and is not truncated during the run.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes as usize,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(failed("mapping", path, IoError::last_os_error()));
        }
        // SAFETY: the range was mapped in the line above.
        if unsafe { libc::madvise(base, bytes as usize, libc::MADV_POPULATE_READ) } != 0 {
            return Err(failed("populating", path, IoError::last_os_error()));
        }
        Ok(Self { base, bytes })
    }

    /// Registers the mapping in pieces of `piece_bytes`; returns the seconds that it took.
    pub(crate) fn register(&self, piece_bytes: u64) -> Result<f64> {
        let begin = Instant::now();
        for offset in (0..self.bytes).step_by(piece_bytes as usize) {
            let length = piece_bytes.min(self.bytes - offset);
            driver!(cuMemHostRegister_v2(
                self.at(offset).cast_mut().cast(),
                length as usize,
                sys::CU_MEMHOSTREGISTER_READ_ONLY
            ))?;
        }
        Ok(begin.elapsed().as_secs_f64())
    }

    /// Registers any range; for questions about alignment and overlap.
    pub(crate) fn register_range(&self, offset: u64, length: u64) -> Result<()> {
        let base = self.at(offset).cast_mut().cast();
        driver!(cuMemHostRegister_v2(base, length as usize, sys::CU_MEMHOSTREGISTER_READ_ONLY))
    }

    /// Undoes `register_range`.
    pub(crate) fn unregister_range(&self, offset: u64) -> Result<()> {
        driver!(cuMemHostUnregister(self.at(offset).cast_mut().cast()))
    }

    /// Undoes `register`; returns the seconds that it took.
    ///
    /// Must come before the mapping ends: where a registered range is only unmapped, a later `cuMemAlloc` can fail with `CUDA_ERROR_ALREADY_MAPPED`.
    pub(crate) fn unregister(&self, piece_bytes: u64) -> Result<f64> {
        let begin = Instant::now();
        for offset in (0..self.bytes).step_by(piece_bytes as usize) {
            driver!(cuMemHostUnregister(self.at(offset).cast_mut().cast()))?;
        }
        Ok(begin.elapsed().as_secs_f64())
    }

    /// Host address of a byte of the file.
    pub(crate) fn at(&self, offset: u64) -> *const u8 {
        assert!(
            offset < self.bytes,
            "offset {offset} lies past the mapping of {} bytes",
            self.bytes
        );
        self.base.cast::<u8>().cast_const().wrapping_add(offset as usize)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `open` and is not used after this.
        unsafe { libc::munmap(self.base, self.bytes as usize) };
    }
}

/// Random bf16 with exponents of 2^-7 and 2^-6; a different sequence for each chunk.
fn weights(chunk: u64) -> Vec<u8> {
    let mut state = chunk.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let words = (0..CHUNK_BYTES / 8).map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state & 0x80ff_80ff_80ff_80ff) | 0x3c00_3c00_3c00_3c00
    });
    words.flat_map(u64::to_le_bytes).collect()
}

fn failed(doing: &str, path: &Path, source: IoError) -> Error {
    Error::Io { what: format!("{doing} {}", path.display()), source }
}
