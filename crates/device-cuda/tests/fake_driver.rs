//! What host memory does where the system refuses its best: the same bytes arrive on the card, with one notice.
//!
//! The card is made up (`fake/cuda.c`): its memory is host memory and its copies are real. Libraries are looked for
//! when a process starts, so each case is a child: this very test binary, asked by an environment variable.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]
#![allow(missing_docs)]

#[path = "../../device/tests/common/mod.rs"]
mod common;
mod fake;

use std::io::Write;
use std::process::{Command as Child, Output};
use std::sync::Mutex;

use common::{bound, run_all, unit};
use plimsoll_device::{
    Control, Device, DeviceError, HostDType, Mat, OutputBuffer, Program, Region, Segment,
};
use plimsoll_device_cuda::{Card, CardOptions, CudaDevice, CudaError, HostOptions, Probing};
use plimsoll_graph::{DType, OpKind, OutputId};
use plimsoll_host::{DiskFiles, SharedMapping};

const TASK: &str = "PLIMSOLL_TEST_FAKE";

/// Bytes of the copies: more than a window each, none a multiple of a sector.
const PARTS: [usize; 3] = [20_000_004, 4, 17_000_000];

fn child(task: &str, environment: &[(&str, &str)]) -> Option<Output> {
    let folder = fake::folder()?;
    let output = Child::new(std::env::current_exe().unwrap())
        .args(["--exact", "victim", "--nocapture", "--test-threads=1"])
        .env(TASK, task)
        .env("LD_LIBRARY_PATH", folder.path())
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    Some(output)
}

fn options(probing: Probing) -> CardOptions {
    let host = HostOptions { probing, registered_uses_min: 1, ..HostOptions::default() };
    let mut options = CardOptions { host, ..CardOptions::default() };
    options.libraries.without_cublas_lt = true;
    options.libraries.without_cudnn = true;
    options
}

fn mat(offset: u64, bytes: usize) -> Mat {
    let cols = bytes as u64 / 4;
    Mat { offset, rows: 1, cols, stride: cols, dtype: DType::F32, step_bytes: 0 }
}

/// Copies parts of a mapped file to the card and back; prints what came of it.
fn copy_all(task: &str) {
    let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let all: Vec<u8> =
        (0..40_000_000u32).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 24) as u8).collect();
    file.write_all(&all).unwrap();
    file.flush().unwrap();
    let mapping = SharedMapping::open(file.path()).unwrap();
    let card = Card::open(0, options(Probing::Skip)).unwrap();
    let mut device = CudaDevice::new(card, 64 << 20).unwrap();
    device.set_mappings(std::slice::from_ref(&mapping));
    let disk = DiskFiles::open(std::slice::from_ref(&mapping)).unwrap();

    if task == "later" {
        // SAFETY: no other thread of this process reads the environment now.
        unsafe { std::env::set_var("FAKE_CUDA_OTHERS", "99999999999999") };
        let (free, total) = (device.card().free_bytes().unwrap(), device.card().total_bytes());
        assert!(free == 0 && total > 0, "others have taken all that was left");
    }

    let (mut source, mut target) = (777usize, 0u64);
    let (mut copies, mut ops, mut outputs) = (Vec::new(), Vec::new(), Vec::new());
    for (at, bytes) in PARTS.into_iter().enumerate() {
        let mut copy = unit(Segment {
            source: &mapping.bytes()[source..source + bytes],
            source_dtype: HostDType::F32,
            target,
            target_dtype: DType::F32,
        });
        // With "disk", the middle one stays in RAM.
        copy.from_disk = task == "disk" && at != 1;
        copies.push(copy);
        let output = OpKind::Output { output: OutputId(at as u32), x: mat(target, bytes) };
        ops.push(bound(output, Region::default()));
        outputs.push(OutputBuffer { bytes: Mutex::new(vec![0; bytes].into()) });
        source += bytes;
        target = (target + bytes as u64).next_multiple_of(256);
    }
    let program = Program {
        ops,
        copies,
        outputs,
        disk: (task == "disk").then_some(&disk),
        ..Program::default()
    };
    if task == "shrink" {
        file.as_file().set_len(4096).unwrap();
    }
    let ran = device.run(&program, &Control::default(), &mut |queue| run_all(queue, &program));
    match ran {
        Ok(stats) => {
            let mut at = 777;
            for (bytes, output) in PARTS.into_iter().zip(&program.outputs) {
                assert!(output.bytes.lock().unwrap()[..] == all[at..at + bytes], "other bytes");
                at += bytes;
            }
            assert_eq!(stats.copied_bytes, PARTS.iter().sum::<usize>() as u64);
            println!("same bytes, {} lent", device.registered_bytes());
        }
        Err(error) => {
            println!("failed: {error}");
            let again =
                device.run(&program, &Control::default(), &mut |queue| run_all(queue, &program));
            if let (
                DeviceError::Driver { is_lost: true, .. },
                Err(DeviceError::Driver { is_lost: true, cause, .. }),
            ) = (&error, &again)
            {
                println!("for good: {cause}");
            }
        }
    }
    device.notices().iter().for_each(|notice| println!("notice: {notice}"));
}

/// Opens cards and gives their arena back and takes another.
fn lines() {
    let card = Card::open(0, options(Probing::Skip)).unwrap();
    let reserved = card.reserved_bytes();
    let mut device = CudaDevice::new(card, 1 << 30).unwrap();
    let mut held = Vec::new();
    for round in 0..6 {
        for arena_bytes in [3u64 << 30, 1 << 20, 600 << 20] {
            device.retake(arena_bytes).unwrap();
            assert_eq!(device.arena_bytes(), arena_bytes);
            let now = device.held_bytes().unwrap();
            assert!(now <= reserved + CudaDevice::taken_bytes(arena_bytes).unwrap());
            held.push(now);
            if round > 0 {
                assert_eq!(held[held.len() - 4], now, "device bytes grow");
            }
        }
    }
    // What is not there is refused with the numbers; what fits is taken after it.
    let refused = device.retake(1 << 40).unwrap_err().to_string();
    assert!(refused.contains("the card is busy") && refused.contains("are free"), "{refused}");
    assert_eq!(device.arena_bytes(), 0);
    device.retake(1 << 20).unwrap();
    println!("all lines");
}

/// The child's part; a test that passes when nobody asks it for anything.
#[test]
fn victim() {
    let Ok(task) = std::env::var(TASK) else { return };
    match task.as_str() {
        "open" => match Card::open(0, options(Probing::Skip)) {
            Ok(card) => println!("opened {}", card.name()),
            Err(error) => {
                println!("refused: {error} ({})", matches!(error, CudaError::Busy { .. }))
            }
        },
        "lines" => lines(),
        task => copy_all(task),
    }
}

/// Standard output of a child that ended well.
fn told(task: &str, environment: &[(&str, &str)]) -> Option<String> {
    let output = child(task, environment)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{task} {environment:?}: {text}{errors}");
    Some(text)
}

fn notices(text: &str) -> usize {
    text.lines().filter(|line| line.starts_with("notice: ")).count()
}

#[test]
fn pages_are_lent_and_the_bytes_arrive() {
    let Some(text) = told("copy", &[]) else { return };
    assert!(text.contains("same bytes, 37000") && notices(&text) == 0, "{text}");
}

#[test]
fn lending_that_is_refused_goes_on_through_pinned_memory_with_one_notice() {
    let Some(text) = told("copy", &[("FAKE_CUDA_REGISTERING", "0")]) else { return };
    assert!(text.contains("same bytes, 0 lent") && notices(&text) == 1, "{text}");
    assert!(text.contains("copies go through pinned memory"), "{text}");
    assert!(text.contains("operation not permitted"), "{text}");
}

#[test]
fn pinning_that_is_refused_goes_on_pageable_with_one_notice() {
    let refused = [("FAKE_CUDA_REGISTERING", "0"), ("FAKE_CUDA_PINNING", "0")];
    let Some(text) = told("copy", &refused) else { return };
    assert!(text.contains("same bytes, 0 lent"), "{text}");
    assert!(text.contains("notice: memory for copies cannot be pinned"), "{text}");
    // Lending, windows, inputs and outputs: one matter.
    assert_eq!(notices(&text), 1, "{text}");
}

#[test]
fn what_ram_cannot_hold_comes_from_the_disk() {
    for refused in [&[][..], &[("FAKE_CUDA_PINNING", "0")]] {
        let Some(text) = told("disk", refused) else { return };
        assert!(text.contains("same bytes, 4 lent"), "{text}");
    }
}

#[test]
fn a_file_that_shrinks_under_the_readers_ends_the_process_with_one_line() {
    let Some(output) = child("shrink", &[("FAKE_CUDA_REGISTERING", "0")]) else { return };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(plimsoll_host::EXIT_CODE), "{errors}");
    assert_eq!(errors.matches("a weight file shrank or its disk failed").count(), 1, "{errors}");
}

#[test]
fn an_error_that_stays_is_told_with_its_cause_then_and_later() {
    // The arena is filled with its pattern by the first launch; the run's scan is the second.
    let Some(text) = told("copy", &[("FAKE_CUDA_FAIL_LAUNCH", "2")]) else { return };
    assert!(text.contains("failed: the cuda device failed: cuLaunchKernel failed: 700"), "{text}");
    assert!(text.contains("for good: the card stopped after an earlier error"), "{text}");
}

#[test]
fn memory_that_others_take_later_is_not_missed() {
    let Some(text) = told("later", &[]) else { return };
    assert!(text.contains("same bytes"), "{text}");
}

#[test]
fn one_card_serves_line_after_line() {
    let Some(text) = told("lines", &[]) else { return };
    assert!(text.contains("all lines"), "{text}");
}

#[test]
fn other_drivers_and_cards_are_refused_by_name() {
    for (environment, expected) in [
        ([("FAKE_CUDA_VERSION", "11080")], "speaks CUDA 11.8, and 12.0 is needed"),
        ([("FAKE_CUDA_COUNT", "0")], "there is no CUDA device 0: this machine has 0"),
        ([("FAKE_CUDA_MAJOR", "7")], "Fake Card has compute capability 7.0"),
    ] {
        let Some(text) = told("open", &environment) else { return };
        assert!(text.contains("refused: ") && text.contains(expected), "{text}");
    }
    let Some(text) = told("open", &[]) else { return };
    assert!(text.contains("opened Fake Card"), "{text}");
}
