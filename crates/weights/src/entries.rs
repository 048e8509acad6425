//! Tensors by canonical name, while a catalog is built.

use std::collections::BTreeMap;
use std::path::Path;

use crate::catalog::Entry;
use crate::error::WeightsError;

/// Tensors by name.
pub(crate) type Entries = BTreeMap<String, Entry>;

/// Adds `entry`, which the files call `source`; refuses a second one of the same canonical name.
pub(crate) fn insert(
    entries: &mut Entries,
    canonical: String,
    entry: Entry,
    source: &str,
    path: &Path,
) -> Result<(), WeightsError> {
    if entries.contains_key(&canonical) {
        let (path, tensor) = (path.to_owned(), source.to_owned());
        return Err(WeightsError::Twice { path, tensor, canonical });
    }
    entries.insert(canonical, entry);
    Ok(())
}
