//! From the practice's fields to a record.

use serde_json::{Map, Value};

use super::check;
use crate::record::{Failure, Finding, Record, Stage};
use crate::units;
use crate::words::{FindingCode, Resource, Status};

/// The practice's field names, in its order: a record has each, be it empty.
pub const NAMES: &[&str] = &[
    "run_id",
    "model_id",
    "model_revision",
    "weight_format",
    "dtype",
    "quantization",
    "runtime",
    "device",
    "offload_mode",
    "offload_api",
    "pipeline_moved_to_cuda",
    "device_map",
    "attached_components",
    "input_size",
    "context_length",
    "width",
    "height",
    "batch_size",
    "steps",
    "peak_vram",
    "peak_ram",
    "elapsed_seconds",
    "status",
    "quality_note",
    "next_trial",
];

/// Fields that a record may have besides: of pictures, of language models, and ours.
const MORE: &[&str] = &[
    "guidance",
    "seed",
    "input_tokens",
    "output_tokens",
    "prompt",
    "reference",
    "empty_cache",
    "calls",
    "error",
];

/// Reads the values of one record and gathers faults.
struct Reader<'a> {
    map: &'a Map<String, Value>,
    faults: Vec<String>,
}

impl Reader<'_> {
    /// A text; lists are joined.
    fn text(&self, name: &str) -> Option<String> {
        words(self.map.get(name)?).filter(|text| !text.is_empty())
    }

    fn parsed<T>(&mut self, name: &str, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        let text = self.text(name).filter(|text| !is_nothing(text))?;
        match parse(&text) {
            Ok(value) => Some(value),
            Err(why) => {
                self.faults.push(format!("{name}: {why}"));
                None
            }
        }
    }

    fn count(&mut self, name: &str) -> Option<u64> {
        self.parsed(name, |text| {
            let count = text.parse::<u64>().ok().filter(|count| *count < 1 << 53);
            count.ok_or_else(|| format!("{text:?} is no count"))
        })
    }

    fn flag(&mut self, name: &str) -> Option<bool> {
        self.parsed(name, |text| match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "1" => Ok(true),
            "false" | "no" | "0" => Ok(false),
            _ => Err(format!("{text:?} is neither true nor false")),
        })
    }

    fn list(&self, name: &str) -> Vec<String> {
        let split = |text: &str| {
            let parts = text.split([';', ',']).map(str::trim);
            parts.filter(|part| !part.is_empty() && !is_nothing(part)).map(str::to_owned).collect()
        };
        match self.map.get(name) {
            Some(Value::Array(items)) => items.iter().filter_map(words).collect(),
            Some(Value::String(text)) => split(text),
            Some(other) => words(other).into_iter().collect(),
            None => Vec::new(),
        }
    }
}

/// What people write for nothing.
fn is_nothing(text: &str) -> bool {
    matches!(text.to_ascii_lowercase().as_str(), "none" | "null" | "n/a" | "na" | "-" | "~")
}

fn words(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.trim().to_owned()),
        Value::Array(items) => {
            let parts: Vec<_> = items.iter().filter_map(words).collect();
            Some(parts.join(", "))
        }
        Value::Object(map) => {
            let part = |(name, value): (&String, &Value)| match words(value) {
                Some(value) => format!("{name}: {value}"),
                None => name.clone(),
            };
            Some(map.iter().map(part).collect::<Vec<_>>().join(", "))
        }
        other => Some(other.to_string()),
    }
}

/// A record from its fields, with findings.
///
/// # Errors
/// Every fault, each with its field.
pub(super) fn record(value: &Value, is_partial: bool) -> Result<Record, Vec<String>> {
    let Value::Object(map) = value else {
        return Err(vec!["is no map of fields".to_owned()]);
    };
    if let Some(own) = map.get("plimsoll_record").filter(|_| map.len() == 1) {
        return own_record(own);
    }
    let mut reader = Reader { map, faults: Vec::new() };
    for name in map.keys() {
        if !NAMES.contains(&name.as_str()) && !MORE.contains(&name.as_str()) {
            let shown: String = name.chars().take(60).collect();
            reader.faults.push(format!("unknown field {shown:?}"));
        }
    }
    // A run's id can be given by us.
    let missing: Vec<&str> = NAMES
        .iter()
        .copied()
        .filter(|name| *name != "run_id" && !map.contains_key(*name))
        .collect();
    if !is_partial {
        reader.faults.extend(missing.iter().map(|name| format!("missing field {name}")));
    }
    for name in ["model_id", "status"] {
        if map.contains_key(name) && reader.text(name).is_none() {
            reader.faults.push(format!("{name} is empty"));
        } else if is_partial && !map.contains_key(name) {
            reader
                .faults
                .push(format!("missing field {name}, without which a record says nothing"));
        }
    }
    let mut record = fill(&mut reader);
    if !reader.faults.is_empty() {
        return Err(reader.faults);
    }
    let found = check(&mut record, &reader.list("calls"));
    record.findings.extend(found);
    if !missing.is_empty() {
        let text = format!("not recorded: {}", missing.join(", "));
        record.findings.push(Finding { code: FindingCode::FieldMissing, text });
    }
    Ok(record)
}

/// A record of this program that could not be put into its store.
fn own_record(value: &Value) -> Result<Record, Vec<String>> {
    let record: Record =
        serde_json::from_value(value.clone()).map_err(|error| vec![error.to_string()])?;
    if record.run.run_id.is_empty() {
        return Err(vec!["run_id is empty".to_owned()]);
    }
    Ok(record)
}

fn fill(reader: &mut Reader<'_>) -> Record {
    let mut record = Record::default();
    record.run.run_id = reader.text("run_id").unwrap_or_default();
    if record.run.run_id.len() > 80 || record.run.run_id.chars().any(char::is_control) {
        reader.faults.push("run_id: expected one line of at most 80 characters".to_owned());
    }
    record.run.next_trial = reader.text("next_trial");
    let conditions = &mut record.conditions;
    conditions.model_id = reader.text("model_id");
    conditions.model_revision = reader.text("model_revision");
    conditions.weight_format = reader.text("weight_format");
    conditions.dtype = reader.text("dtype");
    conditions.quantization = reader.text("quantization");
    conditions.runtime = reader.text("runtime");
    conditions.device = reader.text("device");
    conditions.offload_mode = reader.text("offload_mode");
    conditions.offload_api = reader.text("offload_api");
    conditions.pipeline_moved_to_cuda = reader.flag("pipeline_moved_to_cuda");
    conditions.device_map = reader.text("device_map").filter(|text| !is_nothing(text));
    conditions.attached_components.0 = reader.list("attached_components");
    conditions.input_size = reader.text("input_size");
    conditions.context_length = reader.count("context_length");
    conditions.width = reader.count("width");
    conditions.height = reader.count("height");
    conditions.batch_size = reader.count("batch_size");
    conditions.steps = reader.count("steps");
    let number = |text: &str| {
        let value = text.parse::<f64>().ok().filter(|value| value.is_finite());
        value.ok_or_else(|| format!("{text:?} is no number"))
    };
    conditions.guidance = reader.parsed("guidance", number);
    conditions.seed = reader.text("seed");
    conditions.prompt = reader.text("prompt");
    conditions.reference = reader.text("reference");
    conditions.empty_cache = reader.text("empty_cache").filter(|text| !is_nothing(text));
    record.load.peak_vram = reader.parsed("peak_vram", units::bytes);
    record.load.peak_ram = reader.parsed("peak_ram", units::bytes);
    record.load.elapsed_seconds = reader.parsed("elapsed_seconds", units::seconds);
    record.load.input_tokens = reader.count("input_tokens");
    record.load.output_tokens = reader.count("output_tokens");
    record.quality.quality_note = reader.text("quality_note");
    let is_language = record.load.input_tokens.is_some()
        || record.load.output_tokens.is_some()
        || (record.conditions.width.is_none() && record.conditions.context_length.is_some());
    record.run.kind = if is_language { "llm" } else { "image" }.to_owned();
    let runtime = record.conditions.runtime.clone();
    record.run.recorded_by = runtime.unwrap_or_else(|| "import".to_owned());
    let error = reader.text("error");
    if let Some(text) = reader.text("status") {
        match status(&text, error) {
            Some((status, failure)) => {
                record.run.status = Some(status);
                record.failure = failure;
            }
            None => reader.faults.push(format!(
                "status: {text:?} is unknown, expected done, failed, oom, refused or cancelled"
            )),
        }
    }
    record
}

/// A status in anybody's words, with what it says of the failure.
fn status(text: &str, error: Option<String>) -> Option<(Status, Option<Failure>)> {
    let lower = text.to_ascii_lowercase().replace(['_', '-'], " ");
    let said = error.clone().unwrap_or_default().to_ascii_lowercase();
    let is_memory =
        lower.contains("oom") || lower.contains("out of memory") || said.contains("out of memory");
    let first = lower.split([' ', ':', ',']).next().unwrap_or_default();
    let status = match first {
        "done" | "success" | "succeeded" | "ok" | "completed" | "complete" | "finished" => {
            Status::Done
        }
        "cancelled" | "canceled" | "aborted" | "interrupted" => Status::Cancelled,
        "refused" | "rejected" => Status::Refused,
        "failed" | "failure" | "error" | "crashed" => Status::Failed,
        _ if is_memory => Status::Failed,
        _ => return None,
    };
    if matches!(status, Status::Done | Status::Cancelled) {
        return Some((status, None));
    }
    let is_ram = lower.contains("ram") && !lower.contains("vram");
    let stages = [Stage::Load, Stage::Encode, Stage::Denoise, Stage::Decode];
    let stage = stages.into_iter().find(|stage| lower.contains(stage.word()));
    let failure = Failure {
        kind: if is_memory { "out of memory" } else { "failed" }.to_owned(),
        message: error.unwrap_or_else(|| text.to_owned()),
        resource: match (is_memory, is_ram) {
            (true, true) => Some(Resource::Ram),
            (true, false) => Some(Resource::Vram),
            _ => None,
        },
        stage,
        ..Failure::default()
    };
    Some((status, Some(failure)))
}
