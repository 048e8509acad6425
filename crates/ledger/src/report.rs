//! All that is told of a run by name, as `plimsoll plan --json` prints it.
//!
//! The schema is made from these types and committed as `docs/forecast.schema.json`. What is printed reads back into
//! them and prints as the same bytes. A change of a field's meaning or name raises [`FORECAST_VERSION`].

use plimsoll_plan::Ledger;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::advice::Verdict;
use crate::curve::{Binds, Curve};
use crate::host::HostLedger;
use crate::models::ComponentRow;
use crate::outcome::Outcome;
use crate::strategies::StrategyRow;

/// Of the layout of a [`ForecastReport`].
pub const FORECAST_VERSION: u32 = 2;

/// What `plimsoll plan --json` prints for a model by name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Answer {
    /// The run fits.
    Forecast(Box<ForecastReport>),
    /// It does not; the exit code is 3.
    Refusal(Box<RefusalReport>),
}

/// A run that does not fit, and what would help.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RefusalReport {
    /// Version of this layout, 2.
    pub version: u32,
    /// Model, as `--model` takes it.
    pub model: String,
    /// Card, as its driver names it.
    pub machine: String,
    /// The one line that is printed as an error.
    pub error: String,
    /// The smallest line that works, and the changes that help.
    pub verdict: Verdict,
}

/// What a run by name takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ForecastReport {
    /// Version of this layout, 2.
    pub version: u32,
    /// Model, as `--model` takes it.
    pub model: String,
    /// Card, as its driver names it.
    pub machine: String,
    /// Where the card's rates are from.
    pub source: String,
    /// Bus to the card.
    pub bus: String,
    /// Bytes a second that weights come with: the bus, or a disk behind it.
    pub link_bytes_per_second: f64,
    /// Whether the seconds follow from data sheets; then they have a band.
    pub is_estimated: bool,
    /// Whether a device of this program runs it today; otherwise it is planned on paper.
    pub runs: bool,
    /// Width, height and frames.
    pub size: [u64; 3],
    /// Steps.
    pub steps: u32,
    /// Pictures made together.
    pub samples: u32,
    /// Rank of the LoRA beside the denoiser; 0 for none.
    pub lora_rank: u64,
    /// ControlNets beside the model.
    pub controlnets: u32,
    /// Pieces that the rows of a step are taken in.
    pub row_chunks: u64,
    /// Side of the decoder's tiles in pixels; 0 for the whole, or as the model's makers do it.
    pub vae_tile: u64,
    /// The line for the whole process, in bytes.
    pub vram_line_bytes: u64,
    /// How weights reach the device, as `--offload` takes it.
    pub offload: String,
    /// Whether copies run ahead.
    pub prefetch: bool,
    /// Parameters and bytes by component.
    pub components: Vec<ComponentRow>,
    /// The plans, one after the other in the same memory: one, or one an expert.
    pub parts: Vec<PartReport>,
    /// Host memory.
    pub host: HostLedger,
    /// What the whole run takes.
    pub predicted: Outcome,
    /// Least and most seconds of a picture.
    pub seconds_band: [f64; 2],
    /// What a step waits for.
    pub binds: Binds,
    /// What to change, or what more memory buys.
    pub verdict: Verdict,
    /// The field's ways and ours, where asked for.
    pub strategies: Vec<StrategyRow>,
    /// Which of them to take.
    pub recommended: Option<Recommendation>,
    /// Seconds for many lines, where asked for.
    pub curve: Option<Curve>,
    /// What a person should know beside.
    pub warnings: Vec<String>,
}

/// A plan and its bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PartReport {
    /// Id of the plan.
    pub plan_id: String,
    /// Steps of this part.
    pub steps: u32,
    /// Tiles that are decoded one after the other; the rows show one.
    pub tiles: u64,
    /// What the plan takes in device memory.
    pub arena_bytes: u64,
    /// What the process takes beside it: context, code, libraries.
    pub reserved_bytes: u64,
    /// By phase and component.
    pub phases: Vec<PhaseReport>,
    /// The fullest moment.
    pub peak: PeakReport,
}

/// A component in a phase, at its fullest op.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PhaseReport {
    /// Name of the phase.
    pub phase: String,
    /// Name of the component.
    pub component: String,
    /// How often the phase is carried out.
    pub repeat: u32,
    /// Units that stay through the phase.
    pub resident_units: u32,
    /// Units that are copied for each use.
    pub streamed_units: u32,
    /// Weights that stay, of all components.
    pub resident_bytes: u64,
    /// Places of streamed weights, and of any that may already be on their way.
    pub slot_bytes: u64,
    /// Live tensors.
    pub activation_bytes: u64,
    /// Scratch of the op.
    pub workspace_bytes: u64,
    /// Sum of the four.
    pub live_bytes: u64,
    /// Bytes of weights that one repetition of the phase copies for the component.
    pub copied_bytes: u64,
}

/// The fullest moment of a plan, and what fills it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PeakReport {
    /// Name of the phase.
    pub phase: String,
    /// Name of the block.
    pub block: String,
    /// Name of the op.
    pub op: String,
    /// Live tensors.
    pub activation_bytes: u64,
    /// Scratch of the op.
    pub workspace_bytes: u64,
    /// Weights in their places, those on their way included.
    pub weight_bytes: u64,
}

/// Which strategy to take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recommendation {
    /// Its name.
    pub name: String,
    /// The reason.
    pub why: String,
}

impl PartReport {
    /// From a plan's ledger.
    pub fn new(ledger: &Ledger, steps: u32, tiles: u64) -> Self {
        let rows = ledger.rows.iter().map(|row| PhaseReport {
            phase: row.phase.clone(),
            component: row.component.clone(),
            repeat: row.repeat,
            resident_units: row.resident_units,
            streamed_units: row.streamed_units,
            resident_bytes: row.resident_bytes,
            slot_bytes: row.slot_bytes,
            activation_bytes: row.activation_bytes,
            workspace_bytes: row.workspace_bytes,
            live_bytes: row.live_bytes,
            copied_bytes: row.copied_bytes,
        });
        Self {
            plan_id: ledger.plan_id.clone(),
            steps,
            tiles,
            arena_bytes: ledger.arena_bytes,
            reserved_bytes: ledger.reserved_bytes,
            phases: rows.collect(),
            peak: PeakReport {
                phase: ledger.peak.phase.clone(),
                block: ledger.peak.block.clone(),
                op: ledger.peak.op.clone(),
                activation_bytes: ledger.peak.tensor_bytes,
                workspace_bytes: ledger.peak.workspace_bytes,
                weight_bytes: ledger.peak.weight_bytes,
            },
        }
    }
}

/// The schema of an [`Answer`] as JSON text, with a line end.
pub fn schema() -> String {
    let schema = schemars::schema_for!(Answer);
    let mut text = serde_json::to_string_pretty(&schema).unwrap_or_default();
    text.push('\n');
    text
}
