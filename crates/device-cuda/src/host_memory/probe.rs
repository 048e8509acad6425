//! Whether pages of a file can be lent to the card: tried in a child process, because on one machine a
//! registration never came back.
//!
//! The child is this very program, started again with a hidden first argument that [`probe_child`] answers; told to, it
//! makes a context, maps each file as `host` does, lends its first and last pages, copies them to the card and
//! back, and says one line a file. A file whose line does not come in time is unfit, and so is one whose bytes
//! come back changed. Results are kept by the file's identity for the life of the process.
//!
//! The child's context takes device memory while it lives: files are given to a device before its arena is taken. It is
//! a process that comes as well, and a card knows its own process by its coming: cards are opened and files tried one
//! after the other ([`alone`]).

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use plimsoll_host::{FileIdentity, SharedMapping};

use crate::CudaError;
use crate::driver::{self, Context, DeviceMemory, Ordinal, PinnedMemory, Rows, Stream};
use crate::signals::lock;

/// The hidden argument.
const ARGUMENT: &str = "__plimsoll-try-registration";

/// What a child is told when it may make its context.
const GO: &str = "go\n";

/// How long a file may take.
const FILE_LIMIT: Duration = Duration::from_secs(5);

/// How long a context may take.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Bytes that are tried at each end of a file.
const TRIED_BYTES: usize = 1 << 20;

/// How files are found fit for being lent to the card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probing {
    /// This program is started again; its `main` calls [`probe_child`] first. Where it has not, no file is tried, and
    /// none is lent.
    ThisProgram,
    /// Another program that does.
    Program(PathBuf),
    /// Every file is taken for fit.
    Skip,
}

/// Why a file is unfit.
pub(crate) type Verdict = Result<(), String>;

/// What is known of files.
static KNOWN: Mutex<Option<HashMap<FileIdentity, Verdict>>> = Mutex::new(None);

/// Whether this program answers the hidden argument: one that does not would start itself, open a card, and start
/// itself again.
static ANSWERS: AtomicBool = AtomicBool::new(false);

/// Held while a card is opened or files are tried.
static ALONE: Mutex<()> = Mutex::new(());

/// Waits until no other thread opens a card or tries files.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    lock(&ALONE)
}

/// Answers the hidden argument of a child process; `None` if this process is none. To be called first in `main`,
/// with the arguments after the program's name.
pub fn probe_child(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    ANSWERS.store(true, Ordering::SeqCst);
    let mut arguments = arguments.into_iter();
    if arguments.next()? != ARGUMENT {
        return None;
    }
    let index = arguments.next().and_then(|text| text.to_str()?.parse().ok());
    Some(match index.and_then(|index| answer(index, arguments).ok()) {
        Some(()) => ExitCode::SUCCESS,
        None => ExitCode::FAILURE,
    })
}

fn answer(index: u32, paths: impl Iterator<Item = OsString>) -> Result<(), CudaError> {
    let say = |line: &str| {
        let mut out = std::io::stdout().lock();
        // A parent that has gone needs no answer.
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    };
    driver::load()?;
    let mut told = String::new();
    // A parent that has gone says nothing, and no context is made for it.
    if std::io::stdin().read_line(&mut told).is_err() || told != GO {
        return Ok(());
    }
    let context = Context::new(Ordinal::new(index)?)?;
    let place = Place {
        device: DeviceMemory::new(&context, TRIED_BYTES as u64)?,
        back: PinnedMemory::new(&context, TRIED_BYTES)?,
        stream: Stream::new(&context)?,
    };
    say("ready");
    for path in paths {
        match try_file(&place, Path::new(&path)) {
            Ok(()) => say("fit"),
            // One line, whatever the error says.
            Err(cause) => say(&format!("unfit {}", cause.replace(['\n', '\r'], " "))),
        }
    }
    // The system takes it all back at once when the process ends, sooner than piece by piece; the parent waits for that.
    std::mem::forget((place, context));
    Ok(())
}

/// Where bytes are copied to and back.
struct Place {
    device: DeviceMemory,
    back: PinnedMemory,
    stream: Stream,
}

/// Lends the first and last pages of a file, and copies them to the card and back.
fn try_file(place: &Place, path: &Path) -> Result<(), String> {
    let mapping = SharedMapping::open(path).map_err(|error| error.to_string())?;
    let bytes = mapping.bytes();
    if bytes.is_empty() {
        return Ok(());
    }
    let last = bytes.len().saturating_sub(TRIED_BYTES).max(TRIED_BYTES.min(bytes.len()));
    for range in [&bytes[..TRIED_BYTES.min(bytes.len())], &bytes[last..]] {
        if !range.is_empty() {
            // SAFETY: the mapping lives to the end of this function, and the range is taken back right below.
            unsafe { driver::register(range) }.map_err(|error| error.to_string())?;
            let tried = place.round_trip(range);
            let back = driver::unregister(range.as_ptr());
            if !tried.and_then(|same| back.map(|()| same)).map_err(|error| error.to_string())? {
                return Err("other bytes arrived on the card".to_owned());
            }
        }
    }
    Ok(())
}

impl Place {
    /// Whether a range, of at most [`TRIED_BYTES`], comes back as it was.
    fn round_trip(&self, range: &[u8]) -> Result<bool, CudaError> {
        let Self { device, back, stream } = self;
        // SAFETY: `device` is no smaller, and both live until the stream is empty.
        unsafe { stream.copy_in(device.base(), range.as_ptr(), range.len()) }?;
        let rows = Rows { rows: 1, row_bytes: range.len(), pitch_bytes: range.len() };
        // SAFETY: as above, and so is `back`.
        unsafe { stream.copy_rows_out(back.base(), device.base(), rows) }?;
        stream.synchronize()?;
        // SAFETY: pinned memory of that length, which the stream has written and left.
        Ok(unsafe { std::slice::from_raw_parts(back.base(), range.len()) } == range)
    }
}

/// A verdict for each mapping, in order.
pub(crate) fn fit(mappings: &[SharedMapping], index: u32, probing: &Probing) -> Vec<Verdict> {
    match program(probing) {
        None => return vec![Ok(()); mappings.len()],
        Some(Err(cause)) => return vec![Err(cause); mappings.len()],
        Some(Ok(_)) => {}
    }
    let _alone = alone();
    if let Some(trial) = Trial::start(mappings, index, probing) {
        trial.finish();
    }
    let known = lock(&KNOWN);
    let verdict = |mapping: &SharedMapping| known.as_ref()?.get(&mapping.identity()).cloned();
    let unsaid = || Err("it was not tried".to_owned());
    mappings.iter().map(|mapping| verdict(mapping).unwrap_or_else(unsaid)).collect()
}

/// The program that a child runs; nothing where no file is tried.
fn program(probing: &Probing) -> Option<Result<PathBuf, String>> {
    match probing {
        Probing::Skip => None,
        Probing::Program(program) => Some(Ok(program.clone())),
        Probing::ThisProgram if !ANSWERS.load(Ordering::SeqCst) => {
            Some(Err("this program does not answer as a child that tries them".to_owned()))
        }
        Probing::ThisProgram => Some(std::env::current_exe().map_err(|error| error.to_string())),
    }
}

/// A child for the files that have no verdict yet: it starts the driver at once, which takes as long as that of this
/// process, and makes no context before [`Trial::go`].
pub(crate) struct Trial {
    program: PathBuf,
    index: u32,
    files: Vec<SharedMapping>,
    child: Option<Asked>,
}

impl Trial {
    /// Nothing where every verdict is there or none is needed, or there is no program to start, which [`fit`] tells. To be
    /// called [`alone`].
    pub(crate) fn start(mappings: &[SharedMapping], index: u32, probing: &Probing) -> Option<Self> {
        let program = program(probing)?.ok()?;
        let known = lock(&KNOWN);
        let mut files: Vec<SharedMapping> = Vec::new();
        for mapping in mappings {
            let identity = mapping.identity();
            let is_known = known.as_ref().is_some_and(|known| known.contains_key(&identity));
            if !is_known && !files.iter().any(|other| other.identity() == identity) {
                files.push(mapping.clone());
            }
        }
        drop(known);
        if files.is_empty() {
            return None;
        }
        // One that cannot be started is tried again where verdicts are wanted, and there the reason is told.
        let child = Asked::start(&program, index, &paths(&files)).ok();
        Some(Self { program, index, files, child })
    }

    /// Lets the child make its context.
    pub(crate) fn go(&mut self) {
        if let Some(child) = &mut self.child {
            child.go();
        }
    }

    /// Waits for verdicts and keeps them.
    pub(crate) fn finish(mut self) {
        self.go();
        let child = self.child.take();
        let verdicts = try_all(&self.program, self.index, &paths(&self.files), child);
        let mut known = lock(&KNOWN);
        let known = known.get_or_insert_default();
        known.extend(self.files.iter().map(SharedMapping::identity).zip(verdicts));
    }
}

fn paths(files: &[SharedMapping]) -> Vec<&Path> {
    files.iter().map(SharedMapping::path).collect()
}

/// Asks children until each file has its verdict, the first of them perhaps started already; a file that a child hangs
/// or dies on is unfit.
fn try_all(program: &Path, index: u32, paths: &[&Path], first: Option<Asked>) -> Vec<Verdict> {
    let mut verdicts = Vec::with_capacity(paths.len());
    let mut started = first;
    while verdicts.len() < paths.len() {
        let rest = &paths[verdicts.len()..];
        let before = verdicts.len();
        let asked = started.take().map_or_else(|| Asked::start(program, index, rest), Ok);
        let end = asked.and_then(|asked| asked.hear(rest.len(), &mut verdicts));
        if let Err(end) = end {
            let is_start = matches!(end, End::NoStart(_));
            let (End::NoStart(cause) | End::Stopped(cause)) = end;
            let lost = if is_start { paths.len() - verdicts.len() } else { 1 };
            verdicts.extend(std::iter::repeat_n(Err(cause), lost));
        }
        debug_assert!(verdicts.len() > before, "every child answers for a file");
    }
    verdicts
}

/// How a child ended before it had answered for all.
enum End {
    /// It never made a context.
    NoStart(String),
    /// On the file that comes next.
    Stopped(String),
}

/// A child that was asked.
struct Asked {
    /// Taken when it is waited for.
    child: Option<Child>,
    lines: Receiver<String>,
}

impl Asked {
    /// Starts a child for `paths`.
    fn start(program: &Path, index: u32, paths: &[&Path]) -> Result<Self, End> {
        let mut command = Command::new(program);
        command.arg(ARGUMENT).arg(index.to_string()).args(paths);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command
            .spawn()
            .map_err(|error| End::NoStart(format!("cannot start a process to try it: {error}")))?;
        match lines_of(&mut child) {
            Ok(lines) => Ok(Self { child: Some(child), lines }),
            Err(error) => {
                // It waits for its word; without one it ends.
                let _ended = child.kill().and_then(|()| child.wait());
                Err(End::NoStart(format!("cannot start a thread to try it: {error}")))
            }
        }
    }

    /// Lets it make its context.
    fn go(&mut self) {
        if let Some(mut told) = self.child.as_mut().and_then(|child| child.stdin.take()) {
            // One that has ended says so by what it does not answer.
            let _ = told.write_all(GO.as_bytes());
        }
    }

    /// Adds a verdict for each file that it answers for, of so many.
    fn hear(mut self, files: usize, verdicts: &mut Vec<Verdict>) -> Result<(), End> {
        self.go();
        let answered = hear(&self.lines, files, verdicts);
        if let Some(child) = self.child.take() {
            finish(child);
        }
        answered
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        // Nobody wants its answers: the card could not be opened, for instance.
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            finish(child);
        }
    }
}

fn hear(lines: &Receiver<String>, files: usize, verdicts: &mut Vec<Verdict>) -> Result<(), End> {
    let next = |limit: Duration, what: &str| match lines.recv_timeout(limit) {
        Ok(line) => Ok(line),
        Err(RecvTimeoutError::Timeout) => {
            Err(format!("{what} took more than {} s", limit.as_secs()))
        }
        Err(RecvTimeoutError::Disconnected) => Err(format!("{what} ended the process")),
    };
    let first = next(START_LIMIT, "a context in another process").map_err(End::NoStart)?;
    if first != "ready" {
        return Err(End::NoStart("the program does not answer".to_owned()));
    }
    for _ in 0..files {
        let line = next(FILE_LIMIT, "trying it").map_err(End::Stopped)?;
        verdicts.push(match line.strip_prefix("unfit ") {
            Some(cause) => Err(cause.to_owned()),
            None if line == "fit" => Ok(()),
            None => Err("the program does not answer".to_owned()),
        });
    }
    Ok(())
}

/// A thread that hands on the child's lines; it ends with the child.
fn lines_of(child: &mut Child) -> std::io::Result<Receiver<String>> {
    let (sender, receiver) = channel();
    if let Some(out) = child.stdout.take() {
        std::thread::Builder::new().spawn(move || {
            let lines = BufReader::new(out).lines();
            // Ends when the child does, or when nobody listens any more.
            for line in lines.map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        })?;
    }
    Ok(receiver)
}

/// Ends a child; one that hangs in the kernel is left to a thread that waits for it.
fn finish(mut child: Child) {
    let begin = Instant::now();
    // A child that has answered ends by itself within moments.
    while begin.elapsed() < Duration::from_secs(2) {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
        if begin.elapsed() > Duration::from_millis(500) {
            // It may have ended meanwhile.
            let _ = child.kill();
        }
    }
    // Without a thread it is left to the system, which has nothing else to do for it than to wait.
    let _waiting = std::thread::Builder::new().spawn(move || child.wait());
}

#[cfg(all(test, unix))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

    use super::*;

    /// A program that behaves as told by the names of its files.
    fn stand_in(folder: &Path) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = folder.join("child");
        let script = "#!/bin/sh\n[ \"$1\" = __plimsoll-try-registration ] || exit 3\nshift 2\necho ready\n\
            for f; do case \"$f\" in *good) echo fit;; *bad) echo unfit it is odd;; *die) exit 1;; \
            *hang) exec sleep 60;; *) echo what;; esac; done\n";
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn a_child_that_hangs_or_dies_costs_its_own_file_only() {
        let folder = tempfile::tempdir().unwrap();
        let program = stand_in(folder.path());
        let paths = ["a.good", "b.bad", "c.die", "d.good", "e.hang", "f.other", "g.good"];
        let paths: Vec<&Path> = paths.iter().map(Path::new).collect();
        let begin = Instant::now();
        let verdicts = try_all(&program, 0, &paths, None);
        assert!(begin.elapsed() < FILE_LIMIT + Duration::from_secs(8));
        let fit: Vec<bool> = verdicts.iter().map(Result::is_ok).collect();
        assert_eq!(fit, [true, false, false, true, false, false, true]);
        assert_eq!(verdicts[1], Err("it is odd".to_owned()));
        assert_eq!(verdicts[2], Err("trying it ended the process".to_owned()));
        assert_eq!(verdicts[4], Err("trying it took more than 5 s".to_owned()));
    }

    #[test]
    fn a_program_that_cannot_be_started_makes_all_unfit() {
        let paths = [Path::new("a"), Path::new("b")];
        let none = try_all(Path::new("/nonexistent/program"), 0, &paths, None);
        assert!(none.iter().all(Result::is_err) && none.len() == 2);
        let silent = try_all(Path::new("/bin/true"), 0, &paths, None);
        let cause = "a context in another process ended the process".to_owned();
        assert_eq!(silent, vec![Err(cause.clone()), Err(cause)]);
    }

    /// Threads that want verdicts on the same files start one child.
    #[test]
    fn files_are_tried_once_however_many_threads_ask() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (program, starts) = (folder.path().join("child"), folder.path().join("starts"));
        let script = format!(
            "#!/bin/sh\necho start >> '{}'\nread told\necho ready\nshift 2\nsleep 0.1\n\
             for f; do echo fit; done\n",
            starts.display()
        );
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(folder.path().join("weights"), [1; 100]).unwrap();
        let mapping = SharedMapping::open(&folder.path().join("weights")).unwrap();
        let probing = Probing::Program(program);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    assert_eq!(fit(std::slice::from_ref(&mapping), 0, &probing), [Ok(())])
                });
            }
        });
        assert_eq!(std::fs::read_to_string(&starts).unwrap(), "start\n");
    }

    #[test]
    fn other_arguments_are_not_a_childs() {
        assert!(probe_child(Vec::new()).is_none());
        assert!(probe_child(vec![OsString::from("generate")]).is_none());
        assert!(probe_child(vec![OsString::from(ARGUMENT)]).is_some());
    }
}
