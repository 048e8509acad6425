//! The catalog of one component: each tensor of the model by its canonical name, as runs of bytes.
//!
//! Canonical names are those of diffusers and transformers, whatever the file calls its tensors, so
//! that one graph reads every layout. A fused tensor of a file (the q, k and v of BFL's `qkv`)
//! becomes several entries over the same bytes: renaming and slicing rows moves nothing.
//!
//! Invariants of a [`Catalog`] that exists:
//! - the pieces of an [`Entry`] lie in range of their blobs and add up to shape times dtype;
//! - the pieces begin and end between elements.

use std::collections::BTreeMap;
use std::collections::btree_map;
use std::path::{Path, PathBuf};

use crate::dtype::WeightDType;
use crate::error::{TensorsDiffer, WeightsError};
use crate::layout::{Architecture, Layout};

/// What tells that a path still names the file that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// Device number; 0 where the system has none.
    pub device: u64,
    /// Inode number; 0 where the system has none.
    pub inode: u64,
    /// Last change of the content, in nanoseconds since 1970.
    pub modified_ns: i128,
}

impl FileIdentity {
    /// Identity by a file's metadata.
    pub fn of(metadata: &std::fs::Metadata) -> Self {
        use std::time::UNIX_EPOCH;
        let modified_ns =
            metadata.modified().map_or(0, |time| match time.duration_since(UNIX_EPOCH) {
                Ok(after) => after.as_nanos() as i128,
                Err(before) => -(before.duration().as_nanos() as i128),
            });
        #[cfg(unix)]
        let (device, inode) = {
            use std::os::unix::fs::MetadataExt;
            (metadata.dev(), metadata.ino())
        };
        #[cfg(not(unix))]
        let (device, inode) = (0, 0);
        Self { device, inode, modified_ns }
    }
}

/// Where bytes of a checkpoint live.
#[derive(Clone, Debug)]
pub enum Blob {
    /// A file on disk.
    File {
        /// Its real path, links resolved.
        path: PathBuf,
        /// Its length when its header was read.
        bytes: u64,
        /// What it was when its header was read.
        identity: FileIdentity,
    },
    /// Bytes built into the program.
    Static {
        /// What the bytes are called in messages.
        name: &'static str,
        /// The bytes.
        data: &'static [u8],
    },
}

impl Blob {
    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::File { bytes, .. } => *bytes,
            Self::Static { data, .. } => data.len() as u64,
        }
    }

    /// The path, or the name of built-in bytes, for messages.
    pub fn path(&self) -> &Path {
        match self {
            Self::File { path, .. } => path,
            Self::Static { name, .. } => Path::new(name),
        }
    }
}

/// One contiguous run of bytes in a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Index into [`Catalog::blobs`].
    pub blob: usize,
    /// First byte, from the begin of the blob.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// One canonical tensor: its pieces, one after the other, are its elements in row-major order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Element type as stored.
    pub dtype: WeightDType,
    /// Shape; empty for a scalar.
    pub shape: Vec<u64>,
    /// Where the bytes are.
    pub pieces: Vec<Piece>,
}

impl Entry {
    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        // Cannot overflow: the pieces add up to a size that the header reader computed in a u64.
        self.pieces.iter().map(|piece| piece.bytes).sum()
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// The rows `rows` of the first axis, as an entry over the same bytes.
    ///
    /// `None` where the entry is not in one piece, has fewer rows, or a row is no whole number of
    /// bytes.
    pub(crate) fn rows(&self, rows: std::ops::Range<u64>) -> Option<Self> {
        let (&count, inner) = self.shape.split_first()?;
        let [piece] = self.pieces[..] else {
            return None;
        };
        if rows.start > rows.end || rows.end > count {
            return None;
        }
        let row_elements =
            inner.iter().try_fold(1u64, |product, &axis| product.checked_mul(axis))?;
        let row_bytes = self.dtype.bytes(row_elements)?;
        let taken = rows.end - rows.start;
        let mut shape = self.shape.clone();
        shape[0] = taken;
        let piece = Piece {
            blob: piece.blob,
            offset: piece.offset.checked_add(rows.start.checked_mul(row_bytes)?)?,
            bytes: taken.checked_mul(row_bytes)?,
        };
        Some(Self { dtype: self.dtype, shape, pieces: vec![piece] })
    }
}

/// The tensors of one component by canonical name.
#[derive(Clone, Debug)]
pub struct Catalog {
    /// The files, or built-in bytes, that the pieces point into.
    pub blobs: Vec<Blob>,
    /// The model that the tensors are.
    pub architecture: Architecture,
    /// How the files are stored.
    pub layout: Layout,
    pub(crate) entries: BTreeMap<String, Entry>,
}

impl Catalog {
    /// The tensor of that canonical name.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// All tensors by ascending name.
    pub fn iter(&self) -> btree_map::Iter<'_, String, Entry> {
        self.entries.iter()
    }

    /// Number of canonical tensors.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no tensor.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The path, or name, of the first blob, for messages.
    pub fn path(&self) -> &Path {
        self.blobs.first().map_or(Path::new(""), Blob::path)
    }

    /// Checks that the catalog holds exactly the tensors that a model needs, by name and shape.
    ///
    /// Tensors that files of this architecture are known to carry along (a VAE's encoder when only
    /// the decoder is asked for, CLIP's `logit_scale`, a T5 decoder) may be there or not.
    ///
    /// # Errors
    /// [`WeightsError::Tensors`] names what is missing, of another shape, or superfluous, with what
    /// was expected.
    pub fn expect<N: AsRef<str>, S: AsRef<[u64]>>(
        &self,
        needed: impl IntoIterator<Item = (N, S)>,
    ) -> Result<(), WeightsError> {
        let mut unclaimed: BTreeMap<&str, &Entry> =
            self.entries.iter().map(|(name, entry)| (name.as_str(), entry)).collect();
        let mut missing = Vec::new();
        let mut misshapen = Vec::new();
        for (name, shape) in needed {
            let (name, shape) = (name.as_ref(), shape.as_ref());
            unclaimed.remove(name);
            match self.entries.get(name) {
                None => missing.push((name.to_owned(), shape.to_vec())),
                Some(entry) if entry.shape != shape => {
                    misshapen.push((name.to_owned(), shape.to_vec(), entry.shape.clone()));
                }
                Some(_) => {}
            }
        }
        let superfluous: Vec<_> = unclaimed
            .into_iter()
            .filter(|(name, _)| !is_carried_along(self.architecture, name))
            .map(|(name, entry)| (name.to_owned(), entry.shape.clone()))
            .collect();
        if missing.is_empty() && misshapen.is_empty() && superfluous.is_empty() {
            return Ok(());
        }
        let path = self.path().to_owned();
        Err(WeightsError::Tensors(Box::new(TensorsDiffer {
            path,
            missing,
            superfluous,
            misshapen,
        })))
    }
}

/// Whether files of this architecture are known to hold the tensor although the model does without.
fn is_carried_along(architecture: Architecture, name: &str) -> bool {
    let prefixes: &[&str] = match architecture {
        Architecture::AutoencoderKl => &["encoder.", "quant_conv."],
        Architecture::ClipText => &[
            "text_model.embeddings.position_ids",
            "text_projection.",
            "text_projection",
            "logit_scale",
            "vision_model.",
            "visual_projection.",
        ],
        Architecture::T5Encoder => &["decoder.", "lm_head.", "spiece_model"],
        _ => &[],
    };
    prefixes.iter().any(|prefix| {
        if prefix.ends_with('.') { name.starts_with(prefix) } else { name == *prefix }
    })
}
