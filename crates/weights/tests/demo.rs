//! The demo model of the repository, as a folder and as bytes in the program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;

use plimsoll_weights::{Architecture, Checkpoint, Layout, open_embedded, open_folder};
use support::{bytes_of, demo_model};

/// Every file of the demo model, leaked as if it were built into the program.
fn embedded() -> Vec<(&'static str, &'static [u8])> {
    let root = demo_model();
    let mut files = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let relative = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
                let data: &'static [u8] = fs::read(&path).unwrap().leak();
                files.push((&*relative.leak(), data));
            }
        }
    }
    files
}

fn names(checkpoint: &Checkpoint) -> Vec<(&str, &str)> {
    let components = checkpoint.components.iter();
    components.map(|(name, component)| (name.as_str(), component.class_name.as_str())).collect()
}

#[test]
fn the_folder_opens() {
    let checkpoint = open_folder(demo_model()).unwrap();
    assert_eq!(checkpoint.pipeline_class, "FluxPipeline");
    assert_eq!(
        names(&checkpoint),
        [
            ("scheduler", "FlowMatchEulerDiscreteScheduler"),
            ("text_encoder", "CLIPTextModel"),
            ("text_encoder_2", "T5EncoderModel"),
            ("tokenizer", "CLIPTokenizer"),
            ("tokenizer_2", "T5TokenizerFast"),
            ("transformer", "FluxTransformer2DModel"),
            ("vae", "AutoencoderKL"),
        ]
    );
    // Parameters as `demo/README.md` states them.
    for (name, architecture, parameters) in [
        ("transformer", Architecture::Flux1, 10_046_016),
        ("text_encoder", Architecture::ClipText, 599_552),
        ("text_encoder_2", Architecture::T5Encoder, 786_944),
        ("vae", Architecture::AutoencoderKl, 2_391_779),
    ] {
        let component = &checkpoint.components[name];
        let catalog = component.catalog.as_ref().unwrap();
        assert_eq!((catalog.architecture, catalog.layout), (architecture, Layout::Diffusers));
        let elements: u64 = catalog.iter().map(|(_, entry)| entry.elements()).sum();
        assert_eq!(elements, parameters, "{name}");
        assert!(component.config_json.starts_with('{'));
    }
    let scheduler = &checkpoint.components["scheduler"];
    assert!(scheduler.config_json.contains("\"shift\": 1.0") && scheduler.catalog.is_none());
    let kept: Vec<&String> = checkpoint.files.keys().collect();
    assert_eq!(
        kept,
        [
            "plimsoll.json",
            "scheduler/scheduler_config.json",
            "tokenizer/merges.txt",
            "tokenizer/tokenizer.json",
            "tokenizer/tokenizer_config.json",
            "tokenizer/vocab.json",
            "tokenizer_2/tokenizer.json",
            "tokenizer_2/tokenizer_config.json",
        ]
    );
    let stored = fs::read(demo_model().join("tokenizer/tokenizer.json")).unwrap();
    assert_eq!(checkpoint.file("tokenizer/tokenizer.json"), Some(&stored[..]));
}

#[test]
fn built_in_bytes_give_the_same_checkpoint() {
    let folder = open_folder(demo_model()).unwrap();
    let built_in = open_embedded(&embedded()).unwrap();
    assert_eq!(names(&folder), names(&built_in));
    assert_eq!(folder.files, built_in.files);
    for (name, component) in &folder.components {
        let other = &built_in.components[name];
        assert_eq!(component.config_json, other.config_json);
        let (Some(ours), Some(theirs)) = (&component.catalog, &other.catalog) else {
            assert!(other.catalog.is_none());
            continue;
        };
        assert!(ours.iter().eq(theirs.iter()), "{name}");
        let (_, entry) = ours.iter().next().unwrap();
        assert_eq!(bytes_of(ours, entry), bytes_of(theirs, entry));
    }
}
