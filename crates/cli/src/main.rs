//! The binary `plimsoll`: what a person types.
//!
//! Options are read in two steps: [`args`] holds what was typed, [`model`] and [`request`] what it means for
//! the model at hand. Nothing below this room prints, reads the environment or exits.

#![forbid(unsafe_code)]

mod args;
mod demo;
mod failure;
mod generate;
mod inspect;
mod model;
mod plan;
mod progress;
mod request;
mod trace;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Verb};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.verb {
        Verb::Generate(args) => generate::run(&args),
        Verb::Plan(args) => plan::run(&args),
        Verb::Inspect(args) => inspect::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
