//! How much host memory may be lent to the card.

/// Bytes of page-cache pages that may be held for the card: half of RAM, or half of the control group's limit
/// where that is less.
///
/// The limit on locked memory (`ulimit -l`) is not asked: the driver does not count against it, and where a system
/// does refuse, the refusal itself says so.
pub(crate) fn lendable_bytes() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let ram = read("/proc/meminfo").and_then(|text| ram_bytes(&text));
    let group = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        .into_iter()
        .find_map(read)
        .and_then(|text| text.trim().parse().ok());
    share(ram, group)
}

/// Half of the lesser; nothing where the system says nothing.
fn share(ram: Option<u64>, group: Option<u64>) -> u64 {
    ram.into_iter().chain(group).min().unwrap_or(0) / 2
}

fn ram_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.starts_with("MemTotal:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_lesser_may_be_lent() {
        let meminfo = "MemFree:  12 kB\nMemTotal:       32768 kB\nMemAvailable: 5 kB\n";
        assert_eq!(ram_bytes(meminfo), Some(32 << 20));
        assert_eq!(ram_bytes("MemTotal: much\n"), None);
        assert_eq!(share(Some(32 << 20), Some(8 << 20)), 4 << 20);
        assert_eq!(share(Some(32 << 20), Some(u64::MAX)), 16 << 20);
        assert_eq!(share(Some(32 << 20), None), 16 << 20);
        assert_eq!(share(None, None), 0);
    }
}
