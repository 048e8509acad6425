//! Element types of tensors and weights in device memory.

/// An element type that ops compute with.
///
/// `U32` holds indices (token ids, row positions); arithmetic is done on `F32` and `BF16` only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// bfloat16: storage only, every sum is taken in `F32`.
    BF16,
    /// Unsigned index.
    U32,
}

impl DType {
    /// Bytes of one element.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F32 | Self::U32 => 4,
            Self::BF16 => 2,
        }
    }

    /// Lower-case name, as the command line writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::BF16 => "bf16",
            Self::U32 => "u32",
        }
    }
}
