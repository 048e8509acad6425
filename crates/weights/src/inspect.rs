//! Reports what a file or folder holds, whether or not it can be run.
//!
//! The refusal in the report is the very error that opening it to run gives, so the two cannot
//! disagree.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use crate::canonical;
use crate::catalog::Blob;
use crate::checkpoint::{has_components, model_index, open_folder, without_index};
use crate::component::{read_config, refuse_quantized};
use crate::error::WeightsError;
use crate::gguf;
use crate::header::Tensor;
use crate::layout::{Architecture, Layout};
use crate::packed;
use crate::recognise::{PARTS, Recognised, recognise};
use crate::report::{ComponentReport, DTypeReport, FileReport, Report};
use crate::shards::{Found, Weights, find};
use crate::source::{Opened, Source, open_path, refuse_layout};

/// Says what a checkpoint file or folder holds, from headers alone.
///
/// Works for every layout that is recognised, those that cannot be run too; the report then carries
/// the refusal.
///
/// # Errors
/// A [`WeightsError`] where a file cannot be read, or is damaged so that no report would be true.
pub fn inspect(path: impl AsRef<Path>) -> Result<Report, WeightsError> {
    let path = path.as_ref();
    if !path.is_dir() {
        let (components, refusal) = inspect_file(path)?;
        return Ok(report(path, "file", None, components, refusal));
    }
    let source = Source::folder(path)?;
    if path.join("model_index.json").exists() {
        return inspect_pipeline(path, &source);
    }
    let (components, refusal) = match find(&source, "") {
        // Several files without an index: say what each one is.
        Err(WeightsError::Ambiguous { files, path: folder }) => {
            let mut components = Vec::new();
            for file in &files {
                let (parts, _) = inspect_file(&path.join(file))?;
                components.extend(parts);
            }
            (components, Some(WeightsError::Ambiguous { files, path: folder }.to_string()))
        }
        Err(error) => return Err(error),
        Ok(Found::Nothing) => {
            let why = "a folder with neither it nor a weight file holds no model";
            return Err(WeightsError::Missing { path: path.join("model_index.json"), why });
        }
        Ok(found) => inspect_found(&source, "", found)?,
    };
    let refusal = if has_components(&source)? {
        Some(without_index(source.shown("model_index.json")).to_string())
    } else {
        refusal
    };
    let refusal = match (refusal, read_config(&source, "config.json")?) {
        (None, Some(config)) => {
            refuse_quantized(&source.shown("config.json"), &config).err().map(|e| e.to_string())
        }
        (refusal, _) => refusal,
    };
    Ok(report(path, "folder", None, components, refusal))
}

fn report(
    path: &Path,
    kind: &'static str,
    pipeline_class: Option<String>,
    components: Vec<ComponentReport>,
    refusal: Option<String>,
) -> Report {
    let path = path.display().to_string();
    let tensors = components.iter().map(|component| component.tensors).sum();
    let parameters = components.iter().map(|component| component.parameters).sum();
    let bytes = components.iter().map(|component| component.bytes).sum();
    Report { path, kind, pipeline_class, refusal, components, tensors, parameters, bytes }
}

fn inspect_pipeline(path: &Path, source: &Source) -> Result<Report, WeightsError> {
    let (pipeline_class, classes) = model_index(source)?;
    let mut components = Vec::new();
    for (name, class_name) in classes {
        let mut parts = match find(source, &name)? {
            Found::Nothing => vec![without_weights(&name)],
            found => inspect_found(source, &name, found)?.0,
        };
        for part in &mut parts {
            part.name.clone_from(&name);
            part.class_name = Some(class_name.clone());
        }
        components.extend(parts);
    }
    let refusal = open_folder(path).err().map(|error| error.to_string());
    Ok(report(path, "pipeline", Some(pipeline_class), components, refusal))
}

fn inspect_file(path: &Path) -> Result<(Vec<ComponentReport>, Option<String>), WeightsError> {
    match open_path(path)? {
        Opened::Foreign(blob, layout) => foreign(&blob, layout),
        Opened::Safetensors(blob, header) => Ok(inspect_weights(Weights {
            blobs: vec![blob],
            tensors: header.tensors.into_iter().map(|tensor| (0, tensor)).collect(),
            metadata: header.metadata,
        })),
    }
}

fn inspect_found(
    source: &Source,
    folder: &str,
    found: Found,
) -> Result<(Vec<ComponentReport>, Option<String>), WeightsError> {
    match found {
        Found::Weights(weights) => Ok(inspect_weights(weights)),
        Found::Foreign(blob, layout) => foreign(&blob, layout),
        Found::SvdQuantPair => {
            let shown = source.shown(folder);
            let mut component = without_weights("transformer");
            component.architecture = Some(Architecture::Flux1);
            component.layout = Some(Layout::SvdQuant);
            component.parameters = None;
            for name in ["transformer_blocks.safetensors", "unquantized_layers.safetensors"] {
                let (blob, header) = open_path(&shown.join(name))?.safetensors()?;
                add(&mut component, &blob, header.tensors.iter());
            }
            Ok((vec![component], Some(refuse_layout(&shown, Layout::SvdQuant).to_string())))
        }
        Found::Nothing => Ok((Vec::new(), None)),
    }
}

fn inspect_weights(weights: Weights) -> (Vec<ComponentReport>, Option<String>) {
    let recognised = weights.recognise();
    let components = if recognised.layout == Layout::ComfyAllInOne {
        parts_of_all_in_one(&weights)
    } else {
        vec![component(recognised, &weights.blobs, &weights.tensors)]
    };
    let opened = canonical::catalog(weights.blobs, weights.tensors, recognised);
    (components, opened.err().map(|error| error.to_string()))
}

/// Splits the tensors by prefix, and recognises each part by itself.
fn parts_of_all_in_one(weights: &Weights) -> Vec<ComponentReport> {
    let mut parts: BTreeMap<(&str, &str), Vec<(usize, Tensor)>> = BTreeMap::new();
    for (blob, tensor) in &weights.tensors {
        let part = PARTS.iter().find(|(prefix, _)| tensor.name.starts_with(prefix));
        let &(prefix, name) = part.unwrap_or(&("", "other"));
        let mut tensor = tensor.clone();
        tensor.name.drain(..prefix.len());
        parts.entry((name, prefix)).or_default().push((*blob, tensor));
    }
    let reported = parts.into_iter().map(|((name, _), tensors)| {
        let names = tensors.iter().map(|(_, tensor)| tensor.name.as_str());
        let recognised = recognise(names, &BTreeMap::new());
        let mut report = component(recognised, &weights.blobs, &tensors);
        report.name = name.to_owned();
        report
    });
    reported.collect()
}

fn component(
    recognised: Recognised,
    blobs: &[Blob],
    tensors: &[(usize, Tensor)],
) -> ComponentReport {
    let Recognised { architecture, layout, prefix } = recognised;
    let mut report = without_weights(component_name(architecture));
    report.architecture = Some(architecture);
    report.layout = Some(layout);
    report.variant = (architecture == Architecture::Flux1).then(|| flux1_variant(tensors, prefix));
    for (index, blob) in blobs.iter().enumerate() {
        let inside = tensors.iter().filter(|(owner, _)| *owner == index).map(|(_, tensor)| tensor);
        add(&mut report, blob, inside);
    }
    // The elements of packed tensors are not weights.
    if !matches!(layout, Layout::Diffusers | Layout::Packed | Layout::Original) {
        report.parameters = None;
    }
    report
}

/// Adds the tensors of one file.
fn add<'a>(report: &mut ComponentReport, blob: &Blob, tensors: impl Iterator<Item = &'a Tensor>) {
    report.files.push(file(blob));
    for tensor in tensors {
        // What a packed file has beside its weights counts as bytes only.
        let is_beside = report.layout == Some(Layout::Packed)
            && (packed::is_padding(tensor) || tensor.name.ends_with(".weight_scale"));
        let elements: u64 = if is_beside { 0 } else { tensor.shape.iter().product() };
        count(report, tensor.dtype.name(), Some(elements), tensor.bytes);
    }
    report.dtypes.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.dtype.cmp(&b.dtype)));
}

fn count(report: &mut ComponentReport, dtype: &str, elements: Option<u64>, bytes: u64) {
    report.tensors += 1;
    // Sums of sizes that a header claims; a hostile one must not overflow them.
    let sum = |(total, more): (u64, u64)| total.checked_add(more);
    report.parameters = report.parameters.zip(elements).and_then(sum);
    report.bytes = report.bytes.saturating_add(bytes);
    match report.dtypes.iter_mut().find(|row| row.dtype == dtype) {
        Some(row) => {
            row.tensors += 1;
            row.bytes = row.bytes.saturating_add(bytes);
        }
        None => report.dtypes.push(DTypeReport { dtype: dtype.to_owned(), tensors: 1, bytes }),
    }
}

fn file(blob: &Blob) -> FileReport {
    FileReport { path: blob.path().display().to_string(), bytes: blob.bytes() }
}

fn without_weights(name: &str) -> ComponentReport {
    ComponentReport {
        name: name.to_owned(),
        class_name: None,
        architecture: None,
        variant: None,
        layout: None,
        files: Vec::new(),
        tensors: 0,
        parameters: Some(0),
        bytes: 0,
        dtypes: Vec::new(),
    }
}

/// A container other than safetensors; of GGUF the tensor table is read.
fn foreign(
    blob: &Blob,
    layout: Layout,
) -> Result<(Vec<ComponentReport>, Option<String>), WeightsError> {
    let mut report = without_weights("unknown");
    report.layout = Some(layout);
    report.parameters = None;
    report.files.push(file(blob));
    if let (Layout::Gguf, Blob::File { path, .. }) = (layout, blob) {
        let opened = File::open(path).map_err(WeightsError::io(path, "open the file"))?;
        let refuse = |reason| WeightsError::Gguf { path: path.clone(), reason };
        let tensors = gguf::read(opened).map_err(refuse)?;
        let names = tensors.iter().map(|tensor| tensor.name.as_str());
        let architecture = recognise(names, &BTreeMap::new()).architecture;
        report.architecture = Some(architecture);
        component_name(architecture).clone_into(&mut report.name);
        report.parameters = Some(0);
        for tensor in &tensors {
            let bytes = tensor.bytes.unwrap_or(0);
            count(&mut report, &tensor.dtype, Some(tensor.elements), bytes);
        }
        report.dtypes.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.dtype.cmp(&b.dtype)));
    }
    let refusal = refuse_layout(blob.path(), layout).to_string();
    Ok((vec![report], Some(refusal)))
}

/// The name that a pipeline folder gives to a component of this architecture.
fn component_name(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::ClipText => "text_encoder",
        Architecture::T5Encoder => "text_encoder_2",
        Architecture::Umt5Encoder | Architecture::OpenClipText | Architecture::LanguageModel => {
            "text_encoder"
        }
        Architecture::AutoencoderKl | Architecture::WanVae => "vae",
        Architecture::StableDiffusion1 | Architecture::Sdxl => "unet",
        Architecture::ImageEncoder => "image_encoder",
        Architecture::Lora | Architecture::ControlNet | Architecture::ImagePrompt => "adapter",
        Architecture::Unknown => "unknown",
        _ => "transformer",
    }
}

/// Which FLUX.1 it is, by the inputs it takes.
/// Source: huggingface/diffusers 58eb52c, `single_file_utils.py`, `infer_diffusers_model_type`.
fn flux1_variant(tensors: &[(usize, Tensor)], prefix: &str) -> &'static str {
    let find = |names: [&str; 2]| {
        let is_one = |name: &str| name.strip_prefix(prefix).is_some_and(|n| names.contains(&n));
        tensors.iter().map(|(_, tensor)| tensor).find(|tensor| is_one(&tensor.name))
    };
    let input = find(["img_in.weight", "x_embedder.weight"]);
    let has_guidance =
        find(["guidance_in.in_layer.weight", "time_text_embed.guidance_embedder.linear_1.weight"])
            .is_some();
    match (input.and_then(|tensor| tensor.shape.get(1)), has_guidance) {
        (Some(384), _) => "Fill",
        (Some(128), _) => "Canny or Depth",
        (_, true) => "dev-like (with guidance)",
        (_, false) => "schnell-like (without guidance)",
    }
}
