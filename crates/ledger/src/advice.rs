//! What to change: when a run does not fit, the single change that helps most; when it does, what more memory buys.
//!
//! Every change is planned like the run itself, so that its line and its seconds are figures, not opinions. A change
//! that is already in force is never proposed.

use plimsoll_graph::Coding;
use plimsoll_plan::{Line, Machine, Offload, PlanError};
use serde::Serialize;

use crate::error::LedgerError;
use crate::forecast::Forecast;
use crate::models::{Ask, Codings, KnownModel};
use crate::outcome::{Outcome, VRAM_ENDLESS, planned};

/// A change and what it gives.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// What to do, as a person would.
    pub what: String,
    /// The smallest line that works with it.
    pub smallest_bytes: u64,
    /// Whether that is under the line.
    pub fits: bool,
    /// Seconds of a picture under the line, or at the smallest.
    pub seconds: f64,
    /// What it costs beside seconds.
    pub cost: &'static str,
    /// Whether a device runs it today.
    pub runs: bool,
}

/// What to say of a run under a line.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It fits.
    Fits {
        /// Under the line.
        outcome: Outcome,
        /// Lines above it that are at least a twentieth quicker, each with its seconds.
        buys: Vec<(u64, f64)>,
    },
    /// It does not.
    DoesNotFit {
        /// The smallest line that works.
        smallest_bytes: u64,
        /// Changes by how much they help: those that fit first, the quickest first.
        changes: Vec<Change>,
    },
}

/// Judges a run.
///
/// # Errors
/// Whatever the request or the arithmetic refuses.
pub fn advise(
    model: &KnownModel,
    ask: &Ask,
    machine: &Forecast,
    line: Line,
) -> Result<Verdict, LedgerError> {
    let recipe = model.recipe(ask)?;
    let line_bytes = line.bytes(machine.vram_bytes()).unwrap_or(machine.vram_bytes());
    match planned(&recipe, machine, Line::Bytes(line_bytes), Offload::Auto, true) {
        Ok(outcome) => {
            let endless = machine.clone().with_vram(VRAM_ENDLESS);
            let most = planned(&recipe, &endless, Line::Max, Offload::Auto, true)?;
            let mut buys: Vec<(u64, f64)> = Vec::new();
            let mut best = outcome.seconds;
            for percent in [125u64, 150, 200, 300] {
                let bytes = (line_bytes / 100).saturating_mul(percent).min(most.vram_bytes);
                if bytes <= line_bytes || buys.iter().any(|(known, _)| *known == bytes) {
                    continue;
                }
                let there = planned(&recipe, &endless, Line::Bytes(bytes), Offload::Auto, true)?;
                if there.seconds <= 0.95 * best {
                    best = there.seconds;
                    buys.push((bytes, there.seconds));
                }
            }
            Ok(Verdict::Fits { outcome, buys })
        }
        Err(PlanError::Infeasible { smallest_any_bytes, .. }) => {
            let mut changes = Vec::new();
            for (what, changed, cost, runs) in candidates(model, ask) {
                let change = change(model, &changed, machine, line_bytes, what, cost, runs)?;
                if change.smallest_bytes < smallest_any_bytes {
                    changes.push(change);
                }
            }
            changes.sort_by(|a, b| {
                let helps = |change: &Change| (!change.fits, !change.runs);
                let first = helps(a).cmp(&helps(b));
                let by_seconds = a.seconds.total_cmp(&b.seconds);
                let by_bytes = a.smallest_bytes.cmp(&b.smallest_bytes);
                first.then(if a.fits { by_seconds } else { by_bytes })
            });
            Ok(Verdict::DoesNotFit { smallest_bytes: smallest_any_bytes, changes })
        }
        Err(error) => Err(error.into()),
    }
}

fn change(
    model: &KnownModel,
    ask: &Ask,
    machine: &Forecast,
    line_bytes: u64,
    what: String,
    cost: &'static str,
    runs: bool,
) -> Result<Change, LedgerError> {
    let recipe = model.recipe(ask)?;
    let endless = machine.clone().with_vram(VRAM_ENDLESS);
    let smallest = planned(&recipe, &endless, Line::Min, Offload::Auto, true)?;
    let fits = smallest.vram_bytes <= line_bytes;
    let under = if fits {
        planned(&recipe, machine, Line::Bytes(line_bytes), Offload::Auto, true)?
    } else {
        smallest
    };
    let (smallest_bytes, seconds) = (smallest.vram_bytes, under.seconds);
    Ok(Change { what, smallest_bytes, fits, seconds, cost, runs: runs && model.runs() })
}

/// What could be changed, and is not yet.
fn candidates(model: &KnownModel, ask: &Ask) -> Vec<(String, Ask, &'static str, bool)> {
    let mut all = Vec::new();
    let codings = |denoiser, text| Ask { codings: Codings { denoiser, text }, ..*ask };
    let Codings { denoiser, text } = ask.codings;
    if denoiser == Coding::Plain {
        let what = format!("keep the {} in fp8", model.denoiser);
        all.push((what, codings(Coding::Fp8, text), "nearly lossless", false));
    }
    if denoiser != Coding::Nf4 {
        let what = format!("keep the {} in nf4", model.denoiser);
        all.push((what, codings(Coding::Nf4, text), "a slight loss", false));
    }
    if text == Coding::Plain {
        let changed = codings(denoiser, Coding::Fp8);
        all.push(("keep the text encoders in fp8".to_owned(), changed, "nearly lossless", false));
    }
    if ask.samples > 1 {
        let changed = Ask { samples: 1, ..*ask };
        all.push(("make one picture at a time".to_owned(), changed, "nothing", true));
    }
    if model.is_video() && ask.row_chunks < 8 {
        let changed = Ask { row_chunks: 8, ..*ask };
        all.push(("take tokens in 8 pieces (--row-chunks 8)".to_owned(), changed, "nothing", true));
    }
    if model.is_video() && ask.tile == 0 {
        let changed = Ask { tile: 256, ..*ask };
        let what = "decode in tiles of 256 pixels (--tile 256)".to_owned();
        all.push((what, changed, "other bits at seams", true));
    }
    if model.is_video() && ask.row_chunks < 8 && ask.tile == 0 {
        let changed = Ask { row_chunks: 8, tile: 256, ..*ask };
        let what = "both: --row-chunks 8 --tile 256".to_owned();
        all.push((what, changed, "other bits at seams", true));
    }
    let [width, height, frames] = ask.size;
    let smaller = [width, height].map(|side| (side * 3 / 4 / 32 * 32).max(32));
    if smaller[0] < width || smaller[1] < height {
        let [w, h] = smaller;
        let changed = Ask { size: [w, h, frames], ..*ask };
        all.push((format!("make it {w}x{h}"), changed, "a smaller picture", true));
    }
    if frames > 5 {
        let fewer = (frames - 1) / 8 * 4 + 1;
        let changed = Ask { size: [width, height, fewer], ..*ask };
        all.push((format!("make {fewer} frames"), changed, "a shorter film", true));
    }
    all
}
