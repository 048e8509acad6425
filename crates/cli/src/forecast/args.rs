//! What was typed of machines, known models and rules of thumb.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use plimsoll_graph::Coding;

use crate::values::SizeArg;

/// The machine that a plan is for, and what is asked beside the plan.
#[derive(Args, Debug)]
pub(crate) struct ForecastArgs {
    /// Plan for a card by its name, such as rtx-4080; it need not be here
    #[arg(long, value_name = "NAME")]
    pub(crate) gpu: Option<String>,
    /// Plan for a card as `plimsoll probe` measured it
    #[arg(long, value_name = "FILE", conflicts_with = "gpu")]
    pub(crate) machine: Option<PathBuf>,
    /// Bus of the card: pcie3x16, pcie4x8, pcie4x16, pcie5x8 or pcie5x16 [default: the card's own]
    #[arg(long, value_name = "NAME")]
    pub(crate) bus: Option<String>,
    /// What its disk reads in a second, such as 7GB
    #[arg(long, value_name = "SIZE")]
    pub(crate) disk: Option<SizeArg>,
    /// Picture size, WIDTHxHEIGHT
    #[arg(long, value_name = "WxH", conflicts_with_all = ["width", "height"])]
    pub(crate) size: Option<PixelsArg>,
    /// Frames of a film, 4n + 1 [default: the model's]
    #[arg(long)]
    pub(crate) frames: Option<u64>,
    /// Pieces that the tokens of a film are taken in: fewer bytes, the same bits [default: as few as fit]
    #[arg(long, value_name = "N")]
    pub(crate) row_chunks: Option<u64>,
    /// How the denoiser's matrices are kept [default: bf16]
    #[arg(long, value_enum)]
    pub(crate) weights: Option<CodingName>,
    /// How the text encoders' matrices are kept [default: bf16]
    #[arg(long, value_enum)]
    pub(crate) text_weights: Option<CodingName>,
    /// Rank of a LoRA beside the denoiser's blocks
    #[arg(long, value_name = "RANK")]
    pub(crate) lora_rank: Option<u64>,
    /// ControlNets beside FLUX.1, of 5 double blocks each
    #[arg(long, value_name = "N")]
    pub(crate) controlnets: Option<u32>,
    /// Plan for a card without fused attention: scores are in memory, a piece of their rows at a time
    #[arg(long)]
    pub(crate) no_flash_attention: bool,
    /// Print the schema of what --json prints for a model by name
    #[arg(long)]
    pub(crate) json_schema: bool,
    /// Show the field's strategies and ours side by side
    #[arg(long)]
    pub(crate) strategies: bool,
    /// Show seconds for lines from the smallest to all resident: so many, or as a drawing
    #[arg(long, value_name = "LINES|OUT.svg", num_args = 0..=1, default_missing_value = "50")]
    pub(crate) curve: Option<CurveArg>,
    /// Draw the lanes of a step and the memory of the run
    #[arg(long, value_name = "OUT.svg")]
    pub(crate) timeline: Option<PathBuf>,
}

impl ForecastArgs {
    /// Whether anything here was asked for.
    pub(crate) fn is_asked(&self) -> bool {
        self.gpu.is_some()
            || self.machine.is_some()
            || self.bus.is_some()
            || self.disk.is_some()
            || self.size.is_some()
            || self.frames.is_some()
            || self.row_chunks.is_some()
            || self.weights.is_some()
            || self.text_weights.is_some()
            || self.lora_rank.is_some()
            || self.controlnets.is_some()
            || self.no_flash_attention
            || self.strategies
            || self.curve.is_some()
            || self.timeline.is_some()
    }
}

/// What the rules of thumb are fed.
#[derive(Args, Debug)]
pub(crate) struct LedgerArgs {
    /// Print the rules of thumb of the field beside exact figures
    #[arg(long, required = true)]
    pub(crate) rule_of_thumb: bool,
    /// Steps of a picture
    #[arg(long, default_value_t = 28)]
    pub(crate) steps: u32,
    /// Seconds of a step's arithmetic
    #[arg(long, value_name = "SECONDS", default_value_t = 0.17)]
    pub(crate) compute_per_step: f64,
    /// Context and fragmentation, in GiB
    #[arg(long, value_name = "GIB", default_value_t = 1.5)]
    pub(crate) overhead: f64,
    /// Usable bandwidth of the first bus, in GB/s
    #[arg(long, value_name = "GB/S", default_value_t = 25.0)]
    pub(crate) bus: f64,
    /// Usable bandwidth of the second bus, in GB/s
    #[arg(long, value_name = "GB/S", default_value_t = 50.0)]
    pub(crate) second_bus: f64,
    /// Blocks in a group; may be given more than once
    #[arg(long, value_name = "N", default_values_t = [1, 4, 8, 19, 57])]
    pub(crate) group: Vec<u32>,
    /// Memory of the card, in GiB
    #[arg(long, value_name = "GIB", default_value_t = 16.0)]
    pub(crate) card: f64,
    /// What a tiled decode may take, in GiB
    #[arg(long, value_name = "GIB", default_value_t = 1.0)]
    pub(crate) decode: f64,
    /// ControlNets beside the model
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) controlnets: u32,
    /// Bytes of one ControlNet, in GB
    #[arg(long, value_name = "GB", default_value_t = 3.6)]
    pub(crate) controlnet: f64,
}

/// A number of lines, or a file.
#[derive(Clone, Debug)]
pub(crate) enum CurveArg {
    Lines(usize),
    File(PathBuf),
}

impl FromStr for CurveArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(lines @ 2..=1_000) => Ok(Self::Lines(lines)),
            Err(_) if text.ends_with(".svg") => Ok(Self::File(PathBuf::from(text))),
            _ => Err("expected 2 to 1000 lines, or a file OUT.svg".to_owned()),
        }
    }
}

/// Width and height.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PixelsArg(pub(crate) [u64; 2]);

impl FromStr for PixelsArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let sides = text.split_once(['x', 'X']);
        let sides = sides.and_then(|(w, h)| Some([w.parse().ok()?, h.parse().ok()?]));
        sides.map(Self).ok_or_else(|| "expected WIDTHxHEIGHT, such as 1024x768".to_owned())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CodingName {
    Bf16,
    Fp8,
    Nf4,
}

impl CodingName {
    pub(crate) fn coding(self) -> Coding {
        match self {
            Self::Bf16 => Coding::Plain,
            Self::Fp8 => Coding::Fp8,
            Self::Nf4 => Coding::Nf4,
        }
    }
}
