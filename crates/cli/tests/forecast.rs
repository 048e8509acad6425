//! `plan` by name and `ledger`, as a person types them: what is printed, how wide, and how it fails.
#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use std::process::{Command, Output};

use plimsoll_device_cuda::profile::CardProfile;
use plimsoll_ledger::{Answer, FORECAST_VERSION};

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
        &["plan", "--model", "wan2.2-t2v-a14b", "--gpu", "rtx-4070", "--strategies"],
        &[
            "plan",
            "--model",
            "flux.1-dev",
            "--gpu",
            "rtx-4070",
            "--controlnets",
            "2",
            "--lora-rank",
            "64",
        ],
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

/// The same bytes each time, and again after they were read into the types of the schema.
#[test]
fn json_is_the_same_each_time_and_reads_back() {
    let cases: [&[&str]; 5] = [
        &["--model", "sdxl", "--gpu", "h200", "--curve", "3"],
        &["--model", "flux.1-dev", "--gpu", "rtx-4080", "--strategies", "--lora-rank", "16"],
        &["--model", "wan2.2-t2v-a14b", "--gpu", "rtx-4070", "--size", "832x480", "--frames", "17"],
        &["--model", "flux.2-dev", "--gpu", "rtx-4090", "--ram", "16GiB", "--disk", "7GB"],
        &["--model", "z-image-turbo", "--gpu", "rtx-4060", "--vae-tile", "512", "--vram", "min"],
    ];
    for case in cases {
        let args = [&["plan", "--json"], case].concat();
        let (first, second) = (text(&plimsoll(&args)), text(&plimsoll(&args)));
        assert_eq!(first, second);
        let answer: Answer = serde_json::from_str(&first).unwrap();
        assert_eq!(serde_json::to_string(&answer).unwrap(), first.trim_end(), "{case:?}");
        let Answer::Forecast(report) = answer else { panic!("{case:?}") };
        assert_eq!(report.version, FORECAST_VERSION);
        assert!(report.predicted.vram_bytes <= report.vram_line_bytes);
    }
    let args = ["plan", "--json", "--model", "flux.2-dev", "--gpu", "rtx-4060", "--vram", "1GiB"];
    let refused = plimsoll(&args);
    assert_eq!(refused.status.code(), Some(3));
    let refused = String::from_utf8(refused.stdout).unwrap();
    let answer: Answer = serde_json::from_str(&refused).unwrap();
    assert_eq!(serde_json::to_string(&answer).unwrap(), refused.trim_end());
    assert!(matches!(answer, Answer::Refusal(_)));
}

/// The committed schema is the one that this build prints, and it names every field that is printed.
#[test]
fn the_schema_in_the_documentation_is_current() {
    let printed = text(&plimsoll(&["plan", "--json-schema"]));
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/forecast.schema.json");
    if std::env::var_os("PLIMSOLL_WRITE_SCHEMA").is_some() {
        std::fs::write(file, &printed).unwrap();
    }
    let kept = std::fs::read_to_string(file).unwrap();
    assert_eq!(printed, kept, "PLIMSOLL_WRITE_SCHEMA=1 writes it anew");
    let args = ["plan", "--json", "--model", "sdxl", "--gpu", "h200", "--curve", "2"];
    let value: serde_json::Value =
        serde_json::from_str(&text(&plimsoll(&[&args[..], &["--strategies"]].concat()))).unwrap();
    fn fields(value: &serde_json::Value, found: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(object) => {
                for (key, value) in object {
                    found.push(key.clone());
                    fields(value, found);
                }
            }
            serde_json::Value::Array(all) => all.iter().for_each(|value| fields(value, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    fields(&value, &mut found);
    for field in found {
        assert!(kept.contains(&format!("\"{field}\"")), "{field}");
    }
}

#[test]
fn bad_questions_are_one_line() {
    let cases: [(&[&str], i32, &str); 33] = [
        (&["--model", "sdxl", "--gpu", "h100", "--size", "0x0"], 2, "width is 0"),
        (&["--model", "flux.1-dev", "--gpu", "rtx-9999"], 2, "the nearest are"),
        (&["--model", "flux1", "--gpu", "h100"], 2, "the nearest are flux.1-dev"),
        (&["--model", "flux.1-dev", "--gpu", "h100", "--bus", "isa"], 2, "pcie"),
        (&["--model", "wan2.1-t2v-14b", "--gpu", "h100", "--frames", "80"], 2, "77 or 81"),
        (&["--model", "hunyuanvideo", "--gpu", "h100", "--frames", "0"], 2, "1 or 5"),
        (&["--model", "sdxl", "--gpu", "h100", "--row-chunks", "2"], 2, "takes no row chunks"),
        (&["--model", "wan2.2-t2v-a14b", "--gpu", "h100", "--row-chunks", "65"], 2, "than 64"),
        (
            &["--model", "flux.1-dev", "--gpu", "h100", "--size", "13952x48", "--vae-tile", "256"],
            2,
            "32 side by side",
        ),
        (&["--model", "sdxl", "--gpu", "h100", "--controlnets", "1"], 2, "FLUX.1"),
        (&["--model", "sdxl", "--gpu", "h100", "--frames", "5"], 2, "frames"),
        (&["--model", "sdxl", "--gpu", "h100", "--size", "1000x1000"], 2, "a multiple of"),
        (&["--model", "sdxl", "--gpu", "h100", "--size", "big"], 2, "WIDTHxHEIGHT"),
        (&["--model", "sdxl", "--gpu", "h100", "--steps", "0"], 2, "steps is 0"),
        (&["--model", "sdxl", "--gpu", "h100", "--steps", "-3"], 2, "-3"),
        (&["--model", "flux.1-dev", "--gpu", "h100", "--vae-tile", "100"], 2, "a multiple of 16"),
        (&["--model", "flux.1-dev", "--gpu", "h100", "--vae-tile", "0"], 2, "off, auto"),
        (&["--model", "flux.1-dev", "--gpu", "h100", "--lora-rank", "9999"], 2, "rank"),
        (&["--model", "flux.1-dev", "--gpu", "h100", "--ram", "1GiB"], 3, "bytes of RAM"),
        (&["--model", "flux.1-dev", "--gpu", "h100", "--ram", "80%"], 2, "expected a size"),
        (&["--model", "flux.1-dev", "--gpu", "h100", "--vram", "600MiB"], 3, "the smallest"),
        (&["--model", "flux.1-dev", "--gpu", "h100", "--vram", "0"], 2, "no memory at all"),
        (&["--model", "flux.1-dev", "--gpu", "h100", "--vram", "10EiB"], 2, "10EiB"),
        (&["--model", "flux.1-dev", "--gpu", "h100", "--vram", "6 G"], 2, "write 6GiB"),
        (&["--model", "flux.1-dev", "--gpu"], 2, "--gpu <NAME>"),
        (&["--model", "flux.1-dev", "--gpus", "h100"], 2, "--gpu"),
        (&["--model", "flux.1-dev", "--gpu", "h100", "--weights", "int3"], 2, "nf4"),
        (&["--model", "flux.1-dev", "--gpu", "h100", "--machine", "x"], 2, "cannot be used with"),
        (&["--model", "sdxl", "--machine", "/nonexistent"], 4, "cannot read"),
        (&["--model", "x", "--machine", "/nonexistent"], 2, "no model"),
        (&["--gpu", "h100"], 2, "demo is planned from its files"),
        (&["--model", "tests", "--gpu", "h100"], 2, "a published name only: flux.1-dev, "),
        (
            &["--model", "flux.1-dev", "--weights", "fp8", "--dtype", "transformer=fp8"],
            2,
            "the same thing",
        ),
    ];
    for (args, code, word) in cases {
        let output = plimsoll(&[&["plan"], args].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
        assert!(error.contains(word), "{args:?}: {error}");
        assert_eq!(error.trim_end().lines().count(), 1, "{args:?}: {error}");
    }
    // Every verb, not only this one.
    for args in
        [&["generate"][..], &["generate", "x", "--vram", "0"], &["nonsense"], &["runs", "x"]]
    {
        let output = plimsoll(args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert_eq!(error.trim_end().lines().count(), 1, "{args:?}: {error}");
    }
    let help = plimsoll(&["plan", "--help"]);
    assert!(help.status.success() && help.stdout.len() > 1_000 && help.stderr.is_empty());
}

/// Without --gpu a card is taken and named, on the other stream than the result.
#[test]
fn a_question_without_a_card_is_answered_for_one_that_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let ask = |more: &[&str]| {
        let args = [&["plan", "--model", "flux.1-dev", "--strategies"], more].concat();
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        command.args(args).env("XDG_CONFIG_HOME", folder.path()).output().unwrap()
    };
    let output = ask(&["--vram", "12GiB", "--device", "cpu"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("planned for "), "{said}");
    assert!(text(&output).contains("recommended: "));

    // A card that was probed here comes first, and a slow link is worth a word.
    let cards = folder.path().join("plimsoll/cards");
    std::fs::create_dir_all(&cards).unwrap();
    let slow = CardProfile { link_bytes_per_second: 5e9, ..CardProfile::h200() };
    slow.save(&cards).unwrap();
    let output = ask(&[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("NVIDIA H200 as `plimsoll probe` measured it"), "{said}");
    assert!(said.contains("11 times slower than pcie5x16"), "{said}");
}

/// Report 46: what RAM does not hold comes from a disk, which is said, and is asked for.
#[test]
fn report_46_rates_are_told() {
    let args = ["plan", "--model", "flux.1-dev", "--gpu", "rtx-4070", "--ram", "8GiB"];
    let output = plimsoll(&args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("a disk of 3.5 GB/s is assumed"), "{said}");
    let told = text(&output);
    assert!(told.contains("bound by disk") && told.contains("at 3.5 GB/s"), "{told}");
    let fast = text(&plimsoll(&[&args[..], &["--disk", "14GB"]].concat()));
    assert!(fast.contains("at 14.0 GB/s"), "{fast}");
}

/// What `--dtype` says of a folder it says of a model by name; both spellings are one plan.
#[test]
fn fp8_by_either_option_is_one_plan() {
    let args = ["plan", "--json", "--model", "flux.1-dev", "--gpu", "rtx-4080"];
    let of = |more: &[&str]| text(&plimsoll(&[&args[..], more].concat()));
    let fp8 = of(&["--weights", "fp8"]);
    assert_eq!(fp8, of(&["--dtype", "transformer=fp8"]));
    assert_ne!(fp8, of(&[]));
    let Answer::Forecast(report) = serde_json::from_str(&fp8).unwrap() else { panic!("it fits") };
    assert!(report.runs, "pack writes it, and a device runs it");
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
