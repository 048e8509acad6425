//! Prompts to token ids, as the text encoders were trained on them.
//!
//! The ids must be exactly those of the reference, since the encoders attend to every position,
//! padding included: another length or another pad id is another picture.
//! The `tokenizers` crate does the splitting; this file frames, cuts and pads, and says which part
//! of a prompt was cut.
//!
//! Main types: [`PromptTokenizer`], [`PromptTokens`].
//! Invariants: every id is below the vocabulary size given at load, and ids have exactly the length
//! asked for; a fault in the library, even a panic, is an error and no more.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tokenizers::Tokenizer;

use crate::error::{TokenizerError, excerpt};
pub use crate::tokenizer_files::{TextFamily, TokenizerFiles};

/// A prompt over this is refused: no part of a book reaches a 512-token encoder.
pub const PROMPT_BYTES_MAX: usize = 1 << 20;
/// No text encoder takes more ids.
const LENGTH_MAX: usize = 1 << 16;

/// A tokenizer that is checked against the text encoder it feeds.
pub struct PromptTokenizer {
    tokenizer: Tokenizer,
    prefix: Option<u32>,
    end_id: u32,
    pad_id: u32,
    length_max: Option<usize>,
}

/// The ids of one prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptTokens {
    /// The framed prompt, then padding.
    pub ids: Vec<u32>,
    /// How many of the ids are not padding.
    pub count: usize,
    /// The end of the prompt that found no room, for a notice; `None` if all of it did.
    pub dropped: Option<String>,
}

impl std::fmt::Debug for PromptTokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PromptTokenizer")
            .field("prefix", &self.prefix)
            .field("end_id", &self.end_id)
            .field("pad_id", &self.pad_id)
            .field("length_max", &self.length_max)
            .finish_non_exhaustive()
    }
}

impl PromptTokenizer {
    /// Builds the tokenizer for a text encoder whose embedding table has `vocab_size` rows.
    ///
    /// # Errors
    /// [`TokenizerError`] for files that cannot be parsed, that frame a prompt otherwise than the
    /// family does, lack a special token, or hold an id without a row in the embedding table.
    pub fn load(
        files: &TokenizerFiles,
        family: TextFamily,
        vocab_size: u32,
    ) -> Result<Self, TokenizerError> {
        let settings = files.settings(family)?;
        let json = files.checked_json(&settings)?;
        let mut tokenizer = contained(|| Tokenizer::from_bytes(&json))
            .map_err(|reason| TokenizerError::Syntax { file: "tokenizer.json", reason })?;
        // Cutting and padding are done here, whatever the file was last used with.
        tokenizer.with_padding(None);
        tokenizer
            .with_truncation(None)
            .map_err(|error| TokenizerError::Encode { reason: excerpt(&error.to_string()) })?;

        let vocab = tokenizer.get_vocab(true);
        if let Some((token, id)) = vocab.iter().find(|(_, id)| **id >= vocab_size) {
            let token = excerpt(token);
            return Err(TokenizerError::IdOutOfRange { token, id: *id, vocab_size });
        }
        let id_of = |role, token: &String| {
            vocab
                .get(token)
                .copied()
                .ok_or_else(|| TokenizerError::TokenMissing { role, token: excerpt(token) })
        };
        let loaded = Self {
            prefix: match family {
                TextFamily::Clip => Some(id_of("start", &settings.bos)?),
                TextFamily::T5 => None,
            },
            end_id: id_of("end", &settings.eos)?,
            pad_id: id_of("padding", &settings.pad)?,
            length_max: settings.length_max,
            tokenizer,
        };
        loaded.check_frame(family)?;
        Ok(loaded)
    }

    /// The greatest length that the model folder allows, `None` if it sets no limit.
    pub fn length_max(&self) -> Option<usize> {
        self.length_max
    }

    /// The ids of a prompt, padded to `length` or the folder's greatest length if that is less; a
    /// longer prompt is cut so that the end token stays.
    ///
    /// Time: linear in the prompt but for one sort a word. Memory: about 100 bytes a token.
    ///
    /// # Errors
    /// [`TokenizerError::PromptTooLong`], [`TokenizerError::LengthOutOfRange`], or
    /// [`TokenizerError::Encode`] if the library fails on the prompt.
    pub fn encode(&self, prompt: &str, length: usize) -> Result<PromptTokens, TokenizerError> {
        if prompt.len() > PROMPT_BYTES_MAX {
            let (bytes, cap_bytes) = (prompt.len(), PROMPT_BYTES_MAX);
            return Err(TokenizerError::PromptTooLong { bytes, cap_bytes });
        }
        let length = self.length_max.map_or(length, |length_max| length.min(length_max));
        let frame = usize::from(self.prefix.is_some()) + 1;
        let Some(room) = length.checked_sub(frame).filter(|_| length <= LENGTH_MAX) else {
            let (length_min, length_max) = (frame, LENGTH_MAX);
            return Err(TokenizerError::LengthOutOfRange { length, length_min, length_max });
        };
        let prompt = self.spaced(prompt);
        let prompt = prompt.as_ref();
        let encoding = contained(|| self.tokenizer.encode(prompt, false))
            .map_err(|reason| TokenizerError::Encode { reason })?;
        let content = encoding.get_ids();
        let kept = content.len().min(room);
        let dropped = encoding.get_offsets().get(kept).map(|(start, _)| tail(prompt, *start));

        let mut ids = Vec::with_capacity(length);
        ids.extend(self.prefix);
        ids.extend_from_slice(&content[..kept]);
        ids.push(self.end_id);
        let count = ids.len();
        ids.resize(length, self.pad_id);
        Ok(PromptTokens { ids, count, dropped })
    }

    /// T5's prompt with one space between words and none around them.
    ///
    /// The SentencePiece model that T5 was trained with removes extra white space, and so does the tokenizer
    /// that transformers 5 makes of a T5 folder; the published `tokenizer.json` keeps it as pieces of its own.
    fn spaced<'t>(&self, prompt: &'t str) -> Cow<'t, str> {
        if self.prefix.is_some() {
            return Cow::Borrowed(prompt);
        }
        Cow::Owned(prompt.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// The file's own template, where it has one, must frame a prompt as this type does.
    fn check_frame(&self, family: TextFamily) -> Result<(), TokenizerError> {
        if self.tokenizer.get_post_processor().is_none() {
            return Ok(());
        }
        let ids = |framed| {
            contained(|| self.tokenizer.encode("a", framed))
                .map(|encoding| encoding.get_ids().to_vec())
                .map_err(|reason| TokenizerError::Encode { reason })
        };
        let (content, found) = (ids(false)?, ids(true)?);
        let wanted: Vec<u32> =
            self.prefix.into_iter().chain(content).chain([self.end_id]).collect();
        if found == wanted {
            return Ok(());
        }
        Err(TokenizerError::FrameUnexpected {
            found: excerpt(&format!("{found:?}")),
            expected: match family {
                TextFamily::Clip => "start token, prompt, end token",
                TextFamily::T5 => "prompt, end token",
            },
        })
    }
}

/// The position whose hidden state CLIP pools.
///
/// `eos_token_id` is that of the text encoder's `config.json`: the first such id, or, for the
/// legacy value 2, the first greatest id; 0 where there is none, as `argmax` gives it.
///
/// # Source
/// transformers 5.17 `CLIPTextModel.forward`.
pub fn pooled_position(ids: &[u32], eos_token_id: u32) -> usize {
    let wanted = if eos_token_id == 2 { ids.iter().max().copied() } else { Some(eos_token_id) };
    ids.iter().position(|id| Some(*id) == wanted).unwrap_or(0)
}

/// The prompt from a byte offset on, or from the start of the character that the offset is in.
fn tail(prompt: &str, offset: usize) -> String {
    prompt[prompt.floor_char_boundary(offset)..].trim().to_owned()
}

/// Runs a call into the tokenizer library; an error or a panic there is one line of text here.
///
/// Nothing that a panic could leave half-done is used afterwards: the value under construction is
/// dropped, and encoding only reads.
fn contained<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(excerpt(&error.to_string())),
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no reason given");
            Err(excerpt(&format!("internal failure: {text}")))
        }
    }
}
