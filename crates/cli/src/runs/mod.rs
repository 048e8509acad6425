//! `plimsoll runs`: the records of runs, and what they say about the next.
//!
//! What a record is, how it is judged and what comes next is the room `record`; here it is connected with the
//! planner, with files and with the terminal.

pub(crate) mod args;
mod child;
mod command;
mod compare;
mod draft;
mod import;
mod judge;
mod list;
pub(crate) mod machine;
pub(crate) mod place;
mod planner;
mod reason;
mod recorder;
mod repeat;
mod revision;
mod show;
pub(crate) mod table;
mod tree;
mod trial;
mod view;

pub(crate) use draft::Draft;
pub(crate) use recorder::Recorder;

use crate::failure::Failure;
use crate::runs::args::{RunsArgs, RunsVerb};

pub(crate) fn run(args: &RunsArgs) -> Result<(), Failure> {
    let mut criteria = view::criteria(args.criteria.as_deref())?;
    let format = args.format;
    match &args.verb {
        RunsVerb::List { status, limit } => {
            list::run(&view::store(args)?, &criteria, format, *status, *limit)
        }
        RunsVerb::Show { run, plan } => {
            show::run(&view::store(args)?, &criteria, format, run, *plan)
        }
        RunsVerb::Compare { runs } => compare::run(&view::store(args)?, &criteria, format, runs),
        RunsVerb::Tree { run } => tree::run(&view::store(args)?, &criteria, format, run),
        RunsVerb::Judge { run, verdict, note, checks, reference } => {
            let said = judge::Said {
                verdict: *verdict,
                note: note.as_deref(),
                checks,
                reference: reference.as_deref(),
            };
            judge::run(&mut view::store_to_change(args)?, &criteria, format, run, &said)
        }
        RunsVerb::Repeat { run, count } => {
            repeat::run(&mut view::store_to_change(args)?, &criteria, format, run, *count)
        }
        RunsVerb::Next { run, time_limit } => {
            limit(&mut criteria, *time_limit)?;
            trial::propose(&mut view::store_to_change(args)?, &criteria, format, run)
        }
        RunsVerb::Try { run, time_limit, value, sets, output } => {
            limit(&mut criteria, *time_limit)?;
            let wanted = trial::Wanted { value: value.as_deref(), sets, output: output.as_deref() };
            trial::run(&mut view::store_to_change(args)?, &criteria, format, run, &wanted)
        }
        RunsVerb::Import { files, partial } => {
            import::run(&view::store_path(args)?, format, files, *partial)
        }
    }
}

/// A limit that was typed takes the place of the criteria's.
fn limit(criteria: &mut plimsoll_record::Criteria, seconds: Option<f64>) -> Result<(), Failure> {
    let Some(seconds) = seconds else { return Ok(()) };
    if !(seconds.is_finite() && seconds > 0.0) {
        return Err(Failure::Usage(format!("--time-limit is {seconds}, expected seconds above 0")));
    }
    criteria.operation.seconds_mean_max = Some(seconds);
    criteria.operation.seconds_p95_max = None;
    criteria.operation.per_hour_min = None;
    Ok(())
}
