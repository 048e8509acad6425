//! Decoding in tiles: what it saves, what it changes, and that nothing else changes it.

#![expect(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod support;

use plimsoll_device::Control;
use plimsoll_device::cpu::CpuMachine;
use plimsoll_graph::DType;
use plimsoll_models::FluxRun;
use plimsoll_pipeline::{Generated, Kind, PipelineError, PlaceRequest, Target, Tiling};
use plimsoll_plan::{Advice, Line, Offload, Plan, PlanError};
use support::{demo, demo_run, prompt};

fn request(tiling: Tiling, line: Line, offload: Offload, samples: u32) -> PlaceRequest {
    let run = FluxRun { width: 256, height: 192, ..demo_run(2, samples, DType::BF16) };
    PlaceRequest { run, line, offload, prefetch: true, saves: false, tiling }
}

fn run(request: PlaceRequest) -> (Plan, Generated) {
    let machine = CpuMachine::default_rates(2);
    let mut placed = demo().place(request, &machine, Target::Cpu { workers: 2 }).unwrap();
    let prompt = prompt("ice cream, 3d rendered emoji", 0);
    let control = Control::default();
    let made = placed.generate(&machine, &prompt, &control, false, &mut |_| ()).unwrap();
    let plan = placed.plan().clone();
    assert_eq!(made.report.stats.high_water_bytes, plan.predicted.vram_peak_bytes);
    assert_eq!(made.report.stats.copied_bytes, plan.predicted.copied_bytes);
    (plan, made)
}

#[test]
fn a_picture_no_larger_than_a_tile_is_decoded_whole() {
    let (whole, one) = run(request(Tiling::Off, Line::Max, Offload::Auto, 1));
    let (tiled, other) = run(request(Tiling::Edge(256), Line::Max, Offload::Auto, 1));
    assert_eq!((whole.decode_tile, tiled.decode_tile), (None, None));
    assert_eq!(whole.id, tiled.id);
    assert_eq!(one.pictures, other.pictures);
}

#[test]
fn one_tiling_is_one_picture_at_every_line_and_in_every_mode() {
    let tiling = Tiling::Edge(96);
    let (plan, first) = run(request(tiling, Line::Max, Offload::Auto, 1));
    assert_eq!(plan.decode_tile, Some(96));
    for (line, offload) in [
        (Line::Min, Offload::Auto),
        (Line::Bytes(14 << 20), Offload::Auto),
        (Line::Min, Offload::Sequential),
        (Line::Min, Offload::Model),
        (Line::Max, Offload::Group { blocks: 2 }),
    ] {
        let (other, made) = run(request(tiling, line, offload, 1));
        assert_eq!(other.decode_tile, Some(96));
        assert_eq!(made.latent_sha256, first.latent_sha256);
        assert_eq!(made.pictures, first.pictures, "{line:?} {offload:?}");
    }
    let (_, pair) = run(request(tiling, Line::Min, Offload::Auto, 2));
    assert_eq!(pair.pictures[0], first.pictures[0], "one of two has the bits of its single run");
}

/// 8-bit pictures: their root mean square and greatest difference.
fn difference(one: &Generated, other: &Generated) -> (f64, u8) {
    let (one, other) = (one.pictures[0].rgb(), other.pictures[0].rgb());
    let squares: f64 = one.iter().zip(other).map(|(a, b)| f64::from(a.abs_diff(*b)).powi(2)).sum();
    let greatest = one.iter().zip(other).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
    ((squares / one.len() as f64).sqrt(), greatest)
}

#[test]
fn tiles_lower_the_peak_and_change_the_picture_a_little() {
    let (whole, picture) = run(request(Tiling::Off, Line::Min, Offload::Auto, 1));
    let mut peak = whole.predicted.vram_peak_bytes;
    println!("whole: peak {peak} bytes");
    for edge in [192, 128, 96, 64] {
        let (plan, tiled) = run(request(Tiling::Edge(edge), Line::Min, Offload::Auto, 1));
        let bytes = plan.predicted.vram_peak_bytes;
        let (rms, greatest) = difference(&picture, &tiled);
        println!("tiles of {edge}: peak {bytes} bytes, rms {rms:.2}, greatest {greatest} of 255");
        assert!(bytes <= peak, "{bytes} bytes in tiles of {edge}, {peak} in larger ones");
        assert_eq!(tiled.latent_sha256, picture.latent_sha256);
        assert!(rms > 0.0 && rms < 12.0, "{rms} in tiles of {edge}");
        peak = bytes;
    }
    assert!(peak * 10 < whole.predicted.vram_peak_bytes * 9, "{peak} bytes in the smallest tiles");
}

#[test]
fn auto_is_whole_where_that_fits_else_the_largest_tile_that_is_not_wasteful() {
    let machine = CpuMachine::default_rates(2);
    let plan = |tiling, line| {
        demo().plan(&request(tiling, line, Offload::Auto, 1), &machine).map(|it| it.plan)
    };
    let smallest = |tiling| plan(tiling, Line::Min).unwrap().line_bytes;
    let whole = smallest(Tiling::Off);
    let at_whole = plan(Tiling::Auto, Line::Bytes(whole)).unwrap();
    assert_eq!(at_whole.decode_tile, None);
    assert_eq!(at_whole.id, plan(Tiling::Off, Line::Bytes(whole)).unwrap().id);

    let line = Line::Bytes(whole - 256);
    let below = plan(Tiling::Auto, line).unwrap();
    let edge = below.decode_tile.unwrap();
    assert!(edge.is_multiple_of(16) && edge < 256);
    assert!(smallest(Tiling::Edge(edge)) <= whole - 256);
    // A larger one does not fit, or two a side would be more than twice the picture.
    let is_wasteful = (2 * (edge + 16)).pow(2) > 2 * 256 * 256;
    assert!(is_wasteful || smallest(Tiling::Edge(edge + 16)) > whole - 256, "{edge}");
    // Off says which tile would do; a line below all tiles is refused with the smallest that works.
    match plan(Tiling::Off, line) {
        Err(error @ PipelineError::Plan(PlanError::Infeasible { .. })) => {
            assert_eq!(error.kind(), Kind::Infeasible);
            assert!(error.to_string().contains(&format!("it fits with --vae-tile {edge}")));
        }
        other => panic!("{other:?}"),
    }
    let least = smallest(Tiling::Edge(64));
    match plan(Tiling::Auto, Line::Bytes(least - 256)) {
        Err(PipelineError::Plan(PlanError::Infeasible { smallest_bytes, advice, .. })) => {
            assert_eq!(smallest_bytes, least);
            assert!(!matches!(advice, Advice::DecodeTile { .. }));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn sides_that_make_no_sense_are_refused_with_the_nearest() {
    let machine = CpuMachine::default_rates(2);
    for (edge, nearest) in [(100, 96), (120, 128), (0, 64), (48, 64), (u64::MAX, 16_384)] {
        let asked = request(Tiling::Edge(edge), Line::Max, Offload::Auto, 1);
        let error = demo().plan(&asked, &machine).unwrap_err();
        assert_eq!(error.kind(), Kind::Usage);
        assert!(error.to_string().contains(&format!("{nearest} is the nearest")), "{error}");
    }
}
