//! Prompt to picture: tokenizers, sampler, noise, image I/O, and the two states of a pipeline.
//!
//! - [`Assembled`]: everything that belongs together, nothing with a place. Parts are attached here.
//! - [`Placed`]: a proven plan and an arena. It runs; [`Placed::release`] goes back.
//!
//! ```no_run
//! use plimsoll_device::{Control, cpu::CpuMachine};
//! use plimsoll_graph::DType;
//! use plimsoll_models::FluxRun;
//! use plimsoll_pipeline::{Assembled, NoiseSource, PlaceRequest, Prompt, Target, Tiling};
//! use plimsoll_plan::{Line, Offload};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let assembled = Assembled::open_folder("demo/model")?;
//! let request = PlaceRequest {
//!     run: FluxRun {
//!         width: 128,
//!         height: 128,
//!         steps: 8,
//!         samples: 1,
//!         text_tokens: 32,
//!         dtype: DType::BF16,
//!         hoist: true,
//!         vae_tile: None,
//!     },
//!     line: Line::Bytes(12 << 20),
//!     offload: Offload::Auto,
//!     prefetch: true,
//!     saves: false,
//!     tiling: Tiling::Off,
//! };
//! let machine = CpuMachine::default_rates(2);
//! let target = Target::Cpu { workers: 2 };
//! let mut placed =
//!     assembled.place(request, &machine, target).map_err(|failure| failure.error)?;
//! println!("{} bytes at most", placed.plan().predicted.vram_peak_bytes);
//! let prompt = Prompt {
//!     text: "ice cream, 3d rendered emoji".to_owned(),
//!     seed: 0,
//!     guidance: 0.0,
//!     noise: NoiseSource::F32,
//! };
//! let made = placed.generate(&machine, &prompt, &Control::default(), false, &mut |_| ())?;
//! made.pictures[0].write_png("ice.png".as_ref(), &[("prompt", &prompt.text)])?;
//! # Ok(())
//! # }
//! ```
//!
//! Not here: what is computed (`models`), where it lies (`plan`), how it is carried out (`exec`).

#![forbid(unsafe_code)]

mod assembled;
pub mod error;
mod failure;
mod generated;
mod host_limits;
pub mod host_tables;
pub mod image;
mod inputs;
mod math;
pub mod noise;
mod packing;
mod placed;
mod planned;
mod probe;
mod sampled;
mod saved;
pub mod scheduler;
mod tier;
mod tiling;
pub mod tokenize;
mod tokenizer_files;
mod whole_file;

pub use assembled::{Assembled, Defaults};
pub use failure::{Kind, PipelineError};
pub use generated::Generated;
pub use host_limits::{HostLimits, HostTier};
pub use image::Picture;
pub use inputs::{NoiseSource, Prompt};
pub use packing::{PackedFile, Storage};
pub use placed::{PlaceFailure, PlaceRequest, Placed, Target};
pub use planned::Planned;
pub use probe::{Probe, Probed, probe};
pub use saved::SavedTensor;
pub use tier::DiskShare;
pub use tiling::{TileSides, Tiling, plan_tiled};
pub use whole_file::{check_writable, write_whole};
