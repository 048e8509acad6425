//! What comes from strangers: files that are none, names that a terminal would obey, limits of the system.

#![cfg(all(unix, feature = "embed-demo"))]
#![expect(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod support;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Folder, PROMPT, copy_folder, repository};

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

/// Title, colours, a control sequence in one character, and letters that are shown from right to left.
const HOSTILE: &str =
    "a\u{1b}]0;title\u{7}\u{1b}[31m\u{7f}\u{9b}2J\u{202e}\u{2066}\u{61c}\r\nmodel on b";

fn obeyed(text: &str) -> bool {
    let is_direction = |letter: char| matches!(letter, '\u{61c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.contains(|c: char| c != '\n' && (c.is_control() || is_direction(c)))
}

#[test]
fn a_terminal_is_told_nothing_by_names_and_notes() {
    let folder = Folder::new();
    let model = folder.path("m");
    copy_folder(&repository("tests/golden/schnell-tiny"), &model);
    let defaults = json!({ "name": HOSTILE, "width": 64, "height": 64, "text_tokens": 16 });
    std::fs::write(model.join("plimsoll.json"), defaults.to_string()).unwrap();
    let index = std::fs::read_to_string(model.join("model_index.json")).unwrap();
    let mut index: Value = serde_json::from_str(&index).unwrap();
    index["scheduler"][1] = Value::from(HOSTILE);
    std::fs::write(model.join("model_index.json"), index.to_string()).unwrap();

    let plan = folder.ok(&["plan", "--model", "m", "--device", "cpu"]);
    assert!(plan.starts_with("a\\u001b]0;title") && !obeyed(&plan), "{plan:?}");
    assert!(!plan.contains("\nmodel on b"), "{plan:?}");
    assert_eq!(folder.json(&["plan", "--model", "m", "--device", "cpu"])["model"], HOSTILE);
    let inspected = folder.ok(&["inspect", "m"]);
    assert!(!obeyed(&inspected) && !inspected.contains("\nmodel on b"), "{inspected:?}");
    let inspected = folder.ok(&["inspect", "m", "--json"]);
    assert!(!obeyed(&inspected), "{inspected:?}");
    let inspected: Value = serde_json::from_str(&inspected).unwrap();
    let components = inspected["components"].as_array().unwrap();
    assert!(components.iter().any(|part| part["class_name"] == HOSTILE), "{inspected}");

    // The path too: the picture's name is printed.
    let words = ["generate", HOSTILE, "--model", "m", "--device", "cpu", "-o", "a\u{1b}[31m.png"];
    let drawn = folder.ok(&words);
    assert!(drawn.contains("a\\u001b[31m.png") && !obeyed(&drawn), "{drawn:?}");
    folder.ok(&["runs", "judge", "last", "--verdict", "pass", "--note", HOSTILE]);
    for format in [&["--csv"][..], &["--md"], &["--json"], &[]] {
        let shown = folder.ok(&[&["runs", "show", "last"], format].concat());
        assert!(shown.contains("\\u001b") && !obeyed(&shown), "{format:?}: {shown:?}");
    }
    assert_eq!(folder.show("last")["quality"]["quality_note"], HOSTILE);
    let (code, errors) = told(&folder.run(&["inspect", HOSTILE]));
    assert_eq!((code, errors.lines().count()), (Some(4), 1), "{errors:?}");
    assert!(errors.contains("\\u001b") && !obeyed(&errors), "{errors:?}");
}

/// The system's own answer to a file that grows beyond the limit is a signal.
#[test]
fn a_file_that_may_not_grow_is_an_error_like_others() {
    let folder = Folder::new();
    let limited = |verb: &str| {
        let script = format!("ulimit -f 1; exec {} {verb}", env!("CARGO_BIN_EXE_plimsoll"));
        let mut command = Command::new("sh");
        command.args(["-c", &script]).current_dir(folder.0.path());
        told(&soon(command.env("PLIMSOLL_RECORDS", "off").env("CUDA_VISIBLE_DEVICES", "")))
    };
    for verb in [
        "generate 'red apple' --device cpu --steps 1",
        "pack --model demo -o packed",
        "plan --model flux.1-schnell --gpu rtx-4090 --timeline a.svg",
    ] {
        let (code, errors) = limited(verb);
        assert_eq!((code, errors.lines().count()), (Some(5), 1), "{verb}: {errors}");
        assert!(errors.contains("File too large"), "{verb}: {errors}");
        assert_eq!(folder.files(), [""; 0], "{verb}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn help_that_cannot_be_written_is_told() {
    let folder = Folder::new();
    for words in [&["--help"][..], &["--version"], &["generate", "--help"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = folder.command(words).stdout(full).output().unwrap();
        let (code, errors) = told(&output);
        assert_eq!((code, errors.lines().count()), (Some(5), 1), "{words:?}: {errors}");
        assert!(errors.contains("standard output"), "{words:?}: {errors}");
    }
}

#[test]
fn an_argument_that_is_no_text_is_named() {
    let folder = Folder::new();
    let bad = OsStr::from_bytes(b"a\xffb");
    for (words, text) in [
        (vec!["generate", PROMPT, "-o", "?", "--model", "?"], "of --model is not text"),
        (vec!["generate", PROMPT, "--vram", "?", "-o", "?"], "of --vram is not text"),
        (vec!["generate", "?"], "the argument \"a\u{fffd}b\" is not text"),
    ] {
        let mut command = folder.command(&[]);
        command.args(words.iter().map(|word| if *word == "?" { bad } else { OsStr::new(word) }));
        let (code, errors) = told(&command.output().unwrap());
        assert_eq!((code, errors.lines().count()), (Some(2), 1), "{words:?}: {errors}");
        assert!(errors.contains(text), "{words:?}: {errors}");
    }
}
