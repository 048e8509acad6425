//! Files that are written here are read back here, and are whole or absent.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_weights::{
    DraftFolder, NewTensor, PIECE_BYTES, WeightDType, WriteError, write_safetensors,
};

fn tensor(name: &str, dtype: WeightDType, shape: &[u64]) -> NewTensor {
    NewTensor { name: name.to_owned(), dtype, shape: shape.to_vec() }
}

fn byte(tensor: usize, at: u64) -> u8 {
    (tensor as u64 * 131 + at * 7 + at / 4093) as u8
}

fn fill(tensor: usize, offset: u64, bytes: &mut [u8]) {
    for (at, value) in bytes.iter_mut().enumerate() {
        *value = byte(tensor, offset + at as u64);
    }
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_file_reads_back_byte_for_byte_with_any_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    let tensors = [
        tensor("large", WeightDType::BF16, &[PIECE_BYTES + 3, 1]),
        tensor("empty", WeightDType::F32, &[0, 4]),
        tensor("scalar", WeightDType::F32, &[]),
        tensor("small", WeightDType::F8E4M3, &[3, 5]),
    ];
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let mut last = None;
    for threads in [1, 5] {
        let count = AtomicU64::new(0);
        let written = |bytes| {
            count.fetch_add(bytes, Ordering::Relaxed);
            true
        };
        write_safetensors(&path, &tensors, &metadata, threads, &fill, &written).unwrap();
        let total: u64 = tensors.iter().map(|tensor| tensor.bytes().unwrap()).sum();
        assert_eq!(count.load(Ordering::Relaxed), total);
        let bytes = std::fs::read(&path).unwrap();
        let json = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let start = 8 + json;
        assert_eq!(start % 256, 0);
        assert_eq!(bytes.len() as u64, start + total);
        let header: serde_json::Value = serde_json::from_slice(&bytes[8..start as usize]).unwrap();
        for (at, tensor) in tensors.iter().enumerate() {
            let entry = &header[&tensor.name];
            assert_eq!(entry["dtype"], tensor.dtype.name());
            let [from, to] = [0, 1].map(|side| entry["data_offsets"][side].as_u64().unwrap());
            assert_eq!(to - from, tensor.bytes().unwrap());
            for offset in 0..to - from {
                assert_eq!(bytes[(start + from + offset) as usize], byte(at, offset));
            }
        }
        let before = last.replace(bytes);
        assert!(before.is_none() || before == last);
        assert_eq!(names(folder.path()), ["a.safetensors"]);
    }
    let report = plimsoll_weights::inspect(&path).unwrap();
    assert!(serde_json::to_string(&report).unwrap().contains("BF16"));
}

#[test]
fn a_stop_leaves_the_old_file_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    std::fs::write(&path, b"old").unwrap();
    let tensors = [tensor("a", WeightDType::U8, &[3 * PIECE_BYTES])];
    let stopped =
        write_safetensors(&path, &tensors, &BTreeMap::new(), 2, &fill, &|_| false).unwrap_err();
    assert!(matches!(stopped, WriteError::Cancelled));
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    assert_eq!(names(folder.path()), ["a.safetensors"]);
}

#[test]
fn what_the_format_cannot_hold_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    let refuse = |tensors: &[NewTensor]| {
        write_safetensors(&path, tensors, &BTreeMap::new(), 1, &fill, &|_| true)
            .unwrap_err()
            .to_string()
    };
    let a = tensor("a", WeightDType::U8, &[1]);
    assert!(refuse(&[a.clone(), a]).ends_with("two tensors are called a"));
    assert!(refuse(&[tensor("__metadata__", WeightDType::U8, &[1])]).contains("__metadata__"));
    assert!(refuse(&[tensor("b", WeightDType::F64, &[1 << 40, 1 << 40])]).ends_with("too large"));
    assert!(names(folder.path()).is_empty());
}

/// Makes a file or folder look as if it had been left an hour ago.
#[cfg(unix)]
fn age(path: &std::path::Path) {
    let hour_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    std::fs::File::open(path).unwrap().set_modified(hour_ago).unwrap();
}

#[cfg(unix)]
#[test]
fn what_killed_writers_left_is_removed_and_what_living_ones_write_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let left = folder.path().join(".plimsoll-123-0.part");
    std::fs::create_dir_all(left.join("transformer")).unwrap();
    std::fs::write(left.join("transformer/model.safetensors"), [0; 1000]).unwrap();
    let file = folder.path().join(".plimsoll-124-0.part");
    std::fs::write(&file, [0; 1000]).unwrap();
    let alive = DraftFolder::create(folder.path()).unwrap();
    std::fs::write(alive.path().join("config.json"), "{}").unwrap();
    for path in [&left, &file, alive.path()] {
        age(path);
    }
    let tensors = [tensor("a", WeightDType::U8, &[8])];
    let path = folder.path().join("a.safetensors");
    write_safetensors(&path, &tensors, &BTreeMap::new(), 1, &fill, &|_| true).unwrap();
    assert!(!left.exists() && !file.exists());
    assert!(alive.path().join("config.json").is_file(), "its process lives");
    let (name, taken) = (folder.path().join("whole"), folder.path().join("taken"));
    alive.take_name(&name).unwrap();
    assert!(name.join("config.json").is_file());
    // A folder with something in it keeps its name, and the draft leaves nothing.
    std::fs::create_dir(&taken).unwrap();
    std::fs::write(taken.join("mine"), "").unwrap();
    DraftFolder::create(folder.path()).unwrap().take_name(&taken).unwrap_err();
    drop(DraftFolder::create(folder.path()).unwrap());
    assert_eq!(names(folder.path()), ["a.safetensors", "taken", "whole"]);
    assert_eq!(names(&taken), ["mine"]);
}
