//! `plimsoll pack`: a pipeline folder whose weights lie in the order in which they are streamed.
//!
//! The folder is written beside its place and gets its name when it is whole, so nothing is left of a pack that was
//! stopped or failed.

pub(crate) mod cache;
mod folder;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_pipeline::{Assembled, PackedFile, Storage};
use plimsoll_weights::{Blob, PACK_KEY, WriteError, read_regular, write_safetensors};
use serde_json::{Value, json};

use crate::args::PackArgs;
use crate::failure::Failure;
use crate::new_folder::{NewFolder, check_room};
use crate::progress::ByteBar;
use crate::{demo, interrupt, model, out};

/// Version of the form that [`PACK_KEY`] stands for.
const VERSION: u32 = 1;
/// Far above any model index.
const INDEX_BYTES_MAX: u64 = 1 << 20;

pub(crate) fn run(args: &PackArgs) -> Result<(), Failure> {
    // Before there is anything to leave behind.
    let control = interrupt::control();
    folder::check_places(args.model.as_ref(), &args.output)?;
    let assembled = model::open_named(&args.model, args.transformer.as_deref())?;
    let storage = storages(args, &assembled)?;
    let of = |component: &str| storage.get(component).copied().unwrap_or_default();
    let mut files = assembled.packing(&of)?;
    let texts = texts(args, &assembled)?;
    let small: u64 = texts.values().map(|bytes| bytes.len() as u64).sum();
    let total: u64 = files.iter().map(PackedFile::bytes).sum();
    check_room(&args.output, total.saturating_add(small), "")?;
    let folder = NewFolder::create(&args.output)?;
    for (path, bytes) in &texts {
        folder.put(path, bytes)?;
    }

    let work = total + files.iter().map(PackedFile::scale_bytes).sum::<u64>();
    let (bar, done) = (ByteBar::new(work), AtomicU64::new(0));
    let step = |bytes: u64| {
        bar.show(done.fetch_add(bytes, Ordering::Relaxed) + bytes);
        !control.is_cancelled()
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let begin = std::time::Instant::now();
    // Whether every weight is a number is known before the first byte is written.
    for file in &mut files {
        file.find_scales(threads, &step)?;
        if control.is_cancelled() {
            return Err(WriteError::Cancelled.into());
        }
    }
    for file in &files {
        let metadata = metadata(&assembled, file, of(&file.component));
        let path = folder.file(&format!("{}/{}", file.component, file.name))?;
        let fill = |tensor: usize, offset: u64, bytes: &mut [u8]| file.fill(tensor, offset, bytes);
        write_safetensors(&path, &file.tensors, &metadata, threads, &fill, &step)?;
    }
    // A file that lost bytes while it was read would have given zeros.
    assembled.recheck()?;
    folder.finish()?;
    bar.finish();
    let seconds = begin.elapsed().as_secs_f64();
    if args.json {
        let parts = files.iter().map(|file| (file.component.clone(), json!(file.bytes())));
        let object = json!({
            "output": args.output.display().to_string(),
            "bytes": total,
            "components": parts.collect::<serde_json::Map<_, _>>(),
            "seconds": seconds,
        });
        return out::result(&object.to_string());
    }
    out::result(&format!(
        "{}: {} packed, {:.1} MB in {seconds:.1} s",
        out::line(&args.output.display().to_string()),
        out::line(&assembled.defaults().name),
        total as f64 / 1e6,
    ))
}

/// What each component is stored as.
fn storages(
    args: &PackArgs,
    assembled: &Assembled,
) -> Result<BTreeMap<&'static str, Storage>, Failure> {
    let mut found = BTreeMap::new();
    for component in folder::COMPONENTS {
        let storage = match &args.dtype {
            None => Storage::Kept,
            Some(dtypes) => dtypes.storage(component)?,
        };
        if storage == Storage::BF16 && assembled.is_narrow(component) == Some(true) {
            return Err(Failure::Usage(format!(
                "the {component} of {} is stored as fp8: bf16 needs the folder that it was packed from",
                args.model
            )));
        }
        found.insert(component, storage);
    }
    Ok(found)
}

/// The small files of the new folder by relative path.
fn texts(args: &PackArgs, assembled: &Assembled) -> Result<BTreeMap<String, Vec<u8>>, Failure> {
    const INDEX: &str = "model_index.json";
    let index = if args.model == "demo" {
        let file = demo::FILES.iter().find(|(name, _)| *name == INDEX);
        file.map(|(_, bytes)| bytes.to_vec()).unwrap_or_default()
    } else {
        let path = Path::new(&args.model).join(INDEX);
        let failure = |cause| Failure::Read { path: path.display().to_string(), cause };
        read_regular(&path, INDEX_BYTES_MAX).map_err(failure)?
    };
    let checkpoint = assembled.checkpoint();
    let mut texts = BTreeMap::from([(INDEX.to_owned(), index)]);
    for (path, bytes) in &checkpoint.files {
        texts.insert(path.clone(), bytes.to_vec());
    }
    for component in folder::COMPONENTS {
        if let Some(found) = checkpoint.components.get(component) {
            let path = format!("{component}/config.json");
            texts.insert(path, found.config_json.clone().into_bytes());
        }
    }
    Ok(texts)
}

/// What a file says of itself.
fn metadata(
    assembled: &Assembled,
    file: &PackedFile<'_>,
    storage: Storage,
) -> BTreeMap<String, String> {
    let component = assembled.checkpoint().components.get(&file.component);
    let blobs = component.and_then(|found| found.catalog.as_ref()).map(|found| &found.blobs);
    let sources: Vec<Value> = blobs.into_iter().flatten().map(source).collect();
    let is_narrow = storage == Storage::F8 || assembled.is_narrow(&file.component) == Some(true);
    let pack = json!({
        "version": VERSION,
        "program": concat!("plimsoll ", env!("CARGO_PKG_VERSION")),
        "matrices": if is_narrow { "fp8: e4m3, a scale a row" } else { "as stored" },
        "sources": sources,
    });
    BTreeMap::from([
        ("format".to_owned(), "pt".to_owned()),
        (PACK_KEY.to_owned(), pack.to_string()),
    ])
}

/// Which file it was made from: its name, length and time, not its path.
fn source(blob: &Blob) -> Value {
    let name = blob.path().file_name().unwrap_or_default().to_string_lossy();
    let modified_ns = match blob {
        Blob::File { identity, .. } => Some(identity.modified_ns.to_string()),
        Blob::Static { .. } => None,
    };
    json!({ "file": name, "bytes": blob.bytes(), "modified_ns": modified_ns })
}
