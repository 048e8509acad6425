//! Seconds for every line, from the smallest that works to all resident, and what binds at each.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};

use plimsoll_plan::{Line, Machine, Offload, Request};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::LedgerError;
use crate::fit::Fitter;
use crate::forecast::Forecast;
use crate::models::{Ask, KnownModel, Recipe};
use crate::outcome::{Outcome, VRAM_ENDLESS, planned};

/// A step this near its arithmetic streams for nothing.
const FREE: f64 = 1.02;
/// A bus that is busy for this share of a step binds it.
const BUSY: f64 = 0.95;

/// The resource that a step waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Binds {
    /// Arithmetic.
    Compute,
    /// The bus to the device.
    Bus,
    /// The disk, where host memory does not hold what is streamed.
    Disk,
    /// Room: neither lane is busy, since copies find no place to run ahead into.
    Vram,
}

/// A line and what it gives.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Point {
    /// The line.
    pub line_bytes: u64,
    /// What the plan takes.
    pub outcome: Outcome,
    /// What binds a step.
    pub binds: Binds,
}

/// The whole curve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Curve {
    /// By ascending line; the first is the smallest that works, the last holds everything.
    pub points: Vec<Point>,
    /// Index of the first point from which on a step costs its arithmetic.
    pub free_from: Option<usize>,
}

/// Plans for `count` lines, at least 2, each with the pieces that it allows.
///
/// # Errors
/// As planning; not for lines above the card's memory, which are drawn as well.
pub fn curve(
    model: &KnownModel,
    ask: &Ask,
    machine: &Forecast,
    is_disk: bool,
    count: usize,
) -> Result<Curve, LedgerError> {
    let endless = machine.clone().with_vram(VRAM_ENDLESS);
    let mut fitter = Fitter::new(model, ask);
    let at = |fitter: &mut Fitter<'_>, line| -> Result<Outcome, LedgerError> {
        let request = Request { line, offload: Offload::Auto, prefetch: true };
        Ok(fitter.fit(&endless, &request)?.outcome)
    };
    let (smallest, largest) = (at(&mut fitter, Line::Min)?, at(&mut fitter, Line::Max)?);
    let (low, high) = (smallest.vram_bytes, largest.vram_bytes.max(smallest.vram_bytes));
    let steps = count.max(2) as u64 - 1;
    let mut lines: Vec<u64> = (0..=steps)
        .map(|step| match step {
            0 => low,
            _ if step == steps => high,
            // Whole MiB between the ends, so that a line is one that a person can type.
            _ => (low + (high - low) / steps * step).next_multiple_of(1 << 20).min(high),
        })
        .collect();
    lines.dedup();
    // A point follows from its line alone, so that it does not matter who plans it.
    let workers = std::thread::available_parallelism().map_or(1, NonZero::get).min(lines.len());
    let next = AtomicUsize::new(0);
    let work = || {
        let (mut fitter, mut found) = (Fitter::new(model, ask), Vec::new());
        while let Some(line) = lines.get(next.fetch_add(1, Ordering::Relaxed)) {
            found.push((*line, at(&mut fitter, Line::Bytes(*line))));
        }
        found
    };
    let mut found: Vec<_> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..workers).map(|_| scope.spawn(work)).collect();
        let mut all = work();
        for other in others {
            all.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        all
    });
    found.sort_by_key(|(line, _)| *line);
    let points = found.into_iter().map(|(line_bytes, outcome)| {
        let outcome = outcome?;
        Ok(Point { line_bytes, outcome, binds: binds(&outcome, machine, is_disk) })
    });
    let points = points.collect::<Result<Vec<Point>, LedgerError>>()?;
    let is_free = |point: &Point| point.binds == Binds::Compute;
    let free_from = points.iter().rposition(|point| !is_free(point)).map_or(0, |last| last + 1);
    let free_from = (free_from < points.len()).then_some(free_from);
    Ok(Curve { points, free_from })
}

/// What a steady step waits for.
#[expect(clippy::cast_precision_loss, reason = "seconds are an estimate")]
pub fn binds(outcome: &Outcome, machine: &Forecast, is_disk: bool) -> Binds {
    let copying = outcome.copied_bytes_per_step as f64 / machine.link_bytes_per_second();
    if outcome.seconds_per_step <= FREE * outcome.compute_seconds_per_step {
        Binds::Compute
    } else if copying < BUSY * outcome.seconds_per_step {
        Binds::Vram
    } else if is_disk {
        Binds::Disk
    } else {
        Binds::Bus
    }
}

impl Binds {
    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Bus => "bus",
            Self::Disk => "disk",
            Self::Vram => "vram",
        }
    }
}

/// The least line of a machine that holds everything, for a person who buys one.
pub fn all_resident(recipe: &Recipe, machine: &Forecast) -> Result<Outcome, LedgerError> {
    let endless = machine.clone().with_vram(VRAM_ENDLESS);
    debug_assert!(endless.vram_bytes() == VRAM_ENDLESS);
    Ok(planned(recipe, &endless, Line::Max, Offload::None, true)?)
}
