//! Pictures: from the decoder's values to bytes, and to a PNG file that is whole or absent.
//!
//! A picture that took a minute must not be lost to a path that cannot be written, nor leave half a
//! file when the disk is full or the run is cancelled: the path is tried before the run
//! ([`check_writable`]), and the file appears under its name only when all of it is on the disk.
//!
//! Main types: [`Picture`].
//! Invariants: the bytes of a picture are width x height x 3; rounding is that of diffusers.
//!
//! # Source
//! diffusers 0.42.1 `VaeImageProcessor.postprocess`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use half::bf16;
use sha2::{Digest, Sha256};

use crate::error::ImageError;

/// An RGB picture of 8 bits a channel, row by row from the top.
#[derive(Clone, PartialEq, Eq)]
pub struct Picture {
    width: u32,
    height: u32,
    rgb: Vec<u8>,
}

impl std::fmt::Debug for Picture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Picture({}x{})", self.width, self.height)
    }
}

impl Picture {
    /// A picture of ready bytes.
    ///
    /// # Errors
    /// [`ImageError::SizeMismatch`].
    pub fn from_rgb(rgb: Vec<u8>, width: u32, height: u32) -> Result<Self, ImageError> {
        check_size(rgb.len(), width, height)?;
        Ok(Self { width, height, rgb })
    }

    /// From a decoder's f32 values, which are about -1 to 1.
    ///
    /// Shapes: `values` [height * width, 3]; each becomes the nearest byte of `x / 2 + 0.5`, ties
    /// to even, beyond the range the nearest end of it.
    ///
    /// # Errors
    /// [`ImageError::SizeMismatch`]; [`ImageError::NotANumber`] if a value is NaN, which numpy
    /// would turn into an arbitrary byte.
    pub fn from_f32(values: &[f32], width: u32, height: u32) -> Result<Self, ImageError> {
        Self::from_values(values.iter().map(|value| value * 0.5 + 0.5), width, height)
    }

    /// From a decoder's bf16 values: `x / 2 + 0.5` is itself rounded to bf16, as in a bf16
    /// pipeline, and only then scaled to a byte in f32.
    ///
    /// # Errors
    /// As [`Picture::from_f32`].
    pub fn from_bf16(values: &[bf16], width: u32, height: u32) -> Result<Self, ImageError> {
        let unit = |value: &bf16| bf16::from_f32(value.to_f32() * 0.5 + 0.5).to_f32();
        Self::from_values(values.iter().map(unit), width, height)
    }

    fn from_values(
        units: impl ExactSizeIterator<Item = f32>,
        width: u32,
        height: u32,
    ) -> Result<Self, ImageError> {
        check_size(units.len(), width, height)?;
        let (mut count, mut first) = (0, 0);
        let rgb = units
            .enumerate()
            .map(|(index, unit)| {
                if unit.is_nan() {
                    first = if count == 0 { index } else { first };
                    count += 1;
                }
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 0 to 255.
                {
                    (unit.clamp(0.0, 1.0) * 255.0).round_ties_even() as u8
                }
            })
            .collect();
        if count > 0 {
            return Err(ImageError::NotANumber { count, pixel: first / 3 });
        }
        Ok(Self { width, height, rgb })
    }

    /// Width in pixels.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Height in pixels.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// The bytes, [height, width, 3].
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }

    /// SHA-256 of the bytes, in lower-case hexadecimal.
    pub fn sha256(&self) -> String {
        Sha256::digest(&self.rgb).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The picture as a PNG file, with a text chunk for each note (keyword and text).
    ///
    /// A text of printable Latin-1 is a `tEXt` chunk, which every reader knows, any other an `iTXt`
    /// chunk in UTF-8; a NUL, which neither may hold, becomes U+FFFD.
    ///
    /// # Errors
    /// [`ImageError::Encode`], which a keyword of more than 79 or of non-Latin-1 characters causes
    /// too.
    pub fn encode_png(&self, notes: &[(&str, &str)]) -> Result<Vec<u8>, ImageError> {
        self.encode(notes).map_err(|source| ImageError::Encode { source })
    }

    fn encode(&self, notes: &[(&str, &str)]) -> Result<Vec<u8>, png::EncodingError> {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, self.width, self.height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        for (keyword, text) in notes {
            let text = text.replace('\0', "\u{fffd}");
            let is_latin_1 =
                text.chars().all(|c| matches!(c, '\n' | ' '..='~' | '\u{a0}'..='\u{ff}'));
            if is_latin_1 {
                encoder.add_text_chunk((*keyword).to_owned(), text)?;
            } else {
                encoder.add_itxt_chunk((*keyword).to_owned(), text)?;
            }
        }
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&self.rgb)?;
        writer.finish()?;
        Ok(bytes)
    }

    /// Writes the picture as a PNG file that is whole or absent, replacing a file of that name.
    ///
    /// The bytes go to a file beside the target, are flushed to the disk, and take the name in one
    /// step; after an error the folder is as it was.
    ///
    /// # Errors
    /// Those of [`check_writable`], and [`ImageError::Write`] or [`ImageError::Encode`].
    pub fn write_png(&self, path: &Path, notes: &[(&str, &str)]) -> Result<(), ImageError> {
        let bytes = self.encode_png(notes)?;
        let target = Target::of(path)?;
        let (mut draft, mut file) = Draft::create(&target.folder)?;
        file.write_all(&bytes).map_err(|source| write_error("write", &draft.path, source))?;
        file.sync_all().map_err(|source| write_error("flush", &draft.path, source))?;
        drop(file);
        fs::rename(&draft.path, &target.file)
            .map_err(|source| write_error("replace", &target.file, source))?;
        draft.is_kept = true;
        // The name is a change of the folder; not every system lets a folder be opened for this,
        // and the picture is whole either way.
        if let Ok(folder) = File::open(&target.folder) {
            folder.sync_all().ok();
        }
        Ok(())
    }
}

/// Tries, before a long run, whether a picture can be written to `path`: its folder is there and
/// takes a new file, and the path is free or a regular file that may be replaced.
///
/// Leaves nothing behind.
///
/// # Errors
/// [`ImageError::NoFileName`], [`ImageError::FolderMissing`], [`ImageError::NotAFile`],
/// [`ImageError::ReadOnly`], or [`ImageError::Write`] with what the system refused.
pub fn check_writable(path: &Path) -> Result<(), ImageError> {
    let target = Target::of(path)?;
    Draft::create(&target.folder).map(drop)
}

/// Where a picture goes, symbolic links followed.
struct Target {
    folder: PathBuf,
    file: PathBuf,
}

impl Target {
    fn of(path: &Path) -> Result<Self, ImageError> {
        let ends_in_separator =
            path.as_os_str().to_string_lossy().ends_with(std::path::is_separator);
        let name = match path.file_name() {
            Some(name) if !ends_in_separator => name,
            _ if path.is_dir() => return Err(ImageError::NotAFile { path: path.to_owned() }),
            _ => return Err(ImageError::NoFileName { path: path.to_owned() }),
        };
        let folder_of = |path: &Path| match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let (mut folder, mut file) = (folder_of(path), folder_of(path).join(name));
        // A link is followed here, or the rename would replace the link instead of its target.
        if fs::symlink_metadata(&file).is_ok_and(|metadata| metadata.is_symlink()) {
            file = fs::canonicalize(&file).map_err(|source| write_error("follow", path, source))?;
            folder = folder_of(&file);
        }
        if !folder.is_dir() {
            return Err(ImageError::FolderMissing { folder });
        }
        match fs::metadata(&file) {
            Ok(metadata) if !metadata.is_file() => Err(ImageError::NotAFile { path: file }),
            Ok(metadata) if metadata.permissions().readonly() => {
                Err(ImageError::ReadOnly { path: file })
            }
            Ok(_) => Ok(Self { folder, file }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self { folder, file }),
            // A name that is too long, for instance.
            Err(source) => Err(write_error("use", &file, source)),
        }
    }
}

/// A file under a temporary name, removed when dropped unless it took its final name.
struct Draft {
    path: PathBuf,
    is_kept: bool,
}

impl Draft {
    fn create(folder: &Path) -> Result<(Self, File), ImageError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = folder.join(format!(".plimsoll-{}-{number}.part", std::process::id()));
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => return Ok((Self { path, is_kept: false }, file)),
                // Left by a killed process of the same number.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(write_error("create a file in", folder, source)),
            }
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.is_kept {
            // Nobody is left to tell; the name says whose file it is.
            fs::remove_file(&self.path).ok();
        }
    }
}

fn check_size(values: usize, width: u32, height: u32) -> Result<(), ImageError> {
    let expected = u64::from(width).checked_mul(u64::from(height)).and_then(|n| n.checked_mul(3));
    let is_right = width > 0 && height > 0 && u64::try_from(values).ok() == expected;
    if is_right { Ok(()) } else { Err(ImageError::SizeMismatch { values, width, height }) }
}

fn write_error(action: &'static str, path: &Path, source: io::Error) -> ImageError {
    ImageError::Write { action, path: path.to_owned(), source }
}
