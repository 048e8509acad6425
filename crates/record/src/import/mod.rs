//! Records of other software: the practice's fields as YAML, JSON or CSV.
//!
//! A file is anybody's. It is read whole or not at all; every missing, unknown and wrong field is named at
//! once, so that a person mends it in one go. What is there but contradictory (two offload modes, a
//! quantization called a dtype) is taken over as it stands, with a finding that says why and what is right.

mod check;
mod fields;
mod yaml;

use serde_json::{Map, Value};

pub use check::check;
pub use fields::NAMES;

use crate::error::RecordError;
use crate::record::Record;

/// Most bytes of a file: a record is 2 KB, and nobody writes a million by hand.
pub const BYTES_MAX: usize = 64 << 20;

/// Most faults that are named; more is a file of another kind.
const FAULTS_MAX: usize = 40;

/// What a file is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// YAML, or JSON, which is YAML too.
    Yaml,
    /// JSON: one record or a list of them.
    Json,
    /// A header line with the fields' names, then a record a line.
    Csv,
}

impl Format {
    /// By the file's ending; YAML where it has none that is known.
    pub fn of_name(name: &str) -> Self {
        let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending).to_ascii_lowercase();
        match ending.as_str() {
            "json" => Self::Json,
            "csv" => Self::Csv,
            _ => Self::Yaml,
        }
    }
}

/// Records of a file, with what is contradictory in them as findings. `is_partial` takes records that lack
/// fields, and names those in a finding.
///
/// # Errors
/// [`RecordError::Faults`] with every fault, each with the record and field that it is in.
pub fn read(
    source_name: &str,
    text: &str,
    format: Format,
    is_partial: bool,
) -> Result<Vec<Record>, RecordError> {
    let refuse =
        |faults: Vec<String>| RecordError::Faults { source_name: source_name.to_owned(), faults };
    if text.len() > BYTES_MAX {
        return Err(refuse(vec![format!("{} bytes, over the cap of {BYTES_MAX}", text.len())]));
    }
    let documents = documents(text, format).map_err(|fault| refuse(vec![fault]))?;
    if documents.is_empty() {
        return Err(refuse(vec!["holds no record".to_owned()]));
    }
    let mut records = Vec::new();
    let mut faults = Vec::new();
    let is_single = documents.len() == 1;
    for (at, document) in documents.iter().enumerate() {
        let place = if is_single { String::new() } else { format!("record {}: ", at + 1) };
        match fields::record(document, is_partial) {
            Ok(record) => records.push(record),
            Err(found) => faults.extend(found.into_iter().map(|fault| format!("{place}{fault}"))),
        }
    }
    if faults.is_empty() {
        return Ok(records);
    }
    let more = faults.len().saturating_sub(FAULTS_MAX);
    faults.truncate(FAULTS_MAX);
    if more > 0 {
        faults.push(format!("and {more} more"));
    }
    Err(refuse(faults))
}

/// The one document of a file, such as criteria; an empty file is an empty one.
///
/// # Errors
/// In words, with the line where there is one.
pub fn one_document(text: &str) -> Result<Value, String> {
    if text.len() > BYTES_MAX {
        return Err(format!("{} bytes, over the cap of {BYTES_MAX}", text.len()));
    }
    let mut documents = yaml::documents(text)?;
    match documents.len() {
        0 => Ok(Value::Object(Map::new())),
        1 => Ok(match documents.remove(0) {
            Value::Null => Value::Object(Map::new()),
            value => value,
        }),
        count => Err(format!("holds {count} documents, expected one")),
    }
}

fn documents(text: &str, format: Format) -> Result<Vec<Value>, String> {
    let values = match format {
        Format::Csv => return csv_rows(text),
        Format::Yaml => yaml::documents(text)?,
        Format::Json => vec![serde_json::from_str(text).map_err(|error| error.to_string())?],
    };
    // A list of records, and several documents, are the same.
    Ok(values
        .into_iter()
        .flat_map(|value| match value {
            Value::Array(records) => records,
            Value::Null => Vec::new(),
            record => vec![record],
        })
        .collect())
}

fn csv_rows(text: &str) -> Result<Vec<Value>, String> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
    let one_line = |error: csv::Error| error.to_string().replace('\n', " ");
    let header = reader.headers().map_err(one_line)?.clone();
    for (at, name) in header.iter().enumerate() {
        if header.iter().take(at).any(|earlier| earlier == name) {
            return Err(format!("column {name:?} is there twice"));
        }
    }
    let mut rows = Vec::new();
    for row in reader.records() {
        let row = row.map_err(one_line)?;
        let cells = header.iter().zip(row.iter());
        let cell = |text: &str| if text.is_empty() { Value::Null } else { text.into() };
        rows.push(Value::Object(cells.map(|(name, text)| (name.to_owned(), cell(text))).collect()));
    }
    Ok(rows)
}
