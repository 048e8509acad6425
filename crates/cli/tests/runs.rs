//! Records of runs, from `generate` to the next trial, as a person types it.

#![expect(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]
#![cfg(feature = "embed-demo")]

mod support;

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Folder, PROMPT};

fn axes(run: &Value) -> Vec<&str> {
    let differences = run["trial"]["differences"].as_array().unwrap();
    differences.iter().map(|one| one["axis"].as_str().unwrap()).collect()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn a_run_leaves_its_conditions_load_and_quality() {
    let folder = Folder::new();
    let made = folder.draw(&["--vram", "12MiB", "--seed", "18446744073709551615"]);
    let run = folder.show("last");
    assert_eq!(run["run"]["run_id"], made["run_id"]);
    assert_eq!(run["run"]["status"], "done");
    for (field, expected) in [
        ("model_id", "demo"),
        ("dtype", "bf16"),
        ("quantization", "none"),
        ("device", "cpu"),
        ("offload_mode", "auto"),
        ("input_size", "128x128"),
        ("seed", "18446744073709551615"),
        ("prompt", PROMPT),
    ] {
        assert_eq!(run["conditions"][field], expected, "{field}");
    }
    for field in ["model_revision", "weight_format", "runtime", "offload_api", "machine"] {
        assert!(run["conditions"][field].is_string(), "{field}");
    }
    let load = &run["load"];
    assert_eq!(load["peak_vram"], made["measured"]["vram_peak_bytes"]);
    assert_eq!(load["peak_vram"], load["predicted_peak_vram"]);
    assert_eq!(load["copied_bytes"], load["predicted_copied_bytes"]);
    assert!(number(&load["peak_ram"]) > 1 << 20);
    assert_eq!(load["stages"].as_array().unwrap().len(), 5);
    assert_eq!(run["quality"]["latent_sha256"][0], made["latent_sha256"]);
    assert_eq!(run["quality"]["picture_sha256"][0], made["image_sha256"]);
    assert!(run["findings"].as_array().unwrap().is_empty());
    let plan: Value =
        serde_json::from_str(&folder.ok(&["runs", "show", "last", "--plan"])).unwrap();
    assert_eq!(plan["id"], made["plan_id"]);
    // It ran; that says nothing on the rest.
    assert_eq!(run["gates"]["feasibility"]["judgement"], "pass");
    assert_eq!(run["gates"]["quality"]["judgement"], "open");
    assert_eq!(run["gates"]["operation"]["judgement"], "open");
}

#[test]
fn refused_failed_and_cancelled_runs_are_recorded_too() {
    let folder = Folder::new();
    let generate = |rest: &[&'static str]| {
        let mut all = vec!["generate", PROMPT, "--device", "cpu"];
        all.extend(rest);
        all
    };
    folder.refused(&generate(&["--vram", "2MiB"]), 3, "smallest");
    let run = folder.show("last");
    assert_eq!(run["run"]["status"], "refused");
    let failure = &run["failure"];
    assert_eq!((&failure["resource"], &failure["stage"]), (&"vram".into(), &"decode".into()));
    assert_eq!(failure["available_bytes"], 2 << 20);
    assert!(number(&failure["needed_bytes"]) > 2 << 20);

    folder.refused(&generate(&["--width", "100"]), 2, "multiple of 16");
    assert_eq!(folder.show("last")["failure"]["kind"], "usage");
    folder.refused(&["generate", PROMPT, "--model", "/no/such/model"], 4, "/no/such/model");
    assert_eq!(folder.show("last")["run"]["status"], "failed");
    assert_eq!(folder.show("last")["failure"]["kind"], "file");

    let mut child = folder
        .recorded(&generate(&["--steps", "500"]))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    let id = child.id().to_string();
    std::process::Command::new("kill").args(["-TERM", &id]).status().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let run = folder.show("last");
    assert_eq!(run["run"]["status"], "cancelled");
    assert_eq!(run["failure"]["kind"], "cancelled");
    assert_eq!(run["gates"]["feasibility"]["judgement"], "open");
    assert_eq!(folder.json(&["runs", "list"])["total"], 4);
}

#[test]
fn a_planted_out_of_memory_is_solved_in_at_most_two_trials() {
    // Weights are the problem: they can live elsewhere.
    let folder = Folder::new();
    let lowered = ["generate", PROMPT, "--device", "cpu", "--steps", "2", "--vram", "8MiB"];
    let mut all = lowered.to_vec();
    all.extend(["--offload", "none"]);
    folder.refused(&all, 3, "smallest");
    let parent = folder.show("last")["run"]["run_id"].as_str().unwrap().to_owned();
    let next = folder.json(&["runs", "next", "last"]);
    assert_eq!(next["trial"]["change"]["axis"], "offload");
    assert!(number(&next["trial"]["expected"]["peak_vram"]) <= 8 << 20);
    let left_out = next["trial"]["left_out"].as_array().unwrap();
    assert!(left_out.iter().all(|pair| pair[0] != "offload"));
    assert!(folder.show("last")["run"]["next_trial"].as_str().unwrap().starts_with("offload"));
    let tried = folder.json(&["runs", "try", "last"]);
    let run = &tried["run"];
    assert_eq!(run["run"]["status"], "done");
    assert_eq!(run["run"]["parent_id"].as_str(), Some(parent.as_str()));
    assert_eq!(axes(run), ["offload"]);
    assert_eq!(run["trial"]["is_mixed"], false);
    assert_eq!(run["load"]["peak_vram"], tried["proposed"]["expected"]["peak_vram"]);

    // Activations are the problem: no placement helps, a smaller picture does.
    folder.refused(&["generate", PROMPT, "--device", "cpu", "--vram", "4MiB"], 3, "smallest");
    let next = folder.json(&["runs", "next", "last"]);
    assert_eq!(next["trial"]["change"]["axis"], "input_size");
    let tried = folder.json(&["runs", "try", "last"]);
    assert_eq!(tried["run"]["run"]["status"], "done");
    assert_eq!(axes(&tried["run"]), ["input_size"]);
    assert!(folder.path("plimsoll-try1.png").is_file());
    // Both are: two trials, each of one axis.
    folder.refused(&[&lowered[..7], &["3MiB", "--offload", "model"]].concat(), 3, "smallest");
    folder.refused(&["runs", "try", "last"], 3, "smallest");
    let first = folder.show("last");
    assert_eq!((axes(&first), &first["run"]["status"]), (vec!["offload"], &"refused".into()));
    let second = folder.json(&["runs", "try", "last"]);
    assert_eq!(axes(&second["run"]), ["input_size"]);
    assert_eq!(second["run"]["run"]["status"], "done");
    let tree = folder.ok(&["runs", "tree", "last"]);
    assert!(tree.contains("└") && tree.contains("input_size: width 128 ->"), "{tree}");
}

/// The same where the system refuses the memory: RAM is the CPU's device memory, and a process may have so much of it.
#[cfg(target_os = "linux")]
#[test]
fn an_arena_that_the_system_refuses_is_solved_in_at_most_two_trials() {
    let folder = Folder::new();
    let under = |limit_kib: u32, arguments: &str| {
        let program = env!("CARGO_BIN_EXE_plimsoll");
        let script = format!("ulimit -v {limit_kib}; exec '{program}' {arguments}");
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &script]).current_dir(folder.0.path());
        command.env("PLIMSOLL_RECORDS", folder.path("store/records.db"));
        command.output().unwrap()
    };
    // The least that a process with the smallest arena needs, and 6 MiB: the arena of all weights takes 24 more.
    let draw = format!("generate '{PROMPT}' --device cpu --threads 2 --steps 2 --vram");
    let smallest = format!("{draw} min --records off");
    let (mut refused, mut enough) = (50_000, 1_000_000);
    while enough - refused > 1_000 {
        let middle = (refused + enough) / 2;
        let is_enough = under(middle, &smallest).status.success();
        *(if is_enough { &mut enough } else { &mut refused }) = middle;
    }
    let limit_kib = enough + 6 * 1024;
    assert!(!under(limit_kib, &format!("{draw} max")).status.success());
    let failure = &folder.show("last")["failure"];
    assert_eq!((&failure["kind"], &failure["stage"]), (&"device".into(), &"load".into()));
    assert!(number(&failure["needed_bytes"]) > 28_000_000, "{failure}");
    let next = folder.json(&["runs", "next", "last"]);
    assert_eq!(next["trial"]["signal"], "ram_short");
    let trials = (0..2).map(|_| {
        under(limit_kib, "runs try last");
        folder.show("last")
    });
    let passed = trials.into_iter().find(|run| run["run"]["status"] == "done");
    let passed = passed.expect("a trial passes");
    assert_eq!(axes(&passed).len(), 1, "one axis a trial");
    assert!(number(&passed["load"]["peak_vram"]) < number(&failure["needed_bytes"]) / 2);
}

#[test]
fn a_trial_of_more_than_one_axis_is_marked_with_the_axes() {
    let folder = Folder::new();
    folder.draw(&[]);
    let first = folder.show("last")["run"]["run_id"].as_str().unwrap().to_owned();
    let sets =
        ["runs", "try", "last", "--set", "dtype=f32", "--set", "width=64", "--set", "height=64"];
    let tried = folder.json(&sets);
    assert_eq!(axes(&tried["run"]), ["dtype", "input_size"]);
    assert_eq!(tried["run"]["trial"]["is_mixed"], true);
    // By hand, with --parent, it is the same.
    let made = folder.draw(&["--seed", "3", "--vram", "7MiB", "--parent", &first]);
    let run = folder.show(made["run_id"].as_str().unwrap());
    assert_eq!(axes(&run), ["vram_line", "seed"]);
    let list = folder.ok(&["runs", "list"]);
    assert!(list.contains("MIXED"), "{list}");
    folder.refused(
        &["runs", "try", "last", "--set", "quantization=nf4"],
        2,
        "not run by this build",
    );
    let tried = folder.json(&["runs", "try", &first, "--set", "quantization=fp8"]);
    assert_eq!(axes(&tried["run"]), ["quantization"], "and no dtype");
    let tried = folder.json(&["runs", "try", &first, "--set", "vae_tile=64"]);
    assert_eq!(axes(&tried["run"]), ["vae_tiles"]);
    folder.refused(&["runs", "try", "last", "--set", "colour=red"], 2, "no condition");
    folder.refused(&["generate", "x", "--parent", "nope"], 2, "no run \"nope\"");
}

#[test]
fn f32_bf16_and_fp8_at_three_lines_are_judged_and_compared() {
    let folder = Folder::new();
    let mut runs = Vec::new();
    for (name, options) in [
        ("f32", &["--dtype", "f32"][..]),
        ("bf16", &["--dtype", "bf16"]),
        ("fp8", &["--dtype", "bf16,transformer=fp8"]),
    ] {
        for line in ["min", "12MiB", "max"] {
            let out = format!("{name}-{line}.png");
            let made = folder.draw(&[options, &["--vram", line, "-o", &out]].concat());
            runs.push(made["run_id"].as_str().unwrap().to_owned());
        }
    }
    let mut compare = vec!["runs", "compare"];
    compare.extend(runs.iter().map(String::as_str));
    let table = folder.ok(&compare);
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    assert!(table.contains("dtype, vram_line (MIXED"), "{table}");
    let json = folder.json(&compare);
    assert_eq!(json["differences"][1][0]["axis"], "vram_line");
    assert_eq!(json["differences"][3][0]["axis"], "dtype");
    for format in ["--md", "--csv"] {
        let mut all = compare.clone();
        all.push(format);
        assert!(folder.ok(&all).contains("offload_mode") || folder.ok(&all).contains("vram_line"));
    }
    // dtype and quantization are two axes: an fp8 run computes in bf16.
    let eight = folder.show(&runs[6]);
    assert_eq!(eight["conditions"]["dtype"], "bf16");
    assert_eq!(eight["conditions"]["quantization"], "fp8 e4m3 (transformer)");
    let between = folder.json(&["runs", "compare", &runs[3], &runs[6]]);
    let changed = between["differences"][1].as_array().unwrap();
    assert!(changed.len() == 1 && changed[0]["axis"] == "quantization", "{changed:?}");
    // Against the first of f32: at another line equal, in bf16 near, in fp8 not as near; a person passes all.
    let mut psnr = Vec::new();
    for (at, run) in runs.iter().enumerate() {
        let judge = ["runs", "judge", run, "--reference", &runs[0], "--verdict", "pass"];
        folder
            .ok(&[&judge[..], &["--note", "as sharp as f32", "--check", "identity=pass"]].concat());
        let judged = folder.show(run);
        let measured = &judged["comparisons"][0];
        assert_eq!(judged["gates"]["feasibility"]["judgement"], "pass");
        assert_eq!(judged["gates"]["quality"]["judgement"], "pass");
        assert_eq!(judged["gates"]["operation"]["judgement"], "open", "one run says nothing on it");
        if at < 3 {
            assert_eq!((&measured["psnr_db"], &measured["ssim"]), (&Value::Null, &1.0.into()));
            continue;
        }
        let ssim = measured["ssim"].as_f64().unwrap();
        assert!((0.8..1.0).contains(&ssim), "{run}: {ssim}");
        psnr.push(measured["psnr_db"].as_f64().unwrap());
    }
    // The line decides no bit, whatever the weights are stored as.
    assert!(
        psnr.windows(2).enumerate().all(|(at, pair)| at == 2 || pair[0] == pair[1]),
        "{psnr:?}"
    );
    assert!((20.0..70.0).contains(&psnr[0]) && psnr[3] > 15.0 && psnr[3] < psnr[0], "{psnr:?}");
    let bytes = |run: &str| number(&folder.show(run)["load"]["peak_vram"]);
    assert!(bytes(&runs[8]) < bytes(&runs[5]), "all resident, fp8 takes less");
    let near = folder.show(&runs[3]);
    assert_eq!(near["quality"]["quality_note"], "as sharp as f32");
    // The project's criteria are found from its folder upwards.
    std::fs::write(folder.path("plimsoll-criteria.yaml"), "quality: {psnr_min_db: 90}\n").unwrap();
    let strict = folder.show(&runs[3]);
    assert_eq!(strict["gates"]["quality"]["judgement"], "fail");
    let next = folder.json(&["runs", "next", &runs[3]]);
    assert_eq!(next["trial"]["change"]["axis"], "criteria", "a person passed it");
    folder.ok(&["runs", "judge", &runs[3], "--verdict", "pass"]);
    let criteria = folder.show(&runs[3])["conditions"]["criteria"].as_str().unwrap().to_owned();
    assert!(criteria.ends_with("plimsoll-criteria.yaml"), "{criteria}");
}

#[test]
fn a_verdict_that_fails_leads_to_the_prompt() {
    let folder = Folder::new();
    folder.draw(&[]);
    folder.refused(&["runs", "judge", "last"], 2, "--verdict");
    folder.ok(&["runs", "judge", "last", "--verdict", "fail", "--note", "no cone"]);
    folder.refused(&["runs", "try", "last"], 2, "whose value only you know");
    let tried = folder.json(&["runs", "try", "last", "--value", "red apple, flat fluent emoji"]);
    assert_eq!(axes(&tried["run"]), ["prompt"]);
    let picture = folder.path("plimsoll-try1.png");
    std::fs::write(&picture, "no picture").unwrap();
    let reference = ["runs", "judge", "last", "--reference", "last"];
    folder.refused(&reference, 4, "plimsoll-try1.png");
}

#[test]
fn repeats_judge_the_operation() {
    let folder = Folder::new();
    folder.draw(&["--width", "64", "--height", "64"]);
    let before = folder.files();
    let repeated = folder.json(&["runs", "repeat", "last", "-n", "2"]);
    assert_eq!(folder.files(), before, "a repeat writes no picture");
    assert_eq!(repeated["repeats"], 2);
    let figures = &repeated["gates"]["figures"];
    assert_eq!((number(&figures["attempts"]), number(&figures["done"])), (3, 3));
    assert!(figures["seconds_p95"].as_f64().unwrap() >= figures["seconds_mean"].as_f64().unwrap());
    assert_eq!(repeated["gates"]["operation"]["judgement"], "pass");
    let last = folder.show("last");
    assert_eq!(last["quality"]["latent_sha256"], repeated["quality"]["latent_sha256"]);
    // Too slow for a limit: the axis, and what helps apart from it.
    let id = repeated["run"]["run_id"].as_str().unwrap();
    let next = folder.json(&["runs", "next", id, "--time-limit", "0.000001"]);
    assert_eq!(next["trial"]["signal"], "over_time_limit");
    let advice = next["trial"]["advice"].as_array().unwrap();
    for word in ["batch", "cache", "faster runtime"] {
        assert!(advice.iter().any(|line| line.as_str().unwrap().starts_with(word)), "{word}");
    }
    folder.refused(&["runs", "repeat", id, "-n", "0"], 2, "-n is 0");
}

#[test]
fn a_repeat_that_does_not_end_well_has_the_exit_code_of_its_run() {
    let folder = Folder::new();
    let refused = ["generate", PROMPT, "--device", "cpu", "--vram", "1KiB"];
    assert_eq!(folder.recorded(&refused).output().unwrap().status.code(), Some(3));
    let repeated = folder.recorded(&["runs", "repeat", "last", "-n", "2"]).output().unwrap();
    assert_eq!(repeated.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&repeated.stdout).contains("0 of 3 runs to the end"));
}

/// A repeat that the system kills is an attempt that failed, with its seconds, and not one that never was.
#[cfg(target_os = "linux")]
#[test]
fn a_killed_repeat_counts_as_the_cost_of_retrying() {
    let folder = Folder::new();
    folder.ok(&[
        "generate", PROMPT, "--device", "cpu", "--steps", "150", "--width", "64", "--height", "64",
    ]);
    let mut repeat = folder.recorded(&["runs", "repeat", "last", "-n", "1", "--json"]);
    let repeat = repeat.stdout(Stdio::piped()).spawn().unwrap();
    let children = format!("/proc/{0}/task/{0}/children", repeat.id());
    let mut child = String::new();
    while child.trim().is_empty() {
        std::thread::sleep(Duration::from_millis(2));
        child = std::fs::read_to_string(&children).unwrap();
    }
    std::process::Command::new("kill").args(["-KILL", child.trim()]).status().unwrap();
    let output = repeat.wait_with_output().unwrap();
    let run: Value = serde_json::from_slice(&output.stdout).unwrap();
    let figures = &run["gates"]["figures"];
    assert_eq!((number(&figures["attempts"]), number(&figures["done"])), (2, 1));
    assert_eq!(run["gates"]["operation"]["judgement"], "fail");
    let killed = folder.show("last");
    assert_eq!(killed["failure"]["kind"], "killed");
    assert_eq!(killed["failure"]["resource"], "ram");
    assert_eq!(killed["run"]["repeat_of"], run["run"]["run_id"]);
}

#[test]
fn records_of_other_software_are_imported_or_refused_whole() {
    let folder = Folder::new();
    let text = "run_id: flux-01\nmodel_id: FLUX.1-dev\nstatus: oom at decode\ndtype: nf4\n\
                runtime: diffusers 0.35\noffload_mode: sequential\npipeline_moved_to_cuda: true\n";
    std::fs::write(folder.path("run.yaml"), text).unwrap();
    folder.refused(&["runs", "import", "run.yaml"], 4, "missing field peak_vram");
    folder.refused(&["runs", "list"], 4, "no records yet");
    let imported = folder.json(&["runs", "import", "--partial", "run.yaml"]);
    let findings = imported["runs"][0]["findings"].as_array().unwrap();
    let codes: Vec<_> = findings.iter().map(|one| one["code"].as_str().unwrap()).collect();
    assert_eq!(codes, ["moved_to_cuda", "quantization_as_dtype", "field_missing"]);
    folder.refused(&["runs", "import", "--partial", "run.yaml"], 4, "in the store already");
    let next = folder.json(&["runs", "next", "flux-01"]);
    assert_eq!(next["trial"]["signal"], "out_of_memory_at_decode");
    folder.refused(&["runs", "try", "flux-01"], 2, "other software");
    folder.refused(&["runs", "repeat", "flux-01"], 2, "other software");
    folder.refused(&["runs", "show", "flux-02"], 2, "no run \"flux-02\"");
}

#[test]
fn a_store_that_cannot_be_used_is_told_before_the_run_and_loses_nothing_after_it() {
    let folder = Folder::new();
    let draw = ["generate", PROMPT, "--device", "cpu", "--steps", "1"];
    let broken = folder.path("broken.db");
    std::fs::write(&broken, "this is no database, whatever its name says").unwrap();
    let with = |store: &str| {
        let mut command = folder.command(&draw);
        command.env("PLIMSOLL_RECORDS", store);
        command.output().unwrap()
    };
    let output = with(broken.to_str().unwrap());
    assert_eq!(output.status.code(), Some(4));
    assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1);
    assert!(!folder.path("plimsoll.png").exists(), "nothing was computed");
    let output = with("/proc/no/store.db");
    assert_eq!(output.status.code(), Some(5));
    // Nobody named a store and there is no place for one: the run goes on, and says so.
    let mut command = folder.command(&draw);
    command.env_remove("PLIMSOLL_RECORDS").env("XDG_DATA_HOME", "/proc/no");
    let output = command.output().unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("not recorded"));
    assert!(folder.path("plimsoll.png").is_file());
    // By default it is in the user's data folder.
    let mut command = folder.command(&draw);
    command.env_remove("PLIMSOLL_RECORDS").env("XDG_DATA_HOME", folder.path("data"));
    assert!(command.output().unwrap().status.success());
    assert!(folder.path("data/plimsoll/records.db").is_file());
}

#[test]
fn a_disk_that_fills_up_costs_neither_picture_nor_record() {
    let folder = Folder::new();
    folder.draw(&[]);
    // No file may grow beyond 32 KiB: the picture fits, the store's log does not.
    let script = format!(
        "ulimit -f 64; exec {} generate 'red apple' --device cpu --steps 1 -o red.png",
        env!("CARGO_BIN_EXE_plimsoll"),
    );
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script]).current_dir(folder.0.path());
    command.env("PLIMSOLL_RECORDS", folder.path("store/records.db"));
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    assert!(folder.path("red.png").is_file());
    assert!(errors.contains("for plimsoll runs import"), "{errors}");
    assert_eq!(folder.json(&["runs", "list"])["total"], 1);
    let files = folder.files();
    let beside = files.iter().find(|name| name.ends_with(".record.json")).unwrap();
    folder.ok(&["runs", "import", beside]);
    assert_eq!(folder.json(&["runs", "list"])["total"], 2);
    assert_eq!(folder.show("last")["conditions"]["prompt"], "red apple");
}

#[test]
fn a_store_that_cannot_be_read_is_told_as_what_it_is() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("store")).unwrap();
    std::fs::write(folder.path("store/records.db"), "this is no database").unwrap();
    let advice = "move it away, or give --records another or off";
    folder.refused(&["runs", "list"], 4, advice);
    // What is left where a disk was full when the store was made, and still is.
    std::fs::write(folder.path("store/records.db"), "").unwrap();
    let script = format!("ulimit -f 0; exec {} runs list", env!("CARGO_BIN_EXE_plimsoll"));
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script]).current_dir(folder.0.path());
    let output = command.env("PLIMSOLL_RECORDS", folder.path("store/records.db")).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), errors.lines().count()), (Some(5), 1), "{errors}");
    assert!(errors.contains("no records yet, and it cannot be written: "), "{errors}");
    assert!(!errors.contains("version 0") && !errors.contains("read-only"), "{errors}");
    assert_eq!(folder.json(&["runs", "list"])["total"], 0, "it is made where there is room");
}

#[test]
fn two_runs_at_once_are_both_recorded() {
    let folder = Folder::new();
    let names = ["one.png", "two.png", "three.png"];
    let children: Vec<_> = names
        .iter()
        .map(|name| {
            folder
                .recorded(&["generate", PROMPT, "--device", "sim", "-o", name])
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(folder.json(&["runs", "list"])["total"], 3);
}

#[test]
fn tables_fit_a_hundred_columns_in_every_verb() {
    let folder = Folder::new();
    folder.draw(&["--width", "64", "--height", "64"]);
    let prompt = "a very long prompt, ".repeat(20);
    let sets = format!("prompt={prompt}");
    folder.ok(&["runs", "try", "last", "--set", &sets]);
    for arguments in [
        &["runs", "list"][..],
        &["runs", "show", "last"],
        &["runs", "tree", "last"],
        &["runs", "next", "last"],
        &["runs", "judge", "last", "--verdict", "pass"],
    ] {
        let text = folder.ok(arguments);
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{arguments:?}: {line}");
        }
        let mut md = arguments.to_vec();
        md.push("--md");
        assert!(folder.ok(&md).contains("|---|"), "{arguments:?}");
        let mut csv = arguments.to_vec();
        csv.push("--csv");
        assert!(folder.ok(&csv).contains(','), "{arguments:?}");
        let _json: Value = folder.json(arguments);
    }
}

/// A kill at any moment: pictures and records are whole or absent, and a record's picture is there.
#[test]
fn a_kill_at_any_moment_leaves_nothing_torn() {
    let kills: u32 = std::env::var("PLIMSOLL_KILLS").map_or(30, |text| text.parse().unwrap());
    let folder = Folder::new();
    let arguments =
        ["generate", PROMPT, "--device", "cpu", "--steps", "1", "--width", "64", "--height", "64"];
    // How long a run takes here and now, to aim at all of it.
    let began = Instant::now();
    folder.ok(&[&arguments[..], &["-o", "whole.png"]].concat());
    let whole = began.elapsed().mul_f64(1.1);
    let expected = std::fs::read(folder.path("whole.png")).unwrap().len();
    let mut state = 99u64;
    let (mut pictures, mut left, mut slowest) = (0, 0, Duration::ZERO);
    let parts = || folder.files().iter().filter(|name| name.ends_with(".part")).count();
    for at in 0..kills {
        // Every other replaces a picture.
        let name = if at % 2 == 0 { format!("{at}.png") } else { "same.png".to_owned() };
        let mut child = folder
            .recorded(&[&arguments[..], &["-o", &name]].concat())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(whole.mul_f64((state >> 40) as f64 / f64::from(1 << 24)));
        child.kill().unwrap();
        child.wait().unwrap();
        let began = Instant::now();
        folder.ok(&["runs", "list", "-n", "1"]);
        slowest = slowest.max(began.elapsed());
        left += parts();
        if let Ok(picture) = std::fs::read(folder.path(&name)) {
            // Text chunks of other lengths do not occur: only the run's id differs.
            assert_eq!(picture.len(), expected, "kill {at}: torn");
            pictures += 1;
        }
    }
    let runs = folder.json(&["runs", "list", "-n", "0"]);
    let runs = runs["runs"].as_array().unwrap();
    for run in runs {
        assert_eq!(run["run"]["status"], "done");
        let picture = run["quality"]["pictures"][0].as_str().unwrap();
        assert!(std::path::Path::new(picture).is_file(), "a record without its picture");
    }
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    // A picture that replaces another has a temporary name for an instant; the next run sweeps it.
    assert!(left <= 1 + kills as usize / 100, "{left} temporary files");
    std::thread::sleep(Duration::from_millis(1100));
    folder.ok(&[&arguments[..], &["-o", "same.png"]].concat());
    assert_eq!(parts(), 0, "after the next run");
    println!(
        "{kills} kills: {left} temporary names, {pictures} pictures, {} records, {slowest:?}",
        runs.len()
    );
}
