//! Folders where CUDA's libraries may be, in the order in which they are tried.
//!
//! Python wheels keep them in `site-packages/nvidia/*/lib`, where no system loader looks. The environment is
//! data here ([`Places`]), so that tests make up their own; nothing is run to find a folder, Python included.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Links followed from a name on the path to the program itself; the kernel's own limit is 40.
const LINKS_MOST: usize = 40;
/// Entries read of a folder: more than any Python has packages below `nvidia`.
const ENTRIES_MOST: usize = 4096;

/// What the process's environment says about where libraries may be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// Python environments: folders that hold `lib/python3.N/site-packages`.
    pub python_prefixes: Vec<PathBuf>,
    /// Folders of `PATH`, where a `python3` leads to the environment that it belongs to.
    pub path: Vec<PathBuf>,
    /// Toolkits: folders that hold `lib64` or `lib`.
    pub toolkits: Vec<PathBuf>,
    /// Ask the system's own loader last.
    pub system: bool,
}

impl Places {
    /// As the environment has it now: `VIRTUAL_ENV`, `./.venv`, the `python3` of `PATH`, `CONDA_PREFIX`, `~/.local`
    /// and the system's Python; `CUDA_HOME`, `CUDA_PATH`, `CONDA_PREFIX` and `/usr/local/cuda`.
    pub fn of_environment() -> Self {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let folder = |name: &str| variable(name).map(PathBuf::from);
        let home = folder("HOME").map(|home| home.join(".local"));
        let path = variable("PATH").unwrap_or_else(OsString::new);
        Self {
            python_prefixes: [
                folder("VIRTUAL_ENV"),
                std::env::current_dir().ok().map(|folder| folder.join(".venv")),
                folder("CONDA_PREFIX"),
                home,
                Some(PathBuf::from("/usr/local")),
                Some(PathBuf::from("/usr")),
            ]
            .into_iter()
            .flatten()
            .collect(),
            path: std::env::split_paths(&path).filter(|folder| folder.is_absolute()).collect(),
            toolkits: [
                folder("CUDA_HOME"),
                folder("CUDA_PATH"),
                folder("CONDA_PREFIX"),
                Some(PathBuf::from("/usr/local/cuda")),
            ]
            .into_iter()
            .flatten()
            .collect(),
            system: true,
        }
    }

    /// Existing folders to look in: `given` first, then wheels, then toolkits; absolute, each once.
    pub fn folders(&self, given: &[PathBuf]) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut seen = BTreeSet::new();
        let mut add = |folder: PathBuf| {
            // Not the resolved one: a library finds its parts beside its own name.
            let Ok(folder) = std::path::absolute(&folder) else { return };
            if folder.is_dir() && folder.canonicalize().is_ok_and(|real| seen.insert(real)) {
                found.push(folder);
            }
        };
        given.iter().cloned().for_each(&mut add);
        let mut prefixes = self.python_prefixes.clone();
        // The first two are the caller's own environments; the one on the path comes before the system's.
        let at = prefixes.len().min(2);
        prefixes.splice(at..at, self.path_prefixes());
        for prefix in &prefixes {
            for packages in site_packages(prefix) {
                sorted(&packages.join("nvidia"))
                    .into_iter()
                    .map(|part| part.join("lib"))
                    .for_each(&mut add);
            }
        }
        for toolkit in &self.toolkits {
            ["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"]
                .map(|part| toolkit.join(part))
                .into_iter()
                .for_each(&mut add);
        }
        found
    }

    /// Environments that the first `python3` of the path belongs to: `bin`'s parent at every link on the way to
    /// the program, nearest first.
    fn path_prefixes(&self) -> Vec<PathBuf> {
        let first =
            self.path.iter().map(|folder| folder.join("python3")).find(|file| file.is_file());
        let mut found = Vec::new();
        let mut next = first;
        for _ in 0..LINKS_MOST {
            let Some(file) = next else { break };
            let Some(bin) = file.parent().and_then(|bin| bin.canonicalize().ok()) else { break };
            found.extend(bin.parent().map(Path::to_path_buf));
            next = file.read_link().ok().map(|target| bin.join(target));
        }
        found
    }
}

/// Package folders of a Python environment, whichever its version and the distribution's habits.
fn site_packages(prefix: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for lib in ["lib", "lib64"] {
        for python in sorted(&prefix.join(lib)) {
            let is_python = python
                .file_name()
                .and_then(|name| name.to_str())
                .is_some_and(|name| name.starts_with("python3"));
            if is_python {
                found.push(python.join("site-packages"));
                found.push(python.join("dist-packages"));
            }
        }
    }
    found
}

/// Entries of a folder in the order of their names; none where it cannot be read.
fn sorted(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = folder.read_dir() else { return Vec::new() };
    let mut paths: Vec<PathBuf> =
        entries.take(ENTRIES_MOST).filter_map(Result::ok).map(|entry| entry.path()).collect();
    paths.sort_unstable();
    paths
}
