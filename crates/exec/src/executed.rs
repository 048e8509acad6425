//! What was executed in which numbers: read off the ops that a device says it has run.

use plimsoll_device::{Program, Span, SpanKind};
use plimsoll_graph::{DType, Graph, WeightId};

/// Numbers that a component was computed in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executed {
    /// The component.
    pub component: String,
    /// Bytes of the weights that its ops read, by their dtype, most bytes first; each weight once.
    pub weights: Vec<(DType, u64)>,
    /// Dtypes of the values that its ops wrote, most ops first, with the number of ops.
    pub results: Vec<(DType, u64)>,
}

/// The components of a run by the operands that its ops were given, over the ops that the device has run.
///
/// `spans` are those of a run of `program`, which was bound to `graph`. An op without weights counts for the component of
/// the last one that had some: components follow one another within a phase.
pub fn executed(graph: &Graph, program: &Program<'_>, spans: &[Span]) -> Vec<Executed> {
    let mut has_run = vec![false; program.ops.len()];
    for span in spans.iter().filter(|span| span.kind == SpanKind::Op) {
        if let Some(seen) = has_run.get_mut(span.index as usize) {
            *seen = true;
        }
    }
    let mut found: Vec<Executed> = graph
        .components
        .iter()
        .map(|component| Executed {
            component: component.name.clone(),
            weights: Vec::new(),
            results: Vec::new(),
        })
        .collect();
    let mut seen = vec![false; graph.weights.len()];
    let mut current = None;
    for ((op, bound), _) in
        graph.ops.iter().zip(&program.ops).zip(&has_run).filter(|(_, has_run)| **has_run)
    {
        // The same operands in the same order: one names them, the other says what the device was given.
        let mut ids: Vec<WeightId> = Vec::new();
        op.for_each_weight(|id| ids.push(*id));
        let mut at = 0;
        bound.op.for_each_weight(|mat| {
            let Some(id) = ids.get(at) else { return };
            at += 1;
            let component = graph.weight(*id).component.index();
            current = Some(component);
            if !std::mem::replace(&mut seen[id.index()], true) {
                let bytes = mat.rows * mat.cols * mat.dtype.bytes();
                count(&mut found[component].weights, mat.dtype, bytes);
            }
        });
        let Some(component) = current else { continue };
        bound.op.for_each_view(|mat, access| {
            if access.writes {
                count(&mut found[component].results, mat.dtype, 1);
            }
        });
    }
    for one in &mut found {
        one.weights.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        one.results.sort_by_key(|(_, ops)| std::cmp::Reverse(*ops));
    }
    found.retain(|one| !one.weights.is_empty());
    found
}

fn count(counts: &mut Vec<(DType, u64)>, dtype: DType, more: u64) {
    match counts.iter_mut().find(|(known, _)| *known == dtype) {
        Some((_, count)) => *count += more,
        None => counts.push((dtype, more)),
    }
}
