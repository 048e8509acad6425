//! Failures of a device.

use plimsoll_host::HostError;

use crate::shortage::Shortage;

/// Failures of a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// A stop was asked for.
    #[error("cancelled")]
    Cancelled,
    /// The arena could not be taken.
    #[error("the {device} device cannot take an arena of {bytes} bytes")]
    Arena {
        /// Name of the device.
        device: String,
        /// Bytes asked for.
        bytes: u64,
    },
    /// Memory ran short, the arena's or other that the device needs beside it.
    #[error("the {device} device is short of {}: {cause}", shortage.memory)]
    OutOfMemory {
        /// Name of the device.
        device: String,
        /// Which memory, with its numbers.
        shortage: Shortage,
        /// The words of whoever refused it.
        cause: String,
    },
    /// A program names memory outside of the arena, or operands that the device cannot take; our bug.
    #[error("{what}: outside of the arena of {arena_bytes} bytes")]
    OutOfArena {
        /// Which op or copy.
        what: String,
        /// Size of the arena.
        arena_bytes: u64,
    },
    /// A program asks for what this device does not do.
    #[error("{what} is not supported by the {device} device")]
    Unsupported {
        /// Op and operands.
        what: String,
        /// Name of the device.
        device: String,
    },
    /// An index in a host input is past the end of its table.
    #[error("row {row} of a table of {rows} rows")]
    RowOutOfTable {
        /// Asked for.
        row: u32,
        /// In the table.
        rows: u64,
    },
    /// Two accesses to the same bytes without an order between them (found by `sim`); our bug.
    #[error("hazard: {first} and {second} touch byte {offset} without an order between them")]
    Hazard {
        /// The earlier access.
        first: String,
        /// The later one.
        second: String,
        /// First byte in common.
        offset: u64,
    },
    /// An op reads bytes that do not hold its operand (found by `sim`); our bug.
    #[error("{reader} reads byte {offset}, which holds {found}")]
    WrongContent {
        /// The op.
        reader: String,
        /// First wrong byte.
        offset: u64,
        /// What lies there.
        found: String,
    },
    /// A weight file could not be read from the disk.
    #[error("{cause}")]
    HostRead {
        /// The file and what is wrong with it.
        cause: String,
    },
    /// A driver or library refused a call.
    #[error("the {device} device failed: {cause}")]
    Driver {
        /// Name of the device.
        device: String,
        /// Whether the device cannot run again in this process.
        is_lost: bool,
        /// The driver's words.
        cause: String,
    },
    /// A lane's thread died; our bug.
    #[error("the {lane} lane stopped: {cause}")]
    LaneDied {
        /// Which lane.
        lane: &'static str,
        /// Panic message.
        cause: String,
    },
}

impl From<HostError> for DeviceError {
    fn from(error: HostError) -> Self {
        Self::HostRead { cause: error.to_string() }
    }
}
