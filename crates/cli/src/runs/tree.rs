//! `plimsoll runs tree`: where a run came from and what was tried after it.

use std::collections::HashSet;

use plimsoll_record::{Record, RecordError, Store, short_id};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::runs::args::FormatArgs;
use crate::runs::table::{self, Table};
use crate::runs::view::{self, Judged};

/// Deepest tree that is drawn; more trials in a row than anybody makes.
const DEPTH_MAX: usize = 1000;

pub(crate) fn run(
    store: &Store,
    criteria: &plimsoll_record::Criteria,
    format: FormatArgs,
    name: &str,
) -> Result<(), Failure> {
    let asked = store.get(&store.resolve(name)?)?;
    let asked_id = asked.run.run_id.clone();
    let root = ancestors(store, asked)?.pop();
    let header = ["run", "change", "status", "VRAM", "time", "FQO"];
    let mut table = Table::new(view::LEGEND, &header);
    let mut nodes = Vec::new();
    let mut seen = HashSet::new();
    // Depth first without recursion: a store is a file, and a file may say anything.
    let mut open: Vec<(Record, usize)> = root.into_iter().map(|root| (root, 0)).collect();
    while let Some((record, depth)) = open.pop() {
        if !seen.insert(record.run.run_id.clone()) || depth > DEPTH_MAX {
            continue;
        }
        let children = store.children(&record.run.run_id)?;
        open.extend(children.into_iter().rev().map(|child| (child, depth + 1)));
        let judged = Judged::of(store, record, criteria)?;
        let id = &judged.record.run.run_id;
        let mark = if *id == asked_id { " *" } else { "" };
        let branch =
            if depth == 0 { String::new() } else { format!("{}└ ", "  ".repeat(depth - 1)) };
        let changed = match &judged.trial {
            Some(trial) if !trial.differences.is_empty() => {
                let parts: Vec<_> = trial.differences.iter().map(ToString::to_string).collect();
                format!("{}{}", if trial.is_mixed { "MIXED " } else { "" }, parts.join("; "))
            }
            _ => judged.change(),
        };
        let repeats = match judged.repeats {
            0 => String::new(),
            count => format!(" x{}", count + 1),
        };
        table.row([
            format!("{branch}{}{repeats}{mark}", short_id(id)),
            changed,
            judged.record.run.status.map_or(String::new(), |status| status.to_string()),
            view::bytes(judged.record.load.peak_vram),
            view::seconds(judged.record.load.elapsed_seconds),
            view::marks(&judged.gates),
        ]);
        nodes.push(node(&judged, depth));
    }
    table::print(format, &[table], &json!({ "asked": asked_id, "runs": nodes }))
}

fn node(judged: &Judged, depth: usize) -> Value {
    let mut value = judged.json();
    if let Value::Object(map) = &mut value {
        map.insert("depth".to_owned(), json!(depth));
    }
    value
}

/// The run and its ancestors, the run first.
pub(crate) fn ancestors(store: &Store, record: Record) -> Result<Vec<Record>, Failure> {
    let mut seen = HashSet::from([record.run.run_id.clone()]);
    let mut line = vec![record];
    while let Some(parent) = line.last().and_then(|last| last.run.parent_id.clone()) {
        if !seen.insert(parent.clone()) || line.len() > DEPTH_MAX {
            break;
        }
        match store.get(&parent) {
            Ok(record) => line.push(record),
            Err(RecordError::UnknownRun { .. }) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(line)
}
