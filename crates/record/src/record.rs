//! What a record says: conditions, load and quality, each by itself.
//!
//! The first names of each struct are those of the practice (its record format), in its order; what we add
//! stands behind them. Sizes are bytes, times are seconds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::fields::{Json, row};
pub use crate::words::Stage;
use crate::words::{FindingCode, Resource, Status};

row! {
    /// Which run, how it ended, and where it stands among the others.
    Run {
        /// Time and a random part; sorts by time.
        run_id: String,
        /// UTC, `2026-11-30 17:18:04`.
        created: String,
        /// `image` or `llm`.
        kind: String,
        /// `plimsoll`, or the software whose record was imported.
        recorded_by: String,
        /// How it ended.
        status: Option<Status>,
        /// The one change that was proposed after it.
        next_trial: Option<String>,
        /// The run that this one was tried after.
        parent_id: Option<String>,
        /// The run that this one repeats unchanged.
        repeat_of: Option<String>,
    }
}

row! {
    /// Execution conditions: what was asked for.
    Conditions {
        /// The model, as a person names it.
        model_id: Option<String>,
        /// Which state of its files.
        model_revision: Option<String>,
        /// Kind of file that the weights are in.
        weight_format: Option<String>,
        /// Number format that weights are read and computed in.
        dtype: Option<String>,
        /// Conversion of weights to fewer bits; `none` where there is none.
        quantization: Option<String>,
        /// Software that ran the model, with its version.
        runtime: Option<String>,
        /// Where it computed.
        device: Option<String>,
        /// How weights reach the device.
        offload_mode: Option<String>,
        /// The call or options that asked for it.
        offload_api: Option<String>,
        /// Whether the whole pipeline was moved to the card.
        pipeline_moved_to_cuda: Option<bool>,
        /// Placement by component, where one was given.
        device_map: Option<String>,
        /// What was attached to the pipeline.
        attached_components: Json<Vec<String>>,
        /// Size of the input, as a person says it.
        input_size: Option<String>,
        /// Tokens of text that the model reads.
        context_length: Option<u64>,
        /// Pixels.
        width: Option<u64>,
        /// Pixels.
        height: Option<u64>,
        /// Pictures or sequences made together.
        batch_size: Option<u64>,
        /// Denoising steps.
        steps: Option<u64>,
        /// Guidance scale.
        guidance: Option<f64>,
        /// Seed of the first picture, in decimal: it may not fit a signed number.
        seed: Option<String>,
        /// Where caches were emptied (`torch.cuda.empty_cache`): no offload, and kept apart from it.
        empty_cache: Option<String>,
        /// What was asked for in words.
        prompt: Option<String>,
        /// Picture or answer that the output was measured against.
        reference: Option<String>,
        /// Name of the criteria in force.
        criteria: Option<String>,
        /// How the initial noise was drawn.
        noise: Option<String>,
        /// The line of device memory, as typed.
        vram_line: Option<String>,
        /// The same in bytes.
        vram_line_bytes: Option<u64>,
        /// Threads of the CPU device.
        threads: Option<u64>,
        /// The command, complete: typed again it is the same run.
        command: Json<Vec<String>>,
        /// The machine.
        machine: Option<String>,
        /// Versions that decide what happens.
        versions: Json<BTreeMap<String, String>>,
        /// Pieces that the decoder decodes one by one: `off`, a side, or `auto`; other pieces are other bits.
        vae_tile: Option<String>,
    }
}

row! {
    /// Execution load: what it took, predicted and measured.
    Load {
        /// Highest device memory, in bytes.
        peak_vram: Option<u64>,
        /// Highest host memory of the process, in bytes; mapped weight files count while they are in memory.
        peak_ram: Option<u64>,
        /// Seconds from the start to the last picture's file; on the simulated device its virtual seconds.
        elapsed_seconds: Option<f64>,
        /// Tokens read (language models).
        input_tokens: Option<u64>,
        /// Tokens written (language models).
        output_tokens: Option<u64>,
        /// The plan that was carried out.
        plan_id: Option<String>,
        /// Predicted device memory of the process.
        predicted_peak_vram: Option<u64>,
        /// Predicted seconds of a step.
        predicted_seconds_per_step: Option<f64>,
        /// Predicted seconds of the run, without opening files.
        predicted_seconds: Option<f64>,
        /// Predicted bytes copied to the device.
        predicted_copied_bytes: Option<u64>,
        /// Measured seconds of a step.
        seconds_per_step: Option<f64>,
        /// Measured seconds of the run, without opening files.
        run_seconds: Option<f64>,
        /// Measured bytes copied to the device.
        copied_bytes: Option<u64>,
        /// Seconds by phase.
        stages: Json<Vec<StageSeconds>>,
        /// Bytes of RAM that the machine, or its container, has.
        ram_limit: Option<u64>,
        /// Bytes of the files that were written.
        disk_bytes: Option<u64>,
    }
}

row! {
    /// Quality: what came of it.
    Quality {
        /// What a person noted.
        quality_note: Option<String>,
        /// Files of the pictures.
        pictures: Json<Vec<String>>,
        /// SHA-256 of each picture's bytes.
        picture_sha256: Json<Vec<String>>,
        /// SHA-256 of each last latent.
        latent_sha256: Json<Vec<String>>,
    }
}

row! {
    /// Why a run did not end well, with the resource and its numbers.
    Failure {
        /// `usage`, `infeasible`, `file`, `device`, `cancelled` or `bug`.
        kind: String,
        /// The one line that the person was told.
        message: String,
        /// What ran short, if something did.
        resource: Option<Resource>,
        /// Where it happened.
        stage: Option<Stage>,
        /// Bytes that were needed.
        needed_bytes: Option<u64>,
        /// Bytes that there were.
        available_bytes: Option<u64>,
        /// Bytes that would be needed with the thriftiest placement.
        smallest_bytes: Option<u64>,
        /// Bytes of activations at the fullest moment, which no placement of weights makes smaller.
        activation_bytes: Option<u64>,
    }
}

/// Seconds of one phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageSeconds {
    /// Name of the phase.
    pub name: String,
    /// Seconds.
    pub seconds: f64,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Which check.
    pub code: FindingCode,
    /// What, why it matters, and what is right.
    pub text: String,
}

row! {
    /// A person's verdict.
    Verdict {
        /// UTC.
        created: String,
        /// Whether the output serves its purpose.
        is_pass: bool,
        /// In words.
        note: Option<String>,
        /// Named checks, each passed or not.
        checks: Json<BTreeMap<String, bool>>,
    }
}

row! {
    /// An output measured against a reference run's.
    Comparison {
        /// UTC.
        created: String,
        /// The reference run.
        reference_id: String,
        /// Peak signal-to-noise ratio in dB; absent where the pictures are equal.
        psnr_db: Option<f64>,
        /// Structural similarity, 1 for equal pictures.
        ssim: f64,
    }
}

/// All that is known of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Which run.
    pub run: Run,
    /// What was asked for.
    pub conditions: Conditions,
    /// What it took.
    pub load: Load,
    /// What came of it.
    pub quality: Quality,
    /// Why it did not end well.
    #[serde(default)]
    pub failure: Option<Failure>,
    /// What checks found.
    #[serde(default)]
    pub findings: Vec<Finding>,
    /// Verdicts, oldest first.
    #[serde(default)]
    pub verdicts: Vec<Verdict>,
    /// Measurements against references, oldest first.
    #[serde(default)]
    pub comparisons: Vec<Comparison>,
}
