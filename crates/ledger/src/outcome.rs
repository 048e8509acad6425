//! What one plan of a recipe takes: bytes, seconds, traffic.

use plimsoll_graph::{Graph, PhaseKind};
use plimsoll_plan::{Line, Machine, Offload, Plan, PlanError, Request, plan};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::models::Recipe;

/// Device memory that no plan exceeds, to see what one takes that no card has.
pub(crate) const VRAM_ENDLESS: u64 = 1 << 44;

/// What a plan takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Outcome {
    /// Device bytes of the whole process.
    pub vram_bytes: u64,
    /// Bytes copied to the device for a picture.
    pub copied_bytes: u64,
    /// Bytes copied in a steady step, of two experts the most.
    pub copied_bytes_per_step: u64,
    /// Seconds of a steady step, the mean over the steps of two experts.
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

/// Reads the finished plans of a recipe's parts, which run one after the other in the same memory.
#[expect(clippy::cast_precision_loss, reason = "a number of tiles")]
pub fn outcome(recipe: &Recipe, machine: &dyn Machine, plans: &[Plan]) -> Outcome {
    let mut whole = Outcome {
        vram_bytes: 0,
        copied_bytes: 0,
        copied_bytes_per_step: 0,
        seconds_per_step: 0.0,
        seconds: 0.0,
        compute_seconds: 0.0,
        compute_seconds_per_step: 0.0,
    };
    let all_steps: u32 = recipe.parts().map(|part| part.steps).sum();
    for (part, plan) in recipe.parts().zip(plans) {
        let [all, step, decode] = compute_seconds(&part.graph, machine);
        // A tile's weights are there from the first on.
        let further = part.tiles.saturating_sub(1) as f64 * decode;
        let share = f64::from(part.steps) / f64::from(all_steps.max(1));
        let found = &plan.predicted;
        whole.vram_bytes = whole.vram_bytes.max(found.vram_process_bytes);
        whole.copied_bytes = whole.copied_bytes.saturating_add(found.copied_bytes);
        whole.copied_bytes_per_step = whole.copied_bytes_per_step.max(found.copied_bytes_per_step);
        whole.seconds_per_step += share * found.seconds_per_step;
        whole.seconds += found.seconds_total + further;
        whole.compute_seconds += all + further;
        whole.compute_seconds_per_step += share * step;
    }
    whole
}

/// Plans each part of a recipe.
///
/// # Errors
/// As [`plan`], of the part that asks for most.
pub fn plans(
    recipe: &Recipe,
    machine: &dyn Machine,
    request: &Request,
) -> Result<Vec<Plan>, PlanError> {
    let (mut found, mut worst) = (Vec::new(), None);
    for part in recipe.parts() {
        match (plan(&part.graph, machine, request), &worst) {
            (Ok(plan), _) => found.push(plan),
            (
                Err(PlanError::Infeasible { smallest_bytes, .. }),
                Some(PlanError::Infeasible { smallest_bytes: most, .. }),
            ) if smallest_bytes <= *most => {}
            (Err(error @ PlanError::Infeasible { .. }), _) => worst = Some(error),
            (Err(other), _) => return Err(other),
        }
    }
    worst.map_or(Ok(found), Err)
}

/// Plans a recipe and reads the plans.
///
/// # Errors
/// As [`plans`].
pub fn planned(
    recipe: &Recipe,
    machine: &dyn Machine,
    line: Line,
    offload: Offload,
    prefetch: bool,
) -> Result<Outcome, PlanError> {
    let plans = plans(recipe, machine, &Request { line, offload, prefetch })?;
    Ok(outcome(recipe, machine, &plans))
}
