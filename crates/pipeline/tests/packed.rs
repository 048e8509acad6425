//! Packed folders: other bytes in another order on disk, the same picture; and 8-bit matrices, which are the bf16
//! matrices that they unpack to.

#![expect(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use half::bf16;
use plimsoll_device::cpu::CpuMachine;
use plimsoll_device::sim::{SimCosts, SimDevice, SimFaults};
use plimsoll_device::{Control, Device, DeviceError, Program, Queue, RunStats};
use plimsoll_graph::DType;
use plimsoll_models::{FluxRun, flux};
use plimsoll_pipeline::{Assembled, PlaceRequest, Storage, Target, Tiling};
use plimsoll_plan::{Line, Offload};
use plimsoll_weights::{
    Header, NewTensor, PACK_KEY, SCALE_SUFFIX, WeightDType, f8_decode, write_safetensors,
};
use support::{demo, demo_run, prompt, repository};
use tempfile::TempDir;

const TRANSFORMER_FILE: &str = "transformer/diffusion_pytorch_model.safetensors";

/// The demo model's folder, with other weights for the components that `files` names.
fn folder(files: &dyn Fn(&Path)) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for part in std::fs::read_dir(repository("demo/model")).unwrap() {
        let part = part.unwrap();
        let target = folder.path().join(part.file_name());
        if part.path().is_dir() {
            std::fs::create_dir(&target).unwrap();
            for file in std::fs::read_dir(part.path()).unwrap() {
                let file = file.unwrap();
                std::fs::copy(file.path(), target.join(file.file_name())).unwrap();
            }
        } else {
            std::fs::copy(part.path(), target).unwrap();
        }
    }
    files(folder.path());
    folder
}

/// The demo model packed.
fn packed(transformer: Storage) -> TempDir {
    let demo = demo();
    let of = |component: &str| {
        if component == flux::TRANSFORMER { transformer } else { Storage::Kept }
    };
    let mut files = demo.packing(&of).unwrap();
    for file in &mut files {
        let is_narrowed = file.component == flux::TRANSFORMER && transformer == Storage::F8;
        assert_eq!(file.scale_bytes() > 0, is_narrowed, "{}", file.component);
        file.find_scales(2, &|_| true).unwrap();
    }
    let metadata = BTreeMap::from([(PACK_KEY.to_owned(), "{}".to_owned())]);
    folder(&|path| {
        for file in &files {
            let path = path.join(&file.component).join(file.name);
            let fill = |tensor: usize, at: u64, bytes: &mut [u8]| file.fill(tensor, at, bytes);
            write_safetensors(&path, &file.tensors, &metadata, 2, &fill, &|_| true).unwrap();
        }
    })
}

/// A packed transformer's file as an ordinary one in bf16: each matrix unpacked beforehand.
fn unpacked(narrow: &Path) -> TempDir {
    let bytes = std::fs::read(narrow.join(TRANSFORMER_FILE)).unwrap();
    let header = Header::of_bytes(&bytes).unwrap();
    let at = |name: &str| header.tensors.iter().find(|tensor| tensor.name == name);
    let data = |name: &str| {
        let tensor = at(name).unwrap();
        let start = usize::try_from(tensor.offset).unwrap();
        &bytes[start..start + usize::try_from(tensor.bytes).unwrap()]
    };
    let mut tensors = Vec::new();
    let mut contents: Vec<Vec<u8>> = Vec::new();
    for tensor in &header.tensors {
        let name = &tensor.name;
        let is_beside = name.starts_with("plimsoll.") || name.ends_with(SCALE_SUFFIX);
        if is_beside {
            continue;
        }
        let mut dtype = tensor.dtype;
        let mut content = data(name).to_vec();
        if dtype == WeightDType::F8E4M3 {
            dtype = WeightDType::BF16;
            let scales = data(&format!("{name}{SCALE_SUFFIX}")).as_chunks::<4>().0;
            let cols = usize::try_from(tensor.shape[1]).unwrap();
            content = data(name)
                .chunks(cols)
                .zip(scales)
                .flat_map(|(row, scale)| {
                    let scale = f32::from_le_bytes(*scale);
                    row.iter().flat_map(move |code| {
                        bf16::from_f32(f8_decode(*code) * scale).to_le_bytes()
                    })
                })
                .collect();
        }
        tensors.push(NewTensor { name: name.clone(), dtype, shape: tensor.shape.clone() });
        contents.push(content);
    }
    let fill = |tensor: usize, at: u64, bytes: &mut [u8]| {
        let start = usize::try_from(at).unwrap();
        bytes.copy_from_slice(&contents[tensor][start..start + bytes.len()]);
    };
    folder(&|path| {
        let path = path.join(TRANSFORMER_FILE);
        write_safetensors(&path, &tensors, &BTreeMap::new(), 1, &fill, &|_| true).unwrap();
    })
}

fn run() -> FluxRun {
    FluxRun { width: 64, height: 48, ..demo_run(3, 1, DType::BF16) }
}

const MODES: [Offload; 5] = [
    Offload::Auto,
    Offload::None,
    Offload::Model,
    Offload::Sequential,
    Offload::Group { blocks: 2 },
];

/// Plan, latent and picture of every mode at its smallest and largest line.
fn every_mode(open: &dyn Fn() -> Assembled, run: FluxRun) -> Vec<[String; 3]> {
    let machine = CpuMachine::default_rates(2);
    let mut found = Vec::new();
    for offload in MODES {
        for line in [Line::Min, Line::Max] {
            let request = PlaceRequest {
                run,
                line,
                offload,
                prefetch: true,
                saves: false,
                tiling: Tiling::Off,
            };
            let mut placed = open().place(request, &machine, Target::Cpu { workers: 2 }).unwrap();
            let prompt = prompt("ice cream, 3d rendered emoji", 0);
            let control = Control::default();
            let made = placed.generate(&machine, &prompt, &control, false, &mut |_| ()).unwrap();
            let (plan, report) = (placed.plan(), &made.report);
            assert_eq!(report.stats.high_water_bytes, plan.predicted.vram_peak_bytes, "peak");
            assert_eq!(report.stats.copied_bytes, plan.predicted.copied_bytes, "copied");
            found.push([plan.id.clone(), made.latent_sha256[0].clone(), made.pictures[0].sha256()]);
        }
    }
    found
}

#[test]
fn a_packed_folder_gives_the_same_plans_latents_and_pictures() {
    let folder = packed(Storage::Kept);
    let open = || Assembled::open_folder(folder.path()).unwrap();
    let (plain, packed) = (every_mode(&demo, run()), every_mode(&open, run()));
    assert_eq!(plain, packed);
    assert!(
        plain.iter().all(|[_, latent, picture]| *latent == plain[0][1] && *picture == plain[0][2])
    );
}

#[test]
fn eight_bits_are_the_bf16_weights_that_they_unpack_to() {
    let narrow = packed(Storage::F8);
    let plain = unpacked(narrow.path());
    let open = |folder: &TempDir| Assembled::open_folder(folder.path()).unwrap();
    assert_eq!(open(&narrow).is_narrow(flux::TRANSFORMER), Some(true));
    assert_eq!(open(&plain).is_narrow(flux::TRANSFORMER), Some(false));
    for dtype in [DType::BF16, DType::F32] {
        let run = FluxRun { dtype, ..run() };
        let bits = |found: Vec<[String; 3]>| -> Vec<_> {
            found.into_iter().map(|[_, latent, picture]| (latent, picture)).collect()
        };
        let (one, other) =
            (bits(every_mode(&|| open(&narrow), run)), bits(every_mode(&|| open(&plain), run)));
        assert_eq!(one, other);
        assert!(one.iter().all(|found| *found == one[0]), "modes differ");
    }
}

#[test]
fn what_the_copy_puts_in_8_bits_is_what_a_packed_folder_holds() {
    let folder = packed(Storage::F8);
    let open = || Assembled::open_folder(folder.path()).unwrap();
    let narrowing = || {
        let mut demo = demo();
        assert_eq!(demo.is_narrow(flux::TRANSFORMER), Some(false));
        demo.narrow_transformer().unwrap();
        assert_eq!(demo.is_narrow(flux::TRANSFORMER), Some(true));
        demo
    };
    assert_eq!(every_mode(&narrowing, run()), every_mode(&open, run()));

    let machine = CpuMachine::default_rates(2);
    let once = |line, offload| {
        let request = PlaceRequest {
            run: run(),
            line,
            offload,
            prefetch: true,
            saves: false,
            tiling: Tiling::Off,
        };
        narrowing().plan(&request, &machine).unwrap().narrows_once()
    };
    assert!(once(Line::Max, Offload::None) && once(Line::Max, Offload::Auto));
    assert!(once(Line::Max, Offload::Model), "a component at a time is copied once");
    assert!(!once(Line::Min, Offload::Auto) && !once(Line::Min, Offload::Sequential));
}

#[test]
fn eight_bits_halve_what_is_streamed() {
    let machine = CpuMachine::default_rates(2);
    let folder = packed(Storage::F8);
    let narrow = Assembled::open_folder(folder.path()).unwrap();
    let of = |assembled: &Assembled, offload| {
        let request = PlaceRequest {
            run: demo_run(8, 1, DType::BF16),
            line: Line::Min,
            offload,
            prefetch: true,
            saves: false,
            tiling: Tiling::Off,
        };
        assembled.plan(&request, &machine).unwrap().plan
    };
    let (wide, narrowed) = (of(&demo(), Offload::Sequential), of(&narrow, Offload::Sequential));
    let (before, after) =
        (wide.predicted.copied_bytes_per_step, narrowed.predicted.copied_bytes_per_step);
    println!("streamed a step: {before} bytes in bf16, {after} in fp8");
    assert!(after * 100 < before * 53, "{after} of {before} bytes a step");
    let (before, after) = (of(&demo(), Offload::Auto), of(&narrow, Offload::Auto));
    // The smallest line is the decoder's; under it more stays, and less is streamed.
    assert!(after.line_bytes <= before.line_bytes);
    let (before, after) =
        (before.predicted.copied_bytes_per_step, after.predicted.copied_bytes_per_step);
    println!("streamed a step under it: {before} bytes in bf16, {after} in fp8");
    assert!(after * 2 < before, "{after} of {before} bytes a step");
}

/// Each unit of a plan, whole blocks and parts of them, is one run of its file at the distances that it has in the slot.
#[test]
fn a_units_bytes_are_one_run_of_the_file() {
    for storage in [Storage::Kept, Storage::F8] {
        let folder = packed(storage);
        let assembled = Assembled::open_folder(folder.path()).unwrap();
        let machine = CpuMachine::default_rates(2);
        for (offload, line) in [(Offload::Auto, Line::Min), (Offload::Model, Line::Max)] {
            let request = PlaceRequest {
                run: demo_run(8, 1, DType::BF16),
                line,
                offload,
                prefetch: true,
                saves: false,
                tiling: Tiling::Off,
            };
            let planned = assembled.plan(&request, &machine).unwrap();
            let graph = &planned.graph;
            assert!(planned.plan.units.len() > 20);
            for unit in &planned.plan.units {
                let mut distance = None;
                for placed in &unit.weights {
                    let weight = graph.weight(placed.weight);
                    let name = &graph.components[weight.component.index()].name;
                    let component = &assembled.checkpoint().components[name];
                    let catalog = component.catalog.as_ref().unwrap();
                    let mut slot = placed.offset;
                    for part in &weight.parts {
                        let [piece] = catalog.get(&part.entry).unwrap().pieces[..] else {
                            panic!("{} is not in one piece", part.entry);
                        };
                        let expected = *distance.get_or_insert(piece.offset - slot);
                        assert_eq!(piece.offset - slot, expected, "{}: {}", unit.name, part.entry);
                        slot += piece.bytes;
                    }
                }
                // Slots are aligned to 256 bytes, and so are their files.
                assert_eq!(distance.unwrap_or(0) % 256, 0, "{}", unit.name);
            }
        }
    }
}

/// Keeps how many segments each copy of a program has; computes nothing.
struct Counting {
    device: SimDevice,
    segments: Arc<Mutex<Vec<(String, usize)>>>,
}

impl Device for Counting {
    fn name(&self) -> &'static str {
        self.device.name()
    }

    fn arena_bytes(&self) -> u64 {
        self.device.arena_bytes()
    }

    fn retake(&mut self, arena_bytes: u64) -> Result<(), DeviceError> {
        self.device.retake(arena_bytes)
    }

    fn computes(&self) -> bool {
        false
    }

    fn run(
        &mut self,
        program: &Program<'_>,
        control: &Control,
        drive: &mut dyn FnMut(&dyn Queue) -> Result<(), DeviceError>,
    ) -> Result<RunStats, DeviceError> {
        let seconds = |count| vec![1.0; count];
        self.device.set_costs(SimCosts {
            op_seconds: seconds(program.ops.len()),
            copy_seconds: seconds(program.copies.len()),
            copy_share: 0.0,
        });
        let counts = program.copies.iter().map(|copy| (copy.name.clone(), copy.segments.len()));
        self.segments.lock().unwrap().extend(counts);
        self.device.run(program, control, drive)
    }
}

/// How many segments each copy of a folder's run has; every access of it is checked by the simulated device.
fn segments(open: Assembled, offload: Offload, line: Line) -> Vec<(String, usize)> {
    let machine = CpuMachine::default_rates(2);
    let found = Arc::new(Mutex::new(Vec::new()));
    let request = PlaceRequest {
        run: demo_run(8, 1, DType::BF16),
        line,
        offload,
        prefetch: true,
        saves: false,
        tiling: Tiling::Off,
    };
    let mut placed = open
        .place_on(request, &machine, |_, arena_bytes| {
            let device = SimDevice::new(arena_bytes, SimCosts::default(), SimFaults::default());
            Ok(Box::new(Counting { device, segments: Arc::clone(&found) }))
        })
        .unwrap();
    let prompt = prompt("ice cream, 3d rendered emoji", 0);
    let made = placed.generate(&machine, &prompt, &Control::default(), false, &mut |_| ()).unwrap();
    let plan = placed.plan();
    assert_eq!(made.report.stats.copied_bytes, plan.predicted.copied_bytes, "without filler");
    assert_eq!(made.report.stats.high_water_bytes, plan.predicted.vram_peak_bytes);
    drop(placed);
    found.lock().unwrap().clone()
}

#[test]
fn each_copy_of_a_packed_folder_is_one_segment() {
    for storage in [Storage::Kept, Storage::F8] {
        let folder = packed(storage);
        for (offload, line) in
            [(Offload::Auto, Line::Min), (Offload::Model, Line::Max), (Offload::None, Line::Max)]
        {
            let found = segments(Assembled::open_folder(folder.path()).unwrap(), offload, line);
            assert!(found.len() > 3);
            for (name, count) in &found {
                assert_eq!(*count, 1, "{name} under {offload:?}");
            }
        }
    }
    let plain = segments(demo(), Offload::Auto, Line::Min);
    assert!(plain.iter().any(|(_, count)| *count > 1), "an unpacked folder takes more");
}

#[test]
fn a_packed_folder_packs_to_the_same_bytes() {
    let folder = packed(Storage::F8);
    let again = Assembled::open_folder(folder.path()).unwrap();
    let mut files = again.packing(&|_| Storage::Kept).unwrap();
    for file in &mut files {
        file.find_scales(1, &|_| true).unwrap();
        let path = folder.path().join(&file.component).join(file.name);
        let bytes = std::fs::read(&path).unwrap();
        let header = Header::of_bytes(&bytes).unwrap();
        let mut stored: Vec<_> = header.tensors.iter().collect();
        stored.sort_by_key(|tensor| tensor.offset);
        assert_eq!(stored.len(), file.tensors.len(), "{}", file.component);
        for (at, (stored, new)) in stored.iter().zip(&file.tensors).enumerate() {
            assert_eq!((&stored.name, &stored.shape), (&new.name, &new.shape));
            let start = usize::try_from(stored.offset).unwrap();
            let mut made = vec![0xAA; usize::try_from(stored.bytes).unwrap()];
            file.fill(at, 0, &mut made);
            assert!(made == bytes[start..start + made.len()], "{}", new.name);
        }
    }
}

#[test]
fn what_is_no_number_is_refused() {
    let folder = folder(&|path| {
        let path = path.join(TRANSFORMER_FILE);
        let mut bytes = std::fs::read(&path).unwrap();
        let header = Header::of_bytes(&bytes).unwrap();
        let name = "single_transformer_blocks.0.proj_out.weight";
        let tensor = header.tensors.iter().find(|tensor| tensor.name == name).unwrap();
        let at = usize::try_from(tensor.offset + tensor.bytes / 2).unwrap();
        bytes[at..at + 2].copy_from_slice(&bf16::NAN.to_le_bytes());
        std::fs::write(&path, bytes).unwrap();
    });
    let assembled = Assembled::open_folder(folder.path()).unwrap();
    let mut files = assembled.packing(&|_| Storage::F8).unwrap();
    let error = files.iter_mut().find_map(|file| file.find_scales(2, &|_| true).err()).unwrap();
    assert!(error.to_string().contains("single_transformer_blocks.0.proj_out.weight"), "{error}");
}
