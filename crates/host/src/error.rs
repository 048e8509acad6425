//! What can go wrong between a checked header and the bytes it describes.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why bytes of a checkpoint cannot be had.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HostError {
    /// The operating system refused.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The file has another length than when its header was read.
    #[error(
        "{}: the file had {bytes_before} bytes when it was opened and has {bytes_now} now: \
         load the model again",
        path.display()
    )]
    LengthChanged {
        /// The file.
        path: PathBuf,
        /// Length when the header was read.
        bytes_before: u64,
        /// Length now.
        bytes_now: u64,
    },
    /// The file was written to, or the path names another file.
    #[error("{}: the file was {how} since it was opened: load the model again", path.display())]
    Replaced {
        /// The file.
        path: PathBuf,
        /// `written to`, `replaced` or `removed`.
        how: &'static str,
    },
    /// Memory for reads cannot be had.
    #[error("cannot take {bytes} bytes for reading weights from the disk: {source}")]
    Memory {
        /// Bytes asked for.
        bytes: u64,
        /// The system's reason.
        source: io::Error,
    },
    /// The signal handler against shrinking files could not be installed.
    #[error("cannot install the SIGBUS handler: {source}")]
    Guard {
        /// The system's reason.
        source: io::Error,
    },
    /// More mapped files at once than the handler can know.
    #[error("{}: more than {cap} weight files mapped at once", path.display())]
    TooManyFiles {
        /// The file that was one too many.
        path: PathBuf,
        /// The cap.
        cap: usize,
    },
    /// A catalog or blob that was not opened here.
    #[error("catalog {catalog} has no blob {blob} among the opened files")]
    NoSuchBlob {
        /// Index of the catalog in the order of opening.
        catalog: usize,
        /// Index of the blob in its catalog.
        blob: usize,
    },
    /// A range outside its file.
    #[error(
        "{}: bytes {offset}+{bytes} lie outside the file of {file_bytes} bytes",
        path.display()
    )]
    OutOfRange {
        /// The file.
        path: PathBuf,
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        bytes: u64,
        /// Length of the file.
        file_bytes: u64,
    },
    /// The destination is not of the tensor's size.
    #[error("a tensor of {tensor_bytes} bytes does not fit a place of {target_bytes}")]
    WrongTarget {
        /// Bytes of the tensor.
        tensor_bytes: u64,
        /// Bytes of the destination.
        target_bytes: u64,
    },
}
