//! FLUX.1-dev at its true size: the published single file's header over a body that is a hole.
//!
//! The file takes no room on a file system that can keep holes, and nothing here reads its body.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(target_os = "linux")]

mod support;

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use plimsoll_weights::{Layout, inspect, open_transformer_file};
use serde_json::json;

/// Parameters of FLUX.1-dev's transformer.
const PARAMETERS: u64 = 11_901_408_320;

/// The tensors of `flux1-dev.safetensors`, all bf16.
fn flux1_dev() -> Vec<(String, Vec<u64>)> {
    let mut tensors = Vec::new();
    let mut linear = |name: String, rows: u64, columns: u64| {
        tensors.push((format!("{name}.weight"), vec![rows, columns]));
        tensors.push((format!("{name}.bias"), vec![rows]));
    };
    let width = 3072;
    for (name, rows, columns) in [
        ("img_in", width, 64),
        ("txt_in", width, 4096),
        ("time_in.in_layer", width, 256),
        ("time_in.out_layer", width, width),
        ("vector_in.in_layer", width, 768),
        ("vector_in.out_layer", width, width),
        ("guidance_in.in_layer", width, 256),
        ("guidance_in.out_layer", width, width),
        ("final_layer.linear", 64, width),
        ("final_layer.adaLN_modulation.1", 2 * width, width),
    ] {
        linear(name.to_owned(), rows, columns);
    }
    for (block, stream) in (0..19).flat_map(|block| [(block, "img"), (block, "txt")]) {
        let name = |layer: &str| format!("double_blocks.{block}.{stream}_{layer}");
        linear(name("mod.lin"), 6 * width, width);
        linear(name("attn.qkv"), 3 * width, width);
        linear(name("attn.proj"), width, width);
        linear(name("mlp.0"), 4 * width, width);
        linear(name("mlp.2"), width, 4 * width);
    }
    for block in 0..38 {
        linear(format!("single_blocks.{block}.modulation.lin"), 3 * width, width);
        linear(format!("single_blocks.{block}.linear1"), 7 * width, width);
        linear(format!("single_blocks.{block}.linear2"), width, 5 * width);
    }
    for norm in ["query_norm", "key_norm"] {
        for block in 0..19 {
            for stream in ["img", "txt"] {
                let name = format!("double_blocks.{block}.{stream}_attn.norm.{norm}.scale");
                tensors.push((name, vec![128]));
            }
        }
        for block in 0..38 {
            tensors.push((format!("single_blocks.{block}.norm.{norm}.scale"), vec![128]));
        }
    }
    tensors
}

/// Writes header and hole.
fn write_sparse(path: &Path, tensors: &[(String, Vec<u64>)]) {
    let mut end = 0u64;
    let entries: serde_json::Map<String, serde_json::Value> = tensors
        .iter()
        .map(|(name, shape)| {
            let begin = end;
            end += 2 * shape.iter().product::<u64>();
            let entry = json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]});
            (name.clone(), entry)
        })
        .collect();
    let header = serde_json::to_vec(&entries).unwrap();
    let mut file = File::create(path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(&header).unwrap();
    file.set_len(8 + header.len() as u64 + end).unwrap();
}

#[test]
fn flux1_dev_is_read_in_no_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flux1-dev.safetensors");
    let tensors = flux1_dev();
    assert_eq!(tensors.len(), 780);
    write_sparse(&path, &tensors);

    let start = Instant::now();
    let component = open_transformer_file(&path).unwrap();
    let elapsed = start.elapsed();
    println!("opened in {elapsed:?}");
    assert!(elapsed.as_secs_f64() < 0.5, "{elapsed:?}");

    let catalog = component.catalog.unwrap();
    assert_eq!(catalog.layout, Layout::Original);
    let elements: u64 = catalog.iter().map(|(_, entry)| entry.elements()).sum();
    assert_eq!(elements, PARAMETERS);
    let config: serde_json::Value = serde_json::from_str(&component.config_json).unwrap();
    let expected = json!({
        "_class_name": "FluxTransformer2DModel",
        "attention_head_dim": 128,
        "axes_dims_rope": [16, 56, 56],
        "guidance_embeds": true,
        "in_channels": 64,
        "joint_attention_dim": 4096,
        "num_attention_heads": 24,
        "num_layers": 19,
        "num_single_layers": 38,
        "out_channels": 64,
        "patch_size": 1,
        "pooled_projection_dim": 768,
    });
    assert_eq!(config, expected);

    let report = inspect(&path).unwrap();
    assert_eq!((report.parameters, report.bytes), (Some(PARAMETERS), 2 * PARAMETERS));
    assert_eq!(report.components[0].variant, Some("dev-like (with guidance)"));
}

#[test]
fn a_fill_model_without_guidance_is_told_by_its_shapes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.safetensors");
    let mut tensors = flux1_dev();
    tensors.retain(|(name, _)| !name.starts_with("guidance_in."));
    write_sparse(&path, &tensors);
    let variant = || inspect(&path).unwrap().components[0].variant;
    assert_eq!(variant(), Some("schnell-like (without guidance)"));
    let parameters = inspect(&path).unwrap().parameters;
    assert_eq!(parameters, Some(11_891_178_560));
    tensors[0].1[1] = 384;
    write_sparse(&path, &tensors);
    assert_eq!(variant(), Some("Fill"));
    tensors[0].1[1] = 128;
    write_sparse(&path, &tensors);
    assert_eq!(variant(), Some("Canny or Depth"));
}
