//! What can be wrong with the header of a safetensors file.

use thiserror::Error;

use crate::dtype::WeightDType;
use crate::text::{Quoted, one_line};

/// One reason, with the numbers, why a safetensors header is refused.
///
/// The path is added by [`WeightsError`](crate::WeightsError), which wraps this.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderError {
    /// The file cannot even hold the length of its header.
    #[error("the file has {file_bytes} bytes, too few for a safetensors file")]
    TooShort {
        /// Length of the file.
        file_bytes: u64,
    },
    /// The header claims more than any real checkpoint needs; mostly the file is something else.
    #[error(
        "the header would take {header_bytes} bytes, over the cap of {cap_bytes}: \
         not a safetensors file, or a damaged one"
    )]
    OverCap {
        /// What the first eight bytes claim.
        header_bytes: u64,
        /// The cap.
        cap_bytes: u64,
    },
    /// The file ends inside its header.
    #[error(
        "the header ends at byte {header_end} but the file has {file_bytes} bytes: cut short, \
         or still being downloaded"
    )]
    PastEnd {
        /// Where the header would end.
        header_end: u64,
        /// Length of the file.
        file_bytes: u64,
    },
    /// The header is not UTF-8.
    #[error("the header is not UTF-8 text (at byte {offset} of the header)")]
    NotUtf8 {
        /// Index of the first bad byte in the header.
        offset: u64,
    },
    /// The header is not JSON of the prescribed form.
    #[error("the header is not that of a safetensors file: {}", one_line(reason))]
    Syntax {
        /// What the JSON parser says, with line and column.
        reason: String,
    },
    /// More tensors than any real checkpoint has.
    #[error("the header names more than {cap} tensors")]
    TooManyTensors {
        /// The cap.
        cap: usize,
    },
    /// A name occurs twice.
    #[error("the header names {} twice", Quoted(name))]
    DuplicateName {
        /// The tensor, or the key of the metadata.
        name: String,
    },
    /// An element type that safetensors 0.8 does not know.
    #[error("tensor {} has the unknown dtype {}", Quoted(tensor), Quoted(dtype))]
    UnknownDType {
        /// The tensor.
        tensor: String,
        /// The type as written.
        dtype: String,
    },
    /// More axes than any real tensor has.
    #[error("tensor {} has {rank} axes, over the cap of {cap}", Quoted(tensor))]
    RankOverCap {
        /// The tensor.
        tensor: String,
        /// Axes written.
        rank: usize,
        /// The cap.
        cap: usize,
    },
    /// Shape times element size does not fit 64 bits.
    #[error("tensor {} of shape {shape:?} and dtype {dtype} overflows 64 bits", Quoted(tensor))]
    SizeOverflow {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: WeightDType,
        /// Its shape.
        shape: Vec<u64>,
    },
    /// A packed type whose elements do not fill whole bytes.
    #[error(
        "tensor {} of shape {shape:?} and dtype {dtype} does not fill whole bytes",
        Quoted(tensor)
    )]
    PartialByte {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: WeightDType,
        /// Its shape.
        shape: Vec<u64>,
    },
    /// The end lies before the begin.
    #[error("tensor {} has reversed offsets: begin {begin}, end {end}", Quoted(tensor))]
    ReversedOffsets {
        /// The tensor.
        tensor: String,
        /// Begin in the data.
        begin: u64,
        /// End in the data.
        end: u64,
    },
    /// Offsets and shape disagree.
    #[error(
        "tensor {} of shape {shape:?} and dtype {dtype} takes {expected_bytes} bytes but its \
         offsets span {actual_bytes}",
        Quoted(tensor)
    )]
    SizeMismatch {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: WeightDType,
        /// Its shape.
        shape: Vec<u64>,
        /// Bytes by shape and type.
        expected_bytes: u64,
        /// Bytes by offsets.
        actual_bytes: u64,
    },
    /// Two tensors share bytes.
    #[error(
        "tensor {} begins at {begin}, inside the tensor before it, which ends at {previous_end}",
        Quoted(tensor)
    )]
    Overlap {
        /// The later tensor.
        tensor: String,
        /// Its begin in the data.
        begin: u64,
        /// Where its predecessor ends.
        previous_end: u64,
    },
    /// Bytes that belong to no tensor.
    #[error(
        "tensor {} begins at {begin}, but the tensor before it ends at {previous_end}: a hole",
        Quoted(tensor)
    )]
    Hole {
        /// The later tensor.
        tensor: String,
        /// Its begin in the data.
        begin: u64,
        /// Where its predecessor ends, or 0.
        previous_end: u64,
    },
    /// The file ends before its last tensor does.
    #[error(
        "the file has {actual_bytes} bytes but its header describes {expected_bytes}: cut short, \
         or still being downloaded"
    )]
    FileShort {
        /// Length by the header.
        expected_bytes: u64,
        /// Length of the file.
        actual_bytes: u64,
    },
    /// The file goes on after its last tensor.
    #[error(
        "the file has {actual_bytes} bytes but its header describes only {expected_bytes}: \
         trailing bytes"
    )]
    TrailingBytes {
        /// Length by the header.
        expected_bytes: u64,
        /// Length of the file.
        actual_bytes: u64,
    },
}
