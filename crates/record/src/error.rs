//! Why a record cannot be read, written or taken over.

use std::path::PathBuf;

/// Why a record cannot be read, written or taken over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The file is damaged, or no store: move it away, or name another.
    #[error("{} is not a readable store of records: {cause}: move it away, or give --records another or off", path.display())]
    Corrupt {
        /// The store.
        path: PathBuf,
        /// What SQLite found.
        cause: String,
    },
    /// A database of another program.
    #[error("{} is a database, but not a store of records: give --records another", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// Written by a later version of this program, which may mean its fields otherwise.
    #[error("{} has schema version {found}; this build knows versions up to {known}", path.display())]
    Newer {
        /// The store.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// The newest version that is known.
        known: i64,
    },
    /// There is no store to read.
    #[error("no records yet: {} does not exist", path.display())]
    Absent {
        /// Where it would be.
        path: PathBuf,
    },
    /// The place does not take a store: folder missing, read-only, full, locked for too long.
    #[error("cannot {action} the store {}: {cause}", path.display())]
    Storage {
        /// The store.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The system's or SQLite's reason.
        cause: String,
    },
    /// No run of that id.
    #[error("no run {id:?} in {}", path.display())]
    UnknownRun {
        /// What was asked for, at most 60 characters of it.
        id: String,
        /// The store.
        path: PathBuf,
    },
    /// More than one run has an id that begins or ends so.
    #[error("run {id:?} is ambiguous: {}", candidates.join(", "))]
    AmbiguousRun {
        /// What was asked for.
        id: String,
        /// Runs that it may mean, at most five.
        candidates: Vec<String>,
    },
    /// A file to import, or of criteria, that is not what it should be: each fault is named.
    #[error("{source_name}: {}", faults.join("; "))]
    Faults {
        /// Name of the file.
        source_name: String,
        /// One entry a fault.
        faults: Vec<String>,
    },
}
