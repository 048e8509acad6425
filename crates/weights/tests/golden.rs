//! The golden models: sharded folders, odd widths, and one transformer in both layouts.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::PathBuf;

use plimsoll_weights::{
    Architecture, Catalog, Checkpoint, Layout, open_folder, open_transformer_file,
};
use serde_json::Value;
use support::{bytes_of, file_of, repository, write};

fn golden(name: &str) -> PathBuf {
    repository().join("tests/golden").join(name)
}

fn transformer(checkpoint: &Checkpoint) -> &Catalog {
    checkpoint.components["transformer"].catalog.as_ref().unwrap()
}

/// Holds that two catalogs are the same tensors, byte for byte, and gives how many.
fn check_same(ours: &Catalog, theirs: &Catalog) -> usize {
    let names =
        |catalog: &Catalog| -> Vec<String> { catalog.iter().map(|(n, _)| n.clone()).collect() };
    assert_eq!(names(ours), names(theirs));
    for (name, entry) in ours.iter() {
        let other = theirs.get(name).unwrap();
        assert_eq!((entry.dtype, &entry.shape), (other.dtype, &other.shape), "{name}");
        assert_eq!(bytes_of(ours, entry), bytes_of(theirs, other), "{name}");
    }
    ours.len()
}

#[test]
fn every_golden_folder_opens() {
    for name in ["dev-tiny", "schnell-tiny", "odd-tiny"] {
        let checkpoint = open_folder(golden(name)).unwrap();
        assert_eq!(checkpoint.components.len(), 7, "{name}");
        assert!(checkpoint.files.contains_key("tokenizer_2/tokenizer.json"), "{name}");
    }
    // This one has its CLIP tokenizer in the older two files.
    let dev = open_folder(golden("dev-tiny")).unwrap();
    assert!(
        dev.file("tokenizer/merges.txt").is_some() && dev.file("tokenizer/vocab.json").is_some()
    );
}

#[test]
fn shards_are_joined() {
    let dev = open_folder(golden("dev-tiny")).unwrap();
    let catalog = transformer(&dev);
    assert_eq!(catalog.blobs.len(), 2);
    let owners: Vec<usize> = catalog.iter().map(|(_, entry)| entry.pieces[0].blob).collect();
    assert!(owners.contains(&0) && owners.contains(&1));
    let text_encoder_2 = dev.components["text_encoder_2"].catalog.as_ref().unwrap();
    assert_eq!(
        (text_encoder_2.architecture, text_encoder_2.blobs.len()),
        (Architecture::T5Encoder, 2)
    );
}

#[test]
fn the_bfl_twin_is_the_same_transformer() {
    let dev = open_folder(golden("dev-tiny")).unwrap();
    let twin = open_transformer_file(golden("dev-tiny/flux1-dev-tiny.safetensors")).unwrap();
    let catalog = twin.catalog.as_ref().unwrap();
    assert_eq!(catalog.layout, Layout::Original);
    let tensors = check_same(catalog, transformer(&dev));
    assert!(tensors > 50, "{tensors}");
    // Only the final modulation is in two pieces.
    for (name, entry) in catalog.iter() {
        let pieces = if name.starts_with("norm_out.linear.") { 2 } else { 1 };
        assert_eq!(entry.pieces.len(), pieces, "{name}");
    }

    // What its shapes tell is what the folder's config says.
    let derived: Value = serde_json::from_str(&twin.config_json).unwrap();
    let written: Value = serde_json::from_str(&dev.components["transformer"].config_json).unwrap();
    let mut compared = 0;
    for (key, value) in derived.as_object().unwrap() {
        let mut expected = written[key].clone();
        if key == "out_channels" && expected.is_null() {
            expected = written["in_channels"].clone();
        }
        assert_eq!(*value, expected, "{key}");
        compared += 1;
    }
    assert!(compared >= 10, "{derived}");

    // Put into the folder, it keeps what the shapes cannot tell.
    let mut replaced = dev.clone();
    replaced.replace_transformer(twin);
    let config: Value =
        serde_json::from_str(&replaced.components["transformer"].config_json).unwrap();
    assert_eq!(config["axes_dims_rope"], written["axes_dims_rope"]);
    assert_eq!(transformer(&replaced).layout, Layout::Original);
}

/// A BFL file of one double and one single block, width 8, heads of 4, under a prefix.
fn small_bfl(prefix: &str) -> Vec<(String, &'static str, Vec<u64>)> {
    let mut tensors = Vec::new();
    let mut add = |name: &str, shape: &[u64]| {
        tensors.push((format!("{prefix}{name}"), "BF16", shape.to_vec()));
    };
    let mut linear = |name: &str, rows: u64, columns: u64| {
        add(&format!("{name}.weight"), &[rows, columns]);
        add(&format!("{name}.bias"), &[rows]);
    };
    linear("img_in", 8, 64);
    linear("txt_in", 8, 6);
    linear("time_in.in_layer", 8, 256);
    linear("time_in.out_layer", 8, 8);
    linear("vector_in.in_layer", 8, 10);
    linear("vector_in.out_layer", 8, 8);
    linear("final_layer.linear", 64, 8);
    linear("final_layer.adaLN_modulation.1", 16, 8);
    for stream in ["img", "txt"] {
        linear(&format!("double_blocks.0.{stream}_mod.lin"), 48, 8);
        linear(&format!("double_blocks.0.{stream}_attn.qkv"), 24, 8);
        linear(&format!("double_blocks.0.{stream}_attn.proj"), 8, 8);
        linear(&format!("double_blocks.0.{stream}_mlp.0"), 32, 8);
        linear(&format!("double_blocks.0.{stream}_mlp.2"), 8, 32);
    }
    linear("single_blocks.0.modulation.lin", 24, 8);
    linear("single_blocks.0.linear1", 24 + 32, 8);
    linear("single_blocks.0.linear2", 8, 40);
    for norm in ["query_norm", "key_norm"] {
        add(&format!("double_blocks.0.img_attn.norm.{norm}.scale"), &[4]);
        add(&format!("double_blocks.0.txt_attn.norm.{norm}.scale"), &[4]);
        add(&format!("single_blocks.0.norm.{norm}.scale"), &[4]);
    }
    tensors
}

fn open(tensors: &[(String, &'static str, Vec<u64>)]) -> Result<Catalog, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flux.safetensors");
    let tensors: Vec<_> = tensors.iter().map(|(n, d, s)| (n.as_str(), *d, s.as_slice())).collect();
    write(&path, file_of(&tensors));
    let opened = open_transformer_file(&path).map(|component| component.catalog.unwrap());
    opened.map_err(|e| e.to_string().replace(&format!("{}/", folder.path().display()), ""))
}

#[test]
fn the_prefix_of_the_single_file_may_be_there_or_not() {
    let plain = open(&small_bfl("")).unwrap();
    let prefixed = open(&small_bfl("model.diffusion_model.")).unwrap();
    let shapes = |catalog: &Catalog| -> Vec<(String, Vec<u64>)> {
        catalog.iter().map(|(name, entry)| (name.clone(), entry.shape.clone())).collect()
    };
    assert_eq!(shapes(&plain), shapes(&prefixed));
    assert_eq!(plain.get("single_transformer_blocks.0.proj_mlp.weight").unwrap().shape, [32, 8]);
    assert_eq!(plain.get("single_transformer_blocks.0.proj_mlp.bias").unwrap().shape, [32]);
    assert_eq!(plain.get("transformer_blocks.0.attn.add_k_proj.bias").unwrap().shape, [8]);
    assert_eq!(plain.len(), small_bfl("").len() + 2 * (2 * 2 + 3));

    // The slices of a fused tensor lie end to end, in the order q, k, v, MLP.
    let begin = |name: &str| {
        let entry = plain.get(&format!("single_transformer_blocks.0.{name}.weight")).unwrap();
        (entry.pieces[0].offset, entry.bytes())
    };
    let mut next = begin("attn.to_q").0;
    for name in ["attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"] {
        let (offset, bytes) = begin(name);
        assert_eq!(offset, next, "{name}");
        next += bytes;
    }
    // The last modulation: (shift, scale) in the file, (scale, shift) here.
    let modulation = plain.get("norm_out.linear.weight").unwrap();
    let [scale, shift] = modulation.pieces[..] else { panic!() };
    assert_eq!((modulation.shape.as_slice(), scale.bytes), (&[16, 8][..], shift.bytes));
    assert_eq!(shift.offset + shift.bytes, scale.offset);
}

/// Opens the small BFL file after one change.
fn check_change(change: impl FnOnce(&mut Vec<(String, &'static str, Vec<u64>)>), expect: &str) {
    let mut tensors = small_bfl("");
    change(&mut tensors);
    assert_eq!(open(&tensors).err().as_deref(), Some(expect));
}

#[test]
fn fused_tensors_that_cannot_be_split_are_refused() {
    let reshape = |name: &'static str, shape: &'static [u64]| {
        move |tensors: &mut Vec<(String, &'static str, Vec<u64>)>| {
            let found = tensors.iter_mut().find(|(n, _, _)| n == name).unwrap();
            found.2 = shape.to_vec();
        }
    };
    check_change(
        reshape("double_blocks.0.img_attn.qkv.weight", &[25, 8]),
        "flux.safetensors: tensor `double_blocks.0.img_attn.qkv.weight` of shape [25, 8] cannot be \
         split into q, k and v of equal size",
    );
    check_change(
        reshape("single_blocks.0.linear1.weight", &[24, 8]),
        "flux.safetensors: tensor `single_blocks.0.linear1.weight` of shape [24, 8] cannot be \
         split into q, k, v and the MLP",
    );
    check_change(
        reshape("single_blocks.0.linear1.bias", &[]),
        "flux.safetensors: tensor `single_blocks.0.linear1.bias` of shape [] cannot be split into \
         q, k, v and the MLP",
    );
    check_change(
        reshape("final_layer.adaLN_modulation.1.bias", &[17]),
        "flux.safetensors: tensor `final_layer.adaLN_modulation.1.bias` of shape [17] cannot be \
         split into a shift and a scale",
    );
    check_change(
        |tensors| tensors.push(("x_embedder.weight".to_owned(), "BF16", vec![8, 64])),
        "flux.safetensors: `x_embedder.weight` stands for `x_embedder.weight` of the model, which \
         another tensor of the file is too",
    );
}
