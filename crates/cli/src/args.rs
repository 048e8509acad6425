//! What was typed.

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Arg, Args, Command, CommandFactory, FromArgMatches, Parser, Subcommand};
use plimsoll_pipeline::Tiling;
use plimsoll_plan::Offload;

use crate::dtypes::DTypes;
use crate::forecast::args::{ForecastArgs, LedgerArgs};
use crate::runs::args::{RecordArgs, RunsArgs};
pub(crate) use crate::values::{
    DeviceName, HostTierName, KernelsName, LineArg, NoiseName, OffloadName, SizeArg, Switch,
};

/// How often a benchmark may do the same: more says nothing new.
const AGAIN: RangeInclusive<i64> = 1..=1000;

/// Diffusion models under a hard line of VRAM.
#[derive(Debug, Parser)]
#[command(name = "plimsoll", version, about, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

impl Cli {
    /// What `words` say, the program's name first.
    pub(crate) fn read<W>(words: impl IntoIterator<Item = W>) -> Result<Self, clap::Error>
    where
        W: Into<OsString> + Clone,
    {
        let words: Vec<OsString> = words.into_iter().map(Into::into).collect();
        let found = with_negative_numbers(Self::command()).try_get_matches_from(&words);
        Self::from_arg_matches(&found.map_err(|error| naming_what_is_no_text(error, words))?)
    }
}

/// A negative number is a value like any other, so that the option that it was given to refuses it, by its name and
/// with what it takes, instead of being told that there is no option `-1`.
fn with_negative_numbers(command: Command) -> Command {
    let open = |arg: Arg| {
        let takes_values = arg.get_action().takes_values();
        if takes_values { arg.allow_negative_numbers(true) } else { arg }
    };
    command.mut_args(open).mut_subcommands(with_negative_numbers)
}

/// Of a value that is no text clap does not say whose it is.
fn naming_what_is_no_text(error: clap::Error, mut words: Vec<OsString>) -> clap::Error {
    if error.kind() != ErrorKind::InvalidUtf8 {
        return error;
    }
    // Some options take paths of any bytes, so the one at fault is the last that has to be made text of.
    for at in 0..words.len() {
        if words[at].to_str().is_some() {
            continue;
        }
        let shown = words[at].to_string_lossy().into_owned();
        words[at] = OsString::from(&shown);
        let again = with_negative_numbers(Cli::command()).try_get_matches_from(&words);
        if again.is_err_and(|error| error.kind() == ErrorKind::InvalidUtf8) {
            continue;
        }
        let option = at.checked_sub(1).and_then(|before| words[before].to_str());
        let named = match option.filter(|word| word.starts_with('-') && !shown.starts_with('-')) {
            Some(option) => format!("the value {shown:?} of {option}"),
            None => format!("the argument {shown:?}"),
        };
        let what = format!("{named} is not text in UTF-8: give another name");
        return clap::Error::raw(ErrorKind::InvalidUtf8, what);
    }
    error
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Draw a picture
    Generate(GenerateArgs),
    /// Tell what a run would take, before anything runs
    Plan(PlanArgs),
    /// Rules of thumb of the field, beside exact figures
    Ledger(LedgerArgs),
    /// Tell what a checkpoint file or folder holds; reads headers only
    Inspect(InspectArgs),
    /// Draw the same picture at several lines in one process and print a JSON line for each
    Bench(BenchArgs),
    /// Measure the NVIDIA card of this machine, for `plan`; some 20 s
    Probe(ProbeArgs),
    /// Prove by three runs that placement is in effect on this machine
    Doctor(DoctorArgs),
    /// Read, judge, repeat and continue the recorded runs
    Runs(RunsArgs),
    /// Write a folder whose weights lie in the order in which they are streamed, in fp8 where asked
    Pack(PackArgs),
    /// Write a full-size checkpoint of random weights, to measure without the real ones
    Synth(SynthArgs),
}

/// What is drawn, and under which line.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// Pipeline folder, or `demo`; `plan` also takes flux.1-dev, flux.1-schnell, flux.2-dev, z-image-turbo, sdxl,
    /// wan2.1-t2v-1.3b, wan2.1-t2v-14b, wan2.2-t2v-a14b and hunyuanvideo, without files
    #[arg(long, value_name = "demo|PATH", default_value = "demo")]
    pub(crate) model: String,
    /// Transformer from a single file (BFL or diffusers names) in place of the folder's own
    #[arg(long, value_name = "FILE")]
    pub(crate) transformer: Option<PathBuf>,
    /// Picture width in pixels, a multiple of 16 [default: the model's]
    #[arg(long)]
    pub(crate) width: Option<u64>,
    /// Picture height in pixels, a multiple of 16 [default: the model's]
    #[arg(long)]
    pub(crate) height: Option<u64>,
    /// Denoising steps [default: the model's]
    #[arg(long)]
    pub(crate) steps: Option<u32>,
    /// Pictures made together; each has the bits of its single run
    #[arg(short = 'n', long = "count", default_value_t = 1)]
    pub(crate) count: u32,
    /// Length of the T5 sequence [default: the model's]
    #[arg(long, value_name = "TOKENS")]
    pub(crate) text_tokens: Option<u64>,
    /// The line that device memory may not cross: 6GiB, 6GB, 900MiB, 80%, max (all resident) or
    /// min (the smallest that works)
    #[arg(long, value_name = "LINE", default_value = "80%")]
    pub(crate) vram: LineArg,
    /// Where the run is carried out: auto (an NVIDIA card if there is one), cuda, cuda:1, cpu or sim
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub(crate) device: DeviceName,
    /// Folder to look for cuBLASLt and cuDNN in first; may be given more than once
    #[arg(long, value_name = "DIR")]
    pub(crate) cuda_lib_dir: Vec<PathBuf>,
    /// Which kernels a card runs: auto (libraries where they are found), or own (the driver alone)
    #[arg(long, value_enum, default_value_t = KernelsName::Auto)]
    pub(crate) kernels: KernelsName,
    /// Dtype of activations (bf16 or f32; sums are always f32), and what components are stored as:
    /// transformer=fp8 for a packed folder, or to have one in bf16 put in 8 bits on its way to the device
    #[arg(long, value_name = "DTYPE|COMPONENT=DTYPE,...", default_value = "bf16")]
    pub(crate) dtype: DTypes,
    /// How weights reach the device
    #[arg(long, value_enum, default_value_t = OffloadName::Auto)]
    pub(crate) offload: OffloadName,
    /// Blocks in a group, for --offload group
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) blocks_per_group: u32,
    /// Copy weights ahead of their use
    #[arg(long, value_enum, default_value_t = Switch::On)]
    pub(crate) prefetch: Switch,
    /// Decode the picture in tiles of at most N pixels a side (a multiple of 16), which changes it a little: off, N, or
    /// auto (whole where the line allows it, else the largest tiles that fit) [default: off; auto in forecasts]
    #[arg(long, value_name = "off|N|auto")]
    pub(crate) vae_tile: Option<Tiling>,
    /// Take out of the step loop what does not depend on the latent; the picture is the same
    #[arg(long, value_enum, default_value_t = Switch::On)]
    pub(crate) hoist: Switch,
    /// Where streamed weights come from: auto (RAM as far as it goes, the rest from the disk), mapped (the page cache),
    /// pinned (the page cache, through pinned windows) or disk; the picture is the same
    #[arg(long, value_enum, default_value_t = HostTierName::Auto)]
    pub(crate) host_tier: HostTierName,
    /// RAM for streamed weights, 6GiB or 900MiB; of a card that is not here, all of its host's [default: what is free]
    #[arg(long, value_name = "SIZE")]
    pub(crate) ram: Option<SizeArg>,
    /// Threads of the CPU device [default: all cores]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Time the machine on this model's ops first, so that predicted seconds are measured ones
    #[arg(long)]
    pub(crate) calibrate: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct GenerateArgs {
    /// What to draw
    pub(crate) prompt: String,
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// Where the picture goes; with -n, the seed is added to each name
    #[arg(short, long, value_name = "OUT.png", default_value = "plimsoll.png")]
    pub(crate) output: PathBuf,
    /// Distilled guidance, for models that take one [default: the model's]
    #[arg(long)]
    pub(crate) guidance: Option<f32>,
    /// Seed of the first picture
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Initial noise: f32 (the same in every mode), or as a diffusers pipeline of this dtype draws it
    #[arg(long, value_enum, default_value_t = NoiseName::F32)]
    pub(crate) noise: NoiseName,
    /// Write every copy and op with its times, for chrome://tracing
    #[arg(long, value_name = "OUT.json")]
    pub(crate) trace: Option<PathBuf>,
    /// Write what components hand on to each other (ids, contexts, latents, the decoded picture), as the device has
    /// it, for `bench/parity_components.py`
    #[arg(long, value_name = "OUT.safetensors")]
    pub(crate) save_tensors: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) record: RecordArgs,
}

#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) forecast: ForecastArgs,
}

#[derive(Args, Debug)]
pub(crate) struct InspectArgs {
    /// A checkpoint file, or a pipeline or component folder
    pub(crate) path: PathBuf,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// Lines, one after the other; --vram is not used
    #[arg(long, value_name = "LINE,...", value_delimiter = ',', default_value = "max,min")]
    pub(crate) lines: Vec<LineArg>,
    /// How often all lines are gone through, 1 to 1000
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(AGAIN))]
    pub(crate) rounds: u32,
    /// Pictures at a line before the next, 1 to 1000
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(AGAIN))]
    pub(crate) pictures: u32,
    /// What to draw
    #[arg(long, default_value = "ice cream, 3d rendered emoji")]
    pub(crate) prompt: String,
}

#[derive(Args, Debug)]
pub(crate) struct ProbeArgs {
    /// Index of the card
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) index: u32,
    /// Folder to look for cuBLASLt and cuDNN in first; may be given more than once
    #[arg(long, value_name = "DIR")]
    pub(crate) cuda_lib_dir: Vec<PathBuf>,
    /// Folder whose disk is measured with a file of 256 MiB, such as the one of a model [default: the profile's]
    #[arg(long, value_name = "DIR")]
    pub(crate) disk: Option<PathBuf>,
    /// Folder that the profile is written to [default: where `plan` looks]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// What to draw [default: a reference prompt]
    #[arg(long)]
    pub(crate) prompt: Option<String>,
    /// Seed of the first picture
    #[arg(long, default_value_t = 42)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) record: RecordArgs,
}

#[derive(Args, Debug)]
pub(crate) struct PackArgs {
    /// Pipeline folder, or `demo`
    #[arg(long, value_name = "demo|PATH")]
    pub(crate) model: String,
    /// Transformer from a single file (BFL or diffusers names) in place of the folder's own
    #[arg(long, value_name = "FILE")]
    pub(crate) transformer: Option<PathBuf>,
    /// Folder that is written; it must be empty or absent, and not in the model's
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: PathBuf,
    /// What components are stored as: transformer=fp8, COMPONENT=bf16, or bf16 for all [default: as they are]
    #[arg(long, value_name = "COMPONENT=DTYPE,...")]
    pub(crate) dtype: Option<DTypes>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct SynthArgs {
    /// Model whose shapes are taken: flux.1-dev or flux.1-schnell (33 GB either)
    #[arg(long, value_name = "NAME", default_value = "flux.1-dev")]
    pub(crate) model: String,
    /// Folder that the checkpoint is written to; it must be empty or absent
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: PathBuf,
    /// Seed of the weights
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Pipeline folder whose tokenizers are taken over [default: the demo model's]
    #[arg(long, value_name = "DIR")]
    pub(crate) tokenizers: Option<PathBuf>,
}

impl RunArgs {
    pub(crate) fn offload(&self) -> Offload {
        match self.offload {
            OffloadName::Auto => Offload::Auto,
            OffloadName::None => Offload::None,
            OffloadName::Model => Offload::Model,
            OffloadName::Sequential => Offload::Sequential,
            OffloadName::Group => Offload::Group { blocks: self.blocks_per_group },
        }
    }
}
