//! Which state of a model's files a run used.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// Bytes that are read at either end of each file.
///
/// The header of a safetensors file is at its beginning; a retrained model differs in its last tensor. All of
/// FLUX.1 would take a minute to read, each run.
const SAMPLE_BYTES: u64 = 64 << 10;

/// Files of a pipeline folder are at most two folders down; more is not a model's.
const DEPTH_MAX: usize = 4;

/// The revision of a model's folder: the commit of a hub snapshot, else a digest of its files' names, lengths
/// and ends.
pub(crate) fn of(model: &Path, transformer: Option<&Path>) -> Option<String> {
    let snapshot = snapshot(model).filter(|_| transformer.is_none());
    if let Some(commit) = snapshot {
        return Some(commit);
    }
    let mut files = Vec::new();
    collect(model, DEPTH_MAX, &mut files).ok()?;
    files.extend(transformer.map(Path::to_owned));
    files.sort();
    let mut digest = Sha256::new();
    for file in &files {
        let name = file.strip_prefix(model).unwrap_or(file);
        sample(&mut digest, name, file).ok()?;
    }
    Some(short(digest))
}

/// The revision of files that are built into the program.
pub(crate) fn of_embedded(files: &[(&str, &[u8])]) -> String {
    let ends = usize::try_from(SAMPLE_BYTES).unwrap_or(usize::MAX);
    let mut digest = Sha256::new();
    for (name, bytes) in files {
        digest.update(name.as_bytes());
        digest.update((bytes.len() as u64).to_le_bytes());
        digest.update(&bytes[..bytes.len().min(ends)]);
        digest.update(&bytes[bytes.len().saturating_sub(ends)..]);
    }
    short(digest)
}

/// `.../snapshots/COMMIT`, as the hub's cache lays models out.
fn snapshot(model: &Path) -> Option<String> {
    let commit = model.file_name()?.to_str()?;
    let is_snapshot = model.parent()?.file_name()? == "snapshots";
    let is_commit = commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_snapshot && is_commit).then(|| commit.to_owned())
}

fn collect(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let kind = std::fs::metadata(&path)?;
        if kind.is_dir() && depth > 1 {
            collect(&path, depth - 1, files)?;
        } else if kind.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

fn sample(digest: &mut Sha256, name: &Path, path: &Path) -> std::io::Result<()> {
    let mut file = std::fs::File::open(path)?;
    let length = file.metadata()?.len();
    digest.update(name.as_os_str().as_encoded_bytes());
    digest.update(length.to_le_bytes());
    let mut bytes = Vec::new();
    file.by_ref().take(SAMPLE_BYTES).read_to_end(&mut bytes)?;
    file.seek(SeekFrom::Start(length.saturating_sub(SAMPLE_BYTES)))?;
    file.take(SAMPLE_BYTES).read_to_end(&mut bytes)?;
    digest.update(&bytes);
    Ok(())
}

fn short(digest: Sha256) -> String {
    let hex: String = digest.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    format!("files:{hex}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_changes_with_a_file_and_a_snapshot_has_its_commit() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model");
        std::fs::create_dir_all(model.join("vae")).unwrap();
        std::fs::write(model.join("vae/x.safetensors"), [1u8; 200_000]).unwrap();
        let first = of(&model, None).unwrap();
        assert_eq!(of(&model, None).unwrap(), first);
        let mut bytes = vec![1u8; 200_000];
        bytes[199_999] = 2;
        std::fs::write(model.join("vae/x.safetensors"), bytes).unwrap();
        assert_ne!(of(&model, None).unwrap(), first);
        assert_eq!(of(&folder.path().join("absent"), None), None);
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let snapshot = folder.path().join("snapshots").join(commit);
        std::fs::create_dir_all(&snapshot).unwrap();
        assert_eq!(of(&snapshot, None).as_deref(), Some(commit));
        let other = of(&snapshot, Some(&model.join("vae/x.safetensors"))).unwrap();
        assert!(other.starts_with("files:"), "{other}");
    }
}
