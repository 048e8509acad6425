//! A run's spans as a Chrome trace: a row for phases and steps, one for copies, one for ops.
//!
//! Opens in chrome://tracing and in Perfetto; `bench/overlap.py` reads it.

use std::path::Path;

use plimsoll_device::{RunStats, SpanKind};
use plimsoll_graph::{Graph, PhaseKind};
use plimsoll_pipeline::{PipelineError, write_whole};
use plimsoll_plan::Plan;
use serde_json::{Value, json};

use crate::failure::Failure;

/// Rows of the trace, from the top.
const LANES: [&str; 3] = ["phase", "copy", "compute"];

/// Writes what `stats` holds to `path`.
pub(crate) fn write(
    path: &Path,
    graph: &Graph,
    plan: &Plan,
    stats: &RunStats,
) -> Result<(), Failure> {
    let names = LANES.iter().enumerate().flat_map(|(tid, lane)| {
        let name = json!({ "name": lane });
        let order = json!({ "sort_index": tid });
        [("thread_name", name), ("thread_sort_index", order)].map(
            |(what, args)| json!({ "name": what, "ph": "M", "pid": 0, "tid": tid, "args": args }),
        )
    });
    let spans = stats.spans.iter().map(|span| {
        let at = span.index as usize;
        let (lane, name) = match span.kind {
            SpanKind::Copy => (1, plan.units[plan.loads[at].unit as usize].name.as_str()),
            SpanKind::Op => (2, graph.ops[at].name.as_str()),
        };
        event(lane, name, [span.start, span.end], span.step)
    });
    let events: Vec<_> = names.chain(phases(plan, &stats.marks)).chain(spans).collect();
    let text = json!({ "traceEvents": events, "displayTimeUnit": "ms" }).to_string();
    Ok(write_whole(path, text.as_bytes()).map_err(PipelineError::from)?)
}

/// Every phase, and the steps of the loop within theirs.
fn phases(plan: &Plan, marks: &[f64]) -> Vec<Value> {
    let mut found = Vec::new();
    let mut mark = 0;
    for phase in &plan.phases {
        let repeats = phase.repeat as usize;
        let Some(times) = marks.get(mark..=mark + repeats) else { break };
        mark += repeats;
        found.push(event(0, &phase.name, [times[0], times[repeats]], None));
        if phase.kind == PhaseKind::Denoise {
            found.extend(times.windows(2).zip(0..).map(|(pair, step)| {
                event(0, &format!("step {step}"), [pair[0], pair[1]], Some(step))
            }));
        }
    }
    found
}

fn event(lane: usize, name: &str, [start, end]: [f64; 2], step: Option<u32>) -> Value {
    json!({
        "name": name,
        "cat": LANES[lane],
        "ph": "X",
        "ts": start * 1e6,
        "dur": (end - start) * 1e6,
        "pid": 0,
        "tid": lane,
        "args": { "step": step },
    })
}
