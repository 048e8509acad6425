//! The demo model draws what it is asked for: of 16 captions, each picture's nearest true picture among its
//! rivals is the right one.
//!
//! The full measure (256 captions against all 6,059 pictures) is `demo/recognize.py`, run by hand.

#![expect(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod support;

use plimsoll_device::Control;
use plimsoll_device::cpu::CpuMachine;
use plimsoll_graph::DType;
use plimsoll_pipeline::{Picture, PlaceRequest, Target, Tiling};
use plimsoll_plan::{Line, Offload};
use plimsoll_weights::Header;
use serde_json::Value;
use support::{demo, demo_run, prompt, repository};

/// Pixels a side of what is compared, and of the square that each is the mean of.
const SMALL: usize = 32;
const SQUARE: usize = 4;

/// The mean of each 4x4 square, rounded half up, as `demo/recognize.py` has it.
fn small(picture: &Picture) -> Vec<i64> {
    let (side, rgb) = (SMALL * SQUARE, picture.rgb());
    assert_eq!(rgb.len(), side * side * 3);
    let mut means = Vec::with_capacity(SMALL * SMALL * 3);
    for row in 0..SMALL {
        for col in 0..SMALL {
            for channel in 0..3 {
                let mut sum = 0i64;
                for dy in 0..SQUARE {
                    for dx in 0..SQUARE {
                        let pixel = (row * SQUARE + dy) * side + col * SQUARE + dx;
                        sum += i64::from(rgb[pixel * 3 + channel]);
                    }
                }
                means.push((sum + 8) / 16);
            }
        }
    }
    means
}

#[test]
fn sixteen_captions_are_recognised() {
    let text = std::fs::read_to_string(repository("demo/recognition16.json")).unwrap();
    let data: Value = serde_json::from_str(&text).unwrap();
    let bytes = std::fs::read(repository("demo/recognition16.safetensors")).unwrap();
    let header = Header::of_bytes(&bytes).unwrap();
    let gallery = &header.tensors[0];
    let start = usize::try_from(gallery.offset).unwrap();
    let size = SMALL * SMALL * 3;
    let pictures: Vec<&[u8]> = bytes[start..].chunks_exact(size).collect();
    assert_eq!(pictures.len() as u64, gallery.shape[0]);

    let machine = CpuMachine::default_rates(2);
    let request = PlaceRequest {
        run: demo_run(8, 1, DType::BF16),
        line: Line::Bytes(12 << 20),
        offload: Offload::Auto,
        prefetch: true,
        saves: false,
        tiling: Tiling::Off,
    };
    let mut placed = demo().place(request, &machine, Target::Cpu { workers: 2 }).unwrap();
    let mut missed = Vec::new();
    let cases = data["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 16);
    for case in cases {
        let caption = case["caption"].as_str().unwrap();
        let prompt = prompt(caption, case["seed"].as_u64().unwrap());
        let generated =
            placed.generate(&machine, &prompt, &Control::default(), false, &mut |_| ()).unwrap();
        let drawn = small(&generated.pictures[0]);
        let distance = |picture: &&[u8]| -> i64 {
            drawn.iter().zip(*picture).map(|(a, b)| (a - i64::from(*b)).pow(2)).sum()
        };
        let nearest = (0..pictures.len()).min_by_key(|at| distance(&pictures[*at])).unwrap();
        if nearest as u64 != case["row"].as_u64().unwrap() {
            missed.push((caption, data["pictures"][nearest]["caption"].clone()));
        }
    }
    assert!(missed.is_empty(), "taken for something else: {missed:?}");
}
