//! Mapped files give the bytes that are in them, and nothing outside.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_host::{FileIdentity, HostError, HostFiles, SharedMapping, let_go};
use plimsoll_weights::{Blob, Catalog, Piece, open_folder, open_transformer_file};

fn demo_model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/model")
}

/// The demo's transformer in a folder of its own, where the test may damage it.
fn own_copy(folder: &Path) -> (PathBuf, Catalog) {
    let name = "transformer/diffusion_pytorch_model.safetensors";
    let path = folder.join("model.safetensors");
    fs::copy(demo_model().join(name), &path).unwrap();
    let catalog = open_transformer_file(&path).unwrap().catalog.unwrap();
    (path, catalog)
}

#[test]
fn every_tensor_of_the_demo_model_is_read_as_it_lies_in_the_file() {
    let checkpoint = open_folder(demo_model()).unwrap();
    let catalogs: Vec<&Catalog> =
        checkpoint.components.values().filter_map(|c| c.catalog.as_ref()).collect();
    let files = HostFiles::open(&catalogs).unwrap();
    files.recheck().unwrap();
    let mut bytes = 0;
    for (index, catalog) in catalogs.iter().enumerate() {
        let stored = fs::read(catalog.path()).unwrap();
        for (name, entry) in catalog.iter() {
            let [piece] = entry.pieces[..] else { panic!("{name} is in pieces") };
            files.will_need(index, &piece);
            let mut gathered = vec![0; entry.bytes() as usize];
            files.gather(index, entry, &mut gathered).unwrap();
            let begin = piece.offset as usize;
            assert_eq!(gathered, stored[begin..begin + gathered.len()], "{name}");
            assert_eq!(files.piece(index, &piece).unwrap(), gathered);
            bytes += gathered.len();
        }
    }
    assert_eq!(bytes, 2 * (10_046_016 + 599_552 + 786_944 + 2_391_779));
}

#[test]
fn a_mapping_outlives_the_files_that_gave_it() {
    let folder = tempfile::tempdir().unwrap();
    let (path, catalog) = own_copy(folder.path());
    let stored = fs::read(&path).unwrap();
    let files = HostFiles::open(&[&catalog, &catalog]).unwrap();
    let mappings = files.mappings();
    assert_eq!(mappings.len(), 2);
    assert!(mappings[0].is(&files.mappings()[0]) && !mappings[0].is(&mappings[1]));
    assert!(std::ptr::eq(mappings[0].bytes(), files.bytes(0, 0, 0, stored.len() as u64).unwrap()));
    drop(files);
    assert!(mappings[0].bytes() == stored);
    assert_eq!(mappings[0].path(), path);
    assert_eq!(mappings[0].identity(), FileIdentity::of(&fs::metadata(&path).unwrap()));
}

#[test]
fn built_in_bytes_are_taken_as_they_are() {
    let path = demo_model().join("transformer/diffusion_pytorch_model.safetensors");
    let mut catalog = open_transformer_file(&path).unwrap().catalog.unwrap();
    let data: &'static [u8] = fs::read(&path).unwrap().leak();
    catalog.blobs = vec![Blob::Static { name: "transformer", data }];
    let files = HostFiles::open(&[&catalog]).unwrap();
    let all = files.bytes(0, 0, 0, data.len() as u64).unwrap();
    assert!(std::ptr::eq(all, data));
    files.recheck().unwrap();
}

#[test]
fn ranges_outside_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (path, catalog) = own_copy(folder.path());
    let length = fs::metadata(&path).unwrap().len();
    let files = HostFiles::open(&[&catalog]).unwrap();
    assert!(files.bytes(0, 0, length, 0).unwrap().is_empty());
    assert_eq!(files.bytes(0, 0, length - 1, 1).unwrap().len(), 1);
    for (offset, bytes) in [(length, 1), (0, length + 1), (u64::MAX, 1), (1, u64::MAX)] {
        let error = files.bytes(0, 0, offset, bytes).unwrap_err();
        assert!(matches!(error, HostError::OutOfRange { .. }), "{offset} {bytes}: {error}");
        // A hint about a range outside is ignored.
        files.will_need(0, &Piece { blob: 0, offset, bytes });
    }
    assert!(matches!(files.bytes(1, 0, 0, 1), Err(HostError::NoSuchBlob { .. })));
    assert!(matches!(files.bytes(0, 1, 0, 1), Err(HostError::NoSuchBlob { .. })));
    let (_, entry) = catalog.iter().next().unwrap();
    let mut short = vec![0; entry.bytes() as usize - 1];
    let error = files.gather(0, entry, &mut short).unwrap_err();
    assert!(matches!(error, HostError::WrongTarget { .. }), "{error}");
}

/// Changes an opened file in one way; gives what a check of it says then.
fn check_change(change: impl FnOnce(&Path), reopen: bool) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (path, catalog) = own_copy(folder.path());
    let files = HostFiles::open(&[&catalog]).unwrap();
    files.recheck().unwrap();
    // Some file systems keep times by the tick of the clock.
    std::thread::sleep(std::time::Duration::from_millis(20));
    change(&path);
    let error = if reopen {
        HostFiles::open(&[&catalog]).unwrap_err()
    } else {
        files.recheck().unwrap_err()
    };
    error.to_string().replace(&folder.path().display().to_string(), "F")
}

#[test]
fn a_change_is_told_before_the_next_run() {
    let shrink = |path: &Path| {
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(1000).unwrap();
    };
    let grow = |path: &Path| {
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(30_000_000).unwrap();
    };
    let rewrite = |path: &Path| {
        let data = fs::read(path).unwrap();
        fs::write(path, data).unwrap();
    };
    let replace = |path: &Path| {
        let other = path.with_extension("new");
        fs::copy(path, &other).unwrap();
        fs::rename(other, path).unwrap();
    };
    for reopen in [false, true] {
        let short = "F/model.safetensors: the file had 20120416 bytes when it was opened and has";
        assert_eq!(check_change(shrink, reopen), format!("{short} 1000 now: load the model again"));
        assert_eq!(
            check_change(grow, reopen),
            format!("{short} 30000000 now: load the model again")
        );
        let since = "since it was opened: load the model again";
        assert_eq!(
            check_change(rewrite, reopen),
            format!("F/model.safetensors: the file was written to {since}")
        );
        assert_eq!(
            check_change(replace, reopen),
            format!("F/model.safetensors: the file was replaced {since}")
        );
    }
    let removed = check_change(|path| fs::remove_file(path).unwrap(), false);
    assert!(removed.contains("the file was removed since"), "{removed}");
}

#[test]
fn files_are_shared_between_threads() {
    fn is_shareable<T: Send + Sync>() {}
    is_shareable::<HostFiles>();
}

/// Kilobytes of a mapping's pages that are in this process's page tables.
#[cfg(target_os = "linux")]
fn resident_kib(bytes: &[u8]) -> u64 {
    let first = format!("{:x}-", bytes.as_ptr() as usize);
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let lines = maps.lines().skip_while(|line| !line.starts_with(&first));
    let rss =
        lines.map_while(|line| line.strip_prefix("Rss:").map_or(Some(None), |kib| Some(Some(kib))));
    let kib = rss.flatten().next().unwrap();
    kib.trim().strip_suffix(" kB").unwrap().parse().unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn pages_that_are_let_go_come_back_with_their_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = own_copy(folder.path());
    let mapping = SharedMapping::open(&path).unwrap();
    let bytes = mapping.bytes();
    let stored = fs::read(&path).unwrap();
    assert_eq!(bytes, stored);
    let all = resident_kib(bytes);
    assert!(all * 1024 >= stored.len() as u64, "{all} KiB of {} bytes", stored.len());
    // From the middle of a page to the middle of another: neither of the two goes.
    let_go(&bytes[100..stored.len() / 2]);
    let half = resident_kib(bytes);
    assert!(half < all && half * 1024 >= stored.len() as u64 / 2, "{half} of {all} KiB");
    let_go(bytes);
    assert!(resident_kib(bytes) <= 4);
    assert_eq!(bytes, stored);
    // What is no mapping is left alone: its pages would come back as zeros.
    let_go(&stored);
    assert_eq!(bytes, stored);
    let_go(&[]);
}
