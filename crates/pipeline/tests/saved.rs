//! What a run hands to the host for a comparison: it is what was computed, and computing it changes nothing.

#![expect(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod support;

use plimsoll_device::Control;
use plimsoll_device::cpu::CpuMachine;
use plimsoll_graph::DType;
use plimsoll_pipeline::{Generated, PlaceRequest, SavedTensor, Target, Tiling};
use plimsoll_plan::{Line, Offload};
use plimsoll_weights::Header;
use support::{demo, demo_run, prompt};

fn generate(saves: bool, samples: u32, line: Line) -> Generated {
    let machine = CpuMachine::default_rates(2);
    let run = demo_run(1, samples, DType::BF16);
    let request = PlaceRequest {
        run,
        line,
        offload: Offload::Auto,
        prefetch: true,
        saves,
        tiling: Tiling::Off,
    };
    let mut placed = demo().place(request, &machine, Target::Cpu { workers: 2 }).unwrap();
    let prompt = prompt("ice cream, 3d rendered emoji", 3);
    placed.generate(&machine, &prompt, &Control::default(), false, &mut |_| ()).unwrap()
}

fn values(tensors: &[SavedTensor], name: &str) -> Vec<f32> {
    let found = tensors.iter().find(|tensor| tensor.name == name).unwrap();
    assert_eq!(found.dtype, DType::F32, "{name}");
    bytemuck::allocation::pod_collect_to_vec(&found.bytes)
}

#[test]
fn saving_changes_no_bit_and_what_is_saved_is_what_ran() {
    let plain = generate(false, 2, Line::Min);
    assert!(plain.tensors.is_empty());
    for line in [Line::Min, Line::Max] {
        let saved = generate(true, 2, line);
        assert_eq!(saved.latent_sha256, plain.latent_sha256);
        assert_eq!(saved.pictures, plain.pictures);
        for (sample, suffix) in ["", "#1"].iter().enumerate() {
            let value = |name: &str| values(&saved.tensors, &format!("{name}{suffix}"));
            let (noise, velocity, latent) = (value("noise"), value("velocity"), value("latent"));
            let step = values(&saved.tensors, "dsigma")[0];
            assert_eq!(latent, saved.latents[sample]);
            for ((noise, velocity), latent) in noise.iter().zip(&velocity).zip(&latent) {
                let off = (noise + step * velocity - latent).abs();
                assert!(off <= 1e-6 * (1.0 + latent.abs()), "{noise} {velocity} {latent}");
            }
            let image = value("image");
            let byte = |value: f32| (127.5 * value.clamp(-1.0, 1.0) + 127.5).round();
            let picture = &saved.pictures[sample];
            for (value, stored) in image.iter().zip(picture.rgb()) {
                assert!((byte(*value) - f32::from(*stored)).abs() <= 1.0);
            }
        }
        let shared = saved.tensors.iter().filter(|tensor| tensor.name.starts_with("t5.context"));
        assert_eq!(shared.count(), 1, "what all samples share is there once");
    }
}

#[test]
fn the_file_holds_every_tensor_with_its_type_and_shape() {
    let saved = generate(true, 1, Line::Max);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved.safetensors");
    saved.write_tensors(&path, &[("model", "demo")]).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let header = Header::of_bytes(&bytes).unwrap();
    assert_eq!(header.tensors.len(), saved.tensors.len());
    for tensor in &saved.tensors {
        let stored = header.tensors.iter().find(|stored| stored.name == tensor.name).unwrap();
        assert_eq!(stored.shape, tensor.shape, "{}", tensor.name);
        let start = usize::try_from(stored.offset).unwrap();
        assert_eq!(bytes[start..start + tensor.bytes.len()], tensor.bytes, "{}", tensor.name);
    }
    for name in ["clip.ids", "clip.pooled", "t5.ids", "t5.context", "noise", "velocity", "image"] {
        assert!(header.tensors.iter().any(|tensor| tensor.name == name), "{name}");
    }
}
