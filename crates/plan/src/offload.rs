//! Names of strategies, as people write them.

use std::fmt;

use plimsoll_graph::PhaseKind;

use crate::types::{Offload, Phase};

impl Offload {
    /// The name, without the number of blocks.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::None => "none",
            Self::Model => "model",
            Self::Sequential => "sequential",
            Self::Group { .. } => "group",
        }
    }
}

/// As on the command line: `auto`, or `group --blocks-per-group 2`.
impl fmt::Display for Offload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group { blocks } => write!(f, "group --blocks-per-group {blocks}"),
            other => f.write_str(other.name()),
        }
    }
}

impl Phase {
    /// Lower-case name of the phase's kind.
    pub fn kind_name(&self) -> &'static str {
        match self.kind {
            PhaseKind::Encode => "encode",
            PhaseKind::Hoist => "hoist",
            PhaseKind::Denoise => "denoise",
            PhaseKind::Decode => "decode",
        }
    }
}
