//! The files of a tokenizer folder, and the checks they pass before a tokenizer is built of them.
//!
//! A folder comes from strangers: sizes are capped before reading, a pattern that could make
//! matching slow without bound is refused, and so is a merge dropout, which draws random numbers.
//!
//! Main types: [`TokenizerFiles`] (the bytes), [`Settings`] (the special tokens and the length).
//! Not here: what the tokenizer does with a prompt (`tokenize`).

use std::io::Read as _;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::{TokenizerError, excerpt};

const TOKENIZER_JSON: &str = "tokenizer.json";
const CONFIG_JSON: &str = "tokenizer_config.json";
const VOCAB_JSON: &str = "vocab.json";
const MERGES_TXT: &str = "merges.txt";
/// The largest real one, with 256,000 pieces, has 17 MB.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Which text encoder a tokenizer serves: what frames a prompt, and the default special tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextFamily {
    /// `<|startoftext|> ... <|endoftext|>`, 77 ids, byte-level BPE.
    Clip,
    /// `... </s>`, SentencePiece unigram pieces.
    T5,
}

/// The bytes of a tokenizer folder, from a disk or from the program itself.
#[derive(Clone, Debug, Default)]
pub struct TokenizerFiles {
    /// `tokenizer.json`; the other vocabulary files are not looked at where it is there.
    pub tokenizer_json: Option<Vec<u8>>,
    /// `tokenizer_config.json`: special tokens and the greatest length.
    pub config_json: Option<Vec<u8>>,
    /// `vocab.json` of a CLIP folder without `tokenizer.json`.
    pub vocab_json: Option<Vec<u8>>,
    /// `merges.txt` beside it.
    pub merges_txt: Option<Vec<u8>>,
}

/// What `tokenizer_config.json` says, with the family's defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    pub(crate) bos: String,
    pub(crate) eos: String,
    pub(crate) pad: String,
    pub(crate) unk: String,
    /// Absent where the file names none or says "no limit" by a number beyond all lengths.
    pub(crate) length_max: Option<usize>,
}

#[derive(Default, Deserialize)]
struct Config {
    bos_token: Option<TokenText>,
    eos_token: Option<TokenText>,
    pad_token: Option<TokenText>,
    unk_token: Option<TokenText>,
    model_max_length: Option<f64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TokenText {
    Plain(String),
    Added { content: String },
}

/// The parts of a `tokenizer.json` that are checked; the vocabulary is skipped over.
#[derive(Deserialize)]
struct Checked {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    decoder: Value,
    model: CheckedModel,
}

#[derive(Deserialize)]
struct CheckedModel {
    dropout: Option<f64>,
}

impl TokenizerFiles {
    /// Reads those files of `folder` that are there.
    ///
    /// # Errors
    /// [`TokenizerError::FilesMissing`] or [`TokenizerError::SentencePieceOnly`] where no tokenizer
    /// can come of them, [`TokenizerError::FileTooLarge`], [`TokenizerError::Read`].
    pub fn read(folder: &Path) -> Result<Self, TokenizerError> {
        let mut files = Self {
            tokenizer_json: read_capped(folder, TOKENIZER_JSON)?,
            config_json: read_capped(folder, CONFIG_JSON)?,
            ..Self::default()
        };
        if files.tokenizer_json.is_none() {
            files.vocab_json = read_capped(folder, VOCAB_JSON)?;
            files.merges_txt = read_capped(folder, MERGES_TXT)?;
            if files.vocab_json.is_none() || files.merges_txt.is_none() {
                let folder_text = folder.display().to_string();
                return Err(if folder.join("spiece.model").is_file() {
                    TokenizerError::SentencePieceOnly { folder: folder_text }
                } else {
                    files_missing(folder_text)
                });
            }
        }
        Ok(files)
    }

    /// The special tokens and the greatest length.
    pub(crate) fn settings(&self, family: TextFamily) -> Result<Settings, TokenizerError> {
        let config: Config = match &self.config_json {
            Some(bytes) => parse(CONFIG_JSON, bytes)?,
            None => Config::default(),
        };
        let text = |token: Option<TokenText>, default: &str| match token {
            Some(TokenText::Plain(text) | TokenText::Added { content: text }) => text,
            None => default.to_owned(),
        };
        let end = "<|endoftext|>";
        let (bos, eos, pad, unk) = match family {
            TextFamily::Clip => ("<|startoftext|>", end, end, end),
            TextFamily::T5 => ("", "</s>", "<pad>", "<unk>"),
        };
        Ok(Settings {
            bos: text(config.bos_token, bos),
            eos: text(config.eos_token, eos),
            pad: text(config.pad_token, pad),
            unk: text(config.unk_token, unk),
            length_max: config.model_max_length.and_then(length_limit),
        })
    }

    /// The bytes of a checked `tokenizer.json`: the file's own, or one made of the vocabulary and
    /// the merges with CLIP's fixed normaliser and splitter.
    pub(crate) fn checked_json(&self, settings: &Settings) -> Result<Vec<u8>, TokenizerError> {
        if let Some(bytes) = &self.tokenizer_json {
            check_size(TOKENIZER_JSON, bytes.len())?;
            let file: Checked = parse(TOKENIZER_JSON, bytes)?;
            for part in [&file.normalizer, &file.pre_tokenizer, &file.decoder] {
                check_patterns(part)?;
            }
            if file.model.dropout.is_some_and(|dropout| dropout != 0.0) {
                let reason = "the model has a dropout, which makes ids random".to_owned();
                return Err(TokenizerError::Syntax { file: TOKENIZER_JSON, reason });
            }
            return Ok(bytes.clone());
        }
        match (&self.vocab_json, &self.merges_txt) {
            (Some(vocab), Some(merges)) => clip_json(vocab, merges, settings),
            _ => Err(files_missing("the tokenizer".to_owned())),
        }
    }
}

fn files_missing(folder: String) -> TokenizerError {
    let expected = "tokenizer.json, or vocab.json with merges.txt";
    TokenizerError::FilesMissing { folder, expected }
}

fn check_size(file: &'static str, bytes: usize) -> Result<(), TokenizerError> {
    let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
    if bytes > FILE_BYTES_MAX {
        return Err(TokenizerError::FileTooLarge { file, bytes, cap_bytes: FILE_BYTES_MAX });
    }
    Ok(())
}

/// The whole file, `None` if it is not there.
fn read_capped(folder: &Path, name: &'static str) -> Result<Option<Vec<u8>>, TokenizerError> {
    let path = folder.join(name);
    let failed = |source| TokenizerError::Read { path: path.clone(), source };
    let file = match std::fs::File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let bytes = file.metadata().map_err(failed)?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(TokenizerError::FileTooLarge { file: name, bytes, cap_bytes: FILE_BYTES_MAX });
    }
    // The file may grow, or be a device without a length: the limit holds while reading too.
    let mut content = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut content).map_err(failed)?;
    check_size(name, content.len())?;
    Ok(Some(content))
}

fn parse<'a, T: Deserialize<'a>>(file: &'static str, bytes: &'a [u8]) -> Result<T, TokenizerError> {
    check_size(file, bytes.len())?;
    serde_json::from_slice(bytes)
        .map_err(|error| TokenizerError::Syntax { file, reason: excerpt(&error.to_string()) })
}

/// "No limit" is written as 1e30; a negative or zero length is none either.
fn length_limit(length: f64) -> Option<usize> {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Within 1 to 10^6.
    (1.0..=1e6).contains(&length).then_some(length as usize)
}

/// A `tokenizer.json` for `vocab.json` and `merges.txt`, as transformers makes it for CLIP.
fn clip_json(vocab: &[u8], merges: &[u8], settings: &Settings) -> Result<Vec<u8>, TokenizerError> {
    let vocab: serde_json::Map<String, Value> = parse(VOCAB_JSON, vocab)?;
    check_size(MERGES_TXT, merges.len())?;
    let wrong = |reason: String| TokenizerError::Syntax { file: MERGES_TXT, reason };
    let text = std::str::from_utf8(merges).map_err(|error| wrong(error.to_string()))?;
    let mut pairs = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.is_empty() || (index == 0 && line.starts_with("#version")) {
            continue;
        }
        let Some((left, right)) = line.split_once(' ').filter(|(_, right)| !right.contains(' '))
        else {
            return Err(wrong(format!("line {} is not a pair of symbols", index + 1)));
        };
        pairs.push(json!([left, right]));
    }
    let mut special = Vec::new();
    for (role, token) in [("start", &settings.bos), ("end", &settings.eos)] {
        let Some(id) = vocab.get(token).and_then(Value::as_u64) else {
            return Err(TokenizerError::TokenMissing { role, token: excerpt(token) });
        };
        special.push(json!({
            "id": id, "content": token, "special": true, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false,
        }));
    }
    let split = concat!(
        r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|",
        r"[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    );
    let file = json!({
        "version": "1.0",
        "added_tokens": special,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "NFC"},
            {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
            {"type": "Lowercase"},
        ]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": split}, "behavior": "Removed", "invert": true},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                "use_regex": true},
        ]},
        "post_processor": null,
        "decoder": null,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": settings.unk,
            "continuing_subword_prefix": "", "end_of_word_suffix": "</w>",
            "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": pairs,
        },
    });
    Ok(file.to_string().into_bytes())
}

/// Refuses every `{"Regex": "..."}` at any depth that [`backtracks`].
fn check_patterns(value: &Value) -> Result<(), TokenizerError> {
    match value {
        Value::Object(fields) => fields.iter().try_for_each(|(key, inner)| match inner {
            Value::String(pattern) if key == "Regex" && backtracks(pattern) => {
                Err(TokenizerError::PatternBacktracks { pattern: excerpt(pattern) })
            }
            _ => check_patterns(inner),
        }),
        Value::Array(items) => items.iter().try_for_each(check_patterns),
        _ => Ok(()),
    }
}

/// Whether a pattern has anything beyond what a linear-time matcher does: look-around,
/// back-references, atomic and possessive groups, conditions.
///
/// Errs on the side of refusing; the patterns of CLIP and T5 have none of it.
fn backtracks(pattern: &str) -> bool {
    let mut rest = pattern.chars().peekable();
    let mut class_depth = 0_usize;
    let mut after_quantifier = false;
    while let Some(symbol) = rest.next() {
        let mut is_quantifier = false;
        match symbol {
            '\\' => {
                let escaped = rest.next();
                let is_simple = escaped.is_some_and(|escaped| {
                    "pPsSdDwWnrt".contains(escaped) || !escaped.is_ascii_alphanumeric()
                });
                if !is_simple {
                    return true;
                }
                if matches!(escaped, Some('p' | 'P')) && rest.peek() == Some(&'{') {
                    rest.by_ref().find(|c| *c == '}');
                }
            }
            '[' => class_depth += 1,
            ']' if class_depth > 0 => class_depth -= 1,
            _ if class_depth > 0 => {}
            '(' => match rest.peek() {
                Some('*') => return true,
                Some('?') => {
                    rest.next();
                    // Flags such as (?i: or (?s) end in a colon or a bracket; (?: has none.
                    let after = rest.by_ref().find(|c| !c.is_ascii_lowercase() && *c != '-');
                    if !matches!(after, Some(':' | ')')) {
                        return true;
                    }
                }
                _ => {}
            },
            '+' if after_quantifier => return true,
            '*' | '?' | '+' | '}' => is_quantifier = true,
            _ => {}
        }
        after_quantifier = is_quantifier;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_real_tokenizers_pass_and_backtracking_ones_do_not() {
        for fine in [
            r"\s+",
            r" {2,}",
            r"<\|startoftext\|>|<\|endoftext\|>|'s|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
            r"(?i:'s|'t)|(?:ab)+|\p{L}+?|[+*]+|a{2,3}",
        ] {
            assert!(!backtracks(fine), "{fine}");
        }
        for refused in [
            r"(a+)+\1",
            r"a(?=b)",
            r"a(?!b)",
            r"(?<=a)b",
            r"(?<!a)b",
            r"(?>a+)b",
            r"a++b",
            r"a*+",
            r"a{2}+b",
            r"(?<n>a)\k<n>",
            r"(?P<n>a)(?P=n)",
            r"(a)?(?(1)b|c)",
            r"\Ka",
            r"\Ga",
            r"(*FAIL)",
            r"(?R)",
            "ab\\",
        ] {
            assert!(backtracks(refused), "{refused}");
        }
    }

    #[test]
    fn lengths_that_mean_no_limit() {
        for none in [1e30, 0.0, -5.0, f64::NAN, 1e7] {
            assert_eq!(length_limit(none), None, "{none}");
        }
        assert_eq!(length_limit(77.0), Some(77));
    }
}
