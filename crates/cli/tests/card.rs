//! Cards that are absent, old, busy or broken: one clear line and an exit code each. The driver is made up.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

#[path = "../../device-cuda/tests/fake/mod.rs"]
mod fake;
mod support;

use std::process::Output;

use serde_json::Value;
use support::{Folder, PROMPT, demo};

struct Card {
    folder: Folder,
    driver: tempfile::TempDir,
}

impl Card {
    fn new() -> Option<Self> {
        Some(Self { driver: fake::folder()?, folder: Folder::new() })
    }

    fn run(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
        let mut command = self.folder.command(arguments);
        command.env("LD_LIBRARY_PATH", self.driver.path()).envs(environment.iter().copied());
        // Profiles of cards, and where libraries are looked for.
        command.env("XDG_CONFIG_HOME", self.folder.0.path()).env_remove("VIRTUAL_ENV");
        command.output().unwrap()
    }

    /// A small picture of the demo model on the card: all zeros, since kernels of this card do nothing.
    fn generate(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
        let model = demo();
        let mut all = vec![
            "generate",
            PROMPT,
            "--model",
            &model,
            "--json",
            "--steps",
            "2",
            "--width",
            "64",
            "--height",
            "48",
            "--kernels",
            "own",
            "--device",
            "cuda",
        ];
        all.extend(arguments);
        self.run(&all, environment)
    }
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn lines(output: &Output) -> usize {
    errors(output).lines().count()
}

/// Must fail with `code` and one line that holds every text.
fn refused(output: &Output, code: i32, texts: &[&str]) {
    let errors = errors(output);
    assert_eq!(output.status.code(), Some(code), "{errors}");
    assert!(texts.iter().all(|text| errors.contains(text)), "{errors}");
    assert_eq!(lines(output), 1, "{errors}");
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", errors(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn what_cannot_be_used_is_refused_in_one_line() {
    let Some(card) = Card::new() else { return };
    let old = card.generate(&[], &[("FAKE_CUDA_VERSION", "11080")]);
    refused(&old, 5, &["the NVIDIA driver speaks CUDA 11.8", "install driver 525 or newer"]);
    let volta = card.generate(&[], &[("FAKE_CUDA_MAJOR", "7")]);
    let texts = ["compute capability 7.0", "8.0 to 9.0, 10.0 and 12.0 work in bf16", "f16 and f32"];
    refused(&volta, 5, &texts);
    let missing = card.generate(&["--device", "cuda:3"], &[("FAKE_CUDA_COUNT", "2")]);
    // The last one typed counts nothing: an option is given once.
    assert_eq!(missing.status.code(), Some(2));
    let model = demo();
    let third = ["generate", PROMPT, "--model", &model, "--device", "cuda:3"];
    let missing = card.run(&third, &[("FAKE_CUDA_COUNT", "2")]);
    refused(&missing, 2, &["there is no CUDA device 3: this machine has 2"]);
}

#[test]
fn without_being_asked_for_a_bad_card_is_left_alone() {
    let Some(card) = Card::new() else { return };
    let model = demo();
    let auto = [
        "generate", PROMPT, "--model", &model, "--json", "--steps", "1", "--width", "64",
        "--height", "48",
    ];
    for environment in [("FAKE_CUDA_VERSION", "11080"), ("FAKE_CUDA_MAJOR", "7")] {
        let made = card.run(&auto, &[environment]);
        assert_eq!(json(&made)["device"], "cpu");
        assert!(errors(&made).contains("the CPU is used: "), "{}", errors(&made));
    }
}

#[test]
fn a_card_that_works_makes_a_picture() {
    let Some(card) = Card::new() else { return };
    let made = card.generate(&[], &[]);
    assert_eq!(json(&made)["device"], "cuda");
    let held = json(&made)["measured"]["vram_process_bytes"].as_u64().unwrap();
    assert!(held <= json(&made)["vram_line_bytes"].as_u64().unwrap(), "{held}");
}

#[test]
fn a_missing_library_is_said_and_own_kernels_go_on() {
    let Some(card) = Card::new() else { return };
    let model = demo();
    let auto = [
        "generate", PROMPT, "--model", &model, "--json", "--steps", "1", "--width", "64",
        "--height", "48", "--device", "cuda",
    ];
    let made = card.run(&auto, &[]);
    assert_eq!(json(&made)["device"], "cuda");
    if !errors(&made).is_empty() {
        assert!(errors(&made).contains("cuBLASLt was not found: products"), "{}", errors(&made));
    }
}

#[test]
fn memory_that_others_hold_is_planned_around_or_the_card_is_busy() {
    let Some(card) = Card::new() else { return };
    let gib = |count: u64| (count << 30).to_string();
    // 5 of 8 GiB are left: 80 % of them.
    let made = card.generate(&[], &[("FAKE_CUDA_OTHERS", &gib(3))]);
    let line = json(&made)["vram_line_bytes"].as_u64().unwrap();
    assert!(line <= 4 << 30, "{line}");
    assert!(errors(&made).contains("other processes hold 3.00 GiB of the card's 8.00 GiB"));
    assert_eq!(lines(&made), 1, "{}", errors(&made));
    // A line that is stated is not crossed and need not be reached.
    let made = card.generate(&["--vram", "6GiB"], &[("FAKE_CUDA_OTHERS", &gib(3))]);
    assert!(json(&made)["vram_line_bytes"].as_u64().unwrap() <= 5 << 30);
    // The context just fits, the smallest plan of a large picture does not.
    let most = ((8u64 << 30) - (140 << 20)).to_string();
    let model = demo();
    for line in ["max", "min", "80%", "2GiB"] {
        let large = [
            "generate",
            PROMPT,
            "--model",
            &model,
            "--width",
            "512",
            "--height",
            "512",
            "--kernels",
            "own",
            "--device",
            "cuda",
            "--vram",
            line,
        ];
        let busy = card.run(&large, &[("FAKE_CUDA_OTHERS", &most)]);
        let errors = errors(&busy);
        assert_eq!(busy.status.code(), Some(5), "{line}: {errors}");
        assert!(errors.contains("the card is busy: ") && errors.contains("are free"), "{errors}");
    }
    // What fits no card of this size stays impossible, whoever holds the rest.
    let small = card.generate(&["--vram", "70MiB"], &[("FAKE_CUDA_OTHERS", &gib(3))]);
    assert_eq!(small.status.code(), Some(3), "{}", errors(&small));
}

#[test]
fn an_error_that_stays_ends_the_process_with_its_cause() {
    let Some(card) = Card::new() else { return };
    for launch in ["1", "2", "40", "200"] {
        let broken = card.generate(&[], &[("FAKE_CUDA_FAIL_LAUNCH", launch)]);
        let texts = ["cuLaunchKernel failed: 700: an illegal memory access was encountered"];
        refused(&broken, 5, &texts);
    }
}

#[test]
fn pinning_that_is_refused_is_told_and_changes_no_bits() {
    let Some(card) = Card::new() else { return };
    let pinned = json(&card.generate(&[], &[]));
    let refused = [("FAKE_CUDA_PINNING", "0"), ("FAKE_CUDA_REGISTERING", "0")];
    let output = card.generate(&[], &refused);
    let pageable = json(&output);
    assert_eq!(pinned["latent_sha256"], pageable["latent_sha256"]);
    assert_eq!(pinned["image_sha256"], pageable["image_sha256"]);
    let told = errors(&output);
    assert_eq!(told.matches("memory for copies cannot be pinned").count(), 1, "{told}");
    assert_eq!(lines(&output), 1, "{told}");
}
