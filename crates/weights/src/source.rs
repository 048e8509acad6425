//! Where the files of a checkpoint come from: a folder on disk, or bytes built into the program.
//!
//! One place opens files, so that the rules hold for all of them:
//! - a name found inside a checkpoint is a plain relative path, and the file it leads to lies
//!   inside the folder once all links are resolved;
//! - only regular files are opened (a pipe would block for ever);
//! - text is read only up to a cap, of weights only the header is read.
//!
//! One link out of the folder is allowed: a snapshot of the Hugging Face cache
//! (`models--NAME/snapshots/REVISION`) holds links into `models--NAME/blobs`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use crate::catalog::{Blob, FileIdentity};
use crate::error::WeightsError;
use crate::header::{Header, LENGTH_BYTES};
use crate::header_error::HeaderError;
use crate::layout::Layout;
use crate::regular;
use crate::sniff::{SNIFF_BYTES, sniff};

/// Most entries of one folder that are looked at.
const FOLDER_ENTRIES_MAX: usize = 4096;

/// What opening a file of weights found.
pub(crate) enum Opened {
    /// A safetensors file with a sound header.
    Safetensors(Blob, Header),
    /// Something else, told by content.
    Foreign(Blob, Layout),
}

impl Opened {
    /// The safetensors file, or the refusal of what it is instead.
    pub(crate) fn safetensors(self) -> Result<(Blob, Header), WeightsError> {
        match self {
            Self::Safetensors(blob, header) => Ok((blob, header)),
            Self::Foreign(blob, layout) => Err(refuse_layout(blob.path(), layout)),
        }
    }
}

pub(crate) fn refuse_layout(path: &Path, layout: Layout) -> WeightsError {
    let advice = layout.refusal().unwrap_or("not read here");
    WeightsError::Layout { path: path.to_owned(), layout, advice }
}

/// The files of one checkpoint. Paths are relative, with `/` between folders.
pub(crate) enum Source {
    /// A folder.
    Folder {
        /// The folder as the user named it, for messages.
        shown: PathBuf,
        /// The folder with all links resolved.
        root: PathBuf,
        /// `blobs` of the Hugging Face cache that the folder is a snapshot of.
        cache_blobs: Option<PathBuf>,
    },
    /// Bytes in the program.
    Embedded(BTreeMap<&'static str, &'static [u8]>),
}

impl Source {
    pub(crate) fn folder(path: &Path) -> Result<Self, WeightsError> {
        let root = path.canonicalize().map_err(WeightsError::io(path, "open the folder"))?;
        let cache_blobs = cache_blobs(&root);
        Ok(Self::Folder { shown: path.to_owned(), root, cache_blobs })
    }

    /// The path of a file for messages; an empty `relative` is the folder itself.
    pub(crate) fn shown(&self, relative: &str) -> PathBuf {
        match self {
            Self::Folder { shown, .. } if relative.is_empty() => shown.clone(),
            Self::Folder { shown, .. } => shown.join(relative),
            Self::Embedded(_) => Path::new("built-in model").join(relative),
        }
    }

    /// Names of the files directly in `folder`, in order; empty where there is no such folder.
    pub(crate) fn list(&self, folder: &str) -> Result<Vec<String>, WeightsError> {
        let mut names = Vec::new();
        match self {
            Self::Folder { .. } => {
                let path = match self.resolve(folder)? {
                    Some(path) if path.is_dir() => path,
                    _ => return Ok(names),
                };
                let error = || WeightsError::io(&path, "list the folder");
                for entry in fs::read_dir(&path).map_err(error())?.take(FOLDER_ENTRIES_MAX) {
                    let entry = entry.map_err(error())?;
                    // A link counts by what it points to; a name that is not Unicode is not ours.
                    if let Some(name) = entry.file_name().to_str()
                        && entry.path().is_file()
                    {
                        names.push(name.to_owned());
                    }
                }
            }
            Self::Embedded(files) => {
                let inside = |path: &&'static str| -> Option<&'static str> {
                    let rest = path.strip_prefix(folder)?;
                    let name = if folder.is_empty() { rest } else { rest.strip_prefix('/')? };
                    (!name.contains('/')).then_some(name)
                };
                names.extend(files.keys().filter_map(inside).map(str::to_owned));
            }
        }
        names.sort();
        Ok(names)
    }

    /// The whole of a small file; `None` where it does not exist.
    pub(crate) fn read(
        &self,
        relative: &str,
        cap_bytes: u64,
        what: &'static str,
    ) -> Result<Option<Cow<'static, [u8]>>, WeightsError> {
        let over_cap =
            |bytes| WeightsError::OverCap { path: self.shown(relative), bytes, cap_bytes, what };
        match self {
            Self::Embedded(files) => match files.get(relative) {
                Some(data) if data.len() as u64 > cap_bytes => Err(over_cap(data.len() as u64)),
                found => Ok(found.map(|data| Cow::Borrowed(*data))),
            },
            Self::Folder { .. } => {
                let Some(path) = self.resolve(relative)? else {
                    return Ok(None);
                };
                let (file, metadata) = open_regular(&path)?;
                if metadata.len() > cap_bytes {
                    return Err(over_cap(metadata.len()));
                }
                let mut data = Vec::new();
                // One byte more than allowed tells a file that grows while it is read.
                let read = file.take(cap_bytes + 1).read_to_end(&mut data);
                read.map_err(WeightsError::io(&path, "read the file"))?;
                if data.len() as u64 > cap_bytes {
                    return Err(over_cap(data.len() as u64));
                }
                Ok(Some(Cow::Owned(data)))
            }
        }
    }

    /// Opens a file of weights and reads its header.
    pub(crate) fn open(&self, relative: &str, why: &'static str) -> Result<Opened, WeightsError> {
        let missing = || WeightsError::Missing { path: self.shown(relative), why };
        match self {
            Self::Folder { .. } => open_path(&self.resolve(relative)?.ok_or_else(missing)?),
            Self::Embedded(files) => {
                let (&name, &data) = files.get_key_value(relative).ok_or_else(missing)?;
                let blob = Blob::Static { name, data };
                if let Some(layout) = sniff(&data[..data.len().min(SNIFF_BYTES)]) {
                    return Ok(Opened::Foreign(blob, layout));
                }
                let refuse = |reason| WeightsError::Header { path: name.into(), reason };
                let header = Header::of_bytes(data).map_err(refuse)?;
                Ok(Opened::Safetensors(blob, header))
            }
        }
    }

    /// The real path of a file or folder, proven to lie inside; `None` where there is none.
    fn resolve(&self, relative: &str) -> Result<Option<PathBuf>, WeightsError> {
        let Self::Folder { root, cache_blobs, .. } = self else {
            return Ok(None);
        };
        let joined = root.join(relative);
        if !relative.is_empty() && !is_plain(relative) {
            let (path, name) = (self.shown(""), relative.to_owned());
            return Err(WeightsError::UnsafeName { path, name });
        }
        let target = match joined.canonicalize() {
            Ok(target) => target,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(WeightsError::io(&self.shown(relative), "open the file")(e)),
        };
        let is_inside = target.starts_with(root)
            || cache_blobs.as_ref().is_some_and(|blobs| target.starts_with(blobs));
        if is_inside {
            Ok(Some(target))
        } else {
            Err(WeightsError::OutsideFolder { path: self.shown(relative), target })
        }
    }
}

/// Whether a name leads to a file inside the folder on every system: plain parts joined by `/`.
pub(crate) fn is_plain(relative: &str) -> bool {
    let parts_are_plain =
        || Path::new(relative).components().all(|part| matches!(part, Component::Normal(_)));
    let has_odd = |c: char| c == '\\' || c == ':' || c.is_control();
    !relative.is_empty()
        && !relative.contains(has_odd)
        && !relative.starts_with('/')
        && parts_are_plain()
}

fn cache_blobs(root: &Path) -> Option<PathBuf> {
    let snapshots = root.parent()?;
    let repository = snapshots.parent()?;
    let is_cache = snapshots.file_name()? == "snapshots"
        && repository.file_name()?.to_str()?.starts_with("models--");
    let blobs = repository.join("blobs");
    (is_cache && blobs.is_dir()).then_some(blobs)
}

fn open_regular(path: &Path) -> Result<(File, Metadata), WeightsError> {
    let opened = regular::open(path).map_err(WeightsError::io(path, "open the file"))?;
    opened.ok_or_else(|| WeightsError::NotAFile { path: path.to_owned() })
}

/// Opens a file of weights by a path that the user gave, or that was proven to be inside.
pub(crate) fn open_path(path: &Path) -> Result<Opened, WeightsError> {
    let (mut file, metadata) = open_regular(path)?;
    let bytes = metadata.len();
    let blob = Blob::File { path: path.to_owned(), bytes, identity: FileIdentity::of(&metadata) };
    let error = || WeightsError::io(path, "read the file");
    let refuse = |reason| WeightsError::Header { path: path.to_owned(), reason };

    let mut head = Vec::with_capacity(SNIFF_BYTES);
    file.by_ref().take(SNIFF_BYTES as u64).read_to_end(&mut head).map_err(error())?;
    if let Some(layout) = sniff(&head) {
        return Ok(Opened::Foreign(blob, layout));
    }
    let Some(&length) = head.first_chunk::<8>() else {
        return Err(refuse(HeaderError::TooShort { file_bytes: bytes }));
    };
    let json_bytes = Header::json_bytes(length, bytes).map_err(refuse)?;
    // The cap was checked, so the buffer is at most 16 MiB; and the file is at least that long.
    let mut json = head.split_off(LENGTH_BYTES as usize);
    json.reserve_exact((json_bytes as usize).saturating_sub(json.len()));
    json.truncate(json_bytes as usize);
    let rest = json_bytes - json.len() as u64;
    file.take(rest).read_to_end(&mut json).map_err(error())?;
    if json.len() as u64 != json_bytes {
        let header_end = LENGTH_BYTES + json_bytes;
        let file_bytes = LENGTH_BYTES + json.len() as u64;
        return Err(refuse(HeaderError::PastEnd { header_end, file_bytes }));
    }
    let header = Header::parse(&json, bytes).map_err(refuse)?;
    Ok(Opened::Safetensors(blob, header))
}
