//! Files that are whole or absent, whenever the process is killed and whatever the disk does.
//!
//! A picture that took a minute must not be lost to a path that cannot be written, nor leave half a
//! file when the disk is full or the run is cancelled: the path is tried before the run
//! ([`check_writable`]), and the file appears under its name only when all of it is on the disk.
//!
//! Until then it has no name at all where the system can do that (Linux, `O_TMPFILE`): a process that is
//! killed leaves nothing behind. Elsewhere, and for the moment in which it takes the place of another file, it
//! has a name beside its place, locked by its process: what a killed one left of those is swept by the next.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::error::ImageError;

/// From its name to its lock a file takes microseconds; one this old without a lock is nobody's.
const STALE: Duration = Duration::from_secs(1);

/// Writes a file that is whole or absent, replacing a file of that name.
///
/// The bytes are flushed to the disk before the file takes its name in one step; after an error the folder is
/// as it was.
///
/// # Errors
/// Those of [`check_writable`], and [`ImageError::Write`].
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), ImageError> {
    let target = Target::of(path)?;
    let (draft, mut file) = Draft::create(&target.folder)?;
    let at = || draft.path.as_deref().unwrap_or(&target.folder);
    file.write_all(bytes).map_err(|source| write_error("write a file in", at(), source))?;
    file.sync_all().map_err(|source| write_error("flush a file in", at(), source))?;
    draft.take_name(&file, &target)?;
    // The name is a change of the folder; not every system lets a folder be opened for this,
    // and the file is whole either way.
    if let Ok(folder) = File::open(&target.folder) {
        folder.sync_all().ok();
    }
    Ok(())
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
    Draft::create(&target.folder).map(drop)
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

/// A file that has not taken its name yet; one with a temporary name is removed when dropped.
struct Draft {
    /// Its temporary name; none where it has no name at all.
    path: Option<PathBuf>,
}

impl Draft {
    fn create(folder: &Path) -> Result<(Self, File), ImageError> {
        let (draft, file) = match nameless(folder) {
            Some(file) => (Self { path: None }, file),
            None => {
                let create =
                    |path: &Path| OpenOptions::new().write(true).create_new(true).open(path);
                let (path, file) = beside(folder, create)
                    .map_err(|source| write_error("create a file in", folder, source))?;
                (Self { path: Some(path) }, file)
            }
        };
        // Says that its process lives, as long as it does. Where files cannot be locked, nothing is swept.
        file.try_lock().ok();
        Ok((draft, file))
    }

    /// Gives the finished file its name.
    fn take_name(mut self, file: &File, target: &Target) -> Result<(), ImageError> {
        let replace = |source| write_error("replace", &target.file, source);
        if self.path.is_none() {
            match link(file, &target.file) {
                Ok(()) => return Ok(()),
                // A link replaces nothing: it takes a name beside the old file, and that is renamed.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    let linked = beside(&target.folder, |path| link(file, path));
                    self.path = Some(linked.map_err(replace)?.0);
                }
                Err(source) => return Err(replace(source)),
            }
        }
        if let Some(path) = &self.path {
            fs::rename(path, &target.file).map_err(replace)?;
        }
        self.path = None;
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // Nobody is left to tell; the name says whose file it is.
            fs::remove_file(path).ok();
        }
    }
}

/// Makes something under a temporary name that nobody has.
fn beside<T>(folder: &Path, make: impl Fn(&Path) -> io::Result<T>) -> io::Result<(PathBuf, T)> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!(".plimsoll-{}-{number}.part", std::process::id()));
        match make(&path) {
            Ok(made) => return Ok((path, made)),
            // Left by a killed process of the same number.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

/// Removes what killed processes left in a folder.
fn sweep(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let is_part = |name: &str| {
            let numbers = name.strip_prefix(".plimsoll-")?.strip_suffix(".part")?;
            let (process, number) = numbers.split_once('-')?;
            Some(process.parse::<u32>().is_ok() && number.parse::<u32>().is_ok())
        };
        if entry.file_name().to_str().and_then(is_part) != Some(true) {
            continue;
        }
        let age = entry.metadata().and_then(|file| file.modified()).map(|time| time.elapsed());
        let is_old = age.is_ok_and(|age| age.is_ok_and(|age| age > STALE));
        let is_free = || File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok());
        if is_old && is_free() {
            // Another process may have been quicker.
            fs::remove_file(entry.path()).ok();
        }
    }
}

/// A file in the folder without a name; none where the system or file system has no such thing.
#[cfg(target_os = "linux")]
fn nameless(folder: &Path) -> Option<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(folder, flags, Mode::from_raw_mode(0o666)).ok().map(File::from)?;
    // Its name is given through `/proc`, which a container may not have.
    fs::symlink_metadata(handle(&file)).ok()?;
    Some(file)
}

#[cfg(target_os = "linux")]
fn handle(file: &File) -> String {
    format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file))
}

/// Gives an open file a name, which must be free.
#[cfg(target_os = "linux")]
fn link(file: &File, path: &Path) -> io::Result<()> {
    use rustix::fs::{AtFlags, CWD, linkat};
    Ok(linkat(CWD, handle(file), CWD, path, AtFlags::SYMLINK_FOLLOW)?)
}

#[cfg(not(target_os = "linux"))]
fn nameless(_: &Path) -> Option<File> {
    None
}

#[cfg(not(target_os = "linux"))]
fn link(_: &File, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

fn write_error(action: &'static str, path: &Path, source: io::Error) -> ImageError {
    ImageError::Write { action, path: path.to_owned(), source }
}
