//! SQLite's errors as ours.

use std::path::Path;

use rusqlite::ErrorCode;

use crate::error::RecordError;

/// Another has the lock.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Damage, or a place that does not take it.
pub(super) fn told(path: &Path, action: &'static str, error: rusqlite::Error) -> RecordError {
    let path = path.to_owned();
    let cause = error.to_string().replace('\n', " ");
    let storage = |cause: &str| {
        let (path, cause) = (path.clone(), cause.to_owned());
        RecordError::Storage { path, action, cause }
    };
    match &error {
        // A value that is not what the schema says it is.
        rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::InvalidColumnName(_)
        | rusqlite::Error::Utf8Error(..)
        | rusqlite::Error::QueryReturnedNoRows => RecordError::Corrupt { path, cause },
        _ => match error.sqlite_error_code() {
            Some(
                ErrorCode::DatabaseCorrupt
                | ErrorCode::NotADatabase
                | ErrorCode::SchemaChanged
                | ErrorCode::TypeMismatch
                // `no such table` and `no such column`: a schema that is not the one it claims to be.
                | ErrorCode::Unknown,
            ) => RecordError::Corrupt { path, cause },
            Some(ErrorCode::DiskFull) => storage("its disk is full"),
            Some(ErrorCode::ReadOnly) => storage("the file or its folder is read-only"),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                storage("another process has held it for too long")
            }
            _ => storage(&cause),
        },
    }
}
