//! The schedule is that of diffusers, bit for bit, and odd options are refused by name.
#![allow(clippy::unwrap_used)] // In tests, helper functions too.

use std::path::Path;

use plimsoll_pipeline::error::{Fault, SchedulerError};
use plimsoll_pipeline::scheduler::{
    FlowMatchEuler, STEPS_MAX, TimestepRounding, received_guidance,
};
use serde_json::{Value, json};

const CLASS: &str = "FlowMatchEulerDiscreteScheduler";

fn parse(options: Value) -> Result<FlowMatchEuler, SchedulerError> {
    let mut file = json!({"_class_name": CLASS});
    file.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
    FlowMatchEuler::parse(file.to_string().as_bytes())
}

fn f32s(values: &Value) -> Vec<f32> {
    values.as_array().unwrap().iter().map(|value| value.as_f64().unwrap() as f32).collect()
}

#[test]
fn every_golden_schedule_is_met_bit_for_bit() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/sigmas.json");
    let cases: Vec<Value> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    for case in &cases {
        let sampler = parse(json!({
            "use_dynamic_shifting": case["use_dynamic_shifting"],
            "shift": case["shift"],
        }))
        .unwrap();
        let steps = case["steps"].as_u64().unwrap() as u32;
        let tokens = case["image_tokens"].as_u64().unwrap();
        let schedule = sampler.schedule(steps, tokens, TimestepRounding::F32).unwrap();
        let name = format!("{} {}x{} {steps}", case["kind"], case["width"], case["height"]);
        assert_eq!(schedule.sigmas, f32s(&case["sigmas"]), "{name}");
        let received: Vec<f32> = f32s(&case["timesteps"]).iter().map(|t| t / 1000.0).collect();
        assert_eq!(schedule.timesteps, received, "{name}");
        assert_eq!(schedule.deltas.len(), steps as usize);
        for (index, delta) in schedule.deltas.iter().enumerate() {
            assert_eq!(*delta, schedule.sigmas[index + 1] - schedule.sigmas[index]);
        }
        let mu = case["mu"].as_f64().filter(|_| case["use_dynamic_shifting"] == true);
        // The JSON reader of this test may be one unit off; the sigmas above are exact.
        let difference = schedule.mu.unwrap_or(0.0) - mu.unwrap_or(0.0);
        assert!(schedule.mu.is_some() == mu.is_some() && difference.abs() < 1e-15, "{name}");
    }
    assert_eq!(cases.len(), 40);
}

/// `timesteps.to(bfloat16) / 1000 * 1000` by torch 2.11.0 for 28 steps at 1024 x 1024.
#[test]
fn bf16_rounding_is_that_of_a_bf16_pipeline() {
    let expected = [
        1000.0, 988.0, 976.0, 964.0, 948.0, 936.0, 920.0, 904.0, 888.0, 868.0, 852.0, 828.0, 808.0,
        784.0, 760.0, 732.0, 704.0, 672.0, 636.0, 600.0, 560.0, 512.0, 462.0, 408.0, 344.0, 274.0,
        195.0, 104.5,
    ];
    let sampler = parse(json!({"use_dynamic_shifting": true, "shift": 3.0})).unwrap();
    let rounded = sampler.schedule(28, 4096, TimestepRounding::Bf16).unwrap();
    let seen: Vec<f32> = rounded.timesteps.iter().map(|timestep| timestep * 1000.0).collect();
    assert_eq!(seen, expected);
    // The step itself is not rounded.
    assert_eq!(rounded.sigmas, sampler.schedule(28, 4096, TimestepRounding::F32).unwrap().sigmas);

    assert_eq!(received_guidance(3.5, TimestepRounding::Bf16) * 1000.0, 3504.0);
    assert_eq!(received_guidance(3.5, TimestepRounding::F32), 3.5);
}

#[test]
fn linear_shift() {
    let sampler = parse(json!({
        "use_dynamic_shifting": true, "shift": 3.0, "time_shift_type": "linear",
    }))
    .unwrap();
    let bits: Vec<u32> = sampler
        .schedule(5, 4096, TimestepRounding::F32)
        .unwrap()
        .sigmas
        .iter()
        .map(|sigma| sigma.to_bits())
        .collect();
    // diffusers 0.42.1.
    let expected = [1_065_353_216, 1_062_357_285, 1_059_196_440, 1_054_748_748, 1_046_784_258, 0];
    assert_eq!(bits, expected);
}

#[test]
fn the_demo_and_the_golden_folders_parse() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for folder in ["demo/model", "tests/golden/dev-tiny", "tests/golden/schnell-tiny"] {
        let path = root.join(folder).join("scheduler/scheduler_config.json");
        FlowMatchEuler::parse(&std::fs::read(path).unwrap()).unwrap();
    }
}

#[test]
fn every_option_that_would_change_the_schedule_is_refused_by_name() {
    for option in [
        "invert_sigmas",
        "stochastic_sampling",
        "use_karras_sigmas",
        "use_exponential_sigmas",
        "use_beta_sigmas",
        "use_flow_sigmas",
    ] {
        let error = parse(json!({option: true})).unwrap_err();
        assert!(error.to_string().contains(option), "{error}");
        assert_eq!(error.fault(), Fault::File);
        for harmless in [json!(false), Value::Null] {
            parse(json!({option: harmless})).unwrap();
        }
    }
    assert!(parse(json!({"shift_terminal": 0.02})).unwrap_err().to_string().contains("terminal"));
    parse(json!({"shift_terminal": null, "some_future_note": [1]})).unwrap();
    let error = parse(json!({"use_dynamic_shifting": true, "time_shift_type": "cubic"}));
    assert!(matches!(error, Err(SchedulerError::ShiftTypeUnknown { .. })));
}

#[test]
fn bad_files_are_typed_errors() {
    let long = " ".repeat(70_000);
    for text in ["", "{", "[]", "null", "3", "{\"_class_name\": 3}", "{\"_class_name\": \"", &long]
    {
        FlowMatchEuler::parse(text.as_bytes()).unwrap_err();
    }
    FlowMatchEuler::parse(b"\xff\xfe{}").unwrap_err();
    let deep = "[".repeat(50_000);
    FlowMatchEuler::parse(deep.as_bytes()).unwrap_err();
    assert!(matches!(FlowMatchEuler::parse(b"{}"), Err(SchedulerError::ClassMissing { .. })));
    let other = FlowMatchEuler::parse(br#"{"_class_name": "EulerDiscreteScheduler"}"#).unwrap_err();
    assert!(other.to_string().contains("EulerDiscreteScheduler"), "{other}");
    let dynamic = |options: Value| {
        let mut all = json!({"use_dynamic_shifting": true});
        all.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
        parse(all)
    };
    for options in [
        json!({"shift": 0}),
        json!({"shift": -1.0}),
        json!({"shift": 1e300}),
        json!({"num_train_timesteps": 0}),
        json!({"num_train_timesteps": 10.5}),
        json!({"shift": "1"}),
    ] {
        parse(options.clone()).expect_err(&options.to_string());
    }
    for options in [
        json!({"base_image_seq_len": 4096}),
        json!({"max_image_seq_len": -1}),
        json!({"max_shift": 1e6}),
    ] {
        dynamic(options.clone()).expect_err(&options.to_string());
    }
}

#[test]
fn impossible_runs_are_refused() {
    let sampler = parse(json!({"use_dynamic_shifting": true})).unwrap();
    for steps in [0, STEPS_MAX + 1, u32::MAX] {
        let error = sampler.schedule(steps, 4096, TimestepRounding::F32).unwrap_err();
        assert_eq!(error.fault(), Fault::Caller);
    }
    for steps in [1, 2, STEPS_MAX] {
        sampler.schedule(steps, 65_536, TimestepRounding::F32).unwrap();
    }
    // mu of about 2e14, whose exponential is infinite.
    let error = sampler.schedule(4, 1 << 60, TimestepRounding::F32).unwrap_err();
    assert!(matches!(error, SchedulerError::NotFalling { .. }), "{error}");
}
