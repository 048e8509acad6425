//! A record's rows.

use rusqlite::{Connection, ToSql};

use crate::record::{Comparison, Conditions, Failure, Load, Quality, Record, Run, Verdict};

/// Adds a run with all that is known of it.
pub(super) fn record(
    connection: &Connection,
    record: &Record,
    plan_json: Option<&str>,
) -> rusqlite::Result<()> {
    let run_id = record.run.run_id.as_str();
    let columns = Run::COLUMNS.join(", ");
    let marks = vec!["?"; Run::COLUMNS.len()].join(", ");
    connection
        .execute(&format!("INSERT INTO run ({columns}) VALUES ({marks})"), &*record.run.values())?;
    row(connection, "conditions", run_id, Conditions::COLUMNS, record.conditions.values())?;
    row(connection, "load", run_id, Load::COLUMNS, record.load.values())?;
    row(connection, "quality", run_id, Quality::COLUMNS, record.quality.values())?;
    if let Some(failure) = &record.failure {
        row(connection, "failure", run_id, Failure::COLUMNS, failure.values())?;
    }
    for (position, finding) in record.findings.iter().enumerate() {
        connection.execute(
            "INSERT INTO finding (run_id, position, code, text) VALUES (?1, ?2, ?3, ?4)",
            rusqlite::params![run_id, position, finding.code, finding.text],
        )?;
    }
    for verdict in &record.verdicts {
        row(connection, "verdict", run_id, Verdict::COLUMNS, verdict.values())?;
    }
    for comparison in &record.comparisons {
        row(connection, "comparison", run_id, Comparison::COLUMNS, comparison.values())?;
    }
    if let (Some(plan_id), Some(json)) = (&record.load.plan_id, plan_json) {
        // The same plan, carried out again.
        connection.execute(
            "INSERT INTO plan (plan_id, json) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
            [plan_id.as_str(), json],
        )?;
    }
    Ok(())
}

/// Adds a row of a run.
pub(super) fn row(
    connection: &Connection,
    table: &str,
    run_id: &str,
    columns: &[&str],
    values: Vec<&dyn ToSql>,
) -> rusqlite::Result<()> {
    let mut all: Vec<&dyn ToSql> = vec![&run_id];
    all.extend(values);
    let (names, marks) = (columns.join(", "), vec!["?"; all.len()].join(", "));
    let sql = format!("INSERT INTO {table} (run_id, {names}) VALUES ({marks})");
    connection.execute(&sql, &*all).map(drop)
}
