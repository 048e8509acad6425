//! Where a run's record goes, and what is done when it cannot go there.
//!
//! - A store that was named (`--records`, `PLIMSOLL_RECORDS`) and does not work, and a default store that is
//!   damaged or newer than this program, refuse the run before it begins: nothing is lost, and a person decides.
//! - A machine that has no place for a default store (no home, read-only) runs all the same and is told so.
//! - A store that fails at the end, such as on a full disk, costs neither picture nor record: the record goes
//!   into a file beside the picture, which `runs import` takes.

use std::path::{Path, PathBuf};

use plimsoll_pipeline::write_whole;
use plimsoll_record::{Finding, Record, RecordError, Store};

use crate::failure::Failure;
use crate::out;
use crate::runs::args::RecordArgs;
use crate::runs::place::Place;

/// Where the record of this run goes.
pub(crate) struct Recorder {
    store: Option<Store>,
    parent: Option<Box<Record>>,
    repeat_of: Option<String>,
}

impl Recorder {
    /// Opens the store and finds the run's parent in it, before anything is computed.
    pub(crate) fn open(args: &RecordArgs) -> Result<Self, Failure> {
        let store = match Place::of(args.records.as_deref()) {
            Place::Off => None,
            Place::Nowhere => {
                out::notice(
                    "this run is not recorded: there is no home folder; name a store with --records",
                );
                None
            }
            Place::Named(path) => Some(Store::open(&path)?),
            Place::Default(path) => match Store::open(&path) {
                Err(error @ RecordError::Storage { .. }) => {
                    out::notice(&format!("this run is not recorded: {error}"));
                    None
                }
                opened => Some(opened?),
            },
        };
        let known = |name: &Option<String>| match (name, &store) {
            (None, _) => Ok(None),
            (Some(name), Some(store)) => Ok(Some(store.resolve(name)?)),
            (Some(_), None) => {
                Err(Failure::Usage("a parent can be named only where runs are recorded".to_owned()))
            }
        };
        let parent_id = known(&args.parent)?;
        let repeat_of = known(&args.repeat_of)?;
        let parent = match (&store, parent_id) {
            (Some(store), Some(id)) => Some(Box::new(store.get(&id)?)),
            _ => None,
        };
        Ok(Self { store, parent, repeat_of })
    }

    /// Whether anything is written.
    pub(crate) fn is_on(&self) -> bool {
        self.store.is_some()
    }

    /// Whether this run only repeats another, so that its picture is there already.
    pub(crate) fn is_repeat(&self) -> bool {
        self.repeat_of.is_some()
    }

    /// Runs that are recorded from now on repeat this one.
    pub(crate) fn repeats(&mut self, run_id: &str) {
        self.repeat_of = Some(run_id.to_owned());
    }

    /// Adds what a check found to a run that was recorded.
    pub(crate) fn find(&mut self, run_id: &str, finding: &Finding) -> Result<(), Failure> {
        match &mut self.store {
            Some(store) => Ok(store.add_finding(run_id, finding)?),
            None => Ok(()),
        }
    }

    /// Writes the record and gives its id; where nothing is recorded, nothing.
    ///
    /// `beside` is where the record goes when the store fails.
    pub(crate) fn write(
        &mut self,
        mut record: Record,
        plan_json: Option<&str>,
        beside: &Path,
    ) -> Result<Option<String>, Failure> {
        let Some(store) = &mut self.store else { return Ok(None) };
        record.run.parent_id = self.parent.as_ref().map(|parent| parent.run.run_id.clone());
        record.run.repeat_of.clone_from(&self.repeat_of);
        match store.insert(&record, plan_json) {
            Ok(()) => Ok(Some(record.run.run_id)),
            Err(error) => {
                let path = save_beside(&record, beside)
                    .map_err(|cause| Failure::RecordLost { error: error.to_string(), cause })?;
                out::notice(&format!(
                    "{error}; the record is in {}, for plimsoll runs import",
                    path.display(),
                ));
                Ok(None)
            }
        }
    }
}

/// Writes the record as a file of its own, whole or not at all.
fn save_beside(record: &Record, beside: &Path) -> Result<PathBuf, String> {
    let mut name = beside.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.record.json", record.run.run_id));
    let path = beside.with_file_name(name);
    let text = serde_json::to_string(&serde_json::json!({ "plimsoll_record": record }))
        .map_err(|error| error.to_string())?;
    write_whole(&path, text.as_bytes())
        .map_err(|error| Failure::Pipeline(error.into()).text())
        .map(|()| path)
}
