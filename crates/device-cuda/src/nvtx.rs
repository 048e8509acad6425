//! Ranges for NVIDIA's profilers: a step of the loop or a phase, a block, an op, a copy.
//!
//! A profiler that wants them names its library in `NVTX_INJECTION64_PATH`; `libnvToolsExt` then hands ranges to it.
//! Without that variable, or without the library, nothing is looked up, nothing is kept and nothing is called. A range
//! covers the putting of work on a stream; profilers project it onto the work itself.
//!
//! Relies on, for soundness: the two functions have had their types since NVTX 1, take a string that lives through
//! the call, and may be called from any thread.

use std::ffi::{CString, c_char, c_int};
use std::sync::OnceLock;

use libloading::Library;
use plimsoll_device::{Command, Program};

type Push = unsafe extern "C" fn(*const c_char) -> c_int;
type Pop = unsafe extern "C" fn() -> c_int;

/// Set by a profiler.
const LISTENER: &str = "NVTX_INJECTION64_PATH";

/// Names that the library has had.
const LIBRARIES: [&str; 3] = ["libnvToolsExt.so.1", "libnvToolsExt.so", "nvToolsExt64_1.dll"];

#[derive(Debug)]
struct Nvtx {
    push: Push,
    pop: Pop,
    _library: Library,
}

impl Nvtx {
    fn open() -> Option<Self> {
        std::env::var_os(LISTENER)?;
        // SAFETY: the library's initialisers load the profiler that the person has asked for.
        let library = LIBRARIES.iter().find_map(|name| unsafe { Library::new(name) }.ok())?;
        // SAFETY: see the head of this file.
        let push = *unsafe { library.get::<Push>(b"nvtxRangePushA\0") }.ok()?;
        // SAFETY: as above.
        let pop = *unsafe { library.get::<Pop>(b"nvtxRangePop\0") }.ok()?;
        Some(Self { push, pop, _library: library })
    }

    fn get() -> Option<&'static Self> {
        static NVTX: OnceLock<Option<Nvtx>> = OnceLock::new();
        NVTX.get_or_init(Self::open).as_ref()
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

#[cfg(test)]
mod tests {
    use super::*;

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
