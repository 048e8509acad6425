//! The disk tier: where RAM cannot hold what is streamed, it comes from the disk, with the same bits.

#![expect(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod support;

use std::path::Path;

use plimsoll_device::Control;
use plimsoll_device::cpu::CpuMachine;
use plimsoll_graph::DType;
use plimsoll_models::FluxRun;
use plimsoll_pipeline::{
    Assembled, HostLimits, HostTier, Kind, PlaceRequest, Placed, Target, Tiling,
};
use plimsoll_plan::{Line, Offload};
use support::{demo, demo_run, prompt, repository};

const PROMPT: &str = "ice cream, 3d rendered emoji";

fn machine() -> CpuMachine {
    CpuMachine::default_rates(2)
}

fn request(line: Line) -> PlaceRequest {
    let run = FluxRun { width: 64, height: 48, ..demo_run(4, 1, DType::BF16) };
    PlaceRequest {
        run,
        line,
        offload: Offload::Auto,
        prefetch: true,
        saves: false,
        tiling: Tiling::Off,
    }
}

fn placed(mut assembled: Assembled, limits: HostLimits, request: PlaceRequest) -> Placed {
    assembled.limit_host(limits);
    assembled.place(request, &machine(), Target::Cpu { workers: 2 }).unwrap()
}

/// Hashes of latent and picture, and what was told.
fn generate(placed: &mut Placed) -> ([String; 2], Vec<String>) {
    let control = Control::default();
    let made =
        placed.generate(&machine(), &prompt(PROMPT, 0), &control, false, &mut |_| ()).unwrap();
    let (plan, report) = (placed.plan(), &made.report);
    assert_eq!(report.stats.high_water_bytes, plan.predicted.vram_peak_bytes, "peak");
    assert_eq!(report.stats.copied_bytes, plan.predicted.copied_bytes, "copied");
    ([made.latent_sha256[0].clone(), made.pictures[0].sha256()], made.notices)
}

fn limits(tier: HostTier, ram_bytes: Option<u64>) -> HostLimits {
    HostLimits { tier, ram_bytes, shares_ram: true }
}

#[test]
fn the_same_bits_come_from_the_disk() {
    let mut mapped = placed(demo(), limits(HostTier::Mapped, Some(1)), request(Line::Max));
    assert!(mapped.disk().is_none(), "it was said that RAM holds all");
    let (expected, told) = generate(&mut mapped);
    assert!(told.is_empty(), "{told:?}");
    for line in [Line::Min, Line::Max] {
        let mut all = placed(demo(), limits(HostTier::Disk, None), request(line));
        let share = all.disk().unwrap();
        assert_eq!(share.disk_bytes(), share.streamed_bytes, "RAM keeps none");
        let (bits, told) = generate(&mut all);
        assert_eq!(bits, expected, "{line:?}");
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("come from the disk at"), "{told:?}");
        let (bits, told) = generate(&mut all);
        assert_eq!((bits, told), (expected.clone(), Vec::new()), "told once");
    }
    let streamed = {
        let all = placed(demo(), limits(HostTier::Disk, None), request(Line::Min));
        all.disk().unwrap().streamed_bytes
    };
    assert!(streamed > 10_000_000, "{streamed}");
    for part in [1, 3, 7] {
        let ram_bytes = streamed * part / 8;
        let stated = limits(HostTier::Auto, Some(ram_bytes));
        let mut some = placed(demo(), stated, request(Line::Min));
        assert_eq!(some.disk().unwrap().disk_bytes(), streamed - ram_bytes);
        assert_eq!(generate(&mut some).0, expected, "{part} eighths in RAM");
    }
    let enough = limits(HostTier::Auto, Some(streamed));
    assert!(placed(demo(), enough, request(Line::Min)).disk().is_none());
}

#[test]
fn the_plan_is_made_for_the_disks_rate() {
    let seconds = |limits| {
        let mut assembled = demo();
        assembled.limit_host(limits);
        let planned = assembled.plan(&request(Line::Min), &machine()).unwrap();
        (planned.plan.predicted.seconds_per_step, planned.disk)
    };
    let (in_ram, none) = seconds(limits(HostTier::Mapped, None));
    let (from_disk, share) = seconds(limits(HostTier::Disk, None));
    let share = share.unwrap();
    assert!(none.is_none() && share.bytes_per_second > 0.0);
    let floor = share.streamed_bytes as f64 / share.bytes_per_second;
    println!(
        "{in_ram:.4} s a step in RAM, {from_disk:.4} from the disk, whose floor is {floor:.4}"
    );
    assert!(from_disk >= floor.max(in_ram) * 0.95);
}

#[test]
fn what_is_built_into_the_program_is_on_no_disk() {
    let name = "transformer/diffusion_pytorch_model.safetensors";
    let names = std::fs::read_dir(repository("demo/model")).unwrap().flat_map(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            std::fs::read_dir(path).unwrap().map(|file| file.unwrap().path()).collect()
        } else {
            vec![path]
        }
    });
    let files: Vec<(&'static str, &'static [u8])> = names
        .map(|path| {
            let relative = path.strip_prefix(repository("demo/model")).unwrap();
            let relative: &'static str = relative.to_str().unwrap().to_owned().leak();
            (relative, &*std::fs::read(&path).unwrap().leak())
        })
        .collect();
    assert!(files.iter().any(|(file, _)| *file == name));
    let embedded = Assembled::open_embedded(&files).unwrap();
    let mut placed = placed(embedded, limits(HostTier::Disk, None), request(Line::Min));
    assert!(placed.disk().is_none());
    generate(&mut placed);
}

#[test]
fn a_file_that_shrinks_during_a_run_from_the_disk_is_named() {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&repository("demo/model"), folder.path());
    let file = folder.path().join("transformer/diffusion_pytorch_model.safetensors");
    let assembled = Assembled::open_folder(folder.path()).unwrap();
    let mut placed = placed(assembled, limits(HostTier::Disk, None), request(Line::Min));
    let mut visits = 0;
    let made =
        placed.generate(&machine(), &prompt(PROMPT, 0), &Control::default(), false, &mut |_| {
            visits += 1;
            if visits == 3 {
                std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(4096).unwrap();
            }
        });
    let error = made.unwrap_err();
    assert_eq!(error.kind(), Kind::File, "{error}");
    let text = error.to_string();
    assert!(text.contains("diffusion_pytorch_model.safetensors: the file had"), "{text}");
    // Nor does another run begin.
    let again =
        placed.generate(&machine(), &prompt(PROMPT, 0), &Control::default(), false, &mut |_| {
            panic!("it was begun")
        });
    assert_eq!(again.unwrap_err().kind(), Kind::File);
}

#[test]
fn a_cancelled_run_from_the_disk_runs_again() {
    let mut placed = placed(demo(), limits(HostTier::Disk, None), request(Line::Min));
    let (expected, _) = generate(&mut placed);
    for visits in [1, 5, 20] {
        let control = Control::default();
        let mut seen = 0;
        let made = placed.generate(&machine(), &prompt(PROMPT, 0), &control, false, &mut |_| {
            seen += 1;
            if seen == visits {
                control.cancel();
            }
        });
        assert_eq!(made.unwrap_err().kind(), Kind::Cancelled);
        assert_eq!(generate(&mut placed).0, expected);
    }
}

fn copy_folder(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            std::fs::create_dir(&target).unwrap();
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
