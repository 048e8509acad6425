//! Folders that lie: each case is one change to a sound folder and the one line that answers it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::path::Path;

use plimsoll_weights::{Fault, open_embedded, open_folder, open_transformer_file};
use support::{bf16_file, copy_tree, repository, write};

/// Opens a copy of the sharded golden folder after `change`; the answer, with the folder as `F`.
fn answer(change: impl FnOnce(&Path)) -> String {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap().join("model");
    copy_tree(&repository().join("tests/golden/dev-tiny"), &root);
    change(&root);
    match open_folder(&root) {
        Ok(checkpoint) => format!("{} components", checkpoint.components.len()),
        Err(error) => {
            let line = error.to_string();
            assert!(!line.contains('\n') && line.len() < 1000, "{line}");
            line.replace(&root.display().to_string(), "F")
        }
    }
}

fn check(change: impl FnOnce(&Path), expect: &str) {
    assert_eq!(answer(change), expect);
}

/// Replaces text in a file of the folder, which must hold it.
fn edit(file: &'static str, from: &'static str, to: &'static str) -> impl FnOnce(&Path) {
    move |root| {
        let path = root.join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{file} has no {from}");
        fs::write(path, text.replacen(from, to, 1)).unwrap();
    }
}

fn remove(file: &'static str) -> impl FnOnce(&Path) {
    move |root| fs::remove_file(root.join(file)).unwrap()
}

const INDEX: &str = "transformer/diffusion_pytorch_model.safetensors.index.json";
const SHARD_1: &str = "transformer/diffusion_pytorch_model-00001-of-00002.safetensors";
const SHARD_2: &str = "transformer/diffusion_pytorch_model-00002-of-00002.safetensors";

#[test]
fn the_sound_folder_opens() {
    check(|_| {}, "7 components");
}

#[test]
fn shards_that_are_not_what_the_index_says_are_refused() {
    check(remove(SHARD_2), &format!("F/{SHARD_2}: not found (the index names it as a shard)"));
    check(
        |root| {
            let data = fs::read(root.join(SHARD_2)).unwrap();
            fs::write(root.join(SHARD_2), &data[..data.len() - 1]).unwrap();
        },
        &format!(
            "F/{SHARD_2}: the file has 148999 bytes but its header describes 149000: cut short, \
             or still being downloaded"
        ),
    );
    // A tensor that no shard has, and one that the index does not know.
    let added = answer(edit(
        INDEX,
        "\"context_embedder.bias\"",
        "\"planted\": \"diffusion_pytorch_model-00001-of-00002.safetensors\",\n\"context_embedder.bias\"",
    ));
    assert_eq!(
        added,
        format!(
            "F/{INDEX}: tensor `planted` is not in the shard `diffusion_pytorch_model-00001-of-00002.safetensors`, where the index puts it"
        )
    );
    let renamed = answer(edit(INDEX, "\"context_embedder.bias\"", "\"context_embedder.bios\""));
    assert!(renamed.starts_with(&format!("F/{INDEX}: the shard `")), "{renamed}");
    assert!(
        renamed.ends_with(
            "holds the tensor `context_embedder.bias`, which the index does not put there"
        ),
        "{renamed}"
    );
    // A tensor put into the other shard.
    let moved = answer(|root| {
        let path = root.join(INDEX);
        let mut index: serde_json::Value =
            serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let place = &mut index["weight_map"]["context_embedder.bias"];
        let other = if place.as_str().unwrap().contains("00001") { SHARD_2 } else { SHARD_1 };
        *place = other.trim_start_matches("transformer/").into();
        fs::write(path, index.to_string()).unwrap();
    });
    assert!(
        moved.contains("the tensor `context_embedder.bias`, which the index does not put there"),
        "{moved}"
    );
    // A shard of one tensor too many.
    let swapped = answer(|root| {
        fs::copy(root.join(SHARD_1), root.join(SHARD_2)).unwrap();
    });
    assert!(swapped.contains("which the index does not put there"), "{swapped}");
}

#[test]
fn an_index_that_lies_about_its_size_is_refused() {
    let total = |bytes: &'static str| {
        move |root: &Path| {
            let path = root.join(INDEX);
            let mut index: serde_json::Value =
                serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            index["metadata"]["total_size"] = serde_json::from_str(bytes).unwrap();
            fs::write(path, index.to_string()).unwrap();
        }
    };
    let answered = answer(total("99999999999"));
    assert!(
        answered.starts_with(&format!(
            "F/{INDEX}: the index speaks of 99999999999 bytes, but its shards hold 3"
        )),
        "{answered}"
    );
    let answered = answer(total("1e300"));
    assert!(answered.contains("the index speaks of 18446744073709551615 bytes"), "{answered}");
    // Smaller, or written as a float, is seen in the wild.
    check(total("1"), "7 components");
    check(total("300000.0"), "7 components");
    check(total("-5"), "7 components");
    let answered = answer(total("\"many\""));
    assert!(answered.starts_with(&format!("F/{INDEX}: invalid type")), "{answered}");
}

#[test]
fn names_that_lead_out_of_the_folder_are_refused() {
    for (name, shown) in [
        (
            "../vae/diffusion_pytorch_model.safetensors",
            "../vae/diffusion_pytorch_model.safetensors",
        ),
        ("x/../../vae/a.safetensors", "x/../../vae/a.safetensors"),
        ("/etc/passwd", "/etc/passwd"),
        ("a\\\\b.safetensors", "a\\b.safetensors"),
        ("C:evil.safetensors", "C:evil.safetensors"),
        ("", ""),
        ("..", ".."),
        ("a\\u0000b", "a\\u{0}b"),
    ] {
        let answered = answer(move |root| {
            let text = fs::read_to_string(root.join(INDEX)).unwrap();
            let shard = "diffusion_pytorch_model-00001-of-00002.safetensors";
            fs::write(root.join(INDEX), text.replace(shard, name)).unwrap();
        });
        assert_eq!(
            answered,
            format!("F/{INDEX}: the name `{shown}` is not a plain relative path inside the folder")
        );
    }
    let answered = answer(edit("model_index.json", "\"vae\"", "\"../vae\""));
    assert_eq!(
        answered,
        "F/model_index.json: the name `../vae` is not a plain relative path inside the folder"
    );
    let answered = answer(edit("model_index.json", "\"vae\"", "\"vae/../vae\""));
    assert!(answered.contains("is not a plain relative path"), "{answered}");
}

#[cfg(unix)]
#[test]
fn links_that_leave_the_folder_are_refused() {
    use std::os::unix::fs::symlink;
    let outside = tempfile::tempdir().unwrap();
    let outside = outside.path().canonicalize().unwrap();
    copy_tree(&repository().join("tests/golden/dev-tiny"), &outside);

    let answered = answer(|root| {
        fs::remove_file(root.join(SHARD_1)).unwrap();
        symlink(outside.join(SHARD_1), root.join(SHARD_1)).unwrap();
    });
    let leads = |file: &str| {
        format!("F/{file}: leads out of the folder, to {}", outside.join(file).display())
    };
    assert_eq!(answered, leads(SHARD_1));
    let answered = answer(|root| {
        fs::remove_dir_all(root.join("vae")).unwrap();
        symlink(outside.join("vae"), root.join("vae")).unwrap();
    });
    assert_eq!(answered, leads("vae/config.json"));
    let answered = answer(|root| {
        fs::remove_file(root.join("tokenizer_2/tokenizer.json")).unwrap();
        symlink("/etc/passwd", root.join("tokenizer_2/tokenizer.json")).unwrap();
    });
    assert!(
        answered.starts_with("F/tokenizer_2/tokenizer.json: leads out of the folder"),
        "{answered}"
    );
    // Inside the folder a link is as good as a file; a broken one is a missing file.
    check(
        |root| {
            fs::rename(root.join(SHARD_1), root.join("moved")).unwrap();
            symlink("../moved", root.join(SHARD_1)).unwrap();
        },
        "7 components",
    );
    check(
        |root| {
            fs::remove_file(root.join(SHARD_1)).unwrap();
            symlink("nowhere", root.join(SHARD_1)).unwrap();
        },
        &format!("F/{SHARD_1}: not found (the index names it as a shard)"),
    );
}

#[cfg(unix)]
#[test]
fn a_snapshot_of_the_hugging_face_cache_opens_though_its_files_are_links() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let repository_folder = folder.path().join("models--someone--tiny");
    let snapshot = repository_folder.join("snapshots/0123abcd");
    copy_tree(&repository().join("tests/golden/dev-tiny"), &snapshot);
    let blobs = repository_folder.join("blobs");
    fs::create_dir(&blobs).unwrap();
    fs::rename(snapshot.join(SHARD_1), blobs.join("aa11")).unwrap();
    symlink("../../../blobs/aa11", snapshot.join(SHARD_1)).unwrap();
    assert_eq!(open_folder(&snapshot).unwrap().components.len(), 7);
    // But only into the blobs.
    fs::rename(blobs.join("aa11"), repository_folder.join("aa11")).unwrap();
    fs::remove_file(snapshot.join(SHARD_1)).unwrap();
    symlink("../../../aa11", snapshot.join(SHARD_1)).unwrap();
    let error = open_folder(&snapshot).unwrap_err().to_string();
    assert!(error.contains("leads out of the folder"), "{error}");
}

#[cfg(unix)]
#[test]
fn a_pipe_or_folder_in_place_of_a_file_is_refused_at_once() {
    check(
        |root| {
            fs::remove_file(root.join(SHARD_1)).unwrap();
            let made = std::process::Command::new("mkfifo").arg(root.join(SHARD_1)).status();
            assert!(made.unwrap().success());
        },
        &format!("F/{SHARD_1}: not a regular file"),
    );
    check(
        |root| {
            fs::remove_file(root.join("vae/config.json")).unwrap();
            fs::create_dir(root.join("vae/config.json")).unwrap();
        },
        "F/vae/config.json: not a regular file",
    );
}

#[test]
fn text_files_that_are_damaged_are_refused() {
    check(
        remove("model_index.json"),
        "F/model_index.json: not found (every pipeline folder has one)",
    );
    check(
        remove("vae/config.json"),
        "F/vae/config.json: not found (every component with weights has one)",
    );
    check(
        remove("vae/diffusion_pytorch_model.safetensors"),
        "F/vae: not found (a folder of weights needs a .safetensors file or its index)",
    );
    check(
        edit("model_index.json", "\"_class_name\": \"FluxPipeline\",", ""),
        "F/model_index.json: `_class_name` is missing",
    );
    check(
        edit("model_index.json", "\"vae\"", "\"transformer\""),
        "F/model_index.json: the component `transformer` occurs twice",
    );
    check(
        edit("model_index.json", "FluxTransformer2DModel", "SD3Transformer2DModel"),
        "F/model_index.json: the transformer is a `SD3Transformer2DModel`, which is not supported yet",
    );
    let answered = answer(edit(INDEX, "\"context_embedder.bias\"", "\"context_embedder.weight\""));
    assert_eq!(answered, format!("F/{INDEX}: the tensor `context_embedder.weight` occurs twice"));
    for (file, text) in [
        ("model_index.json", &b"{\"_class_name\": "[..]),
        ("vae/config.json", b"[]"),
        ("vae/config.json", b"{} {}"),
        (INDEX, b"{\"weight_map\": 7}"),
        (INDEX, b"{}"),
        ("transformer/config.json", b"\xff"),
        ("scheduler/scheduler_config.json", b"nothing"),
        ("tokenizer/tokenizer_config.json", b"\"text\""),
    ] {
        let answered = answer(|root| fs::write(root.join(file), text).unwrap());
        assert!(answered.starts_with(&format!("F/{file}: ")), "{answered}");
    }
    check(
        |root| fs::write(root.join("vae/config.json"), vec![b' '; (1 << 20) + 1]).unwrap(),
        "F/vae/config.json: 1048577 bytes, over the cap of 1048576 for a config",
    );
    check(
        |root| {
            let file = fs::File::create(root.join("tokenizer_2/tokenizer.json")).unwrap();
            file.set_len(1 << 40).unwrap();
        },
        "F/tokenizer_2/tokenizer.json: 1099511627776 bytes, over the cap of 67108864 for a tokenizer file",
    );
    check(
        |root| fs::File::create(root.join(INDEX)).unwrap().set_len(1 << 40).unwrap(),
        &format!("F/{INDEX}: 1099511627776 bytes, over the cap of 16777216 for an index of shards"),
    );
}

#[test]
fn components_that_are_not_what_their_class_says_are_refused() {
    let vae = "vae/diffusion_pytorch_model.safetensors";
    check(
        |root| {
            fs::copy(root.join("text_encoder/model.safetensors"), root.join(vae)).unwrap();
        },
        &format!(
            "F/{vae}: class `AutoencoderKL` should hold an image autoencoder (VAE), but the file \
             holds a CLIP text encoder"
        ),
    );
    check(
        |root| write(&root.join(vae), bf16_file(&[("some.weight", &[2])])),
        &format!("F/{vae}: holds an unknown model: its tensor names belong to no model known here"),
    );
    check(
        edit("vae/config.json", "{", "{\"quantization_config\": {\"quant_method\": \"torchao\"},"),
        "F/vae/config.json: the config asks for the quantisation `torchao`, which is not read yet: \
         use the plain bf16 files of the same model",
    );
    check(
        |root| {
            fs::rename(root.join(vae), root.join("vae/a.safetensors")).unwrap();
            fs::copy(root.join("vae/a.safetensors"), root.join("vae/b.safetensors")).unwrap();
        },
        "F/vae: several weight files and no index: `a.safetensors`, `b.safetensors`",
    );
    // One file under another name, as a variant has it, leaves no doubt.
    check(
        |root| {
            let variant = root.join("vae/diffusion_pytorch_model.fp16.safetensors");
            fs::rename(root.join(vae), variant).unwrap();
        },
        "7 components",
    );
    check(
        |root| {
            fs::remove_file(root.join(vae)).unwrap();
            write(&root.join("vae/diffusion_pytorch_model.bin"), b"PK\x03\x04....archive/data.pkl");
        },
        "F/vae/diffusion_pytorch_model.bin: this is a Python pickle (.ckpt, .pt, .bin): reading one \
         can run any code, so it is never read: convert it to safetensors",
    );
}

#[test]
fn a_flipped_bit_in_the_index_does_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (
        bf16_file(&[("proj_out.weight", &[4, 2])]),
        bf16_file(&[("single_transformer_blocks.0.proj_mlp.weight", &[2, 2])]),
    );
    write(&folder.path().join("a.safetensors"), first);
    write(&folder.path().join("b.safetensors"), second);
    let text = br#"{"metadata":{"total_size":24},"weight_map":{"proj_out.weight":"a.safetensors","single_transformer_blocks.0.proj_mlp.weight":"b.safetensors"}}"#;
    let index = folder.path().join("model.safetensors.index.json");
    fs::write(&index, text).unwrap();
    open_transformer_file(folder.path()).unwrap();
    let at = folder.path().display().to_string();
    let mut refused = 0;
    for bit in 0..text.len() * 8 {
        let mut damaged = text.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        fs::write(&index, damaged).unwrap();
        if let Err(error) = open_transformer_file(folder.path()) {
            let line = error.to_string();
            assert!(!line.contains('\n') && line.starts_with(&at), "{line}");
            refused += 1;
        }
    }
    assert!(refused > text.len() * 6, "{refused}");
}

#[test]
fn embedded_files_obey_the_same_rules() {
    let none = open_embedded(&[]).unwrap_err();
    assert_eq!(
        none.to_string(),
        "built-in model/model_index.json: not found (every pipeline folder has one)"
    );
    assert_eq!(none.fault(), Fault::File);
    let error = open_embedded(&[(
        "model_index.json",
        b"{\"_class_name\": \"FluxPipeline\", \"vae\": [\"diffusers\", \"AutoencoderKL\"]}",
    )]);
    assert_eq!(
        error.unwrap_err().to_string(),
        "built-in model/vae/config.json: not found (every component with weights has one)"
    );
}

#[test]
fn a_path_that_is_not_there_is_said_so() {
    for error in [
        open_folder("/no/such/folder").map(|_| ()).unwrap_err(),
        open_transformer_file("/no/such/folder").map(|_| ()).unwrap_err(),
    ] {
        assert_eq!(error.fault(), Fault::Disk);
        let line = error.to_string();
        assert!(line.starts_with("/no/such/folder: cannot open the f"), "{line}");
    }
}
