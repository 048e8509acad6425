//! Element types of tensors and weights in device memory.

/// An element type that ops compute with.
///
/// `U32` holds indices (token ids, row positions); arithmetic is done on `F32` and `BF16` only. `F8E4M3` is how the
/// matrices of linear layers are stored, with a scale for each row: no tensor is of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// bfloat16: storage only, every sum is taken in `F32`.
    BF16,
    /// Unsigned index.
    U32,
    /// 8-bit float with 4 exponent bits, bias 7, no infinities ("fn"): at most 448, NaN is all ones.
    F8E4M3,
}

impl DType {
    /// Bytes of one element.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F32 | Self::U32 => 4,
            Self::BF16 => 2,
            Self::F8E4M3 => 1,
        }
    }

    /// Lower-case name, as the command line writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::BF16 => "bf16",
            Self::U32 => "u32",
            Self::F8E4M3 => "f8_e4m3",
        }
    }
}
