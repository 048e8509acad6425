//! Contents: every read finds exactly what it should.
//!
//! Walks the whole run once, in the compute lane's order with the loop unrolled. Before a compute the copies
//! that it has waited for are applied. This is one order that the lanes may take; `race` has shown that every
//! other one gives the same. What each byte of the arena holds is known at every moment (`cells`):
//!
//! - a copy gives its load's bytes to that load;
//! - an op first takes its workspace, then reads its tensors and weights, then writes its results;
//! - a tensor read must find bytes of that tensor: a later writer of the same bytes, were it an op, a copy or
//!   a workspace, would have taken them. As each tensor has one place, that is the value which the tensor
//!   last got in the graph's order, so the run computes what the graph says;
//! - a weight read must find bytes that a copy brought to the load which the visit names.
//!
//! **Bands.** A view of some columns touches a part of each row. Rows are tracked by byte, columns by a mask:
//! a tensor's columns are cut where any view of it begins or ends, and a cell of the tensor knows which of
//! these bands are valid in it. A write to some bands takes the cell from any other owner; so a plan that
//! kept something else between the columns of a tensor would be refused, though it could be right. No plan
//! has a reason to.
//!
//! The walk is not cut short by periodicity: fifty steps of FLUX.1 in leaves are thirty thousand visits, a few
//! milliseconds.

use std::ops::Range;

use plimsoll_graph::{Graph, RowSelect, View};
use plimsoll_plan::{Plan, Visit};

use crate::Violation;
use crate::cells::{Cells, Content, Owner};
use crate::lanes::Lanes;
use crate::operands::weight_place;
use crate::order::Loop;

/// Rows and bands of a tensor that an op touches.
#[derive(Debug)]
struct Piece {
    tensor: u32,
    bands: u64,
    /// The rows' bytes at step 0.
    start: u64,
    end: u64,
    /// Bytes to the same rows one step later.
    step_bytes: u64,
    /// The cells at step 0.
    cells: Range<usize>,
}

/// A weight that an op reads.
#[derive(Debug)]
struct Parameter {
    weight: u32,
    load: u32,
    cells: Range<usize>,
}

/// An op in terms of cells.
#[derive(Debug)]
struct Walked {
    workspace: Range<usize>,
    reads: Vec<Piece>,
    parameters: Vec<Parameter>,
    writes: Vec<Piece>,
}

pub(crate) fn check(
    graph: &Graph,
    plan: &Plan,
    lanes: &Lanes,
    step_loop: Option<&Loop>,
) -> Result<(), Violation> {
    let columns = bands(graph)?;
    let mut cells = Cells::new(cuts(graph, plan));
    let ops = compile(graph, plan, &columns, &cells);
    let loads: Vec<Range<usize>> =
        plan.loads.iter().map(|load| cells.range(load.region.offset, load.region.end())).collect();
    let mut uses = Uses::new(plan);
    let mut applied = 0;
    for (position, entry) in plan.computes.iter().enumerate() {
        while applied < lanes.needs[position] as usize {
            let load = plan.copies[applied].load;
            cells.take(loads[load as usize].clone(), Owner::Load(load));
            uses.arrived(load, applied);
            applied += 1;
        }
        let step = step_loop.and_then(|step_loop| step_loop.step_of(position, entry.step));
        let visit = &plan.visits[entry.visit as usize];
        for load in &visit.loads {
            uses.used(plan, *load, step)?;
        }
        for op in visit.ops_start..visit.ops_end {
            carry_out(graph, plan, &mut cells, op, &ops[op as usize], entry.step)?;
        }
    }
    uses.finish(plan)
}

fn carry_out(
    graph: &Graph,
    plan: &Plan,
    cells: &mut Cells,
    op: u32,
    walked: &Walked,
    step: u32,
) -> Result<(), Violation> {
    cells.take(walked.workspace.clone(), Owner::Workspace(op));
    let name = || graph.ops[op as usize].name.clone();
    for piece in &walked.reads {
        let range = piece.at(cells, step);
        if let Some((offset, found)) =
            cells.mismatch(range, Owner::Tensor(piece.tensor), piece.bands)
        {
            return Err(Violation::TensorContent {
                op: name(),
                step,
                tensor: graph.tensors[piece.tensor as usize].name.clone(),
                offset,
                found: describe(graph, plan, found),
            });
        }
    }
    for parameter in &walked.parameters {
        let range = parameter.cells.clone();
        if let Some((offset, found)) = cells.mismatch(range, Owner::Load(parameter.load), 0) {
            return Err(Violation::WeightContent {
                op: name(),
                step,
                weight: graph.weights[parameter.weight as usize].name.clone(),
                offset,
                found: describe(graph, plan, found),
            });
        }
    }
    for piece in &walked.writes {
        cells.write(piece.at(cells, step), Owner::Tensor(piece.tensor), piece.bands);
    }
    Ok(())
}

impl Piece {
    fn at(&self, cells: &Cells, step: u32) -> Range<usize> {
        if self.step_bytes == 0 || step == 0 {
            return self.cells.clone();
        }
        let moved = u64::from(step) * self.step_bytes;
        cells.range(self.start + moved, self.end + moved)
    }
}

fn describe(graph: &Graph, plan: &Plan, found: Content) -> String {
    match found.owner {
        Owner::Nothing => "nothing that was written".to_owned(),
        Owner::Workspace(op) => format!("scratch of op {}", graph.ops[op as usize].name),
        Owner::Tensor(tensor) => {
            format!("columns {:#b} of tensor {}", found.bands, graph.tensors[tensor as usize].name)
        }
        Owner::Load(load) => {
            let unit = plan.loads[load as usize].unit;
            format!("load {load} of unit {}", plan.units[unit as usize].name)
        }
    }
}

/// For each tensor the columns at which a view begins or ends, ascending.
fn bands(graph: &Graph) -> Result<Vec<Vec<u64>>, Violation> {
    let mut columns: Vec<Vec<u64>> = vec![Vec::new(); graph.tensors.len()];
    for op in &graph.ops {
        op.for_each_view(|view, _| {
            columns[view.tensor.index()].extend([view.col, view.col + view.cols]);
        });
    }
    for (tensor, columns) in graph.tensors.iter().zip(&mut columns) {
        columns.sort_unstable();
        columns.dedup();
        let bands = columns.len().saturating_sub(1);
        let most = u64::BITS as usize;
        if bands > most {
            return Err(Violation::Bands { tensor: tensor.name.clone(), bands, most });
        }
    }
    Ok(columns)
}

/// Bytes of the rows of a view at step 0, and from one step to the next.
fn rows(graph: &Graph, plan: &Plan, view: &View) -> (u64, u64, u64) {
    let tensor = graph.tensor(view.tensor);
    let pitch = tensor.cols * tensor.dtype.bytes();
    let (row, step_bytes) = match view.row {
        RowSelect::At(row) => (row, 0),
        RowSelect::Step => (0, pitch),
    };
    let start = plan.tensors[view.tensor.index()].offset + row * pitch;
    (start, start + view.rows * pitch, step_bytes)
}

/// Every offset at which something that is ever touched begins or ends.
fn cuts(graph: &Graph, plan: &Plan) -> Vec<u64> {
    let mut cuts = Vec::new();
    let mut is_table = vec![false; graph.tensors.len()];
    for op in &graph.ops {
        op.for_each_view(|view, _| {
            let (start, end, step_bytes) = rows(graph, plan, view);
            cuts.extend([start, end]);
            let is_known = std::mem::replace(&mut is_table[view.tensor.index()], step_bytes > 0);
            if step_bytes > 0 && !is_known {
                cuts.extend((2..=u64::from(graph.steps)).map(|step| start + step * step_bytes));
            }
        });
    }
    cuts.extend(plan.workspaces.iter().flat_map(|region| [region.offset, region.end()]));
    for load in &plan.loads {
        cuts.extend([load.region.offset, load.region.end()]);
        for entry in &plan.units[load.unit as usize].weights {
            let start = load.region.offset + entry.offset;
            cuts.extend([start, start + graph.weight(entry.weight).bytes()]);
        }
    }
    cuts
}

fn compile(graph: &Graph, plan: &Plan, columns: &[Vec<u64>], cells: &Cells) -> Vec<Walked> {
    let piece = |view: &View| {
        let columns = &columns[view.tensor.index()];
        let band = |column: u64| columns.partition_point(|cut| *cut < column);
        let below = |band: usize| if band >= 64 { u64::MAX } else { (1 << band) - 1 };
        let (start, end, step_bytes) = rows(graph, plan, view);
        Piece {
            tensor: view.tensor.0,
            bands: below(band(view.col + view.cols)) & !below(band(view.col)),
            start,
            end,
            step_bytes,
            cells: cells.range(start, end),
        }
    };
    let mut ops = Vec::with_capacity(graph.ops.len());
    for visit in &plan.visits {
        for index in visit.ops_start as usize..visit.ops_end as usize {
            let op = &graph.ops[index];
            let workspace = plan.workspaces[index];
            let mut walked = Walked {
                workspace: cells.range(workspace.offset, workspace.end()),
                reads: Vec::new(),
                parameters: Vec::new(),
                writes: Vec::new(),
            };
            op.for_each_view(|view, access| {
                if access.reads {
                    walked.reads.push(piece(view));
                }
                if access.writes {
                    walked.writes.push(piece(view));
                }
            });
            op.for_each_weight(|id| {
                let place = weight_place(graph, plan, visit, *id);
                walked.parameters.push(Parameter {
                    weight: id.0,
                    load: home(plan, visit, *id),
                    cells: cells.range(place.offset, place.end()),
                });
            });
            ops.push(walked);
        }
    }
    ops
}

/// The load of a visit that holds a weight; `order` has found exactly one.
fn home(plan: &Plan, visit: &Visit, id: plimsoll_graph::WeightId) -> u32 {
    let holds = |load: &&u32| {
        let unit = plan.loads[**load as usize].unit as usize;
        plan.units[unit].weights.iter().any(|entry| entry.weight == id)
    };
    visit.loads.iter().find(holds).copied().unwrap_or(u32::MAX)
}

/// Which copy lies in each load and whether it was used: no copy is for nothing, and each is accounted to the
/// step that first uses it.
struct Uses {
    /// The copy in each load, by load.
    present: Vec<Option<usize>>,
    is_used: Vec<bool>,
}

impl Uses {
    fn new(plan: &Plan) -> Self {
        Self { present: vec![None; plan.loads.len()], is_used: vec![false; plan.copies.len()] }
    }

    fn arrived(&mut self, load: u32, copy: usize) {
        self.present[load as usize] = Some(copy);
    }

    fn used(&mut self, plan: &Plan, load: u32, step: Option<u32>) -> Result<(), Violation> {
        let Some(copy) = self.present[load as usize] else { return Ok(()) };
        if std::mem::replace(&mut self.is_used[copy], true) || plan.copies[copy].step == step {
            return Ok(());
        }
        let (unit, found) = (crate::unit_name(plan, copy), plan.copies[copy].step);
        Err(Violation::CopyStep { copy, unit, found, expected: step })
    }

    fn finish(&self, plan: &Plan) -> Result<(), Violation> {
        match self.is_used.iter().position(|is_used| !is_used) {
            Some(copy) => Err(Violation::CopyUnused { copy, unit: crate::unit_name(plan, copy) }),
            None => Ok(()),
        }
    }
}
