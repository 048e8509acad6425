//! Memory that ran short, told by what it is and not by the words of whoever refused it.

use std::fmt;
use std::io::ErrorKind;

use crate::DeviceError;

/// Kinds of memory that a device takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// Of the device itself.
    Device,
    /// Of the host.
    Host,
    /// Of the host, locked in place for the device to reach.
    Pinned,
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "device memory",
            Self::Host => "host memory",
            Self::Pinned => "pinned host memory",
        })
    }
}

/// Which memory ran short, with what is known of its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Which.
    pub memory: Memory,
    /// Bytes that were asked for.
    pub needed_bytes: Option<u64>,
    /// Bytes that were free.
    pub free_bytes: Option<u64>,
}

impl Shortage {
    /// A shortage without numbers.
    pub const fn of(memory: Memory) -> Self {
        Self { memory, needed_bytes: None, free_bytes: None }
    }
}

impl DeviceError {
    /// A thread that the system does not give: it is short of memory for its stack, or this process of room for it.
    pub fn no_thread(device: &str, cause: &(dyn std::error::Error + 'static)) -> Self {
        let device = device.to_owned();
        let kind = cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        let what = format!("another thread ({cause})");
        match kind {
            // What `pthread_create` says then is EAGAIN.
            Some(ErrorKind::WouldBlock | ErrorKind::OutOfMemory) => {
                Self::OutOfMemory { device, shortage: Shortage::of(Memory::Host), cause: what }
            }
            _ => Self::Unsupported { what, device },
        }
    }

    /// Which memory ran short, if that is what happened.
    pub fn shortage(&self) -> Option<Shortage> {
        match self {
            Self::OutOfMemory { shortage, .. } => Some(*shortage),
            // An arena of the host's own memory.
            Self::Arena { bytes, .. } => {
                Some(Shortage { needed_bytes: Some(*bytes), ..Shortage::of(Memory::Host) })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_told_by_its_kind() {
        let arena = DeviceError::Arena { device: "cpu".to_owned(), bytes: 7 };
        let found = arena.shortage().expect("an arena is memory");
        assert_eq!((found.memory, found.needed_bytes), (Memory::Host, Some(7)));
        // The words "out of memory" alone are none.
        let other = DeviceError::Driver {
            device: "cuda".to_owned(),
            is_lost: false,
            cause: "a message about out of memory handling".to_owned(),
        };
        assert_eq!(other.shortage(), None);
        assert_eq!(DeviceError::Cancelled.shortage(), None);
        let again = std::io::Error::from(ErrorKind::WouldBlock);
        let thread = DeviceError::no_thread("cpu", &again);
        assert_eq!(thread.shortage(), Some(Shortage::of(Memory::Host)), "{thread}");
        let other = std::io::Error::from(ErrorKind::PermissionDenied);
        assert_eq!(DeviceError::no_thread("cpu", &other).shortage(), None);
    }
}
