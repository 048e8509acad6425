//! Doctor's tables and JSON.

use plimsoll_graph::PhaseKind;
use plimsoll_record::units::show_bytes;
use serde_json::{Value, json};

use crate::doctor::checks::{Line, Verdict};
use crate::doctor::evidence::{Evidence, Observed, Place, Scope};
use crate::failure::Failure;
use crate::runs::args::FormatArgs;
use crate::runs::table::{self, Table};

/// What was run.
pub(crate) struct Title {
    pub(crate) model: String,
    pub(crate) device: &'static str,
    pub(crate) machine: String,
    pub(crate) prompt: String,
    pub(crate) size: String,
    pub(crate) line_bytes: u64,
}

/// All that is shown.
pub(crate) struct Shown<'a> {
    pub(crate) about: &'a Title,
    pub(crate) evidence: &'a Evidence,
    pub(crate) lines: &'a [Line],
}

const PHASES: [(PhaseKind, &str); 4] = [
    (PhaseKind::Encode, "encode"),
    (PhaseKind::Hoist, "hoist"),
    (PhaseKind::Denoise, "denoise"),
    (PhaseKind::Decode, "decode"),
];

impl Shown<'_> {
    pub(crate) fn print(&self, is_json: bool, run_ids: &[String]) -> Result<(), Failure> {
        let format = FormatArgs { json: is_json, md: false, csv: false };
        let mut title = Table::default();
        let about = self.about;
        title.row(["model", &about.model]);
        title.row(["on", &format!("{} ({})", about.device, about.machine)]);
        title.row(["run", &format!("{}, {} times", about.size, self.evidence.runs.len())]);
        title.row(["prompt", &about.prompt]);
        title.row(["line", &show_bytes(about.line_bytes)]);
        let mut plans: Vec<&str> =
            self.evidence.runs.iter().map(|run| run.plan_id.as_str()).collect();
        plans.dedup();
        title.row(["plan", &plans.join(", ")]);
        for run_id in run_ids {
            title.row(["record", run_id]);
        }
        let mut verdicts = Table::new("Verdicts", &["", "check", "seen"]);
        for line in self.lines {
            let seen = match (&line.cause, line.seen.is_empty()) {
                (None, _) => line.seen.clone(),
                (Some(cause), true) => format!("not known: {cause}"),
                (Some(cause), false) if line.verdict == Verdict::Unknown => {
                    format!("{}; not known: {cause}", line.seen)
                }
                (Some(cause), false) => format!("{}; likely cause: {cause}", line.seen),
            };
            verdicts.row([line.verdict.word(), line.check.name(), &seen]);
        }
        table::print(format, &[title, self.memory(), verdicts], &self.json(run_ids))
    }

    /// What the meter read, by phase.
    fn memory(&self) -> Table {
        let whose = match (self.evidence.place, self.evidence.scope()) {
            (Place::Sim, _) | (_, None) => return Table::default(),
            (Place::Cpu, _) => "arenas of this process",
            (_, Some(Scope::Process)) => "this process on the card",
            (_, Some(Scope::Device)) => "the whole card",
        };
        let runs = &self.evidence.runs;
        let columns: Vec<String> = (1..=runs.len()).map(|number| format!("run {number}")).collect();
        let mut header = vec![""];
        header.extend(columns.iter().map(String::as_str));
        let mut table = Table::new(format!("VRAM, {whose}"), &header);
        let mut row = |name: &str, cell: &dyn Fn(&Observed) -> String| {
            let cells = std::iter::once(name.to_owned()).chain(runs.iter().map(cell));
            table.row(cells);
        };
        let scope = self.evidence.scope().unwrap_or(Scope::Process);
        let one = |bytes: Option<u64>| bytes.map_or("-".to_owned(), show_bytes);
        row("idle", &|run| one(scope.of(run.idle)));
        for (kind, name) in PHASES {
            row(name, &|run| match range(run, kind, scope) {
                None => "-".to_owned(),
                Some((least, most)) if least == most => show_bytes(most),
                Some((least, most)) => format!("{} to {}", show_bytes(least), show_bytes(most)),
            });
        }
        row("idle again", &|run| one(scope.of(run.idle_again)));
        table
    }

    fn json(&self, run_ids: &[String]) -> Value {
        let scope = match self.evidence.place {
            Place::Sim => None,
            Place::Cpu | Place::Cuda => self.evidence.scope(),
        };
        let read = |run: &Observed| {
            let scope = scope?;
            let phases = PHASES.map(|(kind, name)| {
                let of_phase = run.samples.iter().filter(|sample| sample.phase == kind);
                let range = range(run, kind, scope);
                json!({
                    "phase": name,
                    "least_bytes": range.map(|(least, _)| least),
                    "most_bytes": range.map(|(_, most)| most),
                    "readings": of_phase.count(),
                })
            });
            Some(json!({
                "idle_bytes": scope.of(run.idle),
                "phases": phases,
                "idle_again_bytes": scope.of(run.idle_again),
            }))
        };
        let runs: Vec<Value> = self
            .evidence
            .runs
            .iter()
            .enumerate()
            .map(|(at, run)| {
                json!({
                    "run_id": run_ids.get(at),
                    "plan_id": run.plan_id,
                    "predicted": {
                        "vram_peak_bytes": run.predicted.arena_bytes,
                        "vram_process_bytes": run.predicted.process_bytes,
                        "copied_bytes": run.predicted.copied_bytes,
                        "seconds_per_step": run.predicted.seconds_per_step,
                    },
                    "vram": read(run),
                    "high_water_bytes": run.high_water_bytes,
                    "copied_bytes": run.copied_bytes,
                    "seconds_per_step": run.seconds_per_step,
                    "latents_sha256": run.latents,
                })
            })
            .collect();
        let dtypes = |counts: &[(plimsoll_graph::DType, u64)]| -> Vec<Value> {
            let one = |(dtype, count): &(plimsoll_graph::DType, u64)| json!([dtype.name(), count]);
            counts.iter().map(one).collect()
        };
        let components: Vec<Value> = self
            .evidence
            .components
            .iter()
            .map(|component| {
                json!({
                    "component": component.name,
                    "expected": component.expected.map(plimsoll_graph::DType::name),
                    "weights_bytes": dtypes(&component.weights),
                    "results_ops": dtypes(&component.results),
                })
            })
            .collect();
        let is_failed = self.lines.iter().any(|line| line.verdict == Verdict::Fail);
        let about = self.about;
        json!({
            "verdict": if is_failed { "fail" } else { "pass" },
            "lines": self.lines,
            "model": about.model,
            "device": about.device,
            "machine": about.machine,
            "prompt": about.prompt,
            "vram_line_bytes": about.line_bytes,
            "meter": scope.map(|scope| if scope == Scope::Process { "process" } else { "device" }),
            "components": components,
            "runs": runs,
        })
    }
}

/// Least and greatest reading of a phase.
fn range(run: &Observed, kind: PhaseKind, scope: Scope) -> Option<(u64, u64)> {
    let read = run.samples.iter().filter(|sample| sample.phase == kind);
    let read: Vec<u64> = read.filter_map(|sample| scope.of(sample.vram)).collect();
    Some((*read.iter().min()?, *read.iter().max()?))
}
