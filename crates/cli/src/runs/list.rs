//! `plimsoll runs list`: the newest runs.

use plimsoll_record::{Filter, Store, short_id};
use serde_json::json;

use crate::failure::Failure;
use crate::runs::args::{FormatArgs, StatusArg};
use crate::runs::table::{self, Table};
use crate::runs::view::{self, Judged};

pub(crate) fn run(
    store: &Store,
    criteria: &plimsoll_record::Criteria,
    format: FormatArgs,
    status: Option<StatusArg>,
    limit: usize,
) -> Result<(), Failure> {
    let status = status.map(|status| status.0);
    let all = Filter { status, limit: None };
    let filter = Filter { status, limit: (limit > 0).then_some(limit) };
    let runs = store.newest(filter)?;
    let runs = runs.into_iter().map(|record| Judged::of(store, record, criteria));
    let runs = runs.collect::<Result<Vec<_>, _>>()?;
    let total = store.count(all)?;

    let title = format!("{} of {total} runs, newest first. {}", runs.len(), view::LEGEND);
    let header =
        ["run", "model", "dtype", "offload", "size", "VRAM", "time", "status", "FQO", "change"];
    let mut table = Table::new(if format.csv { String::new() } else { title }, &header);
    for run in &runs {
        let (conditions, load) = (&run.record.conditions, &run.record.load);
        // Files are read by machines, which want the whole id.
        let id = &run.record.run.run_id;
        table.row([
            if format.csv { id.clone() } else { short_id(id).to_owned() },
            view::text(conditions.model_id.as_ref()),
            view::text(conditions.dtype.as_ref()),
            view::text(conditions.offload_mode.as_ref()),
            view::size(&run.record),
            view::bytes(load.peak_vram),
            view::seconds(load.elapsed_seconds),
            run.record.run.status.map_or(String::new(), |status| status.to_string()),
            view::marks(&run.gates),
            run.change(),
        ]);
    }
    if runs.is_empty() {
        table.row(["no runs"]);
    }
    let json = json!({ "total": total, "runs": runs.iter().map(Judged::json).collect::<Vec<_>>() });
    table::print(format, &[table], &json)
}
