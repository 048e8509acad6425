//! What one plan of a recipe takes: bytes, seconds, traffic.

use plimsoll_graph::{Graph, PhaseKind};
use plimsoll_plan::{Line, Machine, Offload, Plan, PlanError, Request, plan};
use serde::Serialize;

use crate::models::Recipe;

/// Device memory that no plan exceeds, to see what one takes that no card has.
pub(crate) const VRAM_ENDLESS: u64 = 1 << 44;

/// What a plan takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Device bytes of the whole process.
    pub vram_bytes: u64,
    /// Bytes copied to the device for a picture.
    pub copied_bytes: u64,
    /// Bytes copied in a steady step.
    pub copied_bytes_per_step: u64,
    /// Seconds of a steady step.
    pub seconds_per_step: f64,
    /// Seconds of a picture, all its tiles decoded.
    pub seconds: f64,
    /// Seconds of a picture's arithmetic alone.
    pub compute_seconds: f64,
    /// Seconds of a step's arithmetic alone.
    pub compute_seconds_per_step: f64,
}

impl Outcome {
    /// Seconds that copies add.
    pub fn extra_seconds(&self) -> f64 {
        (self.seconds - self.compute_seconds).max(0.0)
    }
}

/// Seconds of ops: all phases, a step, and one decode.
pub(crate) fn compute_seconds(graph: &Graph, machine: &dyn Machine) -> [f64; 3] {
    let mut all = [0.0; 3];
    for phase in &graph.phases {
        let ops = phase
            .visits
            .iter()
            .flat_map(|visit| &graph.ops[visit.ops_start as usize..visit.ops_end as usize]);
        let once: f64 = ops.map(|op| machine.op_seconds(graph, op)).sum();
        all[0] += once * f64::from(phase.repeat);
        match phase.kind {
            PhaseKind::Denoise => all[1] += once,
            PhaseKind::Decode => all[2] += once,
            PhaseKind::Encode | PhaseKind::Hoist => {}
        }
    }
    all
}

/// Reads a finished plan.
#[expect(clippy::cast_precision_loss, reason = "a number of tiles")]
pub fn outcome(recipe: &Recipe, machine: &dyn Machine, plan: &Plan) -> Outcome {
    let [all, step, decode] = compute_seconds(&recipe.graph, machine);
    // A tile's weights are there from the first on.
    let further = recipe.tiles.saturating_sub(1) as f64 * decode;
    Outcome {
        vram_bytes: plan.predicted.vram_process_bytes,
        copied_bytes: plan.predicted.copied_bytes,
        copied_bytes_per_step: plan.predicted.copied_bytes_per_step,
        seconds_per_step: plan.predicted.seconds_per_step,
        seconds: plan.predicted.seconds_total + further,
        compute_seconds: all + further,
        compute_seconds_per_step: step,
    }
}

/// Plans a recipe and reads the plan.
///
/// # Errors
/// As [`plan`].
pub fn planned(
    recipe: &Recipe,
    machine: &dyn Machine,
    line: Line,
    offload: Offload,
    prefetch: bool,
) -> Result<Outcome, PlanError> {
    let plan = plan(&recipe.graph, machine, &Request { line, offload, prefetch })?;
    Ok(outcome(recipe, machine, &plan))
}
