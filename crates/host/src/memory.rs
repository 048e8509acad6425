//! How much RAM there is, and how much of it is free for weights.
//!
//! A control group's limit counts where it is lower than the machine's. Pages of files that can be dropped are free:
//! they are what weights take.

use std::path::Path;

/// Bytes of RAM that this process may use at all; `None` where the system does not say.
pub fn ram_bytes() -> Option<u64> {
    let installed = meminfo("MemTotal:");
    installed.into_iter().chain(Group::find().map(|group| group.limit_bytes)).min()
}

/// Bytes of RAM that are free for weights now; `None` where the system does not say.
pub fn available_bytes() -> Option<u64> {
    let machine = meminfo("MemAvailable:");
    machine.into_iter().chain(Group::find().map(|group| group.available_bytes())).min()
}

fn meminfo(name: &str) -> Option<u64> {
    field(&std::fs::read_to_string("/proc/meminfo").ok()?, name)
}

/// A figure of `/proc/meminfo`, which is in KiB.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// A control group with a limit.
struct Group {
    limit_bytes: u64,
    used_bytes: u64,
    /// Of what is used, pages of files.
    file_bytes: u64,
}

impl Group {
    /// The limit of the group that the process sees as its own, in either version's layout.
    fn find() -> Option<Self> {
        let root = Path::new("/sys/fs/cgroup");
        Self::read(root, "memory.max", "memory.current", "file").or_else(|| {
            let v1 = root.join("memory");
            Self::read(&v1, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache")
        })
    }

    fn read(folder: &Path, limit: &str, used: &str, file: &str) -> Option<Self> {
        let text = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
        // "max" where there is none, which is no number.
        let limit_bytes = text(limit)?.trim().parse().ok()?;
        let used_bytes = text(used)?.trim().parse().ok()?;
        let file_bytes = text("memory.stat").and_then(|text| stat(&text, file)).unwrap_or(0);
        Some(Self { limit_bytes, used_bytes, file_bytes })
    }

    fn available_bytes(&self) -> u64 {
        let kept = self.used_bytes.saturating_sub(self.file_bytes);
        self.limit_bytes.saturating_sub(kept)
    }
}

/// A figure of `memory.stat`.
fn stat(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(key, _)| *key == name)?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn figures_are_read_by_name() {
        let text = "MemFree:  12 kB\nMemTotal:       32768 kB\nMemAvailable: 5 kB\n";
        assert_eq!(field(text, "MemTotal:"), Some(32 << 20));
        assert_eq!(field(text, "MemAvailable:"), Some(5 << 10));
        assert_eq!(field("MemTotal: much\n", "MemTotal:"), None);
        assert_eq!(stat("anon 7\nfile 12\nfile_dirty 3\n", "file"), Some(12));
    }

    #[test]
    fn pages_of_files_are_free_within_a_groups_limit() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("memory.max", "max\n");
        write("memory.current", "800\n");
        write("memory.stat", "anon 200\nfile 600\n");
        let read = || Group::read(folder.path(), "memory.max", "memory.current", "file");
        assert!(read().is_none(), "no limit");
        write("memory.max", "1000\n");
        assert_eq!(read().unwrap().available_bytes(), 800);
        write("memory.current", "1700\n");
        assert_eq!(read().unwrap().available_bytes(), 0);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_says_what_it_has() {
        let (all, free) = (ram_bytes().unwrap(), available_bytes().unwrap());
        assert!(free > 0 && free <= all, "{free} of {all}");
    }
}
