//! A step of FLUX.1: its transformer, and what ControlNets add to it.

use plimsoll_graph::{Builder, DType, Dependence, PhaseKind, Value};

use super::control;
use super::transformer::Transformer;

/// Traces one step; gives the latent state `[S, in_channels]` in `f32` that each step updates.
///
/// Host inputs: `noise` (each sample), `timestep` and `dsigma` (each step), `guidance` (dev), `rope`.
pub(super) fn trace(
    model: &Transformer<'_>,
    b: &mut Builder<'_>,
    component: &str,
    context: Value,
    pooled: Value,
    controlnets: u32,
) -> Value {
    let config = model.config;
    let id = b.component(component);
    b.phase(PhaseKind::Denoise, "denoise");
    b.block(id, "embed");
    let channels = config.in_channels;
    let latent = b.input("noise", model.image_tokens, channels, DType::F32, Dependence::Latent);
    let dsigma = b.input("dsigma", 1, 1, DType::F32, Dependence::Step);
    let state = model.embed(b, id, "", latent, context, pooled);
    let samples = control::trace(model, b, controlnets, latent, context, pooled);
    for index in 0..config.num_layers {
        model.double_block(b, &state, index);
        if let Some(sample) = control::sample(&samples, index, config.num_layers) {
            let image = model.image(&state);
            b.add_into("control", image, sample, image);
        }
    }
    for index in 0..config.num_single_layers {
        model.single_block(b, &state, index);
    }
    model.last_layer(b, &state, latent, dsigma);
    latent
}
