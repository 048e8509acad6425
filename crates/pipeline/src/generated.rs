//! What a run gives.

use std::path::Path;

use plimsoll_exec::{Executed, Report};

use crate::failure::PipelineError;
use crate::image::Picture;
use crate::saved::{self, SavedTensor};

/// What a run made and measured.
#[derive(Debug)]
pub struct Generated {
    /// Pictures in the order of their seeds; none on a device that does not compute.
    pub pictures: Vec<Picture>,
    /// SHA-256 of each picture's last latent (packed tokens in f32).
    pub latent_sha256: Vec<String>,
    /// Last latents, packed tokens in f32.
    pub latents: Vec<Vec<f32>>,
    /// What the run measured.
    pub report: Report,
    /// Bytes of device memory that the process held at the end, by the system's meter where there is one.
    pub held_bytes: Option<u64>,
    /// What components hand on to each other, where the request asked for it.
    pub tensors: Vec<SavedTensor>,
    /// In which numbers each component was computed, by the ops that ran; of a traced run only.
    pub executed: Vec<Executed>,
    /// What a person should know, such as a prompt that was cut.
    pub notices: Vec<String>,
}

impl Generated {
    /// Writes [`Generated::tensors`] as a safetensors file, whole or not at all.
    ///
    /// # Errors
    /// What the system refused.
    pub fn write_tensors(&self, path: &Path, notes: &[(&str, &str)]) -> Result<(), PipelineError> {
        saved::write(&self.tensors, path, notes)
    }
}
