//! Shared by the tests of the binary: a folder of its own for each, and no trace in the user's records.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

pub(crate) const PROMPT: &str = "ice cream, 3d rendered emoji";

pub(crate) fn demo() -> String {
    repository("demo/model").display().to_string()
}

pub(crate) fn repository(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(relative)
}

pub(crate) fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// A folder for one test, with a store of records of its own.
pub(crate) struct Folder(pub(crate) TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Nothing is recorded, whatever the user's environment says, and no card is used: these tests' lines are lower than
    /// what a card's context takes.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        command.current_dir(self.0.path()).args(arguments).stdin(Stdio::null());
        command.env("PLIMSOLL_RECORDS", "off").env("CUDA_VISIBLE_DEVICES", "");
        // What is packed for a run that streams stays in the folder too.
        command.env("XDG_CACHE_HOME", self.path(".cache"));
        command
    }

    /// Recorded in the folder's own store.
    pub(crate) fn recorded(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(arguments);
        command.env("PLIMSOLL_RECORDS", self.path("store/records.db"));
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// A `generate` of the demo model's folder that must succeed; its JSON.
    pub(crate) fn generate(&self, arguments: &[&str]) -> Value {
        let model = demo();
        let mut all = vec!["generate", PROMPT, "--model", &model, "--json"];
        all.extend(arguments);
        let output = self.run(&all);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {errors}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// A recorded command that must succeed; its standard output.
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let output = self.recorded(arguments).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// A recorded command that must succeed; its JSON.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let mut all = arguments.to_vec();
        all.push("--json");
        serde_json::from_str(&self.ok(&all)).unwrap()
    }

    /// A recorded command that must fail with `code` and one line that holds `text`.
    pub(crate) fn refused(&self, arguments: &[&str], code: i32, text: &str) {
        let output = self.recorded(arguments).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
        assert!(errors.contains(text), "{arguments:?}: {errors}");
        let lines = errors.lines().filter(|line| !line.starts_with("plimsoll: recorded as"));
        assert_eq!(lines.count(), 1, "{arguments:?}: {errors}");
    }

    /// A recorded `generate` on the CPU that must succeed; its JSON.
    pub(crate) fn draw(&self, arguments: &[&str]) -> Value {
        let mut all = vec!["generate", PROMPT, "--device", "cpu", "--steps", "2"];
        all.extend(arguments);
        self.json(&all)
    }

    /// What the store says of a run.
    pub(crate) fn show(&self, run: &str) -> Value {
        self.json(&["runs", "show", run])
    }

    pub(crate) fn files(&self) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(self.0.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}
