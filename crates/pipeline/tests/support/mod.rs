//! What the integration tests share: the repository's folders and the tensors of golden files.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use plimsoll_graph::DType;
use plimsoll_models::FluxRun;
use plimsoll_pipeline::{Assembled, NoiseSource, Prompt};
use plimsoll_weights::{Header, WeightDType};
use serde_json::Value;

/// A path in the repository.
pub(crate) fn repository(relative: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(relative)
}

/// The demo model.
pub(crate) fn demo() -> Assembled {
    Assembled::open_folder(repository("demo/model")).unwrap()
}

/// A prompt with the demo's guidance.
pub(crate) fn prompt(text: &str, seed: u64) -> Prompt {
    Prompt { text: text.to_owned(), seed, guidance: 0.0, noise: NoiseSource::F32 }
}

/// A run of the demo model.
pub(crate) fn demo_run(steps: u32, samples: u32, dtype: DType) -> FluxRun {
    FluxRun {
        width: 128,
        height: 128,
        steps,
        samples,
        text_tokens: 32,
        dtype,
        hoist: true,
        vae_tile: None,
    }
}

/// A case file of the golden data.
pub(crate) struct Case {
    pub(crate) json: Value,
}

impl Case {
    pub(crate) fn read(relative: &str) -> Self {
        let text = std::fs::read_to_string(repository(relative)).unwrap();
        Self { json: serde_json::from_str(&text).unwrap() }
    }

    pub(crate) fn number(&self, key: &str) -> u64 {
        self.json[key].as_u64().unwrap()
    }

    pub(crate) fn run(&self, dtype: DType) -> FluxRun {
        FluxRun {
            width: self.number("width"),
            height: self.number("height"),
            steps: u32::try_from(self.number("steps")).unwrap(),
            samples: 1,
            text_tokens: self.number("max_sequence_length"),
            dtype,
            hoist: true,
            vae_tile: None,
        }
    }

    pub(crate) fn prompt(&self) -> Prompt {
        Prompt {
            text: self.json["prompt"].as_str().unwrap().to_owned(),
            seed: self.number("seed"),
            guidance: self.json["guidance"].as_f64().unwrap() as f32,
            noise: NoiseSource::F32,
        }
    }
}

/// The tensors of a small safetensors file, f32 and u8 widened to f32.
pub(crate) struct Tensors(BTreeMap<String, (Vec<u64>, Vec<f32>)>);

impl Tensors {
    pub(crate) fn read(relative: &str) -> Self {
        let bytes = std::fs::read(repository(relative)).unwrap();
        let header = Header::of_bytes(&bytes).unwrap();
        let mut tensors = BTreeMap::new();
        for tensor in &header.tensors {
            let start = usize::try_from(tensor.offset).unwrap();
            let data = &bytes[start..start + usize::try_from(tensor.bytes).unwrap()];
            let values = match tensor.dtype {
                WeightDType::F32 => bytemuck::allocation::pod_collect_to_vec(data),
                WeightDType::F16 => bytemuck::allocation::pod_collect_to_vec::<u8, half::f16>(data)
                    .iter()
                    .map(|value| value.to_f32())
                    .collect(),
                WeightDType::U8 => data.iter().map(|byte| f32::from(*byte)).collect(),
                _ => continue,
            };
            tensors.insert(tensor.name.clone(), (tensor.shape.clone(), values));
        }
        Self(tensors)
    }

    pub(crate) fn get(&self, name: &str) -> &[f32] {
        &self.0.get(name).unwrap_or_else(|| panic!("no tensor {name}")).1
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// `[C, h, w]` as `[h * w, C]`.
    pub(crate) fn pixels(&self, name: &str) -> Vec<f32> {
        let (shape, values) = &self.0[name];
        let channels = usize::try_from(shape[0]).unwrap();
        let pixels = values.len() / channels;
        (0..pixels)
            .flat_map(|pixel| (0..channels).map(move |channel| values[channel * pixels + pixel]))
            .collect()
    }
}

/// Relative L2 error in f64; infinite where the lengths differ or a value is not finite.
pub(crate) fn relative_error(found: &[f32], expected: &[f32]) -> f64 {
    if found.len() != expected.len() || found.iter().any(|value| !value.is_finite()) {
        return f64::INFINITY;
    }
    let square = |value: f64| value * value;
    let difference: f64 =
        found.iter().zip(expected).map(|(f, e)| square(f64::from(*f) - f64::from(*e))).sum();
    let norm: f64 = expected.iter().map(|e| square(f64::from(*e))).sum();
    (difference / norm).sqrt()
}
