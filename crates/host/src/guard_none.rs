//! Where there is no SIGBUS: such systems do not let a mapped file shrink.

use std::path::Path;

use crate::error::HostError;

/// Stands for a range that is watched.
#[derive(Debug)]
pub(crate) struct Watched;

/// Does nothing: pages are let go when the process ends.
pub fn let_go(_bytes: &[u8]) {}

/// Does nothing.
pub(crate) fn watch(_mapping: &[u8], _path: &Path) -> Result<Watched, HostError> {
    Ok(Watched)
}
