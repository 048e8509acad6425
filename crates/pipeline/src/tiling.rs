//! In which tiles a picture is decoded, and the plan that follows from it.
//!
//! Tiles change the picture a little, so they are never chosen where nobody asked for them: a line under which the whole
//! decode does not fit is refused, with the largest tile that would.

use std::fmt;
use std::str::FromStr;

use plimsoll_graph::Graph;
use plimsoll_plan::{Advice, Machine, PlanError, Request};

use crate::failure::PipelineError;
use crate::placed::Planned;

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
    let Err(PipelineError::Plan(PlanError::Infeasible { .. })) = &whole else { return whole };
    let Some((edge, tiled)) = largest(sides, &plan)? else {
        // The smallest tile is what its smallest line is told of, where tiles were asked for.
        return if tiling == Tiling::Auto && sides.least < sides.whole {
            plan(Some(sides.least))
        } else {
            whole
        };
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

/// The largest tile with a plan, by halving: a smaller tile needs less.
fn largest(
    sides: TileSides,
    plan: &dyn Fn(Option<u64>) -> Result<Planned, PipelineError>,
) -> Result<Option<(u64, Planned)>, PipelineError> {
    let TileSides { least, step, whole } = sides;
    let try_edge = |edge| match plan(Some(edge)) {
        Ok(planned) => Ok(Some((edge, planned))),
        Err(PipelineError::Plan(PlanError::Infeasible { .. })) => Ok(None),
        Err(other) => Err(other),
    };
    if least >= whole {
        return Ok(None);
    }
    let Some(mut found) = try_edge(least)? else { return Ok(None) };
    // In steps from the smallest: `found` fits, `end` does not, or is the whole.
    let (mut low, mut end) = (0, (whole - least).div_ceil(step));
    while low + 1 < end {
        let middle = low + (end - low) / 2;
        match try_edge(least + middle * step)? {
            Some(fits) => (low, found) = (middle, fits),
            None => end = middle,
        }
    }
    Ok(Some(found))
}
