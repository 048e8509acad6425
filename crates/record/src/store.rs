//! The store: one SQLite file.
//!
//! Write-ahead log, so that two processes can write at once and readers never wait; `synchronous = FULL`, so
//! that a record that was reported is on the disk; one transaction a record, so that a process that is killed
//! at any moment leaves it whole or absent. A file that SQLite calls malformed is reported, never repaired and
//! never replaced: its records may still be had by other means.

mod insert;
mod told;

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension, ToSql, TransactionBehavior};

use crate::error::RecordError;
use crate::record::{
    Comparison, Conditions, Failure, Finding, Load, Quality, Record, Run, Verdict,
};
use crate::schema;
use crate::words::Status;

use told::{is_busy, told};

/// How long a writer waits for another.
///
/// A record takes a few milliseconds; a minute is a file system that has stopped answering.
const BUSY: Duration = Duration::from_secs(60);

/// A store of run records.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
    path: PathBuf,
}

/// Which runs are wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filter {
    /// Only runs that ended so.
    pub status: Option<Status>,
    /// At most so many, the newest.
    pub limit: Option<usize>,
}

impl Store {
    /// Opens the store at `path` for writing, making it and its folders where they are absent.
    ///
    /// # Errors
    /// [`RecordError::Corrupt`], [`RecordError::Foreign`], [`RecordError::Newer`], [`RecordError::Storage`].
    pub fn open(path: &Path) -> Result<Self, RecordError> {
        let mut store = Self::open_without_writing(path)?;
        // A writer finds out now, not after a long run, that nothing can be written.
        let behavior = TransactionBehavior::Immediate;
        let probe = store.connection.transaction_with_behavior(behavior);
        probe
            .and_then(|probe| {
                probe.execute("UPDATE run SET seq = seq WHERE seq = 0", [])?;
                probe.rollback()
            })
            .map_err(|error| told(path, "write to", error))?;
        Ok(store)
    }

    fn open_without_writing(path: &Path) -> Result<Self, RecordError> {
        let fail =
            |cause: String| RecordError::Storage { path: path.to_owned(), action: "open", cause };
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            private_folder(folder).map_err(|error| fail(error.to_string()))?;
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut store = Self::connect(path, path.as_os_str().as_encoded_bytes(), flags)?;
        store.set_up().map_err(|error| told(path, "open", error))?;
        schema::migrate(&mut store.connection).map_err(|error| told(path, "open", error))?;
        Ok(store)
    }

    /// Opens the store at `path` to read it, also where nothing can be written.
    ///
    /// # Errors
    /// [`RecordError::Absent`], else as [`Store::open`].
    pub fn open_to_read(path: &Path) -> Result<Self, RecordError> {
        match std::fs::metadata(path) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(RecordError::Absent { path: path.to_owned() });
            }
            Err(error) => {
                let cause = error.to_string();
                return Err(RecordError::Storage { path: path.to_owned(), action: "open", cause });
            }
        }
        let refused = match Self::open_without_writing(path) {
            Err(RecordError::Storage { cause, .. }) => cause,
            opened => return opened,
        };
        // A folder that takes no lock file: what lies there does not change either.
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
            | OpenFlags::SQLITE_OPEN_URI
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut uri = b"file:".to_vec();
        for byte in path.as_os_str().as_encoded_bytes() {
            if byte.is_ascii_alphanumeric() || b"/._-".contains(byte) {
                uri.push(*byte);
            } else {
                uri.extend(format!("%{byte:02X}").bytes());
            }
        }
        uri.extend(b"?immutable=1");
        let store = Self::connect(path, &uri, flags)?;
        let found =
            schema::version(&store.connection).map_err(|error| told(path, "read", error))?;
        if found < schema::VERSION {
            // A store whose making failed is a file without a table.
            let (action, state) = match found {
                0 => ("set up", "it has no records yet".to_owned()),
                _ => ("bring to the present version", format!("its schema is version {found}")),
            };
            let cause = format!("{state}, and it cannot be written: {refused}");
            return Err(RecordError::Storage { path: path.to_owned(), action, cause });
        }
        Ok(store)
    }

    fn connect(path: &Path, name: &[u8], flags: OpenFlags) -> Result<Self, RecordError> {
        let name = std::str::from_utf8(name).map_err(|_| RecordError::Storage {
            path: path.to_owned(),
            action: "open",
            cause: "its path is not UTF-8".to_owned(),
        })?;
        // A pipe would be waited for without end, and a device takes what is written and gives nothing back.
        if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return Err(RecordError::Storage {
                path: path.to_owned(),
                action: "open",
                cause: "it is no regular file".to_owned(),
            });
        }
        let open = |error| told(path, "open", error);
        let connection = Connection::open_with_flags(name, flags).map_err(open)?;
        connection.busy_timeout(BUSY).map_err(open)?;
        // The file may be anybody's: nothing in its schema is carried out, and cells are checked when read.
        connection.pragma_update(None, "trusted_schema", false).map_err(open)?;
        connection.pragma_update(None, "cell_size_check", true).map_err(open)?;
        let version = schema::version(&connection).map_err(open)?;
        let application = schema::application(&connection).map_err(open)?;
        let tables = connection
            .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0))
            .map_err(open)?;
        let path = path.to_owned();
        match (application, version, tables) {
            (0, 0, 0) => Ok(Self { connection, path }),
            (schema::APPLICATION_ID, found, _) if found > schema::VERSION => {
                Err(RecordError::Newer { path, found, known: schema::VERSION })
            }
            (schema::APPLICATION_ID, 1.., 1..) => Ok(Self { connection, path }),
            (schema::APPLICATION_ID, ..) => {
                Err(RecordError::Corrupt { path, cause: "its tables are missing".to_owned() })
            }
            _ => Err(RecordError::Foreign { path }),
        }
    }

    fn set_up(&self) -> rusqlite::Result<()> {
        // The change to WAL takes an exclusive lock for which SQLite does not wait by itself.
        let began = std::time::Instant::now();
        loop {
            let changed =
                self.connection.pragma_update_and_check(None, "journal_mode", "wal", |row| {
                    row.get::<_, String>(0)
                });
            match changed {
                Err(error) if is_busy(&error) && began.elapsed() < BUSY => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                // Some file systems have no shared memory; the rollback journal is as safe.
                changed => break changed.map(drop)?,
            }
        }
        self.connection.pragma_update(None, "synchronous", "full")?;
        self.connection.pragma_update(None, "foreign_keys", true)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a record, with its plan as JSON where there is one: all of it or nothing.
    ///
    /// # Errors
    /// [`RecordError::Storage`] with what was refused; the store is as it was.
    pub fn insert(&mut self, record: &Record, plan_json: Option<&str>) -> Result<(), RecordError> {
        self.insert_all(&[(record, plan_json)])
    }

    /// Writes records, all of them or none.
    ///
    /// # Errors
    /// As [`Store::insert`].
    pub fn insert_all(&mut self, records: &[(&Record, Option<&str>)]) -> Result<(), RecordError> {
        let written = (|| {
            let behavior = TransactionBehavior::Immediate;
            let transaction = self.connection.transaction_with_behavior(behavior)?;
            for (record, plan_json) in records {
                insert::record(&transaction, record, *plan_json)?;
            }
            transaction.commit()
        })();
        written.map_err(|error| told(&self.path, "write to", error))
    }

    /// How many runs there are.
    ///
    /// # Errors
    /// [`RecordError::Corrupt`], [`RecordError::Storage`].
    pub fn count(&self, filter: Filter) -> Result<u64, RecordError> {
        let sql = "SELECT count(*) FROM run WHERE ?1 IS NULL OR status = ?1";
        let plain = "SELECT count(*) FROM run";
        let counted = match filter.status {
            None => self.connection.query_row(plain, [], |row| row.get(0)),
            Some(status) => self.connection.query_row(sql, [status], |row| row.get(0)),
        };
        counted.map_err(|error| told(&self.path, "read", error))
    }

    /// The newest runs, newest first.
    ///
    /// # Errors
    /// As [`Store::count`].
    pub fn newest(&self, filter: Filter) -> Result<Vec<Record>, RecordError> {
        let limit = filter.limit.map_or(-1, |limit| i64::try_from(limit).unwrap_or(-1));
        let ids = match filter.status {
            None => self.ids("SELECT run_id FROM run ORDER BY seq DESC LIMIT ?1", &[&limit]),
            Some(status) => self.ids(
                "SELECT run_id FROM run WHERE status = ?1 ORDER BY seq DESC LIMIT ?2",
                &[&status, &limit],
            ),
        }?;
        ids.iter().map(|id| self.get(id)).collect()
    }

    /// Runs that were tried after `run_id`, oldest first.
    ///
    /// # Errors
    /// As [`Store::count`].
    pub fn children(&self, run_id: &str) -> Result<Vec<Record>, RecordError> {
        let ids =
            self.ids("SELECT run_id FROM run WHERE parent_id = ?1 ORDER BY seq", &[&run_id])?;
        ids.iter().map(|id| self.get(id)).collect()
    }

    /// Runs that repeat `run_id` unchanged, oldest first.
    ///
    /// # Errors
    /// As [`Store::count`].
    pub fn repeats(&self, run_id: &str) -> Result<Vec<Record>, RecordError> {
        let ids =
            self.ids("SELECT run_id FROM run WHERE repeat_of = ?1 ORDER BY seq", &[&run_id])?;
        ids.iter().map(|id| self.get(id)).collect()
    }

    /// The whole id of a run that is named by `last`, its id, the beginning or the last part of it.
    ///
    /// # Errors
    /// [`RecordError::UnknownRun`], [`RecordError::AmbiguousRun`], else as [`Store::count`].
    pub fn resolve(&self, name: &str) -> Result<String, RecordError> {
        let unknown = || RecordError::UnknownRun {
            id: name.chars().take(60).collect(),
            path: self.path.clone(),
        };
        if name == "last" {
            let last = self.ids("SELECT run_id FROM run ORDER BY seq DESC LIMIT 1", &[])?;
            return last.into_iter().next().ok_or_else(unknown);
        }
        let exact = self.ids("SELECT run_id FROM run WHERE run_id = ?1", &[&name])?;
        if let Some(id) = exact.into_iter().next() {
            return Ok(id);
        }
        if name.is_empty() {
            return Err(unknown());
        }
        // `substr` and not `LIKE`: a name is no pattern.
        let candidates = self.ids(
            "SELECT run_id FROM run WHERE substr(run_id, 1, length(?1)) = ?1
                OR substr(run_id, -length(?1)) = ?1 ORDER BY seq LIMIT 6",
            &[&name],
        )?;
        match <[String; 1]>::try_from(candidates) {
            Ok([id]) => Ok(id),
            Err(none) if none.is_empty() => Err(unknown()),
            Err(mut candidates) => {
                candidates.truncate(5);
                Err(RecordError::AmbiguousRun { id: name.to_owned(), candidates })
            }
        }
    }

    /// A run's record by its whole id.
    ///
    /// # Errors
    /// [`RecordError::UnknownRun`], else as [`Store::count`].
    pub fn get(&self, run_id: &str) -> Result<Record, RecordError> {
        self.read(run_id).map_err(|error| told(&self.path, "read", error))?.ok_or_else(|| {
            RecordError::UnknownRun {
                id: run_id.chars().take(60).collect(),
                path: self.path.clone(),
            }
        })
    }

    /// A plan by its id.
    ///
    /// # Errors
    /// As [`Store::count`].
    pub fn plan_json(&self, plan_id: &str) -> Result<Option<String>, RecordError> {
        self.connection
            .query_row("SELECT json FROM plan WHERE plan_id = ?1", [plan_id], |row| row.get(0))
            .optional()
            .map_err(|error| told(&self.path, "read", error))
    }

    /// Notes the change that was proposed after a run.
    ///
    /// # Errors
    /// As [`Store::insert`].
    pub fn set_next_trial(&mut self, run_id: &str, text: &str) -> Result<(), RecordError> {
        self.connection
            .execute("UPDATE run SET next_trial = ?2 WHERE run_id = ?1", [run_id, text])
            .map(drop)
            .map_err(|error| told(&self.path, "write to", error))
    }

    /// Notes by which criteria a run was judged last.
    ///
    /// # Errors
    /// As [`Store::insert`].
    pub fn set_criteria(&mut self, run_id: &str, name: &str) -> Result<(), RecordError> {
        let sql = "UPDATE conditions SET criteria = ?2 WHERE run_id = ?1";
        self.in_transaction(|connection| connection.execute(sql, [run_id, name]).map(drop))
    }

    /// Adds a person's verdict; its note becomes the run's quality note.
    ///
    /// # Errors
    /// As [`Store::insert`].
    pub fn add_verdict(&mut self, run_id: &str, verdict: &Verdict) -> Result<(), RecordError> {
        self.in_transaction(|connection| {
            insert::row(connection, "verdict", run_id, Verdict::COLUMNS, verdict.values())?;
            if let Some(note) = &verdict.note {
                let sql = "UPDATE quality SET quality_note = ?2 WHERE run_id = ?1";
                connection.execute(sql, [run_id, note])?;
            }
            Ok(())
        })
    }

    /// Adds a measurement against a reference, which becomes the run's reference.
    ///
    /// # Errors
    /// As [`Store::insert`].
    pub fn add_comparison(
        &mut self,
        run_id: &str,
        comparison: &Comparison,
    ) -> Result<(), RecordError> {
        self.in_transaction(|connection| {
            insert::row(
                connection,
                "comparison",
                run_id,
                Comparison::COLUMNS,
                comparison.values(),
            )?;
            let sql = "UPDATE conditions SET reference = ?2 WHERE run_id = ?1";
            connection.execute(sql, [run_id, &comparison.reference_id]).map(drop)
        })
    }

    /// Adds what a check found after the run.
    ///
    /// # Errors
    /// As [`Store::insert`].
    pub fn add_finding(&mut self, run_id: &str, finding: &Finding) -> Result<(), RecordError> {
        self.in_transaction(|connection| {
            connection
                .execute(
                    "INSERT INTO finding (run_id, position, code, text) SELECT ?1,
                        (SELECT count(*) FROM finding WHERE run_id = ?1), ?2, ?3",
                    rusqlite::params![run_id, finding.code, finding.text],
                )
                .map(drop)
        })
    }

    /// The number that a statement gives; for tests of what SQLite itself can be told to do.
    ///
    /// # Errors
    /// As [`Store::count`].
    #[doc(hidden)]
    pub fn query_number(&self, sql: &str) -> Result<i64, RecordError> {
        self.connection
            .query_row(sql, [], |row| row.get(0))
            .map_err(|error| told(&self.path, "read", error))
    }

    fn in_transaction(
        &mut self,
        change: impl FnOnce(&Connection) -> rusqlite::Result<()>,
    ) -> Result<(), RecordError> {
        let behavior = TransactionBehavior::Immediate;
        let changed = self.connection.transaction_with_behavior(behavior).and_then(|transaction| {
            change(&transaction)?;
            transaction.commit()
        });
        changed.map_err(|error| told(&self.path, "write to", error))
    }

    fn ids(&self, sql: &str, values: &[&dyn ToSql]) -> Result<Vec<String>, RecordError> {
        let found = self.connection.prepare(sql).and_then(|mut statement| {
            statement.query_map(values, |row| row.get(0))?.collect::<rusqlite::Result<Vec<_>>>()
        });
        found.map_err(|error| told(&self.path, "read", error))
    }

    fn rows<T>(
        &self,
        table: &str,
        run_id: &str,
        read: fn(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Vec<T>> {
        let sql = format!("SELECT * FROM {table} WHERE run_id = ?1 ORDER BY seq");
        let mut statement = self.connection.prepare(&sql)?;
        statement.query_map([run_id], read)?.collect()
    }

    fn read(&self, run_id: &str) -> rusqlite::Result<Option<Record>> {
        let one = |table: &str| format!("SELECT * FROM {table} WHERE run_id = ?1");
        let connection = &self.connection;
        let Some(run) = connection.query_row(&one("run"), [run_id], Run::from_row).optional()?
        else {
            return Ok(None);
        };
        let mut statement = connection
            .prepare("SELECT code, text FROM finding WHERE run_id = ?1 ORDER BY position")?;
        let findings = statement
            .query_map([run_id], |row| Ok(Finding { code: row.get(0)?, text: row.get(1)? }))?
            .collect::<rusqlite::Result<_>>()?;
        Ok(Some(Record {
            run,
            conditions: connection.query_row(&one("conditions"), [run_id], Conditions::from_row)?,
            load: connection.query_row(&one("load"), [run_id], Load::from_row)?,
            quality: connection.query_row(&one("quality"), [run_id], Quality::from_row)?,
            failure: connection
                .query_row(&one("failure"), [run_id], Failure::from_row)
                .optional()?,
            findings,
            verdicts: self.rows("verdict", run_id, Verdict::from_row)?,
            comparisons: self.rows("comparison", run_id, Comparison::from_row)?,
        }))
    }
}

/// Makes a folder that only its owner can look into, since prompts are nobody else's business.
fn private_folder(folder: &Path) -> std::io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}
