//! The tables, as a list of migrations.
//!
//! A migration that has been released is never changed: a store of any age is brought to the present by
//! applying those that it lacks, all in one transaction. Conditions, load and quality are tables of their own
//! because they are different questions; a plan is kept once however many runs carried it out.

use rusqlite::{Connection, TransactionBehavior};

/// Marks a database as a store of run records ("PLIM").
pub const APPLICATION_ID: i64 = 0x504c_494d;

/// The schema that this build reads and writes.
#[allow(clippy::cast_possible_wrap)] // A handful.
pub const VERSION: i64 = MIGRATIONS.len() as i64;

const MIGRATIONS: &[&str] = &[RECORDS, JUDGEMENTS, PLACEMENT, TILES];

/// Version 1: what is known of a run when it ends.
const RECORDS: &str = "
CREATE TABLE run (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL UNIQUE,
    created TEXT NOT NULL,
    kind TEXT NOT NULL,
    recorded_by TEXT NOT NULL,
    status TEXT,
    next_trial TEXT,
    parent_id TEXT,
    repeat_of TEXT
) STRICT;
CREATE INDEX run_by_status ON run (status);
CREATE INDEX run_by_parent ON run (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX run_by_repeat ON run (repeat_of) WHERE repeat_of IS NOT NULL;
CREATE TABLE conditions (
    run_id TEXT NOT NULL PRIMARY KEY REFERENCES run (run_id),
    model_id TEXT,
    model_revision TEXT,
    weight_format TEXT,
    dtype TEXT,
    quantization TEXT,
    runtime TEXT,
    device TEXT,
    offload_mode TEXT,
    offload_api TEXT,
    pipeline_moved_to_cuda INTEGER,
    device_map TEXT,
    attached_components TEXT NOT NULL,
    input_size TEXT,
    context_length INTEGER,
    width INTEGER,
    height INTEGER,
    batch_size INTEGER,
    steps INTEGER,
    guidance REAL,
    seed TEXT,
    empty_cache TEXT,
    prompt TEXT,
    reference TEXT,
    criteria TEXT,
    noise TEXT,
    vram_line TEXT,
    vram_line_bytes INTEGER,
    threads INTEGER,
    command TEXT NOT NULL,
    machine TEXT,
    versions TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE load (
    run_id TEXT NOT NULL PRIMARY KEY REFERENCES run (run_id),
    peak_vram INTEGER,
    peak_ram INTEGER,
    elapsed_seconds REAL,
    input_tokens INTEGER,
    output_tokens INTEGER,
    plan_id TEXT,
    predicted_peak_vram INTEGER,
    predicted_seconds_per_step REAL,
    predicted_seconds REAL,
    predicted_copied_bytes INTEGER,
    seconds_per_step REAL,
    run_seconds REAL,
    copied_bytes INTEGER,
    stages TEXT NOT NULL,
    ram_limit INTEGER,
    disk_bytes INTEGER
) STRICT, WITHOUT ROWID;
CREATE TABLE quality (
    run_id TEXT NOT NULL PRIMARY KEY REFERENCES run (run_id),
    quality_note TEXT,
    pictures TEXT NOT NULL,
    picture_sha256 TEXT NOT NULL,
    latent_sha256 TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE failure (
    run_id TEXT NOT NULL PRIMARY KEY REFERENCES run (run_id),
    kind TEXT NOT NULL,
    message TEXT NOT NULL,
    resource TEXT,
    stage TEXT,
    needed_bytes INTEGER,
    available_bytes INTEGER,
    smallest_bytes INTEGER,
    activation_bytes INTEGER
) STRICT, WITHOUT ROWID;
CREATE TABLE finding (
    run_id TEXT NOT NULL REFERENCES run (run_id),
    position INTEGER NOT NULL,
    code TEXT NOT NULL,
    text TEXT NOT NULL,
    PRIMARY KEY (run_id, position)
) STRICT, WITHOUT ROWID;
CREATE TABLE plan (
    plan_id TEXT NOT NULL PRIMARY KEY,
    json TEXT NOT NULL
) STRICT;
";

/// Version 2: what people and measurements say of a run afterwards; rows are added, never changed.
const JUDGEMENTS: &str = "
CREATE TABLE verdict (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL REFERENCES run (run_id),
    created TEXT NOT NULL,
    is_pass INTEGER NOT NULL,
    note TEXT,
    checks TEXT NOT NULL
) STRICT;
CREATE INDEX verdict_by_run ON verdict (run_id);
CREATE TABLE comparison (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL REFERENCES run (run_id),
    created TEXT NOT NULL,
    reference_id TEXT NOT NULL,
    psnr_db REAL,
    ssim REAL NOT NULL
) STRICT;
CREATE INDEX comparison_by_run ON comparison (run_id);
";

/// Version 3: no table, but a word for findings that builds of version 2 do not know: they are to say so, and not that
/// the store is damaged.
const PLACEMENT: &str = "";

/// Version 4: in which pieces a picture is decoded.
const TILES: &str = "ALTER TABLE conditions ADD COLUMN vae_tile TEXT;";

/// Brings a database to [`VERSION`]; whole or not at all. The caller has checked that it is not newer.
pub(crate) fn migrate(connection: &mut Connection) -> rusqlite::Result<()> {
    migrate_to(connection, MIGRATIONS.len())
}

/// As [`migrate`], to the version after `count` migrations.
pub(crate) fn migrate_to(connection: &mut Connection, count: usize) -> rusqlite::Result<()> {
    if version(connection)? >= count as i64 {
        return Ok(());
    }
    // The lock first, then the version: another process may be doing the same.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let from = usize::try_from(version(&transaction)?).unwrap_or(0);
    for migration in MIGRATIONS.iter().take(count).skip(from) {
        transaction.execute_batch(migration)?;
    }
    if from < count {
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", count as i64)?;
    }
    transaction.commit()
}

pub(crate) fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

pub(crate) fn application(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "application_id", |row| row.get(0))
}
