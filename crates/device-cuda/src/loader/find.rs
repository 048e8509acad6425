//! Opens a library from the first place that has one which serves.
//!
//! Only versioned names are asked for, and folders by absolute path: an unversioned `libX.so` of a toolkit on the
//! system's path would shadow the wheel's library and mix parts of two versions.

use std::fmt;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};

/// What to open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// Name as people say it.
    pub(crate) name: &'static str,
    /// Between `lib` and `.so`.
    pub(crate) stem: &'static str,
    /// Numbers after `.so.`, best first.
    pub(crate) majors: &'static [u32],
    /// Libraries beside it that are opened first, since it asks for them by name alone.
    pub(crate) parts: &'static [&'static str],
    /// Others ask for it by name.
    pub(crate) global: bool,
}

/// A file that was there and did not serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The file, or the bare name that the system's loader was asked for.
    pub path: PathBuf,
    /// Why not.
    pub cause: String,
}

/// What became of the search for a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryReport {
    /// `cuBLASLt`, `cuDNN` or `NVRTC`.
    pub name: &'static str,
    /// Where the one in use was found.
    pub path: Option<PathBuf>,
    /// Its version as `13.1.0`.
    pub version: Option<String>,
    /// Files that did not serve, in the order of the search.
    pub refused: Vec<Refusal>,
    /// Folders that were looked in.
    pub folder_count: usize,
}

impl fmt::Display for LibraryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.path, &self.version) {
            (Some(path), version) => {
                write!(
                    f,
                    "{} {} at {}",
                    self.name,
                    version.as_deref().unwrap_or("?"),
                    path.display()
                )
            }
            _ => write!(
                f,
                "{} not found in {} folders nor by the system",
                self.name, self.folder_count
            ),
        }?;
        self.refused.iter().try_for_each(|refusal| {
            write!(f, "; not {}: {}", refusal.path.display(), refusal.cause)
        })
    }
}

/// Looks in `folders`, then asks the system's loader where `system`; `accept` says whether an opened library serves
/// and makes of it what the caller needs, with its version.
///
/// An accepted library stays open as long as the process: its code may run until the end.
pub(crate) fn find<T>(
    wanted: &Wanted,
    folders: &[PathBuf],
    system: bool,
    accept: impl Fn(&Library) -> Result<(T, String), String>,
) -> (Option<T>, LibraryReport) {
    let mut report = LibraryReport {
        name: wanted.name,
        path: None,
        version: None,
        refused: Vec::new(),
        folder_count: folders.len(),
    };
    let names = wanted.majors.iter().map(|major| format!("lib{}.so.{major}", wanted.stem));
    let names: Vec<String> = names.collect();
    let files = folders.iter().flat_map(|folder| names.iter().map(|name| folder.join(name)));
    // A link that leads nowhere or round in circles is there all the same, and worth a word.
    let files = files.filter(|file| file.symlink_metadata().is_ok());
    let bare = names.iter().map(PathBuf::from).filter(|_| system);
    for path in files.chain(bare) {
        let is_bare = path.parent() == Some(Path::new(""));
        match open(wanted, &path).and_then(|library| Ok((accept(&library)?, library))) {
            Ok(((made, version), library)) => {
                let file = format!("{}.so", wanted.stem);
                let mapped = is_bare.then(|| mapped_files(&file).into_iter().next()).flatten();
                report.path = Some(mapped.unwrap_or(path));
                report.version = Some(version);
                std::mem::forget(library);
                return (Some(made), report);
            }
            // That the system has none is no news.
            Err(cause) if is_bare && cause.contains("No such file") => {}
            Err(cause) => report.refused.push(Refusal { path, cause }),
        }
    }
    (None, report)
}

fn open(wanted: &Wanted, path: &Path) -> Result<Library, String> {
    let one = |path: &Path, scope| {
        // SAFETY: opening runs the library's initialisers; that these files are NVIDIA's is the trust that the
        // caller puts in the folders that are searched.
        unsafe { Library::open(Some(path), RTLD_NOW | scope) }.map_err(|error| plain(&error))
    };
    if let Some(folder) = path.parent().filter(|folder| folder.is_absolute()) {
        for part in wanted.parts {
            let part = folder.join(part);
            if part.exists() {
                std::mem::forget(one(&part, RTLD_GLOBAL)?);
            }
        }
    }
    one(path, if wanted.global { RTLD_GLOBAL } else { RTLD_LOCAL })
}

/// The loader's words on one line.
fn plain(error: &libloading::Error) -> String {
    let text =
        std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Every library file that is mapped now and whose name begins with `lib` and `stem`.
pub(crate) fn mapped_files(stem: &str) -> Vec<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let begin = format!("lib{stem}");
    let mut files: Vec<PathBuf> = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| PathBuf::from(&line[at..])))
        .filter(|path| {
            path.file_name()
                .and_then(|file| file.to_str())
                .is_some_and(|file| file.starts_with(&begin))
        })
        .collect();
    files.sort_unstable();
    files.dedup();
    files
}

/// A struct of the functions that are used of a library, resolved all at once.
///
/// Statuses are plain numbers: a newer library may answer with one that an enum of these bindings lacks.
macro_rules! functions {
    ($(#[$doc:meta])* $name:ident { $($function:ident: fn($($argument:ty),* $(,)?) $(-> $result:ty)?;)* }) => {
        $(#[$doc])*
        #[allow(non_snake_case, reason = "the library's own names")]
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $name {
            $(pub(crate) $function: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $name {
            /// Resolves every function.
            ///
            /// # Errors
            /// The name of the first that is missing.
            pub(crate) fn resolve(library: &libloading::os::unix::Library) -> Result<Self, String> {
                Ok(Self {
                    $($function: {
                        let symbol = concat!(stringify!($function), "\0").as_bytes();
                        // SAFETY: the type is that of the function in the library's public header.
                        let found = unsafe { library.get(symbol) };
                        *found.map_err(|_| concat!("lacks ", stringify!($function)).to_owned())?
                    },)*
                })
            }
        }
    };
}
pub(crate) use functions;
