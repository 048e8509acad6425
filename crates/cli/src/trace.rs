//! A run's spans as a Chrome trace: one row for copies, one for ops.

use std::path::Path;

use plimsoll_device::{Span, SpanKind};
use plimsoll_graph::Graph;
use plimsoll_plan::Plan;
use serde_json::json;

use crate::failure::Failure;

/// Writes `spans` to `path`.
pub(crate) fn write(
    path: &Path,
    graph: &Graph,
    plan: &Plan,
    spans: &[Span],
) -> Result<(), Failure> {
    let events: Vec<_> = spans
        .iter()
        .map(|span| {
            let at = span.index as usize;
            let (lane, name) = match span.kind {
                SpanKind::Copy => ("copy", plan.units[plan.loads[at].unit as usize].name.clone()),
                SpanKind::Op => ("compute", graph.ops[at].name.clone()),
            };
            json!({
                "name": name,
                "cat": lane,
                "ph": "X",
                "ts": span.start * 1e6,
                "dur": (span.end - span.start) * 1e6,
                "pid": 0,
                "tid": lane,
                "args": { "step": span.step },
            })
        })
        .collect();
    let text = json!({ "traceEvents": events }).to_string();
    // Beside its place and renamed, so that it is whole or absent.
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    let part = path.with_file_name(name);
    let written = std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, path));
    written.map_err(|cause| {
        let _absent = std::fs::remove_file(&part);
        Failure::Write { path: path.display().to_string(), cause }
    })
}
