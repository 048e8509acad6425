//! What to change: when a run does not fit, the single change that helps most; when it does, what more memory buys.
//!
//! Every change is planned like the run itself, so that its line and its seconds are figures, not opinions. A change
//! that is already in force is never proposed.

use plimsoll_graph::Coding;
use plimsoll_plan::{Line, Machine, Offload, PlanError, Request};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::LedgerError;
use crate::fit::Fitter;
use crate::forecast::Forecast;
use crate::models::{Ask, Codings, KnownModel};
use crate::outcome::{Outcome, VRAM_ENDLESS};

/// A change and what it gives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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
    pub cost: String,
    /// Whether a device runs it today.
    pub runs: bool,
}

/// What to say of a run under a line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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

/// A change as it is tried.
struct Candidate {
    what: String,
    ask: Ask,
    offload: Offload,
    cost: &'static str,
}

/// Judges a run that weights reach by `offload`.
///
/// # Errors
/// Whatever the request or the arithmetic refuses.
pub fn advise(
    model: &KnownModel,
    ask: &Ask,
    machine: &Forecast,
    line: Line,
    offload: Offload,
) -> Result<Verdict, LedgerError> {
    let line_bytes = line.bytes(machine.vram_bytes()).unwrap_or(machine.vram_bytes());
    let request = Request { line: Line::Bytes(line_bytes), offload, prefetch: true };
    let mut fitter = Fitter::new(model, ask);
    match fitter.fit(machine, &request) {
        Ok(fit) => {
            let endless = machine.clone().with_vram(VRAM_ENDLESS);
            let mut at = |line, offload| -> Result<Outcome, LedgerError> {
                Ok(fitter.fit(&endless, &Request { line, offload, prefetch: true })?.outcome)
            };
            let outcome = fit.outcome;
            let most = at(Line::Max, Offload::Auto)?;
            let mut buys: Vec<(u64, f64)> = Vec::new();
            let mut best = outcome.seconds;
            for percent in [100u64, 125, 150, 200, 300] {
                let bytes = (line_bytes / 100).saturating_mul(percent).min(most.vram_bytes);
                let is_same = percent == 100 && offload == Offload::Auto;
                let bytes = if percent == 100 { line_bytes } else { bytes };
                if is_same || bytes < line_bytes || buys.iter().any(|(known, _)| *known == bytes) {
                    continue;
                }
                let there = at(Line::Bytes(bytes), Offload::Auto)?;
                if there.seconds <= 0.95 * best {
                    best = there.seconds;
                    buys.push((bytes, there.seconds));
                }
            }
            Ok(Verdict::Fits { outcome, buys })
        }
        Err(LedgerError::Plan(PlanError::Infeasible { smallest_bytes, .. })) => {
            let mut changes = Vec::new();
            for candidate in candidates(model, ask, offload) {
                let change = change(model, &candidate, machine, line_bytes)?;
                if change.smallest_bytes < smallest_bytes {
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
            Ok(Verdict::DoesNotFit { smallest_bytes, changes })
        }
        Err(error) => Err(error),
    }
}

fn change(
    model: &KnownModel,
    candidate: &Candidate,
    machine: &Forecast,
    line_bytes: u64,
) -> Result<Change, LedgerError> {
    let endless = machine.clone().with_vram(VRAM_ENDLESS);
    let mut fitter = Fitter::new(model, &candidate.ask);
    let mut request = Request { line: Line::Min, offload: candidate.offload, prefetch: true };
    let smallest = fitter.fit(&endless, &request)?.outcome;
    let fits = smallest.vram_bytes <= line_bytes;
    let under = if fits {
        request.line = Line::Bytes(line_bytes);
        fitter.fit(machine, &request)?.outcome
    } else {
        smallest
    };
    Ok(Change {
        what: candidate.what.clone(),
        smallest_bytes: smallest.vram_bytes,
        fits,
        seconds: under.seconds,
        cost: candidate.cost.to_owned(),
        runs: model.runs_as(&candidate.ask),
    })
}

/// What could be changed, and is not yet. What the planner chooses by itself is never proposed.
fn candidates(model: &KnownModel, ask: &Ask, offload: Offload) -> Vec<Candidate> {
    let mut all = Vec::new();
    let mut add = |what: String, ask: Ask, cost| all.push(Candidate { what, ask, offload, cost });
    let codings = |denoiser, text| Ask { codings: Codings { denoiser, text }, ..*ask };
    let Codings { denoiser, text } = ask.codings;
    if denoiser == Coding::Plain {
        let what = format!("keep the {} in fp8 (--weights fp8)", model.denoiser);
        add(what, codings(Coding::Fp8, text), "nearly lossless");
    }
    if denoiser != Coding::Nf4 {
        let what = format!("keep the {} in nf4 (--weights nf4)", model.denoiser);
        add(what, codings(Coding::Nf4, text), "a slight loss");
    }
    if text == Coding::Plain {
        let what = "keep the text encoders in fp8".to_owned();
        add(what, codings(denoiser, Coding::Fp8), "nearly lossless");
    }
    if ask.samples > 1 {
        add("make one picture at a time".to_owned(), Ask { samples: 1, ..*ask }, "nothing");
    }
    if ask.controlnets > 0 {
        let changed = Ask { controlnets: ask.controlnets - 1, ..*ask };
        add("leave a ControlNet out".to_owned(), changed, "less control");
    }
    if ask.lora_rank > 0 {
        add("leave the LoRA out".to_owned(), Ask { lora_rank: 0, ..*ask }, "another style");
    }
    let is_whole = ask.row_chunks.is_some_and(|chunks| chunks < 8) && model.is_video();
    if is_whole {
        let changed = Ask { row_chunks: Some(8), ..*ask };
        add("take tokens in 8 pieces (--row-chunks 8)".to_owned(), changed, "nothing");
    }
    if ask.tile == Some(0) {
        let changed = Ask { tile: Some(256), ..*ask };
        let what = "decode in tiles of 256 pixels (--vae-tile 256)".to_owned();
        add(what, changed, "other bits at seams");
    }
    if is_whole && ask.tile == Some(0) {
        let changed = Ask { row_chunks: Some(8), tile: Some(256), ..*ask };
        let what = "both: --row-chunks 8 --vae-tile 256".to_owned();
        add(what, changed, "other bits at seams");
    }
    let [width, height, frames] = ask.size;
    let smaller = [width, height].map(|side| (side * 3 / 4 / 32 * 32).max(32));
    if smaller[0] < width || smaller[1] < height {
        let [w, h] = smaller;
        let changed = Ask { size: [w, h, frames], ..*ask };
        add(format!("make it {w}x{h}"), changed, "a smaller picture");
    }
    if frames > 5 {
        let fewer = (frames - 1) / 8 * 4 + 1;
        let changed = Ask { size: [width, height, fewer], ..*ask };
        add(format!("make {fewer} frames"), changed, "a shorter film");
    }
    for (other, what) in [
        (Offload::Auto, "stream as the line allows (--offload auto)"),
        (Offload::Model, "one component at a time (--offload model)"),
    ] {
        if offload != Offload::Auto && offload != other {
            let cost = "copies";
            all.push(Candidate { what: what.to_owned(), ask: *ask, offload: other, cost });
        }
    }
    all
}
