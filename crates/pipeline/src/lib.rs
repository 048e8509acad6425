//! pipeline
#![forbid(unsafe_code)]

pub mod error;
pub mod host_tables;
pub mod image;
mod math;
pub mod noise;
pub mod scheduler;
pub mod tokenize;
mod tokenizer_files;
