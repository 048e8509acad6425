//! The field's strategies and ours, side by side: bytes, traffic, seconds.

use plimsoll_graph::Coding;
use plimsoll_plan::{Line, Machine, Offload, PlanError, Request};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::LedgerError;
use crate::fit::Fitter;
use crate::forecast::Forecast;
use crate::models::{Ask, Codings, KnownModel};
use crate::outcome::{Outcome, VRAM_ENDLESS, planned};

/// What a way of keeping weights does to a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Quality {
    /// The published weights.
    Exact,
    /// e4m3 with a scale a row.
    NearlyLossless,
    /// 4 bits.
    SlightLoss,
}

/// One strategy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StrategyRow {
    /// As the field calls it.
    pub name: String,
    /// What carries it out, as `--offload` takes it.
    pub offload: String,
    /// Whether copies run ahead.
    pub prefetch: bool,
    /// What it does to the picture.
    pub quality: Quality,
    /// Whether a device runs it today.
    pub runs: bool,
    /// Whether it fits under the line.
    pub fits: bool,
    /// Pieces that rows are taken in.
    pub row_chunks: u64,
    /// Side of the decoder's tiles in pixels; 0 for the whole, or as the model's makers do it.
    pub tile: u64,
    /// What it takes; of ours that does not fit, at its smallest.
    pub outcome: Outcome,
}

const PLAIN: Codings = Codings { denoiser: Coding::Plain, text: Coding::Plain };
const FP8: Codings = Codings { denoiser: Coding::Fp8, text: Coding::Plain };
const FP8_ALL: Codings = Codings { denoiser: Coding::Fp8, text: Coding::Fp8 };
const NF4_ALL: Codings = Codings { denoiser: Coding::Nf4, text: Coding::Nf4 };

/// Name, codings, offload, prefetch, quality.
type Way = (&'static str, Codings, Offload, bool, Quality);

const WAYS: [Way; 13] = [
    ("all resident", PLAIN, Offload::None, true, Quality::Exact),
    ("model offload", PLAIN, Offload::Model, true, Quality::Exact),
    ("sequential", PLAIN, Offload::Sequential, false, Quality::Exact),
    ("sequential + prefetch", PLAIN, Offload::Group { blocks: 1 }, true, Quality::Exact),
    ("groups of 4", PLAIN, Offload::Group { blocks: 4 }, false, Quality::Exact),
    ("groups of 4 + stream", PLAIN, Offload::Group { blocks: 4 }, true, Quality::Exact),
    ("groups of 8 + stream", PLAIN, Offload::Group { blocks: 8 }, true, Quality::Exact),
    ("fp8, all resident", FP8_ALL, Offload::None, true, Quality::NearlyLossless),
    ("fp8, text freed", FP8, Offload::Model, true, Quality::NearlyLossless),
    ("nf4, all resident", NF4_ALL, Offload::None, true, Quality::SlightLoss),
    ("nf4, text freed", NF4_ALL, Offload::Model, true, Quality::SlightLoss),
    ("plimsoll", PLAIN, Offload::Auto, true, Quality::Exact),
    ("plimsoll, fp8", FP8, Offload::Auto, true, Quality::NearlyLossless),
];

/// All strategies for a model on a machine under a line.
///
/// # Errors
/// Whatever the request or the arithmetic refuses; that a strategy does not fit is no error.
pub fn strategies(
    model: &KnownModel,
    ask: &Ask,
    machine: &Forecast,
    line: Line,
) -> Result<Vec<StrategyRow>, LedgerError> {
    let endless = machine.clone().with_vram(VRAM_ENDLESS);
    let line_bytes = line.bytes(machine.vram_bytes()).unwrap_or(machine.vram_bytes());
    let mut field: Vec<(Codings, Fitter<'_>)> = Vec::new();
    let mut rows = Vec::new();
    for (name, codings, offload, prefetch, quality) in WAYS {
        let is_ours = offload == Offload::Auto;
        let ask = Ask { codings, packed: is_ours, ..*ask };
        let (row_chunks, tile, outcome) = if is_ours {
            let mut fitter = Fitter::new(model, &ask);
            let under = Request { line: Line::Bytes(line_bytes), offload, prefetch };
            let fit = match fitter.fit(machine, &under) {
                Err(LedgerError::Plan(PlanError::Infeasible { .. })) => {
                    fitter.fit(&endless, &Request { line: Line::Min, ..under })?
                }
                other => other?,
            };
            (fit.ask.row_chunks, fit.ask.tile, fit.outcome)
        } else {
            let at = match field.iter().position(|(known, _)| *known == codings) {
                Some(at) => at,
                None => {
                    field.push((codings, Fitter::new(model, &ask)));
                    field.len() - 1
                }
            };
            let recipe = field[at].1.recipe(&ask)?;
            let outcome = planned(recipe, &endless, Line::Max, offload, prefetch)?;
            (ask.row_chunks, ask.tile, outcome)
        };
        rows.push(StrategyRow {
            name: name.to_owned(),
            offload: offload.to_string(),
            prefetch,
            quality,
            runs: model.runs_as(&ask),
            fits: outcome.vram_bytes <= line_bytes,
            row_chunks: row_chunks.unwrap_or(1),
            tile: tile.unwrap_or(0),
            outcome,
        });
    }
    Ok(rows)
}

/// The row to recommend and the reason: of those that fit the quickest, exact before nearly lossless where it costs at
/// most a tenth; 4 bits only where nothing else fits.
pub fn recommend(rows: &[StrategyRow]) -> Option<(&StrategyRow, String)> {
    let quickest = |quality: Quality| {
        rows.iter()
            .filter(|row| row.fits && row.quality == quality)
            .min_by(|a, b| a.outcome.seconds.total_cmp(&b.outcome.seconds))
    };
    let exact = quickest(Quality::Exact);
    let near = quickest(Quality::NearlyLossless);
    let seconds = |row: &StrategyRow| row.outcome.seconds;
    match (exact, near) {
        (Some(exact), Some(near)) if seconds(exact) <= 1.1 * seconds(near) => Some((
            exact,
            format!(
                "exact, and {:.1} s a picture against {:.1} s in fp8",
                seconds(exact),
                seconds(near)
            ),
        )),
        (Some(exact), Some(near)) => Some((
            near,
            format!(
                "{:.1} s a picture against {:.1} s for the quickest exact way ({})",
                seconds(near),
                seconds(exact),
                exact.name
            ),
        )),
        (Some(row), None) => Some((row, "the quickest exact way that fits".to_owned())),
        (None, Some(row)) => Some((row, "nothing exact fits".to_owned())),
        (None, None) => {
            quickest(Quality::SlightLoss).map(|row| (row, "nothing but 4 bits fits".to_owned()))
        }
    }
}
