//! Ranges for NVIDIA's profilers: a step of the loop or a phase, a block, an op, a copy.
//!
//! A profiler that wants them names its library in `NVTX_INJECTION64_PATH`. That library is told where an
//! application keeps its pointers to the functions of NVTX, and writes its own there; without the variable, nothing
//! is looked up, nothing is kept and nothing is called. This is the protocol of NVTX 3 (`nvtxDetail/nvtxTypes.h`),
//! which needs no library of NVTX's: CUDA 13 has none any more.
//! A range covers the putting of work on a stream; profilers project it onto the work itself.
//!
//! Relies on, for soundness: functions have the types of NVTX 3, take a string that lives through the call, and may be
//! called from any thread; the profiler's library stays loaded.

use std::ffi::{CString, OsStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use libloading::Library;
use plimsoll_device::{Command, Program};

type Push = unsafe extern "C" fn(*const c_char) -> c_int;
type Pop = unsafe extern "C" fn() -> c_int;
type ExportTable = unsafe extern "C" fn(u32) -> *const c_void;
type Initialize = unsafe extern "C" fn(ExportTable) -> c_int;

/// Set by a profiler.
const LISTENER: &str = "NVTX_INJECTION64_PATH";
/// What its library is called by.
const INITIALIZE: &[u8] = b"InitializeInjectionNvtx2\0";

/// `NVTX_ETID_CALLBACKS`, `NVTX_ETID_VERSIONINFO`.
const CALLBACKS: u32 = 1;
const VERSION_INFO: u32 = 3;
/// Functions of each `NvtxCallbackModule`, one more than there are: number 0 is none. A profiler may ask for all of
/// them; those of [`CORE`], without domains, are called.
const MODULES: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];
/// The largest of them.
const FUNCTIONS_MAX: usize = 16;
/// `NVTX_CB_MODULE_CORE`.
const CORE: usize = 1;
/// `NVTX_CBID_CORE_RangePushA`, `NVTX_CBID_CORE_RangePop`.
const RANGE_PUSH: usize = 9;
const RANGE_POP: usize = 11;
/// `NVTX_VERSION` of the protocol.
const VERSION: u32 = 3;

/// Where a profiler writes its functions; null until then.
static SLOTS: [Slots; MODULES.len()] =
    [const { [const { AtomicPtr::new(ptr::null_mut()) }; FUNCTIONS_MAX] }; MODULES.len()];

type Slots = [AtomicPtr<c_void>; FUNCTIONS_MAX];

/// Addresses of the slots, as the profiler is given them.
struct Places([[*const AtomicPtr<c_void>; FUNCTIONS_MAX]; MODULES.len()]);

// SAFETY: addresses of statics.
unsafe impl Sync for Places {}

static PLACES: Places = {
    let mut places = [[ptr::null(); FUNCTIONS_MAX]; MODULES.len()];
    let mut at = 0;
    while at < MODULES.len() * FUNCTIONS_MAX {
        let (module, function) = (at / FUNCTIONS_MAX, at % FUNCTIONS_MAX);
        places[module][function] = &raw const SLOTS[module][function];
        at += 1;
    }
    Places(places)
};

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    bytes: usize,
    table: unsafe extern "C" fn(c_int, *mut *const *const AtomicPtr<c_void>, *mut c_uint) -> c_int,
}

/// `NvtxExportTableVersionInfo`.
#[repr(C)]
struct VersionInfo {
    bytes: usize,
    version: u32,
    reserved: u32,
    set_version: unsafe extern "C" fn(u32),
}

static CALLBACK_TABLE: Callbacks = Callbacks { bytes: size_of::<Callbacks>(), table: module_table };

static VERSION_TABLE: VersionInfo = VersionInfo {
    bytes: size_of::<VersionInfo>(),
    version: VERSION,
    reserved: 0,
    set_version: heed_not,
};

/// A profiler says its version.
unsafe extern "C" fn heed_not(_version: u32) {}

/// Tells the profiler of a module's slots.
unsafe extern "C" fn module_table(
    module: c_int,
    table: *mut *const *const AtomicPtr<c_void>,
    size: *mut c_uint,
) -> c_int {
    let found = usize::try_from(module).ok().filter(|module| *module > 0);
    let (Some(places), Some(functions)) =
        (found.and_then(|at| PLACES.0.get(at)), found.and_then(|at| MODULES.get(at)))
    else {
        return 0;
    };
    if !table.is_null() {
        // SAFETY: the profiler gives a place for the table or null.
        unsafe { *table = places.as_ptr() };
    }
    if !size.is_null() {
        // SAFETY: the same for its size.
        unsafe { *size = *functions as c_uint };
    }
    1
}

unsafe extern "C" fn export_table(id: u32) -> *const c_void {
    match id {
        CALLBACKS => (&raw const CALLBACK_TABLE).cast(),
        VERSION_INFO => (&raw const VERSION_TABLE).cast(),
        _ => ptr::null(),
    }
}

#[derive(Debug)]
struct Nvtx {
    push: Push,
    pop: Pop,
}

impl Nvtx {
    /// What the profiler of this process listens with.
    fn get() -> Option<&'static Self> {
        static NVTX: OnceLock<Option<Nvtx>> = OnceLock::new();
        NVTX.get_or_init(|| Self::attach(&std::env::var_os(LISTENER)?)).as_ref()
    }

    /// Loads a profiler's library and lets it write its functions; `None` if it does not want ranges.
    fn attach(path: &OsStr) -> Option<Self> {
        // SAFETY: the library's initialisers load the profiler that the person has asked for.
        let library = unsafe { Library::new(path) }.ok()?;
        // Never unloaded: its functions are called until the process ends.
        let library: &'static Library = Box::leak(Box::new(library));
        // SAFETY: see the head of this file.
        let initialize = *unsafe { library.get::<Initialize>(INITIALIZE) }.ok()?;
        // SAFETY: as above; the table is of this file.
        if unsafe { initialize(export_table) } == 0 {
            return None;
        }
        let [push, pop] = [RANGE_PUSH, RANGE_POP].map(|at| SLOTS[CORE][at].load(Ordering::Acquire));
        if push.is_null() || pop.is_null() {
            return None;
        }
        Some(Self {
            // SAFETY: the profiler wrote a function of this type to the slot of this number.
            push: unsafe { std::mem::transmute::<*mut c_void, Push>(push) },
            // SAFETY: as above.
            pop: unsafe { std::mem::transmute::<*mut c_void, Pop>(pop) },
        })
    }

    fn push(&self, name: &CString) {
        // SAFETY: see the head of this file. The depth that it returns is of no use.
        let _ = unsafe { (self.push)(name.as_ptr()) };
    }

    fn pop(&self) {
        // SAFETY: see the head of this file.
        let _ = unsafe { (self.pop)() };
    }
}

/// The names of a program's ranges, made before it runs.
#[derive(Debug)]
pub(crate) struct Ranges {
    nvtx: &'static Nvtx,
    marks: Vec<CString>,
    copies: Vec<CString>,
    ops: Vec<CString>,
    /// Of the block that begins with an op.
    blocks: Vec<CString>,
}

/// Which ranges are open on a lane's thread.
#[derive(Debug, Default)]
pub(crate) struct Open {
    mark: bool,
    block: bool,
}

impl Ranges {
    /// `None` where nobody listens.
    pub(crate) fn new(program: &Program<'_>) -> Option<Self> {
        let nvtx = Nvtx::get()?;
        let ops = || program.ops.iter().map(|op| op.op.name.as_str());
        Some(Self {
            nvtx,
            marks: program.mark_names.iter().map(|name| text(name)).collect(),
            copies: program.copies.iter().map(|copy| text(&copy.name)).collect(),
            ops: ops().map(text).collect(),
            blocks: ops().map(|name| text(block(name))).collect(),
        })
    }

    /// Opens what a command begins, before it is issued; true if [`Ranges::end`] is to be called after it.
    pub(crate) fn begin(&self, command: Command, open: &mut Open) -> bool {
        match command {
            Command::Copy { copy, .. } => self.push(&self.copies, copy),
            Command::Run { op, .. } => {
                if !open.block {
                    open.block = self.push(&self.blocks, op);
                }
                self.push(&self.ops, op)
            }
            // A signal of the compute lane ends a block, a mark ends what was before it.
            Command::Signal => {
                self.close(&mut open.block);
                false
            }
            Command::Mark(mark) => {
                self.close(&mut open.block);
                self.close(&mut open.mark);
                open.mark = self.push(&self.marks, mark);
                false
            }
            Command::Wait { .. } => false,
        }
    }

    /// Closes the range of a command.
    pub(crate) fn end(&self) {
        self.nvtx.pop();
    }

    /// Closes what a lane has left open.
    pub(crate) fn end_all(&self, open: &mut Open) {
        self.close(&mut open.block);
        self.close(&mut open.mark);
    }

    fn push(&self, names: &[CString], at: u32) -> bool {
        let name = names.get(at as usize);
        if let Some(name) = name {
            self.nvtx.push(name);
        }
        name.is_some()
    }

    fn close(&self, is_open: &mut bool) {
        if std::mem::take(is_open) {
            self.nvtx.pop();
        }
    }
}

/// An op's name without its last part.
fn block(op: &str) -> &str {
    op.rsplit_once('.').map_or(op, |(block, _)| block)
}

fn text(name: &str) -> CString {
    // A name with a NUL is cut there.
    let name = name.split('\0').next().unwrap_or_default();
    CString::new(name).unwrap_or_default()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::path::Path;
    use std::process::Command as Process;

    use super::*;

    /// A profiler that keeps the names of open ranges.
    const PROFILER: &str = r#"
        #include <stdint.h>
        #include <stddef.h>
        #include <string.h>
        static int depth, most; static char last[64];
        static int push(const char *name) { strncpy(last, name, 63); if (++depth > most) most = depth; return depth - 1; }
        static int pop(void) { return --depth; }
        int seen(char *name) { strcpy(name, last); return most * 100 + depth; }
        struct callbacks { size_t bytes; int (*table)(int, void ****, unsigned *); };
        struct version { size_t bytes; uint32_t version, reserved; void (*set)(uint32_t); };
        int InitializeInjectionNvtx2(const void *(*get)(uint32_t)) {
            const struct version *version = get(3);
            if (version) version->set(3);
            const struct callbacks *callbacks = get(1);
            void ***table = NULL; unsigned size = 0;
            if (get(2) || callbacks->bytes != sizeof *callbacks || callbacks->table(7, &table, &size)) return 0;
            if (!callbacks->table(5, &table, &size) || size != 16 || !table[4]) return 0;
            if (!callbacks->table(1, &table, &size) || size < 12) return 0;
            *table[9] = (void *)push; *table[11] = (void *)pop;
            return 1;
        }"#;

    fn build(folder: &Path) -> std::path::PathBuf {
        let (source, library) = (folder.join("profiler.c"), folder.join("profiler.so"));
        std::fs::write(&source, PROFILER).expect("written");
        let mut cc = Process::new("cc");
        let made = cc.args(["-shared", "-fPIC", "-o"]).args([&library, &source]);
        assert!(made.status().expect("a C compiler").success());
        library
    }

    #[test]
    fn a_profiler_hears_ranges_that_begin_and_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = build(folder.path());
        let nvtx = Nvtx::attach(path.as_os_str()).expect("it listens");
        nvtx.push(&text("step 3"));
        nvtx.push(&text("double.4/qkv\0cut"));
        nvtx.pop();
        // SAFETY: loaded above.
        let library = unsafe { Library::new(&path) }.expect("loaded");
        // SAFETY: the function of the source above.
        let seen = unsafe { library.get::<unsafe extern "C" fn(*mut c_char) -> c_int>(b"seen\0") };
        let mut name = [0; 64];
        // SAFETY: as above; 64 bytes are enough for the name.
        let depths = unsafe { seen.expect("there")(name.as_mut_ptr()) };
        assert_eq!(depths, 201, "two deep, one left");
        // SAFETY: a string that ends within the array.
        let name = unsafe { std::ffi::CStr::from_ptr(name.as_ptr()) };
        assert_eq!(name.to_str(), Ok("double.4/qkv"));
        nvtx.pop();
    }

    #[test]
    fn a_library_that_is_no_profiler_is_let_be() {
        assert!(Nvtx::attach(OsStr::new("libm.so.6")).is_none());
        assert!(Nvtx::attach(OsStr::new("/nonexistent/profiler.so")).is_none());
    }

    #[test]
    fn nobody_listens_here() {
        if std::env::var_os(LISTENER).is_none() {
            assert!(Ranges::new(&Program::default()).is_none());
        }
    }

    #[test]
    fn a_block_is_what_its_first_op_is_of() {
        assert_eq!(block("transformer.blocks.3.attn"), "transformer.blocks.3");
        assert_eq!(block("latent"), "latent");
        assert_eq!(text("a\0b").as_bytes(), b"a");
    }
}
