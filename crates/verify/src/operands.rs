//! Within one op: what it writes is apart from what else it touches, unless its kind allows the sharing.
//!
//! An op may use its operands in any order and its workspace all the time, so two of them may share bytes
//! only if neither is written. The one exception is an op whose text says that its result may go to the very
//! place of one operand (`OpKind`): then first byte, row pitch and element width must be the same.
//!
//! Places and views do not change with the step, so each op is looked at once; a row of the current step
//! counts as any row of its table.

use plimsoll_graph::{Access, Graph, Op, OpKind, RowSelect, View};
use plimsoll_plan::{Plan, Region, Visit};

use crate::Violation;

pub(crate) fn check(graph: &Graph, plan: &Plan) -> Result<(), Violation> {
    let mut views: Vec<(View, Access)> = Vec::new();
    for visit in &plan.visits {
        for index in visit.ops_start as usize..visit.ops_end as usize {
            views.clear();
            graph.ops[index].for_each_view(|view, access| views.push((*view, access)));
            views_apart(graph, plan, &graph.ops[index], &views)?;
            others_apart(graph, plan, visit, index, &views)?;
        }
    }
    Ok(())
}

/// Which operand, in the order of `OpKind::map`, may lie where the result goes (the last operand).
fn may_hold_result(kind: &OpKind) -> Option<usize> {
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

fn views_apart(
    graph: &Graph,
    plan: &Plan,
    op: &Op,
    views: &[(View, Access)],
) -> Result<(), Violation> {
    for (second, (b, b_access)) in views.iter().enumerate() {
        for (first, (a, a_access)) in views[..second].iter().enumerate() {
            if !(a_access.writes || b_access.writes) || !meet(graph, plan, a, b) {
                continue;
            }
            let is_result = second + 1 == views.len() && may_hold_result(&op.kind) == Some(first);
            if is_result && same_place(graph, plan, a, b) {
                continue;
            }
            let offset = extent(graph, plan, a).offset.max(extent(graph, plan, b).offset);
            return Err(overlap(op, tensor_name(graph, a), tensor_name(graph, b), offset));
        }
    }
    Ok(())
}

/// The workspace is apart from every operand, and the weights from what is written.
fn others_apart(
    graph: &Graph,
    plan: &Plan,
    visit: &Visit,
    index: usize,
    views: &[(View, Access)],
) -> Result<(), Violation> {
    let op = &graph.ops[index];
    let workspace = plan.workspaces[index];
    for (view, _) in views {
        let place = extent(graph, plan, view);
        if place.overlaps(&workspace) {
            let offset = place.offset.max(workspace.offset);
            return Err(overlap(op, tensor_name(graph, view), "its workspace".to_owned(), offset));
        }
    }
    let mut problem = None;
    op.for_each_weight(|id| {
        let place = weight_place(graph, plan, visit, *id);
        let name = || format!("weight {}", graph.weight(*id).name);
        let mut apart = |other: Region, other_name: &dyn Fn() -> String| {
            if problem.is_none() && place.overlaps(&other) {
                let offset = place.offset.max(other.offset);
                problem = Some(overlap(op, name(), other_name(), offset));
            }
        };
        apart(workspace, &|| "its workspace".to_owned());
        for (view, _) in views.iter().filter(|(_, access)| access.writes) {
            apart(extent(graph, plan, view), &|| tensor_name(graph, view));
        }
    });
    problem.map_or(Ok(()), Err)
}

fn overlap(op: &Op, first: String, second: String, offset: u64) -> Violation {
    Violation::OperandOverlap { op: op.name.clone(), first, second, offset }
}

fn tensor_name(graph: &Graph, view: &View) -> String {
    format!("tensor {}", graph.tensor(view.tensor).name)
}

/// Where a weight lies while a visit runs; `order` has found it in exactly one of the loads.
pub(crate) fn weight_place(
    graph: &Graph,
    plan: &Plan,
    visit: &Visit,
    id: plimsoll_graph::WeightId,
) -> Region {
    let bytes = graph.weight(id).bytes();
    for load in &visit.loads {
        let load = &plan.loads[*load as usize];
        let unit = &plan.units[load.unit as usize];
        if let Some(entry) = unit.weights.iter().find(|entry| entry.weight == id) {
            return Region { offset: load.region.offset + entry.offset, bytes };
        }
    }
    Region::default()
}

/// Arena bytes of a view from its first to its last element; of any step.
fn extent(graph: &Graph, plan: &Plan, view: &View) -> Region {
    let (start, end) = graph.view_extent(view);
    Region { offset: plan.tensors[view.tensor.index()].offset + start, bytes: end - start }
}

/// Whether two views share a byte: as rectangles of the same tensor, as ranges of different ones.
fn meet(graph: &Graph, plan: &Plan, a: &View, b: &View) -> bool {
    if a.tensor != b.tensor {
        return extent(graph, plan, a).overlaps(&extent(graph, plan, b));
    }
    let rows_meet = match (a.row, b.row) {
        (RowSelect::At(a_row), RowSelect::At(b_row)) => {
            a_row < b_row + b.rows && b_row < a_row + a.rows
        }
        _ => true,
    };
    rows_meet && a.col < b.col + b.cols && b.col < a.col + a.cols
}

/// Whether element `[i, j]` of one view is element `[i, j]` of the other, for every `i` and `j`.
fn same_place(graph: &Graph, plan: &Plan, a: &View, b: &View) -> bool {
    if a.tensor == b.tensor {
        return a == b;
    }
    let (a_tensor, b_tensor) = (graph.tensor(a.tensor), graph.tensor(b.tensor));
    let is_fixed = a.row != RowSelect::Step && b.row != RowSelect::Step;
    is_fixed
        && (a.rows, a.cols) == (b.rows, b.cols)
        && a_tensor.dtype.bytes() == b_tensor.dtype.bytes()
        && (a_tensor.cols == b_tensor.cols || a.rows == 1)
        && extent(graph, plan, a) == extent(graph, plan, b)
}
