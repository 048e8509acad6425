//! The noise of a seed is torch's, bit for bit.
#![allow(clippy::unwrap_used)] // In tests, helper functions too.

use std::collections::BTreeMap;
use std::path::Path;

use half::bf16;
use plimsoll_pipeline::noise::TorchGenerator;
use sha2::{Digest, Sha256};

fn f32_bytes(generator: &mut TorchGenerator, count: usize) -> Vec<u8> {
    let mut values = vec![0.0_f32; count];
    generator.fill_f32(&mut values);
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn bf16_bytes(generator: &mut TorchGenerator, count: usize) -> Vec<u8> {
    let mut values = vec![bf16::ZERO; count];
    generator.fill_bf16(&mut values);
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The tensors of `noise.safetensors`, by name.
fn golden() -> BTreeMap<String, Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/noise.safetensors");
    let bytes = std::fs::read(path).unwrap();
    let header_len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header_len]).unwrap();
    let data = &bytes[8 + header_len..];
    let tensor = |(name, entry): (&String, &serde_json::Value)| {
        let offset = |index: usize| entry["data_offsets"][index].as_u64().unwrap() as usize;
        (name.clone(), data[offset(0)..offset(1)].to_vec())
    };
    let fields = header.as_object().unwrap();
    fields.iter().filter(|(name, _)| *name != "__metadata__").map(tensor).collect()
}

#[test]
fn every_golden_tensor_is_drawn_bit_for_bit() {
    let mut checked = 0;
    for (name, expected) in golden() {
        let parts: Vec<&str> = name.split('.').collect();
        let number =
            |part: &str, prefix| part.strip_prefix(prefix).unwrap().parse::<u64>().unwrap();
        if let [dtype, seed, count] = parts[..] {
            let mut generator = TorchGenerator::new(number(seed, "seed"));
            let count = number(count, "n") as usize;
            let drawn = match dtype {
                "f32" => f32_bytes(&mut generator, count),
                "bf16" => bf16_bytes(&mut generator, count),
                other => panic!("unknown dtype {other}"),
            };
            assert!(drawn == expected, "{name}");
            checked += 1;
        }
    }
    assert_eq!(checked, 50);
}

#[test]
fn successive_draws_continue_one_stream() {
    let golden = golden();
    let mut generator = TorchGenerator::new(42);
    for name in ["first.n8", "second.n31", "third.n8"] {
        let expected = &golden[&format!("f32.seed42.sequence.{name}")];
        assert_eq!(&f32_bytes(&mut generator, expected.len() / 4), expected, "{name}");
    }
}

#[test]
fn the_spare_normal_of_an_odd_draw_opens_the_next_one() {
    let (mut whole, mut parts) = (TorchGenerator::new(3), TorchGenerator::new(3));
    let whole = f32_bytes(&mut whole, 12);
    let joined = [f32_bytes(&mut parts, 5), f32_bytes(&mut parts, 7)].concat();
    assert_eq!(whole, joined);
}

/// SHA-256 (first half) of larger draws by torch 2.11.0 on x86-64 with AVX2.
#[test]
fn large_draws_have_the_digest_of_torch() {
    let cases = [
        (7, 15, "f32", "e8fe4bd30d2a1e6707f201ce1953551c"),
        (7, 15, "bf16", "f4c908bdcf61d249a2882f208596adcb"),
        (7, 33, "f32", "c63bf033fa8f8a314a07bdb60c1ae026"),
        (7, 33, "bf16", "0872ee152d23f236a5000f213ccdd2cd"),
        (7, 262_144, "f32", "238674e7b4b169a08b5539db70d4729a"),
        (7, 262_144, "bf16", "88eeaad78762443ba194223cc717560e"),
        // Only the low half of a seed counts.
        (7 + (1 << 32), 1_000_003, "f32", "ad521dccb4bc1400508eba77a38e216f"),
        (7 + (1 << 32), 1_000_003, "bf16", "d268b5fbcd3fbf9c8516f963e13f8da1"),
        (u64::MAX, 15, "f32", "110481d58fd3f6aa6f2f1a13d3e75e4f"),
        (u64::MAX, 33, "bf16", "01204d074a60e4d5c5506d17d87fd1c5"),
        (u64::MAX, 1_000_003, "f32", "dd0f8756e70688130da7bab00d6d7412"),
        (u64::MAX, 1_000_003, "bf16", "089c703af0658021bb59c068275d8f97"),
    ];
    for (seed, count, dtype, expected) in cases {
        let mut generator = TorchGenerator::new(seed);
        let bytes = match dtype {
            "f32" => f32_bytes(&mut generator, count),
            _ => bf16_bytes(&mut generator, count),
        };
        let digest: String =
            Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(&digest[..32], expected, "seed {seed}, {count} x {dtype}");
    }
}

#[test]
fn an_empty_draw_leaves_the_stream_alone() {
    let mut generator = TorchGenerator::new(1);
    generator.fill_f32(&mut []);
    generator.fill_bf16(&mut []);
    assert_eq!(f32_bytes(&mut generator, 20), f32_bytes(&mut TorchGenerator::new(1), 20));
}
