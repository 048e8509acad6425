//! Finds CUDA's libraries in folders that the loader does not search.
//!
//! Python wheels keep them in `site-packages/nvidia/*/lib`, and `cudarc` opens by bare name only.
//! A library opened beforehand by absolute path with `RTLD_GLOBAL` answers the later bare-name open, because its SONAME is then loaded.
//! The path that was taken is read back from `/proc/self/maps`, so that the report says which file ran.

use std::ffi::CString;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Folders to look in before the system's search path.
#[derive(Debug, Clone, Default)]
pub(crate) struct Libraries {
    /// In order of preference.
    pub(crate) folders: Vec<PathBuf>,
}

impl Libraries {
    /// Opens `lib<stem>.so.<major>` globally from the first folder that has one, and returns its path.
    pub(crate) fn preload(&self, stem: &str, majors: &[u32]) -> Option<PathBuf> {
        for folder in &self.folders {
            for major in majors {
                let path = folder.join(format!("lib{stem}.so.{major}"));
                if path.exists() && open_global(&path) {
                    return Some(path);
                }
            }
        }
        None
    }

    /// cuBLASLt, ready for `cudarc::cublaslt`.
    pub(crate) fn blas_lt(&self) -> Result<()> {
        self.preload("cublasLt", &[13, 12]);
        // SAFETY: opening a library by name runs its initialisers only.
        let found = unsafe { cudarc::cublaslt::sys::is_culib_present() };
        self.found("cublasLt", found)
    }

    /// cuDNN, ready for `cudarc::cudnn`.
    ///
    /// Its engine libraries are opened by `libcudnn.so` itself, which searches its own folder; cuDNN's run-time compiler needs NVRTC.
    pub(crate) fn dnn(&self) -> Result<()> {
        self.preload("nvrtc", &[13, 12]);
        self.preload("cudnn_graph", &[9]);
        self.preload("cudnn", &[9]);
        // SAFETY: opening a library by name runs its initialisers only.
        let found = unsafe { cudarc::cudnn::sys::is_culib_present() };
        self.found("cudnn", found)
    }

    fn found(&self, name: &'static str, found: bool) -> Result<()> {
        if found {
            return Ok(());
        }
        let searched = format!("{:?} and the loader's path", self.folders);
        Err(Error::LibraryAbsent { name, searched })
    }
}

/// Every path from which a library is mapped now: two of them mean that the search path shadowed what was preloaded.
pub(crate) fn mapped_paths(stem: &str) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let wanted = format!("/lib{stem}.so");
    let mut paths: Vec<&str> = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .filter(|path| path.contains(&wanted))
        .collect();
    paths.sort_unstable();
    paths.dedup();
    paths.join(" and ")
}

fn open_global(path: &Path) -> bool {
    let Ok(name) = CString::new(path.as_os_str().as_encoded_bytes()) else { return false };
    // SAFETY: the name is a NUL-terminated path to an existing file; the handle is kept for the life of the process.
    !unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) }.is_null()
}
