//! `plimsoll probe`: measures the card of this machine and keeps what it found for `plan`; and a disk.

use std::path::Path;

use plimsoll_cuda_kernels::{AttentionBackend, Backends, GemmBackend, NarrowBackend};
use plimsoll_device_cuda::loader::LibraryOptions;
use plimsoll_device_cuda::measure::{Effort, measure};
use plimsoll_device_cuda::profile::{CardProfile, Rates, RowRate};
use plimsoll_device_cuda::{Card, CardOptions};
use plimsoll_host::measure_disk;
use serde_json::json;

use crate::args::ProbeArgs;
use crate::failure::Failure;
use crate::out;

/// The first driver, as CUDA numbers them, that runs the libraries of CUDA 13.
const CUDA_13: u32 = 13_000;

/// What brings the faster implementation of what own kernels compute; nothing where libraries compute it all.
fn faster(backends: Backends, driver_version: u32) -> Option<String> {
    let is_new = driver_version >= CUDA_13;
    let products = (backends.gemm == GemmBackend::Own).then_some(if is_new {
        "nvidia-cublas"
    } else {
        "nvidia-cublas-cu12"
    });
    let attention = (backends.attention == AttentionBackend::Own).then_some(if is_new {
        "nvidia-cudnn-cu13"
    } else {
        "nvidia-cudnn-cu12"
    });
    let packages: Vec<&str> = products.into_iter().chain(attention).collect();
    (!packages.is_empty()).then(|| format!("pip install {}", packages.join(" ")))
}

/// What computes products, those over weights of 8 bits, and attention.
fn in_use(backends: Backends) -> [&'static str; 3] {
    let products = match backends.gemm {
        GemmBackend::CublasLt => "cuBLASLt",
        GemmBackend::Own => "own kernels",
    };
    let narrow = match backends.narrow {
        NarrowBackend::CublasLtRows => "cuBLASLt",
        NarrowBackend::Own => "own kernels",
        NarrowBackend::Unpacked => "unpacked to bf16",
    };
    let attention = match backends.attention {
        AttentionBackend::Cudnn => "cuDNN",
        AttentionBackend::Own => "own kernels",
    };
    [products, narrow, attention]
}

pub(crate) fn run(args: &ProbeArgs) -> Result<(), Failure> {
    let libraries =
        LibraryOptions { folders: args.cuda_lib_dir.clone(), ..LibraryOptions::default() };
    let options = CardOptions { libraries, ..CardOptions::default() };
    // Opened once more by the measurement itself: here to know that there is one, and which.
    let card = Card::open(args.index, options.clone()).map_err(Failure::Cuda)?;
    let (name, free, total) = (card.name().to_owned(), card.free_bytes(), card.total_bytes());
    // A library that was found may still not run here: what counts is what the card was opened with.
    let [products, narrow, attention] = in_use(card.backends());
    let faster = faster(card.backends(), card.driver_version());
    let reports = card.libraries().reports.clone();
    drop(card);
    if let Ok(free) = free
        && free < total / 10 * 9
    {
        out::notice(&format!("others hold {} bytes of the card: figures may be low", total - free));
    }
    let profile = measure(args.index, &options, &Effort::full(), &std::env::temp_dir())
        .map_err(|error| Failure::Pipeline(error.into()))?;
    let saved = match &args.output {
        Some(folder) => profile.save(folder),
        None => CardProfile::default_folder().and_then(|folder| profile.save(&folder)),
    };
    let saved = saved.map_err(|error| Failure::Usage(error.to_string()))?;
    // The disk is the machine's and not the card's: told, not kept. A run from it measures the one its files are on.
    let folder = args.disk.as_deref().or(saved.parent()).unwrap_or(Path::new("."));
    let disk = measure_disk(folder).unwrap_or_else(|error| {
        out::notice(&format!("the disk was not measured: {error}"));
        None
    });
    if args.json {
        let disk = json!({ "folder": folder.display().to_string(), "bytes_per_second": disk });
        let saved = saved.display().to_string();
        let object = json!({ "profile": profile, "file": saved, "disk": disk,
            "in_use": { "products": products, "fp8": narrow, "attention": attention }, "faster": faster });
        return out::result(&object.to_string());
    }
    let mut lines = vec![
        format!("{name} ({}), {:.1} GiB", profile.arch, gib(profile.vram_bytes)),
        format!("taken beside the arena  {:.0} MiB", gib(profile.reserved_bytes) * 1024.0),
        format!(
            "link                    {:.1} GB/s, {:.1} us a copy, {:.1} % of the ops' speed beside it",
            profile.link_bytes_per_second / 1e9,
            profile.copy_seconds * 1e6,
            profile.copy_share * 100.0,
        ),
        format!("memory                  {:.2} TB/s", profile.memory_bytes_per_second / 1e12),
        format!("launch                  {:.2} us", profile.launch_seconds * 1e6),
        rates("own kernels", &profile.own),
    ];
    if let Some(found) = &profile.libraries {
        lines.push(rates("libraries", found));
    }
    lines.push(format!(
        "convolution             {:.0} TFLOP/s",
        profile.conv_flops_per_second / 1e12
    ));
    if profile.libraries.is_some() {
        let count = profile.tuned.len();
        lines.push(format!(
            "algorithms              {count} quicker than cuBLASLt's first, with the same bits"
        ));
    }
    if let Some(rate) = disk {
        let folder = folder.display();
        lines.push(format!("disk                    {:.2} GB/s ({folder})", rate / 1e9));
    }
    lines.push(format!(
        "in use                  products: {products}, of fp8: {narrow}, attention: {attention}"
    ));
    lines.extend(reports.iter().map(ToString::to_string));
    if let Some(command) = faster {
        lines.push(format!(
            "faster: {command}, in the environment that is active when plimsoll starts"
        ));
    }
    lines.push(format!("saved to {}", saved.display()));
    out::result(&lines.join("\n"))
}

/// Products by their rows, and attention.
fn rates(what: &str, rates: &Rates) -> String {
    let by_rows = |rates: &[RowRate]| {
        let each = rates.iter();
        let each = each.map(|rate| format!("{} ({} rows)", tera(rate.flops_per_second), rate.rows));
        each.collect::<Vec<_>>().join(", ")
    };
    let narrow = match &rates.narrow_gemm[..] {
        [] => String::new(),
        narrow => format!(", of fp8 {} TFLOP/s", by_rows(narrow)),
    };
    format!(
        "{what:23} products {} TFLOP/s{narrow}, attention {} TFLOP/s",
        by_rows(&rates.gemm),
        tera(rates.attention_flops_per_second),
    )
}

fn tera(flops_per_second: f64) -> String {
    format!("{:.0}", flops_per_second / 1e12)
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

#[cfg(test)]
mod tests {
    use plimsoll_cuda_kernels::Arch;

    use super::*;

    #[test]
    fn one_command_brings_what_is_missing_and_no_more() {
        let both = Backends::libraries(Some(Arch::Sm90a));
        assert_eq!(faster(both, 13_000), None);
        assert_eq!(in_use(both), ["cuBLASLt", "cuBLASLt", "cuDNN"]);
        let told = |backends, driver| faster(backends, driver).expect("something is missing");
        assert_eq!(told(Backends::OWN, 13_000), "pip install nvidia-cublas nvidia-cudnn-cu13");
        assert_eq!(told(Backends::OWN, 12_080), "pip install nvidia-cublas-cu12 nvidia-cudnn-cu12");
        let without = Backends { attention: AttentionBackend::Own, ..both };
        assert_eq!(told(without, 13_000), "pip install nvidia-cudnn-cu13");
        assert_eq!(in_use(without), ["cuBLASLt", "cuBLASLt", "own kernels"]);
        assert_eq!(in_use(Backends::libraries(Some(Arch::Sm89)))[1], "own kernels");
        assert_eq!(in_use(Backends::own(Some(Arch::Sm80)))[1], "unpacked to bf16");
    }
}
