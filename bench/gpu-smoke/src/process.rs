//! What the system says this process holds: VRAM by NVML, RAM by the kernel.

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;

/// NVML, opened before the driver so that its first figure is the machine at rest.
pub(crate) struct Meter {
    nvml: Option<Nvml>,
}

impl Meter {
    /// Opens NVML; without it every figure is absent.
    pub(crate) fn open() -> Self {
        Self { nvml: Nvml::init().ok() }
    }

    /// Driver version, as NVML gives it.
    pub(crate) fn driver(&self) -> Option<String> {
        self.nvml.as_ref()?.sys_driver_version().ok()
    }

    /// Bytes in use on the first device, all processes and the driver's reserve left out.
    pub(crate) fn device_used_bytes(&self) -> Option<u64> {
        Some(self.nvml.as_ref()?.device_by_index(0).ok()?.memory_info().ok()?.used)
    }

    /// Bytes that NVML books on this process, where it says so (in a container its process id may be another).
    pub(crate) fn process_bytes(&self) -> Option<u64> {
        let device = self.nvml.as_ref()?.device_by_index(0).ok()?;
        let processes = device.running_compute_processes().ok()?;
        let own = std::process::id();
        // In a container the process has another number there; with one process the figure is ours all the same.
        let only = if let [only] = processes.as_slice() { Some(only) } else { None };
        let found = processes.iter().find(|process| process.pid == own).or(only)?;
        match found.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        }
    }
}

/// One `Vm...` or `Rss...` line of `/proc/self/status`, in bytes.
pub(crate) fn status_bytes(key: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with(key))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}
