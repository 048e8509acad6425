//! A run from the disk leaves RAM alone: neither pages of the weight files nor more than its windows.
//!
//! A test binary of its own: what the system says is of the whole process.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use plimsoll_device::Control;
use plimsoll_device::cpu::CpuMachine;
use plimsoll_graph::DType;
use plimsoll_pipeline::{HostLimits, HostTier, PlaceRequest, Target, Tiling};
use plimsoll_plan::{Line, Offload};
use support::{demo, demo_run, prompt};

/// Bytes of this process in RAM: anonymous, of files.
fn resident() -> [u64; 2] {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    ["RssAnon:", "RssFile:"].map(|name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() * 1024
    })
}

/// How much more of each there was during a run than after placing, and the arena's bytes.
fn run(tier: HostTier) -> ([u64; 2], u64) {
    let mut assembled = demo();
    assembled.limit_host(HostLimits { tier, ram_bytes: None, shares_ram: true });
    let run = demo_run(4, 1, DType::BF16);
    let request = PlaceRequest {
        run,
        line: Line::Min,
        offload: Offload::Auto,
        prefetch: true,
        saves: false,
        tiling: Tiling::Off,
    };
    let machine = CpuMachine::default_rates(2);
    let mut placed = assembled.place(request, &machine, Target::Cpu { workers: 2 }).unwrap();
    let (before, is_done) = (resident(), AtomicBool::new(false));
    let most = before.map(AtomicU64::new);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::SeqCst) {
                for (most, now) in most.iter().zip(resident()) {
                    most.fetch_max(now, Ordering::SeqCst);
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let prompt = prompt("ice cream, 3d rendered emoji", 0);
        placed.generate(&machine, &prompt, &Control::default(), false, &mut |_| ()).unwrap();
        is_done.store(true, Ordering::SeqCst);
    });
    let most = most.map(AtomicU64::into_inner);
    ([most[0] - before[0], most[1] - before[1]], placed.plan().arena_bytes)
}

#[test]
fn a_run_from_the_disk_takes_its_windows_and_no_more() {
    const MIB: u64 = 1 << 20;
    // A first run sets up what all share: threads, code pages.
    run(HostTier::Mapped);
    let (mapped, arena_bytes) = run(HostTier::Mapped);
    let (disk, _) = run(HostTier::Disk);
    println!("anonymous and of files: {mapped:?} mapped, {disk:?} from the disk");
    assert!(mapped[1] > 20 * MIB, "the weights are in the page cache's pages");
    // Embedding tables are looked up by row, wherever the weights come from.
    assert!(disk[1] < 4 * MIB, "{} bytes of files", disk[1]);
    // Eight windows of 2 MiB, and a page each.
    assert!(disk[0] <= mapped[0].max(arena_bytes) + 18 * MIB, "{} anonymous bytes", disk[0]);
}
