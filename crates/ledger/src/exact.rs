//! Exact figures to stand beside the rules of thumb: the same questions, answered by plans.

use plimsoll_graph::Coding;
use plimsoll_plan::{Line, Offload, Plan, Request, explain, plan};

use crate::error::LedgerError;
use crate::forecast::Forecast;
use crate::machines::{Known, Machines};
use crate::models::{Ask, Codings, KnownModel, Recipe, known};
use crate::outcome::{Outcome, VRAM_ENDLESS, outcome};

/// Codings in the order of [`crate::thumb::PRECISIONS`].
const CODINGS: [Coding; 3] = [Coding::Plain, Coding::Fp8, Coding::Nf4];

/// Models in the order of [`crate::thumb::MODELS`].
const MODELS: [&str; 4] = ["sdxl", "flux.1-dev", "wan2.1-t2v-14b", "hunyuanvideo"];

/// A row of memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExactMemory {
    /// Weights of the denoiser.
    pub denoiser: u64,
    /// Weights of the text encoders, their token tables on the host included.
    pub text: u64,
    /// Most activations of a step.
    pub activations: u64,
    /// The whole process with everything resident; token tables stay on the host.
    pub total: u64,
}

/// A group of blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExactGroup {
    /// Bytes of streamed weights in their places at the fullest op of a step.
    pub slots: u64,
    /// What the plan takes.
    pub outcome: Outcome,
}

fn machine(card: &str, link: Option<f64>) -> Result<Forecast, LedgerError> {
    let machines = Machines::builtin()?;
    let mut known: Known = machines.known(machines.card(card)?, None)?;
    if let Some(link) = link {
        known.profile.link_bytes_per_second = link;
    }
    Ok(Forecast::new(&known).with_vram(VRAM_ENDLESS))
}

fn plan_of(
    recipe: &Recipe,
    machine: &Forecast,
    offload: Offload,
    prefetch: bool,
) -> Result<Plan, LedgerError> {
    Ok(plan(&recipe.graph, machine, &Request { line: Line::Max, offload, prefetch })?)
}

fn flux(steps: u32, codings: Codings) -> Result<(KnownModel, Recipe), LedgerError> {
    let model = known("flux.1-dev")?;
    let recipe = model.recipe(&Ask { steps, codings, ..model.defaults() })?;
    Ok((model, recipe))
}

/// Table 1: a row for each model and precision, on a card that has them all.
///
/// # Errors
/// As planning.
pub fn memory() -> Result<Vec<ExactMemory>, LedgerError> {
    let machine = machine("h100", None)?;
    let mut rows = Vec::new();
    for name in MODELS {
        let model = known(name)?;
        for coding in CODINGS {
            let codings = Codings { denoiser: coding, text: coding };
            let recipe = model.recipe(&Ask { codings, ..model.defaults() })?;
            let plan = plan_of(&recipe, &machine, Offload::None, true)?;
            let ledger = explain(&recipe.graph, &plan);
            let step = ledger.rows.iter().filter(|row| row.phase == "denoise");
            let parts = recipe.components();
            let of = |is_text: bool| -> u64 {
                let rows = parts.iter().filter(|row| {
                    row.component.starts_with("text_encoder") == is_text
                        && (is_text || row.component == model.denoiser)
                });
                rows.map(|row| row.device_bytes + row.table_bytes).sum()
            };
            rows.push(ExactMemory {
                denoiser: of(false),
                text: of(true),
                activations: step.map(|row| row.activation_bytes).max().unwrap_or(0),
                total: plan.predicted.vram_process_bytes,
            });
        }
    }
    Ok(rows)
}

/// Table 2: what offload costs on an H100 behind a bus; model, sequential, one block ahead.
///
/// # Errors
/// As planning.
pub fn offload(steps: u32, bytes_per_second: f64) -> Result<[Outcome; 3], LedgerError> {
    let machine = machine("h100", Some(bytes_per_second))?;
    let (_, recipe) = flux(steps, Codings::default())?;
    let of = |offload, prefetch| -> Result<Outcome, LedgerError> {
        Ok(outcome(&recipe, &machine, &[plan_of(&recipe, &machine, offload, prefetch)?]))
    };
    Ok([
        of(Offload::Model, true)?,
        of(Offload::Sequential, false)?,
        of(Offload::Group { blocks: 1 }, true)?,
    ])
}

/// Table 3: groups of so many blocks on an H100 behind a bus.
///
/// # Errors
/// As planning.
pub fn groups(
    steps: u32,
    bytes_per_second: f64,
    groups: &[u32],
) -> Result<Vec<ExactGroup>, LedgerError> {
    let machine = machine("h100", Some(bytes_per_second))?;
    let (_, recipe) = flux(steps, Codings::default())?;
    let of = |blocks: &u32| -> Result<ExactGroup, LedgerError> {
        let plan = plan_of(&recipe, &machine, Offload::Group { blocks: *blocks }, true)?;
        let ledger = explain(&recipe.graph, &plan);
        let step = ledger.rows.iter().filter(|row| row.phase == "denoise");
        let slots = step.map(|row| row.slot_bytes).max().unwrap_or(0);
        Ok(ExactGroup { slots, outcome: outcome(&recipe, &machine, &[plan]) })
    };
    groups.iter().map(of).collect()
}

/// Table 4: five ways to fit a card, on an RTX 4080 behind a bus.
///
/// # Errors
/// As planning.
pub fn card(steps: u32, bytes_per_second: f64, group: u32) -> Result<[Outcome; 5], LedgerError> {
    let machine = machine("rtx-4080", Some(bytes_per_second))?;
    let of = |denoiser, text, offload| -> Result<Outcome, LedgerError> {
        let (_, recipe) = flux(steps, Codings { denoiser, text })?;
        Ok(outcome(&recipe, &machine, &[plan_of(&recipe, &machine, offload, true)?]))
    };
    let [bf16, fp8, nf4] = CODINGS;
    Ok([
        of(bf16, bf16, Offload::None)?,
        of(fp8, fp8, Offload::None)?,
        of(fp8, bf16, Offload::Model)?,
        of(nf4, nf4, Offload::None)?,
        of(bf16, bf16, Offload::Group { blocks: group })?,
    ])
}
