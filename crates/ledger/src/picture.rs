//! Pictures of a plan: the two lanes of a step with the memory of the whole run, and the curve over lines. SVG text.
//!
//! Colours follow the reader's light or dark theme. Nothing is drawn that is not in the plan or the curve.

use std::fmt::Write as _;

use plimsoll_graph::Graph;
use plimsoll_plan::{ALIGNMENT, Bytes, Machine, Plan, Timeline, simulate};

use crate::curve::Curve;

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 980.0;
/// Columns of the memory's drawing.
const COLUMNS: usize = 455;
/// Width of a rectangle, at least, so that it is seen.
const WIDTH_LEAST: f64 = 0.8;
/// Width of a character of a label, on the safe side: what does not fit is not written.
const CHARACTER: f64 = 6.2;

const STYLE: &str = "\
svg{background:#fff;color:#1d2430;font:12px system-ui,sans-serif}\
text{fill:currentColor}.h{font-size:15px;font-weight:600}.s{font-size:10px}\
.copy{fill:#d9822b}.compute{fill:#3f7cc4}.act{fill:#7fb069}.axis{stroke:currentColor;opacity:.35}\
.line{stroke:#c8323c;stroke-dasharray:6 4;stroke-width:1.5}.curve{fill:none;stroke:#3f7cc4;stroke-width:2}\
.floor{stroke:#7fb069;stroke-dasharray:3 3}.in{fill:#fff}\
@media(prefers-color-scheme:dark){svg{background:#14181f;color:#dfe4ec}.in{fill:#fff}}";

/// Writing to a `String` does not fail.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => { let _ = writeln!($out, $($arg)*); };
}

fn begin(height: f64, title: &str) -> String {
    let mut out = String::new();
    put!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">"
    );
    let title = escaped(title);
    put!(out, "<title>{title}</title><style>{STYLE}</style>");
    put!(out, "<text class=\"h\" x=\"{LEFT}\" y=\"24\">{title}</text>");
    out
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn text(out: &mut String, class: &str, x: f64, y: f64, anchor: &str, what: &str) {
    let what = escaped(what);
    put!(
        out,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{what}</text>"
    );
}

fn rule(out: &mut String, class: &str, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2]) {
    put!(
        out,
        "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
    );
}

/// Ticks of an axis of seconds under `y`.
fn seconds_axis(out: &mut String, y: f64, from: f64, to: f64) {
    rule(out, "axis", [LEFT, y], [RIGHT, y]);
    for tick in 0..=5u32 {
        let share = f64::from(tick) / 5.0;
        let x = LEFT + share * (RIGHT - LEFT);
        let at = share * (to - from);
        let digits = if to - from < 1.0 { 3 } else { 1 };
        rule(out, "axis", [x, y], [x, y + 4.0]);
        let anchor = if tick == 5 { "end" } else { "middle" };
        text(out, "s", x, y + 15.0, anchor, &format!("{at:.digits$} s"));
    }
}

/// The two lanes of one steady step, and device memory over the whole run with the line.
#[expect(clippy::cast_precision_loss, reason = "a drawing")]
pub fn timeline_svg(graph: &Graph, plan: &Plan, machine: &dyn Machine, title: &str) -> String {
    let timeline = simulate(graph, plan, machine);
    let mut out = begin(482.0, title);
    lanes(&mut out, graph, plan, &timeline);

    let (top, bottom) = (252.0, 432.0);
    text(&mut out, "h", LEFT, top - 36.0, "start", "device memory over the run");
    let all = timeline.seconds_total.max(f64::MIN_POSITIVE);
    let [weights, activations] = memory(graph, plan, &timeline);
    let most = plan.line_bytes.max(plan.arena_bytes + plan.reserved_bytes) as f64 * 1.06;
    let y = |bytes: u64| bottom - bytes as f64 / most * (bottom - top);
    let column = (RIGHT - LEFT) / COLUMNS as f64;
    for (class, level) in [("act", true), ("copy", false)] {
        let mut path = format!("M{LEFT:.1},{bottom:.1}");
        for (at, (weights, activations)) in weights.iter().zip(&activations).enumerate() {
            let bytes = plan.reserved_bytes + weights + if level { *activations } else { 0 };
            let x = LEFT + at as f64 * column;
            let _ = write!(path, "L{x:.1},{0:.1}L{1:.1},{0:.1}", y(bytes), x + column);
        }
        put!(out, "<path class=\"{class}\" d=\"{path}L{RIGHT:.1},{bottom:.1}Z\"/>");
    }
    let height = bottom - y(plan.reserved_bytes);
    put!(
        out,
        "<rect class=\"compute\" x=\"{LEFT}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\"/>",
        y(plan.reserved_bytes),
        RIGHT - LEFT
    );
    let limit = y(plan.line_bytes);
    rule(&mut out, "line", [LEFT, limit], [RIGHT, limit]);
    let label = Bytes(plan.line_bytes).to_string();
    text(&mut out, "s", LEFT - 6.0, limit + 4.0, "end", &label);
    text(&mut out, "s", LEFT - 6.0, bottom, "end", "0");
    let mut entry = 0usize;
    // Phases too short for their names are named together, a row above.
    let mut short: Option<(f64, String)> = None;
    for (at, phase) in plan.phases.iter().enumerate() {
        let count = (phase.visits_end - phase.visits_start) as usize * phase.repeat as usize;
        let first = timeline.computes.get(entry);
        entry += count;
        let last = entry.checked_sub(1).and_then(|last| timeline.computes.get(last));
        let (Some((start, _)), Some((_, end))) = (first, last) else { continue };
        let [from, to] = [start, end].map(|at| LEFT + at / all * (RIGHT - LEFT));
        rule(&mut out, "axis", [from, top], [from, bottom]);
        if to - from > CHARACTER * phase.name.len() as f64 {
            text(&mut out, "s", from + 3.0, top - 4.0, "start", &phase.name);
        } else if at + 1 == plan.phases.len() {
            text(&mut out, "s", RIGHT, top - 4.0, "end", &phase.name);
        } else if let Some((_, names)) = &mut short {
            *names += ", ";
            *names += &phase.name;
        } else {
            short = Some((from, phase.name.clone()));
        }
    }
    if let Some((from, names)) = short {
        text(&mut out, "s", from, top - 16.0, "start", &names);
    }
    seconds_axis(&mut out, bottom, 0.0, all);
    let mut x = LEFT;
    for (class, name) in [
        ("compute", "context, code, libraries"),
        ("copy", "weights"),
        ("act", "activations, scratch"),
    ] {
        put!(out, "<rect class=\"{class}\" x=\"{x:.1}\" y=\"460\" width=\"10\" height=\"10\"/>");
        text(&mut out, "s", x + 15.0, 469.0, "start", name);
        x += 170.0;
    }
    rule(&mut out, "line", [x, 465.0], [x + 24.0, 465.0]);
    text(&mut out, "s", x + 30.0, 469.0, "start", "line");
    out += "</svg>\n";
    out
}

fn lanes(out: &mut String, graph: &Graph, plan: &Plan, timeline: &Timeline) {
    let ends = &timeline.step_boundaries;
    let step = ends.len().saturating_sub(2).min(2);
    let (Some(from), Some(to)) = (ends.get(step).copied(), ends.get(step + 1).copied()) else {
        return;
    };
    let span = (to - from).max(f64::MIN_POSITIVE);
    let name_of = |load: u32| plan.units[plan.loads[load as usize].unit as usize].name.as_str();
    let block_of = |visit: u32| {
        let op = plan.visits[visit as usize].ops_start;
        let visits = graph.phases.iter().flat_map(|phase| &phase.visits);
        let mut mine = visits.filter(|visit| (visit.ops_start..visit.ops_end).contains(&op));
        mine.next().map_or("", |visit| graph.blocks[visit.block.index()].name.as_str())
    };
    let mut lane = |label: &str, class: &str, y: f64, entries: &[((f64, f64), &str)]| {
        text(out, "s", LEFT - 8.0, y + 24.0, "end", label);
        for ((start, end), name) in entries {
            let (start, end) = (start.max(from), end.min(to));
            if end <= start {
                continue;
            }
            let x = LEFT + (start - from) / span * (RIGHT - LEFT);
            let width = (end - start) / span * (RIGHT - LEFT);
            let name = escaped(name);
            put!(
                out,
                "<rect class=\"{class}\" x=\"{x:.2}\" y=\"{y}\" width=\"{:.2}\" height=\"38\"><title>{name} {:.2} ms</title></rect>",
                (width - 0.4).max(WIDTH_LEAST),
                (end - start) * 1e3
            );
            let short = name.rsplit('/').next().unwrap_or(&name);
            if width > 6.0 + CHARACTER * short.len() as f64 {
                put!(
                    out,
                    "<text class=\"s in\" x=\"{:.1}\" y=\"{}\">{short}</text>",
                    x + 3.0,
                    y + 23.0
                );
            }
        }
    };
    let copies: Vec<_> = timeline
        .copies
        .iter()
        .zip(&plan.copies)
        .map(|(times, copy)| (*times, name_of(copy.load)))
        .filter(|((start, end), _)| *end > from && *start < to)
        .collect();
    let computes: Vec<_> = timeline
        .computes
        .iter()
        .zip(&plan.computes)
        .filter(|((start, end), _)| *end > from && *start < to)
        .map(|(times, entry)| (*times, block_of(entry.visit)))
        .collect();
    lane("copy", "copy", 52.0, &copies);
    lane("compute", "compute", 100.0, &computes);
    text(out, "s", LEFT, 44.0, "start", "one steady step");
    seconds_axis(out, 148.0, from, to);
}

/// Weights spoken for, and live activations with scratch, in each column of the run: the most in it.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a drawing"
)]
fn memory(graph: &Graph, plan: &Plan, timeline: &Timeline) -> [Vec<u64>; 2] {
    let padded = |bytes: u64| bytes.next_multiple_of(ALIGNMENT);
    let all = timeline.seconds_total.max(f64::MIN_POSITIVE);
    let column = |seconds: f64| ((seconds / all * COLUMNS as f64) as usize).min(COLUMNS - 1);
    // A load is held from the begin of its copy to the end of its last reader.
    let mut serving: Vec<Option<usize>> = vec![None; plan.loads.len()];
    let mut last_reader: Vec<f64> = timeline.copies.iter().map(|copy| copy.1).collect();
    let mut arrived = 0;
    for (entry, times) in plan.computes.iter().zip(&timeline.computes) {
        while arrived < entry.needs as usize {
            serving[plan.copies[arrived].load as usize] = Some(arrived);
            arrived += 1;
        }
        for load in &plan.visits[entry.visit as usize].loads {
            if let Some(copy) = serving[*load as usize] {
                last_reader[copy] = times.1;
            }
        }
    }
    // Events in order of time, so that a column has the most that is held at once in it.
    let mut events: Vec<(f64, i64)> = Vec::new();
    for ((copy, (start, _)), end) in plan.copies.iter().zip(&timeline.copies).zip(last_reader) {
        let bytes = padded(plan.loads[copy.load as usize].region.bytes) as i64;
        events.extend([(*start, bytes), (end, -bytes)]);
    }
    events.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut weights = vec![0u64; COLUMNS];
    let (mut held, mut filled) = (0i64, 0usize);
    for (time, change) in events {
        let at = column(time);
        for later in &mut weights[filled..=at] {
            *later = (*later).max(held.max(0) as u64);
        }
        held += change;
        weights[at] = weights[at].max(held.max(0) as u64);
        filled = at;
    }
    let mut live = vec![0u64; graph.ops.len() + 1];
    let mut changes = vec![0i64; graph.ops.len() + 1];
    for (span, region) in graph.lifetimes().into_iter().zip(&plan.tensors) {
        let Some((first, last)) = span else { continue };
        changes[first as usize] += padded(region.bytes) as i64;
        changes[last as usize + 1] -= padded(region.bytes) as i64;
    }
    let mut sum = 0i64;
    for (live, change) in live.iter_mut().zip(changes) {
        sum += change;
        *live = sum.max(0) as u64;
    }
    let mut activations = vec![0u64; COLUMNS];
    for (entry, (start, end)) in plan.computes.iter().zip(&timeline.computes) {
        let visit = &plan.visits[entry.visit as usize];
        let ops = visit.ops_start as usize..visit.ops_end as usize;
        let most = ops.map(|op| live[op] + padded(plan.workspaces[op].bytes)).max().unwrap_or(0);
        for column in &mut activations[column(*start)..=column(*end)] {
            *column = (*column).max(most);
        }
    }
    [weights, activations]
}

/// Seconds of a step over the line; where lines go past the card's memory, that is drawn too.
#[expect(clippy::cast_precision_loss, reason = "a drawing")]
pub fn curve_svg(curve: &Curve, title: &str, card_bytes: u64) -> String {
    let mut out = begin(380.0, title);
    let (top, bottom) = (50.0, 330.0);
    let (Some(first), Some(last)) = (curve.points.first(), curve.points.last()) else {
        out += "</svg>\n";
        return out;
    };
    let most = curve.points.iter().map(|point| point.outcome.seconds_per_step).fold(0.0, f64::max);
    let (low, high) = (0.0, last.line_bytes as f64 * 1.02);
    let x = |bytes: u64| LEFT + (bytes as f64 - low) / (high - low) * (RIGHT - LEFT);
    let y = |seconds: f64| bottom - seconds / (most * 1.08).max(f64::MIN_POSITIVE) * (bottom - top);
    rule(&mut out, "axis", [LEFT, bottom], [RIGHT, bottom]);
    rule(&mut out, "axis", [LEFT, top], [LEFT, bottom]);
    for tick in 0..=4u32 {
        let share = f64::from(tick) / 4.0;
        let seconds = share * most;
        text(&mut out, "s", LEFT - 6.0, y(seconds) + 4.0, "end", &format!("{seconds:.3}"));
        let gib = share * last.line_bytes as f64 / f64::from(1u32 << 30);
        let at = LEFT + share * last.line_bytes as f64 / high * (RIGHT - LEFT);
        text(&mut out, "s", at, bottom + 16.0, "middle", &format!("{gib:.1} GiB"));
    }
    text(&mut out, "s", LEFT, top - 8.0, "start", "seconds a step");
    text(&mut out, "s", RIGHT, bottom + 32.0, "end", "line");
    let floor = last.outcome.compute_seconds_per_step;
    rule(&mut out, "floor", [LEFT, y(floor)], [RIGHT, y(floor)]);
    let label = format!("arithmetic {floor:.3} s");
    text(&mut out, "s", RIGHT, y(floor) + 14.0, "end", &label);
    let path: Vec<String> = curve
        .points
        .iter()
        .map(|point| format!("{:.1},{:.1}", x(point.line_bytes), y(point.outcome.seconds_per_step)))
        .collect();
    put!(out, "<polyline class=\"curve\" points=\"{}\"/>", path.join(" "));
    for point in &curve.points {
        let (x, y) = (x(point.line_bytes), y(point.outcome.seconds_per_step));
        put!(
            out,
            "<circle class=\"compute\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\"><title>{}: {:.3} s, {} binds</title></circle>",
            Bytes(point.line_bytes),
            point.outcome.seconds_per_step,
            point.binds.name()
        );
    }
    if card_bytes < last.line_bytes {
        let at = x(card_bytes);
        rule(&mut out, "line", [at, top], [at, bottom]);
        text(
            &mut out,
            "s",
            at + 6.0,
            bottom - 8.0,
            "start",
            &format!("card {}", Bytes(card_bytes)),
        );
    }
    // Under the axis, where neither the curve nor the line of free streaming runs through it.
    let label = format!("smallest {}", Bytes(first.line_bytes));
    let at = x(first.line_bytes);
    rule(&mut out, "axis", [at, y(first.outcome.seconds_per_step)], [at, bottom + 20.0]);
    text(&mut out, "s", at.max(LEFT + 50.0), bottom + 32.0, "middle", &label);
    if let Some(point) = curve.free_from.and_then(|at| curve.points.get(at)) {
        let at = x(point.line_bytes);
        rule(&mut out, "line", [at, top], [at, bottom]);
        let label = format!("streaming is free from {}", Bytes(point.line_bytes));
        text(&mut out, "s", at + 6.0, top + 12.0, "start", &label);
    }
    out += "</svg>\n";
    out
}
