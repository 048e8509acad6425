//! The folder that a pack writes: whole or not at all.

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_models::flux;
use plimsoll_weights::{DraftFolder, sweep};

use crate::failure::Failure;

/// Components with weights.
pub(super) const COMPONENTS: [&str; 4] = [flux::CLIP, flux::T5, flux::TRANSFORMER, flux::VAE];

fn failure(path: &Path) -> impl FnOnce(std::io::Error) -> Failure + '_ {
    |cause| Failure::Write { path: path.display().to_string(), cause }
}

/// Refuses an output that is the model's folder, lies in it, holds it, or is in use.
pub(super) fn check_places(model: &Path, output: &Path) -> Result<(), Failure> {
    let shown = output.display();
    let refuse = |what: &str| Err(Failure::Usage(format!("{shown} {what}")));
    match fs::read_dir(output) {
        Ok(mut entries) => {
            if entries.next().is_some() {
                return refuse("is not empty");
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(_) => return refuse("is not a folder"),
    }
    let place = real(output).map_err(failure(output))?;
    // The demo model is in the program, and what is no folder is refused when it is opened.
    if let Ok(model) = model.canonicalize() {
        if place == model {
            return refuse("is the model's own folder");
        }
        if place.starts_with(&model) {
            return refuse("lies in the model's folder");
        }
    }
    Ok(())
}

/// A path with all links resolved, of which the last parts may not exist.
fn real(path: &Path) -> std::io::Result<PathBuf> {
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
pub(super) fn check_room(output: &Path, needed_bytes: u64, advice: &str) -> Result<(), Failure> {
    let place = real(output).map_err(failure(output))?;
    let Some(there) = place.ancestors().find(|path| path.is_dir()) else { return Ok(()) };
    // What a killed writer left, as large as this perhaps, is no reason to refuse.
    sweep(there);
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

/// The folder that is filled, and what it will be called.
pub(super) struct NewFolder {
    draft: DraftFolder,
    output: PathBuf,
}

impl NewFolder {
    pub(super) fn create(output: &Path) -> Result<Self, Failure> {
        let output = std::path::absolute(output).map_err(failure(output))?;
        let above = output.parent().unwrap_or(&output);
        fs::create_dir_all(above).map_err(failure(above))?;
        let draft = DraftFolder::create(above).map_err(failure(above))?;
        Ok(Self { draft, output })
    }

    /// Where a file of the folder is written, with the folders above it.
    pub(super) fn file(&self, relative: &str) -> Result<PathBuf, Failure> {
        let path = self.draft.path().join(relative);
        if let Some(above) = path.parent() {
            fs::create_dir_all(above).map_err(failure(above))?;
        }
        Ok(path)
    }

    /// Writes a small file.
    pub(super) fn put(&self, relative: &str, bytes: &[u8]) -> Result<(), Failure> {
        let path = self.file(relative)?;
        fs::write(&path, bytes).map_err(failure(&path))
    }

    /// Gives the folder its name.
    pub(super) fn finish(self) -> Result<(), Failure> {
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
