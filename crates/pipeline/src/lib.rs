//! pipeline
#![forbid(unsafe_code)]

mod math;
pub mod noise;
