//! The plan: for every byte of device memory an offset, for every weight a home, for every copy a place in
//! the order.
//!
//! A plan is data. The planner writes it, `verify` proves it without knowing how it was made, `exec` carries
//! it out, `simulate` walks it in virtual time.

use plimsoll_graph::{BlockId, PhaseKind, WeightId};
use serde::Serialize;

/// Allocation unit and alignment of everything in the arena, in bytes.
///
/// 256 is what cuBLASLt and 16-byte vector loads ask for at most, and what `cuMemAlloc` itself aligns to.
pub const ALIGNMENT: u64 = 256;

/// A range of the arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Region {
    /// First byte; places that a plan gives are multiples of [`ALIGNMENT`].
    pub offset: u64,
    /// Bytes in use (not rounded up); 0 for nothing.
    pub bytes: u64,
}

impl Region {
    /// One past the last byte.
    pub fn end(&self) -> u64 {
        self.offset + self.bytes
    }

    /// Whether the two share a byte.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.bytes > 0 && other.bytes > 0 && self.offset < other.end() && other.offset < self.end()
    }
}

/// How weights reach the device: the field's strategies, and ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Offload {
    /// As fast as the line allows: interleaved residency, a ring of slots, leaves where blocks are too big.
    Auto,
    /// All weights resident; each is copied once.
    None,
    /// One component at a time; each is copied once a run.
    Model,
    /// One leaf (the weights of one op) at a time, copied when nothing computes.
    Sequential,
    /// Blocks in groups of `blocks`; the next group is copied ahead where prefetch is on.
    Group {
        /// Blocks in a group, at least 1.
        blocks: u32,
    },
}

/// A piece of weights that is copied as one: a block or a leaf of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unit {
    /// Name such as `double.3` or `double.3/img.qkv`.
    pub name: String,
    /// The block it is of.
    #[serde(serialize_with = "block_index")]
    pub block: BlockId,
    /// Its weights and their offsets from the unit's start, each a multiple of [`ALIGNMENT`], ascending.
    pub weights: Vec<UnitWeight>,
    /// Bytes from the first weight to the end of the last.
    pub bytes: u64,
}

/// A weight's place in its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct UnitWeight {
    /// The weight.
    #[serde(serialize_with = "weight_index")]
    pub weight: WeightId,
    /// Bytes from the unit's start.
    pub offset: u64,
}

/// A home of a unit in the arena: a resident place or a slot of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Load {
    /// Index in [`Plan::units`].
    pub unit: u32,
    /// Where it lies; as long as the unit.
    pub region: Region,
    /// Copied once for the whole run of its phases (resident), or anew for each use.
    pub is_resident: bool,
}

/// Ops carried out in one go, with the loads that hold their weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Visit {
    /// First op of the graph.
    pub ops_start: u32,
    /// One past the last op.
    pub ops_end: u32,
    /// Indices in [`Plan::loads`]; every weight that the ops read is in exactly one of them.
    pub loads: Vec<u32>,
}

/// A part of the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Phase {
    /// Name as in the graph.
    pub name: String,
    /// What it is.
    #[serde(serialize_with = "phase_kind")]
    pub kind: PhaseKind,
    /// First visit in [`Plan::visits`].
    pub visits_start: u32,
    /// One past the last visit.
    pub visits_end: u32,
    /// 1, or the number of steps.
    pub repeat: u32,
}

/// One copy of the run, in the copy lane's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CopyEntry {
    /// Index in [`Plan::loads`].
    pub load: u32,
    /// Step of the loop that first uses it; `None` outside of the loop.
    pub step: Option<u32>,
    /// It may begin only when this many entries of [`Plan::computes`] are done.
    pub after: u32,
}

/// One visit of the run, in the compute lane's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ComputeEntry {
    /// Index in [`Plan::visits`].
    pub visit: u32,
    /// Step of the loop; 0 outside of it.
    pub step: u32,
    /// It may begin only when this many entries of [`Plan::copies`] are done.
    pub needs: u32,
}

/// What the planner expects of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Prediction {
    /// Highest arena byte that will be touched, rounded up to [`ALIGNMENT`].
    pub vram_peak_bytes: u64,
    /// Device bytes of the whole process: [`Plan::arena_bytes`] and [`Plan::reserved_bytes`].
    pub vram_process_bytes: u64,
    /// Bytes copied in a steady step (the second, where there are two).
    pub copied_bytes_per_step: u64,
    /// Bytes copied in the whole run.
    pub copied_bytes: u64,
    /// Seconds of a steady step.
    pub seconds_per_step: f64,
    /// Seconds of the whole run.
    pub seconds_total: f64,
}

/// A complete, static description of a run's memory and order.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Version of this format.
    pub version: u32,
    /// First 16 hexadecimal digits of the SHA-256 of everything in the plan but the predicted seconds.
    pub id: String,
    /// Name of the arithmetic that decides the bits of results, see [`Machine::arithmetic`].
    ///
    /// [`Machine::arithmetic`]: crate::Machine::arithmetic
    pub arithmetic: String,
    /// The line, for the whole process: the arena and the reserve together may not be larger.
    pub line_bytes: u64,
    /// Size of the arena that the plan needs, a multiple of [`ALIGNMENT`].
    pub arena_bytes: u64,
    /// What the process takes of the device beside the arena, see [`Machine::reserved_bytes`].
    ///
    /// [`Machine::reserved_bytes`]: crate::Machine::reserved_bytes
    pub reserved_bytes: u64,
    /// Most pixels of a side of the tiles in which pictures are decoded; `None` where they are decoded whole.
    ///
    /// Runs whose plans name the same tiling and [`Plan::arithmetic`] give the same pictures.
    pub decode_tile: Option<u64>,
    /// Strategy asked for.
    pub offload: Offload,
    /// Whether copies run ahead of their use.
    pub prefetch: bool,
    /// Place of each tensor of the graph, by its index; empty for a tensor that nothing touches.
    pub tensors: Vec<Region>,
    /// Workspace of each op of the graph, by its index.
    pub workspaces: Vec<Region>,
    /// Pieces of weights.
    pub units: Vec<Unit>,
    /// Homes of units.
    pub loads: Vec<Load>,
    /// What the compute lane does, each once; a loop's body stands here once.
    pub visits: Vec<Visit>,
    /// Parts of the run.
    pub phases: Vec<Phase>,
    /// The copy lane from beginning to end, steps unrolled.
    pub copies: Vec<CopyEntry>,
    /// The compute lane from beginning to end, steps unrolled.
    pub computes: Vec<ComputeEntry>,
    /// What to expect.
    pub predicted: Prediction,
}

impl Plan {
    /// The most that an arena may have under the line: what the reserve leaves.
    pub fn arena_line_bytes(&self) -> u64 {
        self.line_bytes.saturating_sub(self.reserved_bytes)
    }
}

fn block_index<S: serde::Serializer>(id: &BlockId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u32(id.0)
}

fn weight_index<S: serde::Serializer>(id: &WeightId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u32(id.0)
}

fn phase_kind<S: serde::Serializer>(kind: &PhaseKind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match kind {
        PhaseKind::Encode => "encode",
        PhaseKind::Hoist => "hoist",
        PhaseKind::Denoise => "denoise",
        PhaseKind::Decode => "decode",
    })
}
