//! What has not taken its name yet: files and folders that are whole or absent, whenever the process is killed.
//!
//! Until it is whole a file has no name at all where the system can do that (Linux, `O_TMPFILE`): a process that is
//! killed leaves nothing behind. Elsewhere, for a folder, and for the moment in which a file takes the place of another,
//! it has a name beside its place, locked by its process: what killed ones left of those is removed by [`sweep`].

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// From its name to its lock a draft takes microseconds; one this old without a lock is nobody's.
const STALE: Duration = Duration::from_secs(1);

/// A file that is being written; one with a temporary name is removed when dropped.
#[derive(Debug)]
pub struct DraftFile {
    file: File,
    folder: PathBuf,
    /// Its temporary name; none where it has no name at all.
    path: Option<PathBuf>,
}

impl DraftFile {
    /// An empty file that will stand in `folder`.
    ///
    /// # Errors
    /// What the system refused.
    pub fn create(folder: &Path) -> io::Result<Self> {
        let (path, file) = match nameless(folder) {
            Some(file) => (None, file),
            None => {
                let create =
                    |path: &Path| OpenOptions::new().write(true).create_new(true).open(path);
                let (path, file) = beside(folder, create)?;
                (Some(path), file)
            }
        };
        hold(&file);
        Ok(Self { file, folder: folder.to_owned(), path })
    }

    /// The open file, to be written.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Where it is: its temporary name, or the folder.
    pub fn place(&self) -> &Path {
        self.path.as_deref().unwrap_or(&self.folder)
    }

    /// Flushes it to the disk and gives it its name in the folder in one step, in the place of a file of that name;
    /// after an error the folder is as it was.
    ///
    /// # Errors
    /// What the system refused.
    pub fn take_name(mut self, path: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        if self.path.is_none() {
            match link(&self.file, path) {
                Ok(()) => {
                    flush(&self.folder);
                    return Ok(());
                }
                // A link replaces nothing: it takes a name beside the old file, and that is renamed.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    self.path = Some(beside(&self.folder, |path| link(&self.file, path))?.0);
                }
                Err(error) => return Err(error),
            }
        }
        if let Some(beside) = &self.path {
            fs::rename(beside, path)?;
        }
        self.path = None;
        flush(&self.folder);
        Ok(())
    }
}

/// Names are changes of their folder, to be on the disk as well. Not every system lets a folder be opened for this.
fn flush(folder: &Path) {
    if let Ok(folder) = File::open(folder) {
        folder.sync_all().ok();
    }
}

impl Drop for DraftFile {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // Nobody is left to tell, and the next process sweeps it.
            fs::remove_file(path).ok();
        }
    }
}

/// A folder that is being filled; removed with all that is in it when dropped.
#[derive(Debug)]
pub struct DraftFolder {
    path: PathBuf,
    /// Holds the lock; none where a folder cannot be opened.
    _held: Option<File>,
    is_named: bool,
}

impl DraftFolder {
    /// An empty folder that will stand in `folder`.
    ///
    /// # Errors
    /// What the system refused.
    pub fn create(folder: &Path) -> io::Result<Self> {
        let (path, ()) = beside(folder, |path| fs::create_dir(path))?;
        let held = File::open(&path).ok();
        held.iter().for_each(hold);
        Ok(Self { path, _held: held, is_named: false })
    }

    /// Where it is for now.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it its name, on the same file system; an empty folder of that name is replaced, any other is not. What is in
    /// it is on the disk where it was written as a [`DraftFile`].
    ///
    /// # Errors
    /// What the system refused.
    pub fn take_name(mut self, path: &Path) -> io::Result<()> {
        flush(&self.path);
        // One that was filled meanwhile is not removed by this.
        match fs::remove_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => fs::rename(&self.path, path)?,
        }
        self.is_named = true;
        if let Some(above) = path.parent() {
            flush(above);
        }
        Ok(())
    }
}

impl Drop for DraftFolder {
    fn drop(&mut self) {
        if !self.is_named {
            // Nobody is left to tell, and the next process sweeps it.
            fs::remove_dir_all(&self.path).ok();
        }
    }
}

/// Says that the draft's process lives, as long as it does. Where files cannot be locked, nothing is swept.
fn hold(file: &File) {
    file.try_lock().ok();
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

/// Removes what killed processes left in a folder of drafts.
pub fn sweep(folder: &Path) {
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
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => fs::remove_dir_all(entry.path()).ok(),
                _ => fs::remove_file(entry.path()).ok(),
            };
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
