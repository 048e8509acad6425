//! What comes from strangers: files that are none, names that a terminal would obey, limits of the system.

#![cfg(all(unix, feature = "embed-demo"))]
#![expect(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod support;

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use support::Folder;

/// The output of a command that ends within some seconds; one that waits for ever is ended.
fn soon(command: &mut Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > Duration::from_secs(30) {
            child.kill().unwrap();
            panic!("{command:?} waits");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

fn told(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn what_is_no_regular_file_is_refused_and_not_waited_for() {
    let folder = Folder::new();
    folder.draw(&["-o", "a.png"]);
    assert!(Command::new("mkfifo").arg(folder.path("pipe")).status().unwrap().success());
    for path in ["pipe", "/dev/zero", "."] {
        for words in [
            vec!["runs", "import", path],
            vec!["runs", "--criteria", path, "list"],
            vec!["plan", "--model", "flux.1-dev", "--machine", path],
        ] {
            let (code, errors) = told(&soon(&mut folder.recorded(&words)));
            assert_eq!(code, Some(4), "{words:?}: {errors}");
            assert!(errors.contains("no regular file"), "{words:?}: {errors}");
            assert_eq!(errors.lines().count(), 1, "{words:?}: {errors}");
        }
    }
}
