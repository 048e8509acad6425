//! What a run may use of the host.

/// Which tier of host memory streamed weights come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostTier {
    /// RAM as far as it goes, the rest from the disk.
    #[default]
    Auto,
    /// The page cache, lent to a card where that works.
    Mapped,
    /// The page cache, through pinned windows.
    Pinned,
    /// The disk, through windows; what [`HostLimits::ram_bytes`] states may stay in RAM.
    Disk,
}

/// What a run may use of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostLimits {
    /// Where weights come from.
    pub tier: HostTier,
    /// Bytes of RAM for weights; as much as is free if absent.
    pub ram_bytes: Option<u64>,
    /// Whether the arena takes RAM as well.
    pub shares_ram: bool,
}
