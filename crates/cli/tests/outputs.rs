//! What an output must not take the place of, and a cache that was damaged.

#![expect(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod support;

use std::path::Path;

use support::{Folder, PROMPT, demo};

/// A folder with links to the files of the demo model and a copy of one.
fn model(folder: &Folder) -> String {
    let (from, to) = (demo(), folder.path("m"));
    for part in ["", "scheduler", "text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2"]
        .iter()
        .chain(&["transformer", "vae"])
    {
        std::fs::create_dir_all(to.join(part)).unwrap();
        for entry in std::fs::read_dir(Path::new(&from).join(part)).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                std::fs::copy(entry.path(), to.join(part).join(entry.file_name())).unwrap();
            }
        }
    }
    to.display().to_string()
}

#[test]
fn an_output_never_takes_the_place_of_the_store_or_of_the_model() {
    let folder = Folder::new();
    folder.draw(&["-o", "first.png"]);
    let model = model(&folder);
    std::fs::create_dir_all(folder.path("store")).unwrap();
    let mut taken = vec![
        vec!["-o", "store/records.db"],
        vec!["-o", "store/records.db-wal"],
        vec!["-o", "store/../store/records.db-shm"],
        vec!["--trace", "store/records.db"],
        vec!["--save-tensors", "store/records.db"],
    ];
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(folder.path("store/records.db"), folder.path("link.png"))
            .unwrap();
        taken.push(vec!["-o", "link.png"]);
    }
    let draw = |arguments: &[&str]| -> Vec<String> {
        let all = ["generate", PROMPT, "--device", "cpu", "--steps", "1"];
        all.iter().chain(arguments).map(|word| (*word).to_owned()).collect()
    };
    for arguments in &taken {
        let words = draw(arguments);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        folder.refused(&words, 2, "the store of records");
    }
    let weights = folder.path("m/text_encoder_2/model.safetensors");
    let before = std::fs::read(&weights).unwrap();
    for option in ["-o", "--trace"] {
        let target = weights.display().to_string();
        let words = draw(&["--model", &model, option, &target]);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        folder.refused(&words, 2, "a file of the model");
    }
    assert!(before == std::fs::read(&weights).unwrap());
    // Pictures in the model's folder come and go.
    for _ in 0..2 {
        folder.draw(&["--model", &model, "-o", "m/ice.png"]);
    }
    let listed = folder.json(&["runs", "list"]);
    let listed =
        listed.as_array().map_or_else(|| listed["runs"].as_array().unwrap().len(), Vec::len);
    assert_eq!(listed, 3 + taken.len() + 2, "every run is still there");
}

#[test]
fn a_drawing_never_takes_the_place_of_the_store_or_of_what_is_no_file() {
    let folder = Folder::new();
    folder.draw(&["-o", "first.png"]);
    std::fs::rename(folder.path("store/records.db"), folder.path("store/records.svg")).unwrap();
    let plan = |option: &str, path: &str| {
        let words = ["plan", "--model", "flux.1-schnell", "--gpu", "rtx-4090", option, path];
        let mut command = folder.recorded(&words);
        command.env("PLIMSOLL_RECORDS", folder.path("store/records.svg"));
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let store = std::fs::read(folder.path("store/records.svg")).unwrap();
    std::fs::create_dir(folder.path("folder.svg")).unwrap();
    for option in ["--timeline", "--curve"] {
        for (path, text) in [
            ("store/records.svg", "the store of records"),
            ("store/../store/records.svg", "the store of records"),
            ("folder.svg", "not a regular file"),
            ("no/such/folder/a.svg", "no/such/folder"),
        ] {
            let (code, errors) = plan(option, path);
            assert_eq!(code, Some(2), "{option} {path}: {errors}");
            assert!(errors.contains(text), "{option} {path}: {errors}");
        }
    }
    assert_eq!(plan("--timeline", "/dev/null").0, Some(2));
    assert!(store == std::fs::read(folder.path("store/records.svg")).unwrap());
    let both = ["plan", "--model", "flux.1-schnell", "--curve", "a.svg", "--timeline", "a.svg"];
    folder.refused(&both, 2, "are both a.svg");
    // One that was there before is replaced in one step: who reads it meanwhile has the whole of the old one.
    std::fs::write(folder.path("a.svg"), "old").unwrap();
    std::fs::hard_link(folder.path("a.svg"), folder.path("kept.svg")).unwrap();
    assert_eq!(plan("--timeline", "a.svg").0, Some(0));
    assert!(std::fs::read_to_string(folder.path("a.svg")).unwrap().starts_with("<svg"));
    assert_eq!(std::fs::read_to_string(folder.path("kept.svg")).unwrap(), "old");
}

#[test]
fn a_damaged_file_in_the_cache_is_packed_anew() {
    let folder = Folder::new();
    let model = demo();
    let words = ["generate", PROMPT, "--model", &model, "--vram", "min", "--steps", "2", "--json"];
    let words: Vec<&str> = words.into_iter().chain(["--dtype", "transformer=fp8"]).collect();
    let run = || {
        let output = folder.run(&words);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (json["latent_sha256"].clone(), errors)
    };
    let (good, _) = run();
    let packed = folder.path(".cache/plimsoll/packed");
    let file = std::fs::read_dir(&packed)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
        .unwrap();
    let whole = std::fs::read(&file).unwrap();
    for damaged in [&[][..], &whole[..whole.len() / 2], &[b'x'; 100]] {
        std::fs::write(&file, damaged).unwrap();
        let (found, errors) = run();
        assert_eq!(found, good);
        assert!(errors.contains("is packed anew"), "{errors}");
        assert!(std::fs::read(&file).unwrap() == whole);
    }
    assert_eq!(run(), (good, String::new()));
}

#[test]
fn a_text_longer_than_the_model_reads_is_refused() {
    let folder = Folder::new();
    for tokens in ["33", "5000", "100000000"] {
        folder.refused(&["generate", PROMPT, "--text-tokens", tokens], 2, "reads 1 to 32");
    }
    folder.refused(
        &["plan", "--model", "flux.1-dev", "--device", "cpu", "--text-tokens", "513"],
        2,
        "reads 1 to 512",
    );
}
