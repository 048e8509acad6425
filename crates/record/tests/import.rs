//! Records of other software: what is read, what is refused, what is found.

#![expect(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use plimsoll_record::import::{Format, NAMES, read};
use plimsoll_record::{FindingCode, Record, RecordError, Resource, Stage, Status};

/// A diffusers run in the practice's fields, with some of them replaced.
fn yaml(changes: &[(&str, &str)]) -> String {
    let mut fields = vec![
        ("run_id", "flux-01"),
        ("model_id", "black-forest-labs/FLUX.1-dev"),
        ("model_revision", "3de623f"),
        ("weight_format", "safetensors"),
        ("dtype", "bfloat16"),
        ("quantization", "none"),
        ("runtime", "diffusers 0.35.1"),
        ("device", "RTX 4070"),
        ("offload_mode", "sequential"),
        ("offload_api", "enable_sequential_cpu_offload"),
        ("pipeline_moved_to_cuda", "false"),
        ("device_map", ""),
        ("attached_components", "[ip-adapter]"),
        ("input_size", "1024x1024"),
        ("context_length", "512"),
        ("width", "1024"),
        ("height", "1024"),
        ("batch_size", "1"),
        ("steps", "28"),
        ("peak_vram", "5.2 GB"),
        ("peak_ram", "31GiB"),
        ("elapsed_seconds", "212.5"),
        ("status", "done"),
        ("quality_note", "hands are wrong"),
        ("next_trial", ""),
    ];
    for (name, value) in changes {
        match fields.iter_mut().find(|(field, _)| field == name) {
            Some(field) => field.1 = value,
            None => fields.push((name, value)),
        }
    }
    fields.iter().map(|(name, value)| format!("{name}: {value}\n")).collect()
}

fn one(text: &str) -> Record {
    let mut records = read("run.yaml", text, Format::Yaml, false).unwrap();
    assert_eq!(records.len(), 1);
    records.remove(0)
}

fn codes(record: &Record) -> Vec<FindingCode> {
    record.findings.iter().map(|finding| finding.code).collect()
}

fn refused(text: &str, format: Format) -> String {
    let error = read("run.yaml", text, format, false).unwrap_err();
    assert!(matches!(error, RecordError::Faults { .. }));
    let text = error.to_string();
    assert!(!text.contains('\n'), "{text}");
    text
}

#[test]
fn every_field_of_the_practice_is_taken_over() {
    let record = one(&yaml(&[("guidance", "3.5"), ("seed", "18446744073709551615")]));
    assert_eq!(record.run.run_id, "flux-01");
    assert_eq!(record.run.status, Some(Status::Done));
    assert_eq!(record.run.kind, "image");
    let conditions = &record.conditions;
    assert_eq!(conditions.dtype.as_deref(), Some("bfloat16"));
    assert_eq!(conditions.offload_mode.as_deref(), Some("sequential"));
    assert_eq!(conditions.pipeline_moved_to_cuda, Some(false));
    assert_eq!(conditions.attached_components.0, ["ip-adapter"]);
    assert_eq!((conditions.width, conditions.steps), (Some(1024), Some(28)));
    assert_eq!(conditions.guidance, Some(3.5));
    assert_eq!(conditions.seed.as_deref(), Some("18446744073709551615"));
    assert_eq!(record.load.peak_vram, Some(5_200_000_000));
    assert_eq!(record.load.peak_ram, Some(31 << 30));
    assert_eq!(record.load.elapsed_seconds, Some(212.5));
    assert_eq!(record.quality.quality_note.as_deref(), Some("hands are wrong"));
    assert_eq!(codes(&record), []);
}

#[test]
fn json_csv_lists_and_documents_are_the_same() {
    let first = one(&yaml(&[]));
    let two = format!("---\n{}---\n{}", yaml(&[]), yaml(&[("run_id", "flux-02")]));
    let records = read("runs.yaml", &two, Format::Yaml, false).unwrap();
    assert_eq!(records.len(), 2);
    assert_eq!(records[0], first);
    let fields: Vec<(String, String)> = yaml(&[])
        .lines()
        .map(|line| line.split_once(": ").unwrap())
        .map(|(name, value)| (name.to_owned(), value.trim_matches(['[', ']']).to_owned()))
        .collect();
    let map: serde_json::Map<_, _> =
        fields.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
    let json = serde_json::json!([map]).to_string();
    assert_eq!(
        read("runs.json", &json, Format::Json, false).unwrap(),
        std::slice::from_ref(&first)
    );
    let names: Vec<_> = fields.iter().map(|(name, _)| name.as_str()).collect();
    let values: Vec<_> = fields.iter().map(|(_, value)| value.as_str()).collect();
    let csv = format!("{}\n{}\n", names.join(","), values.join(","));
    assert_eq!(read("runs.csv", &csv, Format::Csv, false).unwrap(), [first]);
}

#[test]
fn a_language_models_run_has_its_tokens() {
    let record = one(&yaml(&[
        ("width", ""),
        ("height", ""),
        ("input_tokens", "900"),
        ("output_tokens", "120"),
    ]));
    assert_eq!(record.run.kind, "llm");
    assert_eq!(record.load.input_tokens, Some(900));
    assert_eq!(record.load.output_tokens, Some(120));
}

#[test]
fn every_missing_unknown_and_wrong_field_is_named() {
    let lacking: String = yaml(&[])
        .lines()
        .filter(|line| !line.starts_with("dtype") && !line.starts_with("peak"))
        .fold(String::new(), |text, line| text + line + "\n");
    let text = refused(&lacking, Format::Yaml);
    for name in ["missing field dtype", "missing field peak_vram", "missing field peak_ram"] {
        assert!(text.contains(name), "{text}");
    }
    let text = refused("{}", Format::Json);
    for name in NAMES.iter().filter(|name| **name != "run_id") {
        assert!(text.contains(&format!("missing field {name}")), "{name}: {text}");
    }
    let wrong = yaml(&[
        ("width", "wide"),
        ("steps", "-3"),
        ("peak_vram", "5.2"),
        ("elapsed_seconds", "fast"),
        ("pipeline_moved_to_cuda", "maybe"),
        ("status", "great"),
        ("model_id", ""),
        ("vram", "12"),
    ]);
    let text = refused(&wrong, Format::Yaml);
    for name in [
        "width: \"wide\"",
        "steps: \"-3\"",
        "peak_vram: 5.2 has no unit",
        "elapsed_seconds",
        "pipeline_moved_to_cuda: \"maybe\"",
        "status: \"great\"",
        "model_id is empty",
        "unknown field \"vram\"",
    ] {
        assert!(text.contains(name), "{name}: {text}");
    }
    let two = format!("---\n{}---\n{}", yaml(&[]), yaml(&[("width", "x")]));
    assert!(refused(&two, Format::Yaml).contains("record 2: width"));
    assert!(refused("", Format::Yaml).contains("no record"));
    assert!(refused("just text", Format::Yaml).contains("no map"));
    assert!(refused("{", Format::Json).contains("line 1"));
    assert!(refused("a,a\n1,2\n", Format::Csv).contains("twice"));
    assert!(refused("a,b\n1\n", Format::Csv).contains("record"));
}

#[test]
fn a_partial_record_is_taken_where_that_is_asked_for_and_says_what_it_lacks() {
    let text = "model_id: qwen\nstatus: done\ninput_tokens: 12\n";
    let records = read("run.yaml", text, Format::Yaml, true).unwrap();
    assert_eq!(codes(&records[0]), [FindingCode::FieldMissing]);
    assert!(records[0].findings[0].text.contains("peak_vram"));
    let error = read("run.yaml", "dtype: bf16\n", Format::Yaml, true).unwrap_err().to_string();
    assert!(error.contains("model_id") && error.contains("status"), "{error}");
}

#[test]
fn contradictions_are_findings_with_the_reason_and_the_right_order() {
    let finding = |changes: &[(&str, &str)], code: FindingCode, words: &[&str]| {
        let record = one(&yaml(changes));
        let found = record.findings.iter().find(|finding| finding.code == code);
        let text = &found.unwrap_or_else(|| panic!("{code} not found: {:?}", record.findings)).text;
        for word in words {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert_eq!(record.findings.len(), 1, "{:?}", record.findings);
    };
    finding(
        &[("pipeline_moved_to_cuda", "true")],
        FindingCode::MovedToCuda,
        &["whole pipeline", "right: load, attach everything"],
    );
    finding(
        &[("offload_api", "[enable_model_cpu_offload, enable_sequential_cpu_offload]")],
        FindingCode::TwoOffloadModes,
        &["sequential and model", "right: one of them"],
    );
    finding(
        &[("offload_mode", "model + group"), ("offload_api", "")],
        FindingCode::TwoOffloadModes,
        &["model and group"],
    );
    finding(
        &[("device_map", "balanced")],
        FindingCode::DeviceMapBesideOffload,
        &["balanced", "reset_device_map() first"],
    );
    finding(
        &[("attached_components", "[\"controlnet\", \"ip-adapter (after offload)\"]")],
        FindingCode::AttachedAfterOffload,
        &["ip-adapter", "hooks do not cover", "one offload call"],
    );
    finding(
        &[("calls", "[from_pretrained, enable_sequential_cpu_offload, load_lora_weights]")],
        FindingCode::AttachedAfterOffload,
        &["load_lora_weights"],
    );
    finding(
        &[("calls", "[from_pretrained, enable_sequential_cpu_offload, \"pipe.to('cuda')\"]")],
        FindingCode::MovedToCuda,
        &["right"],
    );
    for dtype in ["NF4", "int8", "Q4_K_M", "4bit"] {
        finding(&[("dtype", dtype)], FindingCode::QuantizationAsDtype, &[dtype, "bfloat16"]);
    }
    finding(&[("quantization", "fp16")], FindingCode::DtypeAsQuantization, &["dtype: fp16"]);
}

#[test]
fn what_is_right_has_no_finding() {
    for changes in [
        &[("offload_mode", "model"), ("offload_api", "enable_model_cpu_offload")][..],
        &[("offload_mode", "none"), ("offload_api", ""), ("pipeline_moved_to_cuda", "true")],
        &[("offload_mode", "none"), ("offload_api", ""), ("device_map", "balanced")],
        &[("quantization", "nf4"), ("dtype", "bfloat16")],
        &[("dtype", "float8_e4m3fn")],
        &[("calls", "[from_pretrained, load_lora_weights, enable_sequential_cpu_offload]")],
        &[("empty_cache", "after each row")],
    ] {
        let record = one(&yaml(changes));
        assert_eq!(codes(&record), [], "{changes:?}: {:?}", record.findings);
    }
}

#[test]
fn empty_cache_is_kept_apart_from_offload() {
    let record = one(&yaml(&[
        ("offload_mode", "sequential, empty_cache"),
        ("offload_api", "enable_sequential_cpu_offload; torch.cuda.empty_cache()"),
    ]));
    assert_eq!(codes(&record), [FindingCode::EmptyCacheAsOffload]);
    assert_eq!(record.conditions.offload_mode.as_deref(), Some("sequential"));
    assert_eq!(record.conditions.offload_api.as_deref(), Some("enable_sequential_cpu_offload"));
    assert!(record.conditions.empty_cache.unwrap().contains("empty_cache"));
    let alone = one(&yaml(&[("offload_mode", "empty_cache"), ("offload_api", "")]));
    assert_eq!(alone.conditions.offload_mode.as_deref(), Some("none"));
    assert_eq!(alone.conditions.empty_cache.as_deref(), Some("empty_cache"));
}

#[test]
fn failures_in_anybodys_words_say_which_resource_and_where() {
    for (words, resource, stage) in [
        ("oom", Some(Resource::Vram), None),
        ("failed: CUDA out of memory at decode", Some(Resource::Vram), Some(Stage::Decode)),
        ("OOM (RAM) at load", Some(Resource::Ram), Some(Stage::Load)),
        ("error: wrong shape", None, None),
    ] {
        let record = one(&yaml(&[("status", &format!("{words:?}"))]));
        assert_eq!(record.run.status, Some(Status::Failed), "{words}");
        let failure = record.failure.unwrap();
        assert_eq!((failure.resource, failure.stage), (resource, stage), "{words}");
    }
    let cancelled = one(&yaml(&[("status", "interrupted")]));
    assert_eq!((cancelled.run.status, cancelled.failure), (Some(Status::Cancelled), None));
}
