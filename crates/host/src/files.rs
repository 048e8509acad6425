//! Maps the files of catalogs and hands out their bytes: the one reader of mappings.
//!
//! Relies on, for soundness of the mappings:
//! 1. nobody writes to a weight file while it is mapped. This cannot be enforced; it is checked by
//!    [`HostFiles::recheck`] before each run. If it is broken all the same, reads give other bytes,
//!    of which every value is a valid `u8`;
//! 2. a read of a page that the file no longer has ends the process (`guard`).

use std::fs::{self, File, Metadata};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::{Mmap, MmapOptions};
use plimsoll_weights::{Blob, Catalog, Entry, FileIdentity, Piece};

use crate::error::HostError;
use crate::guard::{self, Watched};

/// The blobs of some catalogs, in host memory.
///
/// Memory: nothing but page-cache pages, which the system takes back when it needs them.
///
/// Blobs are named by the index of their catalog, in the order given to [`HostFiles::open`], and
/// their index in [`Catalog::blobs`].
#[derive(Debug)]
pub struct HostFiles {
    catalogs: Vec<Vec<Backing>>,
}

#[derive(Debug)]
enum Backing {
    Mapped(SharedMapping),
    Static { name: &'static str, data: &'static [u8] },
}

/// A mapped file that stays mapped as long as anyone holds this.
///
/// A device that lends its pages to a card holds one, so that the pages are taken back before the mapping goes.
#[derive(Clone, Debug)]
pub struct SharedMapping {
    file: Arc<MappedFile>,
}

impl SharedMapping {
    /// Maps a file as it is now.
    ///
    /// # Errors
    /// As [`HostFiles::open`].
    pub fn open(path: &Path) -> Result<Self, HostError> {
        let io = |source| HostError::Io { path: path.to_owned(), action: "open the file", source };
        let metadata = fs::metadata(path).map_err(io)?;
        let identity = FileIdentity::of(&metadata);
        let file = Arc::new(MappedFile::open(path, metadata.len(), identity)?);
        Ok(Self { file })
    }

    /// The whole file.
    pub fn bytes(&self) -> &[u8] {
        &self.file.mapping
    }

    /// Where the file was opened.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// Which file it is.
    pub fn identity(&self) -> FileIdentity {
        self.file.identity
    }

    /// Whether both are the same mapping, not only of the same file.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.file, &other.file)
    }
}

#[derive(Debug)]
struct MappedFile {
    /// Declared before the mapping, so that the handler forgets the range before it is unmapped.
    _watched: Watched,
    mapping: Mmap,
    /// Kept open, to ask for the length of the very file that is mapped.
    file: File,
    path: PathBuf,
    identity: FileIdentity,
}

impl HostFiles {
    /// Maps every file of `catalogs`, after checking that each is still the one whose header was
    /// read.
    ///
    /// # Errors
    /// [`HostError::Io`], [`HostError::LengthChanged`], [`HostError::Replaced`],
    /// [`HostError::Guard`], [`HostError::TooManyFiles`].
    pub fn open(catalogs: &[&Catalog]) -> Result<Self, HostError> {
        let open_all = |catalog: &&Catalog| catalog.blobs.iter().map(Backing::open).collect();
        let catalogs = catalogs.iter().map(open_all).collect::<Result<_, _>>()?;
        Ok(Self { catalogs })
    }

    /// `bytes` bytes of a blob from `offset` on.
    ///
    /// # Errors
    /// [`HostError::NoSuchBlob`], [`HostError::OutOfRange`].
    pub fn bytes(
        &self,
        catalog: usize,
        blob: usize,
        offset: u64,
        bytes: u64,
    ) -> Result<&[u8], HostError> {
        let backing = self.backing(catalog, blob)?;
        backing.range(offset, bytes).ok_or_else(|| HostError::OutOfRange {
            path: backing.path().to_owned(),
            offset,
            bytes,
            file_bytes: backing.data().len() as u64,
        })
    }

    /// All bytes of a blob.
    ///
    /// # Errors
    /// [`HostError::NoSuchBlob`].
    pub fn blob(&self, catalog: usize, blob: usize) -> Result<&[u8], HostError> {
        Ok(self.backing(catalog, blob)?.data())
    }

    /// The bytes of one piece of an entry.
    ///
    /// # Errors
    /// As [`HostFiles::bytes`].
    pub fn piece(&self, catalog: usize, piece: &Piece) -> Result<&[u8], HostError> {
        self.bytes(catalog, piece.blob, piece.offset, piece.bytes)
    }

    /// Copies a tensor, its pieces one after the other, into `target`, which must have its size.
    ///
    /// # Errors
    /// [`HostError::WrongTarget`] before anything is copied; else as [`HostFiles::bytes`].
    pub fn gather(
        &self,
        catalog: usize,
        entry: &Entry,
        target: &mut [u8],
    ) -> Result<(), HostError> {
        let (tensor_bytes, target_bytes) = (entry.bytes(), target.len() as u64);
        if tensor_bytes != target_bytes {
            return Err(HostError::WrongTarget { tensor_bytes, target_bytes });
        }
        let mut rest = target;
        for piece in &entry.pieces {
            let source = self.piece(catalog, piece)?;
            // In range: the pieces add up to the length of the target.
            let (here, after) = rest.split_at_mut(source.len());
            here.copy_from_slice(source);
            rest = after;
        }
        Ok(())
    }

    /// Asks the system to read a piece ahead into the page cache; a hint that cannot fail.
    ///
    /// Never `MADV_SEQUENTIAL`: it marks pages as the first to be dropped, and a streamed weight is
    /// read again in every step.
    pub fn will_need(&self, catalog: usize, piece: &Piece) {
        let Ok(Backing::Mapped(SharedMapping { file })) = self.backing(catalog, piece.blob) else {
            return;
        };
        if let (Ok(offset), Ok(bytes)) =
            (usize::try_from(piece.offset), usize::try_from(piece.bytes))
            && offset.checked_add(bytes).is_some_and(|end| end <= file.mapping.len())
            && bytes > 0
        {
            #[cfg(unix)]
            // A hint: the bytes are right whether or not they were read ahead.
            let _ = file.mapping.advise_range(memmap2::Advice::WillNeed, offset, bytes);
        }
    }

    /// Compares every mapped file's length and identity with those at opening.
    ///
    /// To be called before each run; and after it where a wrong result would be worse than none,
    /// because a file that lost less than a page reads as zeros there, without a signal.
    ///
    /// # Errors
    /// [`HostError::LengthChanged`], [`HostError::Replaced`], [`HostError::Io`].
    pub fn recheck(&self) -> Result<(), HostError> {
        for backing in self.catalogs.iter().flatten() {
            if let Backing::Mapped(SharedMapping { file }) = backing {
                file.recheck()?;
            }
        }
        Ok(())
    }

    /// Every mapped file, in the order of catalogs and blobs.
    pub fn mappings(&self) -> Vec<SharedMapping> {
        let mapped = |backing: &Backing| match backing {
            Backing::Mapped(mapping) => Some(mapping.clone()),
            Backing::Static { .. } => None,
        };
        self.catalogs.iter().flatten().filter_map(mapped).collect()
    }

    fn backing(&self, catalog: usize, blob: usize) -> Result<&Backing, HostError> {
        let found = self.catalogs.get(catalog).and_then(|blobs| blobs.get(blob));
        found.ok_or(HostError::NoSuchBlob { catalog, blob })
    }
}

impl Backing {
    fn open(blob: &Blob) -> Result<Self, HostError> {
        match blob {
            Blob::Static { name, data } => Ok(Self::Static { name, data }),
            Blob::File { path, bytes, identity } => {
                let file = Arc::new(MappedFile::open(path, *bytes, *identity)?);
                Ok(Self::Mapped(SharedMapping { file }))
            }
        }
    }

    fn data(&self) -> &[u8] {
        match self {
            Self::Mapped(mapping) => mapping.bytes(),
            Self::Static { data, .. } => data,
        }
    }

    fn path(&self) -> &Path {
        match self {
            Self::Mapped(mapping) => mapping.path(),
            Self::Static { name, .. } => Path::new(name),
        }
    }

    fn range(&self, offset: u64, bytes: u64) -> Option<&[u8]> {
        let begin = usize::try_from(offset).ok()?;
        let end = usize::try_from(offset.checked_add(bytes)?).ok()?;
        self.data().get(begin..end)
    }
}

impl MappedFile {
    fn open(path: &Path, bytes: u64, identity: FileIdentity) -> Result<Self, HostError> {
        let io = |action| move |source| HostError::Io { path: path.to_owned(), action, source };
        // Asked before opening, because opening a pipe that has taken the place would wait.
        let metadata = fs::metadata(path).map_err(io("open the file"))?;
        compare(path, &metadata, bytes, identity)?;
        let file = File::open(path).map_err(io("open the file"))?;
        let metadata = file.metadata().map_err(io("open the file"))?;
        compare(path, &metadata, bytes, identity)?;

        let length = usize::try_from(bytes).map_err(|_| {
            io("map the file")(std::io::Error::from(std::io::ErrorKind::FileTooLarge))
        })?;
        let mut options = MmapOptions::new();
        options.len(length);
        // SAFETY: `map` asks that the file is not changed while mapped: point 1 of the file's head.
        // The length was just compared with that of this very file, and a page that is gone later
        // ends the process (point 2) before a byte of it is used.
        let mapping = unsafe { options.map(&file) }.map_err(io("map the file"))?;
        let watched = guard::watch(&mapping, path)?;
        Ok(Self { _watched: watched, mapping, file, path: path.to_owned(), identity })
    }

    fn recheck(&self) -> Result<(), HostError> {
        let io =
            |source| HostError::Io { path: self.path.clone(), action: "check the file", source };
        let bytes = self.mapping.len() as u64;
        // First the mapped file itself, whose loss is dangerous; then what the path names.
        compare(&self.path, &self.file.metadata().map_err(io)?, bytes, self.identity)?;
        match fs::metadata(&self.path) {
            Ok(metadata) => compare(&self.path, &metadata, bytes, self.identity),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                Err(HostError::Replaced { path: self.path.clone(), how: "removed" })
            }
            Err(e) => Err(io(e)),
        }
    }
}

/// Refuses a file that is not the one whose header was read.
pub(crate) fn compare(
    path: &Path,
    now: &Metadata,
    bytes_before: u64,
    before: FileIdentity,
) -> Result<(), HostError> {
    let path = || path.to_owned();
    let identity = FileIdentity::of(now);
    let is_other = (identity.device, identity.inode) != (before.device, before.inode);
    if is_other || !now.is_file() {
        return Err(HostError::Replaced { path: path(), how: "replaced" });
    }
    if now.len() != bytes_before {
        let bytes_now = now.len();
        return Err(HostError::LengthChanged { path: path(), bytes_before, bytes_now });
    }
    if identity != before {
        return Err(HostError::Replaced { path: path(), how: "written to" });
    }
    Ok(())
}
