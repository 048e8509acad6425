//! CPU device: reference arithmetic, and the default where there is no GPU.
//!
//! Its "VRAM" is an arena of exactly the size asked for. Weights are stored as the plan says (`f32` or `bf16`),
//! activations too; every sum is taken in `f32` or wider and a `bf16` result is rounded once, at the store.
//!
//! - Same bits for any number of workers: work is cut by shape alone, and each element is computed by one task
//!   in a fixed order (`parallel`).
//! - Rule of rows: a row's bits never depend on the rows beside it (`gemm`).
//! - Same bits on every x86-64 with FMA and every AArch64: no library function, no sum by vector width.
//! - No heap memory between the first command and the last, the GEMM's own included: packed operands,
//!   conversions, the band of a convolution and the blocks of attention are planned scratch ([`CpuMachine`]
//!   says how much).
//! - `unsafe` is in `arena.rs` and `gemm.rs` only.

mod arena;
mod attention;
mod bell;
mod calibrate;
mod check;
mod conv;
mod convert;
mod copy;
mod elementwise;
mod epilogue;
mod execute;
mod gemm;
mod group_norm;
mod lanes;
mod linear;
mod lookup;
mod machine;
mod math;
mod norm;
mod parallel;
mod rates;
mod signature;
mod simd;
mod team;
mod tiles;
mod transpose;
mod workspace;

pub use check::{Limits, check_program};
pub use copy::cast;
pub use lookup::gather_rows;
pub use machine::{CpuMachine, bound_workspace_bytes};
pub use rates::Rates;

use crate::{Control, Device, DeviceError, Meter, Program, Queue, Reading, RunStats};
use arena::Arena;

/// Matrices lie in the arena as the host's files have them.
const _: () = assert!(cfg!(target_endian = "little"), "the CPU device needs a little-endian host");

/// A device made of an arena in host memory and worker threads.
///
/// Memory: the arena, the stacks of the workers and of two lane threads while a program runs, and what the program's counters
/// and traces need.
pub struct CpuDevice {
    arena: Arena,
    pool: rayon::ThreadPool,
}

impl CpuDevice {
    /// Takes an arena of exactly `arena_bytes`, filled with a pattern, and starts `workers` threads (at least 1).
    ///
    /// # Errors
    /// [`DeviceError::Arena`] if the memory cannot be had, [`DeviceError::Unsupported`] if the threads cannot.
    pub fn new(arena_bytes: u64, workers: usize) -> Result<Self, DeviceError> {
        let arena = Arena::new(arena_bytes)?;
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(workers.max(1))
            .thread_name(|index| format!("plimsoll-{index}"))
            .build()
            .map_err(|error| {
                let cause = std::error::Error::source(&error);
                DeviceError::no_thread("cpu", cause.unwrap_or(&error))
            })?;
        wake(&pool);
        Ok(Self { arena, pool })
    }

    /// Fills the arena with its pattern again: what was touched before no longer counts in
    /// [`RunStats::high_water_bytes`].
    pub fn reset_pattern(&mut self) {
        self.arena.reset_pattern();
    }

    /// One past the highest byte touched since the arena was filled, rounded up to 256.
    pub fn high_water_bytes(&mut self) -> u64 {
        self.arena.high_water_bytes()
    }

    /// Worker threads.
    pub fn workers(&self) -> usize {
        self.pool.current_num_threads()
    }
}

/// Reads what the arenas of this process hold: the CPU device's "VRAM".
///
/// A count that arenas keep as they are taken and given back, apart from every plan.
#[derive(Clone, Copy, Debug, Default)]
pub struct ArenaMeter;

impl Meter for ArenaMeter {
    fn read(&self) -> Reading {
        Reading { process_bytes: Some(arena::held_bytes()), device_bytes: None }
    }
}

/// Makes every worker carry out a task that another handed over, so that what the pool sets up at a thread's
/// first theft is there before a run begins.
fn wake(pool: &rayon::ThreadPool) {
    fn meet(workers: usize, all: &std::sync::Barrier) {
        if workers > 1 {
            rayon::join(|| meet(workers / 2, all), || meet(workers - workers / 2, all));
        } else {
            all.wait();
        }
    }
    let workers = pool.current_num_threads();
    let all = std::sync::Barrier::new(workers);
    pool.install(|| meet(workers, &all));
}

impl Device for CpuDevice {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn arena_bytes(&self) -> u64 {
        self.arena.bytes()
    }

    fn retake(&mut self, arena_bytes: u64) -> Result<(), DeviceError> {
        // The old one first: both together may be more than there is.
        self.arena = Arena::new(0)?;
        self.arena = Arena::new(arena_bytes)?;
        Ok(())
    }

    fn run(
        &mut self,
        program: &Program<'_>,
        control: &Control,
        drive: &mut dyn FnMut(&dyn Queue) -> Result<(), DeviceError>,
    ) -> Result<RunStats, DeviceError> {
        check::program(program, self.arena.bytes())?;
        let run = lanes::Run::new(self.arena.space(), program, control)?;
        run.go(&self.pool, drive)?;
        let mut stats = run.stats();
        stats.high_water_bytes = self.arena.high_water_bytes();
        Ok(stats)
    }
}
