//! An end at once carries out nothing that a library has registered for a usual one.
//!
//! The one that ends is a child: this very test binary, asked by an environment variable.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

const TASK: &str = "PLIMSOLL_TEST_END";

/// As a library that crashes while another thread uses it.
extern "C" fn crash() {
    // SAFETY: ends the process.
    unsafe { libc::raise(libc::SIGKILL) };
}

/// The child's part; a test that passes when nobody asks it for anything.
#[test]
fn victim() {
    let Ok(task) = std::env::var(TASK) else {
        return;
    };
    // SAFETY: `crash` takes nothing and lives as long as the program.
    assert_eq!(unsafe { libc::atexit(crash) }, 0);
    match task.as_str() {
        "now" => std::thread::spawn(|| plimsoll_host::end_now(130)).join().unwrap(),
        _ => std::process::exit(130),
    }
}

#[test]
fn nothing_is_done_at_an_end_at_once() {
    let code = |task: &str| {
        let mut child = Command::new(std::env::current_exe().unwrap());
        let child = child.args(["--exact", "victim", "--test-threads=1"]).env(TASK, task);
        child.output().unwrap().status.code()
    };
    assert_eq!(code("now"), Some(130));
    assert_eq!(code("usual"), None, "the test's own crash");
}
