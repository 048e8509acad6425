//! What the reading verbs share: the store, the criteria, a run with its gates, and how values are written.

use std::path::{Path, PathBuf};

use plimsoll_record::gates::{Gates, Judgement, judge};
use plimsoll_record::units::{show_bytes, show_seconds};
use plimsoll_record::{Criteria, Record, RecordError, Store, TrialOf, short_id, trial_of};
use plimsoll_weights::read_regular;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::runs::args::RunsArgs;
use crate::runs::place::Place;

/// Names of the project's criteria, in a project's folder.
const CRITERIA: &str = "plimsoll-criteria.yaml";

/// Where the store is.
pub(crate) fn store_path(args: &RunsArgs) -> Result<PathBuf, Failure> {
    match Place::of(args.records.as_deref()) {
        Place::Named(path) | Place::Default(path) => Ok(path),
        Place::Off => {
            Err(Failure::Usage("records are switched off: name a store with --records".to_owned()))
        }
        Place::Nowhere => {
            Err(Failure::Usage("there is no home folder: name a store with --records".to_owned()))
        }
    }
}

/// The store, to read.
pub(crate) fn store(args: &RunsArgs) -> Result<Store, Failure> {
    Ok(Store::open_to_read(&store_path(args)?)?)
}

/// The store, to change what is in it.
pub(crate) fn store_to_change(args: &RunsArgs) -> Result<Store, Failure> {
    let path = store_path(args)?;
    if !path.exists() {
        return Err(RecordError::Absent { path }.into());
    }
    Ok(Store::open(&path)?)
}

/// The criteria in force: those named, else the nearest from here upwards, else none.
pub(crate) fn criteria(named: Option<&Path>) -> Result<Criteria, Failure> {
    let path = match named {
        Some(path) => path.to_owned(),
        None => {
            let here = std::env::current_dir().unwrap_or_default();
            let found =
                here.ancestors().map(|folder| folder.join(CRITERIA)).find(|path| path.is_file());
            match found {
                Some(path) => path,
                None => return Ok(Criteria::default()),
            }
        }
    };
    let text = read(&path)?;
    let mut criteria = Criteria::parse(&path.display().to_string(), &text)?;
    criteria.name.get_or_insert_with(|| path.display().to_string());
    Ok(criteria)
}

/// A text file of a sensible size.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    let failure = |cause| Failure::Read { path: path.display().to_string(), cause };
    let bytes = read_regular(path, plimsoll_record::import::BYTES_MAX as u64).map_err(failure)?;
    String::from_utf8(bytes).map_err(|error| failure(std::io::Error::other(error)))
}

/// A run with all that is judged of it.
pub(crate) struct Judged {
    pub(crate) record: Record,
    pub(crate) gates: Gates,
    pub(crate) trial: Option<TrialOf>,
    pub(crate) repeats: usize,
}

impl Judged {
    pub(crate) fn of(store: &Store, record: Record, criteria: &Criteria) -> Result<Self, Failure> {
        let repeats = store.repeats(&record.run.run_id)?;
        let gates = judge(&record, &repeats, criteria);
        let trial = match &record.run.parent_id {
            None => None,
            // A parent that is not here: an import without it.
            Some(parent) => match store.get(parent) {
                Ok(parent) => Some(trial_of(&parent, &record)),
                Err(RecordError::UnknownRun { .. }) => None,
                Err(error) => return Err(error.into()),
            },
        };
        Ok(Self { record, gates, trial, repeats: repeats.len() })
    }

    /// By any name of the run.
    pub(crate) fn named(store: &Store, name: &str, criteria: &Criteria) -> Result<Self, Failure> {
        let record = store.get(&store.resolve(name)?)?;
        Self::of(store, record, criteria)
    }

    pub(crate) fn json(&self) -> Value {
        let mut value = json!(self.record);
        if let Value::Object(map) = &mut value {
            map.insert("gates".to_owned(), json!(self.gates));
            map.insert("trial".to_owned(), json!(self.trial));
            map.insert("repeats".to_owned(), json!(self.repeats));
        }
        value
    }

    /// What it changed of its parent, in few words.
    pub(crate) fn change(&self) -> String {
        if let Some(of) = &self.record.run.repeat_of {
            return format!("repeats {}", short_id(of));
        }
        match &self.trial {
            None => String::new(),
            Some(trial) if trial.differences.is_empty() => "no change".to_owned(),
            Some(trial) => {
                let axes: Vec<_> = trial.differences.iter().map(|one| one.axis.word()).collect();
                let mixed = if trial.is_mixed { "MIXED " } else { "" };
                format!("{mixed}{}", axes.join(", "))
            }
        }
    }
}

/// The three gates as one mark each: feasibility, quality, operation.
pub(crate) fn marks(gates: &Gates) -> String {
    let mark = |judgement| match judgement {
        Judgement::Pass => "+",
        Judgement::Fail => "-",
        Judgement::Open => ".",
    };
    [&gates.feasibility, &gates.quality, &gates.operation]
        .map(|gate| mark(gate.judgement))
        .join(" ")
}

/// What the marks mean.
pub(crate) const LEGEND: &str =
    "FQO: feasibility, quality, operation; + pass, - fail, . not judged";

pub(crate) fn bytes(value: Option<u64>) -> String {
    value.map_or(String::new(), show_bytes)
}

pub(crate) fn seconds(value: Option<f64>) -> String {
    value.map_or(String::new(), show_seconds)
}

pub(crate) fn text(value: Option<&String>) -> String {
    value.cloned().unwrap_or_default()
}

/// A picture's size, or a text's, in few letters.
pub(crate) fn size(record: &Record) -> String {
    let conditions = &record.conditions;
    match (conditions.width, conditions.height) {
        (Some(width), Some(height)) => match conditions.batch_size {
            Some(batch) if batch > 1 => format!("{width}x{height}x{batch}"),
            _ => format!("{width}x{height}"),
        },
        _ => match (&conditions.input_size, conditions.context_length) {
            (Some(size), _) => size.clone(),
            (None, Some(tokens)) => format!("{tokens} tok"),
            (None, None) => String::new(),
        },
    }
}
