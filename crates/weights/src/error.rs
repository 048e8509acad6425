//! What can be wrong with a checkpoint.
//!
//! Every variant is one line that names the file and the numbers; the command line ends with exit
//! code 4 ("bad file") on any of them. Untrusted names are escaped and cut before they are shown.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::gguf::GgufError;
use crate::header_error::HeaderError;
use crate::layout::{Architecture, Layout};
use crate::text::{An, Quoted, listed, one_line};

/// Why a checkpoint is refused.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The operating system refused.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// A file that the checkpoint needs is not there.
    #[error("{}: not found ({why})", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// What it is needed for.
        why: &'static str,
    },
    /// A folder, pipe or device stands where a file should.
    #[error("{}: not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A file is larger than anything of its kind.
    #[error("{}: {bytes} bytes, over the cap of {cap_bytes} for {what}", path.display())]
    OverCap {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
        /// The cap.
        cap_bytes: u64,
        /// What the file should be.
        what: &'static str,
    },
    /// A safetensors header is refused.
    #[error("{}: {reason}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// The reason, with the numbers.
        reason: HeaderError,
    },
    /// The head of a GGUF file is refused.
    #[error("{}: {reason}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// The reason, with the numbers.
        reason: GgufError,
    },
    /// The file is recognised, but stored in a way that is not read.
    #[error("{}: this is {}: {advice}", path.display(), An(layout))]
    Layout {
        /// The file or folder.
        path: PathBuf,
        /// What it is.
        layout: Layout,
        /// What to do.
        advice: &'static str,
    },
    /// The file is recognised, but of a model that is not run.
    #[error("{}: holds {}: {advice}", path.display(), An(architecture))]
    Architecture {
        /// The file or folder.
        path: PathBuf,
        /// What it is.
        architecture: Architecture,
        /// What to do.
        advice: &'static str,
    },
    /// 8-bit matrices and their scales do not belong together.
    #[error("{}: tensor {}: {reason}", path.display(), Quoted(tensor))]
    Scales {
        /// The file.
        path: PathBuf,
        /// The matrix or its scales.
        tensor: String,
        /// What does not fit.
        reason: String,
    },
    /// The pipeline class of a folder is not one that is run.
    #[error(
        "{}: the pipeline {} is not supported yet; FluxPipeline is",
        path.display(), Quoted(class_name)
    )]
    Pipeline {
        /// The `model_index.json`.
        path: PathBuf,
        /// `_class_name` as written.
        class_name: String,
    },
    /// A component's weights are quantised according to its config.
    #[error(
        "{}: the config asks for the quantisation {}, which is not read yet: \
         use the plain bf16 files of the same model",
        path.display(), Quoted(method)
    )]
    Quantized {
        /// The config.
        path: PathBuf,
        /// `quant_method`, or the key that told.
        method: String,
    },
    /// A component's weights are those of another model than its class says.
    #[error(
        "{}: class {} should hold {}, but the file holds {}",
        path.display(), Quoted(class_name), An(expected), An(found)
    )]
    ClassMismatch {
        /// The component's folder or file.
        path: PathBuf,
        /// Class by `model_index.json`.
        class_name: String,
        /// Architecture of that class.
        expected: Architecture,
        /// Architecture of the tensors.
        found: Architecture,
    },
    /// A text file is not what it should be.
    #[error("{}: {}", path.display(), one_line(reason))]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong, with line and column where known.
        reason: String,
    },
    /// A name that would lead out of the folder, or to no plain file.
    #[error(
        "{}: the name {} is not a plain relative path inside the folder",
        path.display(), Quoted(name)
    )]
    UnsafeName {
        /// The file that names it.
        path: PathBuf,
        /// The name as written.
        name: String,
    },
    /// A link leads out of the folder.
    #[error("{}: leads out of the folder, to {}", path.display(), target.display())]
    OutsideFolder {
        /// The path inside the folder.
        path: PathBuf,
        /// Where it really is.
        target: PathBuf,
    },
    /// The index puts a tensor in a shard that does not hold it.
    #[error(
        "{}: tensor {} is not in the shard {}, where the index puts it",
        path.display(), Quoted(tensor), Quoted(shard)
    )]
    NotInShard {
        /// The index.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The shard that should hold it.
        shard: String,
    },
    /// A shard holds a tensor that the index does not give to it.
    #[error(
        "{}: the shard {} holds the tensor {}, which the index does not put there",
        path.display(), Quoted(shard), Quoted(tensor)
    )]
    NotInIndex {
        /// The index.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The shard that holds it.
        shard: String,
    },
    /// The index promises more bytes than its shards hold.
    #[error(
        "{}: the index speaks of {total_bytes} bytes, but its shards hold {shard_bytes}: \
         shards are missing or of another model",
        path.display()
    )]
    IndexTotal {
        /// The index.
        path: PathBuf,
        /// `metadata.total_size`.
        total_bytes: u64,
        /// Bytes of all tensors of all shards.
        shard_bytes: u64,
    },
    /// A folder holds several weight files and nothing that says which is meant.
    #[error(
        "{}: several weight files and no index: {}",
        path.display(), listed(files.iter().map(|file| Quoted(file).to_string()))
    )]
    Ambiguous {
        /// The folder.
        path: PathBuf,
        /// The files.
        files: Vec<String>,
    },
    /// A fused tensor cannot be split into its parts.
    #[error(
        "{}: tensor {} of shape {shape:?} cannot be split into {parts}",
        path.display(), Quoted(tensor)
    )]
    Split {
        /// The file.
        path: PathBuf,
        /// The fused tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<u64>,
        /// What it should hold.
        parts: &'static str,
    },
    /// Two tensors of the files stand for one tensor of the model.
    #[error(
        "{}: {} stands for {} of the model, which another tensor of the file is too",
        path.display(), Quoted(tensor), Quoted(canonical)
    )]
    Twice {
        /// The file.
        path: PathBuf,
        /// The second one, by its name in the file.
        tensor: String,
        /// What both are to the model.
        canonical: String,
    },
    /// The tensors are not those that the model needs.
    #[error("{0}")]
    Tensors(Box<TensorsDiffer>),
}

/// Who has to do something about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The file is damaged, hostile or of another kind: get the right one.
    File,
    /// The disk or its permissions: try again, or elsewhere.
    Disk,
}

impl WeightsError {
    /// Who has to do something about it.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Io { .. } => Fault::Disk,
            _ => Fault::File,
        }
    }

    pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, action, source }
    }

    pub(crate) fn json(path: &Path, reason: impl ToString) -> Self {
        Self::Json { path: path.to_owned(), reason: reason.to_string() }
    }
}

/// How the tensors of a checkpoint differ from those that its model needs.
#[derive(Debug, Error)]
#[error("{}: {}", path.display(), self.differences())]
pub struct TensorsDiffer {
    /// The first file of the checkpoint.
    pub path: PathBuf,
    /// Name and shape of each tensor that is needed and not there.
    pub missing: Vec<(String, Vec<u64>)>,
    /// Name and shape of each tensor that is there and belongs to nothing.
    pub superfluous: Vec<(String, Vec<u64>)>,
    /// Name, needed shape and present shape of each tensor of another shape.
    pub misshapen: Vec<(String, Vec<u64>, Vec<u64>)>,
}

impl TensorsDiffer {
    fn differences(&self) -> String {
        let named = |list: &[(String, Vec<u64>)]| {
            listed(list.iter().map(|(name, shape)| format!("{} {shape:?}", Quoted(name))))
        };
        let mut parts = Vec::new();
        if !self.missing.is_empty() {
            parts.push(format!("missing {}: {}", tensors(&self.missing), named(&self.missing)));
        }
        if !self.misshapen.is_empty() {
            let list = listed(self.misshapen.iter().map(|(name, expected, found)| {
                format!("{} is {found:?}, expected {expected:?}", Quoted(name))
            }));
            parts.push(format!("{} of another shape: {list}", tensors(&self.misshapen)));
        }
        if !self.superfluous.is_empty() {
            let list = named(&self.superfluous);
            parts.push(format!("{} that the model has not: {list}", tensors(&self.superfluous)));
        }
        parts.join("; ")
    }
}

fn tensors<T>(list: &[T]) -> String {
    let plural = if list.len() == 1 { "" } else { "s" };
    format!("{} tensor{plural}", list.len())
}
