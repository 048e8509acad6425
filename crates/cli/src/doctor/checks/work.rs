//! Lines on what was done: in which numbers, how often weights came, how long it took, with which bits.

use std::cmp::Ordering;

use plimsoll_graph::DType;
use plimsoll_record::units::{show_bytes, show_seconds};

use super::{Check, Line, fail, pass, unknown};
use crate::doctor::evidence::{Evidence, Observed, Place};

/// Measured seconds may be this many times the predicted ones, or this part of them.
///
/// The field's figure for "something is wrong" is about the same: 3.5 s where 2.0 to 2.15 are normal.
const TIME_FACTOR: f64 = 1.5;

pub(super) fn dtypes(evidence: &Evidence) -> Line {
    const CHECK: Check = Check::Dtypes;
    if evidence.place == Place::Sim {
        return unknown(
            CHECK,
            "nothing is computed on the simulated device: the plan's dtypes are no proof",
        );
    }
    if evidence.components.iter().all(|component| component.weights.is_empty()) {
        return unknown(CHECK, "the device keeps no trace of its ops");
    }
    let mut seen = Vec::new();
    let mut causes = Vec::new();
    for component in &evidence.components {
        let name = &component.name;
        let Some(&(found, _)) = component.weights.first() else {
            causes.push(format!("no op of {name} was executed"));
            continue;
        };
        let all: u64 = component.weights.iter().map(|(_, bytes)| bytes).sum();
        let shares: Vec<String> = component
            .weights
            .iter()
            .map(|(dtype, bytes)| format!("{} {}", dtype.name(), share(*bytes, all)))
            .collect();
        seen.push(format!("{name} {}", shares.join(" + ")));
        if let Some(expected) = component.expected.filter(|expected| *expected != found) {
            causes.push(wrong_weights(name, expected, found));
        }
        if let Some(&(written, _)) = component.results.first()
            && written != evidence.run_dtype
        {
            causes.push(format!(
                "{name} writes {} and {} was asked for: its ops were bound to other buffers, a bug of this program",
                written.name(),
                evidence.run_dtype.name(),
            ));
        }
    }
    let seen = format!("{}; values {}", seen.join(", "), evidence.run_dtype.name());
    if causes.is_empty() { pass(CHECK, seen) } else { fail(CHECK, seen, causes.join("; ")) }
}

fn wrong_weights(name: &str, expected: DType, found: DType) -> String {
    let why = match (expected, found) {
        (DType::F8E4M3, _) => {
            "its weights were not quantized: give --dtype transformer=fp8, or a folder that pack wrote with it"
        }
        (_, DType::F8E4M3) => {
            "the folder is a packed one: bf16 needs the folder that it was packed from"
        }
        (DType::BF16, DType::F32) => {
            "they were widened on their way and take twice the bytes: see --dtype"
        }
        _ => "another folder or --dtype than was meant",
    };
    format!("{name} is executed in {} and not in {}: {why}", found.name(), expected.name())
}

fn share(part: u64, all: u64) -> String {
    let percent = part as f64 * 100.0 / all.max(1) as f64;
    if percent >= 99.95 { "100 %".to_owned() } else { format!("{percent:.1} %") }
}

pub(super) fn streamed(evidence: &Evidence) -> Line {
    const CHECK: Check = Check::Streamed;
    let other = evidence.runs.iter().find(|run| run.copied_bytes != run.predicted.copied_bytes);
    let Some(run) = other.or(evidence.runs.first()) else {
        return unknown(CHECK, "no run was seen");
    };
    let (copied, planned) = (run.copied_bytes, run.predicted.copied_bytes);
    let seen = format!("{} of {} a run", show_bytes(copied), show_bytes(planned));
    match copied.cmp(&planned) {
        Ordering::Equal => pass(CHECK, seen),
        Ordering::Greater => fail(
            CHECK,
            seen,
            "weights are copied more often than planned: they do not stay where the plan has them",
        ),
        Ordering::Less => fail(
            CHECK,
            seen,
            "weights that the plan streams were not copied: another placement is in effect",
        ),
    }
}

pub(super) fn time(evidence: &Evidence) -> Line {
    const CHECK: Check = Check::Time;
    let times = |run: &Observed| run.seconds_per_step / run.predicted.seconds_per_step;
    let mut runs: Vec<&Observed> = evidence.runs.iter().collect();
    runs.sort_by(|a, b| times(a).total_cmp(&times(b)));
    let (Some(fastest), Some(median)) = (runs.first(), runs.get(runs.len() / 2)) else {
        return unknown(CHECK, "no run was seen");
    };
    let predicted = median.predicted.seconds_per_step;
    let seen = format!(
        "{} a step, range {} to {}",
        show_seconds(median.seconds_per_step),
        show_seconds(predicted / TIME_FACTOR),
        show_seconds(predicted * TIME_FACTOR),
    );
    if evidence.place == Place::Sim {
        return Line { seen, ..unknown(CHECK, "a virtual clock says what the plan says") };
    }
    if !evidence.has_own_rates {
        let why = "the plan's rates are another card's: plimsoll probe measures this one";
        return Line { seen, ..unknown(CHECK, why) };
    }
    if (1.0 / TIME_FACTOR..=TIME_FACTOR).contains(&times(median)) {
        return pass(CHECK, seen);
    }
    let off = format!("{:.2} times the predicted seconds", times(median));
    let again = match evidence.place {
        Place::Cuda => "plimsoll probe",
        Place::Cpu | Place::Sim => "doctor",
    };
    let cause = if times(median) < 1.0 {
        format!(
            "{off}: the rates were measured while this machine was slower or busier; run {again} again"
        )
    } else if times(fastest) <= TIME_FACTOR {
        format!(
            "{off}, but {:.2} in the fastest run: something else used the machine for a while; run doctor again",
            times(fastest),
        )
    } else if evidence.place == Place::Cuda {
        format!(
            "{off} in every run: the card is shared or throttled, its link is slower than it was, or weights come from the \
             disk and not from RAM (page cache); run {again} again when it is idle"
        )
    } else {
        format!(
            "{off} in every run: other programs share the machine, or it is throttled; run {again} again when it is idle"
        )
    };
    fail(CHECK, seen, cause)
}

pub(super) fn same_bits(evidence: &Evidence) -> Line {
    const CHECK: Check = Check::SameBits;
    let Some(first) = evidence.runs.first().filter(|run| !run.latents.is_empty()) else {
        return unknown(CHECK, "nothing is computed on the simulated device");
    };
    let seen =
        |other: usize| format!("{} of {} runs", evidence.runs.len() - other, evidence.runs.len());
    match evidence.runs.iter().filter(|run| run.latents != first.latents).count() {
        0 => pass(CHECK, seen(0)),
        other => fail(
            CHECK,
            seen(other),
            "the same conditions gave other pictures: memory or the card makes errors, or a bug of this program",
        ),
    }
}
