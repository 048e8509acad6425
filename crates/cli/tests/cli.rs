//! The binary, as a person types it: each test in a folder of its own.

#![expect(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod support;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use support::{Folder, PROMPT, copy_folder, demo, repository};

/// Ends with `code`, prints one line that holds `text`, leaves no file.
fn refused(arguments: &[&str], code: i32, text: &str) {
    let folder = Folder::new();
    let output = folder.run(arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
    assert!(errors.contains(text), "{arguments:?}: {errors}");
    assert!(errors.trim_end().lines().count() <= 5, "{arguments:?}: {errors}");
    assert_eq!(folder.files(), [""; 0], "{arguments:?}");
}

fn refused_run(arguments: &[&str], code: i32, text: &str) {
    let model = demo();
    let mut all = vec!["generate", PROMPT, "--model", &model];
    all.extend(arguments);
    refused(&all, code, text);
}

fn number(value: &Value, path: &[&str]) -> u64 {
    let found = path.iter().fold(value, |value, key| &value[*key]);
    found.as_u64().unwrap_or_else(|| panic!("{path:?} is {found}"))
}

#[test]
fn ice_cream_under_a_line_smaller_than_the_transformer() {
    let folder = Folder::new();
    let line = 12 << 20;
    let json = folder.generate(&["--vram", "12MiB", "-o", "ice.png"]);
    assert_eq!(number(&json, &["vram_line_bytes"]), line);
    let peak = number(&json, &["measured", "vram_peak_bytes"]);
    assert!(peak <= line, "{peak} bytes");
    assert_eq!(peak, number(&json, &["predicted", "vram_peak_bytes"]));
    let streamed = number(&json, &["measured", "copied_bytes_per_step"]);
    assert_eq!(streamed, number(&json, &["predicted", "copied_bytes_per_step"]));
    assert!(streamed > 0);
    for key in ["output", "seed", "steps", "offload", "latent_sha256", "image_sha256", "plan_id"] {
        assert!(!json[key].is_null(), "no {key}");
    }
    for key in ["seconds_per_step", "seconds_total"] {
        assert!(json["measured"][key].as_f64().unwrap() > 0.0, "no {key}");
    }
    assert!(json["predicted"]["seconds_per_step"].as_f64().unwrap() > 0.0);
    assert_eq!(folder.files(), ["ice.png"]);
    let png = std::fs::read(folder.0.path().join("ice.png")).unwrap();
    let text = String::from_utf8_lossy(&png);
    let plan = json["plan_id"].as_str().unwrap();
    for chunk in ["prompt\0", PROMPT, "seed\0", "steps\0", "model\0", "plan\0", plan] {
        assert!(text.contains(chunk), "no {chunk} in the picture's text");
    }
    let other = folder.generate(&["--vram", "max", "-o", "max.png"]);
    assert_eq!(other["latent_sha256"], json["latent_sha256"]);
    assert_eq!(other["image_sha256"], json["image_sha256"]);
}

#[cfg(feature = "embed-demo")]
#[test]
fn the_demo_model_is_in_the_binary() {
    let folder = Folder::new();
    let output = folder.run(&["generate", PROMPT, "--json", "--steps", "2"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let built_in: Value = serde_json::from_slice(&output.stdout).unwrap();
    let from_folder = folder.generate(&["--steps", "2"]);
    assert_eq!(built_in["latent_sha256"], from_folder["latent_sha256"]);
    assert_eq!(built_in["model"], "demo");
}

#[test]
fn several_pictures_have_a_file_each() {
    let folder = Folder::new();
    let json = folder.generate(&["-n", "2", "--seed", "5", "--steps", "2", "-o", "two.png"]);
    assert_eq!(folder.files(), ["two-5.png", "two-6.png"]);
    let single = folder.generate(&["--seed", "6", "--steps", "2", "-o", "six.png"]);
    assert_eq!(json["latents_sha256"][1], single["latent_sha256"]);
    assert_eq!(json["images_sha256"][1], single["image_sha256"]);
}

#[test]
fn the_simulated_device_tells_times_and_draws_nothing() {
    let folder = Folder::new();
    let json = folder.generate(&["--device", "sim", "--vram", "min"]);
    let seconds = |part: &str| json[part]["seconds_per_step"].as_f64().unwrap();
    let ratio = seconds("measured") / seconds("predicted");
    assert!((0.999..1.001).contains(&ratio), "the clocks differ: {ratio}");
    assert_eq!(json["image_sha256"], Value::Null);
    assert_eq!(folder.files(), [""; 0]);
}

#[test]
fn plan_tells_what_generate_then_measures() {
    let folder = Folder::new();
    let model = demo();
    let output = folder.run(&["plan", "--model", &model, "--vram", "10MiB", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    let run = folder.generate(&["--vram", "10MiB"]);
    assert_eq!(plan["plan_id"], run["plan_id"]);
    for key in ["vram_peak_bytes", "copied_bytes_per_step"] {
        assert_eq!(plan["predicted"][key], run["measured"][key], "{key}");
    }
    let text = folder.run(&["plan", "--model", &model, "--vram", "10MiB"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    for word in ["encode", "hoist", "denoise", "decode", "fullest"] {
        assert!(text.contains(word), "{text}");
    }
}

#[test]
fn plan_knows_published_models_by_name() {
    let folder = Folder::new();
    for (name, steps) in [("flux.1-dev", "28"), ("flux.1-schnell", "4")] {
        let output = folder.run(&["plan", "--model", name, "--vram", "8GiB", "--json"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(number(&plan, &["predicted", "vram_peak_bytes"]) <= 8 << 30, "{name} {steps}");
        // What is left of 17.2 GB of block weights a step after the residents.
        let streamed = number(&plan, &["predicted", "copied_bytes_per_step"]);
        assert!((8_000_000_000..17_300_000_000).contains(&streamed), "{streamed}");
    }
}

#[test]
fn inspect_reads_headers() {
    let folder = Folder::new();
    let model = demo();
    let output = folder.run(&["inspect", &model, "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("10046016"), "the transformer's parameters: {text}");
    let _json: Value = serde_json::from_str(&text).unwrap();
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    refused_run(&["--width", "100"], 2, "multiple of 16");
    refused_run(&["--height", "0"], 2, "multiple of 16");
    refused_run(&["--width=-64"], 2, "--width");
    refused_run(&["--steps", "0"], 2, "steps");
    refused_run(&["--guidance", "NaN"], 2, "guidance");
    refused_run(&["--guidance=-1"], 2, "guidance");
    refused_run(&["-n", "0"], 2, "pictures");
    refused_run(&["--seed", "18446744073709551615", "-n", "2"], 2, "at most 18446744073709551614");
    for option in ["--rounds", "--pictures"] {
        for count in ["0", "1001", "4294967295"] {
            refused(&["bench", option, count], 2, option);
        }
    }
    refused_run(&["--vram", "0"], 2, "vram");
    refused_run(&["--vram", "6 G"], 2, "vram");
    refused_run(&["--vram", "ten"], 2, "vram");
    refused_run(&["--offload", "group", "--blocks-per-group", "0"], 2, "group");
    refused_run(&["--threads", "0"], 2, "threads");
    refused_run(&["-o", "no/such/folder/out.png"], 2, "no/such/folder");
    refused_run(&["-o", "/"], 2, "/");
}

#[test]
fn a_line_that_nothing_fits_under_is_infeasible() {
    refused_run(&["--vram", "64KiB"], 3, "smallest");
    refused_run(&["--vram", "9MiB", "--offload", "none"], 3, "--offload auto");
}

#[test]
fn files_that_are_not_models_are_refused() {
    refused(&["generate", PROMPT, "--model", "/no/such/model"], 4, "/no/such/model");
    let folder = Folder::new();
    let model = folder.0.path().join("model");
    copy_folder(&repository("demo/model"), &model);
    let weights = model.join("vae/diffusion_pytorch_model.safetensors");
    let whole = std::fs::read(&weights).unwrap();
    let path = model.display().to_string();
    for (bytes, what) in [
        (whole[..whole.len() - 1].to_vec(), "short"),
        ([whole.as_slice(), b"x"].concat(), "long"),
        (b"PK\x03\x04archive/data.pkl".to_vec(), "pickle"),
        (Vec::new(), "empty"),
    ] {
        std::fs::write(&weights, bytes).unwrap();
        refused(&["generate", PROMPT, "--model", &path], 4, "vae");
        println!("{what} refused");
    }
    std::fs::write(&weights, whole).unwrap();
    let config = model.join("transformer/config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("\"num_layers\": 4", "\"num_layers\": 5")).unwrap();
    refused(&["generate", PROMPT, "--model", &path], 4, "transformer_blocks.4");
}

#[test]
fn what_a_folder_lacks_is_told() {
    let folder = Folder::new();
    let model = folder.path("m");
    copy_folder(&repository("tests/golden/schnell-tiny"), &model);
    let told = |words: &[&str]| {
        let output = folder.run(words);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), errors.lines().count()), (Some(4), 1), "{errors}");
        errors
    };
    let plan = ["plan", "--model", "m", "--device", "cpu"];
    let config = model.join("transformer/config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let heads = text.replace("\"num_attention_heads\": 2", "\"num_attention_heads\": 3");
    std::fs::write(&config, &heads).unwrap();
    assert_ne!(heads, text);
    let errors = told(&plan);
    assert!(errors.contains("67 tensors of another shape"), "{errors}");
    assert!(errors.contains(", and 64 more") && errors.len() < 500, "{errors}");
    std::fs::write(&config, text).unwrap();

    let schedule = model.join("scheduler/scheduler_config.json");
    std::fs::remove_file(schedule).unwrap();
    assert!(told(&plan).contains("m has no scheduler/scheduler_config.json"));

    // The folder's reference pictures are tensors that belong to no model.
    std::fs::remove_file(model.join("model_index.json")).unwrap();
    assert!(told(&plan).contains("m/model_index.json: not found"));
    let inspected = folder.run(&["inspect", "m"]);
    let inspected = String::from_utf8_lossy(&inspected.stdout).into_owned();
    assert!(inspected.contains("cannot be run: m/model_index.json: not found"), "{inspected}");
}

#[test]
fn long_and_empty_prompts_draw_and_say_what_was_dropped() {
    let folder = Folder::new();
    let model = demo();
    let long = "ice cream ".repeat(10_000);
    for (prompt, notice) in [("", false), (long.as_str(), true)] {
        let output = folder.run(&["generate", prompt, "--model", &model, "--steps", "1"]);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        assert_eq!(errors.contains("T5 reads 32 tokens and not: \""), notice, "{errors}");
    }
}

/// Asks a process to end, as Ctrl-C does: that one is ignored by what a shell runs in the background, such as this test.
#[cfg(unix)]
fn terminate(child: &std::process::Child) -> std::process::ExitStatus {
    Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap()
}

/// By its handler, or by the signal before there was one; no other signal ends a process that was asked to.
#[cfg(unix)]
fn was_asked_to_end(status: std::process::ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    const SIGTERM: i32 = 15;
    status.code() == Some(130) || status.signal() == Some(SIGTERM)
}

/// `nohup` and background jobs: what the program was started to ignore does not end it.
#[cfg(unix)]
#[test]
fn a_signal_that_was_ignored_stays_ignored() {
    let folder = Folder::new();
    let model = demo();
    let inner = folder
        .command(&["generate", PROMPT, "--model", &model, "--steps", "1000", "--vram", "min"]);
    let program = inner.get_program().to_owned();
    let arguments: Vec<_> = inner.get_args().map(std::ffi::OsStr::to_owned).collect();
    let mut child = Command::new("sh")
        .args(["-c", "trap '' HUP; exec \"$0\" \"$@\""])
        .arg(program)
        .args(arguments)
        .envs(inner.get_envs().filter_map(|(key, value)| Some((key, value?))))
        .current_dir(folder.0.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-HUP", &id]).status().unwrap().success());
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(child.try_wait().unwrap().map(|status| status.code()), None);
    assert!(terminate(&child).success());
    assert!(was_asked_to_end(child.wait().unwrap()));
}

#[cfg(unix)]
#[test]
fn an_interrupt_at_any_moment_leaves_no_partial_file() {
    let model = demo();
    let mut cancelled = 0;
    for at in 0..24u64 {
        let folder = Folder::new();
        let mut child = folder
            .command(&["generate", PROMPT, "--model", &model, "--steps", "60", "--vram", "min"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(40 * at));
        let kill = terminate(&child);
        let sent = std::time::Instant::now();
        let status = child.wait().unwrap();
        assert!(sent.elapsed() < Duration::from_secs(5), "{:?} to stop", sent.elapsed());
        let files = folder.files();
        if status.success() {
            assert_eq!(files, ["plimsoll.png"]);
        } else {
            assert!(was_asked_to_end(status), "{status} ({kill})");
            assert_eq!(files, [""; 0], "after an interrupt");
            cancelled += 1;
        }
    }
    assert!(cancelled > 4, "only {cancelled} of 24 were interrupted");
}

/// A `pack` of the demo model's folder; its folder.
fn packed(folder: &Folder, name: &str, more: &[&str]) -> String {
    let (model, output) = (demo(), folder.0.path().join(name).display().to_string());
    let mut all = vec!["pack", "--model", &model, "-o", &output, "--json"];
    all.extend(more);
    let output_of = folder.run(&all);
    let errors = String::from_utf8_lossy(&output_of.stderr).into_owned();
    assert!(output_of.status.success(), "{more:?}: {errors}");
    let json: Value = serde_json::from_slice(&output_of.stdout).unwrap();
    assert!(number(&json, &["bytes"]) > 0);
    output
}

#[test]
fn a_packed_folder_runs_with_the_same_bits_under_the_same_plan() {
    let folder = Folder::new();
    let plain = folder.generate(&["--vram", "12MiB", "-o", "plain.png"]);
    let packed = packed(&folder, "packed", &[]);
    let output = folder.run(&[
        "generate",
        PROMPT,
        "--model",
        &packed,
        "--vram",
        "12MiB",
        "-o",
        "packed.png",
        "--json",
    ]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    for key in ["plan_id", "latent_sha256", "image_sha256", "predicted"] {
        assert_eq!(json[key], plain[key], "{key}");
    }
    for key in ["vram_peak_bytes", "copied_bytes"] {
        assert_eq!(json["measured"][key], plain["measured"][key], "{key}");
    }
    // Nothing beside what was asked for.
    assert_eq!(folder.files(), ["packed", "packed.png", "plain.png"]);
}

#[test]
fn fp8_is_packed_inspected_and_run() {
    let folder = Folder::new();
    let narrow = packed(&folder, "narrow", &["--dtype", "transformer=fp8"]);
    let output = folder.run(&["inspect", &narrow, "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["refusal"].is_null(), "{report}");
    let components = report["components"].as_array().unwrap();
    let transformer = components.iter().find(|part| part["name"] == "transformer").unwrap();
    assert_eq!(transformer["layout"], "packed");
    assert_eq!(number(transformer, &["parameters"]), 10_046_016);
    let dtypes = transformer["dtypes"].as_array().unwrap();
    assert_eq!(dtypes[0]["dtype"], "F8_E4M3", "{dtypes:?}");

    let run = |more: &[&str]| {
        let mut all = vec!["generate", PROMPT, "--model", &narrow, "--json", "-o", "narrow.png"];
        all.extend(more);
        let output = folder.run(&all);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let tight = run(&["--vram", "min", "--dtype", "transformer=fp8"]);
    let loose = run(&["--vram", "max"]);
    assert_eq!(tight["latent_sha256"], loose["latent_sha256"]);
    let plain = folder.generate(&["--vram", "min", "-o", "plain.png"]);
    assert_ne!(plain["latent_sha256"], tight["latent_sha256"]);
    let (narrow_line, line) =
        (number(&tight, &["vram_line_bytes"]), number(&plain, &["vram_line_bytes"]));
    assert!(narrow_line <= line, "{narrow_line} and {line} bytes");

    let refused =
        folder.run(&["generate", PROMPT, "--model", &narrow, "--dtype", "transformer=bf16"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("packed from"));
}

/// The bytes of a bf16 folder go to 8 bits on the way where each is copied once, else through a file that is written
/// once; either way the bits are those of the packed folder.
#[test]
fn fp8_of_a_bf16_folder_has_the_bits_of_the_packed_one() {
    let folder = Folder::new();
    let narrow = packed(&folder, "narrow", &["--dtype", "transformer=fp8"]);
    let cache = folder.0.path().join("cache");
    let run = |model: &str, line: &str| {
        let arguments = ["generate", PROMPT, "--model", model, "--vram", line, "--json"];
        let fp8 = ["--dtype", "transformer=fp8", "--steps", "2"];
        let mut command = folder.command(&[&arguments[..], &fp8[..]].concat());
        let output = command.env("XDG_CACHE_HOME", &cache).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        let bits = ["plan_id", "latent_sha256", "image_sha256"].map(|key| json[key].clone());
        (bits, errors)
    };
    let files = || std::fs::read_dir(cache.join("plimsoll/packed")).map_or(0, Iterator::count);
    let (resident, errors) = run(&demo(), "max");
    assert_eq!((run(&narrow, "max").0, errors.as_str()), (resident, ""));
    assert_eq!(files(), 0, "nothing is written where the copy does it");
    let (streamed, errors) = run(&demo(), "min");
    assert_eq!(run(&narrow, "min").0, streamed);
    assert!(errors.contains("packed in fp8 once") && errors.contains(" bytes in "), "{errors}");
    assert_eq!(files(), 2, "the file and its lock");
    assert_eq!(run(&demo(), "min"), (streamed, String::new()), "the second run finds it");

    // A file system without room, and two processes at once.
    #[cfg(target_os = "linux")]
    {
        let arguments = ["generate", PROMPT, "--model", &demo(), "--vram", "min"];
        let fp8 = ["--dtype", "transformer=fp8"];
        let all = [&arguments[..], &fp8[..]].concat();
        let full = folder.command(&all).env("XDG_CACHE_HOME", "/proc").output().unwrap();
        let errors = String::from_utf8_lossy(&full.stderr).into_owned();
        assert_eq!((full.status.code(), errors.lines().count()), (Some(5), 1), "{errors}");
        assert!(errors.contains("0 are free") && errors.contains("plimsoll pack --model"));
        let other = folder.0.path().join("other");
        let start = |_| {
            let mut command = folder.command(&all);
            command.env("XDG_CACHE_HOME", &other).stderr(Stdio::piped()).stdout(Stdio::null());
            command.spawn().unwrap()
        };
        let both = [0, 1].map(start).map(|child| child.wait_with_output().unwrap());
        let told = |text: &str| {
            both.iter().filter(|end| String::from_utf8_lossy(&end.stderr).contains(text)).count()
        };
        assert!(both.iter().all(|end| end.status.success()));
        assert_eq!(told("packed in fp8 once"), 1, "one of them writes it");
    }
}

#[test]
fn tiles_are_named_in_plans_and_records_and_refused_with_the_nearest() {
    let folder = Folder::new();
    let size = ["--width", "192", "--height", "128", "--steps", "1", "--vram", "min"];
    let draw = |tile: &str| folder.generate(&[&size[..], &["--vae-tile", tile]].concat());
    let (whole, tiled) = (draw("off"), draw("96"));
    assert_eq!((&whole["vae_tile"], &tiled["vae_tile"]), (&Value::Null, &Value::from(96)));
    assert_eq!(whole["latent_sha256"], tiled["latent_sha256"]);
    assert_ne!(whole["image_sha256"], tiled["image_sha256"]);
    let line = |run: &Value| number(run, &["vram_line_bytes"]);
    assert!(line(&tiled) < line(&whole));
    assert_eq!(draw("auto")["plan_id"], whole["plan_id"], "the smallest line is of the whole");
    let below = line(&whole) - 1024;
    let refusal = format!("{below}B");
    let advice = ["--width", "192", "--height", "128", "--vram", &refusal];
    refused_run(&advice, 3, "it fits with --vae-tile");
    refused_run(&["--vae-tile", "100"], 2, "96 is the nearest");
    let simulated = folder.generate(&["--device", "sim", "--vae-tile", "64", "--vram", "min"]);
    assert_eq!(simulated["vae_tile"], 64);

    let mut command = folder.recorded(&["generate", PROMPT, "--device", "cpu", "--steps", "1"]);
    assert!(command.args(["--vae-tile", "64"]).status().unwrap().success());
    assert_eq!(folder.json(&["runs", "repeat", "last", "-n", "1"])["failed"], Value::Null);
    let shown = folder.show("last");
    let words = shown.to_string();
    assert!(words.contains("--vae-tile"), "{words}");
}

#[test]
fn what_cannot_be_packed_is_refused_and_leaves_nothing() {
    refused_run(&["--dtype", "vae=fp8"], 2, "stays bf16");
    let model = demo();
    let inside = format!("{model}/packed");
    refused(&["pack", "--model", &model, "-o", &inside], 2, "lies in the model's folder");
    refused(&["pack", "--model", &model, "-o", &model], 2, "is not empty");
    refused(&["pack", "--model", &model, "-o", "out", "--dtype", "f32"], 2, "f32 is not packed");
    refused(&["pack", "--model", "flux.1-dev", "-o", "out"], 2, "known by its shapes only");
    refused(&["pack", "--model", "nothing", "-o", "out"], 4, "nothing");
    assert!(!Path::new(&inside).exists());
    // A file system without room.
    #[cfg(target_os = "linux")]
    refused(&["pack", "--model", &model, "-o", "/proc/packed"], 5, "0 are free there");
}

#[cfg(unix)]
#[test]
fn a_stopped_pack_leaves_nothing() {
    let folder = Folder::new();
    let model = demo();
    for wait in [0, 5, 20, 60] {
        let mut child = folder
            .command(&["pack", "--model", &model, "-o", "out", "--dtype", "transformer=fp8"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(wait));
        assert!(terminate(&child).success());
        let status = child.wait().unwrap();
        let left = folder.files();
        // After the last byte it is done.
        if status.success() {
            assert_eq!(left, ["out"]);
            std::fs::remove_dir_all(folder.0.path().join("out")).unwrap();
        } else {
            assert!(was_asked_to_end(status), "{status} after {wait} ms");
            assert_eq!(left, [""; 0], "{wait} ms");
        }
    }
}

#[cfg(unix)]
#[test]
fn a_stopped_synth_leaves_nothing() {
    let folder = Folder::new();
    let mut child = folder
        .command(&["synth", "--model", "flux.1-schnell", "-o", "out"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(700));
    assert!(terminate(&child).success());
    let status = child.wait().unwrap();
    // A disk without 33 GB refuses before anything is written.
    assert!(was_asked_to_end(status) || status.code() == Some(5), "{status}");
    assert_eq!(folder.files(), [""; 0]);
}

#[test]
fn flux_is_planned_in_fp8_from_its_shapes() {
    let folder = Folder::new();
    let plan = |more: &[&str]| {
        let mut all = vec!["plan", "--model", "flux.1-dev", "--device", "sim", "--json"];
        all.extend(more);
        let output = folder.run(&all);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let of = |line: &str, dtype: &str| {
        plan(&["--vram", line, "--offload", "sequential", "--dtype", dtype])
    };
    let streamed = |dtype: &str| number(&of("min", dtype), &["predicted", "copied_bytes_per_step"]);
    assert!(streamed("transformer=fp8") * 1000 < streamed("bf16") * 502);
    // The line from which on nothing is streamed. The smallest one is the decoder's, or the text encoder's.
    let line = |dtype: &str| {
        let json = plan(&["--vram", "max", "--dtype", dtype]);
        assert_eq!(number(&json, &["predicted", "copied_bytes_per_step"]), 0);
        number(&json, &["vram_line_bytes"])
    };
    assert!(line("transformer=fp8") * 100 < line("bf16") * 54);
}
