//! The host tier: the bytes of checkpoints in host memory, without a copy.
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
//! Main type: [`HostFiles`]; a [`SharedMapping`] keeps one file mapped beyond it.
//!
//! Invariants:
//! - no byte is handed out that was not in the file when its header was checked;
//! - nothing is written, and nothing of a file's size is allocated.
//!
//! Not here: what the bytes mean (`weights`), pinning and copies to a device (`device`).

#![deny(clippy::multiple_unsafe_ops_per_block)]

mod error;
mod files;
#[cfg(unix)]
mod guard;
#[cfg(not(unix))]
#[path = "guard_none.rs"]
mod guard;

pub use error::HostError;
pub use files::{HostFiles, SharedMapping};
pub use plimsoll_weights::FileIdentity;

/// Exit code of the process when a mapped weight file shrinks, or its disk fails, during a read.
pub const EXIT_CODE: i32 = 5;
