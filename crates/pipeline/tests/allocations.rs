//! From the first copy to the last op nothing takes memory outside of the arena but the GEMM library.

#![expect(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use plimsoll_device::cpu::{CpuDevice, CpuMachine};
use plimsoll_device::{Control, Device, DeviceError, Program, Queue, RunStats};
use plimsoll_graph::DType;
use plimsoll_pipeline::{PlaceRequest, Tiling};
use plimsoll_plan::{Line, Offload};
use support::{demo, demo_run, prompt};

/// The GEMM library's scratch may be so much at one moment.
const SCRATCH_BYTES_MAX: u64 = 8 << 20;

static ARMED: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU64 = AtomicU64::new(0);
static LIVE: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: every call is passed on to the system's allocator with the arguments it came with; the counters
// allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if ARMED.load(Ordering::Relaxed) {
            COUNT.fetch_add(1, Ordering::Relaxed);
            let live = LIVE.fetch_add(layout.size() as u64, Ordering::Relaxed);
            PEAK.fetch_max(live + layout.size() as u64, Ordering::Relaxed);
        }
        // SAFETY: the caller's own promise about `layout`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if ARMED.load(Ordering::Relaxed) {
            let size = layout.size() as u64;
            // What was taken before counting began may be given back during it.
            let _previous = LIVE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |live| {
                Some(live.saturating_sub(size))
            });
        }
        // SAFETY: the caller's own promise about `pointer` and `layout`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Counts while commands are issued and carried out.
struct Counted(CpuDevice);

impl Device for Counted {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn arena_bytes(&self) -> u64 {
        self.0.arena_bytes()
    }

    fn retake(&mut self, arena_bytes: u64) -> Result<(), DeviceError> {
        self.0.retake(arena_bytes)
    }

    fn run(
        &mut self,
        program: &Program<'_>,
        control: &Control,
        drive: &mut dyn FnMut(&dyn Queue) -> Result<(), DeviceError>,
    ) -> Result<RunStats, DeviceError> {
        self.0.run(program, control, &mut |queue| {
            ARMED.store(true, Ordering::SeqCst);
            // `drive` comes back when the last visit is done.
            let result = drive(queue);
            ARMED.store(false, Ordering::SeqCst);
            result
        })
    }
}

#[test]
fn nothing_is_allocated_while_the_lanes_run() {
    for dtype in [DType::BF16, DType::F32] {
        for line in [Line::Min, Line::Max] {
            let machine = CpuMachine::default_rates(2);
            let request = PlaceRequest {
                run: demo_run(3, 1, dtype),
                line,
                offload: Offload::Auto,
                prefetch: true,
                saves: false,
                tiling: Tiling::Off,
            };
            let mut placed = demo()
                .place_on(request, &machine, |_, arena_bytes| {
                    Ok(Box::new(Counted(CpuDevice::new(arena_bytes, 2)?)))
                })
                .unwrap();
            let prompt = prompt("red apple, flat noto emoji", 1);
            COUNT.store(0, Ordering::SeqCst);
            LIVE.store(0, Ordering::SeqCst);
            PEAK.store(0, Ordering::SeqCst);
            let generated = placed
                .generate(&machine, &prompt, &Control::default(), false, &mut |_| ())
                .unwrap();
            assert_eq!(generated.pictures.len(), 1);
            let (count, peak) = (COUNT.load(Ordering::SeqCst), PEAK.load(Ordering::SeqCst));
            println!(
                "{} at {line:?}: {count} allocations by the GEMM library, at most {peak} bytes",
                dtype.name()
            );
            assert!(peak <= SCRATCH_BYTES_MAX, "{peak} bytes of scratch");
        }
    }
}
