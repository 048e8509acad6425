//! In which tiles a picture is decoded, and the plan that follows from it.
//!
//! Tiles change the picture a little, so they are never chosen where nobody asked for them: a line under which the whole
//! decode does not fit is refused, with the largest tile that would.

use std::fmt;
use std::str::FromStr;

use plimsoll_graph::Graph;
use plimsoll_models::{FluxModel, FluxRun};
use plimsoll_plan::{Advice, Machine, PeakAt, PlanError, Request};

use crate::failure::PipelineError;
use crate::planned::Planned;

/// In which tiles pictures are decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tiling {
    /// Whole.
    #[default]
    Off,
    /// In tiles of at most so many pixels a side.
    Edge(u64),
    /// Whole where that fits under the line, else in the largest tiles that do.
    Auto,
}

impl FromStr for Tiling {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::Auto),
            edge => match edge.parse() {
                Ok(0) | Err(_) => {
                    Err("expected off, auto or the side of a tile in pixels, such as 512"
                        .to_owned())
                }
                Ok(edge) => Ok(Self::Edge(edge)),
            },
        }
    }
}

impl fmt::Display for Tiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Edge(edge) => write!(f, "{edge}"),
            Self::Auto => f.write_str("auto"),
        }
    }
}

/// The sides that a tile may have for a picture, in pixels.
#[derive(Clone, Copy, Debug)]
pub struct TileSides {
    /// The smallest; every side is a multiple of `step`.
    pub least: u64,
    /// Pixels of a token.
    pub step: u64,
    /// The picture's longer side: a tile of it is the whole.
    pub whole: u64,
}

impl TileSides {
    /// Those of a run of a model.
    pub fn of(model: &FluxModel, run: &FluxRun) -> Self {
        Self {
            least: model.tile_edge_min(run),
            step: model.pixels_per_token(),
            whole: run.width.max(run.height),
        }
    }
}

/// Plans the graph that `graph` makes for a side of tiles.
///
/// # Errors
/// As [`plimsoll_plan::plan`]; where only the whole decode does not fit, the advice is the largest tile that does.
///
/// # Determinism
/// The tile follows from the sizes and the line alone.
pub fn plan_tiled(
    tiling: Tiling,
    sides: TileSides,
    machine: &dyn Machine,
    request: &Request,
    graph: &dyn Fn(Option<u64>) -> Result<Graph, PipelineError>,
) -> Result<Planned, PipelineError> {
    let plan = |edge| -> Result<Planned, PipelineError> {
        let graph = graph(edge)?;
        let plan = plimsoll_plan::plan(&graph, machine, request)?;
        Ok(Planned { graph, plan, disk: None })
    };
    let whole = match tiling {
        Tiling::Edge(edge) => return plan(Some(edge)),
        Tiling::Off | Tiling::Auto => plan(None),
    };
    let Err(PipelineError::Plan(PlanError::Infeasible { at, .. })) = &whole else { return whole };
    if !is_of_decode(at) {
        return whole;
    }
    let (edge, tiled) = match largest(sides, &plan)? {
        Ok(found) => found,
        // The smallest line that is told is then that of tiles, where tiles were asked for.
        Err(Some(error)) if tiling == Tiling::Auto => return Err(error.into()),
        Err(_) => return whole,
    };
    if tiling == Tiling::Auto {
        return Ok(tiled);
    }
    whole.map_err(|error| match error {
        PipelineError::Plan(PlanError::Infeasible {
            line_bytes,
            smallest_bytes,
            smallest_any_bytes,
            reserved_bytes,
            at,
            // A change of strategy keeps the picture.
            advice: Advice::RaiseLine { .. } | Advice::ShrinkActivations { .. },
        }) => PlanError::Infeasible {
            line_bytes,
            smallest_bytes,
            smallest_any_bytes,
            reserved_bytes,
            at,
            advice: Advice::DecodeTile { edge },
        }
        .into(),
        other => other,
    })
}

/// Whether decode is what a plan is too large for: smaller tiles make nothing else smaller.
fn is_of_decode(at: &PeakAt) -> bool {
    at.phase == "decode"
}

/// The largest tile with a plan that computes no more than twice the picture's pixels, or the refusal of the smallest that
/// was tried; a smaller tile needs less.
///
/// From the picture's half downwards, and then by halving between the last two: small tiles are many ops, whose
/// plans take longest.
fn largest(
    sides: TileSides,
    plan: &dyn Fn(Option<u64>) -> Result<Planned, PipelineError>,
) -> Result<Result<(u64, Planned), Option<PlanError>>, PipelineError> {
    let TileSides { least, step, whole } = sides;
    let try_edge = |edge| match plan(Some(edge)) {
        Ok(planned) => Ok(Ok((edge, planned))),
        Err(PipelineError::Plan(error @ PlanError::Infeasible { .. })) => Ok(Err(error)),
        Err(other) => Err(other),
    };
    if least >= whole {
        return Ok(Err(None));
    }
    // `end` does not fit, or is the whole, which does not.
    let mut end = whole.next_multiple_of(step);
    let mut found = loop {
        let edge = (end / 2 / step * step).max(least);
        match try_edge(edge)? {
            Ok(found) => break found,
            Err(error) => {
                let is_last = edge == least
                    || !matches!(&error, PlanError::Infeasible { at, .. } if is_of_decode(at));
                if is_last {
                    return Ok(Err(Some(error)));
                }
                end = edge;
            }
        }
    };
    while found.0 + step < end {
        let middle = found.0 + (end - found.0) / step / 2 * step;
        match try_edge(middle)? {
            Ok(fits) => found = fits,
            Err(_) => end = middle,
        }
    }
    // A tile that hardly misses the whole overlaps its neighbours so much that two a side are four pictures.
    let bounded = most_of_twice(whole, found.0, step);
    if (least..found.0).contains(&bounded)
        && let Ok(fits) = try_edge(bounded)?
    {
        found = fits;
    }
    Ok(Ok(found))
}

/// The largest edge of as many tiles a side as `edge` makes, all of which are at most twice a square picture of `whole`
/// a side: tiles that overlap by a quarter, the least, are at most 16 ninths of it.
fn most_of_twice(whole: u64, edge: u64, step: u64) -> u64 {
    let tiles = whole.saturating_sub(edge).div_ceil((edge - edge / 4).max(1)) + 1;
    // As many times the root of 2 as large.
    let side = (2 * whole * whole).isqrt();
    (side / tiles / step * step).min(edge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_together_at_most_twice_the_picture() {
        for whole in (128..4096).step_by(16) {
            for edge in (64..whole).step_by(16) {
                let count = |edge: u64| (whole - edge).div_ceil((edge - edge / 4).max(1)) + 1;
                let bounded = most_of_twice(whole, edge, 16);
                assert!(bounded <= edge);
                let tiles = count(edge);
                // Rounding to whole tokens may take one more, of which there is no need then.
                assert!((tiles * bounded).pow(2) <= 2 * whole * whole);
                if bounded >= 256 {
                    assert!(count(bounded) <= tiles + 1, "{whole} {edge} {bounded}");
                }
            }
        }
        // 2048x2048: two tiles a side, whatever fits.
        assert_eq!(
            [1808, 1456, 1440, 1200].map(|edge| most_of_twice(2048, edge, 16)),
            [1440, 1440, 1440, 1200]
        );
    }
}
