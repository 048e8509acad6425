//! Everything that can be wrong with a plan, one variant a rule, one line each.
//!
//! A violation is a bug of whoever made the plan, never of the caller: the run must not start. Each names the
//! op, copy or unit and the bytes, so that the line alone says where to look.

use plimsoll_graph::GraphError;

/// The first rule that a plan breaks.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// The plan is of a format that this verifier does not know.
    #[error("the plan is of version {found}, this verifier knows {known}")]
    Version {
        /// Version in the plan.
        found: u32,
        /// Version that is checked here.
        known: u32,
    },
    /// The graph itself is not one.
    #[error("the graph: {0}")]
    Graph(GraphError),
    /// A tensor is cut into more bands of columns than the walk can tell apart.
    #[error("tensor {tensor} is used in {bands} bands of columns, at most {most} can be proved")]
    Bands {
        /// Name of the tensor.
        tensor: String,
        /// Bands.
        bands: usize,
        /// Bits of a mask.
        most: usize,
    },

    /// A table of the plan has other entries than the graph asks for.
    #[error("the plan has {found} {what}, expected {expected}")]
    Count {
        /// Which table.
        what: &'static str,
        /// Entries in the plan.
        found: usize,
        /// Entries that the graph asks for.
        expected: usize,
    },
    /// An index points past the end of its table.
    #[error("{what} names {table} {index} of {len}")]
    Index {
        /// What holds the index.
        what: String,
        /// What it points to.
        table: &'static str,
        /// The index.
        index: u32,
        /// Entries there are.
        len: usize,
    },

    /// The plan leaves less beside the arena than the process takes.
    #[error("{reserved_bytes} bytes beside the arena, {needed} are needed")]
    ReserveTooSmall {
        /// Bytes in the plan.
        reserved_bytes: u64,
        /// Bytes that the device asked for.
        needed: u64,
    },
    /// The arena and what the process takes beside it are larger than the line.
    #[error(
        "the arena of {arena_bytes} bytes and {reserved_bytes} beside it are over the line of {line_bytes}"
    )]
    OverLine {
        /// Size of the arena.
        arena_bytes: u64,
        /// What the process takes beside it.
        reserved_bytes: u64,
        /// The line.
        line_bytes: u64,
    },
    /// A place does not begin at a multiple of the alignment.
    #[error("{what} at {offset} is not aligned to {alignment}")]
    Misaligned {
        /// Tensor, workspace, load or weight.
        what: String,
        /// Where it begins; for the arena its size.
        offset: u64,
        /// The alignment in bytes.
        alignment: u64,
    },
    /// A place ends outside of the arena.
    #[error("{what}: {bytes} bytes at {offset} are outside of the arena of {arena_bytes}")]
    OutsideArena {
        /// Tensor, workspace or load.
        what: String,
        /// Where it begins.
        offset: u64,
        /// Its size.
        bytes: u64,
        /// Size of the arena.
        arena_bytes: u64,
    },
    /// A place is not as large as what lies in it.
    #[error("{what} has {found} bytes, expected {expected}")]
    Size {
        /// Tensor, load or unit.
        what: String,
        /// Bytes in the plan.
        found: u64,
        /// Bytes that it must have.
        expected: u64,
    },
    /// A workspace is smaller than the device's implementation of the op needs.
    #[error("op {op}: a workspace of {bytes} bytes, {needed} are needed")]
    WorkspaceTooSmall {
        /// Name of the op.
        op: String,
        /// Bytes in the plan.
        bytes: u64,
        /// Bytes that the device asked for.
        needed: u64,
    },
    /// Two weights share bytes in their unit, or stand out of order.
    #[error("unit {unit}: weight {weight} at {offset} begins before {previous_end}")]
    UnitOverlap {
        /// Name of the unit.
        unit: String,
        /// Name of the weight.
        weight: String,
        /// Its offset in the unit.
        offset: u64,
        /// Where the weight before it ends.
        previous_end: u64,
    },
    /// A unit holds a weight that its block does not own.
    #[error("unit {unit} holds weight {weight}, which is not of block {block}")]
    UnitForeign {
        /// Name of the unit.
        unit: String,
        /// Name of the weight.
        weight: String,
        /// Name of the block.
        block: String,
    },

    /// The visits leave out, repeat or reorder ops.
    #[error("visit {visit} covers ops {ops_start}..{ops_end}, expected to go on from {expected}")]
    OpOrder {
        /// Index of the visit; the number of visits where the last ops are missing.
        visit: usize,
        /// Its first op.
        ops_start: u32,
        /// One past its last op.
        ops_end: u32,
        /// The op that is next.
        expected: u32,
    },
    /// A phase is not the graph's.
    #[error("phase {phase}: the {what} differs from the graph's")]
    Phase {
        /// Name in the graph, or in the plan where the graph has none.
        phase: String,
        /// Name, kind, repeat, visits or ops.
        what: &'static str,
    },
    /// The compute lane is not the visits in order with the loop unrolled.
    #[error(
        "compute {compute} is visit {visit} at step {step}, expected visit {expected_visit} at step \
         {expected_step}"
    )]
    ComputeOrder {
        /// Position in the lane.
        compute: usize,
        /// Visit in the plan.
        visit: u32,
        /// Step in the plan.
        step: u32,
        /// Visit that is next.
        expected_visit: u32,
        /// Its step.
        expected_step: u32,
    },
    /// A weight is in none of its visit's loads, or in several.
    #[error("op {op} (visit {visit}) finds weight {weight} in {homes} of the visit's loads")]
    WeightHome {
        /// Name of the op.
        op: String,
        /// Index of its visit.
        visit: usize,
        /// Name of the weight.
        weight: String,
        /// How many loads hold it.
        homes: usize,
    },
    /// A resident load is copied other than once.
    #[error("the resident load {load} of unit {unit} is copied {copies} times")]
    ResidentCopies {
        /// Index of the load.
        load: usize,
        /// Name of its unit.
        unit: String,
        /// Copies of it.
        copies: usize,
    },

    /// An edge waits for more than the other lane ever does.
    #[error("{what} waits for {count} of {len} entries of the {lane} lane")]
    EdgeRange {
        /// Which entry.
        what: String,
        /// What it waits for.
        count: u32,
        /// Entries there are.
        len: usize,
        /// The other lane.
        lane: &'static str,
    },
    /// Two entries wait for each other.
    #[error(
        "copy {copy} of unit {unit} waits for {after} computes, the last of which waits for {needs} \
         copies"
    )]
    Deadlock {
        /// Position in the copy lane.
        copy: usize,
        /// Name of the unit.
        unit: String,
        /// Computes that must be done before it.
        after: u32,
        /// Copies that must be done before the last of these.
        needs: u32,
    },
    /// A copy writes bytes that a visit may touch at the same time.
    #[error(
        "copy {copy} of unit {unit} may run beside op {op} (compute {compute}, step {step}), which \
         touches byte {offset} ({operand})"
    )]
    Race {
        /// Position in the copy lane.
        copy: usize,
        /// Name of the unit.
        unit: String,
        /// Position in the compute lane.
        compute: usize,
        /// Name of the op, or of the visit's first where the whole visit holds the bytes.
        op: String,
        /// Step of the compute.
        step: u32,
        /// First byte in common.
        offset: u64,
        /// Tensor, workspace or load.
        operand: String,
    },

    /// An op would read and write, or write twice, the same bytes where its kind does not allow it.
    #[error("op {op}: {first} and {second} share byte {offset}")]
    OperandOverlap {
        /// Name of the op.
        op: String,
        /// One operand.
        first: String,
        /// The other, which is written.
        second: String,
        /// First byte in common.
        offset: u64,
    },
    /// An op reads tensor bytes that do not hold what was last written to that tensor.
    #[error("op {op} at step {step} reads tensor {tensor}, whose byte {offset} holds {found}")]
    TensorContent {
        /// Name of the op.
        op: String,
        /// Step.
        step: u32,
        /// Name of the tensor.
        tensor: String,
        /// First wrong byte of the arena.
        offset: u64,
        /// What lies there instead.
        found: String,
    },
    /// An op reads weight bytes that are not there.
    #[error("op {op} at step {step} reads weight {weight}, whose byte {offset} holds {found}")]
    WeightContent {
        /// Name of the op.
        op: String,
        /// Step.
        step: u32,
        /// Name of the weight.
        weight: String,
        /// First wrong byte of the arena.
        offset: u64,
        /// What lies there instead.
        found: String,
    },
    /// A copy is never used.
    #[error("copy {copy} of unit {unit} is overwritten or left without a use")]
    CopyUnused {
        /// Position in the copy lane.
        copy: usize,
        /// Name of the unit.
        unit: String,
    },
    /// A copy is accounted to another step than the one that first uses it.
    #[error(
        "copy {copy} of unit {unit} is accounted to {}, first used {}",
        step_name(*.found),
        step_name(*.expected)
    )]
    CopyStep {
        /// Position in the copy lane.
        copy: usize,
        /// Name of the unit.
        unit: String,
        /// Step in the plan.
        found: Option<u32>,
        /// Step of its first use.
        expected: Option<u32>,
    },

    /// A steady step is not the one before it, moved on.
    #[error("step {step} differs from the one before it: {what} {at}")]
    NotPeriodic {
        /// The later step.
        step: u32,
        /// Which edge or entry.
        what: &'static str,
        /// Its position within the step.
        at: usize,
    },
    /// The predicted bytes are not the plan's.
    #[error("predicted {what} is {predicted}, the plan gives {recomputed}")]
    Prediction {
        /// Which figure.
        what: &'static str,
        /// In the plan.
        predicted: u64,
        /// Counted here.
        recomputed: u64,
    },
}

fn step_name(step: Option<u32>) -> String {
    step.map_or_else(|| "outside of the loop".to_owned(), |step| format!("at step {step}"))
}
