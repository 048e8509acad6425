//! `plan` by name and `ledger`, as a person types them: what is printed, how wide, and how it fails.
#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use std::process::{Command, Output};

fn plimsoll(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plimsoll")).args(args).output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn tables_fit_a_terminal() {
    for args in [
        &["ledger", "--rule-of-thumb"][..],
        &["plan", "--model", "flux.1-dev", "--gpu", "rtx-4080", "--strategies", "--curve", "4"],
        &["plan", "--model", "wan2.1-t2v-14b", "--gpu", "rtx-5090", "--strategies"],
        &["plan", "--model", "sdxl", "--gpu", "rtx-4060"],
    ] {
        for line in text(&plimsoll(args)).lines() {
            assert!(line.chars().count() <= 100, "{args:?}: {line}");
        }
    }
}

#[test]
fn inputs_of_the_rules_are_options() {
    let slow = text(&plimsoll(&["ledger", "--rule-of-thumb", "--compute-per-step", "1.0"]));
    assert!(slow.contains("sequential with prefetch takes 0.0 s extra"), "{slow}");
    let usual = text(&plimsoll(&["ledger", "--rule-of-thumb"]));
    assert!(usual.contains("sequential with prefetch takes 22.3 s extra"), "{usual}");
    assert!(usual.contains("11 GB resident, or 3.6 GB and 0.14 s"), "{usual}");
}

#[test]
fn a_16_gb_card_gets_a_recommendation_with_its_reason() {
    let args = ["plan", "--model", "flux.1-dev", "--gpu", "rtx-4080", "--size", "1024x1024"];
    let told = text(&plimsoll(&[&args[..], &["--steps", "28", "--strategies"]].concat()));
    let line = told.lines().find(|line| line.starts_with("recommended:")).unwrap();
    assert!(line.contains("fp8"), "{line}");
    assert!(told.contains("since: ") && told.contains(" s a picture against "), "{told}");
    assert!(told.contains("band:") && told.contains("estimated"));
}

#[test]
fn json_has_a_version_and_is_the_same_each_time() {
    let args = ["plan", "--model", "sdxl", "--gpu", "h200", "--json", "--curve", "3"];
    let (first, second) = (text(&plimsoll(&args)), text(&plimsoll(&args)));
    assert_eq!(first, second);
    let value: serde_json::Value = serde_json::from_str(&first).unwrap();
    assert_eq!(value["version"], 1);
    assert_eq!(value["curve"]["points"].as_array().unwrap().len(), 3);
}

#[test]
fn bad_questions_are_one_line() {
    let cases: [(&[&str], i32, &str); 9] = [
        (&["--model", "flux.1-dev", "--gpu", "rtx-9999"], 2, "the nearest are"),
        (&["--model", "flux2", "--gpu", "h100"], 2, "the nearest are flux.1-dev"),
        (&["--model", "flux.1-dev", "--gpu", "h100", "--bus", "isa"], 2, "pcie"),
        (&["--model", "hunyuanvideo"], 2, "--gpu NAME"),
        (&["--model", "wan2.1-t2v-14b", "--gpu", "h100", "--frames", "80"], 2, "77 or 81"),
        (&["--model", "sdxl", "--gpu", "h100", "--row-chunks", "2"], 2, "takes no row chunks"),
        (&["--model", "flux.1-dev", "--gpu", "h100", "--ram", "1GiB"], 3, "bytes of RAM"),
        (&["--model", "flux.1-dev", "--gpu", "h100", "--vram", "1GiB"], 3, "the smallest"),
        (&["--model", "x", "--machine", "/nonexistent"], 2, "no model"),
    ];
    for (args, code, word) in cases {
        let output = plimsoll(&[&["plan"], args].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
        assert!(error.contains(word), "{args:?}: {error}");
        assert_eq!(error.trim_end().lines().count(), 1, "{args:?}: {error}");
    }
    for line in ["0", "10EiB", "6 G"] {
        let args = ["plan", "--model", "flux.1-dev", "--gpu", "h100", "--vram", line];
        assert_eq!(plimsoll(&args).status.code(), Some(2), "{line}");
    }
}

#[test]
fn drawings_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let [curve, timeline] = ["curve.svg", "timeline.svg"].map(|name| folder.path().join(name));
    let args = ["plan", "--model", "flux.1-schnell", "--gpu", "rtx-4090", "--vram", "8GiB"];
    let files = [curve.to_str().unwrap(), timeline.to_str().unwrap()];
    let more = ["--curve", files[0], "--timeline", files[1]];
    text(&plimsoll(&[&args[..], &more].concat()));
    for file in files {
        let picture = std::fs::read_to_string(file).unwrap();
        assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"));
    }
}
