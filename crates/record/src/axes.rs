//! What differs between two runs, by axis.
//!
//! An axis is a thing that can be changed by itself. `dtype`, `quantization`, `offload` and `input_size` all
//! seem to "save memory" and are four axes, since each reduces something else and is paid for otherwise.
//! A field that was not recorded on one side is unknown and no difference.

use serde::Serialize;

use crate::record::Conditions;
use crate::words::words;

words! {
    /// A thing that can be changed by itself.
    Axis {
        /// Which model, in which state of its files.
        Model = "model",
        /// Number format that weights are read and computed in.
        Dtype = "dtype",
        /// Conversion of weights to fewer bits.
        Quantization = "quantization",
        /// How and in which units weights reach the device.
        Offload = "offload",
        /// How much is processed at once: pixels, pictures, steps, tokens.
        InputSize = "input_size",
        /// Pieces that a picture is decoded in.
        Tiles = "vae_tiles",
        /// The line of device memory.
        Line = "vram_line",
        /// Where it is computed.
        Device = "device",
        /// Which software computes.
        Runtime = "runtime",
        /// What is attached to the pipeline.
        Components = "attached_components",
        /// Where caches are emptied; no offload.
        EmptyCache = "empty_cache",
        /// What is asked for in words.
        Prompt = "prompt",
        /// Guidance scale.
        Guidance = "guidance",
        /// Seed.
        Seed = "seed",
        /// How the initial noise is drawn.
        Noise = "noise",
        /// What the output is measured against.
        Reference = "reference",
        /// By which criteria it is judged.
        Criteria = "criteria",
    }
}

/// A field whose value differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldChange {
    /// Name of the field.
    pub field: &'static str,
    /// Value of the first run.
    pub from: String,
    /// Value of the second.
    pub to: String,
}

/// An axis on which two runs differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The axis.
    pub axis: Axis,
    /// Its fields that differ.
    pub fields: Vec<FieldChange>,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.axis)?;
        // The call says the mode once more.
        let has_mode = self.fields.iter().any(|field| field.field == "offload_mode");
        let shown = self.fields.iter().filter(|field| !(has_mode && field.field == "offload_api"));
        for (at, field) in shown.enumerate() {
            let separator = if at == 0 { ": " } else { ", " };
            write!(f, "{separator}{} {} -> {}", field.field, field.from, field.to)?;
        }
        Ok(())
    }
}

type Read = fn(&Conditions) -> Option<String>;

/// Every condition with the axis that it belongs to; `input_size` itself is what width and height say.
const FIELDS: &[(Axis, &str, Read)] = &[
    (Axis::Model, "model_id", |c| c.model_id.clone()),
    (Axis::Model, "model_revision", |c| c.model_revision.clone()),
    (Axis::Model, "weight_format", |c| c.weight_format.clone()),
    (Axis::Dtype, "dtype", |c| c.dtype.clone()),
    (Axis::Quantization, "quantization", |c| c.quantization.clone()),
    (Axis::Offload, "offload_mode", |c| c.offload_mode.clone()),
    (Axis::Offload, "offload_api", |c| c.offload_api.clone()),
    (Axis::Offload, "pipeline_moved_to_cuda", |c| text(c.pipeline_moved_to_cuda)),
    (Axis::Offload, "device_map", |c| c.device_map.clone()),
    (Axis::InputSize, "input_size", |c| {
        c.input_size.clone().filter(|_| c.width.is_none() || c.height.is_none())
    }),
    (Axis::InputSize, "width", |c| text(c.width)),
    (Axis::InputSize, "height", |c| text(c.height)),
    (Axis::InputSize, "batch_size", |c| text(c.batch_size)),
    (Axis::InputSize, "steps", |c| text(c.steps)),
    (Axis::InputSize, "context_length", |c| text(c.context_length)),
    (Axis::Tiles, "vae_tile", |c| c.vae_tile.clone()),
    (Axis::Line, "vram_line", |c| text(c.vram_line_bytes).or_else(|| c.vram_line.clone())),
    (Axis::Device, "device", |c| c.device.clone()),
    (Axis::Device, "machine", |c| c.machine.clone()),
    (Axis::Device, "threads", |c| text(c.threads)),
    (Axis::Runtime, "runtime", |c| c.runtime.clone()),
    (Axis::Components, "attached_components", |c| Some(c.attached_components.0.join(", "))),
    (Axis::EmptyCache, "empty_cache", |c| c.empty_cache.clone()),
    (Axis::Prompt, "prompt", |c| c.prompt.clone()),
    (Axis::Guidance, "guidance", |c| text(c.guidance)),
    (Axis::Seed, "seed", |c| c.seed.clone()),
    (Axis::Noise, "noise", |c| c.noise.clone()),
    (Axis::Reference, "reference", |c| c.reference.clone()),
    (Axis::Criteria, "criteria", |c| c.criteria.clone()),
];

fn text(value: Option<impl ToString>) -> Option<String> {
    value.map(|value| value.to_string())
}

/// Every condition by its axis and name, with its value where one was recorded.
pub fn values(conditions: &Conditions) -> Vec<(Axis, &'static str, Option<String>)> {
    FIELDS.iter().map(|(axis, field, read)| (*axis, *field, read(conditions))).collect()
}

/// The axes on which `to` differs from `from`, in the order of [`Axis::ALL`].
pub fn differences(from: &Conditions, to: &Conditions) -> Vec<Difference> {
    let mut found: Vec<Difference> = Vec::new();
    for (axis, field, read) in FIELDS {
        let (Some(before), Some(after)) = (read(from), read(to)) else { continue };
        // One side's line is known in bytes only once there is a plan.
        let (before, after) = match axis {
            Axis::Line if from.vram_line == to.vram_line && from.vram_line.is_some() => continue,
            Axis::Line if from.vram_line_bytes.is_some() != to.vram_line_bytes.is_some() => {
                let typed = |c: &Conditions| c.vram_line.clone().unwrap_or_default();
                (typed(from), typed(to))
            }
            _ => (before, after),
        };
        if before == after {
            continue;
        }
        let change = FieldChange { field, from: before, to: after };
        match found.iter_mut().find(|difference| difference.axis == *axis) {
            Some(difference) => difference.fields.push(change),
            None => found.push(Difference { axis: *axis, fields: vec![change] }),
        }
    }
    found
}

/// What a trial changed of its parent, and whether that is more than one axis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TrialOf {
    /// The parent.
    pub parent_id: String,
    /// What differs.
    pub differences: Vec<Difference>,
    /// More than one axis differs: what did what cannot be told.
    pub is_mixed: bool,
}

/// Compares a trial with its parent.
pub fn trial_of(parent: &crate::Record, trial: &crate::Record) -> TrialOf {
    let differences = differences(&parent.conditions, &trial.conditions);
    let is_mixed = differences.len() > 1;
    TrialOf { parent_id: parent.run.run_id.clone(), differences, is_mixed }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::Json;

    fn axes(a: &Conditions, b: &Conditions) -> Vec<Axis> {
        differences(a, b).into_iter().map(|difference| difference.axis).collect()
    }

    #[test]
    fn every_condition_has_its_axis_and_the_four_are_never_merged() {
        let all = |value: &str, number: u64| Conditions {
            model_id: Some(value.into()),
            model_revision: Some(value.into()),
            weight_format: Some(value.into()),
            dtype: Some(value.into()),
            quantization: Some(value.into()),
            runtime: Some(value.into()),
            device: Some(value.into()),
            offload_mode: Some(value.into()),
            offload_api: Some(value.into()),
            pipeline_moved_to_cuda: Some(number > 1),
            device_map: Some(value.into()),
            attached_components: Json(vec![value.into()]),
            input_size: Some(value.into()),
            context_length: Some(number),
            width: Some(number),
            height: Some(number),
            batch_size: Some(number),
            steps: Some(number),
            guidance: Some(number as f64),
            seed: Some(value.into()),
            empty_cache: Some(value.into()),
            prompt: Some(value.into()),
            reference: Some(value.into()),
            criteria: Some(value.into()),
            noise: Some(value.into()),
            vae_tile: Some(value.into()),
            vram_line: Some(value.into()),
            vram_line_bytes: Some(number),
            threads: Some(number),
            machine: Some(value.into()),
            ..Conditions::default()
        };
        let (a, b) = (all("a", 1), all("b", 2));
        assert_eq!(axes(&a, &a), []);
        assert_eq!(axes(&a, &b), Axis::ALL);
        let one = |change: fn(&mut Conditions)| {
            let mut changed = a.clone();
            change(&mut changed);
            axes(&a, &changed)
        };
        assert_eq!(one(|c| c.dtype = Some("f32".into())), [Axis::Dtype]);
        assert_eq!(one(|c| c.quantization = Some("nf4".into())), [Axis::Quantization]);
        assert_eq!(one(|c| c.offload_mode = Some("model".into())), [Axis::Offload]);
        assert_eq!(one(|c| c.width = Some(7)), [Axis::InputSize]);
        assert_eq!(one(|c| c.steps = Some(7)), [Axis::InputSize]);
        assert_eq!(one(|c| c.vae_tile = Some("auto".into())), [Axis::Tiles]);
        assert_eq!(one(|c| c.empty_cache = Some("each row".into())), [Axis::EmptyCache]);
        assert_eq!(one(|c| (c.width, c.dtype) = (Some(7), Some("f32".into()))).len(), 2);
    }

    #[test]
    fn what_is_not_known_is_no_difference() {
        let known = Conditions { width: Some(128), ..Conditions::default() };
        assert_eq!(axes(&known, &Conditions::default()), []);
        // A refused run has a line as typed, its trial one in bytes.
        let refused = Conditions { vram_line: Some("min".into()), ..Conditions::default() };
        let same = Conditions { vram_line_bytes: Some(9), ..refused.clone() };
        assert_eq!(axes(&refused, &same), []);
        let other = Conditions { vram_line: Some("9".into()), ..same };
        assert_eq!(axes(&refused, &other), [Axis::Line]);
    }
}
