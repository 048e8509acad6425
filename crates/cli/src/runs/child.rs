//! A recorded run, carried out again in a process of its own.
//!
//! Its own process, so that its memory is measured by itself, a failure stays its own, and being killed for want
//! of memory is an outcome like any other.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Instant, SystemTime};

use plimsoll_record::{
    Failure as Reason, Record, RecordError, Resource, Run, Status, Store, new_run_id, utc,
};

use crate::failure::Failure;

/// How the new run is related to the recorded one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Relation<'a> {
    /// It is tried after it.
    TrialOf(&'a str),
    /// It repeats it unchanged.
    RepeatOf(&'a str),
}

/// The signal by which the system ends a process that takes too much memory.
const SIGKILL: i32 = 9;

/// Carries `command` out and gives the run's record; `None` where it ended before it began to be recorded.
pub(crate) fn carry_out(
    store: &mut Store,
    base: &Record,
    command: &[String],
    relation: Relation<'_>,
) -> Result<Option<Record>, Failure> {
    let run_id = new_run_id(SystemTime::now());
    let program = std::env::current_exe()
        .map_err(|cause| Failure::Read { path: "this program".to_owned(), cause })?;
    let mut child = Command::new(program);
    let end = command.iter().position(|word| word == "--").unwrap_or(command.len());
    child.args(&command[..end]).arg("--records").arg(absolute(store.path()));
    child.args(["--run-id", &run_id]);
    match relation {
        Relation::TrialOf(parent) => child.args(["--parent", parent]),
        Relation::RepeatOf(of) => child.args(["--repeat-of", of]),
    };
    child.args(&command[end..]).stdin(Stdio::null()).stdout(Stdio::null());
    let began = Instant::now();
    let status = child
        .status()
        .map_err(|cause| Failure::Read { path: "a process of its own".to_owned(), cause })?;
    match store.get(&run_id) {
        Err(RecordError::UnknownRun { .. }) => {}
        found => return Ok(Some(found?)),
    }
    let Some(signal) = signal(status) else { return Ok(None) };
    // It could not write its own record any more.
    let now = SystemTime::now();
    let mut record = Record { conditions: base.conditions.clone(), ..Record::default() };
    record.run = Run {
        run_id,
        created: utc(now),
        kind: base.run.kind.clone(),
        recorded_by: "plimsoll".to_owned(),
        status: Some(Status::Failed),
        ..Run::default()
    };
    record.conditions.command.0 = command.to_vec();
    match relation {
        Relation::TrialOf(parent) => record.run.parent_id = Some(parent.to_owned()),
        Relation::RepeatOf(of) => record.run.repeat_of = Some(of.to_owned()),
    }
    record.load.elapsed_seconds = Some(began.elapsed().as_secs_f64());
    let (resource, why) = match signal {
        SIGKILL => (Some(Resource::Ram), ", as the system does where RAM is short"),
        _ => (None, ""),
    };
    record.failure = Some(Reason {
        kind: "killed".to_owned(),
        message: format!("the process was ended by signal {signal}{why}"),
        resource,
        ..Reason::default()
    });
    store.insert(&record, None)?;
    Ok(Some(record))
}

/// Whether a run came to its end; if not, with the exit code that it had.
pub(crate) fn ended(made: &Record) -> Result<(), Failure> {
    if made.run.status == Some(Status::Done) {
        return Ok(());
    }
    let kind = made.failure.as_ref().map_or("", |failure| failure.kind.as_str());
    let code = match kind {
        "usage" => 2,
        "infeasible" => 3,
        "file" => 4,
        "cancelled" => 130,
        _ => 5,
    };
    Err(Failure::Trial { run_id: made.run.run_id.clone(), code })
}

fn absolute(path: &Path) -> std::path::PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(unix)]
fn signal(status: std::process::ExitStatus) -> Option<i32> {
    std::os::unix::process::ExitStatusExt::signal(&status)
}

#[cfg(not(unix))]
fn signal(_: std::process::ExitStatus) -> Option<i32> {
    None
}
