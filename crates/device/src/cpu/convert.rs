//! Host element types to those of the arena.

use super::math::{bf16_bits, bf16_value};
use crate::HostDType;

/// The first `out.len()` elements of little-endian bytes as `f32`; exact for every source type.
///
/// `U32` has no value here: indices are never cast, and neither are 8-bit numbers. What goes to 8 bits is read as the
/// type that it is stored as.
#[inline(always)]
pub(crate) fn to_f32(bytes: &[u8], dtype: HostDType, out: &mut [f32]) {
    match dtype {
        HostDType::F32 | HostDType::U32 => {
            for (value, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
        HostDType::BF16 => {
            for (value, bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *value = bf16_value(u16::from_le_bytes(*bytes));
            }
        }
        HostDType::F8E4M3 | HostDType::Codes(_) | HostDType::Scales(_) => {
            unreachable!("check refuses a cast of 8-bit numbers")
        }
        HostDType::F16 => {
            for (value, bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *value = f16_value(u16::from_le_bytes(*bytes));
            }
        }
    }
}

/// Value of an IEEE half, without a branch: so that it vectorises.
///
/// Normal numbers get the exponent moved; the products below scale subnormal ones exactly.
#[inline(always)]
fn f16_value(bits: u16) -> f32 {
    /// 2^112: from half's exponent bias to single's.
    const REBIAS: f32 = 5.192_297e33;
    let magnitude = (u32::from(bits) & 0x7FFF) << 13;
    let sign = (u32::from(bits) & 0x8000) << 16;
    let finite = f32::from_bits(magnitude) * REBIAS;
    let special = f32::from_bits(magnitude | 0x7F80_0000);
    let value = if magnitude >= 0x0F80_0000 { special } else { finite };
    f32::from_bits(value.to_bits() | sign)
}

/// Rounds to `bf16` bytes, to nearest even.
#[inline(always)]
pub(crate) fn to_bf16(values: &[f32], out: &mut [u8]) {
    for (value, bytes) in values.iter().zip(out.as_chunks_mut::<2>().0) {
        *bytes = bf16_bits(*value).to_le_bytes();
    }
}
