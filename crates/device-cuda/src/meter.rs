//! What the system says this process holds of the card's memory.
//!
//! The process's own figure comes from NVML, which is opened by its bare name and is absent without harm: five
//! functions, a table of their own. In a container the process has another number there than here; so the
//! processes are listed before the context is made, and the one that has come afterwards is this one.
//! Where NVML gives no figure (Windows' display driver, some virtual machines), the whole device's stands for it,
//! which is never less.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr;

use libloading::Library;

use crate::CudaError;
use crate::driver::Context;

type Status = c_int;
type Handle = *mut c_void;

const SUCCESS: Status = 0;
const INSUFFICIENT_SIZE: Status = 7;
/// The figure of a process that NVML does not know.
const UNKNOWN: u64 = u64::MAX;
/// Processes that a list may hold.
const PROCESSES_MAX: usize = 4096;

/// `nvmlProcessInfo_t` of version 2 and later.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ProcessInfo {
    pid: c_uint,
    used_bytes: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

type ListProcesses = unsafe extern "C" fn(Handle, *mut c_uint, *mut ProcessInfo) -> Status;

/// NVML's table.
struct Nvml {
    list: ListProcesses,
    shutdown: unsafe extern "C" fn() -> Status,
    device: Handle,
    /// Keeps the functions valid.
    _library: Library,
}

// SAFETY: NVML may be called from any thread.
unsafe impl Send for Nvml {}
// SAFETY: as above.
unsafe impl Sync for Nvml {}

impl Nvml {
    fn open(bus_id: &str) -> Option<Self> {
        let name = if cfg!(windows) { "nvml.dll" } else { "libnvidia-ml.so.1" };
        // SAFETY: the initialisers of NVIDIA's library have no preconditions.
        let library = unsafe { Library::new(name) }.ok()?;
        // SAFETY: the type is that of nvml.h.
        let init =
            unsafe { library.get::<unsafe extern "C" fn() -> Status>(b"nvmlInit_v2") }.ok()?;
        // SAFETY: as above.
        let shutdown =
            *unsafe { library.get::<unsafe extern "C" fn() -> Status>(b"nvmlShutdown") }.ok()?;
        type ByBus = unsafe extern "C" fn(*const c_char, *mut Handle) -> Status;
        // SAFETY: as above.
        let by_bus = unsafe { library.get::<ByBus>(b"nvmlDeviceGetHandleByPciBusId_v2") }.ok()?;
        let list = [
            &b"nvmlDeviceGetComputeRunningProcesses_v3"[..],
            b"nvmlDeviceGetComputeRunningProcesses_v2",
        ]
        .into_iter()
        // SAFETY: as above; both versions fill the same struct.
        .find_map(|name| unsafe { library.get::<ListProcesses>(name) }.ok())
        .map(|symbol| *symbol)?;
        let bus_id = CString::new(bus_id).ok()?;
        let mut device = ptr::null_mut();
        // SAFETY: no preconditions.
        if unsafe { init() } != SUCCESS {
            return None;
        }
        // SAFETY: initialised; a NUL-terminated text and a live local.
        if unsafe { by_bus(bus_id.as_ptr(), &raw mut device) } != SUCCESS {
            // SAFETY: initialised above.
            unsafe { shutdown() };
            return None;
        }
        Some(Self { list, shutdown, device, _library: library })
    }

    fn processes(&self) -> Option<Vec<ProcessInfo>> {
        let mut found = vec![ProcessInfo::default(); 64];
        loop {
            let mut count = c_uint::try_from(found.len()).ok()?;
            // SAFETY: the device is NVML's own; `found` has room for `count`.
            let status = unsafe { (self.list)(self.device, &raw mut count, found.as_mut_ptr()) };
            match status {
                SUCCESS => {
                    found.truncate(usize::try_from(count).ok()?);
                    return Some(found);
                }
                INSUFFICIENT_SIZE if found.len() < PROCESSES_MAX => {
                    found.resize(found.len() * 2, ProcessInfo::default());
                }
                _ => return None,
            }
        }
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: initialised in `open`.
        unsafe { (self.shutdown)() };
    }
}

/// Whose figure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeterKind {
    /// This process's own, by NVML.
    Process,
    /// The whole device's, by the driver: all processes counted.
    Device,
}

/// Reads what is held of the card's memory.
pub(crate) struct Meter {
    nvml: Option<Nvml>,
    /// Numbers that were there before the context.
    others: Vec<u32>,
    /// This process's number as NVML has it.
    own: Option<u32>,
}

impl std::fmt::Debug for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meter").field("own", &self.own).finish_non_exhaustive()
    }
}

impl Meter {
    /// Opens NVML for a card, before the card has a context of this process.
    pub(crate) fn open(bus_id: &str) -> Self {
        let nvml = Nvml::open(bus_id);
        let listed = nvml.as_ref().and_then(Nvml::processes).unwrap_or_default();
        Self { nvml, others: listed.iter().map(|process| process.pid).collect(), own: None }
    }

    /// Finds this process in the list, once it has a context.
    pub(crate) fn find_own(&mut self) {
        let listed = self.nvml.as_ref().and_then(Nvml::processes).unwrap_or_default();
        let pids: Vec<u32> = listed
            .iter()
            .filter(|process| process.used_bytes != UNKNOWN)
            .map(|process| process.pid)
            .collect();
        self.own = own_pid(&self.others, &pids, std::process::id());
    }

    /// Whose figure [`Meter::bytes`] is.
    pub(crate) fn kind(&self) -> MeterKind {
        if self.own.is_some() { MeterKind::Process } else { MeterKind::Device }
    }

    /// Bytes held now.
    pub(crate) fn bytes(&self, context: &Context) -> Result<u64, CudaError> {
        let own = self.own.and_then(|own| {
            let listed = self.nvml.as_ref()?.processes()?;
            let found = listed.iter().filter(|process| process.pid == own);
            found.map(|process| process.used_bytes).find(|bytes| *bytes != UNKNOWN)
        });
        match own {
            Some(bytes) => Ok(bytes),
            None => context.memory_info().map(|(free, total)| total.saturating_sub(free)),
        }
    }
}

/// Which of the listed numbers is this process's: its own number, if it has come or was there already with a
/// context of an earlier card, else the one that came.
fn own_pid(before: &[u32], now: &[u32], own: u32) -> Option<u32> {
    let came: Vec<u32> = now.iter().copied().filter(|pid| !before.contains(pid)).collect();
    if came.contains(&own) || (came.is_empty() && now.contains(&own)) {
        return Some(own);
    }
    match came[..] {
        [only] => Some(only),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_is_found_by_its_coming() {
        assert_eq!(own_pid(&[], &[7], 7), Some(7));
        // In a container: another number there.
        assert_eq!(own_pid(&[100, 200], &[100, 200, 4321], 7), Some(4321));
        // The number of another process of the host happens to be ours.
        assert_eq!(own_pid(&[7], &[7, 4321], 7), Some(4321));
        // A second card opened by the same process, or a context opened again.
        assert_eq!(own_pid(&[7, 9], &[9, 7], 7), Some(7));
        // Two came at once: neither can be told.
        assert_eq!(own_pid(&[1], &[1, 2, 3], 7), None);
        assert_eq!(own_pid(&[1], &[1], 7), None);
    }

    #[test]
    fn a_machine_without_nvml_has_no_own_figure() {
        let mut meter = Meter::open("0000:00:00.0");
        meter.find_own();
        if meter.nvml.is_none() {
            assert_eq!(meter.kind(), MeterKind::Device);
        }
    }

    #[test]
    fn the_process_struct_is_nvmls() {
        assert_eq!(std::mem::size_of::<ProcessInfo>(), 24);
    }
}
