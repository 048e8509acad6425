//! Known cards and buses: figures with their sources, and the profile that a plan is made with.
//!
//! `data/machines.json` holds every figure with the source it is from. What a card sustains is its data sheet's peak
//! times a factor of its class; the factors are data as well, with theirs. Seconds from a data sheet are estimates and
//! carry a band; those of a measured profile carry none.

use plimsoll_device_cuda::profile::{CardProfile, Rates, RowRate};
use serde::Deserialize;
use std::collections::BTreeMap;

use crate::error::{LedgerError, unknown};

const DATA: &str = include_str!("../data/machines.json");
/// Rows at which the products of FLUX.1 run; the factor of a class is for them.
const ROWS: u64 = 4608;

/// Where a figure is from.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// `datasheet`, `measured`, `published` or `derived`.
    pub kind: String,
    /// The document.
    pub text: String,
}

/// A figure and the name of its source.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Figure<T> {
    /// The figure.
    pub value: T,
    /// Key in [`Machines::sources`].
    pub source: String,
}

/// A card as its data sheet has it; dense rates with `f32` sums.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Card {
    /// Name, as `--gpu` takes it.
    pub name: String,
    /// Name, as the driver gives it.
    pub full_name: String,
    /// Architecture of its kernels.
    pub arch: String,
    /// Key in [`Machines::classes`].
    pub class: String,
    /// Device memory.
    pub vram_bytes: Figure<u64>,
    /// Products in bf16.
    pub bf16_flops_per_second: Figure<f64>,
    /// Products in fp8, where it has them.
    pub fp8_flops_per_second: Option<Figure<f64>>,
    /// Products in int8.
    pub int8_ops_per_second: Figure<f64>,
    /// Device memory.
    pub memory_bytes_per_second: Figure<f64>,
    /// Name of its bus at most.
    pub bus: Figure<String>,
}

/// A bus to the host.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Bus {
    /// Name, as `--bus` takes it.
    pub name: String,
    /// By the standard.
    pub peak_bytes_per_second: f64,
    /// What large copies from pinned memory reach.
    pub usable_bytes_per_second: f64,
    /// See [`Source::kind`].
    pub kind: String,
    /// See [`Source::text`].
    pub source: String,
}

/// What cards of a class sustain of their data sheet.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// Name.
    pub name: String,
    /// Share of the bf16 rate in products.
    pub gemm: f64,
    /// Share of the fp8 rate in products.
    pub fp8_gemm: f64,
    /// Share of the bf16 rate in attention.
    pub attention: f64,
    /// Share of the bf16 rate in convolutions.
    pub conv: f64,
    /// Share of the memory's rate.
    pub memory: f64,
    /// Least and most seconds, as shares of the estimate.
    pub band: [f64; 2],
    /// See [`Source::kind`].
    pub kind: String,
    /// See [`Source::text`].
    pub source: String,
}

/// All that is known.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Machines {
    /// Of the file's layout.
    pub version: u32,
    /// By key.
    pub sources: BTreeMap<String, Source>,
    /// Buses.
    pub buses: Vec<Bus>,
    /// Classes of cards.
    pub classes: Vec<Class>,
    /// Cards.
    pub cards: Vec<Card>,
}

/// A card on a bus, ready to be planned for.
#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    /// Rates.
    pub profile: CardProfile,
    /// Products in fp8 as a multiple of those in bf16; `None` for a card without.
    pub fp8_speedup: Option<f64>,
    /// Least and most seconds as shares of the estimate; `None` where they were measured.
    pub band: Option<[f64; 2]>,
    /// Name of the bus.
    pub bus: String,
}

impl Machines {
    /// The built-in list.
    ///
    /// # Errors
    /// [`LedgerError::Machines`] for a bug in it; a test reads it.
    pub fn builtin() -> Result<Self, LedgerError> {
        serde_json::from_str(DATA)
            .map_err(|error| LedgerError::Machines { cause: error.to_string() })
    }

    /// The card of a name: `rtx-4080`, in any case, with any or no dashes and spaces, with or without the maker's words.
    ///
    /// # Errors
    /// [`LedgerError::Unknown`] with the nearest names.
    pub fn card(&self, name: &str) -> Result<&Card, LedgerError> {
        let plain = |text: &str| -> String {
            let lower = text.to_ascii_lowercase();
            let letters: String = lower.chars().filter(char::is_ascii_alphanumeric).collect();
            ["nvidia", "geforce", "rtx"].iter().fold(letters, |text, word| text.replace(word, ""))
        };
        let asked = plain(name);
        let is_it = |card: &&Card| plain(&card.name) == asked || plain(&card.full_name) == asked;
        self.cards
            .iter()
            .find(is_it)
            .ok_or_else(|| unknown("card", name, self.cards.iter().map(|card| card.name.as_str())))
    }

    /// The bus of a name.
    ///
    /// # Errors
    /// [`LedgerError::Unknown`] with the nearest names.
    pub fn bus(&self, name: &str) -> Result<&Bus, LedgerError> {
        let lower = name.to_ascii_lowercase();
        self.buses
            .iter()
            .find(|bus| bus.name == lower)
            .ok_or_else(|| unknown("bus", name, self.buses.iter().map(|bus| bus.name.as_str())))
    }

    /// A card on its own bus, or on another.
    ///
    /// # Errors
    /// [`LedgerError::Unknown`] for a bus that is not known, [`LedgerError::Machines`] for a bug in the list.
    pub fn known(&self, card: &Card, bus: Option<&str>) -> Result<Known, LedgerError> {
        let name = bus.unwrap_or(&card.bus.value);
        let bus = self.bus(name)?;
        let class = self.classes.iter().find(|class| class.name == card.class);
        let class = class.ok_or_else(|| LedgerError::Machines { cause: card.class.clone() })?;
        let own_bus = bus.name == card.bus.value;
        let measured = CardProfile::h200();
        if card.full_name == measured.name {
            let fp8 = card.fp8_flops_per_second.as_ref().map(|fp8| fp8.value * class.fp8_gemm);
            let gemm = card.bf16_flops_per_second.value * class.gemm;
            let link =
                if own_bus { measured.link_bytes_per_second } else { bus.usable_bytes_per_second };
            return Ok(Known {
                profile: CardProfile { link_bytes_per_second: link, ..measured },
                fp8_speedup: fp8.map(|fp8| fp8 / gemm),
                band: None,
                bus: bus.name.clone(),
            });
        }
        Ok(derive(card, bus, class, &measured))
    }
}

/// The profile of a card by its data sheet: the measured card's curve over rows, scaled.
fn derive(card: &Card, bus: &Bus, class: &Class, measured: &CardProfile) -> Known {
    let bf16 = card.bf16_flops_per_second.value;
    let memory = card.memory_bytes_per_second.value * class.memory;
    let fp8 = card.fp8_flops_per_second.as_ref().map(|fp8| fp8.value * class.fp8_gemm);
    let rates = |rates: &Rates| {
        let at = rates.gemm_flops_per_second(ROWS);
        let library = measured.libraries.as_ref().unwrap_or(rates).gemm_flops_per_second(ROWS);
        // Own kernels keep their distance from the library's.
        let scale = bf16 * class.gemm / at * (at / library);
        let gemm = rates.gemm.iter().map(|rate| RowRate {
            rows: rate.rows,
            // A product of one row is bound by the memory that its weights are in.
            flops_per_second: rate.flops_per_second
                * if rate.rows == 1 { memory / measured.memory_bytes_per_second } else { scale },
        });
        let narrow = rates.narrow_gemm.iter().filter_map(|rate| {
            let of = measured.libraries.as_ref().unwrap_or(rates);
            let scale = match rate.rows {
                1 => fp8.map(|_| memory / measured.memory_bytes_per_second)?,
                _ => fp8? / of.narrow_flops_per_second(ROWS),
            };
            Some(RowRate { rows: rate.rows, flops_per_second: rate.flops_per_second * scale })
        });
        let attention = rates.attention_flops_per_second;
        let best = measured.libraries.as_ref().unwrap_or(rates).attention_flops_per_second;
        Rates {
            gemm: gemm.collect(),
            narrow_gemm: narrow.collect(),
            attention_flops_per_second: bf16 * class.attention * (attention / best),
        }
    };
    Known {
        fp8_speedup: fp8.map(|fp8| fp8 / (bf16 * class.gemm)),
        band: Some(class.band),
        bus: bus.name.clone(),
        profile: CardProfile {
            name: card.full_name.clone(),
            arch: card.arch.clone(),
            vram_bytes: card.vram_bytes.value,
            source: format!("its data sheet, with the shares of class {}", class.name),
            link_bytes_per_second: bus.usable_bytes_per_second,
            memory_bytes_per_second: memory,
            own: rates(&measured.own),
            libraries: measured.libraries.as_ref().map(rates),
            conv_flops_per_second: bf16 * class.conv,
            ..measured.clone()
        },
    }
}
