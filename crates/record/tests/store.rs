//! The store under kills, neighbours, damage and age.

#![expect(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use plimsoll_record::{
    Comparison, Conditions, Failure, Filter, Finding, FindingCode, Json, Load, Quality, Record,
    RecordError, Resource, Run, Stage, StageSeconds, Status, Store, VERSION, Verdict, new_run_id,
    utc,
};

/// Where the child writes that a kill ends.
const CHILD: &str = "PLIMSOLL_TEST_CHILD_STORE";

/// How many records the child writes.
const COUNT: &str = "PLIMSOLL_TEST_CHILD_COUNT";

/// A record with something in every table, that says in two tables which one it is.
fn record(number: u64) -> Record {
    let now = SystemTime::now();
    let mut record = Record {
        run: Run {
            run_id: format!("{}-{number}", new_run_id(now)),
            created: utc(now),
            kind: "image".into(),
            recorded_by: "test".into(),
            status: Some(Status::Failed),
            ..Run::default()
        },
        conditions: Conditions {
            model_id: Some("demo".into()),
            dtype: Some("bf16".into()),
            width: Some(128),
            height: Some(128),
            seed: Some(u64::MAX.to_string()),
            attached_components: Json(vec!["ip-adapter".into()]),
            prompt: Some(number.to_string()),
            command: Json(vec!["generate".into(), "--".into(), "x".into()]),
            ..Conditions::default()
        },
        load: Load {
            peak_vram: Some(number),
            elapsed_seconds: Some(1.5),
            plan_id: Some("0123".into()),
            stages: Json(vec![StageSeconds { name: "denoise".into(), seconds: 1.25 }]),
            ..Load::default()
        },
        quality: Quality { latent_sha256: Json(vec!["ab".repeat(32)]), ..Quality::default() },
        failure: Some(Failure {
            kind: "infeasible".into(),
            message: "does not fit".into(),
            resource: Some(Resource::Vram),
            stage: Some(Stage::Decode),
            needed_bytes: Some(1 << 40),
            ..Failure::default()
        }),
        ..Record::default()
    };
    record.findings.push(Finding { code: FindingCode::AllBlack, text: "all black".into() });
    record
}

fn opened(folder: &Path) -> (PathBuf, Store) {
    let path = folder.join("records.db");
    let store = Store::open(&path).unwrap();
    (path, store)
}

#[test]
fn what_is_written_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let (path, mut store) = opened(folder.path());
    let written = record(7);
    store.insert(&written, Some("{}")).unwrap();
    let id = written.run.run_id.clone();
    assert_eq!(store.get(&id).unwrap(), written);
    assert_eq!(store.plan_json("0123").unwrap().as_deref(), Some("{}"));

    let verdict = Verdict {
        created: "now".into(),
        is_pass: true,
        note: Some("sharp".into()),
        checks: Json([("identity".to_owned(), true)].into()),
    };
    store.add_verdict(&id, &verdict).unwrap();
    let measured = Comparison {
        created: "now".into(),
        reference_id: "other".into(),
        psnr_db: None,
        ssim: 1.0,
    };
    store.add_comparison(&id, &measured).unwrap();
    let found = Finding { code: FindingCode::BitsDiffer, text: "other bits".into() };
    store.add_finding(&id, &found).unwrap();
    store.set_next_trial(&id, "offload: auto").unwrap();
    drop(store);

    let store = Store::open_to_read(&path).unwrap();
    let read = store.get(&id).unwrap();
    assert_eq!(read.verdicts, [verdict]);
    assert_eq!(read.comparisons, [measured]);
    assert_eq!(read.findings.last(), Some(&found));
    assert_eq!(read.quality.quality_note.as_deref(), Some("sharp"));
    assert_eq!(read.conditions.reference.as_deref(), Some("other"));
    assert_eq!(read.run.next_trial.as_deref(), Some("offload: auto"));
    // A record goes through JSON unchanged: it is what is kept where the store fails.
    let json = serde_json::to_string(&read).unwrap();
    assert_eq!(serde_json::from_str::<Record>(&json).unwrap(), read);
}

#[test]
fn conditions_load_and_quality_are_tables_of_their_own_with_the_practices_names() {
    let folder = tempfile::tempdir().unwrap();
    let (path, store) = opened(folder.path());
    drop(store);
    let connection = rusqlite::Connection::open(path).unwrap();
    let columns = |table: &str| -> Vec<String> {
        let mut statement =
            connection.prepare(&format!("SELECT name FROM pragma_table_info('{table}')")).unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    let with_id = |names: &[&str]| {
        let names = names.iter().map(|name| (*name).to_owned());
        std::iter::once("run_id".to_owned()).chain(names).collect::<Vec<_>>()
    };
    assert_eq!(columns("conditions"), with_id(Conditions::COLUMNS));
    assert_eq!(columns("load"), with_id(Load::COLUMNS));
    assert_eq!(columns("quality"), with_id(Quality::COLUMNS));
    assert_eq!(columns("failure"), with_id(Failure::COLUMNS));
    assert_eq!(columns("run")[1..], *Run::COLUMNS);
    let all: Vec<String> =
        ["run", "conditions", "load", "quality"].iter().flat_map(|table| columns(table)).collect();
    for name in plimsoll_record::import::NAMES {
        assert!(all.iter().any(|column| column == name), "{name}");
    }
}

#[test]
fn runs_are_named_by_any_part_that_is_theirs_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (_, mut store) = opened(folder.path());
    for id in ["20261130-170000-abcdef", "20261130-170001-ghjkmn", "flux-1"] {
        let mut record = record(1);
        record.run.run_id = id.into();
        store.insert(&record, None).unwrap();
    }
    assert_eq!(store.resolve("abcdef").unwrap(), "20261130-170000-abcdef");
    assert_eq!(store.resolve("20261130-170001").unwrap(), "20261130-170001-ghjkmn");
    assert_eq!(store.resolve("last").unwrap(), "flux-1");
    let error = store.resolve("20261130").unwrap_err();
    assert!(
        matches!(&error, RecordError::AmbiguousRun { candidates, .. } if candidates.len() == 2)
    );
    for unknown in ["nope", "", "%", "2026113%", "'; DROP TABLE run; --"] {
        let error = store.resolve(unknown).unwrap_err();
        assert!(matches!(error, RecordError::UnknownRun { .. }), "{unknown}: {error}");
    }
}

/// Writes records; a test may kill it.
#[test]
fn child_that_writes() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let mut store = Store::open(Path::new(&path)).unwrap();
    let count: u64 = std::env::var(COUNT).unwrap().parse().unwrap();
    for number in 0..count {
        store.insert(&record(number), Some(&"x".repeat(5000))).unwrap();
    }
}

fn start_child(path: &Path, count: u64) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_writes", "--nocapture"])
        .env(CHILD, path)
        .env(COUNT, count.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn a_kill_leaves_every_record_whole_or_absent() {
    let kills: u64 = std::env::var("PLIMSOLL_KILLS").map_or(40, |text| text.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("records.db");
    let mut slowest = Duration::ZERO;
    let mut state = 12_345u64;
    for _ in 0..kills {
        let mut child = start_child(&path, u64::MAX);
        // From before the store is made to some dozens of records into it.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_micros((state >> 33) % 60_000));
        child.kill().unwrap();
        child.wait().unwrap();
        let began = Instant::now();
        let store = Store::open(&path).unwrap();
        store.newest(Filter { limit: Some(20), status: None }).unwrap();
        slowest = slowest.max(began.elapsed());
    }
    let store = Store::open_to_read(&path).unwrap();
    let all = store.newest(Filter::default()).unwrap();
    for read in &all {
        assert_eq!(read.conditions.prompt, read.load.peak_vram.map(|number| number.to_string()));
        assert_eq!(read.findings.len(), 1);
        assert!(read.failure.is_some());
    }
    drop(store);
    assert!(!all.is_empty());
    assert!(slowest < Duration::from_secs(1), "{slowest:?} to open");
    let files: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(files, ["records.db"], "closed, a store is one file");
    println!("{kills} kills, {} records whole, {slowest:?} to open at most", all.len());
}

#[test]
fn processes_that_write_at_once_all_succeed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/folder/records.db");
    // The store does not exist yet: making it is part of the race.
    const RECORDS: u64 = 20;
    let children: Vec<_> = (0..4).map(|_| start_child(&path, RECORDS)).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success(), "a writer failed");
    }
    let store = Store::open(&path).unwrap();
    let all = store.newest(Filter::default()).unwrap();
    for number in 0..RECORDS {
        let written = all.iter().filter(|record| record.load.peak_vram == Some(number)).count();
        assert_eq!(written, 4, "record {number} of {}", all.len());
    }
}

#[test]
fn a_store_of_an_earlier_version_is_brought_to_the_present() {
    let folder = tempfile::tempdir().unwrap();
    let (path, mut store) = opened(folder.path());
    let written = record(3);
    store.insert(&written, None).unwrap();
    drop(store);
    // Back to version 1: what the later migrations made is taken away.
    let connection = rusqlite::Connection::open(&path).unwrap();
    let back =
        "ALTER TABLE conditions DROP COLUMN vae_tile; DROP TABLE verdict; DROP TABLE comparison;
                PRAGMA user_version = 1;";
    connection.execute_batch(back).unwrap();
    drop(connection);
    let store = Store::open_to_read(&path).unwrap();
    assert_eq!(store.get(&written.run.run_id).unwrap(), written);
    drop(store);
    let connection = rusqlite::Connection::open(&path).unwrap();
    let version: i64 =
        connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    assert_eq!(version, VERSION);
}

#[test]
fn a_newer_store_and_a_database_of_another_program_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (path, store) = opened(folder.path());
    drop(store);
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.pragma_update(None, "user_version", VERSION + 1).unwrap();
    drop(connection);
    let before = std::fs::read(&path).unwrap();
    for error in [Store::open(&path).unwrap_err(), Store::open_to_read(&path).unwrap_err()] {
        assert!(
            matches!(error, RecordError::Newer { found, .. } if found == VERSION + 1),
            "{error}"
        );
    }
    assert_eq!(std::fs::read(&path).unwrap(), before);

    let other = folder.path().join("other.db");
    let connection = rusqlite::Connection::open(&other).unwrap();
    connection.execute_batch("CREATE TABLE bookmarks (url TEXT)").unwrap();
    drop(connection);
    let before = std::fs::read(&other).unwrap();
    assert!(matches!(Store::open(&other), Err(RecordError::Foreign { .. })));
    assert_eq!(std::fs::read(&other).unwrap(), before);
}

#[test]
fn places_that_take_no_store_are_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "not a folder").unwrap();
    let absent = folder.path().join("absent.db");
    assert!(matches!(Store::open_to_read(&absent), Err(RecordError::Absent { .. })));
    assert!(!absent.exists());
    for (path, what) in [
        (file.join("records.db"), "under a file"),
        (folder.path().to_owned(), "a folder"),
        (file.clone(), "a text file"),
        ("/proc/records.db".into(), "a file system that takes no files"),
    ] {
        let error = Store::open(&path).unwrap_err();
        assert!(!error.to_string().contains('\n'), "{what}: {error}");
        assert!(error.to_string().contains(&path.display().to_string()), "{what}: {error}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "not a folder");
}

/// A pipe has no writer that would ever come: it is refused and not waited for.
#[cfg(unix)]
#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let link = folder.path().join("link.db");
    std::os::unix::fs::symlink(&pipe, &link).unwrap();
    for path in [&pipe, &link, &"/dev/null".into()] {
        for error in [Store::open(path).unwrap_err(), Store::open_to_read(path).unwrap_err()] {
            assert!(error.to_string().contains("no regular file"), "{error}");
        }
    }
    // A link to a store is the store.
    let real = folder.path().join("real.db");
    let other = folder.path().join("other.db");
    std::os::unix::fs::symlink(&real, &other).unwrap();
    drop(Store::open(&real).unwrap());
    assert_eq!(Store::open_to_read(&other).unwrap().count(Filter::default()).unwrap(), 0);
}

/// Everything that reading and writing do to a store of any content; errors are fine, crashes are not.
fn exercise(path: &Path) -> Result<(), RecordError> {
    let mut store = Store::open(path)?;
    store.count(Filter::default())?;
    store.count(Filter { status: Some(Status::Done), limit: None })?;
    for record in store.newest(Filter { limit: Some(5), status: None })? {
        store.repeats(&record.run.run_id)?;
        store.children(&record.run.run_id)?;
    }
    store.plan_json("0123")?;
    store.insert(&record(99), Some("{}"))
}

#[test]
fn damage_anywhere_is_an_error_of_one_line_or_none() {
    let folder = tempfile::tempdir().unwrap();
    let (path, mut store) = opened(folder.path());
    for number in 0..20 {
        store.insert(&record(number), Some("{}")).unwrap();
    }
    drop(store);
    let whole = std::fs::read(&path).unwrap();
    let mut told = 0;
    let mut check = |bytes: &[u8], what: &str| {
        let damaged = folder.path().join("damaged.db");
        std::fs::write(&damaged, bytes).unwrap();
        if let Err(error) = exercise(&damaged) {
            let text = error.to_string();
            assert!(!text.contains('\n') && text.len() < 500, "{what}: {text}");
            told += 1;
        }
        for ending in ["", "-wal", "-shm"] {
            std::fs::remove_file(folder.path().join(format!("damaged.db{ending}"))).ok();
        }
    };
    // Cut at every page and in the header, and single bytes turned, the header's all.
    for length in (0..100).step_by(9).chain((0..whole.len()).step_by(4096)) {
        check(&whole[..length], &format!("cut to {length}"));
    }
    let mut state = 1u64;
    for at in (0..100).chain((0..150).map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % whole.len()
    })) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0xff;
        check(&bytes, &format!("byte {at} turned"));
    }
    check(b"", "empty");
    check(&[0; 8192], "zeros");
    check(
        "not a database at all, but long enough to be taken for one".repeat(9).as_bytes(),
        "text",
    );
    assert!(told > 30, "only {told} were noticed");
}

#[test]
fn a_full_disk_leaves_the_store_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let (path, mut store) = opened(folder.path());
    let first = record(1);
    store.insert(&first, None).unwrap();
    let pages: i64 = store.query_number("PRAGMA page_count").unwrap();
    store.query_number(&format!("PRAGMA max_page_count = {pages}")).unwrap();
    let mut big = record(2);
    big.conditions.prompt = Some("x".repeat(1 << 20));
    let error = store.insert(&big, None).unwrap_err();
    assert!(matches!(error, RecordError::Storage { .. }), "{error}");
    assert!(error.to_string().contains("full"), "{error}");
    drop(store);
    let store = Store::open(&path).unwrap();
    assert_eq!(store.count(Filter::default()).unwrap(), 1);
    assert_eq!(store.get(&first.run.run_id).unwrap(), first);
}

#[test]
fn a_hundred_thousand_records_are_listed_in_a_moment() {
    let folder = tempfile::tempdir().unwrap();
    let (path, mut store) = opened(folder.path());
    let count = if std::env::var_os("PLIMSOLL_KILLS").is_some() { 100_000 } else { 20_000 };
    for chunk in 0..count / 10_000 {
        let records: Vec<_> = (0..10_000).map(|at| record(chunk * 10_000 + at)).collect();
        let all: Vec<_> = records.iter().map(|record| (record, None)).collect();
        store.insert_all(&all).unwrap();
    }
    drop(store);
    let began = Instant::now();
    let store = Store::open_to_read(&path).unwrap();
    let found = store.newest(Filter { limit: Some(20), status: Some(Status::Failed) }).unwrap();
    for record in &found {
        store.repeats(&record.run.run_id).unwrap();
    }
    assert_eq!(store.count(Filter::default()).unwrap(), count);
    let took = began.elapsed();
    assert_eq!(found.len(), 20);
    assert!(took < Duration::from_millis(100), "{took:?}");
    println!("20 of {count} in {took:?}");
}
