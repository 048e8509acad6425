//! A folder that a command fills with gigabytes: whole or not at all.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use plimsoll_weights::{DraftFile, DraftFolder, sweep};

use crate::failure::Failure;

pub(crate) fn failure(path: &Path) -> impl FnOnce(std::io::Error) -> Failure + '_ {
    |cause| Failure::Write { path: path.display().to_string(), cause }
}

/// A path with all links resolved, of which the last parts may not exist.
pub(crate) fn real(path: &Path) -> std::io::Result<PathBuf> {
    let whole = std::path::absolute(path)?;
    for known in whole.ancestors() {
        if let Ok(found) = known.canonicalize() {
            let rest = whole.strip_prefix(known).unwrap_or(Path::new(""));
            return Ok(if rest.as_os_str().is_empty() { found } else { found.join(rest) });
        }
    }
    Ok(whole)
}

/// Refuses a disk with too little room, what killed writers left there removed, before anything is written; `advice` is what to do, or nothing.
pub(crate) fn check_room(output: &Path, needed_bytes: u64, advice: &str) -> Result<(), Failure> {
    let place = real(output).map_err(failure(output))?;
    let Some(there) = place.ancestors().find(|path| path.is_dir()) else { return Ok(()) };
    // What a killed writer left, as large as this perhaps, is no reason to refuse. It lies beside the output.
    [Some(there), place.parent()].into_iter().flatten().for_each(sweep);
    match free_bytes(there) {
        Some(free) if free < needed_bytes => Err(Failure::Write {
            path: output.display().to_string(),
            cause: std::io::Error::new(
                std::io::ErrorKind::StorageFull,
                format!("{needed_bytes} bytes are needed, {free} are free there{advice}"),
            ),
        }),
        // Where the system does not say, the write itself will.
        _ => Ok(()),
    }
}

/// Bytes that a person may still write on the disk of a folder.
#[cfg(unix)]
fn free_bytes(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    found.f_bavail.checked_mul(found.f_frsize)
}

#[cfg(not(unix))]
fn free_bytes(_folder: &Path) -> Option<u64> {
    None
}

/// Whether a folder is there and lies on another disk than the one above it.
#[cfg(unix)]
fn is_mount_point(folder: &Path, above: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let device = |path| fs::metadata(path).map(|found| found.dev()).ok();
    device(folder).is_some_and(|own| device(above) != Some(own)) || folder == above
}

#[cfg(not(unix))]
fn is_mount_point(folder: &Path, above: &Path) -> bool {
    folder == above
}

/// The folder that is filled, and what it will be called.
pub(crate) struct NewFolder {
    draft: DraftFolder,
    output: PathBuf,
}

impl NewFolder {
    pub(crate) fn create(output: &Path) -> Result<Self, Failure> {
        // A link that leads to a folder stays one: the folder is what is filled.
        let output = real(output).map_err(failure(output))?;
        let above = output.parent().unwrap_or(&output);
        fs::create_dir_all(above).map_err(failure(above))?;
        if is_mount_point(&output, above) {
            let what = "is where a disk is mounted, which cannot be replaced: name a folder in it";
            return Err(Failure::Usage(format!("{} {what}", output.display())));
        }
        let draft = DraftFolder::create(above).map_err(failure(above))?;
        Ok(Self { draft, output })
    }

    /// Where a file of the folder is written, with the folders above it.
    pub(crate) fn file(&self, relative: &str) -> Result<PathBuf, Failure> {
        let path = self.draft.path().join(relative);
        if let Some(above) = path.parent() {
            fs::create_dir_all(above).map_err(failure(above))?;
        }
        Ok(path)
    }

    /// Writes a small file.
    pub(crate) fn put(&self, relative: &str, bytes: &[u8]) -> Result<(), Failure> {
        let path = self.file(relative)?;
        let written = DraftFile::create(path.parent().unwrap_or(&path)).and_then(|draft| {
            draft.file().write_all(bytes)?;
            draft.take_name(&path)
        });
        written.map_err(failure(&path))
    }

    /// Gives the folder its name.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        use std::io::{Error, ErrorKind};
        self.draft.take_name(&self.output).map_err(|cause| {
            // It was empty or absent when this began.
            let is_taken =
                matches!(cause.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists);
            let what =
                "another process has written it meanwhile: see what it holds, or name another";
            failure(&self.output)(if is_taken { Error::new(cause.kind(), what) } else { cause })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_link_leads_to_what_is_filled() {
        let folder = tempfile::tempdir().unwrap();
        let [place, link] = ["place", "link"].map(|name| folder.path().join(name));
        fs::create_dir(&place).unwrap();
        std::os::unix::fs::symlink(&place, &link).unwrap();
        let new = NewFolder::create(&link).unwrap();
        new.put("model_index.json", b"{}").unwrap();
        new.finish().unwrap();
        assert!(link.is_symlink() && place.join("model_index.json").is_file());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_disk_is_not_replaced() {
        for place in ["/", "/proc"] {
            let told = NewFolder::create(Path::new(place)).err().unwrap().to_string();
            assert!(told.contains("name a folder in it"), "{told}");
        }
    }

    #[test]
    fn the_loser_of_two_packs_is_told_of_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("out");
        let [first, second] = [(), ()].map(|()| NewFolder::create(&output).unwrap());
        for new in [&first, &second] {
            new.put("model_index.json", b"{}").unwrap();
        }
        first.finish().unwrap();
        let told = second.finish().unwrap_err().to_string();
        assert!(told.contains("another process has written it meanwhile"), "{told}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "only the first is left");
    }
}
