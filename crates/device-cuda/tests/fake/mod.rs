//! A made-up driver, for what no card at hand shows; built by the C compiler where there is one.
#![allow(dead_code, unreachable_pub, missing_docs)]
#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// A folder with the driver's libraries, for `LD_LIBRARY_PATH`; `None`, with a word about it, where there is no C
/// compiler or no Linux.
pub fn folder() -> Option<TempDir> {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../device-cuda/tests/fake/cuda.c");
    let built = cfg!(target_os = "linux")
        && Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(folder.path().join("libcuda.so.1"))
            .arg(source)
            .status()
            .is_ok_and(|status| status.success());
    if !built {
        println!("no C compiler: skipped");
        return None;
    }
    for name in ["libcuda.so", "libnvidia-ml.so.1"] {
        #[cfg(unix)]
        std::os::unix::fs::symlink("libcuda.so.1", folder.path().join(name)).unwrap();
    }
    Some(folder)
}
