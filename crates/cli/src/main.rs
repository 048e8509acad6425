//! The binary `plimsoll`: what a person types.
//!
//! Options are read in two steps: [`args`] holds what was typed, [`model`] and [`request`] what it means for
//! the model at hand. Nothing below this room prints, reads the environment or exits.

#![forbid(unsafe_code)]

mod args;
mod bench;
mod demo;
mod doctor;
mod dtypes;
mod executor;
mod failure;
mod forecast;
mod generate;
mod inspect;
mod interrupt;
mod model;
mod new_folder;
mod out;
mod outputs;
mod pack;
mod plan;
mod probe;
mod progress;
mod request;
mod runs;
mod synth;
mod trace;
mod values;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Mutex;

use clap::error::ErrorKind;

use crate::args::{Cli, Verb};

/// What the last panic said, and where.
static PANIC: Mutex<String> = Mutex::new(String::new());

/// Exit code of a bug of ours, the same as of a device that failed.
const BUG: u8 = 5;
/// Exit code of arguments that are none.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    plimsoll_host::fail_writes_past_the_limit();
    // This program, started again to try something that might not come back.
    if let Some(code) = plimsoll_device_cuda::probe_child(std::env::args_os().skip(1)) {
        return code;
    }
    let cli = match Cli::read(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    // A panic inside a library or a lane is contained there and becomes an error of one line; one that is not
    // becomes the line below. Neither prints a trace at a person.
    std::panic::set_hook(Box::new(|panic| {
        if let Ok(mut last) = PANIC.lock() {
            *last = panic.to_string().replace('\n', " ");
        }
    }));
    let done = std::panic::catch_unwind(|| match cli.verb {
        Verb::Generate(args) => generate::run(&args),
        Verb::Plan(args) => plan::run(&args),
        Verb::Ledger(args) => forecast::ledger(&args),
        Verb::Inspect(args) => inspect::run(&args),
        Verb::Bench(args) => bench::run(&args),
        Verb::Probe(args) => probe::run(&args),
        Verb::Doctor(args) => doctor::run(args),
        Verb::Runs(args) => runs::run(&args),
        Verb::Pack(args) => pack::run(&args),
        Verb::Synth(args) => synth::run(&args),
    });
    match done {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(failure)) => out::failure(&failure),
        Err(_) => {
            out::notice(&format!("a bug of this program, please report it: {}", last_panic()));
            ExitCode::from(BUG)
        }
    }
}

/// A question about usage: help as it is, anything else in one line.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let printed = error.print().and_then(|()| std::io::stdout().flush());
        if let Err(failure) = out::written(printed) {
            return out::failure(&failure);
        }
        return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(USAGE));
    }
    out::notice(&one_line(&error.to_string()));
    ExitCode::from(USAGE)
}

/// What clap says in paragraphs, without its hints on usage.
fn one_line(text: &str) -> String {
    let is_said = |line: &&str| {
        let is_hint = line.starts_with("Usage:") || line.starts_with("For more information");
        !line.is_empty() && !is_hint
    };
    let lines: Vec<&str> = text.lines().map(str::trim).filter(is_said).collect();
    let text = lines.join(" ");
    text.strip_prefix("error: ").unwrap_or(&text).to_owned()
}

/// What the last panic said, and where.
fn last_panic() -> String {
    PANIC.lock().map(|last| last.clone()).unwrap_or_default()
}
