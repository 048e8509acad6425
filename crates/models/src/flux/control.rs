//! ControlNets of FLUX.1, on paper: a FLUX of a few double blocks whose image rows are added to the model's.
//!
//! Source: `FluxControlNetModel` of diffusers; 5 double blocks and no single ones, as the common ones have
//! (1.79 B parameters, 3.57 GB). The control picture comes as packed latents. Samples of several nets are summed.

use plimsoll_graph::{Activation, Builder, DType, Dependence, Residual, Value};

use super::FluxConfig;
use super::transformer::Transformer;
use crate::layers::linear;

/// Double blocks of a net.
const BLOCKS: u64 = 5;
/// Before the names of a net's blocks and inputs.
const PREFIX: &str = "control.";

/// Traces so many nets of the shape of `main`; gives what they add, a sample for each of their blocks.
pub(super) fn trace(
    main: &Transformer<'_>,
    b: &mut Builder<'_>,
    count: u32,
    latent: Value,
    context: Value,
    pooled: Value,
) -> Vec<Value> {
    let config = FluxConfig {
        num_layers: BLOCKS.min(main.config.num_layers),
        num_single_layers: 0,
        ..main.config.clone()
    };
    let (d, rows) = (config.hidden(), main.image_tokens);
    let net = Transformer { config: &config, ..*main };
    let mut samples: Vec<Value> = Vec::new();
    for index in 0..count {
        let id = b.component(&component(index));
        b.block(id, format!("{PREFIX}embed"));
        let state = net.embed(b, id, PREFIX, latent, context, pooled);
        let picture = b.input("control", rows, config.in_channels, DType::F32, Dependence::Run);
        let layer = linear(b, "controlnet_x_embedder", d, config.in_channels);
        let image = net.image(&state);
        let residual = Some(Residual { base: image, gate: None });
        let none = Activation::None;
        b.linear_into("control", picture, layer.weight, layer.bias, none, residual, image);
        for block in 0..config.num_layers {
            net.double_block(b, &state, block);
            let layer = linear(b, &format!("controlnet_blocks.{block}"), d, d);
            let at = usize::try_from(block).unwrap_or(usize::MAX);
            let (out, residual) = match samples.get(at) {
                Some(sum) => (*sum, Some(Residual { base: *sum, gate: None })),
                None => {
                    samples.push(b.buffer("sample", rows, d, b.dtype(), Dependence::Latent));
                    (samples[at], None)
                }
            };
            let x = net.image(&state);
            b.linear_into("sample", x, layer.weight, layer.bias, none, residual, out);
        }
    }
    samples
}

/// Name of a net's component.
fn component(index: u32) -> String {
    if index == 0 { "controlnet".to_owned() } else { format!("controlnet_{}", index + 1) }
}

/// What is added after a double block out of `blocks`.
pub(super) fn sample(samples: &[Value], block: u64, blocks: u64) -> Option<Value> {
    let interval = blocks.div_ceil(samples.len().max(1) as u64).max(1);
    samples.get(usize::try_from(block / interval).ok()?).copied()
}
