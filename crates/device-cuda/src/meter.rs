//! What the system says this process holds of the card's memory.
//!
//! The process's own figure comes from NVML, which is opened by its bare name and is absent without harm: six
//! functions, a table of their own. In a container the process has another number there than here; so the
//! processes are listed before the context is made, and the one that has come afterwards is this one.
//! Where NVML gives no figure (Windows' display driver, some virtual machines), the whole device's stands for it,
//! which is never less.
//!
//! [`CardMeter`] is the same beside a run: it has no context, so that it also sees the card before one is made and
//! after it is gone.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;

use libloading::Library;
use plimsoll_device::Reading;

use crate::CudaError;
use crate::driver::{self, Context, Ordinal};

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

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct MemoryInfo {
    total_bytes: u64,
    free_bytes: u64,
    used_bytes: u64,
}

type ReadMemory = unsafe extern "C" fn(Handle, *mut MemoryInfo) -> Status;

type ListProcesses = unsafe extern "C" fn(Handle, *mut c_uint, *mut ProcessInfo) -> Status;

/// NVML's table.
struct Nvml {
    list: ListProcesses,
    memory: ReadMemory,
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
        // SAFETY: as above.
        let memory = *unsafe { library.get::<ReadMemory>(b"nvmlDeviceGetMemoryInfo") }.ok()?;
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
        Some(Self { list, memory, shutdown, device, _library: library })
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

impl Nvml {
    /// Bytes of the whole device that anybody holds.
    fn device_bytes(&self) -> Option<u64> {
        let mut found = MemoryInfo::default();
        // SAFETY: the device is NVML's own; a live local of the struct that the call fills.
        let status = unsafe { (self.memory)(self.device, &raw mut found) };
        (status == SUCCESS).then_some(found.used_bytes)
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

/// Reads a card's memory by NVML alone, while programs run and where no card is open.
pub struct CardMeter {
    nvml: Option<Nvml>,
    /// Numbers that were there before this process had a context.
    others: Vec<u32>,
    /// This process's number as NVML has it, once it was seen to come.
    own: OnceLock<u32>,
}

impl std::fmt::Debug for CardMeter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CardMeter").field("own", &self.own).finish_non_exhaustive()
    }
}

impl CardMeter {
    /// Opens NVML for the card of an index. To be called before the card is opened: this process is known by its coming.
    ///
    /// # Errors
    /// [`CudaError::NoDriver`] and its like, [`CudaError::NoSuchDevice`]. A machine with a card and without NVML gives a
    /// meter that reads nothing.
    pub fn open(index: u32) -> Result<Self, CudaError> {
        driver::load()?;
        let nvml = Nvml::open(&Ordinal::new(index)?.bus_id()?);
        let listed = nvml.as_ref().and_then(Nvml::processes).unwrap_or_default();
        let others = listed.iter().map(|process| process.pid).collect();
        Ok(Self { nvml, others, own: OnceLock::new() })
    }

    /// This process's figure in a list: none where it cannot be told, 0 where it is not listed.
    fn process_bytes(&self, listed: &[ProcessInfo]) -> Option<u64> {
        let pids: Vec<u32> = listed.iter().map(|process| process.pid).collect();
        let own = self.own.get().copied().or_else(|| {
            let found = own_pid(&self.others, &pids, std::process::id())?;
            Some(*self.own.get_or_init(|| found))
        });
        let found = listed.iter().find(|process| Some(process.pid) == own);
        match (own, found) {
            (_, Some(process)) => Some(process.used_bytes).filter(|bytes| *bytes != UNKNOWN),
            (Some(_), None) => Some(0),
            // Nobody has come: this process has no context. Several have: which is this one?
            (None, None) => pids.iter().all(|pid| self.others.contains(pid)).then_some(0),
        }
    }
}

impl plimsoll_device::Meter for CardMeter {
    fn read(&self) -> Reading {
        let Some(nvml) = &self.nvml else { return Reading::default() };
        Reading {
            process_bytes: nvml.processes().and_then(|listed| self.process_bytes(&listed)),
            device_bytes: nvml.device_bytes(),
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
    fn a_card_meter_knows_this_process_before_between_and_after_its_contexts() {
        let process = |pid, used_bytes| ProcessInfo { pid, used_bytes, ..ProcessInfo::default() };
        let meter = |others: &[u32]| CardMeter {
            nvml: None,
            others: others.to_vec(),
            own: OnceLock::new(),
        };
        let here = meter(&[100]);
        assert_eq!(here.process_bytes(&[process(100, 7)]), Some(0), "before");
        assert_eq!(here.process_bytes(&[process(100, 7), process(4321, 512)]), Some(512));
        assert_eq!(here.process_bytes(&[process(100, 7)]), Some(0), "after");
        // Another that comes later is not taken for this one.
        assert_eq!(here.process_bytes(&[process(100, 7), process(555, 9)]), Some(0));
        let two = meter(&[]);
        assert_eq!(two.process_bytes(&[process(1, 7), process(2, 7)]), None, "which is it?");
        let hidden = meter(&[]);
        assert_eq!(hidden.process_bytes(&[process(9, UNKNOWN)]), None, "listed, without a figure");
        assert_eq!(plimsoll_device::Meter::read(&meter(&[])), Reading::default());
    }

    #[test]
    fn the_structs_are_nvmls() {
        assert_eq!(std::mem::size_of::<ProcessInfo>(), 24);
        assert_eq!(std::mem::size_of::<MemoryInfo>(), 24);
    }
}
