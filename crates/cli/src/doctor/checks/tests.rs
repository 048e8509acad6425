//! Planted faults: each fails its own line, with its own cause, and no other.

use plimsoll_device::Reading;
use plimsoll_graph::{DType, PhaseKind};

use super::*;
use crate::doctor::evidence::{Component, Observed, Place, Placed, Predicted};

const MIB: u64 = 1 << 20;

fn process(bytes: u64) -> Reading {
    Reading { process_bytes: Some(bytes), device_bytes: None }
}

fn device(bytes: u64) -> Reading {
    Reading { process_bytes: None, device_bytes: Some(bytes) }
}

fn run(reading: impl Fn(u64) -> Reading, idle: u64, held: u64) -> Observed {
    let sample =
        |phase, step| Placed { phase, step, vram: reading(held), ram_bytes: Some(50 * MIB) };
    let mut samples = vec![sample(PhaseKind::Encode, 0)];
    samples.extend((0..4).flat_map(|step| [sample(PhaseKind::Denoise, step); 2]));
    samples.push(sample(PhaseKind::Decode, 0));
    Observed {
        idle: reading(idle),
        samples,
        idle_again: reading(idle),
        plan_id: "plan".to_owned(),
        predicted: Predicted {
            arena_bytes: 12 * MIB,
            process_bytes: 540 * MIB,
            kept_bytes: if held > 100 * MIB { 528 * MIB } else { 0 },
            copied_bytes: 7,
            seconds_per_step: 1.0,
        },
        high_water_bytes: 12 * MIB,
        copied_bytes: 7,
        seconds_per_step: 1.1,
        latents: vec!["abc".to_owned()],
    }
}

fn healthy(place: Place) -> Evidence {
    let (idle, held) = if place == Place::Cuda { (0, 530 * MIB) } else { (0, 14 * MIB) };
    let component = |name: &str, expected, weights: &[(DType, u64)]| Component {
        name: name.to_owned(),
        expected: Some(expected),
        weights: weights.to_vec(),
        results: vec![(DType::BF16, 9), (DType::F32, 1)],
    };
    Evidence {
        place,
        has_own_rates: true,
        run_dtype: DType::BF16,
        components: vec![
            component("transformer", DType::F8E4M3, &[(DType::F8E4M3, 80), (DType::BF16, 20)]),
            component("vae", DType::BF16, &[(DType::BF16, 9)]),
        ],
        runs: vec![run(process, idle, held); 3],
    }
}

/// Exactly this line fails, with a cause that holds `cause`.
fn only(evidence: &Evidence, check: Check, cause: &str) {
    let lines = judge(evidence);
    let failed: Vec<_> = lines.iter().filter(|line| line.verdict == Verdict::Fail).collect();
    let [line] = failed[..] else { panic!("{failed:?}") };
    assert_eq!(line.check, check);
    assert!(line.cause.as_ref().is_some_and(|text| text.contains(cause)), "{line:?}");
    assert!(!line.seen.is_empty(), "the number: {line:?}");
}

fn verdict(evidence: &Evidence, check: Check) -> (Verdict, String) {
    let line = judge(evidence).into_iter().find(|line| line.check == check);
    let line = line.unwrap_or_else(|| panic!("{check:?} has no line"));
    (line.verdict, line.cause.unwrap_or_default())
}

#[test]
fn a_healthy_run_passes_every_line() {
    for place in [Place::Cpu, Place::Cuda] {
        for line in judge(&healthy(place)) {
            assert_eq!(line.verdict, Verdict::Pass, "{place:?}: {line:?}");
        }
    }
}

#[test]
fn growth_over_the_steps() {
    for place in [Place::Cpu, Place::Cuda] {
        let mut evidence = healthy(place);
        // 5 MiB a step, of which the plan knows nothing; on a card within what the process may have.
        let grow = if place == Place::Cuda { 3 * MIB } else { 256 };
        for sample in &mut evidence.runs[1].samples {
            let held = sample.vram.process_bytes.unwrap() - 8 * MIB;
            sample.vram = process(held + u64::from(sample.step) * grow);
        }
        only(&evidence, Check::FlatOverSteps, "more in step 4 than in step 1");
    }
    // What the driver rounds to is no growth.
    let mut evidence = healthy(Place::Cuda);
    evidence.runs[0].samples[5].vram = process(532 * MIB);
    assert_eq!(verdict(&evidence, Check::FlatOverSteps).0, Verdict::Pass);
    // Memory that comes and goes is none of the arena's either.
    let mut evidence = healthy(Place::Cuda);
    evidence.runs[2].samples[7].vram = process(500 * MIB);
    only(&evidence, Check::FlatOverSteps, "less in step 4 than in step 1");
}

#[test]
fn growth_of_host_memory() {
    let mut evidence = healthy(Place::Cpu);
    for sample in &mut evidence.runs[0].samples {
        sample.ram_bytes = Some(50 * MIB + u64::from(sample.step) * 2 * MIB);
    }
    only(&evidence, Check::HostMemory, "more in step 4 than in step 1");
    evidence.runs[0].samples[3].ram_bytes = None;
    assert_eq!(verdict(&evidence, Check::HostMemory).0, Verdict::Unknown);
}

#[test]
fn memory_that_is_not_given_back() {
    let mut evidence = healthy(Place::Cpu);
    evidence.runs[1].idle_again = process(256);
    only(&evidence, Check::BackToIdle, "not given back after run 2");
    let mut evidence = healthy(Place::Cuda);
    evidence.runs[2].idle_again = process(530 * MIB);
    only(&evidence, Check::BackToIdle, "still held");
}

#[test]
fn a_context_that_stays_is_not_memory_that_does() {
    let mut evidence = healthy(Place::Cuda);
    evidence.runs[0].idle_again = process(520 * MIB);
    for run in &mut evidence.runs[1..] {
        (run.idle, run.idle_again) = (process(520 * MIB), process(520 * MIB));
    }
    let lines = judge(&evidence);
    let line = lines.iter().find(|line| line.check == Check::BackToIdle).unwrap();
    assert_eq!(line.verdict, Verdict::Pass, "{line:?}");
    assert!(line.seen.contains("keep 520.00 MiB"), "{line:?}");
    // Beyond what the plan reserved it is the arena's.
    evidence.runs[0].idle_again = process(540 * MIB);
    only(&evidence, Check::BackToIdle, "not given back after run 1");
}

#[test]
fn a_dtype_that_differs() {
    let mut evidence = healthy(Place::Cuda);
    evidence.components[0].weights = vec![(DType::BF16, 100)];
    only(&evidence, Check::Dtypes, "transformer is executed in bf16 and not in f8_e4m3");
    evidence.components[0].expected = Some(DType::BF16);
    evidence.components[1].weights = vec![(DType::F32, 9)];
    only(&evidence, Check::Dtypes, "widened");
    evidence.components[1].weights = Vec::new();
    only(&evidence, Check::Dtypes, "no op of vae was executed");
    let mut evidence = healthy(Place::Cpu);
    evidence.components[1].results = vec![(DType::F32, 9)];
    only(&evidence, Check::Dtypes, "vae writes f32 and bf16 was asked for");
}

#[test]
fn a_peak_over_the_prediction() {
    let mut evidence = healthy(Place::Cpu);
    evidence.runs[0].high_water_bytes = 12 * MIB + 256;
    only(&evidence, Check::Peak, "256 B of the arena were touched beyond the plan");
    let mut evidence = healthy(Place::Cuda);
    evidence.runs[1].predicted.process_bytes = 529 * MIB;
    only(&evidence, Check::Peak, "1.00 MiB more than planned are held beside the arena");
}

#[test]
fn another_placement_than_planned() {
    let mut evidence = healthy(Place::Cpu);
    evidence.runs[0].copied_bytes = 8;
    only(&evidence, Check::Streamed, "more often than planned");
    evidence.runs[0].copied_bytes = 6;
    only(&evidence, Check::Streamed, "another placement");
}

#[test]
fn time_out_of_the_range() {
    let mut evidence = healthy(Place::Cuda);
    for run in &mut evidence.runs {
        run.seconds_per_step = 1.6;
    }
    only(&evidence, Check::Time, "1.60 times the predicted seconds in every run");
    evidence.runs[1].seconds_per_step = 1.0;
    only(&evidence, Check::Time, "in the fastest run");
    for run in &mut evidence.runs {
        run.seconds_per_step = 0.6;
    }
    only(&evidence, Check::Time, "plimsoll probe again");
    // One slow run of three is not the machine.
    let mut evidence = healthy(Place::Cpu);
    evidence.runs[2].seconds_per_step = 9.0;
    assert_eq!(verdict(&evidence, Check::Time).0, Verdict::Pass);
    // Rates of another card prove nothing.
    evidence.has_own_rates = false;
    assert!(verdict(&evidence, Check::Time).1.contains("plimsoll probe"));
}

#[test]
fn other_bits() {
    let mut evidence = healthy(Place::Cuda);
    evidence.runs[2].latents = vec!["abd".to_owned()];
    only(&evidence, Check::SameBits, "memory or the card makes errors");
}

#[test]
fn the_whole_cards_figure_is_judged_with_others_in_mind() {
    let mut evidence = healthy(Place::Cuda);
    evidence.runs = vec![run(device, 2000 * MIB, 2530 * MIB); 3];
    for line in judge(&evidence) {
        assert_eq!(line.verdict, Verdict::Pass, "{line:?}");
    }
    evidence.runs[1].idle_again = device(2100 * MIB);
    only(&evidence, Check::BackToIdle, "another program");
    // A figure that comes and goes is not judged by another's.
    evidence.runs[0].samples[0].vram = Reading::default();
    for check in [Check::BackToIdle, Check::FlatOverSteps] {
        assert_eq!(verdict(&evidence, check).0, Verdict::Unknown, "{check:?}");
    }
}

#[test]
fn what_cannot_be_known_is_neither_passed_nor_failed() {
    let mut evidence = healthy(Place::Sim);
    for run in &mut evidence.runs {
        (run.samples, run.latents) = (Vec::new(), Vec::new());
    }
    let lines = judge(&evidence);
    for line in &lines {
        let is_known = matches!(line.check, Check::Peak | Check::Streamed);
        let expected = if is_known { Verdict::Pass } else { Verdict::Unknown };
        assert_eq!(line.verdict, expected, "{line:?}");
        assert_eq!(line.cause.is_none(), is_known, "{line:?}");
    }
    // One step shows no growth.
    let mut evidence = healthy(Place::Cpu);
    for run in &mut evidence.runs {
        run.samples.retain(|sample| sample.step == 0);
    }
    assert!(verdict(&evidence, Check::FlatOverSteps).1.contains("--steps"));
}
