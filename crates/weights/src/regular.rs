//! Regular files, opened without waiting and read up to a cap.
//!
//! A pipe blocks whoever opens it, and a device may give bytes for ever: a path that somebody named must lead to neither.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::path::Path;

/// Opens a regular file; `None` where the path leads to something else.
pub(crate) fn open(path: &Path) -> io::Result<Option<(File, Metadata)>> {
    // Asked before opening, because opening a pipe waits; and after, because paths can change.
    if !fs::metadata(path)?.is_file() {
        return Ok(None);
    }
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    Ok(metadata.is_file().then_some((file, metadata)))
}

/// Opens a file to read it that has to be a regular one.
///
/// # Errors
/// What the system says, and [`io::ErrorKind::InvalidInput`] for a folder, pipe or device.
pub fn open_regular(path: &Path) -> io::Result<(File, Metadata)> {
    let refusal = || io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file");
    open(path)?.ok_or_else(refusal)
}

/// The whole of a regular file that has at most `cap_bytes`, also where it grows meanwhile.
///
/// # Errors
/// As [`open_regular`], and [`io::ErrorKind::FileTooLarge`].
pub fn read_regular(path: &Path, cap_bytes: u64) -> io::Result<Vec<u8>> {
    let over_cap = |bytes: u64| {
        let what = format!("{bytes} bytes, over the cap of {cap_bytes}");
        io::Error::new(io::ErrorKind::FileTooLarge, what)
    };
    let (file, metadata) = open_regular(path)?;
    if metadata.len() > cap_bytes {
        return Err(over_cap(metadata.len()));
    }
    let mut bytes = Vec::new();
    // One byte more than allowed tells a file that grows while it is read.
    file.take(cap_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    let length = bytes.len() as u64;
    if length > cap_bytes { Err(over_cap(length)) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_cap_and_a_folder_never() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        fs::write(&path, "four").unwrap();
        assert_eq!(read_regular(&path, 4).unwrap(), b"four");
        let refused = read_regular(&path, 3).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::FileTooLarge);
        let refused = read_regular(folder.path(), 4).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        let absent = read_regular(&folder.path().join("absent"), 4).unwrap_err();
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
    }

    /// Its length says 0, and it never ends.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_device_is_not_read() {
        assert!(open(Path::new("/dev/zero")).unwrap().is_none());
    }
}
