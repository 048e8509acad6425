//! Writes safetensors files and pipeline folders, good and bad, for the tests.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_weights::{Blob, Catalog, Entry};

/// The demo model in the repository.
pub(crate) fn demo_model() -> PathBuf {
    repository().join("demo/model")
}

/// Root of the repository.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A file of this header text and this much data (bytes counting up).
pub(crate) fn raw_file(header: &str, data_bytes: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend((0..data_bytes).map(|i| i as u8));
    file
}

/// A safetensors file of bf16 tensors, in the order given, with data that names its place.
pub(crate) fn bf16_file(tensors: &[(&str, &[u64])]) -> Vec<u8> {
    let tensors: Vec<_> = tensors.iter().map(|(name, shape)| (*name, "BF16", *shape)).collect();
    file_of(&tensors)
}

/// A safetensors file of tensors of 16-bit types and U8.
pub(crate) fn file_of(tensors: &[(&str, &str, &[u64])]) -> Vec<u8> {
    let mut parts = Vec::new();
    let mut end = 0u64;
    for (name, dtype, shape) in tensors {
        let element = if matches!(*dtype, "U8" | "I8" | "F8_E4M3") { 1 } else { 2 };
        let begin = end;
        end += shape.iter().product::<u64>() * element;
        let name = serde_json::Value::from(*name);
        parts.push(format!(
            r#"{name}:{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#
        ));
    }
    raw_file(&format!("{{{}}}", parts.join(",")), end as usize)
}

/// Writes `data`, making the folders above it.
pub(crate) fn write(path: &Path, data: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, data).unwrap();
}

/// Copies a folder tree.
pub(crate) fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// The bytes of one tensor, read from its blobs.
pub(crate) fn bytes_of(catalog: &Catalog, entry: &Entry) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in &entry.pieces {
        let file = match &catalog.blobs[piece.blob] {
            Blob::File { path, .. } => fs::read(path).unwrap(),
            Blob::Static { data, .. } => data.to_vec(),
        };
        let begin = piece.offset as usize;
        bytes.extend_from_slice(&file[begin..begin + piece.bytes as usize]);
    }
    bytes
}
