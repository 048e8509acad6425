//! Files are tried in a child process that is this very program: so it has a `main` of its own.
//!
//! Run on a machine with a card: `card_probe-HASH`.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]
#![allow(missing_docs)]

mod card;

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use plimsoll_device_cuda::{CardOptions, CudaDevice, probe_child};
use plimsoll_host::SharedMapping;

fn main() -> ExitCode {
    if let Some(code) = probe_child(std::env::args_os().skip(1)) {
        return code;
    }
    // As a test runner asks: one test, and one that it would have to be told to run.
    if std::env::args().any(|argument| argument == "--list") {
        println!("files_are_tried_in_a_child: test");
        return ExitCode::SUCCESS;
    }
    files_are_tried_in_a_child();
    ExitCode::SUCCESS
}

fn files_are_tried_in_a_child() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let bytes: Vec<u8> =
        (0..20_000_001u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    file.write_all(&bytes).unwrap();
    let mappings: Vec<SharedMapping> =
        [file.path()].map(|path| SharedMapping::open(path).unwrap()).to_vec();
    let Some(card) = card::open(CardOptions::default()) else { return };
    let begin = Instant::now();
    card.try_files(&mappings);
    let tried = begin.elapsed();
    let begin = Instant::now();
    card.try_files(&mappings);
    println!("tried in {tried:.2?}, asked again in {:.2?}", begin.elapsed());
    let mut device = CudaDevice::new(card, 1 << 20).unwrap();
    device.set_mappings(&mappings);
    assert!(device.notices().is_empty(), "{:?}", device.notices());
    println!("files_are_tried_in_a_child ... ok");
}
