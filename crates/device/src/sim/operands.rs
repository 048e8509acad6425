//! What each op and copy of a program touches, gathered and checked against the arena once.

use plimsoll_graph::OpKind;
use plimsoll_plan::Region;

use crate::contract::{BoundCopy, BoundOp, DeviceError, Mat, Program, Segment};

/// Bytes of a matrix: `rows` runs of `row_bytes`, `pitch` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rect {
    pub(super) offset: u64,
    pub(super) rows: u64,
    pub(super) row_bytes: u64,
    pub(super) pitch: u64,
    /// Bytes to the same rows one step later.
    pub(super) step_bytes: u64,
}

impl Rect {
    /// From the first to one past the last byte, at a step.
    pub(super) fn extent(&self, step: u32) -> Region {
        let bytes = (self.rows.saturating_sub(1)) * self.pitch + self.row_bytes;
        Region { offset: self.offset + u64::from(step) * self.step_bytes, bytes }
    }

    /// Whether a byte of `start .. end` is of a row rather than between two.
    pub(super) fn touches(&self, step: u32, start: u64, end: u64) -> bool {
        let extent = self.extent(step);
        let (start, end) = (start.max(extent.offset), end.min(extent.end()));
        if start >= end {
            return false;
        }
        // The row that `start` is in or just behind of, and the next: nothing lies between them.
        let in_row = (start - extent.offset) % self.pitch.max(1);
        in_row < self.row_bytes || end - start > self.pitch - in_row
    }
}

/// An op's operands by how they are used.
#[derive(Debug, Default)]
pub(super) struct OpAccesses {
    pub(super) workspace: Region,
    pub(super) reads: Vec<Rect>,
    pub(super) weights: Vec<Rect>,
    pub(super) writes: Vec<Rect>,
}

/// What a copy writes.
#[derive(Debug, Default)]
pub(super) struct CopyWrites {
    /// All that it owns.
    pub(super) target: Region,
    /// Where bytes arrive, ascending.
    pub(super) segments: Vec<Region>,
    /// What of that are weights, ascending.
    pub(super) weights: Vec<Region>,
    /// Their sum.
    pub(super) arriving_bytes: u64,
}

/// Gathers the ops' operands.
///
/// # Errors
/// [`DeviceError::OutOfArena`] for an operand that leaves the arena at any step; [`DeviceError::Unsupported`]
/// for rows that overlap and for an index of an input, table or output that the program lacks.
pub(super) fn ops(program: &Program<'_>, arena_bytes: u64) -> Result<Vec<OpAccesses>, DeviceError> {
    program.ops.iter().map(|op| op_accesses(program, op, arena_bytes)).collect()
}

fn op_accesses(
    program: &Program<'_>,
    bound: &BoundOp,
    arena_bytes: u64,
) -> Result<OpAccesses, DeviceError> {
    let name = || format!("op {}", bound.op.name);
    let unsupported =
        |what: &str| DeviceError::Unsupported { what: what.to_owned(), device: "sim".to_owned() };
    let has_host_side = match &bound.op.kind {
        OpKind::Input { input, .. } => input.index() < program.inputs.len(),
        OpKind::Gather { table, ids, .. } => {
            table.index() < program.tables.len() && ids.index() < program.inputs.len()
        }
        OpKind::Output { output, .. } => output.index() < program.outputs.len(),
        _ => true,
    };
    if !has_host_side {
        return Err(unsupported(&format!("{} without its host side", name())));
    }
    inside(&name, Some(bound.workspace), arena_bytes)?;
    let mut accesses = OpAccesses { workspace: bound.workspace, ..OpAccesses::default() };
    let mut mats = Vec::new();
    bound.op.for_each_view(|mat, access| mats.push((*mat, Some(access))));
    bound.op.for_each_weight(|mat| mats.push((*mat, None)));
    for (mat, access) in mats {
        if mat.rows > 1 && mat.stride < mat.cols {
            return Err(unsupported(&format!("{} with rows that overlap", name())));
        }
        let rect = rect(&mat);
        inside(&name, rect.and_then(|rect| whole_run(&rect, program.steps)), arena_bytes)?;
        let Some(rect) = rect else { continue };
        match access {
            None => accesses.weights.push(rect),
            Some(access) => {
                if access.reads {
                    accesses.reads.push(rect);
                }
                if access.writes {
                    accesses.writes.push(rect);
                }
            }
        }
    }
    Ok(accesses)
}

/// `None` where the sizes do not fit the arithmetic.
fn rect(mat: &Mat) -> Option<Rect> {
    let width = mat.dtype.bytes();
    let row_bytes = mat.cols.checked_mul(width)?;
    // Rows without a gap are one long row: the arena is then looked at in one go.
    let is_dense = mat.rows <= 1 || mat.stride == mat.cols;
    let (rows, row_bytes) =
        if is_dense { (1, mat.rows.checked_mul(row_bytes)?) } else { (mat.rows, row_bytes) };
    let pitch = mat.stride.max(mat.cols).checked_mul(width)?.max(row_bytes);
    Some(Rect { offset: mat.offset, rows, row_bytes, pitch, step_bytes: mat.step_bytes })
}

/// From the first byte at step 0 to the last of the last step.
fn whole_run(rect: &Rect, steps: u32) -> Option<Region> {
    let last_step = u64::from(steps.saturating_sub(1));
    let bytes = rect.rows.saturating_sub(1).checked_mul(rect.pitch)?.checked_add(rect.row_bytes)?;
    let moved = last_step.checked_mul(rect.step_bytes)?;
    Some(Region { offset: rect.offset, bytes: bytes.checked_add(moved)? })
}

fn inside(
    what: &dyn Fn() -> String,
    region: Option<Region>,
    arena_bytes: u64,
) -> Result<(), DeviceError> {
    let end = region.and_then(|region| region.offset.checked_add(region.bytes));
    match end {
        Some(end) if end <= arena_bytes => Ok(()),
        _ => Err(DeviceError::OutOfArena { what: what(), arena_bytes }),
    }
}

/// Gathers what copies write.
///
/// # Errors
/// [`DeviceError::OutOfArena`] for a target outside of the arena, and for segments that are not in ascending
/// order inside of their copy's target.
pub(super) fn copies(
    program: &Program<'_>,
    arena_bytes: u64,
) -> Result<Vec<CopyWrites>, DeviceError> {
    program.copies.iter().map(|copy| copy_writes(copy, arena_bytes)).collect()
}

fn copy_writes(copy: &BoundCopy<'_>, arena_bytes: u64) -> Result<CopyWrites, DeviceError> {
    let name = || format!("copy {}", copy.name);
    inside(&name, Some(copy.target), arena_bytes)?;
    let mut writes = CopyWrites {
        target: copy.target,
        weights: copy.weights.clone(),
        arriving_bytes: copy.weight_bytes(),
        ..CopyWrites::default()
    };
    let mut end = copy.target.offset;
    for segment in &copy.segments {
        let region = Region { offset: segment.target, bytes: segment_bytes(segment) };
        let segment_end = region.offset.checked_add(region.bytes);
        match segment_end.filter(|_| region.offset >= end) {
            Some(segment_end) if segment_end <= copy.target.end() => end = segment_end,
            _ => return Err(DeviceError::OutOfArena { what: name(), arena_bytes }),
        }
        writes.segments.push(region);
    }
    Ok(writes)
}

/// Bytes that a segment fills in the arena, after the cast.
fn segment_bytes(segment: &Segment<'_>) -> u64 {
    segment.source.len() as u64 / segment.source_dtype.bytes() * segment.target_dtype.bytes()
}
