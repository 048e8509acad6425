//! A transformer that is put in 8 bits once and kept: what a run asks for that streams it.
//!
//! Where each matrix is copied once a run, the copy itself puts it in 8 bits. Where matrices are streamed, doing so in
//! every step would cost more than the bytes that it saves; so the file that `pack` would write is written into the
//! user's cache folder, by the first run that needs it, and read by all later ones.
//!
//! A file is named by what it was made from: the source files' lengths, times and headers, and the storage. It gets its
//! name when it is whole, under a lock, so that two processes write it once. Whether it is what its name says is seen by
//! some rows of each matrix before it is used: times and lengths may be another checkpoint's as well.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use plimsoll_device::Control;
use plimsoll_models::flux;
use plimsoll_pipeline::{Assembled, PackedFile, PipelineError, PlaceRequest, Storage};
use plimsoll_plan::Machine;
use plimsoll_weights::{Blob, WriteError, write_safetensors};
use sha2::{Digest, Sha256};

use crate::args::RunArgs;
use crate::failure::Failure;
use crate::new_folder;
use crate::out;
use crate::progress::ByteBar;

/// How often a process that waits for another looks whether that one is done, or itself was stopped.
const LOOK: Duration = Duration::from_millis(100);

/// The pipeline as the run can use it: as it is, or with its transformer from the packed file.
pub(crate) fn settle(
    assembled: Assembled,
    args: &RunArgs,
    place: &PlaceRequest,
    machine: &dyn Machine,
    control: &Control,
) -> Result<Assembled, Failure> {
    if !assembled.narrows() {
        return Ok(assembled);
    }
    match assembled.plan(place, machine) {
        Ok(planned) if planned.narrows_once() => return Ok(assembled),
        Ok(_) => {}
        // Placing tells it, with what it knows of the device.
        Err(PipelineError::Plan(_)) => return Ok(assembled),
        Err(other) => return Err(other.into()),
    }
    let Some(folder) = folder(&|name| std::env::var_os(name)) else {
        return Err(Failure::Usage(format!(
            "the transformer of {} is streamed, so it has to be packed first, and there is no folder for caches: {}",
            args.model,
            command(args)
        )));
    };
    let key = key(&assembled);
    let path = folder.join(format!("{key}.safetensors"));
    let cannot = |path: &Path| {
        let path = path.display().to_string();
        move |cause| Failure::Write { path, cause }
    };
    if let Ok(found) = kept(&assembled, &path) {
        return Ok(found);
    }
    if !path.is_file() {
        check_room(&assembled, args, &path)?;
    }
    std::fs::create_dir_all(&folder).map_err(cannot(&folder))?;
    let lock = folder.join(format!("{key}.lock"));
    // Held until it is dropped, or the process ends; the file stays, since another may be waiting on it.
    let _held = hold(&lock, control)?.map_err(cannot(&lock))?;
    // Another process may have written it meanwhile.
    match kept(&assembled, &path) {
        Ok(found) => return Ok(found),
        Err(None) => {}
        Err(Some(why)) => {
            out::notice(&format!(
                "the packed transformer in the cache is damaged or another's and is packed anew: {why}"
            ));
            std::fs::remove_file(&path).map_err(cannot(&path))?;
        }
    }
    write(&assembled, args, &path, control)?;
    Ok(assembled.with_transformer(&path)?)
}

/// The pipeline with the transformer that is kept for it; else why what lies there is not to be used, if anything does.
fn kept(assembled: &Assembled, path: &Path) -> Result<Assembled, Option<String>> {
    if !path.is_file() {
        return Err(None);
    }
    let damaged = |error: PipelineError| Some(error.to_string());
    let found = assembled.with_transformer(path).map_err(damaged)?;
    match assembled.is_packed_as(&found).map_err(damaged)? {
        true => Ok(found),
        false => Err(Some("its rows are not this checkpoint's".to_owned())),
    }
}

/// Takes the lock, waiting for another process that has it.
fn hold(path: &Path, control: &Control) -> Result<std::io::Result<File>, Failure> {
    // A pipe would be waited for without end.
    if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return Ok(Err(std::io::Error::other("it is no regular file")));
    }
    let file = match OpenOptions::new().create(true).truncate(false).write(true).open(path) {
        Ok(file) => file,
        Err(error) => return Ok(Err(error)),
    };
    let mut is_told = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Ok(file)),
            Err(TryLockError::WouldBlock) if control.is_cancelled() => {
                return Err(WriteError::Cancelled.into());
            }
            Err(TryLockError::WouldBlock) => {
                if !std::mem::replace(&mut is_told, true) {
                    out::notice("another process packs this transformer; waiting for it");
                }
                std::thread::sleep(LOOK);
            }
            // A file system without locks: two processes then write it twice, each whole.
            Err(TryLockError::Error(_)) => return Ok(Ok(file)),
        }
    }
}

/// The file of the transformer.
fn files(assembled: &Assembled) -> Result<Vec<PackedFile<'_>>, Failure> {
    let storage = |component: &str| {
        if component == flux::TRANSFORMER { Storage::F8 } else { Storage::Kept }
    };
    let mut files = assembled.packing(&storage)?;
    files.retain(|file| file.component == flux::TRANSFORMER);
    Ok(files)
}

fn check_room(assembled: &Assembled, args: &RunArgs, path: &Path) -> Result<(), Failure> {
    let needed_bytes = files(assembled)?.iter().map(PackedFile::bytes).sum();
    let advice = format!("; where there is room: {}", command(args));
    new_folder::check_room(path, needed_bytes, &advice)
}

fn write(
    assembled: &Assembled,
    args: &RunArgs,
    path: &Path,
    control: &Control,
) -> Result<(), Failure> {
    let mut files = files(assembled)?;
    let total: u64 = files.iter().map(PackedFile::bytes).sum();
    out::notice(&format!(
        "the transformer of {} is streamed under this line, so it is packed in fp8 once, for later runs too: \
         {total} bytes to {}",
        args.model,
        path.display()
    ));
    let begin = Instant::now();
    let bar = ByteBar::new(total + files.iter().map(PackedFile::scale_bytes).sum::<u64>());
    let done = AtomicU64::new(0);
    let step = |bytes: u64| {
        bar.show(done.fetch_add(bytes, Ordering::Relaxed) + bytes);
        !control.is_cancelled()
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    for file in &mut files {
        file.find_scales(threads, &step)?;
        if control.is_cancelled() {
            return Err(WriteError::Cancelled.into());
        }
        let file = &*file;
        let metadata = super::metadata(assembled, file, Storage::F8);
        let fill = |tensor: usize, offset: u64, bytes: &mut [u8]| file.fill(tensor, offset, bytes);
        write_safetensors(path, &file.tensors, &metadata, threads, &fill, &step)?;
    }
    bar.finish();
    // A source that lost bytes while it was read would have given zeros.
    if let Err(changed) = assembled.recheck() {
        // What cannot be removed is named by what the sources were, which they are no more.
        let _left = std::fs::remove_file(path);
        return Err(changed.into());
    }
    out::notice(&format!(
        "packed {total} bytes in {:.1} s: {}",
        begin.elapsed().as_secs_f64(),
        path.display()
    ));
    Ok(())
}

/// What a person types to have the packed folder elsewhere.
fn command(args: &RunArgs) -> String {
    let model = &args.model;
    let output = if model == "demo" { "demo" } else { model.trim_end_matches('/') };
    let mut command = format!("plimsoll pack --model {model}");
    if let Some(file) = &args.transformer {
        command += &format!(" --transformer {}", file.display());
    }
    format!("{command} -o {output}-fp8 --dtype transformer=fp8")
}

/// Where packed transformers are kept: the user's cache folder by the system's convention.
fn folder(read: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute =
        |name: &str| read(name).map(PathBuf::from).filter(|path: &PathBuf| path.is_absolute());
    let base = if cfg!(windows) {
        absolute("LOCALAPPDATA")?
    } else if cfg!(target_os = "macos") {
        absolute("HOME")?.join("Library/Caches")
    } else {
        // The XDG convention: a relative value is to be ignored.
        absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?
    };
    Some(base.join("plimsoll").join("packed"))
}

/// What a packed transformer is known by: the files that it is made from and how it is stored.
///
/// Names, types, shapes and places of all tensors are what their headers say. Paths are not in it: a checkpoint that was
/// moved is the same one.
fn key(assembled: &Assembled) -> String {
    let mut digest = Sha256::new();
    let mut add = |text: &str| {
        digest.update((text.len() as u64).to_le_bytes());
        digest.update(text);
    };
    add(&format!("plimsoll packed transformer {} fp8 e4m3, a scale a row", super::VERSION));
    let component = assembled.checkpoint().components.get(flux::TRANSFORMER);
    if let Some(catalog) = component.and_then(|component| component.catalog.as_ref()) {
        for blob in &catalog.blobs {
            match blob {
                Blob::File { bytes, identity, .. } => {
                    add(&format!("{bytes} bytes of {}", identity.modified_ns));
                }
                Blob::Static { data, .. } => add(&format!("{:x?}", Sha256::digest(data))),
            }
        }
        for (name, entry) in catalog.iter() {
            add(&format!("{name} {:?}", (entry.dtype, &entry.shape, &entry.pieces)));
        }
    }
    digest.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_the_systems() {
        let with = |pairs: &'static [(&str, &str)]| {
            folder(&move |name| {
                pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into())
            })
        };
        if cfg!(target_os = "linux") {
            assert_eq!(with(&[("HOME", "/home/a")]), Some("/home/a/.cache/plimsoll/packed".into()));
            assert_eq!(with(&[("XDG_CACHE_HOME", "/c")]), Some("/c/plimsoll/packed".into()));
            let relative: &[_] = &[("HOME", "/h"), ("XDG_CACHE_HOME", "c")];
            assert_eq!(with(relative), Some("/h/.cache/plimsoll/packed".into()));
        }
        assert_eq!(with(&[]), None);
    }
}
