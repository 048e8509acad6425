//! The transformer that is packed once and kept in the user's cache.

mod support;

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use support::{Folder, PROMPT, copy_folder, demo};

/// Two checkpoints of the same lengths, times and headers, and a cached file that is another one: what is kept is used
/// only where it has the rows that it should have.
#[test]
fn a_cached_transformer_is_used_for_its_own_checkpoint_only() {
    const WEIGHTS: &str = "transformer/diffusion_pytorch_model.safetensors";
    let folder = Folder::new();
    let at = |name: &str| folder.0.path().join(name);
    let written = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000);
    for name in ["one", "two"] {
        copy_folder(Path::new(&demo()), &at(name));
        let mut bytes = std::fs::read(at(name).join(WEIGHTS)).unwrap();
        if name == "two" {
            let header = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            // The signs of all bf16 numbers.
            let data = &mut bytes[8 + usize::try_from(header).unwrap()..];
            data.iter_mut().skip(1).step_by(2).for_each(|byte| *byte ^= 0x80);
        }
        std::fs::write(at(name).join(WEIGHTS), bytes).unwrap();
        std::fs::File::open(at(name).join(WEIGHTS)).unwrap().set_modified(written).unwrap();
    }
    let run = |name: &str| {
        let model = at(name).display().to_string();
        let arguments = ["generate", PROMPT, "--model", &model, "--vram", "min", "--json"];
        let fp8 = ["--dtype", "transformer=fp8", "--steps", "2"];
        let mut command = folder.command(&[&arguments[..], &fp8[..]].concat());
        let output = command.env("XDG_CACHE_HOME", at("cache")).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        (json["latent_sha256"].clone(), errors)
    };
    let (one, _) = run("one");
    let (two, errors) = run("two");
    assert_ne!(one, two);
    assert!(errors.contains("are not this checkpoint"), "{errors}");
    assert_eq!(run("two"), (two, String::new()));
    // A whole file that is not in 8 bits.
    let kept = std::fs::read_dir(at("cache/plimsoll/packed")).unwrap();
    let mut files = kept.map(|entry| entry.unwrap().path());
    let file = files.find(|path| path.extension().is_some_and(|end| end == "safetensors"));
    std::fs::copy(at("one").join(WEIGHTS), file.unwrap()).unwrap();
    let (again, errors) = run("one");
    assert_eq!(again, one);
    assert!(errors.contains("are not this checkpoint"), "{errors}");
}
