//! `plimsoll runs next` and `plimsoll runs try`: the one change, proposed and carried out.

use std::path::{Path, PathBuf};

use plimsoll_record::next::{NextTrial, Planner, Situation, next};
use plimsoll_record::{Axis, Criteria, Store, trial_of};
use serde_json::json;

use crate::failure::Failure;
use crate::runs::args::{FormatArgs, SetArg};
use crate::runs::child::{self, Relation};
use crate::runs::planner::{NoPlanner, OwnPlanner, apply};
use crate::runs::table::{self, Table};
use crate::runs::tree::ancestors;
use crate::runs::view::{self, Judged};
use crate::runs::{command, show};

/// `runs next`.
pub(crate) fn propose(
    store: &mut Store,
    criteria: &Criteria,
    format: FormatArgs,
    name: &str,
) -> Result<(), Failure> {
    let judged = Judged::named(store, name, criteria)?;
    let run_id = judged.record.run.run_id.clone();
    let trial = match choose(store, &judged, criteria)? {
        Ok(trial) => trial,
        Err(why) => {
            let mut table = Table::default();
            table.row(["run", &run_id]);
            table.row(["next", &format!("nothing to change: {why}")]);
            let json = json!({ "run_id": run_id, "trial": null, "why": why });
            return table::print(format, &[table], &json);
        }
    };
    store.set_next_trial(&run_id, &sentence(&trial))?;
    let json = json!({ "run_id": run_id, "trial": trial });
    table::print(format, &tables(&run_id, &trial), &json)
}

/// What to try after a run, or why nothing.
fn choose(
    store: &Store,
    judged: &Judged,
    criteria: &Criteria,
) -> Result<Result<NextTrial, String>, Failure> {
    let line = ancestors(store, judged.record.clone())?;
    // The first trial first; a trial of several axes is evidence for none of them.
    let tried: Vec<Axis> = line
        .windows(2)
        .rev()
        .map(|pair| trial_of(&pair[1], &pair[0]).differences)
        .filter(|differences| differences.len() == 1)
        .flatten()
        .map(|difference| difference.axis)
        .collect();
    let situation =
        Situation { record: &judged.record, gates: &judged.gates, criteria, tried: &tried };
    let words = &judged.record.conditions.command.0;
    // Without a signal nothing needs to be opened.
    if let Err(why) = plimsoll_record::observe(&judged.record, &judged.gates, criteria) {
        return Ok(Err(why));
    }
    let mut planner: Box<dyn Planner> =
        if words.is_empty() { Box::new(NoPlanner) } else { Box::new(OwnPlanner::open(words)?) };
    Ok(next(&situation, planner.as_mut()))
}

/// The proposal in one line, for the record's `next_trial`.
fn sentence(trial: &NextTrial) -> String {
    match &trial.change {
        Some(change) if change.needs_value() => format!("{} (after {})", change.axis, trial.signal),
        Some(change) => format!("{change} (after {})", trial.signal),
        None => format!("none: {} (after {})", trial.reason, trial.signal),
    }
}

fn tables(run_id: &str, trial: &NextTrial) -> Vec<Table> {
    let mut table = Table::default();
    table.row(["run", run_id]);
    table.row(["signal", trial.signal.word()]);
    match &trial.change {
        None => table.row(["change", &format!("none: {}", trial.reason)]),
        Some(change) => {
            table.row(["axis", change.axis.word()]);
            if change.needs_value() {
                table.row(["value", "yours: plimsoll runs try RUN --value ..."]);
            }
            for (field, value) in &change.set {
                table.row([*field, value]);
            }
            table.row(["because", &trial.reason]);
        }
    }
    for text in &trial.keep {
        table.row(["keep", text]);
    }
    if let Some(expected) = &trial.expected {
        let peak = view::bytes(expected.peak_vram);
        let seconds = view::seconds(expected.seconds);
        let text = match (expected.fits, peak.is_empty()) {
            (true, _) => format!("VRAM {peak}, {seconds}"),
            (false, false) => format!("does not fit yet: a line of {peak} would be needed"),
            (false, true) => "does not fit yet".to_owned(),
        };
        table.row(["predicted".to_owned(), text]);
    }
    let mut left_out = Table::new("Left out", &["axis", "because"]);
    for (axis, why) in &trial.left_out {
        left_out.row([axis.word(), why]);
    }
    let mut advice = Table::new("Besides, apart from the one axis", &[""]);
    for line in &trial.advice {
        advice.row([line]);
    }
    vec![table, left_out, advice]
}

/// What `runs try` was asked for.
pub(crate) struct Wanted<'a> {
    pub(crate) value: Option<&'a str>,
    pub(crate) sets: &'a [SetArg],
    pub(crate) output: Option<&'a Path>,
}

/// `runs try`.
pub(crate) fn run(
    store: &mut Store,
    criteria: &Criteria,
    format: FormatArgs,
    name: &str,
    wanted: &Wanted<'_>,
) -> Result<(), Failure> {
    let judged = Judged::named(store, name, criteria)?;
    let parent = &judged.record;
    let parent_id = parent.run.run_id.clone();
    let mut words = parent.conditions.command.0.clone();
    if words.is_empty() {
        let what =
            format!("run {parent_id} was made by other software: its next trial is run there");
        return Err(Failure::Usage(what));
    }
    let proposed = if wanted.sets.is_empty() {
        let trial = choose(store, &judged, criteria)?
            .map_err(|why| Failure::Usage(format!("nothing to try after {parent_id}: {why}")))?;
        store.set_next_trial(&parent_id, &sentence(&trial))?;
        let Some(change) = &trial.change else {
            return Err(Failure::Usage(format!(
                "nothing to try after {parent_id}: {}",
                trial.reason
            )));
        };
        for (field, value) in values(change.axis, &change.set, wanted.value, &parent_id)? {
            apply(&mut words, &field, &value)?;
        }
        Some(trial)
    } else {
        for set in wanted.sets {
            apply(&mut words, &set.field, &set.value)?;
        }
        None
    };
    let typed = command::parse(&words)?;
    let output = wanted.output.map_or_else(|| free_name(&typed.output), Path::to_owned);
    let output = std::path::absolute(&output).unwrap_or(output);
    command::set(&mut words, "--output", &output.display().to_string());

    let made = child::carry_out(store, parent, &words, Relation::TrialOf(&parent_id))?;
    let Some(made) = made else {
        return Err(Failure::Usage("the trial ended before it was recorded".to_owned()));
    };
    let judged = Judged::named(store, &made.run.run_id, criteria)?;
    let json = json!({ "proposed": proposed, "run": judged.json() });
    table::print(format, &result(&parent_id, &judged), &json)?;
    child::ended(&made)
}

/// The proposed values, or the person's where only a person knows one.
fn values(
    axis: Axis,
    set: &[(&'static str, String)],
    value: Option<&str>,
    parent_id: &str,
) -> Result<Vec<(String, String)>, Failure> {
    match (set.is_empty(), value) {
        (false, None) => {
            Ok(set.iter().map(|(field, value)| ((*field).to_owned(), value.clone())).collect())
        }
        (false, Some(_)) => Err(Failure::Usage(format!(
            "{axis} has a proposed value; give your own change with --set FIELD=VALUE"
        ))),
        (true, None) => Err(Failure::Usage(format!(
            "the axis is {axis}, whose value only you know: plimsoll runs try {parent_id} --value ..."
        ))),
        (true, Some(value)) => match axis {
            Axis::Model => Ok(vec![("model_id".to_owned(), value.to_owned())]),
            Axis::Prompt => Ok(vec![("prompt".to_owned(), value.to_owned())]),
            other => Err(Failure::Usage(format!(
                "the axis is {other}: judge the run again (plimsoll runs judge {parent_id}) against another \
                 --reference or by other --criteria"
            ))),
        },
    }
}

/// `ice.png` -> `ice-try1.png`, or the first number that is free.
fn free_name(output: &Path) -> PathBuf {
    let stem = output.file_stem().unwrap_or_default().to_string_lossy();
    // A trial of a trial is numbered on.
    let stem = match stem.rsplit_once("-try") {
        Some((before, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => before,
        _ => &stem,
    };
    let extension = output.extension().map_or("png".into(), |text| text.to_string_lossy());
    (1u32..)
        .map(|number| output.with_file_name(format!("{stem}-try{number}.{extension}")))
        .find(|path| !path.exists())
        .unwrap_or_else(|| output.to_owned())
}

fn result(parent_id: &str, judged: &Judged) -> Vec<Table> {
    let record = &judged.record;
    let mut table = Table::default();
    table.row(["trial", &record.run.run_id]);
    table.row(["of", parent_id]);
    if let Some(trial) = &judged.trial {
        let parts: Vec<_> = trial.differences.iter().map(ToString::to_string).collect();
        let mixed = if trial.is_mixed { "MIXED, more than one axis: " } else { "" };
        table.row(["changed", &format!("{mixed}{}", parts.join("; "))]);
    }
    table.row(["status", record.run.status.map_or("", |status| status.word())]);
    for path in &record.quality.pictures.0 {
        table.row(["picture", path]);
    }
    let mut load = Table::new("Load", &["", "predicted", "measured", "off by"]);
    load.rows = show::loads(record).into_iter().map(Vec::from).collect();
    vec![table, load, show::gates(&judged.gates)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_takes_a_name_that_is_free() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("ice.png");
        let name = |path: PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
        assert_eq!(name(free_name(&output)), "ice-try1.png");
        std::fs::write(folder.path().join("ice-try1.png"), "").unwrap();
        assert_eq!(name(free_name(&output)), "ice-try2.png");
        assert_eq!(name(free_name(&folder.path().join("ice-try1.png"))), "ice-try2.png");
    }
}
