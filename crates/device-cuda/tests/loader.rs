//! Finding libraries, on made-up folders: what is absent, broken, of another kind or elsewhere never panics and
//! always has a reason.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use plimsoll_device_cuda::loader::{LibraryOptions, LibraryReport, Places, search};
use tempfile::TempDir;

fn made(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    folder
}

fn reports(folders: &[&Path], places: Places) -> Vec<LibraryReport> {
    let folders = folders.iter().map(PathBuf::from).collect();
    search(&LibraryOptions { folders, places: Some(places), ..LibraryOptions::default() })
}

fn report<'r>(reports: &'r [LibraryReport], name: &str) -> &'r LibraryReport {
    reports.iter().find(|report| report.name == name).unwrap()
}

#[test]
fn nothing_anywhere() {
    let empty = tempfile::tempdir().unwrap();
    let missing = empty.path().join("missing");
    let all = reports(&[empty.path(), &missing], Places::default());
    assert_eq!(
        all.iter().map(|report| report.name).collect::<Vec<_>>(),
        ["cuBLASLt", "cuDNN", "NVRTC"]
    );
    for report in &all {
        assert_eq!((report.path.as_ref(), report.folder_count), (None, 1));
        assert!(report.refused.is_empty());
        assert!(report.to_string().contains("not found in 1 folders"), "{report}");
    }
}

#[test]
fn files_that_are_no_library_are_refused_by_name() {
    let text = made(&[
        (
            "libcublasLt.so.13",
            "I am a text, and long enough to be taken for the head of a library: 64 bytes.",
        ),
        ("libcublasLt.so.12", ""),
        ("libcudnn.so.9", "\x7fELF and no more"),
        // Unversioned names are never asked for.
        ("libnvrtc.so", "I am a text"),
    ]);
    let all = reports(&[text.path()], Places::default());
    let lt = report(&all, "cuBLASLt");
    assert_eq!(lt.path, None);
    let refused: Vec<_> =
        lt.refused.iter().map(|refusal| refusal.path.file_name().unwrap()).collect();
    assert_eq!(refused, ["libcublasLt.so.13", "libcublasLt.so.12"]);
    assert!(lt.refused[0].cause.contains("invalid ELF header"), "{lt}");
    assert!(lt.refused[1].cause.contains("too short"), "{lt}");
    assert_eq!(report(&all, "cuDNN").refused.len(), 1);
    assert!(report(&all, "NVRTC").refused.is_empty());
    assert!(!lt.to_string().contains('\n'));
}

#[test]
fn links_that_lead_nowhere_or_in_circles_and_folders_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    symlink("libcublasLt.so.13", folder.path().join("libcublasLt.so.13")).unwrap();
    symlink("/nonexistent/file", folder.path().join("libcublasLt.so.12")).unwrap();
    std::fs::create_dir(folder.path().join("libcudnn.so.9")).unwrap();
    let all = reports(&[folder.path()], Places::default());
    assert_eq!(report(&all, "cuBLASLt").refused.len(), 2, "{all:?}");
    assert_eq!(report(&all, "cuDNN").refused.len(), 1, "{all:?}");
}

/// A library that every Linux has, under a name that it has no right to.
#[test]
fn a_library_of_another_kind_lacks_the_functions() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    let libc =
        libc.into_iter().find(|path| path.contains("/libc.so") || path.contains("/libc-")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for name in ["libcublasLt.so.13", "libcudnn.so.9", "libnvrtc.so.12"] {
        symlink(libc, folder.path().join(name)).unwrap();
    }
    let all = reports(&[folder.path()], Places::default());
    for (name, function) in
        [("cuBLASLt", "cublasLtCreate"), ("cuDNN", "cudnnCreate"), ("NVRTC", "nvrtcVersion")]
    {
        let report = report(&all, name);
        assert_eq!(report.refused[0].cause, format!("lacks {function}"), "{report}");
    }
}

#[test]
fn one_left_out_is_not_looked_for() {
    let options = LibraryOptions {
        places: Some(Places::default()),
        without_cublas_lt: true,
        without_cudnn: true,
        ..LibraryOptions::default()
    };
    assert!(search(&options).is_empty());
}

/// Folders in the order of the search: the caller's, wheels of each Python, toolkits.
#[test]
fn folders_come_in_order_and_once() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let make = |name: &str| {
        let path = root.join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    };
    let given = make("given");
    let venv = make("venv/lib/python3.12/site-packages/nvidia/cudnn/lib");
    let venv_blas = make("venv/lib/python3.12/site-packages/nvidia/cu13/lib");
    make("venv/lib/python3.12/site-packages/nvidia/cu13/include");
    make("venv/lib/ruby/site-packages/nvidia/cu13/lib");
    let system = make("usr/lib/python3/dist-packages/nvidia/cublas/lib");
    let toolkit = make("cuda/lib64");
    // The python3 of the path is a link to a link to the program: each stage may be an environment.
    let staged = make("stage/lib64/python3.9/site-packages/nvidia/x/lib");
    make("stage/bin");
    make("bin");
    std::fs::write(make("usr/bin").join("python3.9"), "").unwrap();
    symlink("../../usr/bin/python3.9", root.join("stage/bin/python3")).unwrap();
    symlink("../stage/bin/python3", root.join("bin/python3")).unwrap();
    let places = Places {
        python_prefixes: vec![root.join("venv"), root.join("none"), root.join("usr")],
        path: vec![root.join("empty"), root.join("bin")],
        toolkits: vec![root.join("cuda"), root.join("cuda")],
        system: false,
    };
    assert_eq!(
        places.folders(&[given.clone(), given.clone()]),
        [given, venv_blas, venv, staged, system, toolkit]
    );
    // A circle of links ends.
    let circle = make("circle");
    symlink("python3", circle.join("python3")).unwrap();
    let places = Places { path: vec![circle], ..Places::default() };
    assert!(places.folders(&[]).is_empty());
}

/// Whatever this machine has or lacks, the search of its own environment ends with a word on each library.
#[test]
fn the_environment_itself() {
    for report in search(&LibraryOptions::default()) {
        println!("{report}");
        assert_eq!(report.path.is_some(), report.version.is_some(), "{report}");
        assert!(report.path.is_none_or(|path| path.is_absolute()));
    }
}
