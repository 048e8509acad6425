//! Where the store of records is.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Names the store, or switches records off.
const VARIABLE: &str = "PLIMSOLL_RECORDS";

/// File name of the store in a folder.
const FILE: &str = "records.db";

/// Where the store is, and how it was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nothing is recorded.
    Off,
    /// A person said so: it has to work.
    Named(PathBuf),
    /// Nobody said anything: the user's data folder.
    Default(PathBuf),
    /// There is no such folder: a machine without a home.
    Nowhere,
}

impl Place {
    /// From the option, else the environment, else the user's data folder.
    pub(crate) fn of(option: Option<&Path>) -> Self {
        let read = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let chosen = option.map(Path::to_owned).or_else(|| read(VARIABLE).map(PathBuf::from));
        match chosen {
            Some(chosen) if chosen.as_os_str() == "off" => Self::Off,
            // A folder, there or meant: the store lies in it.
            Some(chosen) if chosen.is_dir() || ends_in_separator(&chosen) => {
                Self::Named(chosen.join(FILE))
            }
            Some(chosen) => Self::Named(chosen),
            None => data_folder(&read)
                .map_or(Self::Nowhere, |folder| Self::Default(folder.join("plimsoll").join(FILE))),
        }
    }
}

fn ends_in_separator(path: &Path) -> bool {
    path.as_os_str().to_string_lossy().ends_with(std::path::is_separator)
}

/// The user's data folder by the system's convention.
fn data_folder(read: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |value: OsString| Some(PathBuf::from(value)).filter(|path| path.is_absolute());
    if cfg!(windows) {
        return read("LOCALAPPDATA").and_then(absolute);
    }
    let home = || read("HOME").and_then(absolute);
    if cfg!(target_os = "macos") {
        return Some(home()?.join("Library/Application Support"));
    }
    // The XDG convention: a relative value is to be ignored.
    read("XDG_DATA_HOME").and_then(absolute).or_else(|| Some(home()?.join(".local/share")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_folder_is_the_systems() {
        let with = |pairs: &'static [(&str, &str)]| {
            data_folder(&move |name| {
                pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into())
            })
        };
        assert_eq!(with(&[]), None);
        #[cfg(target_os = "linux")]
        {
            let home: &[_] = &[("HOME", "/home/a")];
            assert_eq!(with(home), Some("/home/a/.local/share".into()));
            assert_eq!(with(&[("HOME", "/home/a"), ("XDG_DATA_HOME", "/d")]), Some("/d".into()));
            let relative: &[_] = &[("HOME", "/home/a"), ("XDG_DATA_HOME", "d")];
            assert_eq!(with(relative), Some("/home/a/.local/share".into()));
        }
    }

    #[test]
    fn a_folder_holds_the_store_and_off_switches_it_off() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Place::of(Some(folder.path())), Place::Named(folder.path().join(FILE)));
        let file = folder.path().join("mine.sqlite");
        assert_eq!(Place::of(Some(&file)), Place::Named(file.clone()));
        assert_eq!(Place::of(Some("no/such/".as_ref())), Place::Named("no/such/records.db".into()));
        assert_eq!(Place::of(Some("off".as_ref())), Place::Off);
    }
}
