//! The pieces that a line allows: as few pieces of rows and as large a decoder's tile as fit under it.
//!
//! Pieces of rows cost launches, tiles cost what they overlap by, so neither is taken where the whole fits. Which of the
//! two to cut follows from where the smallest plan is fullest: in the step loop, or in the decode. Where a film's step
//! waits for weights though it fits, more pieces leave room for weights that stay, and are taken if that is quicker.

use std::collections::BTreeMap;

use plimsoll_graph::PhaseKind;
use plimsoll_plan::{Machine, Offload, Plan, PlanError, Request};

use crate::error::LedgerError;
use crate::models::{Ask, KnownModel, Recipe, is_in_few_tiles};
use crate::outcome::{Outcome, outcome, plans};

/// Pieces of rows, in the order in which they are tried.
const CHUNKS: [u64; 4] = [1, 2, 4, 8];
/// Sides of tiles in pixels, likewise; 0 is the whole.
const TILES: [u64; 9] = [0, 1024, 768, 512, 384, 256, 192, 128, 64];
/// A change that gains less than this share is none.
const GAIN: f64 = 0.02;

/// A run with its pieces chosen.
#[derive(Clone, Debug)]
pub struct Fit {
    /// What was asked, with pieces and tile filled in.
    pub ask: Ask,
    /// Plans of the recipe's parts.
    pub plans: Vec<Plan>,
    /// What they take.
    pub outcome: Outcome,
}

/// Chooses pieces for lines; keeps the graphs that it has built.
#[derive(Debug)]
pub struct Fitter<'m> {
    model: &'m KnownModel,
    ask: Ask,
    recipes: BTreeMap<(u64, u64), Recipe>,
}

impl<'m> Fitter<'m> {
    /// For a run of a model.
    pub fn new(model: &'m KnownModel, ask: &Ask) -> Self {
        Self { model, ask: *ask, recipes: BTreeMap::new() }
    }

    /// The graph of a run with its pieces chosen, as a [`Fit`] of this fitter has it.
    ///
    /// # Errors
    /// As [`KnownModel::recipe`].
    pub fn recipe(&mut self, ask: &Ask) -> Result<&Recipe, LedgerError> {
        let key = (ask.row_chunks.unwrap_or(1), ask.tile.unwrap_or(0));
        if !self.recipes.contains_key(&key) {
            self.recipes.insert(key, self.model.recipe(ask)?);
        }
        // It has just been put there.
        Ok(&self.recipes[&key])
    }

    fn chunks(&self) -> Vec<u64> {
        match self.ask.row_chunks {
            Some(chunks) => vec![chunks],
            None if self.model.is_video() => CHUNKS.to_vec(),
            None => vec![1],
        }
    }

    fn tiles(&self) -> Vec<u64> {
        match self.ask.tile {
            Some(tile) => vec![tile],
            None => {
                let [width, height, _] = self.ask.size;
                // The whole is always one of them: a size of 0 is refused by the model.
                let is_smaller = |tile: &u64| *tile == 0 || *tile < width || *tile < height;
                let is_one_of_few = |tile: &u64| {
                    let is_few = is_in_few_tiles(width, height, *tile);
                    *tile == 0 || self.model.is_video() || is_few
                };
                TILES.into_iter().filter(is_smaller).filter(is_one_of_few).collect()
            }
        }
    }

    /// The run under a request's line.
    ///
    /// # Errors
    /// As planning with the pieces that need least, and as [`KnownModel::recipe`].
    pub fn fit(&mut self, machine: &dyn Machine, request: &Request) -> Result<Fit, LedgerError> {
        if request.line == plimsoll_plan::Line::Min {
            return self.smallest(machine, request);
        }
        let (chunks, tiles) = (self.chunks(), self.tiles());
        let (mut chunk, mut tile) = (0, 0);
        let limit = request.line.bytes(machine.vram_bytes()).unwrap_or(machine.vram_bytes());
        loop {
            let ask = Ask { row_chunks: Some(chunks[chunk]), tile: Some(tiles[tile]), ..self.ask };
            let recipe = self.recipe(&ask)?;
            match activations(recipe, machine) {
                (Some(PhaseKind::Decode), bytes) if bytes > limit && tile + 1 < tiles.len() => {
                    tile += 1;
                    continue;
                }
                (Some(PhaseKind::Denoise), bytes) if bytes > limit && chunk + 1 < chunks.len() => {
                    chunk += 1;
                    continue;
                }
                _ => {}
            }
            match plans(recipe, machine, request) {
                Ok(plans) => {
                    let outcome = outcome(recipe, machine, &plans);
                    let found = Fit { ask, plans, outcome };
                    return self.quicker(machine, request, found, &chunks[chunk + 1..]);
                }
                Err(PlanError::Infeasible { at, .. })
                    if at.phase == "decode" && tile + 1 < tiles.len() =>
                {
                    tile += 1;
                }
                Err(PlanError::Infeasible { at, .. })
                    if at.phase == "denoise" && chunk + 1 < chunks.len() =>
                {
                    chunk += 1;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The run at the smallest line that works with any pieces.
    fn smallest(&mut self, machine: &dyn Machine, request: &Request) -> Result<Fit, LedgerError> {
        let nothing = Request { line: plimsoll_plan::Line::Bytes(1), ..*request };
        match self.fit(machine, &nothing) {
            Err(LedgerError::Plan(PlanError::Infeasible { smallest_bytes, .. })) => {
                let line = plimsoll_plan::Line::Bytes(smallest_bytes);
                self.fit(machine, &Request { line, ..*request })
            }
            other => other,
        }
    }

    /// The same in more pieces, where that is quicker.
    fn quicker(
        &mut self,
        machine: &dyn Machine,
        request: &Request,
        mut best: Fit,
        more: &[u64],
    ) -> Result<Fit, LedgerError> {
        let may = request.offload == Offload::Auto;
        for chunks in more {
            let now = best.outcome;
            let waits = now.seconds_per_step - now.compute_seconds_per_step;
            if !may || waits <= GAIN * now.seconds_per_step {
                break;
            }
            let ask = Ask { row_chunks: Some(*chunks), ..best.ask };
            let recipe = self.recipe(&ask)?;
            let Ok(plans) = plans(recipe, machine, request) else { break };
            let outcome = outcome(recipe, machine, &plans);
            if outcome.seconds > (1.0 - GAIN) * now.seconds {
                break;
            }
            best = Fit { ask, plans, outcome };
        }
        Ok(best)
    }
}

/// The most bytes that live tensors and scratch take beside the reserve, and in which phase: no plan takes less, and
/// telling it costs nothing beside planning.
fn activations(recipe: &Recipe, machine: &dyn Machine) -> (Option<PhaseKind>, u64) {
    let mut most = (None, 0);
    for part in recipe.parts() {
        let graph = &part.graph;
        let mut changes = vec![[0u64; 2]; graph.ops.len() + 1];
        for (tensor, span) in graph.tensors.iter().zip(graph.lifetimes()) {
            let Some((first, last)) = span else { continue };
            changes[first as usize][0] = changes[first as usize][0].saturating_add(tensor.bytes());
            let end = &mut changes[last as usize + 1][1];
            *end = end.saturating_add(tensor.bytes());
        }
        let mut live = 0u64;
        let mut at = 0;
        for phase in &graph.phases {
            for op in phase.visits.iter().flat_map(|visit| visit.ops_start..visit.ops_end) {
                // Visits hold the ops in their order.
                while at <= op as usize {
                    live = live.saturating_sub(changes[at][1]).saturating_add(changes[at][0]);
                    at += 1;
                }
                let scratch = machine.workspace_bytes(graph, &graph.ops[op as usize]);
                let bytes = live.saturating_add(scratch).saturating_add(machine.reserved_bytes());
                if bytes > most.1 {
                    most = (Some(phase.kind), bytes);
                }
            }
        }
    }
    most
}

/// The run of a model under a request's line.
///
/// # Errors
/// As [`Fitter::fit`].
pub fn fit(
    model: &KnownModel,
    ask: &Ask,
    machine: &dyn Machine,
    request: &Request,
) -> Result<Fit, LedgerError> {
    Fitter::new(model, ask).fit(machine, request)
}
