//! `plimsoll runs compare`: what differed, what it cost, predicted against measured.

use plimsoll_record::{Store, axes, differences, short_id};
use serde_json::json;

use crate::failure::Failure;
use crate::runs::args::FormatArgs;
use crate::runs::show;
use crate::runs::table::{self, Table};
use crate::runs::view::{self, Judged};

pub(crate) fn run(
    store: &Store,
    criteria: &plimsoll_record::Criteria,
    format: FormatArgs,
    names: &[String],
) -> Result<(), Failure> {
    let runs = names.iter().map(|name| Judged::named(store, name, criteria));
    let runs = runs.collect::<Result<Vec<_>, _>>()?;
    let ids: Vec<&str> = runs.iter().map(|run| short_id(&run.record.run.run_id)).collect();
    let header: Vec<&str> = std::iter::once("").chain(ids.iter().copied()).collect();
    let from_first: Vec<_> = runs
        .iter()
        .map(|run| differences(&runs[0].record.conditions, &run.record.conditions))
        .collect();

    let mut axis_table = Table::new(format!("Axes that differ from {}", ids[0]), &["run", "axes"]);
    for (id, found) in ids.iter().zip(&from_first).skip(1) {
        let words: Vec<_> = found.iter().map(|one| one.axis.word()).collect();
        let text = match words[..] {
            [] => "none".to_owned(),
            [axis] => axis.to_owned(),
            _ => format!("{} (MIXED: what did what cannot be told)", words.join(", ")),
        };
        axis_table.row([(*id).to_owned(), text]);
    }

    let mut conditions = Table::new("What differed", &header);
    let values: Vec<_> = runs.iter().map(|run| axes::values(&run.record.conditions)).collect();
    for (at, (axis, field, _)) in values[0].iter().enumerate() {
        let differs = from_first
            .iter()
            .flatten()
            .any(|one| one.axis == *axis && one.fields.iter().any(|change| change.field == *field));
        if differs {
            let cells = values.iter().map(|run| run[at].2.clone().unwrap_or_default());
            conditions.row(std::iter::once((*field).to_owned()).chain(cells));
        }
    }

    let mut cost = Table::new("What it cost: predicted, measured", &header);
    let loads: Vec<_> = runs.iter().map(|run| show::loads(&run.record)).collect();
    let mut rows: Vec<&str> = Vec::new();
    for load in &loads {
        for [name, ..] in load {
            if !rows.contains(&name.as_str()) {
                rows.push(name);
            }
        }
    }
    for name in rows {
        let cells = loads.iter().map(|load| {
            let found = load.iter().find(|[row, ..]| row == name);
            found.map_or(String::new(), |[_, predicted, measured, _]| match predicted.as_str() {
                "" => measured.clone(),
                predicted if measured.is_empty() => format!("({predicted})"),
                predicted => format!("{predicted}, {measured}"),
            })
        });
        cost.row(std::iter::once(name.to_owned()).chain(cells));
    }

    let mut outcome = Table::new(format!("What came of it. {}", view::LEGEND), &header);
    let status = |run: &Judged| run.record.run.status.map_or(String::new(), |one| one.to_string());
    outcome.row(std::iter::once("status".to_owned()).chain(runs.iter().map(status)));
    outcome.row(
        std::iter::once("FQO".to_owned()).chain(runs.iter().map(|run| view::marks(&run.gates))),
    );
    let first = &runs[0].record.quality.latent_sha256.0;
    let bits = |run: &Judged| {
        let latents = &run.record.quality.latent_sha256.0;
        let word = match latents.is_empty() || first.is_empty() {
            true => "",
            false if latents == first => "same",
            false => "other",
        };
        word.to_owned()
    };
    outcome.row(std::iter::once("latent bits".to_owned()).chain(runs.iter().map(bits)));
    let note = |run: &Judged| view::text(run.record.quality.quality_note.as_ref());
    outcome.row(std::iter::once("quality_note".to_owned()).chain(runs.iter().map(note)));

    let json = json!({
        "runs": runs.iter().map(Judged::json).collect::<Vec<_>>(),
        "differences": from_first,
    });
    table::print(format, &[axis_table, conditions, cost, outcome], &json)
}
