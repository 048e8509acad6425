//! What is checked when a program is loaded: that it cannot leave the arena, and that no op writes what another
//! of its operands holds. `verify` proves the rest of a plan; nothing is checked while a program runs.

use plimsoll_graph::{DType, OpKind};

use super::lookup;
use super::norm::HEAD_DIM_MAX;
use super::workspace::{Work, bound_shapes};
use crate::contract::HostTable;
use crate::{BoundCopy, BoundOp, DeviceError, HostDType, Mat, Program, Region};

/// Longest row that a copy puts in 8 bits: it has to fit a window of a card's copies.
const ROW_BYTES_MAX: u64 = 4 << 20;

/// Alignment of scratch: what a plan gives, and more than any element needs.
const SCRATCH_ALIGNMENT: u64 = 256;

/// What a device takes beside what every device does.
pub struct Limits<'l> {
    /// Name of the device, for refusals.
    pub device: &'static str,
    /// Scratch that an op needs.
    pub workspace_bytes: &'l dyn Fn(&OpKind<Mat, Mat>) -> u64,
    /// Most columns of a head in `QkNormRope`.
    pub head_dim_max: u64,
}

/// Checks a program for the CPU device.
pub(crate) fn program(program: &Program<'_>, arena_bytes: u64) -> Result<(), DeviceError> {
    let workspace_bytes = |op: &OpKind<Mat, Mat>| Work::of(&bound_shapes(op)).workspace_bytes();
    let limits = Limits {
        device: "cpu",
        workspace_bytes: &workspace_bytes,
        head_dim_max: HEAD_DIM_MAX as u64,
    };
    check_program(program, arena_bytes, &limits)
}

/// Checks a program against an arena of `arena_bytes`.
///
/// # Errors
/// [`DeviceError::OutOfArena`] or [`DeviceError::Unsupported`] for an operand that the device cannot take, which is a bug of the
/// program's maker; [`DeviceError::RowOutOfTable`] for an index in a host input.
pub fn check_program(
    program: &Program<'_>,
    arena_bytes: u64,
    limits: &Limits<'_>,
) -> Result<(), DeviceError> {
    let checker = Checker { program, arena_bytes, limits };
    program.copies.iter().try_for_each(|copy| checker.copy(copy))?;
    program.ops.iter().try_for_each(|op| checker.op(op))
}

struct Checker<'p, 'h> {
    program: &'p Program<'h>,
    arena_bytes: u64,
    limits: &'p Limits<'p>,
}

/// An operand and the bytes that it can touch over all steps.
#[derive(Clone, Copy)]
struct Operand {
    mat: Mat,
    extent: Region,
    writes: bool,
}

impl Checker<'_, '_> {
    fn refuse(&self, what: &str, name: &str) -> DeviceError {
        DeviceError::OutOfArena { what: format!("{what} of {name}"), arena_bytes: self.arena_bytes }
    }

    fn require(&self, holds: bool, what: &str, name: &str) -> Result<(), DeviceError> {
        if holds { Ok(()) } else { Err(self.refuse(what, name)) }
    }

    fn is_inside(&self, region: Region) -> bool {
        region.offset.checked_add(region.bytes).is_some_and(|end| end <= self.arena_bytes)
    }

    fn copy(&self, copy: &BoundCopy<'_>) -> Result<(), DeviceError> {
        self.require(self.is_inside(copy.target), "the target", &copy.name)?;
        for segment in &copy.segments {
            let width = segment.source_dtype.bytes();
            let source_bytes = segment.source.len() as u64;
            let is_index = segment.source_dtype == HostDType::U32;
            let is_narrow = matches!(segment.source_dtype, HostDType::F8E4M3 | HostDType::Codes(_));
            let is_scales = matches!(segment.source_dtype, HostDType::Scales(_));
            let unit = segment.source_dtype.unit_bytes();
            self.require(
                (1..=ROW_BYTES_MAX).contains(&unit)
                    && source_bytes.is_multiple_of(unit)
                    && (!is_scales || segment.target_dtype == DType::F32)
                    && is_index == (segment.target_dtype == DType::U32)
                    && is_narrow == (segment.target_dtype == DType::F8E4M3),
                "the type of a segment",
                &copy.name,
            )?;
            let bytes = (source_bytes / width).checked_mul(segment.target_dtype.bytes());
            let fits = bytes.is_some_and(|bytes| {
                let region = Region { offset: segment.target, bytes };
                self.is_inside(region)
                    && region.offset >= copy.target.offset
                    && region.end() <= copy.target.end()
                    && region.offset.is_multiple_of(segment.target_dtype.bytes())
            });
            self.require(fits, "a segment", &copy.name)?;
        }
        Ok(())
    }

    /// All bytes that an operand can touch.
    fn extent(&self, mat: &Mat) -> Option<Region> {
        let last_step = u64::from(self.program.steps.saturating_sub(1));
        let elements = mat.rows.checked_sub(1)?.checked_mul(mat.stride)?.checked_add(mat.cols)?;
        let bytes = elements
            .checked_mul(mat.dtype.bytes())?
            .checked_add(last_step.checked_mul(mat.step_bytes)?)?;
        let region = Region { offset: mat.offset, bytes };
        let is_matrix = mat.cols > 0 && (mat.rows == 1 || mat.stride >= mat.cols);
        let is_aligned = (mat.offset | mat.step_bytes).is_multiple_of(mat.dtype.bytes());
        (is_matrix && is_aligned && self.is_inside(region)).then_some(region)
    }

    fn op(&self, op: &BoundOp) -> Result<(), DeviceError> {
        if let OpKind::Planned(planned) = &op.op.kind {
            let what = format!("{} ({}), which can be planned only,", op.op.name, planned.label());
            return Err(DeviceError::Unsupported { what, device: self.limits.device.to_owned() });
        }
        let name = op.op.name.as_str();
        let mut operands: Vec<Operand> = Vec::new();
        let mut outside = false;
        let mut note = |mat: &Mat, writes: bool| match self.extent(mat) {
            Some(extent) => operands.push(Operand { mat: *mat, extent, writes }),
            None => outside = true,
        };
        op.op.for_each_view(|mat, access| note(mat, access.writes));
        op.op.for_each_weight(|mat| note(mat, false));
        self.require(!outside, "an operand", name)?;
        self.workspace(op, &operands)?;
        for (at, one) in operands.iter().enumerate().filter(|(_, one)| one.writes) {
            for (index, other) in operands.iter().enumerate().filter(|(index, _)| *index != at) {
                let in_place = one.mat == other.mat && in_place_operand(&op.op.kind) == Some(index);
                let clear = in_place || !shares_element(one, other);
                self.require(clear, "two operands in one place", name)?;
            }
        }
        self.dtypes(op)?;
        if let OpKind::Tile(tile) = &op.op.kind {
            let is_inside = tile.fits(&|mat: &Mat| [mat.rows, mat.cols]);
            self.require(is_inside, "a tile", name)?;
        }
        self.host_side(op)
    }

    fn workspace(&self, op: &BoundOp, operands: &[Operand]) -> Result<(), DeviceError> {
        let needed = (self.limits.workspace_bytes)(&op.op.kind);
        let region = op.workspace;
        let fits = region.bytes >= needed
            && self.is_inside(region)
            && (region.bytes == 0 || region.offset.is_multiple_of(SCRATCH_ALIGNMENT))
            && operands.iter().all(|operand| !operand.extent.overlaps(&region));
        self.require(fits, "the workspace", &op.op.name)
    }

    /// Indices are indices, 8-bit numbers are the matrix of a linear layer, and everything else is a number.
    fn dtypes(&self, op: &BoundOp) -> Result<(), DeviceError> {
        let name = op.op.name.as_str();
        let (mut indices, mut numbers, mut narrow) = (0, 0, 0);
        op.op.for_each_view(|mat, _| match mat.dtype {
            DType::U32 => indices += 1,
            DType::F8E4M3 => narrow += 1,
            _ => numbers += 1,
        });
        let mut weights_are_numbers = true;
        op.op.for_each_weight(|mat| {
            weights_are_numbers &= mat.dtype != DType::U32;
            narrow += u32::from(mat.dtype == DType::F8E4M3);
        });
        let narrow_allowed = match &op.op.kind {
            OpKind::Linear { weight, weight_scale, .. } => {
                let is_narrow = weight.dtype == DType::F8E4M3;
                let is_scale = |scale: &Mat| {
                    scale.dtype == DType::F32 && scale.rows == 1 && scale.cols == weight.rows
                };
                self.require(
                    is_narrow == weight_scale.is_some()
                        && weight_scale.as_ref().is_none_or(is_scale),
                    "the scales of the weight",
                    name,
                )?;
                u32::from(is_narrow)
            }
            _ => 0,
        };
        self.require(narrow == narrow_allowed, "the element types", name)?;
        let holds = match &op.op.kind {
            OpKind::Input { .. } | OpKind::Output { .. } => true,
            OpKind::Copy { .. } => indices == 0 || numbers == 0,
            OpKind::SelectRow { index, .. } => indices == 1 && index.dtype == DType::U32,
            OpKind::ExpandBias { buckets, .. } => indices == 1 && buckets.dtype == DType::U32,
            _ => indices == 0,
        };
        self.require(holds && weights_are_numbers, "the element types", name)?;
        let OpKind::QkNormRope { q, heads, .. } = &op.op.kind else { return Ok(()) };
        let head_dim = q.cols.checked_div(*heads).unwrap_or(0);
        if head_dim > self.limits.head_dim_max {
            let what = format!("{name} with heads of {head_dim} columns");
            return Err(DeviceError::Unsupported { what, device: self.limits.device.to_owned() });
        }
        Ok(())
    }

    /// Host values of the size that the op takes.
    fn host_side(&self, op: &BoundOp) -> Result<(), DeviceError> {
        let name = op.op.name.as_str();
        let bytes_of = |mat: &Mat| mat.rows * mat.cols * mat.dtype.bytes();
        match &op.op.kind {
            OpKind::Input { input, out } => {
                let bytes = self.program.inputs.get(input.index()).map(|bytes| bytes.len() as u64);
                self.require(bytes == Some(bytes_of(out)), "the host values", name)
            }
            OpKind::Output { output, x } => {
                let bytes = self
                    .program
                    .outputs
                    .get(output.index())
                    .map(|output| output.bytes.lock().map_or(0, |bytes| bytes.len()) as u64);
                self.require(bytes == Some(bytes_of(x)), "the host memory", name)
            }
            OpKind::Gather { table, ids, out } => {
                let table = self.program.tables.get(table.index());
                let ids = self.program.inputs.get(ids.index());
                let (Some(table), Some(ids)) = (table, ids) else {
                    return Err(self.refuse("the table", name));
                };
                let is_whole = is_table_whole(table) && table.cols == out.cols;
                self.require(is_whole, "the table", name)?;
                self.require(ids.len() as u64 == out.rows * 4, "the indices", name)?;
                let mut rows = (0..ids.len() / 4).filter_map(|at| lookup::index(ids, at));
                match rows.find(|row| u64::from(*row) >= table.rows) {
                    Some(row) => Err(DeviceError::RowOutOfTable { row, rows: table.rows }),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}

/// Whether the pieces make up the table and none ends within a row.
fn is_table_whole(table: &HostTable<'_>) -> bool {
    let Some(row_bytes) = table.cols.checked_mul(table.dtype.bytes()).filter(|bytes| *bytes > 0)
    else {
        return false;
    };
    let bytes: u64 = table.pieces.iter().map(|piece| piece.len() as u64).sum();
    matches!(table.dtype, HostDType::F32 | HostDType::F16 | HostDType::BF16)
        && table.rows.checked_mul(row_bytes) == Some(bytes)
        && table.pieces.iter().all(|piece| (piece.len() as u64).is_multiple_of(row_bytes))
}

/// Which operand's very place the result may take, by the order in which an op's tensors are visited.
fn in_place_operand(kind: &OpKind<Mat, Mat>) -> Option<usize> {
    match kind {
        OpKind::Add { .. }
        | OpKind::AddWeight { .. }
        | OpKind::Activate { .. }
        | OpKind::Norm { .. }
        | OpKind::GroupNorm { .. } => Some(0),
        OpKind::Linear { residual: Some(_), .. } | OpKind::Conv3x3 { residual: Some(_), .. } => {
            Some(1)
        }
        _ => None,
    }
}

/// Whether two operands can share an element.
///
/// Column ranges of one tensor lie between each other: with the same row length they are apart if their columns
/// are. Other overlaps count as shared.
fn shares_element(one: &Operand, other: &Operand) -> bool {
    if !one.extent.overlaps(&other.extent) {
        return false;
    }
    let row = |operand: &Operand| operand.mat.stride * operand.mat.dtype.bytes();
    let width = |operand: &Operand| operand.mat.cols * operand.mat.dtype.bytes();
    let row_bytes = row(one);
    if row_bytes == 0
        || row_bytes != row(other)
        || !one.mat.step_bytes.is_multiple_of(row_bytes)
        || !other.mat.step_bytes.is_multiple_of(row_bytes)
    {
        return true;
    }
    let start = one.mat.offset % row_bytes;
    // Where the other begins, counted from the first column of this one.
    let distance = (other.mat.offset % row_bytes + row_bytes - start) % row_bytes;
    !(distance >= width(one) && distance + width(other) <= row_bytes)
}
