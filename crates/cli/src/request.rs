//! What the options mean for the model at hand.

use plimsoll_models::FluxRun;
use plimsoll_pipeline::{Defaults, HostLimits, PlaceRequest, Tiling};

use crate::args::RunArgs;
use crate::failure::Failure;

/// Sizes, dtype and line of a run, with the model's defaults filled in.
pub(crate) fn place_request(args: &RunArgs, defaults: &Defaults) -> PlaceRequest {
    let tiling = args.vae_tile.unwrap_or_default();
    PlaceRequest {
        run: FluxRun {
            width: args.width.unwrap_or(defaults.width),
            height: args.height.unwrap_or(defaults.height),
            steps: args.steps.unwrap_or(defaults.steps),
            samples: args.count,
            text_tokens: args.text_tokens.unwrap_or(defaults.text_tokens),
            dtype: args.dtype.run(),
            hoist: args.hoist.is_on(),
            vae_tile: match tiling {
                Tiling::Edge(edge) => Some(edge),
                Tiling::Off | Tiling::Auto => None,
            },
        },
        line: args.vram.0,
        offload: args.offload(),
        prefetch: args.prefetch.is_on(),
        saves: false,
        tiling,
    }
}

/// Refuses a text that is longer than the model reads.
///
/// # Errors
/// [`Failure::Usage`].
pub(crate) fn check_text_tokens(args: &RunArgs, defaults: &Defaults) -> Result<(), Failure> {
    match args.text_tokens {
        Some(tokens) if tokens > defaults.text_tokens => Err(Failure::Usage(format!(
            "--text-tokens is {tokens}: {} reads 1 to {}",
            defaults.name, defaults.text_tokens
        ))),
        _ => Ok(()),
    }
}

/// Threads of the compute lane.
pub(crate) fn workers(args: &RunArgs) -> Result<usize, Failure> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    match args.threads {
        None => Ok(cores),
        Some(threads @ 1..=1024) => Ok(threads),
        Some(other) => Err(Failure::Usage(format!("--threads is {other}, expected 1 to 1024"))),
    }
}

/// What a run may use of the host; `shares_ram` on a device whose memory is the host's.
pub(crate) fn host_limits(args: &RunArgs, shares_ram: bool) -> HostLimits {
    HostLimits { tier: args.host_tier.tier(), ram_bytes: args.ram.map(|size| size.0), shares_ram }
}

/// Bytes of RAM, which are the CPU device's memory; 16 GiB where the system does not say.
pub(crate) fn ram_bytes() -> u64 {
    const UNKNOWN: u64 = 16 << 30;
    plimsoll_host::memory::ram_bytes().unwrap_or(UNKNOWN)
}
