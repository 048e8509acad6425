//! Why there is no plan.

use serde::Serialize;

use crate::line::Bytes;
use crate::types::Offload;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Nothing fits under the line, now or later: raise it, or make the run smaller.
    #[error(
        "does not fit under a line of {}: the smallest that works is {} ({smallest_bytes} bytes{}), at {at}; {advice}",
        Bytes(*line_bytes), Bytes(*smallest_bytes), Beside(*reserved_bytes)
    )]
    Infeasible {
        /// The line in force.
        line_bytes: u64,
        /// The smallest line that works with this strategy: one allocation unit less does not.
        smallest_bytes: u64,
        /// The smallest line that works with [`Offload::Auto`].
        smallest_any_bytes: u64,
        /// What the process takes beside the arena; in all of these lines.
        reserved_bytes: u64,
        /// Where the smallest plan is fullest.
        at: Box<PeakAt>,
        /// What would make it fit.
        advice: Advice,
    },
    /// A number of blocks in a group that makes no sense.
    #[error("a group has at least 1 block")]
    NoBlocks,
    /// Sizes that do not fit the arithmetic: no device has such memory, no one such time.
    #[error("{what} is too large to plan")]
    TooLarge {
        /// What overflowed.
        what: &'static str,
    },
    /// The graph's tables do not fit together; a bug of whoever built it.
    #[error("malformed graph: {what}")]
    Malformed {
        /// What is wrong.
        what: &'static str,
    },
}

/// What a line holds beside the arena; nothing where that is nothing.
struct Beside(u64);

impl std::fmt::Display for Beside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(f, ", {} of them beside the arena", Bytes(self.0)) }
    }
}

/// The fullest moment of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeakAt {
    /// Name of the phase.
    pub phase: String,
    /// Name of the block.
    pub block: String,
    /// Name of the op.
    pub op: String,
    /// Live tensors.
    pub tensor_bytes: u64,
    /// Scratch of the op.
    pub workspace_bytes: u64,
    /// Weights in their places, those on their way included.
    pub weight_bytes: u64,
}

impl std::fmt::Display for PeakAt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}/{}/{} (activations {}, workspace {}, weights {})",
            self.phase,
            self.block,
            self.op,
            Bytes(self.tensor_bytes),
            Bytes(self.workspace_bytes),
            Bytes(self.weight_bytes)
        )
    }
}

/// The one change that would make a run fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Advice {
    /// The same line works with this strategy.
    UseOffload(Offload),
    /// The same line works with prefetch off.
    PrefetchOff,
    /// The same line works where the picture is decoded in tiles, which changes it a little.
    DecodeTile {
        /// Most pixels of a side of a tile.
        edge: u64,
    },
    /// Nothing but a higher line: so many bytes work with [`Offload::Auto`].
    RaiseLine {
        /// The smallest line that works.
        bytes: u64,
    },
    /// Activations alone are over the line: a smaller picture, fewer samples or a shorter prompt, or a line of
    /// so many bytes.
    ShrinkActivations {
        /// The smallest line that works with [`Offload::Auto`].
        bytes: u64,
    },
}

impl std::fmt::Display for Advice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::UseOffload(offload) => write!(f, "it fits with --offload {offload}"),
            Self::PrefetchOff => f.write_str("it fits with --prefetch off"),
            Self::DecodeTile { edge } => write!(f, "it fits with --vae-tile {edge}"),
            Self::RaiseLine { bytes } => {
                write!(f, "raise the line to {bytes} bytes ({})", Bytes(*bytes))
            }
            Self::ShrinkActivations { bytes } => write!(
                f,
                "make a smaller picture or raise the line to {bytes} bytes ({})",
                Bytes(*bytes)
            ),
        }
    }
}
