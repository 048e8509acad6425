//! A file that shrinks while it is mapped ends the process with one line, not with a core dump.
//!
//! The victim is a child: this very test binary, asked by an environment variable to read past the
//! end. Unix only, since elsewhere a mapped file cannot shrink.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use plimsoll_host::{EXIT_CODE, HostFiles};
use plimsoll_weights::open_transformer_file;

const TASK: &str = "PLIMSOLL_TEST_CHILD";

/// Runs the test `victim` of this binary as a child with `task`, in an empty folder.
fn run_child(task: &str) -> (PathBuf, Output) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap().join("weights.safetensors");
    let demo = "../../demo/model/transformer/diffusion_pytorch_model.safetensors";
    fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join(demo), &path).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "victim", "--nocapture", "--test-threads=1"])
        .env(TASK, format!("{task}:{}", path.display()))
        .output()
        .unwrap();
    (path, output)
}

/// The child's part; a test that passes when nobody asks it for anything.
#[test]
fn victim() {
    let Ok(task) = std::env::var(TASK) else {
        return;
    };
    let (task, path) = task.split_once(':').unwrap();
    let path = Path::new(path);
    let catalog = open_transformer_file(path).unwrap().catalog.unwrap();
    let files = HostFiles::open(&[&catalog]).unwrap();
    let length = fs::metadata(path).unwrap().len();
    let all = files.bytes(0, 0, 0, length).unwrap();
    let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
    eprintln!("before: {}", sum(all));
    match task {
        "shrink" => {
            fs::OpenOptions::new().write(true).open(path).unwrap().set_len(4096).unwrap();
            eprintln!("after: {}", sum(all));
        }
        "shrink-in-thread" => {
            fs::OpenOptions::new().write(true).open(path).unwrap().set_len(4096).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| eprintln!("after: {}", sum(all)));
            });
        }
        // A mapping that is not a weight file: the process dies as it always did.
        "other" => {
            let other = path.with_extension("other");
            fs::copy(path, &other).unwrap();
            let file = fs::OpenOptions::new().read(true).write(true).open(&other).unwrap();
            // SAFETY: the file does change, and the read below dies of it: that is the test.
            let mapping = unsafe { memmap2::Mmap::map(&file) }.unwrap();
            file.set_len(4096).unwrap();
            eprintln!("after: {}", sum(&mapping));
        }
        "fine" => eprintln!("after: {}", sum(all)),
        _ => panic!("unknown task {task}"),
    }
    eprintln!("survived");
}

#[test]
fn a_shrunken_file_gives_one_line_and_the_exit_code() {
    for task in ["shrink", "shrink-in-thread"] {
        let (path, output) = run_child(task);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(EXIT_CODE), "{task}: {stderr}");
        assert!(stderr.contains("before: ") && !stderr.contains("after: "), "{task}: {stderr}");
        let line = format!(
            "error: {}: a weight file shrank or its disk failed while it was mapped; \
             load the model again",
            path.display()
        );
        assert_eq!(stderr.lines().filter(|l| *l == line).count(), 1, "{task}: {stderr}");
    }
}

#[test]
fn without_harm_the_child_survives() {
    let (_, output) = run_child("fine");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.contains("survived"), "{stderr}");
}

#[test]
fn another_sigbus_is_not_ours() {
    use std::os::unix::process::ExitStatusExt;
    let (_, output) = run_child("other");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), None, "{stderr}");
    // SIGBUS is 7 on Linux and 10 on macOS and the BSDs.
    assert!(matches!(output.status.signal(), Some(7 | 10)), "{:?} {stderr}", output.status);
    assert!(!stderr.contains("weight file"), "{stderr}");
}
