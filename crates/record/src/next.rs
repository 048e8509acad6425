//! The decision table: from one signal to one axis, its value, and what stays as it is.
//!
//! The table is the practice's own; which of a row's axes is taken depends on what was short, and a value is
//! proposed only where the planner says that it helps. An axis whose values cannot be run is named with the
//! reason and left out.

mod candidates;

use serde::Serialize;

use crate::axes::Axis;
use crate::criteria::Criteria;
use crate::gates::{self, Gates};
use crate::record::Record;
use crate::signal::{self, Signal};

/// A row of the table.
#[derive(Debug)]
pub struct Row {
    /// What was observed.
    pub signals: &'static [Signal],
    /// Of these axes one is changed.
    pub axes: &'static [Axis],
    /// What stays as it is, so that the two runs can be compared.
    pub keep: &'static [&'static str],
}

/// The table.
///
/// # Source
/// The project's first document, "use the failure signal to decide the next choice". The row for host memory
/// is ours: the document only says that it must not be mixed up with the others.
pub const TABLE: &[Row] = &[
    Row {
        signals: &[
            Signal::OutOfMemoryAtLoad,
            Signal::OutOfMemoryAtEncode,
            Signal::OutOfMemoryAtDenoise,
            Signal::OutOfMemoryAtDecode,
        ],
        axes: &[Axis::InputSize, Axis::Quantization, Axis::Offload],
        keep: &["model_id", "quality criteria", "elapsed_seconds of the last run, to compare with"],
    },
    Row {
        signals: &[Signal::RamShort],
        axes: &[Axis::Offload, Axis::Quantization, Axis::InputSize, Axis::Model],
        keep: &["device", "quality criteria", "elapsed_seconds of the last run, to compare with"],
    },
    Row {
        signals: &[Signal::TooSlow],
        axes: &[Axis::Offload, Axis::Model, Axis::InputSize],
        keep: &["output quality", "device configuration", "prompt, guidance and seed"],
    },
    Row {
        signals: &[Signal::QualityFailed],
        axes: &[Axis::Model, Axis::Prompt, Axis::Reference, Axis::Criteria],
        keep: &["memory placement", "that the run ends well"],
    },
];

/// The row of a signal.
pub fn row(signal: Signal) -> &'static Row {
    // Every signal has a row, which a test holds; the first is never wrong for a new one.
    TABLE.iter().find(|row| row.signals.contains(&signal)).unwrap_or(&TABLE[0])
}

/// New values for fields of one axis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The axis.
    pub axis: Axis,
    /// Names of conditions with their new values; empty where a person has to say the value.
    pub set: Vec<(&'static str, String)>,
}

impl Change {
    fn new(axis: Axis, set: &[(&'static str, &str)]) -> Self {
        let set = set.iter().map(|(field, value)| (*field, (*value).to_owned())).collect();
        Self { axis, set }
    }

    /// Whether a person has to say the value.
    pub fn needs_value(&self) -> bool {
        self.set.is_empty()
    }
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.axis)?;
        for (at, (field, value)) in self.set.iter().enumerate() {
            write!(f, "{}{field} {value}", if at == 0 { ": " } else { ", " })?;
        }
        Ok(())
    }
}

/// What is expected of a run with a change.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Expected {
    /// Whether it fits.
    pub fits: bool,
    /// Highest device memory in bytes, or what it would have to be.
    pub peak_vram: Option<u64>,
    /// Seconds of the run.
    pub seconds: Option<f64>,
}

/// Who knows what a change would do.
pub trait Planner {
    /// What is expected of the run with this change, or of the run as it was; `None` where nobody can tell.
    fn expect(&mut self, change: Option<&Change>) -> Option<Expected>;

    /// Why an axis has no value here that could be run, if so.
    fn lacks(&self, axis: Axis, signal: Signal) -> Option<String>;
}

/// What to try next.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NextTrial {
    /// What it answers to.
    pub signal: Signal,
    /// The one change; none where no axis of the row has a value that helps.
    pub change: Option<Change>,
    /// Why this axis.
    pub reason: String,
    /// What stays as it is.
    pub keep: Vec<String>,
    /// What the planner predicts for it.
    pub expected: Option<Expected>,
    /// Axes of the row that were left out, and why.
    pub left_out: Vec<(Axis, String)>,
    /// What helps besides, apart from the one axis.
    pub advice: Vec<String>,
}

/// What is known when a trial is chosen.
pub struct Situation<'a> {
    /// The run.
    pub record: &'a Record,
    /// Its gates.
    pub gates: &'a Gates,
    /// By what it was judged.
    pub criteria: &'a Criteria,
    /// Axes that were changed on the way to this run, the first trial first.
    pub tried: &'a [Axis],
}

/// Chooses the next trial.
///
/// # Errors
/// In words, why there is nothing to change.
pub fn next(situation: &Situation<'_>, planner: &mut dyn Planner) -> Result<NextTrial, String> {
    let signal = signal::observe(situation.record, situation.gates, situation.criteria)?;
    let row = row(signal);
    let mut trial = NextTrial {
        signal,
        change: None,
        reason: String::new(),
        keep: row.keep.iter().map(|&text| text.to_owned()).collect(),
        expected: None,
        left_out: Vec::new(),
        advice: Vec::new(),
    };
    if signal == Signal::TooSlow {
        trial.advice = gates::slow_advice(situation.record);
    }
    if signal == Signal::OutOfMemoryAtDecode && tiles_help(situation.record) {
        trial.advice.push(
            "VAE tiles: --vae-tile auto decodes piece by piece where the whole does not fit, with other bits"
                .to_owned(),
        );
    }
    // Where no one change is enough: the one that leaves the least to do.
    let mut step: Option<(Change, Expected)> = None;
    for (axis, why) in order(signal, situation) {
        if let Some(lack) = planner.lacks(axis, signal) {
            trial.left_out.push((axis, lack));
            continue;
        }
        match choose(axis, signal, situation, planner) {
            Ok((change, expected)) => {
                trial.reason = why;
                trial.change = Some(change);
                trial.expected = expected;
                break;
            }
            Err(Missing { why, nearest }) => {
                trial.left_out.push((axis, why));
                let is_nearer = |nearest: &(Change, Expected)| {
                    let best = step.as_ref().and_then(|(_, expected)| expected.peak_vram);
                    best.is_none_or(|best| nearest.1.peak_vram < Some(best))
                };
                step = nearest.filter(is_nearer).or(step);
            }
        }
    }
    if let (None, Some((change, expected))) = (&trial.change, step) {
        trial.left_out.retain(|(axis, _)| *axis != change.axis);
        trial.reason =
            "no one change is enough; this one leaves the least to do, and the next trial does it"
                .to_owned();
        trial.change = Some(change);
        trial.expected = Some(expected);
    }
    if trial.change.is_none() {
        trial.reason = "no axis of this row has a value that helps".to_owned();
        if signal.is_out_of_memory() {
            trial.advice.push(
                match situation.record.failure.as_ref().and_then(|f| f.smallest_bytes) {
                    Some(bytes) => {
                        format!("a higher line: {bytes} bytes are the smallest that works")
                    }
                    None => "a device with more memory".to_owned(),
                },
            );
        }
    }
    Ok(trial)
}

/// Whether decoding piece by piece is worth a word: it decodes the whole, and values are most of what does not fit.
fn tiles_help(record: &Record) -> bool {
    let is_whole = record.conditions.vae_tile.as_deref() == Some("off");
    let failure = record.failure.as_ref();
    let numbers = failure.and_then(|failure| failure.activation_bytes.zip(failure.available_bytes));
    is_whole && numbers.is_some_and(|(values, line)| values >= line)
}

/// The row's axes in the order in which they are tried, each with the reason for its place.
fn order(signal: Signal, situation: &Situation<'_>) -> Vec<(Axis, String)> {
    let record = situation.record;
    let failure = record.failure.as_ref();
    let say = |axis, why: &str| (axis, why.to_owned());
    match signal {
        Signal::TooSlow => vec![
            say(
                Axis::Offload,
                "where weights live is paid for in time only: the output stays the same",
            ),
            say(Axis::Model, "a smaller model computes less"),
            say(Axis::InputSize, "less is computed"),
        ],
        Signal::QualityFailed => quality_order(situation),
        Signal::RamShort => vec![
            say(Axis::Offload, "fewer weights are held at once"),
            say(Axis::Quantization, "the same weights take fewer bytes"),
            say(Axis::InputSize, "intermediate values take fewer bytes"),
            say(Axis::Model, "a smaller model takes fewer bytes"),
        ],
        _ => {
            let activations = failure.and_then(|failure| failure.activation_bytes);
            let line = failure.and_then(|failure| failure.available_bytes);
            let offload =
                say(Axis::Offload, "weights were the problem, and they can wait elsewhere");
            let quantization = say(Axis::Quantization, "the same weights take fewer bytes");
            match activations.zip(line) {
                Some((activations, line)) if activations >= line => vec![
                    say(
                        Axis::InputSize,
                        "intermediate values alone are over the line: no placement of weights helps",
                    ),
                    quantization,
                    offload,
                ],
                _ => vec![
                    offload,
                    quantization,
                    say(Axis::InputSize, "no placement of the weights is enough"),
                ],
            }
        }
    }
}

fn quality_order(situation: &Situation<'_>) -> Vec<(Axis, String)> {
    let record = situation.record;
    let say = |axis, why: &str| (axis, why.to_owned());
    let prompt =
        say(Axis::Prompt, "a person saw something else than was meant: the words come first");
    let model = say(Axis::Model, "another model");
    let reference = say(Axis::Reference, "it was measured against another picture than was meant");
    let criteria = say(Axis::Criteria, "a person passed it, and the criteria did not");
    if record.findings.iter().any(|finding| finding.code.fails_quality()) {
        let why = "the output is no picture at all: words do not cause that, the model's files may";
        return vec![say(Axis::Model, why), prompt, reference, criteria];
    }
    let is_passed = record.verdicts.last().is_some_and(|verdict| verdict.is_pass);
    let is_measured = !record.comparisons.is_empty();
    if is_measured && is_passed {
        return vec![criteria, reference, prompt, model];
    }
    if is_measured && record.verdicts.is_empty() {
        let why = "only a measurement failed it: see first that the reference is the right one";
        return vec![say(Axis::Reference, why), prompt, model, criteria];
    }
    // Twice other words and still not good: it is not the words.
    let prompts = situation.tried.iter().filter(|axis| **axis == Axis::Prompt).count();
    if prompts >= 2 {
        let why = format!("the prompt was changed {prompts} times and it is still not good");
        return vec![(Axis::Model, why), reference, criteria, prompt];
    }
    vec![prompt, model, reference, criteria]
}

/// An axis that has no value that helps.
struct Missing {
    /// Why.
    why: String,
    /// The value that comes nearest to fitting, if it is nearer than the run was.
    nearest: Option<(Change, Expected)>,
}

impl Missing {
    fn because(why: &str) -> Self {
        Self { why: why.to_owned(), nearest: None }
    }
}

/// The first value of an axis that helps.
fn choose(
    axis: Axis,
    signal: Signal,
    situation: &Situation<'_>,
    planner: &mut dyn Planner,
) -> Result<(Change, Option<Expected>), Missing> {
    if signal == Signal::QualityFailed || axis == Axis::Model {
        // Only a person knows another prompt, model, reference or criterion.
        return Ok((Change { axis, set: Vec::new() }, None));
    }
    let conditions = &situation.record.conditions;
    let candidates = match axis {
        Axis::Offload => candidates::offload(signal, conditions),
        Axis::Quantization => candidates::quantization(conditions),
        Axis::InputSize => candidates::input_size(signal, conditions),
        _ => Vec::new(),
    };
    if candidates.is_empty() {
        return Err(Missing::because("there is no step left on it"));
    }
    let before = planner.expect(None);
    let mut fastest: Option<(Change, Expected)> = None;
    let mut nearest: Option<(Change, Expected)> = None;
    let mut thriftiest: Option<(Change, Expected)> = None;
    for change in candidates {
        let Some(expected) = planner.expect(Some(&change)) else {
            // Software that we have no planner for: the next step, untested.
            return Ok((change, None));
        };
        if !expected.fits {
            let needed = before.as_ref().and_then(|before| before.peak_vram);
            let least = nearest.as_ref().map_or(needed, |(_, nearest)| nearest.peak_vram);
            if expected.peak_vram.zip(least).is_some_and(|(now, least)| now < least) {
                nearest = Some((change, expected));
            }
            continue;
        }
        match signal {
            Signal::TooSlow => {
                let limit = time_limit(situation);
                let scale = slowness(situation.record, before.as_ref());
                let seconds = expected.seconds.map(|seconds| seconds * scale);
                if seconds.zip(limit).is_some_and(|(seconds, limit)| seconds <= limit) {
                    return Ok((change, Some(expected)));
                }
                let best = fastest
                    .as_ref()
                    .map(|(_, best)| best.seconds)
                    .or_else(|| before.as_ref().map(|before| before.seconds))
                    .flatten();
                if expected.seconds.zip(best).is_some_and(|(now, best)| now < best * GAIN) {
                    fastest = Some((change, expected));
                }
            }
            Signal::RamShort => {
                // Where nobody knows how much there was, a change that halves the need is worth a trial.
                let needed = before.as_ref().and_then(|before| before.peak_vram);
                let failure = situation.record.failure.as_ref();
                let there = failure.and_then(|failure| failure.available_bytes);
                let target = there.or(needed.map(|needed| needed / 2));
                if expected.peak_vram.zip(target).is_some_and(|(now, target)| now <= target) {
                    return Ok((change, Some(expected)));
                }
                let least = thriftiest.as_ref().and_then(|(_, least)| least.peak_vram);
                let bound = least.or(needed.map(|needed| needed / 4 * 3));
                if expected.peak_vram.zip(bound).is_some_and(|(now, bound)| now < bound) {
                    thriftiest = Some((change, expected));
                }
            }
            _ => return Ok((change, Some(expected))),
        }
    }
    fastest.map(|(change, expected)| (change, Some(expected))).ok_or_else(|| Missing {
        nearest,
        ..Missing::because("the planner finds no value of it that helps")
    })
}

/// A change has to take at least a twentieth off to count as faster.
const GAIN: f64 = 0.95;

/// The strictest limit on a run's seconds.
fn time_limit(situation: &Situation<'_>) -> Option<f64> {
    let wanted = &situation.criteria.operation;
    let batch = situation.record.conditions.batch_size.unwrap_or(1) as f64;
    let by_rate = wanted.per_hour_min.map(|least| batch * 3600.0 / least);
    [wanted.seconds_mean_max, wanted.seconds_p95_max, by_rate]
        .into_iter()
        .flatten()
        .min_by(f64::total_cmp)
}

/// How much longer the run took than it was predicted to: what is predicted for a change is off by as much.
fn slowness(record: &Record, before: Option<&Expected>) -> f64 {
    let predicted = before.and_then(|before| before.seconds).filter(|seconds| *seconds > 0.0);
    record
        .load
        .elapsed_seconds
        .zip(predicted)
        .map_or(1.0, |(measured, predicted)| measured / predicted)
}

#[cfg(test)]
mod tests;
