//! Files that an output must not take the place of: the store of records and the model that is read.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::args::{GenerateArgs, RunArgs};
use crate::failure::Failure;
use crate::runs::place::Place;

/// Files that SQLite keeps beside a store.
const BESIDE_STORE: [&str; 4] = ["", "-wal", "-shm", "-journal"];

/// Refuses a path that is the store's, one of the files beside it, or a file of the model.
///
/// A picture in a model's folder may be replaced by the next one; nothing else there may.
///
/// # Errors
/// [`Failure::Usage`], before anything runs.
pub(crate) fn refuse_taken(path: &Path, args: &GenerateArgs) -> Result<(), Failure> {
    refuse_taken_of(path, &args.run, args.record.records.as_deref())
}

/// The same of a verb that has no record of its own; `records` is the store that was named, if any.
///
/// # Errors
/// As [`refuse_taken`].
pub(crate) fn refuse_taken_of(
    path: &Path,
    run: &RunArgs,
    records: Option<&Path>,
) -> Result<(), Failure> {
    let refuse = |what: &str| {
        Err(Failure::Usage(format!("{} is {what}: name another file", path.display())))
    };
    let resolved = resolved(path);
    if let Place::Named(store) | Place::Default(store) = Place::of(records)
        && is_of_store(&resolved, &store)
    {
        return refuse("the store of records, or a file that belongs to it");
    }
    if !resolved.is_file() {
        return Ok(());
    }
    let is_transformer =
        run.transformer.as_deref().is_some_and(|file| self::resolved(file) == resolved);
    // The demo model is in the binary: its name is no folder's.
    let folder = Some(&run.model).filter(|model| *model != "demo");
    let folder = folder.and_then(|folder| std::fs::canonicalize(folder).ok());
    let is_picture = resolved.extension().is_some_and(|extension| extension == "png");
    let is_in_model = folder.is_some_and(|folder| resolved.starts_with(folder)) && !is_picture;
    if is_transformer || is_in_model {
        return refuse("a file of the model");
    }
    Ok(())
}

fn is_of_store(path: &Path, store: &Path) -> bool {
    // Both where the store's name leads and where it stands: SQLite puts its files beside the first.
    BESIDE_STORE.iter().any(|end| {
        [store.to_owned(), resolved(store)].iter().any(|store| {
            let mut name = OsString::from(store);
            name.push(end);
            resolved(Path::new(&name)) == path
        })
    })
}

/// The path with all links followed; of a file that is not there, its folder's with its name.
fn resolved(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = std::fs::canonicalize(folder.unwrap_or(Path::new(".")));
        match (folder, path.file_name()) {
            (Ok(folder), Some(name)) => folder.join(name),
            _ => path.to_owned(),
        }
    })
}
