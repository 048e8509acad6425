//! Which machine a forecast is for: one that is named, one that was measured, or the nearest to what is here.

use std::path::Path;

use plimsoll_cuda_kernels::{Arch, Backends};
use plimsoll_device_cuda::profile::{CardProfile, ProfileError};
use plimsoll_ledger::{Forecast, Known, Machines};
use plimsoll_plan::Line;

use crate::args::{KernelsName, PlanArgs};
use crate::executor;
use crate::failure::Failure;

/// The card that is taken where nothing tells another.
const USUAL: &str = "rtx-4090";
/// A link so many times slower than its bus is worth a word.
const SLOW: f64 = 5.0;
/// More profiles than this in a folder are not read.
const PROFILES_MOST: usize = 100;

/// The machine of a question, and what is to be said of it.
pub(super) fn of(args: &PlanArgs) -> Result<(Known, Forecast, Vec<String>), Failure> {
    let forecast = &args.forecast;
    let machines = Machines::builtin()?;
    let bus = forecast.bus.as_deref();
    let mut warnings = Vec::new();
    let known = match (&forecast.gpu, &forecast.machine) {
        (Some(name), _) => machines.known(machines.card(name)?, bus)?,
        (None, Some(path)) => measured(&machines, read(path)?, bus)?,
        (None, None) => here(args, &machines, &mut warnings)?,
    };
    if let Ok(card) = machines.card(&known.profile.name) {
        let usual = machines.bus(&card.bus.value)?.usable_bytes_per_second;
        let link = known.profile.link_bytes_per_second;
        if known.band.is_none() && SLOW * link < usual {
            warnings.push(format!(
                "weights come at {:.1} GB/s, which is {:.0} times slower than {} is: see what the card is plugged into",
                link / 1e9,
                usual / link,
                card.bus.value
            ));
        }
    }
    let arch = Arch::named(&known.profile.arch);
    let backends = match args.run.kernels {
        KernelsName::Auto => Backends::libraries(arch),
        KernelsName::Own => Backends::own(arch),
    };
    let machine = Forecast::with_backends(&known, backends);
    let machine =
        if forecast.no_flash_attention { machine.without_fused_attention() } else { machine };
    Ok((known, machine, warnings))
}

/// The machine at hand: as it was probed, as its card is listed, or the smallest listed card that has the line.
fn here(
    args: &PlanArgs,
    machines: &Machines,
    warnings: &mut Vec<String>,
) -> Result<Known, Failure> {
    let bus = args.forecast.bus.as_deref();
    if let Some(profile) = probed() {
        warnings.push(format!("planned for {} as `plimsoll probe` measured it", profile.name));
        return measured(machines, profile, bus);
    }
    if let Ok(card) = executor::open(&args.run, 0, executor::Expected::default()) {
        let listed = machines.card(card.name());
        if let Ok(listed) = listed {
            warnings.push(format!("planned for the card here, {}, by its data sheet", listed.name));
            return Ok(machines.known(listed, bus)?);
        }
    }
    let card = match args.run.vram.0 {
        Line::Bytes(bytes) => machines
            .cards
            .iter()
            .filter(|card| card.vram_bytes.value >= bytes)
            .min_by_key(|card| card.vram_bytes.value),
        _ => None,
    };
    let card = match card {
        Some(card) => card,
        None => machines.card(USUAL)?,
    };
    warnings.push(format!("planned for {}: name another card with --gpu", card.name));
    Ok(machines.known(card, bus)?)
}

/// The first profile, by name, of those that `plimsoll probe` has left.
fn probed() -> Option<CardProfile> {
    let folder = CardProfile::default_folder().ok()?;
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .ok()?
        .take(PROFILES_MOST)
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    files.sort();
    files.iter().find_map(|path| read(path).ok())
}

/// A profile that `plimsoll probe` wrote, checked.
fn read(path: &Path) -> Result<CardProfile, Failure> {
    CardProfile::read(path).map_err(|error| {
        let told = path.display().to_string();
        match error {
            ProfileError::File { cause, .. } => Failure::Read { path: told, cause },
            ProfileError::Content { cause, .. } => {
                let what = format!("it is not the profile of a card: {cause}");
                Failure::Read { path: told, cause: std::io::Error::other(what) }
            }
            other => Failure::Host(other.to_string()),
        }
    })
}

fn measured(
    machines: &Machines,
    profile: CardProfile,
    bus: Option<&str>,
) -> Result<Known, Failure> {
    let link = match bus {
        Some(name) => machines.bus(name)?.usable_bytes_per_second,
        None => profile.link_bytes_per_second,
    };
    // Fp8 was not measured; the card of that name in the list says how much faster it is.
    let listed = machines.card(&profile.name).ok();
    let listed = listed.map(|card| machines.known(card, None)).transpose()?;
    Ok(Known {
        profile: CardProfile { link_bytes_per_second: link, ..profile },
        fp8_speedup: listed.and_then(|known| known.fp8_speedup),
        band: None,
        bus: bus.unwrap_or("measured").to_owned(),
    })
}
