//! Part (c): a step-shaped CUDA graph, 57 copies from a registered file and 57 products through a few slots.
//!
//! Variants of the ring and of the cut into graphs are replayed and compared with the bare link and with the products alone.
//! Beside them stand questions about the host's side: how long a launch call holds its thread, whether another thread can use the driver
//! meanwhile, and what a registration demands of the ranges it is given.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUdevice_attribute;

use crate::error::{Error, Result};
use crate::file::Mapping;
use crate::gpu::{Event, Gpu, Stream, median, mib};
use crate::lanes::{BLOCKS, Rig, Shape};
use crate::library::Libraries;

/// Where the file lies and how much of the part is asked for.
pub(crate) struct Options<'a> {
    /// The file, made and removed here.
    pub(crate) path: &'a Path,
    /// Its length in blocks.
    pub(crate) blocks: u64,
    /// Bytes of a block.
    pub(crate) block_bytes: u64,
    /// Only the plain variants.
    pub(crate) is_short: bool,
}

/// Runs the part.
pub(crate) fn run(libraries: &Libraries, options: &Options<'_>) -> Result<()> {
    let gpu = Gpu::start()?;
    libraries.blas_lt()?;
    let piece = (1_u64 << 30) / options.block_bytes * options.block_bytes;
    let mapping = prepare(&gpu, options, piece)?;
    let rig = Rig::new(mapping, options.block_bytes, 3)?;
    println!("{}", rig.setting());
    println!("bare link: {:.2} GB/s", rig.bare_link()?);
    println!("a copy over the boundary of two registrations: {}", rig.boundary(piece));
    let plain = Shape::PLAIN;
    let mut variants = vec![
        ("2 slots, fixed offsets, one graph", plain, 30),
        ("2 slots, moving offsets, two graphs in turn", Shape { fixed: false, ..plain }, 10),
        ("3 slots, fixed offsets (57 = 3 x 19)", Shape { slots: 3, ..plain }, 10),
    ];
    if !options.is_short {
        let four = Shape { products: 4, ..plain };
        variants.extend([
            ("2 slots, fixed offsets, no sums", Shape { checks: false, ..plain }, 10),
            ("2 slots, three graphs a step", Shape { graphs: 3, ..plain }, 10),
            ("2 slots, 19 graphs a step", Shape { graphs: 19, ..plain }, 10),
            ("2 slots, 8 copies a block", Shape { cuts: 8, ..plain }, 10),
            ("2 slots, 32 copies a block", Shape { cuts: 32, ..plain }, 10),
            ("products alone, one a block", Shape { copies: false, ..plain }, 10),
            ("products alone, four a block", Shape { copies: false, ..four }, 10),
            ("2 slots, four products a block", four, 10),
            ("3 slots, four products a block", Shape { slots: 3, ..four }, 10),
            ("2 slots, four products, `free` edges left out", Shape { waits: false, ..four }, 4),
        ]);
    }
    println!(
        "| variant | steps | nodes/edges | ms a step (min, median, max) | GB/s | gap us (median, max) | all steps ms | wrong blocks |\n|---|---|---|---|---|---|---|---|"
    );
    let mut launches = String::new();
    for (name, shape, steps) in variants {
        let (row, launch) = variant(&gpu, &rig, name, shape, steps)?;
        println!("{row}");
        launches += &launch;
    }
    let moving = Shape { fixed: false, ..plain };
    let (step_ms, host_us, wrong) = rig.without_graph(moving, 10)?;
    let rate = rig.step_bytes() / (step_ms * 1e6);
    println!(
        "| 2 slots, streams without a graph ({host_us:.0} us of host a step) | 10 | - | -, {step_ms:.2}, - | {rate:.2} | - | {:.1} | {wrong} of {} |",
        step_ms * 10.0,
        10 * BLOCKS
    );
    print!("{launches}");
    println!("unregistered in {:.3} s", rig.unregister(piece)?);
    if !options.is_short {
        ranges(options.path)?;
    }
    std::fs::remove_file(options.path).map_err(|source| Error::Io {
        what: format!("removing {}", options.path.display()),
        source,
    })
}

fn prepare(gpu: &Gpu, options: &Options<'_>, piece: u64) -> Result<Mapping> {
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED;
    let begin = Instant::now();
    Mapping::create(options.path, options.blocks * options.block_bytes, 16)?;
    let written = begin.elapsed().as_secs_f64();
    let begin = Instant::now();
    let mapping = Mapping::open(options.path)?;
    let populated = begin.elapsed().as_secs_f64();
    let before = gpu.used_bytes()?;
    let registered = mapping.register(piece)?;
    println!(
        "file {} of {:.0} MiB: written in {written:.2} s, populated in {populated:.3} s, registered in {registered:.3} s in pieces of {:.0} MiB (READ_ONLY attribute {}), {:.2} MiB of the device for it",
        options.path.display(),
        mib(mapping.bytes),
        mib(piece),
        gpu.attribute(attribute)?,
        mib(gpu.used_bytes()? - before)
    );
    Ok(mapping)
}

/// Replays one variant while a second thread uses the driver; returns its row, and a line about the launch calls.
fn variant(gpu: &Gpu, rig: &Rig, name: &str, shape: Shape, steps: u64) -> Result<(String, String)> {
    let is_done = AtomicBool::new(false);
    let (outcome, watched) = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(gpu, &is_done));
        let outcome = rig.replay(shape, steps);
        is_done.store(true, Ordering::Relaxed);
        let watched = watcher.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (outcome, watched)
    });
    let (outcome, (record_ms, info_ms)) = (outcome?, watched?);
    let least = outcome.step_ms.iter().copied().fold(f64::INFINITY, f64::min);
    let most = outcome.step_ms.iter().copied().fold(0.0, f64::max);
    let longest = outcome.gap_us.iter().copied().fold(0.0, f64::max);
    let rate = rig.step_bytes() / (outcome.total_ms / steps as f64 * 1e6);
    let copied = |text: String| if shape.copies { text } else { "-".into() };
    let mut row = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        row,
        "| {name} | {steps} | {}/{} | {least:.2}, {:.2}, {most:.2} | {} | {:.1}, {longest:.1} | {:.1} | {} |",
        outcome.nodes,
        outcome.edges,
        median(outcome.step_ms.clone()),
        copied(format!("{rate:.2}")),
        median(outcome.gap_us.clone()),
        outcome.total_ms,
        copied(format!("{} of {}", outcome.wrong, steps * BLOCKS))
    );
    let calls: Vec<String> =
        outcome.launch_ms.iter().take(12).map(|call| format!("{call:.1}")).collect();
    let launch = format!(
        "launch calls of {name}, ms: {}; meanwhile another thread's longest record and query {record_ms:.2} ms, cuMemGetInfo {info_ms:.2} ms\n",
        calls.join(" ")
    );
    Ok((row, launch))
}

/// Uses the driver every millisecond; returns the longest event record with query, and the longest `cuMemGetInfo`, in ms.
fn watch(gpu: &Gpu, is_done: &AtomicBool) -> Result<(f64, f64)> {
    gpu.enter()?;
    let (stream, event) = (Stream::new()?, Event::new()?);
    let (mut record_ms, mut info_ms) = (0.0_f64, 0.0_f64);
    while !is_done.load(Ordering::Relaxed) {
        let begin = Instant::now();
        event.record(stream)?;
        event.is_reached()?;
        record_ms = record_ms.max(begin.elapsed().as_secs_f64() * 1e3);
        let begin = Instant::now();
        gpu.used_bytes()?;
        info_ms = info_ms.max(begin.elapsed().as_secs_f64() * 1e3);
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok((record_ms, info_ms))
}

/// What a registration demands: page alignment, disjoint pages, nothing twice.
fn ranges(path: &Path) -> Result<()> {
    let mapping = Mapping::open(path)?;
    let page = 4096;
    let cases = [
        ("begins inside a page", 3 * page + 512, 4 * page),
        ("ends inside a page", 16 * page, 4 * page + 512),
        ("begins in the page where the last one ended", 20 * page + 512, 4 * page),
        ("lies inside the second", 17 * page, page),
        ("touches the second at a page boundary", 12 * page, 4 * page),
    ];
    let mut held = Vec::new();
    for (name, offset, length) in cases {
        match mapping.register_range(offset, length) {
            Ok(()) => {
                held.push(offset);
                println!("a registration that {name}: accepted");
            }
            Err(error) => println!("a registration that {name}: {error}"),
        }
    }
    held.into_iter().try_for_each(|offset| mapping.unregister_range(offset))
}
