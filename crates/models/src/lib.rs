//! One folder or file a model: its configuration, its tensor names, and a builder that reads like the paper.
//!
//! A builder writes one sample and one step; the graph room makes a run of it. The names of checkpoint
//! tensors stand where the weights are used, so that what a model expects of its files follows from its
//! graph and is stated once.
//!
//! Source of all shapes and orders: the reference implementations in diffusers 0.42.1 and transformers, and
//! the BFL repository for FLUX.1.

#![forbid(unsafe_code)]

mod autoencoder_kl;
mod clip;
mod config;
mod error;
pub mod flux;
pub mod flux2;
pub mod hunyuan;
mod language;
mod layers;
mod paper;
pub mod sdxl;
mod t5;
mod tiles;
mod video;
pub mod wan;
pub mod z_image;

pub use autoencoder_kl::VaeConfig;
pub use clip::ClipConfig;
pub use error::ModelError;
pub use flux::{FluxConfig, FluxModel, FluxRun};
pub use flux2::Flux2Model;
pub use hunyuan::HunyuanModel;
pub use paper::Paper;
pub use sdxl::SdxlModel;
pub use t5::T5Config;
pub use video::{Tiles, VideoRun};
pub use wan::{Expert, WanModel};
pub use z_image::ZImageModel;
