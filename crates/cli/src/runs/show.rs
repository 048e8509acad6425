//! `plimsoll runs show`: all that is known of a run, conditions, load and quality apart.

use plimsoll_record::gates::{Gate, Gates};
use plimsoll_record::{Record, Store, axes};

use crate::failure::Failure;
use crate::out;
use crate::runs::args::FormatArgs;
use crate::runs::command;
use crate::runs::table::{self, Table};
use crate::runs::view::{self, Judged};

pub(crate) fn run(
    store: &Store,
    criteria: &plimsoll_record::Criteria,
    format: FormatArgs,
    name: &str,
    plan: bool,
) -> Result<(), Failure> {
    let judged = Judged::named(store, name, criteria)?;
    if plan {
        let id = judged.record.load.plan_id.as_deref();
        let json = id.map(|id| store.plan_json(id)).transpose()?.flatten();
        let none = || Failure::Usage(format!("run {name} carried out no plan"));
        return out::result(&json.ok_or_else(none)?);
    }
    let record = &judged.record;
    let tables = [
        head(&judged),
        conditions(record),
        load(record),
        quality(record),
        gates(&judged.gates),
        failure(record),
        findings(record),
    ];
    table::print(format, &tables, &judged.json())
}

fn head(judged: &Judged) -> Table {
    let run = &judged.record.run;
    let mut table = Table::default();
    let status = run.status.map_or("not recorded", |status| status.word());
    table.row(["run", &run.run_id]);
    table.row(["created", &format!("{} UTC, by {}", run.created, run.recorded_by)]);
    table.row(["status", status]);
    if let Some(trial) = &judged.trial {
        let differences: Vec<_> = trial.differences.iter().map(ToString::to_string).collect();
        let mixed = if trial.is_mixed { "MIXED, more than one axis: " } else { "" };
        let changed =
            if differences.is_empty() { "nothing".to_owned() } else { differences.join("; ") };
        table.row(["trial of", &trial.parent_id]);
        table.row(["changed", &format!("{mixed}{changed}")]);
    } else if let Some(parent) = &run.parent_id {
        table.row(["trial of", parent]);
    }
    if let Some(of) = &run.repeat_of {
        table.row(["repeats", of]);
    }
    if judged.repeats > 0 {
        table.row(["repeated", &format!("{} times", judged.repeats)]);
    }
    if let Some(next) = &run.next_trial {
        table.row(["next_trial", next]);
    }
    table
}

fn conditions(record: &Record) -> Table {
    let mut table = Table::new("Execution conditions", &[]);
    for (_, field, value) in axes::values(&record.conditions) {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            table.row([field, &value]);
        }
    }
    for (name, version) in &record.conditions.versions.0 {
        table.row([format!("version of {name}"), version.clone()]);
    }
    if !record.conditions.command.0.is_empty() {
        table.row(["command", &command::typed(&record.conditions.command.0)]);
    }
    table
}

/// How far a measurement is from what was predicted.
fn off(predicted: Option<f64>, measured: Option<f64>) -> String {
    match predicted.zip(measured) {
        Some((predicted, measured)) if predicted > 0.0 => {
            format!("{:+.1} %", (measured / predicted - 1.0) * 100.0)
        }
        _ => String::new(),
    }
}

/// Names, predictions and measurements of a load.
pub(crate) fn loads(record: &Record) -> Vec<[String; 4]> {
    let load = &record.load;
    let mut rows = Vec::new();
    let mut row = |name: &str, predicted: String, measured: String, off: String| {
        if !(predicted.is_empty() && measured.is_empty()) {
            rows.push([name.to_owned(), predicted, measured, off]);
        }
    };
    #[expect(clippy::cast_precision_loss, reason = "for a percentage")]
    let wide = |value: Option<u64>| value.map(|value| value as f64);
    let mut sizes = |name: &str, predicted: Option<u64>, measured: Option<u64>| {
        let off = off(wide(predicted), wide(measured));
        row(name, view::bytes(predicted), view::bytes(measured), off);
    };
    sizes("peak_vram", load.predicted_peak_vram, load.peak_vram);
    sizes("peak_ram", None, load.peak_ram);
    sizes("copied", load.predicted_copied_bytes, load.copied_bytes);
    sizes("files", None, load.disk_bytes);
    let mut times = |name: &str, predicted: Option<f64>, measured: Option<f64>| {
        row(name, view::seconds(predicted), view::seconds(measured), off(predicted, measured));
    };
    times("step", load.predicted_seconds_per_step, load.seconds_per_step);
    times("run", load.predicted_seconds, load.run_seconds);
    times("elapsed_seconds", None, load.elapsed_seconds);
    for stage in &load.stages.0 {
        times(&stage.name, None, Some(stage.seconds));
    }
    let counts = [("input_tokens", load.input_tokens), ("output_tokens", load.output_tokens)];
    for (name, count) in counts {
        row(name, String::new(), count.map_or(String::new(), |n| n.to_string()), String::new());
    }
    rows
}

fn load(record: &Record) -> Table {
    let mut table = Table::new("Execution load", &["", "predicted", "measured", "off by"]);
    table.rows = loads(record).into_iter().map(Vec::from).collect();
    if let Some(plan) = &record.load.plan_id {
        table.row(["plan_id", plan]);
    }
    table
}

fn quality(record: &Record) -> Table {
    let quality = &record.quality;
    let mut table = Table::new("Quality", &[]);
    if let Some(note) = &quality.quality_note {
        table.row(["quality_note", note]);
    }
    for (name, values) in [
        ("picture", &quality.pictures),
        ("picture sha256", &quality.picture_sha256),
        ("latent sha256", &quality.latent_sha256),
    ] {
        for value in &values.0 {
            table.row([name, value]);
        }
    }
    for measured in &record.comparisons {
        let psnr = measured.psnr_db.map_or("equal".to_owned(), |psnr| format!("{psnr:.2} dB"));
        let text = format!("PSNR {psnr}, SSIM {:.4}", measured.ssim);
        table.row([format!("against {}", measured.reference_id), text]);
    }
    for verdict in &record.verdicts {
        let word = if verdict.is_pass { "pass" } else { "fail" };
        let mut text = format!("{word} ({} UTC)", verdict.created);
        for (check, is_pass) in &verdict.checks.0 {
            text += &format!(", {check} {}", if *is_pass { "pass" } else { "fail" });
        }
        if let Some(note) = &verdict.note {
            text += &format!(": {note}");
        }
        table.row(["verdict".to_owned(), text]);
    }
    table
}

/// Gates with their reasons, a row a reason.
pub(crate) fn gates(gates: &Gates) -> Table {
    let mut table = Table::new("Gates", &["gate", "says", "because"]);
    let mut add = |name: &str, gate: &Gate| {
        let mut cells = (name, gate.judgement.word());
        for reason in &gate.reasons {
            table.row([cells.0, cells.1, reason]);
            cells = ("", "");
        }
    };
    add("feasibility", &gates.feasibility);
    add("quality", &gates.quality);
    add("operation", &gates.operation);
    table
}

fn failure(record: &Record) -> Table {
    let mut table = Table::new("Failure", &[]);
    let Some(failure) = &record.failure else { return table };
    table.row(["kind", &failure.kind]);
    table.row(["message", &failure.message]);
    if let Some(resource) = failure.resource {
        table.row(["resource", resource.word()]);
    }
    if let Some(stage) = failure.stage {
        table.row(["stage", stage.word()]);
    }
    for (name, value) in [
        ("needed", failure.needed_bytes),
        ("available", failure.available_bytes),
        ("smallest line", failure.smallest_bytes),
        ("activations", failure.activation_bytes),
    ] {
        if let Some(value) = value {
            table.row([name.to_owned(), format!("{value} bytes ({})", view::bytes(Some(value)))]);
        }
    }
    table
}

fn findings(record: &Record) -> Table {
    let mut table = Table::new("Findings", &["finding", "what, why, and what is right"]);
    for finding in &record.findings {
        table.row([finding.code.word(), &finding.text]);
    }
    table
}
