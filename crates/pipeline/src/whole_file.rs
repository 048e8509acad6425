//! Files that are whole or absent, whenever the process is killed and whatever the disk does.
//!
//! A picture that took a minute must not be lost to a path that cannot be written, nor leave half a
//! file when the disk is full or the run is cancelled: the path is tried before the run
//! ([`check_writable`]), and the file appears under its name only when all of it is on the disk.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use plimsoll_weights::{DraftFile, sweep};

use crate::error::ImageError;

/// Writes a file that is whole or absent, replacing a file of that name.
///
/// The bytes are flushed to the disk before the file takes its name in one step; after an error the folder is
/// as it was.
///
/// # Errors
/// Those of [`check_writable`], and [`ImageError::Write`].
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), ImageError> {
    let target = Target::of(path)?;
    let draft = draft(&target)?;
    let written = draft.file().write_all(bytes);
    written.map_err(|source| write_error("write a file in", draft.place(), source))?;
    draft.take_name(&target.file).map_err(|source| write_error("replace", &target.file, source))
}

/// Tries, before a long run, whether a picture can be written to `path`: its folder is there and
/// takes a new file, and the path is free or a regular file that may be replaced.
///
/// Leaves nothing behind.
///
/// # Errors
/// [`ImageError::NoFileName`], [`ImageError::FolderMissing`], [`ImageError::NotAFile`],
/// [`ImageError::ReadOnly`], or [`ImageError::Write`] with what the system refused.
pub fn check_writable(path: &Path) -> Result<(), ImageError> {
    let target = Target::of(path)?;
    sweep(&target.folder);
    draft(&target).map(drop)
}

/// Where a picture goes, symbolic links followed.
struct Target {
    folder: PathBuf,
    file: PathBuf,
}

impl Target {
    fn of(path: &Path) -> Result<Self, ImageError> {
        let ends_in_separator =
            path.as_os_str().to_string_lossy().ends_with(std::path::is_separator);
        let name = match path.file_name() {
            Some(name) if !ends_in_separator => name,
            _ if path.is_dir() => return Err(ImageError::NotAFile { path: path.to_owned() }),
            _ => return Err(ImageError::NoFileName { path: path.to_owned() }),
        };
        let folder_of = |path: &Path| match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let (mut folder, mut file) = (folder_of(path), folder_of(path).join(name));
        // A link is followed here, or the rename would replace the link instead of its target.
        if fs::symlink_metadata(&file).is_ok_and(|metadata| metadata.is_symlink()) {
            file = fs::canonicalize(&file).map_err(|source| write_error("follow", path, source))?;
            folder = folder_of(&file);
        }
        if !folder.is_dir() {
            return Err(ImageError::FolderMissing { folder });
        }
        match fs::metadata(&file) {
            Ok(metadata) if !metadata.is_file() => Err(ImageError::NotAFile { path: file }),
            Ok(metadata) if metadata.permissions().readonly() => {
                Err(ImageError::ReadOnly { path: file })
            }
            Ok(_) => Ok(Self { folder, file }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self { folder, file }),
            // A name that is too long, for instance.
            Err(source) => Err(write_error("use", &file, source)),
        }
    }
}

fn draft(target: &Target) -> Result<DraftFile, ImageError> {
    let folder = &target.folder;
    DraftFile::create(folder).map_err(|source| write_error("create a file in", folder, source))
}

fn write_error(action: &'static str, path: &Path, source: io::Error) -> ImageError {
    ImageError::Write { action, path: path.to_owned(), source }
}
