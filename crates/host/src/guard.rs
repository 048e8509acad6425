//! Turns the SIGBUS of a shrunken weight file into one clear line and an exit code.
//!
//! The kernel answers a read of a mapped page that the file no longer has, or that the disk cannot
//! deliver, with SIGBUS; by default the process dies without a word. Nothing can be repaired at
//! that point (the read is inside a copy or a GEMM), so the handler says what happened and ends the
//! process. A SIGBUS elsewhere goes to whoever handled it before.
//!
//! Relies on, for soundness:
//! 1. the handler does only what is async-signal-safe: loads of atomics, writes to its own stack,
//!    `write`, `_exit`, `sigaction`, `raise`;
//! 2. names in [`REGIONS`] point to leaked memory, so they are valid for ever; their number is that
//!    of the distinct paths that were ever mapped;
//! 3. `PREVIOUS` is set before the handler is installed.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::io;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::EXIT_CODE;
use crate::error::HostError;

/// Most files mapped at once; a large model has some forty shards.
const REGIONS_MAX: usize = 1024;

/// An address range that belongs to a weight file. Free while `end` is 0.
struct Region {
    start: AtomicUsize,
    end: AtomicUsize,
    name: AtomicPtr<&'static str>,
}

static REGIONS: [Region; REGIONS_MAX] = [const {
    Region {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        name: AtomicPtr::new(ptr::null_mut()),
    }
}; REGIONS_MAX];

/// The names given out so far; its lock also orders all changes of [`REGIONS`].
static NAMES: Mutex<BTreeMap<&'static str, &'static &'static str>> = Mutex::new(BTreeMap::new());

/// What handled SIGBUS before.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// A range that the handler knows, until this is dropped.
#[derive(Debug)]
pub(crate) struct Watched {
    index: usize,
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        REGIONS[self.index].end.store(0, Ordering::Release);
    }
}

/// Makes the handler answer for `mapping`, installing it at the first call.
pub(crate) fn watch(mapping: &[u8], path: &Path) -> Result<Watched, HostError> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| install().map_err(|e| e.raw_os_error().unwrap_or(0)));
    if let Err(code) = installed {
        return Err(HostError::Guard { source: io::Error::from_raw_os_error(*code) });
    }

    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(index) = REGIONS.iter().position(|r| r.end.load(Ordering::Relaxed) == 0) else {
        return Err(HostError::TooManyFiles { path: path.to_owned(), cap: REGIONS_MAX });
    };
    let text = path.display().to_string();
    let name: &'static &'static str = match names.get(text.as_str()) {
        Some(name) => name,
        None => {
            let text: &'static str = text.leak();
            names.entry(text).or_insert(Box::leak(Box::new(text)))
        }
    };
    let start = mapping.as_ptr() as usize;
    let region = &REGIONS[index];
    region.name.store(ptr::from_ref(name).cast_mut(), Ordering::Relaxed);
    region.start.store(start, Ordering::Relaxed);
    // Published last: a handler that sees the end sees the rest.
    region.end.store(start + mapping.len(), Ordering::Release);
    Ok(Watched { index })
}

/// Takes pages of a watched mapping out of this process's page tables, as far as `bytes` holds them whole; other bytes
/// are left alone. They stay in the page cache, and come back when they are read again.
///
/// What is read once, while a thread waits for the device anyway, then costs nothing when the process ends: taking
/// 25 GB out of the page tables at once takes half a second.
pub fn let_go(bytes: &[u8]) {
    let start = bytes.as_ptr() as usize;
    let end = start + bytes.len();
    let is_watched =
        REGIONS.iter().any(|region| region.holds(start) && region.holds(end.saturating_sub(1)));
    // SAFETY: asks for a constant of the system.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(0);
    if !is_watched || page == 0 {
        return;
    }
    let (first, last) = (start.next_multiple_of(page), end - end % page);
    if first < last {
        // SAFETY: the pages are of a shared read-only mapping of a file that is alive as long as `bytes` is; dropping
        // them changes no byte that a later read sees. A refusal costs nothing.
        unsafe { libc::madvise(first as *mut c_void, last - first, libc::MADV_DONTNEED) };
    }
}

fn install() -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid `sigaction`: default action, empty mask, no flags.
    let mut previous: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a null new action only asks; `previous` is valid for writing.
    if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut previous) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // Only this function sets it, and it runs once.
    let _ = PREVIOUS.set(previous);

    // SAFETY: as above.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handle as *const () as usize;
    // The alternate stack, because Rust gives its threads one and a handler may need it.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `sa_mask` is valid for writing.
    unsafe { libc::sigemptyset(&raw mut action.sa_mask) };
    // SAFETY: `handle` has the signature that SA_SIGINFO asks for, and is async-signal-safe
    // (point 1 of the file's head).
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid `siginfo_t`.
    let info_ref = unsafe { &*info };
    // A positive code says that the kernel raised it at an address, not another process.
    if info_ref.si_code > 0 {
        // SAFETY: for a SIGBUS of the kernel the address field is the one that is set.
        let address = unsafe { info_ref.si_addr() } as usize;
        if let Some(region) = REGIONS.iter().find(|region| region.holds(address)) {
            report(region);
            // SAFETY: `_exit` may be called in a handler.
            unsafe { libc::_exit(EXIT_CODE) };
        }
    }
    pass_on(signal, info, context);
}

impl Region {
    fn holds(&self, address: usize) -> bool {
        let end = self.end.load(Ordering::Acquire);
        self.start.load(Ordering::Relaxed) <= address && address < end
    }
}

/// Writes the line in one call, so that it stays whole beside what other threads write.
fn report(region: &Region) {
    let mut line = [0u8; 1024];
    let mut length = 0;
    let mut append = |text: &[u8]| {
        for &byte in text {
            // A path may hold line breaks; the message stays one line. Room is kept for its end.
            if length < line.len() {
                line[length] = if byte < b' ' { b'?' } else { byte };
                length += 1;
            }
        }
    };
    append(b"error: ");
    // SAFETY: null, or a leaked `&'static str` that nobody writes to (point 2 of the file's head).
    if let Some(name) = unsafe { region.name.load(Ordering::Relaxed).as_ref() } {
        append(&name.as_bytes()[..name.len().min(800)]);
        append(b": ");
    }
    append(b"a weight file shrank or its disk failed while it was mapped; load the model again");
    line[length.min(line.len() - 1)] = b'\n';
    length = (length + 1).min(line.len());
    // SAFETY: the buffer holds `length` bytes; `write` may be called in a handler. Its result does
    // not matter: the process ends next.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), length) };
}

/// Gives a SIGBUS that is not ours to whoever handled it before.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let previous = PREVIOUS.get();
    let function = previous.map_or(libc::SIG_DFL, |previous| previous.sa_sigaction);
    if function == libc::SIG_IGN {
        return;
    }
    let flags = previous.map_or(0, |previous| previous.sa_flags);
    if function != libc::SIG_DFL && flags & libc::SA_SIGINFO != 0 {
        type WithInfo = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
        // SAFETY: SA_SIGINFO says that the stored word is a function of this type.
        let function = unsafe { std::mem::transmute::<usize, WithInfo>(function) };
        function(signal, info, context);
    } else if function != libc::SIG_DFL {
        // SAFETY: without SA_SIGINFO the stored word is a function of this type.
        let function = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(function) };
        function(signal);
    } else {
        // SAFETY: all-zero bytes are the default action.
        let action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: a valid action; nothing is asked back.
        unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) };
        // SAFETY: `raise` may be called in a handler; the signal comes when this one returns.
        unsafe { libc::raise(signal) };
    }
}
