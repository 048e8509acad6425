//! The programs of a measurement, on the CPU device: they run, and their figures are those of a machine.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use plimsoll_device::cpu::{CpuDevice, bound_workspace_bytes};
use plimsoll_device_cuda::measure::{Bench, Effort, arena_bytes};

fn small() -> Effort {
    Effort {
        rows: vec![1, 16, 64],
        n: 256,
        k: 128,
        tokens: 64,
        heads: 2,
        head_dim: 64,
        side: 8,
        channels: 16,
        copy_bytes: [4 << 10, 256 << 10],
        seconds: 0.005,
        sustained_seconds: 0.01,
    }
}

#[test]
fn every_figure_of_a_small_measurement_is_one() {
    let effort = small();
    let source: Vec<u8> = (0..256 << 10).map(|index: u32| (index % 61) as u8).collect();
    let mut device = CpuDevice::new(arena_bytes(&effort, &bound_workspace_bytes), 1).unwrap();
    let mut bench = Bench::new(&mut device, &bound_workspace_bytes, &source, &effort).unwrap();
    let rates = bench.rates().unwrap();
    println!("{rates:?}");
    assert_eq!(rates.gemm.iter().map(|rate| rate.rows).collect::<Vec<_>>(), effort.rows);
    let figures = rates.gemm.iter().map(|rate| rate.flops_per_second);
    let figures: Vec<f64> = figures
        .chain([
            rates.attention_flops_per_second,
            bench.conv_flops_per_second().unwrap(),
            bench.memory_bytes_per_second().unwrap(),
        ])
        .collect();
    println!("{figures:?}");
    // One core of any machine: between a hundred million and ten million million a second.
    assert!(figures.iter().all(|figure| (1e8..1e13).contains(figure)), "{figures:?}");
    let launch = bench.launch_seconds().unwrap();
    assert!((1e-8..1e-2).contains(&launch), "{launch}");
    let link = bench.link().unwrap();
    println!("{link:?}, launch {launch:.2e}");
    assert!((1e7..1e12).contains(&link.bytes_per_second) && link.copy_seconds > 0.0, "{link:?}");
    let share = bench.copy_share(link).unwrap();
    assert!((0.0..=0.2).contains(&share), "{share}");
}

#[test]
fn a_source_that_is_too_small_is_refused_or_served_but_never_read_past_its_end() {
    let effort = small();
    let mut device = CpuDevice::new(arena_bytes(&effort, &bound_workspace_bytes), 1).unwrap();
    let source = [0_u8; 64];
    assert!(Bench::new(&mut device, &bound_workspace_bytes, &source, &effort).is_ok());
    let mut less = CpuDevice::new(4096, 1).unwrap();
    assert!(Bench::new(&mut less, &bound_workspace_bytes, &source, &effort).is_err());
}
