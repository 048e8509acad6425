//! Reading device memory from beside a run.

/// What a meter reads at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Bytes of device memory that this process holds; `None` where the system does not tell processes apart.
    pub process_bytes: Option<u64>,
    /// Bytes of the whole device that anybody holds; `None` where nobody counts them.
    pub device_bytes: Option<u64>,
}

/// Reads device memory as the system sees it, also while a program runs and where no device is open.
///
/// It exists beside a [`Device`](crate::Device), which is borrowed while it runs and gone when its memory has been
/// given back: what a meter is for is to see both.
pub trait Meter: Send + Sync {
    /// What is held now. Takes no device memory and waits for no program.
    fn read(&self) -> Reading;
}
