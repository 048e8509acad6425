//! What every byte of the arena holds and who touched it last.
//!
//! **Hazards.** Within a lane everything is in order, so of each lane only the last read and the last write of
//! a byte matter: who has seen the last has seen all before it. An access conflicts with the other lane's last
//! write, and if it writes with its last read too, unless it has seen their ticket. Commands are issued so that
//! signals precede waits; the earlier issued can therefore not be ordered behind the later.
//!
//! **Contents.** A copy fills its segments and makes the rest of its target worthless. An op first takes its
//! workspace, then reads, then writes. A weight must lie in the segments of one copy and be one of
//! that copy's weights, from its first byte to its last; a tensor must have been written by some op in every byte of its rows. A
//! write to some columns counts for all bytes from its first to its last, so the bytes between its rows are
//! taken as written too early: which columns of which tensor are valid is what `verify` tells apart.

use std::collections::BTreeMap;

use plimsoll_plan::{ALIGNMENT, Region};

use crate::contract::{DeviceError, Program, SpanKind};
use crate::sim::lanes::Ticket;
use crate::sim::operands::{CopyWrites, OpAccesses, Rect};

/// Who touches something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) kind: SpanKind,
    pub(super) index: u32,
    pub(super) step: Option<u32>,
    pub(super) ticket: Ticket,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Nothing,
    /// Between the segments of a copy.
    Padding(u32),
    Copied(u32),
    Written(u32),
    Workspace(u32),
}

/// Bytes up to `end` with one fate.
#[derive(Clone, Copy, Debug)]
struct Cell {
    end: u64,
    content: Content,
    copy_write: Option<Access>,
    op_read: Option<Access>,
    op_write: Option<Access>,
}

/// The arena's shadow.
#[derive(Debug)]
pub(super) struct Shadow {
    /// Cells by their first byte; they cover the arena without gaps.
    cells: BTreeMap<u64, Cell>,
    touched_end: u64,
}

impl Shadow {
    pub(super) fn new(arena_bytes: u64) -> Self {
        let cell = Cell {
            end: arena_bytes,
            content: Content::Nothing,
            copy_write: None,
            op_read: None,
            op_write: None,
        };
        Self { cells: BTreeMap::from([(0, cell)]), touched_end: 0 }
    }

    pub(super) fn high_water_bytes(&self) -> u64 {
        self.touched_end.next_multiple_of(ALIGNMENT)
    }

    /// Makes `at` the border of two cells.
    fn cut(&mut self, at: u64) {
        if let Some((start, cell)) = self.cells.range_mut(..=at).next_back()
            && *start < at
            && at < cell.end
        {
            let behind = *cell;
            cell.end = at;
            self.cells.insert(at, behind);
        }
    }

    /// The cells of a region, cut to it.
    fn cells(&mut self, region: Region) -> impl Iterator<Item = (u64, &mut Cell)> {
        let end = if region.bytes == 0 { region.offset } else { region.end() };
        if region.bytes > 0 {
            self.cut(region.offset);
            self.cut(end);
        }
        self.cells.range_mut(region.offset..end).map(|(start, cell)| (*start, cell))
    }

    /// A copy writes its target.
    pub(super) fn copy(
        &mut self,
        program: &Program<'_>,
        writes: &CopyWrites,
        access: Access,
    ) -> Result<(), DeviceError> {
        for (offset, cell) in self.cells(writes.target) {
            for earlier in [cell.op_read, cell.op_write] {
                ordered(program, earlier, access, offset)?;
            }
            cell.copy_write = Some(access);
            cell.content = Content::Padding(access.index);
        }
        for segment in &writes.segments {
            for (_, cell) in self.cells(*segment) {
                cell.content = Content::Copied(access.index);
            }
            self.touched_end = self.touched_end.max(segment.end());
        }
        Ok(())
    }

    /// An op takes its workspace, reads its operands and writes its results.
    pub(super) fn op(
        &mut self,
        program: &Program<'_>,
        accesses: &OpAccesses,
        copies: &[CopyWrites],
        step: u32,
        access: Access,
    ) -> Result<(), DeviceError> {
        let workspace = Content::Workspace(access.index);
        self.write(program, accesses.workspace, workspace, access)?;
        for rect in &accesses.reads {
            self.read(program, rect, step, access)?;
        }
        for rect in &accesses.weights {
            self.read_weight(program, copies, rect.extent(step), access)?;
        }
        for rect in &accesses.writes {
            self.write(program, rect.extent(step), Content::Written(access.index), access)?;
        }
        Ok(())
    }

    fn write(
        &mut self,
        program: &Program<'_>,
        region: Region,
        content: Content,
        access: Access,
    ) -> Result<(), DeviceError> {
        for (offset, cell) in self.cells(region) {
            ordered(program, cell.copy_write, access, offset)?;
            cell.op_write = Some(access);
            cell.content = content;
        }
        if region.bytes > 0 {
            self.touched_end = self.touched_end.max(region.end());
        }
        Ok(())
    }

    fn read(
        &mut self,
        program: &Program<'_>,
        rect: &Rect,
        step: u32,
        access: Access,
    ) -> Result<(), DeviceError> {
        for (offset, cell) in self.cells(rect.extent(step)) {
            ordered(program, cell.copy_write, access, offset)?;
            cell.op_read = Some(access);
            let is_written = matches!(cell.content, Content::Written(_));
            if !is_written && rect.touches(step, offset, cell.end) {
                return Err(wrong(program, access, offset, cell.content));
            }
        }
        Ok(())
    }

    fn read_weight(
        &mut self,
        program: &Program<'_>,
        copies: &[CopyWrites],
        region: Region,
        access: Access,
    ) -> Result<(), DeviceError> {
        let mut source = None;
        for (offset, cell) in self.cells(region) {
            ordered(program, cell.copy_write, access, offset)?;
            cell.op_read = Some(access);
            match cell.content {
                Content::Copied(copy) if *source.get_or_insert(copy) == copy => {}
                content => return Err(wrong(program, access, offset, content)),
            }
        }
        let Some(copy) = source else { return Ok(()) };
        // A zero-length neighbour may share the offset, so the ends are what is looked for.
        let weights = &copies[copy as usize].weights;
        let is_whole = weights
            .binary_search_by_key(&region.end(), Region::end)
            .is_ok_and(|at| weights[at].offset == region.offset);
        if is_whole {
            Ok(())
        } else {
            Err(wrong(program, access, region.offset, Content::Copied(copy)))
        }
    }
}

/// Whether `later` has seen the other lane's `earlier`.
fn ordered(
    program: &Program<'_>,
    earlier: Option<Access>,
    later: Access,
    offset: u64,
) -> Result<(), DeviceError> {
    match earlier {
        Some(earlier) if earlier.ticket.number > later.ticket.seen => Err(DeviceError::Hazard {
            first: name(program, earlier),
            second: name(program, later),
            offset,
        }),
        _ => Ok(()),
    }
}

fn wrong(program: &Program<'_>, reader: Access, offset: u64, content: Content) -> DeviceError {
    let copy = |index: u32| &program.copies[index as usize].name;
    let op = |index: u32| &program.ops[index as usize].op.name;
    let found = match content {
        Content::Nothing => "nothing that was written".to_owned(),
        Content::Padding(index) => format!("padding of copy {}", copy(index)),
        Content::Copied(index) => format!("weights of copy {} that are not its own", copy(index)),
        Content::Written(index) => format!("a result of op {}", op(index)),
        Content::Workspace(index) => format!("scratch of op {}", op(index)),
    };
    DeviceError::WrongContent { reader: name(program, reader), offset, found }
}

fn name(program: &Program<'_>, access: Access) -> String {
    let index = access.index as usize;
    let (kind, name) = match access.kind {
        SpanKind::Copy => ("copy", &program.copies[index].name),
        SpanKind::Op => ("op", &program.ops[index].op.name),
    };
    match access.step {
        Some(step) => format!("{kind} {name} at step {step}"),
        None => format!("{kind} {name}"),
    }
}
