//! Where a weight lives never changes what is computed.

#![expect(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod support;

use plimsoll_device::Control;
use plimsoll_device::cpu::CpuMachine;
use plimsoll_graph::DType;
use plimsoll_models::FluxRun;
use plimsoll_pipeline::{Generated, PipelineError, PlaceRequest, Placed, Target, Tiling};
use plimsoll_plan::{Line, Offload, PlanError};
use support::{demo, demo_run, prompt};

/// Small enough that the whole matrix takes seconds.
fn small(samples: u32) -> FluxRun {
    FluxRun { width: 64, height: 48, ..demo_run(3, samples, DType::BF16) }
}

fn place(request: PlaceRequest, workers: usize) -> Result<Placed, PipelineError> {
    let machine = CpuMachine::default_rates(workers);
    demo().place(request, &machine, Target::Cpu { workers }).map_err(|failure| failure.error)
}

fn generate(placed: &mut Placed, workers: usize, seed: u64) -> Generated {
    let machine = CpuMachine::default_rates(workers);
    let prompt = prompt("ice cream, 3d rendered emoji", seed);
    let generated =
        placed.generate(&machine, &prompt, &Control::default(), false, &mut |_| ()).unwrap();
    let (plan, report) = (placed.plan(), &generated.report);
    assert!(plan.predicted.vram_peak_bytes <= plan.line_bytes);
    assert_eq!(report.stats.high_water_bytes, plan.predicted.vram_peak_bytes, "peak");
    assert_eq!(report.copied_bytes_per_step, plan.predicted.copied_bytes_per_step, "copied a step");
    assert_eq!(report.stats.copied_bytes, plan.predicted.copied_bytes, "copied in all");
    generated
}

/// The smallest line of a strategy.
fn smallest(run: FluxRun, offload: Offload, prefetch: bool, workers: usize) -> u64 {
    let machine = CpuMachine::default_rates(workers);
    let request =
        PlaceRequest { run, line: Line::Min, offload, prefetch, saves: false, tiling: Tiling::Off };
    demo().plan(&request, &machine).unwrap().plan.line_bytes
}

#[test]
fn every_mode_line_prefetch_and_thread_count() {
    let run = small(1);
    let modes = [
        Offload::Auto,
        Offload::None,
        Offload::Model,
        Offload::Sequential,
        Offload::Group { blocks: 1 },
        Offload::Group { blocks: 3 },
    ];
    let mut digests = Vec::new();
    for offload in modes {
        for prefetch in [true, false] {
            for workers in [1, 2] {
                let min = smallest(run, offload, prefetch, workers);
                let max = smallest(run, Offload::None, prefetch, workers);
                let between = [1, 2, 3].map(|part| min + (max.max(min) - min) * part / 4);
                let lines = [Line::Min, Line::Max]
                    .into_iter()
                    .chain(between.map(|bytes| Line::Bytes(bytes.next_multiple_of(256))));
                for line in lines {
                    let request = PlaceRequest {
                        run,
                        line,
                        offload,
                        prefetch,
                        saves: false,
                        tiling: Tiling::Off,
                    };
                    let mut placed = place(request, workers).unwrap();
                    let generated = generate(&mut placed, workers, 0);
                    let picture = generated.pictures[0].sha256();
                    digests.push((generated.latent_sha256[0].clone(), picture));
                }
            }
        }
    }
    assert_eq!(digests.len(), 6 * 2 * 2 * 5);
    let first = &digests[0];
    let others = digests.iter().filter(|digest| *digest != first).count();
    assert_eq!(others, 0, "of {} runs {others} have other bits", digests.len());
}

#[test]
fn hoisting_changes_no_bit() {
    let [with, without] = [true, false].map(|hoist| {
        let run = FluxRun { hoist, ..small(1) };
        let request = PlaceRequest {
            run,
            line: Line::Min,
            offload: Offload::Auto,
            prefetch: true,
            saves: false,
            tiling: Tiling::Off,
        };
        let mut placed = place(request, 2).unwrap();
        let generated = generate(&mut placed, 2, 5);
        (generated.latent_sha256, generated.report.copied_bytes_per_step)
    });
    assert_eq!(with.0, without.0);
    assert!(with.1 < without.1, "{} bytes a step with hoisting, {} without", with.1, without.1);
}

#[test]
fn pictures_made_together_equal_their_single_runs() {
    for line in [Line::Max, Line::Min] {
        let request = |samples| PlaceRequest {
            run: small(samples),
            line,
            offload: Offload::Auto,
            prefetch: true,
            saves: false,
            tiling: Tiling::Off,
        };
        let mut pair = place(request(2), 2).unwrap();
        let together = generate(&mut pair, 2, 7);
        let mut single = place(request(1), 2).unwrap();
        for (at, seed) in [7, 8].into_iter().enumerate() {
            let alone = generate(&mut single, 2, seed);
            assert_eq!(together.latent_sha256[at], alone.latent_sha256[0], "seed {seed}");
            assert_eq!(together.pictures[at], alone.pictures[0], "seed {seed}");
        }
        assert_ne!(together.latent_sha256[0], together.latent_sha256[1]);
    }
}

#[test]
fn a_line_below_the_smallest_is_infeasible_and_names_it() {
    for offload in [Offload::Auto, Offload::Model, Offload::Group { blocks: 2 }] {
        let min = smallest(small(1), offload, true, 1);
        let at = |bytes| PlaceRequest {
            run: small(1),
            line: Line::Bytes(bytes),
            offload,
            prefetch: true,
            saves: false,
            tiling: Tiling::Off,
        };
        assert!(place(at(min), 1).is_ok());
        match place(at(min - 256), 1) {
            Err(PipelineError::Plan(PlanError::Infeasible { smallest_bytes, .. })) => {
                assert_eq!(smallest_bytes, min);
            }
            other => panic!("expected Infeasible, found {other:?}"),
        }
    }
}

#[test]
fn a_placement_can_be_used_again_and_released() {
    let request = PlaceRequest {
        run: small(1),
        line: Line::Min,
        offload: Offload::Auto,
        prefetch: true,
        saves: false,
        tiling: Tiling::Off,
    };
    let mut placed = place(request, 1).unwrap();
    let first = generate(&mut placed, 1, 3);
    let other = generate(&mut placed, 1, 4);
    let again = generate(&mut placed, 1, 3);
    assert_eq!(first.latent_sha256, again.latent_sha256);
    assert_ne!(first.latent_sha256, other.latent_sha256);
    let assembled = placed.release();
    let machine = CpuMachine::default_rates(1);
    let request = PlaceRequest { line: Line::Max, ..request };
    let mut placed = assembled.place(request, &machine, Target::Cpu { workers: 1 }).unwrap();
    assert_eq!(generate(&mut placed, 1, 3).latent_sha256, first.latent_sha256);
}
