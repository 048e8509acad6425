//! Element types as checkpoint files name them.
//!
//! Every type of safetensors 0.8 is known here by name and by size in bits, because a file must be
//! checked and listed even where no op can compute with it; what a model can run with is decided
//! by the room that builds its graph.

use std::fmt;

use serde::{Serialize, Serializer};

/// Element type of a stored tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum WeightDType {
    /// Boolean, one byte each.
    Bool,
    /// 4-bit float (e2m1), two to a byte.
    F4,
    /// 6-bit float, two exponent bits.
    F6E2M3,
    /// 6-bit float, three exponent bits.
    F6E3M2,
    /// Unsigned byte.
    U8,
    /// Signed byte.
    I8,
    /// 8-bit float with 5 exponent bits and infinities.
    F8E5M2,
    /// 8-bit float with 4 exponent bits, the "fn" flavour: no infinities, greatest value 448.
    F8E4M3,
    /// 8-bit power of two, a block scale.
    F8E8M0,
    /// 8-bit float with 4 exponent bits, one zero and one NaN.
    F8E4M3Fnuz,
    /// 8-bit float with 5 exponent bits, one zero and one NaN.
    F8E5M2Fnuz,
    /// Signed 16-bit integer.
    I16,
    /// Unsigned 16-bit integer.
    U16,
    /// IEEE half.
    F16,
    /// The upper half of an IEEE single.
    BF16,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 32-bit integer.
    U32,
    /// IEEE single.
    F32,
    /// Pair of IEEE singles.
    C64,
    /// IEEE double.
    F64,
    /// Signed 64-bit integer.
    I64,
    /// Unsigned 64-bit integer.
    U64,
}

/// Name in a file, type, bits of one element.
/// Source: huggingface/safetensors 24b0b28, `safetensors/src/tensor.rs`, `Dtype`.
const TABLE: [(&str, WeightDType, u64); 22] = [
    ("BOOL", WeightDType::Bool, 8),
    ("F4", WeightDType::F4, 4),
    ("F6_E2M3", WeightDType::F6E2M3, 6),
    ("F6_E3M2", WeightDType::F6E3M2, 6),
    ("U8", WeightDType::U8, 8),
    ("I8", WeightDType::I8, 8),
    ("F8_E5M2", WeightDType::F8E5M2, 8),
    ("F8_E4M3", WeightDType::F8E4M3, 8),
    ("F8_E8M0", WeightDType::F8E8M0, 8),
    ("F8_E4M3FNUZ", WeightDType::F8E4M3Fnuz, 8),
    ("F8_E5M2FNUZ", WeightDType::F8E5M2Fnuz, 8),
    ("I16", WeightDType::I16, 16),
    ("U16", WeightDType::U16, 16),
    ("F16", WeightDType::F16, 16),
    ("BF16", WeightDType::BF16, 16),
    ("I32", WeightDType::I32, 32),
    ("U32", WeightDType::U32, 32),
    ("F32", WeightDType::F32, 32),
    ("C64", WeightDType::C64, 64),
    ("F64", WeightDType::F64, 64),
    ("I64", WeightDType::I64, 64),
    ("U64", WeightDType::U64, 64),
];

impl WeightDType {
    /// The type that a safetensors header calls `name`; case matters.
    pub fn from_name(name: &str) -> Option<Self> {
        TABLE.iter().find(|row| row.0 == name).map(|&(_, dtype, _)| dtype)
    }

    /// The name in a safetensors header.
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// Size of one element in bits; 4 and 6 for the packed types.
    pub fn bits(self) -> u64 {
        self.row().2
    }

    /// Bytes of `elements` packed elements; `None` where that is no whole number of bytes, or more
    /// than a `u64` holds.
    pub fn bytes(self, elements: u64) -> Option<u64> {
        let bits = elements.checked_mul(self.bits())?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }

    fn row(self) -> (&'static str, Self, u64) {
        // A test holds that the table is in the order of the enum: the discriminant is the row.
        TABLE[self as usize]
    }
}

impl fmt::Display for WeightDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for WeightDType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_enum() {
        for (index, &(name, dtype, bits)) in TABLE.iter().enumerate() {
            assert_eq!(dtype as usize, index);
            assert_eq!(WeightDType::from_name(name), Some(dtype));
            assert_eq!((dtype.name(), dtype.bits()), (name, bits));
        }
        assert_eq!(WeightDType::from_name("bf16"), None);
        assert_eq!(WeightDType::from_name(""), None);
    }

    #[test]
    fn bytes_are_whole_or_none() {
        assert_eq!(WeightDType::BF16.bytes(3), Some(6));
        assert_eq!(WeightDType::F4.bytes(3), None);
        assert_eq!(WeightDType::F4.bytes(4), Some(2));
        assert_eq!(WeightDType::F6E2M3.bytes(4), Some(3));
        assert_eq!(WeightDType::F64.bytes(u64::MAX / 8), None);
        assert_eq!(WeightDType::F32.bytes(0), Some(0));
    }
}
