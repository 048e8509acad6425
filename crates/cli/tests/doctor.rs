//! `plimsoll doctor` on this machine's CPU, and on the clock that has no memory.
//!
//! What each planted fault leads to is tested beside the checks themselves; here the evidence is a real run's.

#![expect(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]
#![cfg(feature = "embed-demo")]

mod support;

use serde_json::Value;
use support::Folder;

/// Doctor's JSON, whatever its verdict, and its exit code.
fn doctor(folder: &Folder, arguments: &[&str]) -> (Value, Option<i32>) {
    let mut all = vec!["doctor", "--json"];
    all.extend(arguments);
    let output = folder.recorded(&all).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let json = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{errors}"));
    (json, output.status.code())
}

fn line<'v>(found: &'v Value, check: &str) -> &'v Value {
    let lines = found["lines"].as_array().unwrap();
    lines.iter().find(|line| line["check"] == check).unwrap()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn a_healthy_run_passes_and_leaves_records() {
    let folder = Folder::new();
    let (found, code) = doctor(&folder, &["--device", "cpu", "--vram", "12MiB"]);
    // How busy the machine is beside the tests is not this program's to say: time may fail, and nothing else.
    for line in found["lines"].as_array().unwrap() {
        if line["check"] != "time" {
            assert_eq!(line["verdict"], "pass", "{line}");
        }
        assert_eq!(line["verdict"] == "pass", line["cause"].is_null(), "{line}");
    }
    let is_failed = line(&found, "time")["verdict"] == "fail";
    assert_eq!(code, Some(i32::from(is_failed)));
    assert_eq!(found["verdict"] == "fail", is_failed);

    // The arena is taken and given back, and its scan says what the plan said.
    assert_eq!(found["meter"], "process");
    let runs = found["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 3);
    for run in runs {
        let vram = &run["vram"];
        assert_eq!((&vram["idle_bytes"], &vram["idle_again_bytes"]), (&0.into(), &0.into()));
        let denoise = &vram["phases"][2];
        assert_eq!(denoise["phase"], "denoise");
        assert!(number(&denoise["readings"]) >= 8, "{denoise}");
        assert!(number(&denoise["least_bytes"]) >= number(&run["high_water_bytes"]));
        assert_eq!(run["high_water_bytes"], run["predicted"]["vram_peak_bytes"]);
        assert_eq!(run["plan_id"], runs[0]["plan_id"]);
    }
    let names: Vec<_> = found["components"].as_array().unwrap().iter().collect();
    assert_eq!(names.len(), 4);
    assert!(names.iter().all(|one| one["weights_bytes"][0][0] == "bf16"), "{names:?}");

    // Three records as of any run, the later ones repeats of the first; no picture.
    let list = folder.json(&["runs", "list"]);
    assert_eq!(list["total"], 3);
    let first = folder.show(runs[0]["run_id"].as_str().unwrap());
    assert_eq!(first["repeats"], 2);
    assert_eq!(first["load"]["plan_id"], runs[0]["plan_id"]);
    assert_eq!(first["findings"].as_array().unwrap().len(), usize::from(is_failed));
    assert!(folder.files().iter().all(|name| !name.ends_with(".png")));
    folder.ok(&["runs", "repeat", "last", "-n", "1"]);
}

#[test]
fn the_simulated_device_says_what_it_cannot_know() {
    let folder = Folder::new();
    let (found, code) = doctor(&folder, &["--device", "sim", "--records", "off"]);
    assert_eq!((code, &found["verdict"]), (Some(0), &"pass".into()));
    for check in ["flat_over_steps", "back_to_idle", "dtypes", "time", "same_bits"] {
        let line = line(&found, check);
        assert_eq!(line["verdict"], "unknown", "{line}");
        assert!(line["cause"].is_string());
    }
    assert_eq!(line(&found, "peak")["verdict"], "pass");
    folder.refused(&["runs", "list"], 4, "no records yet");
    let text = folder.ok(&["doctor", "--device", "sim", "--records", "off"]);
    assert!(text.contains("not known: the simulated device holds no memory"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn what_cannot_run_is_refused_as_by_generate_and_recorded() {
    let folder = Folder::new();
    folder.refused(&["doctor", "--device", "cpu", "--vram", "2MiB"], 3, "smallest");
    assert_eq!(folder.show("last")["run"]["status"], "refused");
    folder.refused(&["doctor", "--model", "/no/such", "--device", "cpu"], 4, "/no/such");
    folder.refused(&["doctor", "--device", "cuda:77"], if has_driver() { 2 } else { 5 }, "");
}

fn has_driver() -> bool {
    std::path::Path::new("/dev/nvidiactl").exists()
}

#[test]
fn eight_bits_are_seen_in_the_transformer_and_nowhere_else() {
    let folder = Folder::new();
    // Put in 8 bits on its way where it is copied once, and packed beforehand where it is streamed.
    for vram in ["max", "min"] {
        let fp8 = ["--device", "cpu", "--dtype", "transformer=fp8", "--vram", vram];
        let (found, _) = doctor(&folder, &fp8);
        for check in ["dtypes", "streamed", "peak", "back_to_idle", "same_bits"] {
            let line = line(&found, check);
            assert_eq!(line["verdict"], "pass", "{vram}: {line}");
        }
        for component in found["components"].as_array().unwrap() {
            let is_transformer = component["component"] == "transformer";
            let expected = if is_transformer { "f8_e4m3" } else { "bf16" };
            assert_eq!(component["weights_bytes"][0][0], expected, "{vram}: {component}");
            assert_eq!(component["expected"], expected);
        }
    }
    let quantization = &folder.show("last")["conditions"]["quantization"];
    assert_eq!(quantization, "fp8 e4m3 (transformer)");
}
