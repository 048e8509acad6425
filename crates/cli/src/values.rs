//! What an option may have for its value.

use std::str::FromStr;

use clap::ValueEnum;
use plimsoll_pipeline::{HostTier, NoiseSource};
use plimsoll_plan::Line;

/// A line as typed, parsed when the arguments are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LineArg(pub(crate) Line);

impl FromStr for LineArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|error: plimsoll_plan::LineError| error.to_string())
    }
}

/// A size as typed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SizeArg(pub(crate) u64);

impl FromStr for SizeArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<Line>() {
            Ok(Line::Bytes(bytes)) => Ok(Self(bytes)),
            _ => Err("expected a size: 6GiB, 6GB, 900MiB or bytes".to_owned()),
        }
    }
}

/// A device as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceName {
    Auto,
    Cuda(u32),
    Cpu,
    Sim,
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let index = |text: &str| text.parse().map(Self::Cuda).ok();
        let known = match text {
            "auto" => Some(Self::Auto),
            "cuda" => Some(Self::Cuda(0)),
            "cpu" => Some(Self::Cpu),
            "sim" => Some(Self::Sim),
            other => other.strip_prefix("cuda:").and_then(index),
        };
        known.ok_or_else(|| "expected auto, cuda, cuda:N, cpu or sim".to_owned())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KernelsName {
    Auto,
    Own,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum HostTierName {
    Auto,
    Mapped,
    Pinned,
    Disk,
}

impl HostTierName {
    pub(crate) fn tier(self) -> HostTier {
        match self {
            Self::Auto => HostTier::Auto,
            Self::Mapped => HostTier::Mapped,
            Self::Pinned => HostTier::Pinned,
            Self::Disk => HostTier::Disk,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OffloadName {
    Auto,
    None,
    Model,
    Sequential,
    Group,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

impl Switch {
    pub(crate) fn is_on(self) -> bool {
        self == Self::On
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NoiseName {
    F32,
    Diffusers,
}

impl NoiseName {
    pub(crate) fn source(self) -> NoiseSource {
        match self {
            Self::F32 => NoiseSource::F32,
            Self::Diffusers => NoiseSource::Diffusers,
        }
    }
}
