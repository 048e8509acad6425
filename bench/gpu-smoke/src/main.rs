//! The GPU smoke run: five questions about a CUDA machine whose answers shape the plan's types.
//!
//! `start` (context, arena, own cubin), `gemm` (cuBLASLt with a pinned algorithm, the rule of rows), `step` (a step as a CUDA graph),
//! `bytes` (device bytes of everything), `attention` (a cuDNN plan from Rust).
//! Each part is a process of its own, so that a hang or a crash loses one answer and not five; `run.sh` runs them with time limits.
//! It needs the driver, and for some parts cuBLASLt and cuDNN; it needs no CUDA toolkit to build or to run.

mod attention;
mod bytes;
mod dnn;
mod error;
mod file;
mod gemm;
mod gpu;
mod lanes;
mod library;
mod lt;
mod process;
mod start;
mod step;

use std::error::Error as _;
use std::path::PathBuf;
use std::process::ExitCode;

use error::{Error, Result};
use library::Libraries;

fn main() -> ExitCode {
    let outcome = run(std::env::args().skip(1));
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    eprintln!("error: {error}");
    let mut cause = error.source();
    while let Some(source) = cause {
        eprintln!("  because: {source}");
        cause = source.source();
    }
    ExitCode::FAILURE
}

fn run(mut arguments: impl Iterator<Item = String>) -> Result<()> {
    let part = arguments.next().ok_or_else(|| Error::Usage("no part named".into()))?;
    let mut libraries = Libraries::default();
    let mut path = PathBuf::from("/dev/shm/plimsoll-smoke.bin");
    let (mut blocks, mut block_mib, mut is_short) = (57, 288, false);
    while let Some(option) = arguments.next() {
        if option == "--short" {
            is_short = true;
            continue;
        }
        let value =
            arguments.next().ok_or_else(|| Error::Usage(format!("{option} needs a value")))?;
        let number = || {
            value
                .parse::<u64>()
                .map_err(|_| Error::Usage(format!("{option} needs a number, not {value}")))
        };
        match option.as_str() {
            "--lib-dir" => libraries.folders.push(value.into()),
            "--file" => path = value.into(),
            "--file-blocks" => blocks = number()?,
            "--block-mib" => block_mib = number()?,
            _ => return Err(Error::Usage(format!("unknown option {option}"))),
        }
    }
    let block_bytes = block_mib << 20;
    match part.as_str() {
        "start" => start::run(),
        "gemm" => gemm::run(&libraries),
        "step" => {
            step::run(&libraries, &step::Options { path: &path, blocks, block_bytes, is_short })
        }
        "bytes" => bytes::run(&libraries, &path),
        "attention" => attention::run(&libraries),
        other => Err(Error::Usage(format!("unknown part {other}"))),
    }
}
