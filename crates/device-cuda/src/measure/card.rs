//! A card measured: opened with its libraries, then with own kernels alone.

use std::path::Path;

use plimsoll_cuda_kernels::{Backends, NarrowBackend, bound_shapes, workspace_bytes};
use plimsoll_device::{DeviceError, Mat};
use plimsoll_graph::OpKind;
use plimsoll_host::{DraftFolder, SharedMapping, sweep};

use super::{Bench, Effort, arena_bytes};
use crate::card::{Card, CardOptions};
use crate::device::CudaDevice;
use crate::profile::{CardProfile, PROFILE_VERSION, Rates, RowRate};

/// Four digits: more were never measured, and these go through a file unchanged.
fn rounded(figure: f64) -> f64 {
    format!("{figure:.3e}").parse().unwrap_or(figure)
}

/// Random bf16 values between -1 and 1.
fn random_values(bytes: u64) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let count = usize::try_from(bytes / 2).unwrap_or(0);
    let values = (0..count).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Sign and mantissa from the state; the exponent is that of 0.25 to 1.
        let exponent = 0x3E80 + ((state >> 20) as u16 & 0x0080);
        ((state as u16 & 0x807F) | exponent).to_le_bytes()
    });
    values.collect()
}

/// A file of random values that is removed with this, or by the next where the process is killed.
struct RandomFile {
    path: std::path::PathBuf,
    _folder: DraftFolder,
}

impl RandomFile {
    fn new(folder: &Path, values: &[u8]) -> std::io::Result<Self> {
        sweep(folder);
        let draft = DraftFolder::create(folder)?;
        let path = draft.path().join("values");
        std::fs::write(&path, values)?;
        Ok(Self { path, _folder: draft })
    }
}

/// Measures the card of an index in some 15 s; a file of 64 MiB in `folder` stands for a model's.
///
/// Where the file cannot be made, or its pages cannot be lent to the card, the link is measured as a run would use
/// it: through pinned windows.
///
/// # Errors
/// Those of [`Card::open`], and the device's.
pub fn measure(
    index: u32,
    options: &CardOptions,
    effort: &Effort,
    folder: &Path,
) -> Result<CardProfile, DeviceError> {
    let values = random_values(effort.copy_bytes[1]);
    let file = RandomFile::new(folder, &values).ok();
    let mapping = file.as_ref().and_then(|file| SharedMapping::open(&file.path).ok());
    let source = mapping.as_ref().map_or(&values[..], SharedMapping::bytes);
    let mut own_options = options.clone();
    own_options.libraries.without_cublas_lt = true;
    own_options.libraries.without_cudnn = true;

    let with_bench = |options: &CardOptions,
                      work: &mut dyn FnMut(&mut Bench<'_>, Backends) -> Result<(), DeviceError>|
     -> Result<CardProfile, DeviceError> {
        let card = Card::open(index, options.clone())?;
        let backends = card.backends();
        let scratch = |op: &OpKind<Mat, Mat>| workspace_bytes(&bound_shapes(op), backends);
        let driver = card.driver_version();
        let profile = CardProfile {
            version: PROFILE_VERSION,
            name: card.name().to_owned(),
            arch: card.arch().name().to_owned(),
            vram_bytes: card.total_bytes(),
            reserved_bytes: card.reserved_bytes(),
            source: format!(
                "measured, CUDA {}.{}{}",
                driver / 1000,
                driver % 1000 / 10,
                card.libraries().arithmetic()
            ),
            ..CardProfile::nearest(card.name())
        };
        let mut device = CudaDevice::new(card, arena_bytes(effort, &scratch))?;
        device.set_mappings(mapping.as_slice());
        work(&mut Bench::new(&mut device, &scratch, source, effort)?, backends)?;
        device.set_mappings(&[]);
        Ok(profile)
    };

    let round_rows = |rates: &[RowRate]| -> Vec<RowRate> {
        let round =
            |rate: &RowRate| RowRate { flops_per_second: rounded(rate.flops_per_second), ..*rate };
        rates.iter().map(round).collect()
    };
    let round = |rates: Rates| Rates {
        gemm: round_rows(&rates.gemm),
        narrow_gemm: round_rows(&rates.narrow_gemm),
        attention_flops_per_second: rounded(rates.attention_flops_per_second),
    };
    // First, so that what is measured next is what runs will see.
    let mut tuned_options = CardOptions { profiles: None, ..options.clone() };
    tuned_options.libraries.tuned = Card::open(index, tuned_options.clone())?.tune(&values)?;
    let mut found = None;
    let mut profile = with_bench(&tuned_options, &mut |bench, backends| {
        let link = bench.link()?;
        let (share, mut rates) = (bench.copy_share(link)?, bench.rates()?);
        let (memory, launch) = (bench.memory_bytes_per_second()?, bench.launch_seconds()?);
        if backends.narrow == NarrowBackend::CublasLtRows {
            rates.narrow_gemm = bench.narrow_rates(memory, launch)?;
        }
        found = Some((link, share, rates, memory, launch));
        Ok(())
    })?;
    let Some((link, copy_share, rates, memory, launch)) = found else { unreachable!("set above") };
    profile.link_bytes_per_second = rounded(link.bytes_per_second);
    profile.copy_seconds = rounded(link.copy_seconds);
    profile.copy_share = rounded(copy_share);
    profile.memory_bytes_per_second = rounded(memory);
    profile.launch_seconds = rounded(launch);
    with_bench(&own_options, &mut |bench, backends| {
        let mut rates = bench.rates()?;
        if backends.narrow == NarrowBackend::Own {
            rates.narrow_gemm = bench.narrow_rates(memory, launch)?;
        }
        profile.own = round(rates);
        profile.conv_flops_per_second = rounded(bench.conv_flops_per_second()?);
        Ok(())
    })?;
    let has_libraries = profile.source.contains("cublaslt") || profile.source.contains("cudnn");
    profile.libraries = has_libraries.then_some(round(rates));
    profile.tuned = tuned_options.libraries.tuned;
    Ok(profile)
}
