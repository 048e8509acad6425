//! `plimsoll runs repeat`: the same run again, to see whether its load can be carried again and again.

use plimsoll_record::{Criteria, Finding, FindingCode, Status, Store};

use crate::failure::Failure;
use crate::runs::args::FormatArgs;
use crate::runs::child::{self, Relation};
use crate::runs::table::{self, Table};
use crate::runs::view::{self, Judged};
use crate::runs::{command, show};

/// More is a benchmark, which has its own tools.
const COUNT_MAX: u32 = 1000;

pub(crate) fn run(
    store: &mut Store,
    criteria: &Criteria,
    format: FormatArgs,
    name: &str,
    count: u32,
) -> Result<(), Failure> {
    if !(1..=COUNT_MAX).contains(&count) {
        return Err(Failure::Usage(format!("-n is {count}, expected 1 to {COUNT_MAX}")));
    }
    let named = store.get(&store.resolve(name)?)?;
    // Repeats of a repeat are repeats of the first.
    let base = match &named.run.repeat_of {
        Some(first) => store.get(first)?,
        None => named,
    };
    let run_id = base.run.run_id.clone();
    if base.conditions.command.0.is_empty() {
        let what = format!("run {run_id} was made by other software and cannot be repeated here");
        return Err(Failure::Usage(what));
    }
    let words = base.conditions.command.0.clone();
    command::parse(&words)?;
    let mut table = Table::new(
        format!("Repeats of {run_id}"),
        &["run", "status", "time", "VRAM", "RAM", "bits"],
    );
    let mut all_ended = Ok(());
    for _ in 0..count {
        let made = child::carry_out(store, &base, &words, Relation::RepeatOf(&run_id))?;
        let Some(made) = made else {
            return Err(Failure::Usage("the repeat ended before it was recorded".to_owned()));
        };
        let (first, now) = (&base.quality.latent_sha256.0, &made.quality.latent_sha256.0);
        let bits = match (first.is_empty() || now.is_empty(), first == now) {
            (true, _) => "",
            (false, true) => "same",
            (false, false) => {
                let text = format!("the same conditions gave other bits than {run_id}");
                let finding = Finding { code: FindingCode::BitsDiffer, text };
                store.add_finding(&made.run.run_id, &finding)?;
                "other"
            }
        };
        table.row([
            made.run.run_id.clone(),
            made.run.status.map_or(String::new(), |status| status.to_string()),
            view::seconds(made.load.elapsed_seconds),
            view::bytes(made.load.peak_vram),
            view::bytes(made.load.peak_ram),
            bits.to_owned(),
        ]);
        all_ended = all_ended.and(child::ended(&made));
        if made.run.status == Some(Status::Cancelled) {
            break;
        }
    }
    let judged = Judged::named(store, &run_id, criteria)?;
    table::print(format, &[table, show::gates(&judged.gates)], &judged.json())?;
    all_ended
}
