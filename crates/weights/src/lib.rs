//! Untrusted bytes to a catalog: reads the headers of every checkpoint layout that FLUX.1 comes in,
//! checks all that a header can be checked for, and gives each tensor its canonical name.
//!
//! Checkpoints come from strangers, so this room believes nothing: sizes are computed with checked
//! arithmetic, every length has a cap above it, names that lead out of a folder are refused, and a
//! pickle is never read. What is not run is still recognised, so that the refusal can name it.
//!
//! Main types: [`open_folder`] gives a [`Checkpoint`] of [`Component`]s, each with a [`Catalog`]
//! of [`Entry`]s, whose [`Piece`]s say where in which [`Blob`] the bytes are.
//! [`open_transformer_file`] opens a transformer alone, [`open_embedded`] bytes in the program, and
//! [`inspect`] reports what any file or folder holds.
//!
//! Invariants:
//! - reads headers and small text files, never weights;
//! - of bad input comes a [`WeightsError`] on one line with the path, never a panic, and never an
//!   allocation over a small multiple of the caps;
//! - a tensor of a catalog lies in range of its file, and no two tensors of a file overlap.
//!
//! [`write_safetensors`] is the other direction, for files of our own, which are whole or absent ([`DraftFile`]).
//!
//! Not here: mapping or reading weights (`host`), and what a model does with them (`models`).

#![forbid(unsafe_code)]

mod bfl;
mod canonical;
mod catalog;
mod checkpoint;
mod component;
mod draft;
mod dtype;
mod entries;
mod error;
mod fp8;
mod gguf;
mod header;
mod header_error;
mod inspect;
mod layout;
mod packed;
mod recognise;
mod regular;
mod report;
mod shards;
mod sniff;
mod source;
mod text;
mod transformer;
mod write;

pub use catalog::{Blob, Catalog, Entry, FileIdentity, Piece};
pub use checkpoint::{Checkpoint, open_embedded, open_folder};
pub use component::Component;
pub use draft::{DraftFile, DraftFolder, sweep};
pub use dtype::WeightDType;
pub use error::{Fault, TensorsDiffer, WeightsError};
pub use fp8::{F8_MAX, F8Row, f8_decode, f8_encode, f8_scale};
pub use gguf::GgufError;
pub use header::{HEADER_BYTES_MAX, Header, Tensor};
pub use header_error::HeaderError;
pub use inspect::inspect;
pub use layout::{Architecture, Layout};
pub use packed::{PACK_ALIGNMENT, PACK_KEY, SCALE_SUFFIX, padding_name};
pub use regular::{open_regular, read_regular};
pub use report::{ComponentReport, DTypeReport, FileReport, Report};
pub use transformer::open_transformer_file;
pub use write::{NewTensor, PIECE_BYTES, WriteError, write_safetensors};
