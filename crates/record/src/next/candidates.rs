//! Values of an axis, in the order in which they are tried.

use super::Change;
use crate::axes::Axis;
use crate::record::Conditions;
use crate::signal::Signal;

/// Offload modes, from the one that holds most to the one that holds least.
const THRIFT: &[&str] = &["none", "model", "group", "sequential"];

/// Other placements of the weights, in the order in which they are tried.
pub(super) fn offload(signal: Signal, conditions: &Conditions) -> Vec<Change> {
    let mode = conditions.offload_mode.as_deref().unwrap_or("none").to_ascii_lowercase();
    let change = |set: &[(&'static str, &str)]| Change::new(Axis::Offload, set);
    let api = conditions.offload_api.as_deref().unwrap_or_default();
    if !is_ours(conditions) {
        let at = THRIFT.iter().position(|name| mode.starts_with(name)).unwrap_or(0);
        let next = if signal == Signal::TooSlow {
            THRIFT[..at].iter().next_back()
        } else {
            THRIFT.get(at + 1)
        };
        return next.map(|name| change(&[("offload_mode", name)])).into_iter().collect();
    }
    let has_prefetch = !api.contains("--prefetch off");
    let mut found = Vec::new();
    if signal == Signal::TooSlow {
        // One field of the axis at a time where that is enough.
        if !has_prefetch {
            found.push(change(&[("prefetch", "on")]));
        }
        if mode != "auto" {
            found.push(change(&[("offload_mode", "auto")]));
            found.push(change(&[("offload_mode", "auto"), ("prefetch", "on")]));
        }
        return found;
    }
    if mode != "auto" {
        found.push(change(&[("offload_mode", "auto")]));
    }
    if has_prefetch {
        found.push(change(&[("prefetch", "off")]));
    }
    if mode != "sequential" {
        found.push(change(&[("offload_mode", "sequential")]));
        if has_prefetch {
            found.push(change(&[("offload_mode", "sequential"), ("prefetch", "off")]));
        }
    }
    found
}

/// From many bits a weight to few: what this program runs, or what the field does.
pub(super) fn quantization(conditions: &Conditions) -> Vec<Change> {
    const OURS: &[&str] = &["none", "fp8"];
    const OTHERS: &[&str] = &["none", "int8", "nf4"];
    let steps = if is_ours(conditions) { OURS } else { OTHERS };
    let now = conditions.quantization.as_deref().unwrap_or("none").to_ascii_lowercase();
    // A record may say more than the name: `fp8 e4m3 (transformer)`.
    let at = steps.iter().position(|name| now.starts_with(name)).unwrap_or(steps.len());
    let next = steps.get(at + 1);
    next.map(|name| Change::new(Axis::Quantization, &[("quantization", name)]))
        .into_iter()
        .collect()
}

fn is_ours(conditions: &Conditions) -> bool {
    conditions.runtime.as_deref().is_some_and(|name| name.starts_with("plimsoll"))
}

/// Sides of a picture are multiples of this for every model that is known.
const SIDE: u64 = 16;

/// A picture of less says nothing on the task any more.
const SIDE_MIN: u64 = 64;

/// Smaller inputs, the least reduction first.
pub(super) fn input_size(signal: Signal, conditions: &Conditions) -> Vec<Change> {
    let change = |set: &[(&'static str, u64)]| Change {
        axis: Axis::InputSize,
        set: set.iter().map(|(field, value)| (*field, value.to_string())).collect(),
    };
    let mut found = Vec::new();
    // Fewer pictures at once change no picture.
    if let Some(batch) = conditions.batch_size.filter(|batch| *batch > 1) {
        found.push(change(&[("batch_size", batch / 2)]));
        if batch > 3 {
            found.push(change(&[("batch_size", 1)]));
        }
    }
    let tokens = conditions.context_length.filter(|tokens| *tokens >= 32);
    let shorter = tokens.map(|tokens| change(&[("context_length", tokens / 2)]));
    let is_text = conditions.width.is_none();
    if signal == Signal::OutOfMemoryAtEncode || is_text {
        found.extend(shorter);
    }
    if signal == Signal::TooSlow {
        // Fewer steps, not under the few that distilled models make do with.
        if let Some(steps) = conditions.steps.filter(|steps| *steps > 4) {
            found.push(change(&[("steps", (steps * 3 / 4).max(4))]));
        }
    }
    if let (Some(width), Some(height)) = (conditions.width, conditions.height) {
        for eighths in [7, 6, 5, 4, 3, 2] {
            let scale = |side: u64| (side.saturating_mul(eighths) / 8 / SIDE * SIDE).max(SIDE_MIN);
            let smaller = change(&[("width", scale(width)), ("height", scale(height))]);
            let is_smaller = scale(width) <= width
                && scale(height) <= height
                && (scale(width), scale(height)) != (width, height);
            if is_smaller && found.last() != Some(&smaller) {
                found.push(smaller);
            }
        }
    }
    found
}
