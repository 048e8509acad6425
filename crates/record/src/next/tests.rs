//! The decision table, row by row: each signal gives one axis of its row, never two, and what stays is said.

use super::*;
use crate::fields::Json;
use crate::record::{Comparison, Conditions, Failure, Finding, Verdict};
use crate::words::{FindingCode, Resource, Stage, Status};
use crate::{axes, gates};

/// A run of this program that ended well and took two seconds.
fn ran() -> Record {
    let mut record = Record::default();
    record.run.status = Some(Status::Done);
    record.run.run_id = "parent".into();
    record.conditions = Conditions {
        model_id: Some("demo".into()),
        dtype: Some("bf16".into()),
        quantization: Some("none".into()),
        runtime: Some("plimsoll 0.1.0".into()),
        device: Some("cpu".into()),
        offload_mode: Some("none".into()),
        offload_api: Some("--offload none --prefetch on".into()),
        context_length: Some(32),
        width: Some(128),
        height: Some(128),
        batch_size: Some(1),
        steps: Some(8),
        prompt: Some("ice cream".into()),
        ..Conditions::default()
    };
    record.load.elapsed_seconds = Some(2.0);
    record
}

fn short(resource: Resource, stage: Stage, activations: u64) -> Record {
    let mut record = ran();
    record.run.status = Some(Status::Refused);
    record.failure = Some(Failure {
        kind: "infeasible".into(),
        message: "does not fit".into(),
        resource: Some(resource),
        stage: Some(stage),
        needed_bytes: Some(200),
        available_bytes: Some(100),
        smallest_bytes: Some(50),
        activation_bytes: Some(activations),
    });
    record
}

/// A planner whose word is a function, and which cannot run other quantizations or find other models.
struct Fake<F>(F);

impl<F: Fn(Option<&Change>) -> Option<Expected>> Planner for Fake<F> {
    fn expect(&mut self, change: Option<&Change>) -> Option<Expected> {
        (self.0)(change)
    }

    fn lacks(&self, axis: Axis, _: Signal) -> Option<String> {
        match axis {
            Axis::Quantization => Some("quantized files are not run by this build".into()),
            _ => None,
        }
    }
}

fn fits(fits: bool, seconds: f64) -> Option<Expected> {
    Some(Expected { fits, peak_vram: Some(if fits { 50 } else { 200 }), seconds: Some(seconds) })
}

fn try_next(
    record: &Record,
    criteria: &Criteria,
    tried: &[Axis],
    expect: impl Fn(Option<&Change>) -> Option<Expected>,
) -> Result<NextTrial, String> {
    let gates = gates::judge(record, &[], criteria);
    next(&Situation { record, gates: &gates, criteria, tried }, &mut Fake(expect))
}

/// Applies a change to conditions, as a run with it would record them.
fn apply(conditions: &Conditions, change: &Change) -> Conditions {
    let mut to = conditions.clone();
    for (field, value) in &change.set {
        let number = || value.parse().ok();
        match *field {
            "width" => to.width = number(),
            "height" => to.height = number(),
            "steps" => to.steps = number(),
            "batch_size" => to.batch_size = number(),
            "context_length" => to.context_length = number(),
            "quantization" => to.quantization = Some(value.clone()),
            "offload_mode" => to.offload_mode = Some(value.clone()),
            "prefetch" => to.offload_api = Some(format!("--prefetch {value}")),
            other => panic!("{other} is no field that a trial sets"),
        }
    }
    to
}

/// The trial is of one axis of the signal's row, says what stays, and changes that axis only.
fn is_sound(record: &Record, trial: &NextTrial, signal: Signal, axis: Axis) {
    assert_eq!(trial.signal, signal);
    let change = trial.change.as_ref().unwrap_or_else(|| panic!("no change: {trial:?}"));
    assert_eq!(change.axis, axis, "{trial:?}");
    assert!(row(signal).axes.contains(&axis));
    assert_eq!(trial.keep, row(signal).keep);
    assert!(!trial.reason.is_empty());
    let changed = apply(&record.conditions, change);
    let found: Vec<Axis> =
        axes::differences(&record.conditions, &changed).into_iter().map(|one| one.axis).collect();
    if change.needs_value() {
        assert_eq!(found, []);
    } else {
        assert_eq!(found, [axis], "one axis and no other");
    }
}

#[test]
fn every_signal_has_a_row_and_the_rows_are_the_practices() {
    for signal in Signal::ALL {
        assert_eq!(TABLE.iter().filter(|row| row.signals.contains(signal)).count(), 1, "{signal}");
        assert!(!row(*signal).keep.is_empty());
    }
    let axes = |signal| row(signal).axes;
    assert_eq!(
        axes(Signal::OutOfMemoryAtDecode),
        [Axis::InputSize, Axis::Quantization, Axis::Offload]
    );
    assert_eq!(axes(Signal::TooSlow), [Axis::Offload, Axis::Model, Axis::InputSize]);
    assert_eq!(
        axes(Signal::QualityFailed),
        [Axis::Model, Axis::Prompt, Axis::Reference, Axis::Criteria]
    );
    assert!(row(Signal::OutOfMemoryAtLoad).keep.contains(&"model_id"));
    assert!(row(Signal::QualityFailed).keep.contains(&"memory placement"));
    assert!(row(Signal::TooSlow).keep.contains(&"output quality"));
}

#[test]
fn out_of_memory_at_any_stage_moves_weights_while_they_are_the_problem() {
    for (stage, signal) in [
        (Stage::Load, Signal::OutOfMemoryAtLoad),
        (Stage::Encode, Signal::OutOfMemoryAtEncode),
        (Stage::Hoist, Signal::OutOfMemoryAtDenoise),
        (Stage::Denoise, Signal::OutOfMemoryAtDenoise),
        (Stage::Decode, Signal::OutOfMemoryAtDecode),
    ] {
        let record = short(Resource::Vram, stage, 10);
        let trial = try_next(&record, &Criteria::default(), &[], |change| {
            fits(change.is_some_and(|change| change.axis == Axis::Offload), 1.0)
        })
        .unwrap();
        is_sound(&record, &trial, signal, Axis::Offload);
        assert_eq!(trial.change.unwrap().set, [("offload_mode", "auto".to_owned())]);
        assert_eq!(trial.expected.unwrap().peak_vram, Some(50));
        assert!(trial.left_out.is_empty());
    }
}

#[test]
fn out_of_memory_by_activations_shrinks_the_input() {
    for stage in [Stage::Encode, Stage::Denoise, Stage::Decode] {
        let record = short(Resource::Vram, stage, 100);
        let trial = try_next(&record, &Criteria::default(), &[], |change| {
            fits(change.is_some_and(|change| change.axis == Axis::InputSize), 1.0)
        })
        .unwrap();
        is_sound(&record, &trial, trial.signal, Axis::InputSize);
        assert_eq!(trial.advice, [""; 0]);
        let first = if stage == Stage::Encode { "context_length" } else { "width" };
        assert_eq!(trial.change.unwrap().set[0].0, first);
    }
}

#[test]
fn a_decoder_that_does_not_fit_is_advised_tiles_apart_from_the_axis() {
    let mut record = short(Resource::Vram, Stage::Decode, 100);
    let smaller = |change: Option<&Change>| {
        fits(change.is_some_and(|change| change.axis == Axis::InputSize), 1.0)
    };
    let advice = |record: &Record| {
        let trial = try_next(record, &Criteria::default(), &[], smaller).unwrap();
        is_sound(record, &trial, Signal::OutOfMemoryAtDecode, Axis::InputSize);
        trial.advice
    };
    record.conditions.vae_tile = Some("off".into());
    assert!(advice(&record)[0].contains("--vae-tile auto"));
    // Where weights are the problem it would not help.
    let record_of_weights = {
        let mut record = record.clone();
        record.failure.as_mut().unwrap().activation_bytes = Some(10);
        record
    };
    assert!(advice(&record_of_weights).is_empty());
    record.conditions.vae_tile = Some("auto".into());
    assert!(advice(&record).is_empty());
}

#[test]
fn the_least_reduction_that_fits_is_taken_and_fewer_pictures_come_first() {
    let mut record = short(Resource::Vram, Stage::Denoise, 100);
    let narrow = |change: Option<&Change>| {
        let width =
            change.and_then(|change| change.set.iter().find(|(field, _)| *field == "width"));
        fits(width.is_some_and(|(_, value)| value.parse::<u64>().unwrap() <= 96), 1.0)
    };
    let trial = try_next(&record, &Criteria::default(), &[], narrow).unwrap();
    let expected = [("width", "96".to_owned()), ("height", "96".to_owned())];
    assert_eq!(trial.change.unwrap().set, expected);
    record.conditions.batch_size = Some(4);
    let trial = try_next(&record, &Criteria::default(), &[], |_| fits(true, 1.0)).unwrap();
    assert_eq!(trial.change.unwrap().set, [("batch_size", "2".to_owned())]);
}

#[test]
fn an_axis_that_cannot_be_run_is_named_and_not_proposed() {
    let record = short(Resource::Vram, Stage::Denoise, 10);
    let trial = try_next(&record, &Criteria::default(), &[], |change| {
        fits(change.is_some_and(|change| change.axis == Axis::InputSize), 1.0)
    })
    .unwrap();
    is_sound(&record, &trial, Signal::OutOfMemoryAtDenoise, Axis::InputSize);
    let left_out: Vec<Axis> = trial.left_out.iter().map(|(axis, _)| *axis).collect();
    assert_eq!(left_out, [Axis::Offload, Axis::Quantization]);
    assert!(trial.left_out[1].1.contains("not run by this build"));
    // Nothing helps: said so, with the line that would.
    let trial = try_next(&record, &Criteria::default(), &[], |_| fits(false, 1.0)).unwrap();
    assert_eq!(trial.change, None);
    assert!(trial.advice.iter().any(|line| line.contains("50 bytes")), "{trial:?}");
}

/// As [`Fake`], where weights can be run in 8 bits.
struct Able<F>(F);

impl<F: Fn(Option<&Change>) -> Option<Expected>> Planner for Able<F> {
    fn expect(&mut self, change: Option<&Change>) -> Option<Expected> {
        (self.0)(change)
    }

    fn lacks(&self, _: Axis, _: Signal) -> Option<String> {
        None
    }
}

#[test]
fn eight_bits_are_the_one_step_of_quantization_and_change_no_dtype() {
    let mut record = short(Resource::Vram, Stage::Denoise, 10);
    let criteria = Criteria::default();
    let mut planner = Able(|change: Option<&Change>| {
        let is_narrow = change.is_some_and(|change| change.axis == Axis::Quantization);
        fits(is_narrow || change.is_some_and(|change| change.axis == Axis::InputSize), 1.0)
    });
    let mut try_it = |record: &Record| {
        let gates = gates::judge(record, &[], &criteria);
        let situation = Situation { record, gates: &gates, criteria: &criteria, tried: &[] };
        next(&situation, &mut planner).unwrap()
    };
    let trial = try_it(&record);
    is_sound(&record, &trial, Signal::OutOfMemoryAtDenoise, Axis::Quantization);
    assert_eq!(trial.change.unwrap().set, [("quantization", "fp8".to_owned())]);
    // As a record says it afterwards: there are no fewer bits.
    record.conditions.quantization = Some("fp8 e4m3 (transformer)".into());
    let trial = try_it(&record);
    is_sound(&record, &trial, Signal::OutOfMemoryAtDenoise, Axis::InputSize);
    assert!(
        trial
            .left_out
            .iter()
            .any(|(axis, why)| { *axis == Axis::Quantization && why.contains("no step left") })
    );
}

#[test]
fn where_no_one_change_is_enough_the_one_that_leaves_the_least_is_taken() {
    let record = short(Resource::Vram, Stage::Denoise, 10);
    let trial = try_next(&record, &Criteria::default(), &[], |change| {
        let needed = match change.map(|change| change.axis) {
            None => 200,
            Some(Axis::Offload) => 120,
            Some(_) => 150,
        };
        Some(Expected { fits: false, peak_vram: Some(needed), seconds: None })
    })
    .unwrap();
    is_sound(&record, &trial, Signal::OutOfMemoryAtDenoise, Axis::Offload);
    assert!(trial.reason.contains("no one change"), "{}", trial.reason);
    assert!(!trial.expected.unwrap().fits);
    assert!(trial.left_out.iter().all(|(axis, _)| *axis != Axis::Offload));
}

#[test]
fn too_slow_changes_the_placement_first_and_advises_apart() {
    let mut criteria = Criteria::default();
    criteria.operation.seconds_mean_max = Some(1.0);
    let mut record = ran();
    record.conditions.offload_mode = Some("sequential".into());
    let faster = |change: Option<&Change>| {
        fits(
            true,
            if change.is_some_and(|change| change.axis == Axis::Offload) { 0.4 } else { 1.0 },
        )
    };
    let trial = try_next(&record, &criteria, &[], faster).unwrap();
    is_sound(&record, &trial, Signal::TooSlow, Axis::Offload);
    for word in ["batch", "cache", "faster runtime"] {
        assert!(trial.advice.iter().any(|line| line.starts_with(word)), "{word}");
    }
    // Twice as slow as predicted: what is predicted for a change is scaled by that.
    let barely = |change: Option<&Change>| fits(true, if change.is_some() { 0.6 } else { 1.0 });
    let trial = try_next(&record, &criteria, &[], barely).unwrap();
    assert_eq!(trial.expected.unwrap().seconds, Some(0.6), "the best that there is");
    // No placement is faster: another model is a person's to name, if one is known.
    let same = |_: Option<&Change>| fits(true, 1.0);
    let trial = try_next(&record, &criteria, &[], same).unwrap();
    is_sound(&record, &trial, Signal::TooSlow, Axis::Model);
}

#[test]
fn bad_quality_leaves_the_placement_alone() {
    let never = |_: Option<&Change>| panic!("quality asks no planner");
    let verdict = |is_pass| Verdict { is_pass, ..Verdict::default() };
    let mut record = ran();
    record.verdicts.push(verdict(false));
    let criteria = Criteria::default();
    let trial = try_next(&record, &criteria, &[], never).unwrap();
    is_sound(&record, &trial, Signal::QualityFailed, Axis::Prompt);
    assert!(trial.change.as_ref().unwrap().needs_value());
    let twice = [Axis::Prompt, Axis::Prompt];
    let trial = try_next(&record, &criteria, &twice, never).unwrap();
    is_sound(&record, &trial, Signal::QualityFailed, Axis::Model);

    let mut black = ran();
    black.findings.push(Finding { code: FindingCode::AllBlack, text: "all black".into() });
    let trial = try_next(&black, &criteria, &[], never).unwrap();
    is_sound(&black, &trial, Signal::QualityFailed, Axis::Model);

    let mut measured = ran();
    measured.comparisons.push(Comparison { ssim: 0.5, ..Comparison::default() });
    let mut strict = Criteria::default();
    strict.quality.ssim_min = Some(0.9);
    let trial = try_next(&measured, &strict, &[], never).unwrap();
    is_sound(&measured, &trial, Signal::QualityFailed, Axis::Reference);
    measured.verdicts.push(verdict(true));
    let trial = try_next(&measured, &strict, &[], never).unwrap();
    is_sound(&measured, &trial, Signal::QualityFailed, Axis::Criteria);
}

#[test]
fn short_ram_is_neither_short_vram_nor_slow() {
    let record = short(Resource::Ram, Stage::Load, 10);
    let less = |change: Option<&Change>| {
        let is_thrifty = change
            .is_some_and(|change| change.set.contains(&("offload_mode", "sequential".to_owned())));
        Some(Expected {
            fits: true,
            peak_vram: Some(if is_thrifty { 5 } else { 200 }),
            seconds: None,
        })
    };
    let trial = try_next(&record, &Criteria::default(), &[], less).unwrap();
    is_sound(&record, &trial, Signal::RamShort, Axis::Offload);
    assert_eq!(trial.change.unwrap().set, [("offload_mode", "sequential".to_owned())]);
}

#[test]
fn short_ram_takes_a_step_that_is_worth_a_trial() {
    let mut record = short(Resource::Ram, Stage::Load, 10);
    // A tenth less by placement says little; a picture that halves the need does.
    let little = |change: Option<&Change>| {
        let peak = match change.map(|change| (change.axis, change.set[0].1.as_str())) {
            None => 200,
            Some((Axis::InputSize, width)) => width.parse::<u64>().unwrap() * 200 / 128,
            Some(_) => 180,
        };
        Some(Expected { fits: true, peak_vram: Some(peak), seconds: None })
    };
    record.failure.as_mut().unwrap().available_bytes = None;
    let trial = try_next(&record, &Criteria::default(), &[], little).unwrap();
    is_sound(&record, &trial, Signal::RamShort, Axis::InputSize);
    assert_eq!(trial.change.unwrap().set[0].1, "64");
    record.failure.as_mut().unwrap().available_bytes = Some(185);
    let trial = try_next(&record, &Criteria::default(), &[], little).unwrap();
    is_sound(&record, &trial, Signal::RamShort, Axis::Offload);
}

#[test]
fn runs_of_other_software_get_the_next_step_untested() {
    let mut record = short(Resource::Vram, Stage::Load, 0);
    record.conditions.runtime = Some("diffusers 0.35".into());
    record.failure = record.failure.map(|failure| Failure { available_bytes: None, ..failure });
    for (mode, next) in [("none", "model"), ("model", "group"), ("group", "sequential")] {
        record.conditions.offload_mode = Some(mode.into());
        let trial = try_next(&record, &Criteria::default(), &[], |_| None).unwrap();
        is_sound(&record, &trial, Signal::OutOfMemoryAtLoad, Axis::Offload);
        assert_eq!(trial.change.unwrap().set, [("offload_mode", next.to_owned())]);
        assert_eq!(trial.expected, None);
    }
    record.conditions.offload_mode = Some("sequential".into());
    let trial = try_next(&record, &Criteria::default(), &[], |_| None).unwrap();
    is_sound(&record, &trial, Signal::OutOfMemoryAtLoad, Axis::InputSize);
}

#[test]
fn what_no_setting_helps_is_said_and_no_trial_proposed() {
    let refuse = |record: &Record| {
        try_next(record, &Criteria::default(), &[], |_| panic!("no planner is asked")).unwrap_err()
    };
    assert!(refuse(&ran()).contains("judge"));
    let mut cancelled = ran();
    cancelled.run.status = Some(Status::Cancelled);
    cancelled.failure = Some(Failure { kind: "cancelled".into(), ..Failure::default() });
    assert!(refuse(&cancelled).contains("run it again"));
    let full = short(Resource::Disk, Stage::Write, 0);
    assert!(refuse(&full).contains("disk"));
    let mut broken = ran();
    broken.run.status = Some(Status::Failed);
    broken.failure = Some(Failure { message: "vae: too short".into(), ..Failure::default() });
    assert!(refuse(&broken).contains("vae: too short"));
    let mut good = ran();
    good.verdicts.push(Verdict { is_pass: true, checks: Json::default(), ..Verdict::default() });
    assert!(refuse(&good).contains("repeat"));
}
