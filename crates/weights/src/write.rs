//! Writes a safetensors file of any size, whole or not at all.
//!
//! The header is written first, then pieces of tensors by several threads, each at its own offset; the file
//! gets its name only when all of it is on the disk.
//!
//! Memory: one piece of at most [`PIECE_BYTES`] a thread.
//! Source of the format: huggingface/safetensors 24b0b28, `safetensors/src/tensor.rs`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Map, Value, json};

use crate::draft::{DraftFile, sweep};
use crate::dtype::WeightDType;
use crate::header::{HEADER_BYTES_MAX, LENGTH_BYTES};

/// Largest piece that is asked for at once: a multiple of every element's size.
pub const PIECE_BYTES: u64 = 4 << 20;

/// Alignment of the first tensor, so that tensors whose sizes are multiples of it are aligned in the file.
const DATA_ALIGNMENT: u64 = 256;

/// A tensor that will be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTensor {
    /// Name in the file.
    pub name: String,
    /// Element type.
    pub dtype: WeightDType,
    /// Row-major shape.
    pub shape: Vec<u64>,
}

impl NewTensor {
    /// Bytes of the tensor, where they can be counted.
    pub fn bytes(&self) -> Option<u64> {
        let count = self.shape.iter().try_fold(1u64, |count, side| count.checked_mul(*side))?;
        self.dtype.bytes(count)
    }
}

/// Why a file was not written; nothing is left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was attempted.
        action: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Two tensors have one name, or one is called `__metadata__`.
    #[error("{}: two tensors are called {name}", path.display())]
    Name {
        /// The file.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// Sizes that the format or the arithmetic cannot hold.
    #[error("{}: {what}", path.display())]
    Size {
        /// The file.
        path: PathBuf,
        /// What is too large.
        what: String,
    },
    /// A stop was asked for.
    #[error("cancelled")]
    Cancelled,
}

/// Writes `tensors` in the order given, end to end.
///
/// `fill(tensor, offset, bytes)` fills the tensor's bytes from `offset` on; it is called once for each piece,
/// from `threads` threads, in no fixed order, with offsets that are multiples of [`PIECE_BYTES`]. `written`
/// is told of the bytes of each piece that is on its way to the disk, and says whether to go on.
///
/// # Errors
/// [`WriteError`]; the file that had the name stays as it was.
pub fn write_safetensors(
    path: &Path,
    tensors: &[NewTensor],
    metadata: &BTreeMap<String, String>,
    threads: usize,
    fill: &(dyn Fn(usize, u64, &mut [u8]) + Sync),
    written: &(dyn Fn(u64) -> bool + Sync),
) -> Result<(), WriteError> {
    let (head, sizes) = head(path, tensors, metadata)?;
    let target = Target::create(path)?;
    target.put(&head, 0)?;
    let mut pieces = Vec::new();
    let mut start = head.len() as u64;
    for (tensor, bytes) in sizes.iter().enumerate() {
        let mut offset = 0;
        while offset < *bytes {
            let length = PIECE_BYTES.min(bytes - offset);
            pieces.push(Piece { tensor, offset, length, at: start + offset });
            offset += length;
        }
        start += bytes;
    }
    let (next, stop, failure) = (AtomicUsize::new(0), AtomicBool::new(false), Mutex::new(None));
    let work = || {
        let mut buffer = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
            buffer.resize(usize::try_from(piece.length).unwrap_or(usize::MAX), 0);
            fill(piece.tensor, piece.offset, &mut buffer);
            let mut done = target.put(&buffer, piece.at);
            if done.is_ok() && !written(piece.length) {
                done = Err(WriteError::Cancelled);
            }
            if let Err(error) = done {
                stop.store(true, Ordering::Relaxed);
                if let Ok(mut first) = failure.lock() {
                    first.get_or_insert(error);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.max(1) {
            scope.spawn(work);
        }
        work();
    });
    match failure.into_inner() {
        Ok(None) => target.finish(),
        Ok(Some(error)) => Err(error),
        Err(poisoned) => Err(poisoned.into_inner().unwrap_or(WriteError::Cancelled)),
    }
}

struct Piece {
    tensor: usize,
    offset: u64,
    length: u64,
    at: u64,
}

/// The length, the JSON and its padding; and the bytes of each tensor.
fn head(
    path: &Path,
    tensors: &[NewTensor],
    metadata: &BTreeMap<String, String>,
) -> Result<(Vec<u8>, Vec<u64>), WriteError> {
    let too_large = |what: String| WriteError::Size { path: path.to_owned(), what };
    let mut object = Map::new();
    if !metadata.is_empty() {
        object.insert("__metadata__".to_owned(), json!(metadata));
    }
    let (mut sizes, mut offset) = (Vec::with_capacity(tensors.len()), 0u64);
    for tensor in tensors {
        let end = tensor.bytes().and_then(|bytes| offset.checked_add(bytes));
        let end = end.ok_or_else(|| too_large(format!("{} is too large", tensor.name)))?;
        let entry = json!({
            "dtype": tensor.dtype.name(),
            "shape": tensor.shape,
            "data_offsets": [offset, end],
        });
        let is_taken =
            tensor.name == "__metadata__" || object.insert(tensor.name.clone(), entry).is_some();
        if is_taken {
            return Err(WriteError::Name { path: path.to_owned(), name: tensor.name.clone() });
        }
        sizes.push(end - offset);
        offset = end;
    }
    let mut text = Value::Object(object).to_string().into_bytes();
    let data_start = (LENGTH_BYTES + text.len() as u64).next_multiple_of(DATA_ALIGNMENT);
    let header_bytes = data_start - LENGTH_BYTES;
    if header_bytes > HEADER_BYTES_MAX {
        return Err(too_large(format!("a header of {header_bytes} bytes")));
    }
    text.resize(usize::try_from(header_bytes).unwrap_or(usize::MAX), b' ');
    let mut head = header_bytes.to_le_bytes().to_vec();
    head.append(&mut text);
    Ok((head, sizes))
}

/// The file that is written, and what it will be called.
struct Target<'a> {
    draft: DraftFile,
    path: &'a Path,
    #[cfg(not(unix))]
    turn: Mutex<()>,
}

impl<'a> Target<'a> {
    /// Removes what killed writers left in the folder, some gigabytes perhaps, before it takes room there.
    fn create(path: &'a Path) -> Result<Self, WriteError> {
        let above = path.parent().filter(|above| !above.as_os_str().is_empty());
        let folder = above.unwrap_or(Path::new("."));
        sweep(folder);
        let draft = DraftFile::create(folder).map_err(error(path, "create"))?;
        Ok(Self {
            draft,
            path,
            #[cfg(not(unix))]
            turn: Mutex::new(()),
        })
    }

    #[cfg(unix)]
    fn put(&self, bytes: &[u8], at: u64) -> Result<(), WriteError> {
        let put = std::os::unix::fs::FileExt::write_all_at(self.draft.file(), bytes, at);
        put.map_err(error(self.path, "write"))
    }

    #[cfg(not(unix))]
    fn put(&self, bytes: &[u8], at: u64) -> Result<(), WriteError> {
        use std::io::{Seek, SeekFrom, Write};
        let _turn = self.turn.lock();
        let mut file = self.draft.file();
        let put = file.seek(SeekFrom::Start(at)).and_then(|_| file.write_all(bytes));
        put.map_err(error(self.path, "write"))
    }

    fn finish(self) -> Result<(), WriteError> {
        self.draft.take_name(self.path).map_err(error(self.path, "finish"))
    }
}

fn error(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> WriteError {
    let path = path.to_owned();
    move |source| WriteError::Io { path, action, source }
}
