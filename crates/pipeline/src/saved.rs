//! What components hand on to each other in a run, kept for a comparison with another engine.
//!
//! Text encoders, transformer and VAE can then be compared one by one, each on the very inputs that it had here: the
//! picture alone tells neither which of them differs nor by how much.
//!
//! Values are as the device has them, in its dtypes: nothing is widened or rounded on the way.

use std::collections::BTreeMap;
use std::path::Path;

use plimsoll_device::OutputBuffer;
use plimsoll_graph::{DType, Graph};
use plimsoll_models::FluxRun;
use plimsoll_weights::{NewTensor, WeightDType, write_safetensors};

use crate::failure::PipelineError;

/// `(block, op)` of what is kept beside the graph's own outputs.
pub(crate) const PROBES: [(&str, &str); 3] =
    [("clip.final", "pooled"), ("t5.final", "last_hidden_state"), ("final", "velocity")];

/// Names of [`PROBES`], and of everything else by itself.
const NAMES: [(&str, &str); 3] = [
    ("clip.final/pooled", "clip.pooled"),
    ("t5.final/last_hidden_state", "t5.context"),
    ("final/velocity", "velocity"),
];

/// A tensor of a run, as the device had it.
///
/// | name | shape | what |
/// |---|---|---|
/// | `clip.ids`, `t5.ids` | `[tokens, 1]` | token ids, padded, `u32` |
/// | `clip.pooled` | `[1, width]` | CLIP's state at the end of the prompt, after the last norm |
/// | `t5.context` | `[tokens, width]` | T5's states after the last norm |
/// | `noise`, `latent` | `[tokens, channels]` | packed latent before and after the loop, `f32` |
/// | `timestep`, `dsigma` | `[steps, 1]` | sigma of each step, and that of the next less it, `f32` |
/// | `guidance` | `[1, 1]` | where the model takes one |
/// | `velocity` | `[tokens, channels]` | what the transformer gave in the last step |
/// | `image` | `[height, width, 3]` | the decoder's result before it is cut to -1..1 and 8 bits, `f32` |
///
/// Of several samples, those after the first have `#1`, `#2` at the end of what is their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedTensor {
    /// Name, as in the table above.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Row-major shape.
    pub shape: Vec<u64>,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Collects the host's inputs and the device's outputs.
pub(crate) fn tensors(
    graph: &Graph,
    inputs: &[Vec<u8>],
    outputs: &[OutputBuffer],
    run: &FluxRun,
) -> Result<Vec<SavedTensor>, PipelineError> {
    let named = |name: &str, sample: u32| {
        let known = NAMES.iter().find(|(output, _)| *output == name);
        let name = known.map_or(name, |(_, name)| name);
        if sample == 0 { name.to_owned() } else { format!("{name}#{sample}") }
    };
    let mut tensors = Vec::new();
    for (input, bytes) in graph.inputs.iter().zip(inputs) {
        tensors.push(SavedTensor {
            name: named(&input.name, input.sample.unwrap_or(0)),
            dtype: input.dtype,
            shape: vec![input.rows, input.cols],
            bytes: bytes.clone(),
        });
    }
    for (output, buffer) in graph.outputs.iter().zip(outputs) {
        let bytes = buffer.bytes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let shape = match output.name.as_str() {
            "image" => vec![run.height, run.width, 3],
            _ => vec![output.rows, output.cols],
        };
        let name = named(&output.name, output.sample);
        let sample_is_own = matches!(output.name.as_str(), "image" | "latent" | "final/velocity");
        // What all samples share is there once.
        if output.sample == 0 || sample_is_own {
            tensors.push(SavedTensor { name, dtype: output.dtype, shape, bytes: bytes.to_vec() });
        }
    }
    Ok(tensors)
}

/// Writes tensors as a safetensors file, whole or not at all.
///
/// # Errors
/// What the system refused.
pub(crate) fn write(
    tensors: &[SavedTensor],
    path: &Path,
    notes: &[(&str, &str)],
) -> Result<(), PipelineError> {
    let new = |tensor: &SavedTensor| NewTensor {
        name: tensor.name.clone(),
        dtype: match tensor.dtype {
            DType::F32 => WeightDType::F32,
            DType::BF16 => WeightDType::BF16,
            DType::U32 => WeightDType::U32,
            DType::F8E4M3 => WeightDType::F8E4M3,
        },
        shape: tensor.shape.clone(),
    };
    let head: Vec<NewTensor> = tensors.iter().map(new).collect();
    let notes: BTreeMap<String, String> =
        notes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let fill = |tensor: usize, offset: u64, target: &mut [u8]| {
        // Pieces lie in the tensor, which is in memory.
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        target.copy_from_slice(&tensors[tensor].bytes[start..][..target.len()]);
    };
    Ok(write_safetensors(path, &head, &notes, 1, &fill, &|_| true)?)
}
