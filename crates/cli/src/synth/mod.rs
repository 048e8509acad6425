//! `plimsoll synth`: a full-size checkpoint of seeded random weights.
//!
//! Speed and arithmetic do not depend on what a model has learnt, so both are measured without the gated
//! weights. The folder loads in diffusers; its pictures are noise.

mod folder;
mod tensors;
mod values;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_models::flux;
use plimsoll_pipeline::PipelineError;
use plimsoll_weights::{NewTensor, WeightDType, write_safetensors};
use serde_json::json;

use crate::args::SynthArgs;
use crate::failure::Failure;
use crate::new_folder::{NewFolder, check_room};
use crate::progress::ByteBar;
use crate::{demo, interrupt, model, out};
use tensors::Named;
use values::Normal;

/// Largest file of a component; published checkpoints are cut at the same size.
const SHARD_BYTES: u64 = 10_000_000_000;

pub(crate) fn run(args: &SynthArgs) -> Result<(), Failure> {
    let model = model::known(&args.model).ok_or_else(|| {
        let what = format!("{} is not known: flux.1-dev or flux.1-schnell", args.model);
        Failure::Usage(what)
    })?;
    let folder = args.output.as_path();
    let is_used = fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
    if is_used {
        return Err(Failure::Usage(format!("{} is not empty", folder.display())));
    }
    let components = tensors::by_component(&model).map_err(PipelineError::from)?;
    let texts = folder::files(&model, &|path| donor(args, path))?;
    let total = components.values().flatten().map(bytes).sum();
    check_room(folder, total, "")?;
    let control = interrupt::control();
    let new = NewFolder::create(folder)?;
    for (path, bytes) in &texts {
        new.put(path, bytes)?;
    }
    let (bar, done) = (ByteBar::new(total), AtomicU64::new(0));
    let written = |bytes: u64| {
        bar.show(done.fetch_add(bytes, Ordering::Relaxed) + bytes);
        !control.is_cancelled()
    };
    let begin = std::time::Instant::now();
    for (component, tensors) in &components {
        write_component(args, &new, component, tensors, &written)?;
    }
    new.finish()?;
    bar.finish();
    let seconds = begin.elapsed().as_secs_f64();
    out::result(&format!(
        "{}: {} with random weights, {:.1} GB in {seconds:.1} s",
        folder.display(),
        args.model,
        total as f64 / 1e9,
    ))
}

/// A file of the folder that the tokenizers come from; `None` where it has no such file.
fn donor(args: &SynthArgs, path: &str) -> Result<Option<Vec<u8>>, Failure> {
    let Some(folder) = &args.tokenizers else {
        if demo::FILES.is_empty() {
            let what =
                "this build carries no tokenizers: name a pipeline folder, --tokenizers demo/model";
            return Err(Failure::Usage(what.to_owned()));
        }
        let file = demo::FILES.iter().find(|(name, _)| *name == path);
        return Ok(file.map(|(_, bytes)| bytes.to_vec()));
    };
    match fs::read(folder.join(path)) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(Failure::Read { path: folder.join(path).display().to_string(), cause }),
    }
}

fn bytes(tensor: &Named) -> u64 {
    2 * tensor.shape.iter().product::<u64>()
}

fn write_component(
    args: &SynthArgs,
    folder: &NewFolder,
    component: &str,
    tensors: &[Named],
    written: &(dyn Fn(u64) -> bool + Sync),
) -> Result<(), Failure> {
    let stem = match component {
        flux::TRANSFORMER | flux::VAE => "diffusion_pytorch_model",
        _ => "model",
    };
    let shards = shards(tensors);
    let count = shards.len();
    let name = |at: usize| match count {
        1 => format!("{stem}.safetensors"),
        _ => format!("{stem}-{:05}-of-{count:05}.safetensors", at + 1),
    };
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let mut weight_map = BTreeMap::new();
    for (at, shard) in shards.iter().enumerate() {
        weight_map.extend(shard.iter().map(|tensor| (tensor.name.clone(), name(at))));
        let path = folder.file(&format!("{component}/{}", name(at)))?;
        write_shard(args, &path, component, shard, &metadata, written)?;
    }
    if count > 1 {
        let total: u64 = tensors.iter().map(bytes).sum();
        let index = json!({ "metadata": { "total_size": total }, "weight_map": weight_map });
        let path = format!("{component}/{stem}.safetensors.index.json");
        folder.put(&path, format!("{index:#}\n").as_bytes())?;
    }
    Ok(())
}

/// Consecutive tensors of at most [`SHARD_BYTES`] together.
fn shards(tensors: &[Named]) -> Vec<&[Named]> {
    let (mut shards, mut start, mut filled) = (Vec::new(), 0, 0);
    for (at, tensor) in tensors.iter().enumerate() {
        if filled + bytes(tensor) > SHARD_BYTES && at > start {
            shards.push(&tensors[start..at]);
            (start, filled) = (at, 0);
        }
        filled += bytes(tensor);
    }
    shards.push(&tensors[start..]);
    shards
}

fn write_shard(
    args: &SynthArgs,
    path: &Path,
    component: &str,
    tensors: &[Named],
    metadata: &BTreeMap<String, String>,
    written: &(dyn Fn(u64) -> bool + Sync),
) -> Result<(), Failure> {
    let mut tables: BTreeMap<(u64, u64), Normal> = BTreeMap::new();
    let spreads: Vec<_> = tensors
        .iter()
        .map(|tensor| {
            let (mean, deviation) = tensors::spread(component, tensor);
            let key = (mean.to_bits(), deviation.to_bits());
            tables.entry(key).or_insert_with(|| Normal::new(mean, deviation));
            key
        })
        .collect();
    let sources: Vec<_> = tensors
        .iter()
        .zip(&spreads)
        .map(|(tensor, spread)| (&tables[spread], key(args.seed, component, &tensor.name)))
        .collect();
    let new: Vec<_> = tensors
        .iter()
        .map(|tensor| NewTensor {
            name: tensor.name.clone(),
            dtype: WeightDType::BF16,
            shape: tensor.shape.clone(),
        })
        .collect();
    let fill = |tensor: usize, offset: u64, bytes: &mut [u8]| {
        let (normal, key) = sources[tensor];
        normal.fill(key, offset, bytes);
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    write_safetensors(path, &new, metadata, threads, &fill, written)?;
    Ok(())
}

/// A tensor's own stream of random numbers.
fn key(seed: u64, component: &str, name: &str) -> u64 {
    let letters = component.bytes().chain([b'/']).chain(name.bytes());
    letters
        .fold(values::mix(seed ^ 0x706c_696d), |hash, letter| values::mix(hash ^ u64::from(letter)))
}

#[cfg(test)]
mod tests {
    use plimsoll_models::FluxModel;

    use super::*;

    #[test]
    fn shards_are_cut_where_the_published_ones_are() {
        let components = tensors::by_component(&FluxModel::dev()).expect("FLUX.1-dev");
        let sizes = |name: &str| -> Vec<u64> {
            shards(&components[name]).iter().map(|shard| shard.iter().map(bytes).sum()).collect()
        };
        assert_eq!(sizes(flux::TRANSFORMER).len(), 3);
        assert_eq!(sizes(flux::T5).len(), 1);
        assert!(sizes(flux::TRANSFORMER).iter().all(|size| *size <= SHARD_BYTES));
    }

    #[test]
    fn streams_of_two_tensors_differ() {
        assert_ne!(key(0, "a", "b"), key(0, "a", "c"));
        assert_ne!(key(0, "a", "b"), key(1, "a", "b"));
        assert_ne!(key(0, "a", "b"), key(0, "b", "a"));
    }
}
