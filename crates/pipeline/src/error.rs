//! What can go wrong between a prompt and a picture, before and after the run itself.
//!
//! Every error names the file or option at fault and what would be right, and says by [`Fault`]
//! who has to act, so that a caller needs no text to choose an exit code.

use std::path::PathBuf;

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The request: another prompt, size or path is needed.
    Caller,
    /// A file of the model: it is damaged or of a kind that is not supported.
    File,
    /// The disk or the rights on it.
    Disk,
    /// This program.
    Bug,
}

/// Why a sampler or its schedule is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SchedulerError {
    /// The file is larger than any real one.
    #[error("scheduler_config.json has {bytes} bytes, over the cap of {cap_bytes}")]
    FileTooLarge {
        /// Size of the file.
        bytes: u64,
        /// The cap.
        cap_bytes: u64,
    },
    /// Not JSON of the expected form.
    #[error("scheduler_config.json: {reason}")]
    Syntax {
        /// What the parser says, with line and column.
        reason: String,
    },
    /// The file names no class.
    #[error("scheduler_config.json has no _class_name; expected {expected}")]
    ClassMissing {
        /// The class that is supported.
        expected: &'static str,
    },
    /// The file asks for another sampler.
    #[error("scheduler {class_name:?} is not supported; expected {expected}")]
    ClassUnknown {
        /// What the file says, cut to a readable length.
        class_name: String,
        /// The class that is supported.
        expected: &'static str,
    },
    /// An option that changes the schedule and is not implemented.
    #[error("scheduler option {option} is not supported; without it the pictures would differ")]
    OptionUnsupported {
        /// Name of the option in the file.
        option: &'static str,
    },
    /// `time_shift_type` is neither `exponential` nor `linear`.
    #[error("time_shift_type {found:?} is unknown; expected \"exponential\" or \"linear\"")]
    ShiftTypeUnknown {
        /// What the file says, cut to a readable length.
        found: String,
    },
    /// A number of the file is outside of what makes sense.
    #[error("scheduler option {option} is {value}; expected {expected}")]
    OptionOutOfRange {
        /// Name of the option in the file.
        option: &'static str,
        /// What the file says.
        value: f64,
        /// The range.
        expected: &'static str,
    },
    /// No steps, or more than is sensible.
    #[error("{steps} steps asked for; expected 1 to {steps_max}")]
    StepsOutOfRange {
        /// What was asked for.
        steps: u32,
        /// The greatest number.
        steps_max: u32,
    },
    /// The shift of this picture size gives no falling schedule.
    #[error(
        "the sigma schedule does not fall at step {step_index} \
         (image of {image_tokens} tokens, mu {mu}): the shift options do not suit this size"
    )]
    NotFalling {
        /// First step at fault, from 0.
        step_index: usize,
        /// Tokens of the image.
        image_tokens: u64,
        /// The shift that was computed; 0 for a static shift.
        mu: f64,
    },
}

impl SchedulerError {
    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::StepsOutOfRange { .. } | Self::NotFalling { .. } => Fault::Caller,
            _ => Fault::File,
        }
    }
}

/// Why a tokenizer cannot be loaded or a prompt cannot be turned into ids.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The folder holds no tokenizer that can be read.
    #[error("{folder} holds no tokenizer: expected {expected}")]
    FilesMissing {
        /// The folder, as given.
        folder: String,
        /// What would do.
        expected: &'static str,
    },
    /// Only a SentencePiece model is there.
    #[error(
        "{folder} has spiece.model but no tokenizer.json; \
         save the tokenizer in its fast form to get one"
    )]
    SentencePieceOnly {
        /// The folder, as given.
        folder: String,
    },
    /// A file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file is larger than any real one.
    #[error("{file} has {bytes} bytes, over the cap of {cap_bytes}")]
    FileTooLarge {
        /// Name of the file.
        file: &'static str,
        /// Its size.
        bytes: u64,
        /// The cap.
        cap_bytes: u64,
    },
    /// A file is not of the expected form.
    #[error("{file}: {reason}")]
    Syntax {
        /// Name of the file.
        file: &'static str,
        /// What the parser says.
        reason: String,
    },
    /// A pattern needs a backtracking matcher, whose time a prompt could make unbounded.
    #[error("tokenizer.json: the pattern {pattern:?} needs backtracking, which is refused")]
    PatternBacktracks {
        /// The pattern, cut to a readable length.
        pattern: String,
    },
    /// A special token that the model needs is not in the vocabulary.
    #[error("the {role} token {token:?} is not in the vocabulary")]
    TokenMissing {
        /// What the token is for.
        role: &'static str,
        /// Its text.
        token: String,
    },
    /// An id has no row in the text encoder's embedding table.
    #[error("token {token:?} has id {id}, but the text encoder knows only {vocab_size} ids")]
    IdOutOfRange {
        /// Text of the token, cut to a readable length.
        token: String,
        /// Its id.
        id: u32,
        /// Rows of the embedding table.
        vocab_size: u32,
    },
    /// The file frames a prompt otherwise than the model was trained with.
    #[error("tokenizer.json frames a prompt as {found}; expected {expected}")]
    FrameUnexpected {
        /// What the file does.
        found: String,
        /// What the model needs.
        expected: &'static str,
    },
    /// The length leaves no room for the special tokens, or is beyond every text encoder.
    #[error("a text length of {length} is impossible; expected {length_min} to {length_max}")]
    LengthOutOfRange {
        /// What was asked for.
        length: usize,
        /// The least that works.
        length_min: usize,
        /// The greatest that works.
        length_max: usize,
    },
    /// The prompt is longer than any use of it.
    #[error("the prompt has {bytes} bytes, over the cap of {cap_bytes}")]
    PromptTooLong {
        /// Its length in UTF-8.
        bytes: usize,
        /// The cap.
        cap_bytes: usize,
    },
    /// The tokenizer library could not encode the prompt with this file.
    #[error("the tokenizer failed on the prompt: {reason}")]
    Encode {
        /// What the library says.
        reason: String,
    },
}

impl TokenizerError {
    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::LengthOutOfRange { .. } | Self::PromptTooLong { .. } => Fault::Caller,
            Self::Read { .. } => Fault::Disk,
            _ => Fault::File,
        }
    }
}

/// Why a picture cannot be made of pixels, or not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The values do not fill the picture.
    #[error("{values} values do not make a picture of {width}x{height} with 3 channels")]
    SizeMismatch {
        /// How many values there are.
        values: usize,
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
    },
    /// The decoder gave a value that is no number; nothing sensible can be shown.
    #[error(
        "the decoded picture holds {count} values that are not a number, the first at pixel {pixel}"
    )]
    NotANumber {
        /// How many.
        count: usize,
        /// Index of the first pixel that has one.
        pixel: usize,
    },
    /// The path names no file.
    #[error("{path} names no file")]
    NoFileName {
        /// The path, as given.
        path: PathBuf,
    },
    /// The folder of the picture is not there.
    #[error("the folder {folder} does not exist")]
    FolderMissing {
        /// The folder.
        folder: PathBuf,
    },
    /// The path of the picture is a folder, a device or a pipe.
    #[error("{path} exists and is not a regular file")]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file is there and may not be replaced.
    #[error("{path} is read-only")]
    ReadOnly {
        /// The path.
        path: PathBuf,
    },
    /// The system refused a step of writing; the file is as it was before.
    #[error("cannot {action} {path}")]
    Write {
        /// The step that failed.
        action: &'static str,
        /// The file or folder it was on.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The picture cannot be encoded.
    #[error("cannot encode the picture as PNG")]
    Encode {
        /// What the encoder says.
        source: png::EncodingError,
    },
}

impl ImageError {
    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::SizeMismatch { .. } | Self::Encode { .. } => Fault::Bug,
            // Finite weights and inputs do not lead here: the weights are damaged or overflow.
            Self::NotANumber { .. } => Fault::File,
            Self::NoFileName { .. }
            | Self::FolderMissing { .. }
            | Self::NotAFile { .. }
            | Self::ReadOnly { .. } => Fault::Caller,
            Self::Write { .. } => Fault::Disk,
        }
    }
}

/// Why a table of positions cannot be made.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum TableError {
    /// A rotary axis rotates pairs, so its size is even.
    #[error("rotary axis {axis_index} has {dims} dimensions; expected an even number above 0")]
    AxisOdd {
        /// Which axis, from 0.
        axis_index: usize,
        /// Its size.
        dims: u32,
    },
    /// The base of the frequencies is not a number above 1.
    #[error("the rotary base is not a finite number of 1 or more")]
    BaseOutOfRange,
    /// More values than any picture needs.
    #[error("{what} would hold {values} values, over the cap of {cap}")]
    TooLarge {
        /// Which table.
        what: &'static str,
        /// How many values, saturated.
        values: u64,
        /// The cap.
        cap: u64,
    },
    /// The bucket parameters contradict each other.
    #[error(
        "{bucket_count} relative position buckets up to distance {distance_max} are impossible; \
         expected an even count of 4 or more, and a distance above a quarter of it"
    )]
    Buckets {
        /// How many buckets.
        bucket_count: u32,
        /// From where on all distances share a bucket.
        distance_max: u32,
    },
    /// The values do not fill the latent.
    #[error("{values} values do not make {channels} channels of {rows}x{columns} in pairs")]
    LatentMismatch {
        /// How many values there are.
        values: usize,
        /// Channels of the latent.
        channels: usize,
        /// Rows of the latent.
        rows: usize,
        /// Columns of the latent.
        columns: usize,
    },
}

/// At most the first 80 characters of foreign text, for an error message of one line.
pub(crate) fn excerpt(text: &str) -> String {
    const LIMIT: usize = 80;
    let mut short: String =
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LIMIT).collect();
    if text.chars().nth(LIMIT).is_some() {
        short.push('…');
    }
    short
}
