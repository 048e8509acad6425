//! Part (a): the driver is found, a context starts, one plain allocation is the arena, one own cubin runs and is right.

use std::time::Instant;

use cudarc::driver::sys::{CUdevice_attribute as Attribute, CUlimit};

use crate::error::{Result, driver};
use crate::gpu::{Arena, Argument, Gpu, Kernels, Stream, median, mib, read_words};
use crate::library;
use crate::process::Meter;

const COUNT: u64 = 1 << 20;
const SEED: u64 = 3;
const CHAIN: u32 = 1000;

/// Runs the part and prints its lines.
pub(crate) fn run() -> Result<()> {
    let meter = Meter::open();
    let begin = Instant::now();
    let gpu = Gpu::start()?;
    let started = begin.elapsed().as_secs_f64();
    let (major, minor) = (
        gpu.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        gpu.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    println!(
        "{}, sm_{major}{minor}, {} multiprocessors, driver {} (CUDA {}), context in {started:.2} s, libcuda {}",
        gpu.name()?,
        gpu.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        meter.driver().unwrap_or_default(),
        gpu.driver_version()?,
        library::mapped_paths("cuda")
    );
    for limit in [
        CUlimit::CU_LIMIT_STACK_SIZE,
        CUlimit::CU_LIMIT_PRINTF_FIFO_SIZE,
        CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE,
    ] {
        let mut bytes = 0;
        driver!(cuCtxGetLimit(&mut bytes, limit))?;
        println!("{limit:?} = {bytes}");
    }
    let (before, begin) = (gpu.used_bytes()?, Instant::now());
    let mut arena = Arena::new((8 << 30) + 256)?;
    println!(
        "arena of 8 GiB + 256 B: {:.2} MiB over what was asked, in {:.1} ms",
        mib(gpu.used_bytes()? - before) - 8192.0,
        begin.elapsed().as_secs_f64() * 1e3
    );
    let begin = Instant::now();
    let kernels = Kernels::load()?;
    println!("cubin loaded in {:.1} ms", begin.elapsed().as_secs_f64() * 1e3);
    let stream = Stream::new()?;
    let target = arena.take(COUNT * 4)?;
    let arguments =
        [Argument::Word(target), Argument::Word(COUNT), Argument::Word(SEED), Argument::Float(0.5)];
    kernels.launch("fill_scale", (256, 256, 0), &arguments, stream)?;
    stream.synchronize()?;
    let wrong = read_words(target, COUNT as usize / 2)?
        .into_iter()
        .zip(0_u64..)
        .filter(|&(word, pair)| word != expected(pair))
        .count();
    println!(
        "own kernel: {wrong} of {} words differ from the same arithmetic on the host",
        COUNT / 2
    );
    println!(
        "a chain of {CHAIN} kernels of one thread in a graph: {:.2} us a node",
        chain(&kernels, &mut arena, stream)?
    );
    Ok(())
}

/// Microseconds that a node of a graph costs where its kernel does next to nothing.
fn chain(kernels: &Kernels, arena: &mut Arena, stream: Stream) -> Result<f64> {
    let (times, cursor) = (arena.take(8)?, arena.take(8)?);
    let arguments = [times, cursor, 1].map(Argument::Word);
    let graph = stream.capture(|| {
        (0..CHAIN).try_for_each(|_| kernels.launch("stamp", (1, 1, 0), &arguments, stream))
    })?;
    graph.launch(stream)?;
    let replays = (0..5).map(|_| stream.time_ms(|| graph.launch(stream)));
    Ok(median(replays.collect::<Result<_>>()?) * 1e3 / f64::from(CHAIN))
}

/// Two neighbouring values of `fill_scale`, computed on the host.
fn expected(pair: u64) -> u64 {
    let value = |index: u64| {
        let fraction = (mix(index ^ (SEED << 40)) & 0xff_ffff) as f32;
        // The device contracts the product and sum into one rounding; every step before it is exact or a power of two.
        u64::from((0.5 * (3.0 * fraction / 16_777_216.0 + 1.0)).to_bits())
    };
    value(2 * pair) | value(2 * pair + 1) << 32
}

/// splitmix64's finaliser, as in `smoke.cu`.
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
