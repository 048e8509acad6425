//! Ids are those of the reference tokenizers, and no file or prompt brings the process down.
#![allow(clippy::unwrap_used)] // In tests, helper functions too.

use std::path::{Path, PathBuf};

use plimsoll_pipeline::error::{Fault, TokenizerError};
use plimsoll_pipeline::tokenize::{
    PROMPT_BYTES_MAX, PromptTokenizer, TextFamily, TokenizerFiles, pooled_position,
};
use serde_json::{Value, json};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder of a model by its name in the golden files.
fn folder(model: &str) -> PathBuf {
    match model {
        "demo" => root().join("demo/model"),
        "small" => root().join("tests/golden/odd-tiny"),
        _ => root().join("tests/golden").join(model),
    }
}

fn load(model: &str, family: TextFamily) -> PromptTokenizer {
    let name = match family {
        TextFamily::Clip => "tokenizer",
        TextFamily::T5 => "tokenizer_2",
    };
    let files = TokenizerFiles::read(&folder(model).join(name)).unwrap();
    PromptTokenizer::load(&files, family, 50_000).unwrap()
}

fn ids(values: &Value) -> Vec<u32> {
    values.as_array().unwrap().iter().map(|value| value.as_u64().unwrap() as u32).collect()
}

#[test]
fn every_golden_prompt_has_the_ids_of_the_reference() {
    let bytes = std::fs::read(root().join("tests/golden/tokens.json")).unwrap();
    let rows: Vec<Value> = serde_json::from_slice(&bytes).unwrap();
    let mut checked = 0;
    // The CLIP folder of dev-tiny has vocabulary and merges alone, and the ids of `small`.
    for (model, name, family, rows_of) in [
        ("demo", "clip", TextFamily::Clip, "demo"),
        ("demo", "t5", TextFamily::T5, "demo"),
        ("small", "clip", TextFamily::Clip, "small"),
        ("small", "t5", TextFamily::T5, "small"),
        ("dev-tiny", "clip", TextFamily::Clip, "small"),
    ] {
        let tokenizer = load(model, family);
        for row in rows.iter().filter(|row| row["tokenizers"] == rows_of) {
            let text = row["text"].as_str().unwrap();
            let prompt = text.repeat(row["repeat"].as_u64().unwrap() as usize);
            checked += 1;
            let expected = ids(&row[name]);
            let tokens = tokenizer.encode(&prompt, expected.len()).unwrap();
            assert_eq!(tokens.ids, expected, "{model} {name} {text:?}");
            let uncut = row[&format!("{name}_count_uncut")].as_u64().unwrap() as usize;
            assert_eq!(tokens.count, uncut.min(expected.len()), "{model} {name} {text:?}");
            assert_eq!(tokens.dropped.is_some(), uncut > expected.len(), "{name} {text:?}");
        }
    }
    assert_eq!(checked, 5 * 47);
}

#[test]
fn the_dropped_part_is_the_end_of_the_prompt() {
    let clip = load("demo", TextFamily::Clip);
    let prompt = "ice ".repeat(200); // A token a word.
    let prompt = prompt.trim();
    let tokens = clip.encode(prompt, 77).unwrap();
    let dropped = tokens.dropped.unwrap();
    assert!(prompt.ends_with(&dropped));
    assert_eq!(dropped.split(' ').count(), 200 - 75);
    // What was kept and what was dropped make the whole prompt.
    let kept = prompt[..prompt.len() - dropped.len()].trim_end();
    assert_eq!(clip.encode(kept, 77).unwrap().ids, tokens.ids);
    assert_eq!(clip.encode(kept, 77).unwrap().dropped, None);

    // A cut inside a character of several tokens keeps the text valid.
    for count in 60..90 {
        let prompt = format!("{}🍦🍨東京の夜景", "a ".repeat(count));
        if let Some(dropped) = clip.encode(&prompt, 77).unwrap().dropped {
            assert!(prompt.trim().ends_with(&dropped), "{count}: {dropped:?}");
        }
    }
}

#[test]
fn length_is_the_lesser_of_the_request_and_the_folder() {
    let t5 = load("demo", TextFamily::T5);
    assert_eq!(t5.length_max(), Some(32));
    assert_eq!(t5.encode("a", 512).unwrap().ids.len(), 32);
    assert_eq!(t5.encode("a", 16).unwrap().ids.len(), 16);
    // The end token alone.
    assert_eq!(t5.encode("ice cream", 1).unwrap().ids, [1]);
    let error = t5.encode("a", 0).unwrap_err();
    assert!(matches!(error, TokenizerError::LengthOutOfRange { length_min: 1, .. }), "{error}");
    assert!(load("demo", TextFamily::Clip).encode("a", 1).is_err());

    let mut files = TokenizerFiles::read(&folder("demo").join("tokenizer_2")).unwrap();
    files.config_json = Some(br#"{"model_max_length": 1000000000000000019884624838656}"#.to_vec());
    let unlimited = PromptTokenizer::load(&files, TextFamily::T5, 2300).unwrap();
    assert_eq!(unlimited.length_max(), None);
    assert_eq!(unlimited.encode("a", 512).unwrap().ids.len(), 512);
    let error = unlimited.encode("a", usize::MAX).unwrap_err();
    assert_eq!(error.fault(), Fault::Caller);
}

#[test]
fn long_and_odd_prompts() {
    let (clip, t5) = (load("demo", TextFamily::Clip), load("demo", TextFamily::T5));
    let prompts = [
        String::new(),
        "\n\t  ".to_owned(),
        "a".repeat(100_000),
        "a ".repeat(50_000),
        " ".repeat(100_000),
        "🍦".repeat(25_000),
        "e\u{301}".repeat(33_000),
        "\0".repeat(1000),
        "\u{fdfa}".repeat(30_000), // Expands 18-fold under compatibility normalisation.
        "'s".repeat(50_000),
        (0..0x11_0000).filter_map(char::from_u32).step_by(40).collect(),
    ];
    for prompt in &prompts {
        for (tokenizer, length) in [(&clip, 77), (&t5, 32)] {
            let tokens = tokenizer.encode(prompt, length).unwrap();
            assert_eq!(tokens.ids.len(), length);
            assert!((1..=length).contains(&tokens.count));
        }
    }
    let error = clip.encode(&"a".repeat(PROMPT_BYTES_MAX + 1), 77).unwrap_err();
    assert!(matches!(error, TokenizerError::PromptTooLong { .. }), "{error}");
    assert_eq!(error.fault(), Fault::Caller);
}

#[test]
fn pooled_position_follows_the_text_encoder() {
    assert_eq!(pooled_position(&[5, 9, 7, 9, 9], 9), 1);
    assert_eq!(pooled_position(&[5, 9, 7, 8, 9], 7), 2);
    // Legacy: the first greatest id, whatever it is.
    assert_eq!(pooled_position(&[5, 9, 7, 9, 2], 2), 1);
    assert_eq!(pooled_position(&[5, 6], 9), 0);
    assert_eq!(pooled_position(&[], 2), 0);
    let tokens = load("demo", TextFamily::Clip).encode("ice cream", 77).unwrap();
    assert_eq!(pooled_position(&tokens.ids, 1499), tokens.count - 1);
}

/// The demo's CLIP folder read from vocabulary and merges gives what its `tokenizer.json` gives.
#[test]
fn vocabulary_and_merges_make_the_same_tokenizer() {
    let path = folder("demo").join("tokenizer");
    let read = |name: &str| std::fs::read(path.join(name)).ok();
    let files = TokenizerFiles {
        tokenizer_json: None,
        config_json: read("tokenizer_config.json"),
        vocab_json: read("vocab.json"),
        merges_txt: read("merges.txt"),
    };
    let (built, whole) = (
        PromptTokenizer::load(&files, TextFamily::Clip, 1500).unwrap(),
        load("demo", TextFamily::Clip),
    );
    for prompt in
        ["", "Ice  Cream, 3D!", "it's 1234 naïve", "🍦東京", "<|endoftext|> a <|startoftext|>"]
    {
        assert_eq!(built.encode(prompt, 77).unwrap(), whole.encode(prompt, 77).unwrap());
    }
}

fn clip_files() -> TokenizerFiles {
    TokenizerFiles::read(&folder("demo").join("tokenizer")).unwrap()
}

/// The demo's `tokenizer.json` with one change.
fn changed(change: impl FnOnce(&mut Value)) -> TokenizerFiles {
    let mut files = clip_files();
    let mut json: Value = serde_json::from_slice(files.tokenizer_json.as_ref().unwrap()).unwrap();
    change(&mut json);
    files.tokenizer_json = Some(json.to_string().into_bytes());
    files
}

fn refuse(files: &TokenizerFiles) -> TokenizerError {
    let error = PromptTokenizer::load(files, TextFamily::Clip, 1500).unwrap_err();
    assert_eq!(error.fault(), Fault::File);
    assert!(!error.to_string().contains('\n'), "{error}");
    error
}

#[test]
fn files_that_do_not_fit_the_model_are_refused() {
    let error = PromptTokenizer::load(&clip_files(), TextFamily::Clip, 1499).unwrap_err();
    assert!(matches!(error, TokenizerError::IdOutOfRange { id: 1499, .. }), "{error}");
    PromptTokenizer::load(&clip_files(), TextFamily::Clip, 1500).unwrap();

    let mut files = clip_files();
    files.config_json = Some(br#"{"pad_token": "<nothing>"}"#.to_vec());
    assert!(matches!(refuse(&files), TokenizerError::TokenMissing { role: "padding", .. }));
    files.config_json =
        Some(br#"{"pad_token": {"content": "!", "__type": "AddedToken"}}"#.to_vec());
    let padded = PromptTokenizer::load(&files, TextFamily::Clip, 1500).unwrap();
    assert_eq!(padded.encode("", 4).unwrap().ids, [1498, 1499, 0, 0]);
    for config in [&b"["[..], b"{\"eos_token\": 3}", b"\xff"] {
        files.config_json = Some(config.to_vec());
        refuse(&files);
    }

    let frame = changed(|json| {
        json["post_processor"]["cls"] = json!(["<|endoftext|>", 1499]);
    });
    assert!(matches!(refuse(&frame), TokenizerError::FrameUnexpected { .. }));
    let unframed = changed(|json| json["post_processor"] = Value::Null);
    let unframed = PromptTokenizer::load(&unframed, TextFamily::Clip, 1500).unwrap();
    let tokens = unframed.encode("ice cream", 77).unwrap();
    assert_eq!(tokens, load("demo", TextFamily::Clip).encode("ice cream", 77).unwrap());

    // Settings left in the file by its last user do not change the ids.
    let used = changed(|json| {
        json["truncation"] = json!({"direction": "Right", "max_length": 5,
            "strategy": "LongestFirst", "stride": 0});
        json["padding"] = json!({"strategy": {"Fixed": 9}, "direction": "Left",
            "pad_to_multiple_of": null, "pad_id": 3, "pad_type_id": 0, "pad_token": "!"});
    });
    let used = PromptTokenizer::load(&used, TextFamily::Clip, 1500).unwrap();
    let prompt = "a b c d e f g h";
    let plain = load("demo", TextFamily::Clip);
    assert_eq!(used.encode(prompt, 77).unwrap(), plain.encode(prompt, 77).unwrap());
}

#[test]
fn hostile_files_are_typed_errors() {
    let pattern = changed(|json| {
        json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = json!("(a+)+(?=b)");
    });
    assert!(matches!(refuse(&pattern), TokenizerError::PatternBacktracks { .. }));
    refuse(&changed(|json| json["model"]["dropout"] = json!(0.1)));
    refuse(&changed(|json| json["model"]["merges"] = json!([["no", "such"]])));
    refuse(&changed(|json| json["model"]["vocab"] = json!({})));
    refuse(&changed(|json| json["model"]["type"] = json!("Unknown")));
    refuse(&changed(|json| {
        json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = json!("((a{1000}){1000}");
    }));
    for text in ["", "{", "[]", "null", "{}", "{\"model\": {}}", &"[".repeat(100_000)] {
        let files = TokenizerFiles {
            tokenizer_json: Some(text.as_bytes().to_vec()),
            ..TokenizerFiles::default()
        };
        refuse(&files);
    }
    refuse(&TokenizerFiles::default());
    let pairs = |vocab: &[u8], merges: &[u8]| TokenizerFiles {
        vocab_json: Some(vocab.to_vec()),
        merges_txt: Some(merges.to_vec()),
        ..TokenizerFiles::default()
    };
    let vocab = br#"{"<|startoftext|>": 0, "<|endoftext|>": 1, "a": 2, "b</w>": 3, "ab</w>": 4}"#;
    PromptTokenizer::load(&pairs(vocab, b"#version: 0.2\na b</w>\n"), TextFamily::Clip, 5).unwrap();
    for (vocab, merges) in [
        (&vocab[..], &b"a b c"[..]),
        (vocab, b"a\xff b"),
        (vocab, b"ab"),
        (vocab, b"x y"),
        (b"{}", b"a b"),
        (b"[1]", b"a b"),
        (br#"{"<|startoftext|>": "x", "<|endoftext|>": 1}"#, b""),
        (br#"{"<|startoftext|>": 0, "<|endoftext|>": 99999999999}"#, b""),
    ] {
        refuse(&pairs(vocab, merges));
    }
}

/// Every damaged byte and every truncation of a small file: an error or a tokenizer, never a panic
/// that leaves the library.
#[test]
fn damaged_files_never_bring_the_process_down() {
    let vocab = br#"{"<|startoftext|>":0,"<|endoftext|>":1,"a":2,"b</w>":3,"ab</w>":4,"a</w>":5}"#;
    let merges = b"#version: 0.2\na b</w>\n";
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": null, "decoder": null,
        "model": {"type": "Unigram", "unk_id": 2, "byte_fallback": false,
            "vocab": [["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0], ["a", -1.5], ["ab", -2.0]]},
    })
    .to_string()
    .into_bytes();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {})); // Contained panics are expected; keep the log short.
    let try_all = |bytes: &[u8], check: &dyn Fn(Vec<u8>)| {
        for index in 0..bytes.len() {
            check(bytes[..index].to_vec());
            for bit in 0..8 {
                let mut damaged = bytes.to_vec();
                damaged[index] ^= 1 << bit;
                check(damaged);
            }
        }
    };
    try_all(&json, &|bytes| {
        let files = TokenizerFiles { tokenizer_json: Some(bytes), ..TokenizerFiles::default() };
        if let Ok(tokenizer) = PromptTokenizer::load(&files, TextFamily::T5, 100) {
            tokenizer.encode("abba ab x", 8).ok();
        }
    });
    try_all(vocab, &|bytes| {
        let files = TokenizerFiles {
            vocab_json: Some(bytes),
            merges_txt: Some(merges.to_vec()),
            ..TokenizerFiles::default()
        };
        if let Ok(tokenizer) = PromptTokenizer::load(&files, TextFamily::Clip, 100) {
            tokenizer.encode("abba ab x", 8).ok();
        }
    });
    std::panic::set_hook(hook);
}

#[test]
fn folders_without_a_tokenizer_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = TokenizerFiles::read(folder.path()).unwrap_err();
    assert!(error.to_string().contains("vocab.json with merges.txt"), "{error}");
    std::fs::write(folder.path().join("vocab.json"), "{}").unwrap();
    assert!(TokenizerFiles::read(folder.path()).is_err());
    std::fs::write(folder.path().join("spiece.model"), "x").unwrap();
    let error = TokenizerFiles::read(folder.path()).unwrap_err();
    assert!(matches!(error, TokenizerError::SentencePieceOnly { .. }), "{error}");
    let file = std::fs::File::create(folder.path().join("tokenizer.json")).unwrap();
    file.set_len(65 << 20).unwrap();
    let error = TokenizerFiles::read(folder.path()).unwrap_err();
    assert!(matches!(error, TokenizerError::FileTooLarge { .. }), "{error}");
    std::fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    std::fs::create_dir(folder.path().join("tokenizer.json")).unwrap();
    let error = TokenizerFiles::read(folder.path()).unwrap_err();
    assert_eq!(error.fault(), Fault::Disk);
}
