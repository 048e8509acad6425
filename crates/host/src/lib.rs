//! The host tiers: the bytes of checkpoints in host memory without a copy, or from the disk where RAM is short.
//!
//! A safetensors file is mapped shared and read-only, so that its pages are those of the page
//! cache: there is no load phase, no second copy in RAM, and a warm start costs nothing. Bytes
//! built into the program are taken as they are.
//!
//! A mapped file can change under us, which no type can prevent. Three things stand against it:
//! the file's length and identity are compared when it is opened and on each
//! [`HostFiles::recheck`], every read goes through this one reader, which checks bounds, and a read
//! past the end of a shrunken file, which the system answers with SIGBUS, ends the process with one
//! clear line and exit code 5 instead of a core dump ([`EXIT_CODE`]).
//!
//! Main type: [`HostFiles`]; a [`SharedMapping`] keeps one file mapped beyond it. What [`memory`] has no room for
//! is read by [`DiskFiles`] and [`ReadAhead`] past the page cache.
//!
//! Invariants:
//! - no byte is handed out that was not in the file when its header was checked;
//! - nothing is written, and nothing of a file's size is allocated: reads from the disk go through windows.
//!
//! Not here: what the bytes mean (`weights`), pinning and copies to a device (`device`).

#![deny(clippy::multiple_unsafe_ops_per_block)]

mod disk;
mod end;
mod error;
mod files;
#[cfg(unix)]
mod guard;
#[cfg(not(unix))]
#[path = "guard_none.rs"]
mod guard;
mod ignored;
mod limits;
pub mod memory;
mod read_ahead;

pub use disk::{DiskFiles, Scratch, measure_disk};
pub use end::end_now;
pub use error::HostError;
pub use files::{HostFiles, SharedMapping};
pub use guard::let_go;
pub use ignored::Ignored;
pub use limits::fail_writes_past_the_limit;
pub use plimsoll_weights::{DraftFolder, FileIdentity, read_regular, sweep};
pub use read_ahead::{READERS, ReadAhead};

/// Exit code of the process when a mapped weight file shrinks, or its disk fails, during a read.
pub const EXIT_CODE: i32 = 5;
