//! `plimsoll runs import`: records of other software, taken over whole or not at all.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use plimsoll_record::import::{self, Format};
use plimsoll_record::{RecordError, Store, new_run_id, utc};
use serde_json::json;

use crate::failure::Failure;
use crate::runs::args::FormatArgs;
use crate::runs::table::{self, Table};
use crate::runs::view;

pub(crate) fn run(
    store: &Path,
    format: FormatArgs,
    files: &[PathBuf],
    is_partial: bool,
) -> Result<(), Failure> {
    // A store is made only for what can be taken over.
    let mut read = Vec::new();
    for path in files {
        let name = path.display().to_string();
        let text = view::read(path)?;
        let found = import::read(&name, &text, Format::of_name(&name), is_partial)?;
        read.push((name, found));
    }
    let mut store = Store::open(store)?;
    let mut records = Vec::new();
    for (name, found) in read {
        for mut record in found {
            let now = SystemTime::now();
            if record.run.run_id.is_empty() {
                record.run.run_id = new_run_id(now);
            }
            if record.run.created.is_empty() {
                record.run.created = utc(now);
            }
            let id = &record.run.run_id;
            let in_store = match store.get(id) {
                Ok(_) => true,
                Err(RecordError::UnknownRun { .. }) => false,
                Err(error) => return Err(error.into()),
            };
            let in_files =
                records.iter().any(|earlier: &plimsoll_record::Record| earlier.run.run_id == *id);
            if in_store || in_files {
                let place = if in_store { "in the store" } else { "in the files" };
                let faults = vec![format!("run_id {id:?} is {place} already")];
                return Err(RecordError::Faults { source_name: name.clone(), faults }.into());
            }
            records.push(record);
        }
    }
    let all: Vec<_> = records.iter().map(|record| (record, None)).collect();
    store.insert_all(&all)?;

    let count = records.len();
    let mut table = Table::new(format!("{count} runs imported"), &["run", "status", "finding"]);
    for record in &records {
        let status = record.run.status.map_or("", |status| status.word());
        let mut head = (record.run.run_id.as_str(), status);
        if record.findings.is_empty() {
            table.row([head.0, head.1, "none"]);
        }
        for finding in &record.findings {
            table.row([head.0, head.1, &format!("{}: {}", finding.code, finding.text)]);
            head = ("", "");
        }
    }
    table::print(format, &[table], &json!({ "runs": records }))
}
