//! Canonical names, and the check of a catalog against what a model needs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use plimsoll_weights::{Catalog, open_folder};
use support::{bf16_file, copy_tree, demo_model, file_of, write};

/// The catalog of one component of a pipeline whose only component this is.
fn component(class_name: &str, file: Vec<u8>) -> Result<Catalog, String> {
    let folder = tempfile::tempdir().unwrap();
    let index = format!("{{\"_class_name\":\"FluxPipeline\",\"part\":[\"x\",\"{class_name}\"]}}");
    write(&folder.path().join("model_index.json"), index);
    write(&folder.path().join("part/config.json"), "{}");
    write(&folder.path().join("part/model.safetensors"), file);
    let opened = open_folder(folder.path())
        .map(|mut checkpoint| checkpoint.components.remove("part").unwrap().catalog.unwrap());
    opened.map_err(|e| e.to_string().replace(&format!("{}/part/", folder.path().display()), ""))
}

fn names(catalog: &Catalog) -> Vec<&str> {
    catalog.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn clip_is_read_with_and_without_its_prefix() {
    let with = component(
        "CLIPTextModel",
        bf16_file(&[
            ("text_model.embeddings.token_embedding.weight", &[4, 2]),
            ("text_model.encoder.layers.0.mlp.fc1.bias", &[2]),
            ("text_model.final_layer_norm.bias", &[2]),
        ]),
    )
    .unwrap();
    let without = component(
        "CLIPTextModel",
        bf16_file(&[
            ("embeddings.token_embedding.weight", &[4, 2]),
            ("encoder.layers.0.mlp.fc1.bias", &[2]),
            ("final_layer_norm.bias", &[2]),
        ]),
    )
    .unwrap();
    assert_eq!(names(&with), names(&without));
}

#[test]
fn the_embedding_of_t5_goes_by_either_name() {
    let query = ("encoder.block.0.layer.0.SelfAttention.q.weight", &[2u64, 2][..]);
    let open = |tensors: &[(&str, &[u64])]| component("T5EncoderModel", bf16_file(tensors));
    let expect = ["encoder.block.0.layer.0.SelfAttention.q.weight", "shared.weight"];
    let (shared, tied) = ("shared.weight", "encoder.embed_tokens.weight");
    assert_eq!(names(&open(&[query, (shared, &[3, 2])]).unwrap()), expect);
    assert_eq!(names(&open(&[query, (tied, &[3, 2])]).unwrap()), expect);
    assert_eq!(names(&open(&[query, (shared, &[3, 2]), (tied, &[3, 2])]).unwrap()), expect);
    assert_eq!(
        open(&[query, (shared, &[3, 2]), (tied, &[4, 2])]).unwrap_err(),
        "model.safetensors: `encoder.embed_tokens.weight` stands for `shared.weight` of the model, \
         which another tensor of the file is too"
    );
}

#[test]
fn the_attention_of_old_vaes_has_new_names_and_shapes() {
    let block = "decoder.mid_block.attentions.0";
    let old: Vec<(String, Vec<u64>)> = [
        ("query.weight", vec![4, 4, 1, 1]),
        ("query.bias", vec![4]),
        ("key.weight", vec![4, 4]),
        ("value.weight", vec![4, 4, 1, 1]),
        ("proj_attn.weight", vec![4, 4]),
        ("group_norm.weight", vec![4]),
    ]
    .into_iter()
    .map(|(name, shape)| (format!("{block}.{name}"), shape))
    .chain([("decoder.mid_block.resnets.0.conv1.weight".to_owned(), vec![4, 4, 1, 1])])
    .collect();
    let tensors: Vec<_> = old.iter().map(|(n, s)| (n.as_str(), "BF16", s.as_slice())).collect();
    let catalog = component("AutoencoderKL", file_of(&tensors)).unwrap();
    for (name, shape) in [
        ("to_q.weight", &[4, 4][..]),
        ("to_q.bias", &[4]),
        ("to_k.weight", &[4, 4]),
        ("to_v.weight", &[4, 4]),
        ("to_out.0.weight", &[4, 4]),
        ("group_norm.weight", &[4]),
    ] {
        let entry = catalog.get(&format!("{block}.{name}")).unwrap();
        assert_eq!(entry.shape, shape, "{name}");
    }
    // A convolution stays one.
    let conv = catalog.get("decoder.mid_block.resnets.0.conv1.weight").unwrap();
    assert_eq!(conv.shape, [4, 4, 1, 1]);
}

/// What the check says of the VAE of the demo model, decoder only, after a change to the list.
fn check(change: impl FnOnce(&mut Vec<(String, Vec<u64>)>), expect: &str) {
    let checkpoint = open_folder(demo_model()).unwrap();
    let catalog = checkpoint.components["vae"].catalog.as_ref().unwrap();
    let decoder = catalog.iter().filter(|(name, _)| name.starts_with("decoder."));
    let mut needed: Vec<(String, Vec<u64>)> =
        decoder.map(|(name, entry)| (name.clone(), entry.shape.clone())).collect();
    change(&mut needed);
    let found = catalog.expect(needed).map_err(|error| error.to_string());
    let at = format!("{}: ", catalog.path().display());
    assert_eq!(found.err().map(|line| line.replace(&at, "")).unwrap_or_default(), expect);
}

#[test]
fn a_model_gets_exactly_the_tensors_it_needs() {
    // The encoder may come along.
    check(|_| {}, "");
    check(
        |needed| needed.push(("decoder.extra.weight".to_owned(), vec![7, 3])),
        "missing 1 tensor: `decoder.extra.weight` [7, 3]",
    );
    check(
        |needed| needed.retain(|(name, _)| !name.starts_with("decoder.conv_out.")),
        "2 tensors that the model has not: `decoder.conv_out.bias` [3], `decoder.conv_out.weight` [3, 32, 3, 3]",
    );
    check(
        |needed| {
            needed.iter_mut().find(|(name, _)| name == "decoder.conv_out.bias").unwrap().1 =
                vec![4];
            needed.push(("decoder.more".to_owned(), vec![]));
        },
        "missing 1 tensor: `decoder.more` []; 1 tensor of another shape: `decoder.conv_out.bias` is [3], expected [4]",
    );
    check(
        |needed| needed.extend((0..40).map(|i| (format!("decoder.{i}"), vec![i]))),
        "missing 40 tensors: `decoder.0` [0], `decoder.1` [1], `decoder.2` [2], and 37 more",
    );
}

#[test]
fn what_files_carry_along_is_let_pass() {
    let clip = component(
        "CLIPTextModel",
        bf16_file(&[
            ("text_model.embeddings.token_embedding.weight", &[4, 2]),
            ("text_model.embeddings.position_ids", &[1, 4]),
            ("text_projection.weight", &[2, 2]),
            ("logit_scale", &[]),
        ]),
    )
    .unwrap();
    let needed = [("text_model.embeddings.token_embedding.weight", [4u64, 2])];
    clip.expect(needed).unwrap();
    let error = clip.expect::<&str, [u64; 2]>([]).unwrap_err().to_string();
    assert!(
        error.ends_with(
            "1 tensor that the model has not: `text_model.embeddings.token_embedding.weight` [4, 2]"
        ),
        "{error}"
    );
}

#[test]
fn a_component_that_is_null_or_has_no_weights_is_no_matter() {
    let folder = tempfile::tempdir().unwrap();
    copy_tree(&demo_model(), folder.path());
    let index = folder.path().join("model_index.json");
    let text = std::fs::read_to_string(&index).unwrap();
    assert!(text.contains("\"image_encoder\": [\n    null"));
    let with_flag = text.replacen('{', "{\n  \"some_flag\": true,\n  \"vae_scale\": 8,", 1);
    std::fs::write(&index, with_flag).unwrap();
    let checkpoint = open_folder(folder.path()).unwrap();
    assert!(!checkpoint.components.contains_key("image_encoder"));
    assert_eq!(checkpoint.components.len(), 7);
}
