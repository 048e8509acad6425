//! What a record says of the machine, as the system tells it.

/// Model of the processor, or its architecture.
pub(crate) fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = text.lines().find_map(|line| line.strip_prefix("model name"));
    let name = named.and_then(|rest| rest.split_once(':')).map(|(_, name)| name.trim());
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    format!("{} ({cores} threads)", name.unwrap_or(std::env::consts::ARCH))
}

/// The most RAM that this process has held, in bytes, where the system tells.
pub(crate) fn peak_ram() -> Option<u64> {
    status_bytes("/proc/self/status", "VmHWM:")
}

/// RAM that this process holds now and that is no file's, in bytes, where the system tells.
pub(crate) fn own_ram() -> Option<u64> {
    status_bytes("/proc/self/status", "RssAnon:")
}

/// RAM that programs could still take, in bytes, where the system tells.
pub(crate) fn available_ram() -> Option<u64> {
    status_bytes("/proc/meminfo", "MemAvailable:")
}

fn status_bytes(path: &str, key: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Operating system and architecture.
pub(crate) fn system() -> String {
    format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH)
}
