//! Reads the head of a GGUF file, to report what it holds; its weights are not run yet.
//!
//! Nothing is kept but names, types and sizes; values of the key table are skipped, however long.
//! Source: ggml-org/llama.cpp, the GGUF description, and the `gguf` package 0.17.1 (type sizes).

use std::io::{self, Read};

use thiserror::Error;

use crate::text::Quoted;

/// Greatest head (key table and tensor table); vocabularies of 256,000 words take 10 MB.
const HEAD_BYTES_MAX: u64 = 64 << 20;

/// Most tensors and most keys.
const COUNT_MAX: u64 = 1 << 16;

/// Longest name of a tensor or key that is read.
const NAME_BYTES_MAX: u64 = 1 << 16;

/// One reason why the head of a GGUF file is refused.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GgufError {
    /// A version other than 2 and 3, or a big-endian file.
    #[error("GGUF version {version:#x} is not known; 2 and 3 are")]
    Version {
        /// The version field, read as little-endian.
        version: u32,
    },
    /// More of something than any real file has.
    #[error("the GGUF head has {count} {what}, over the cap of {cap}")]
    OverCap {
        /// What there are too many of.
        what: &'static str,
        /// How many.
        count: u64,
        /// The cap.
        cap: u64,
    },
    /// The file ends inside its head, or the head is longer than any real one.
    #[error("the GGUF head is cut short, or longer than {cap_bytes} bytes")]
    CutShort {
        /// The cap.
        cap_bytes: u64,
    },
    /// A name that is not UTF-8.
    #[error("a name in the GGUF head is not UTF-8 text")]
    NotUtf8,
    /// A value type of the key table that does not exist.
    #[error("the GGUF key {} has the unknown value type {value_type}", Quoted(key))]
    ValueType {
        /// The key.
        key: String,
        /// The type.
        value_type: u32,
    },
    /// A tensor whose size does not fit 64 bits.
    #[error("the GGUF tensor {} overflows 64 bits", Quoted(tensor))]
    SizeOverflow {
        /// The tensor.
        tensor: String,
    },
}

/// One tensor of the table.
#[derive(Debug)]
pub(crate) struct GgufTensor {
    pub(crate) name: String,
    /// Name of the ggml type, or `type N` where it is not known.
    pub(crate) dtype: String,
    pub(crate) elements: u64,
    /// Bytes by type and shape; `None` where the type is not known.
    pub(crate) bytes: Option<u64>,
}

/// ggml type: number, name, elements of a block, bytes of a block.
const TYPES: [(u32, &str, u64, u64); 31] = [
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 40),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
];

/// Reads the tensor table from the begin of a GGUF file.
pub(crate) fn read(file: impl Read) -> Result<Vec<GgufTensor>, GgufError> {
    let mut head = Head(io::BufReader::new(file).take(HEAD_BYTES_MAX));
    head.bytes::<4>()?;
    let version = head.u32()?;
    if !matches!(version, 2 | 3) {
        return Err(GgufError::Version { version });
    }
    let tensor_count = head.count("tensors")?;
    let key_count = head.count("keys")?;
    for _ in 0..key_count {
        let key = head.name()?;
        let value_type = head.u32()?;
        head.skip_value(&key, value_type)?;
    }
    let mut tensors = Vec::new();
    for _ in 0..tensor_count {
        tensors.push(head.tensor()?);
    }
    Ok(tensors)
}

/// The head of a file, read forward under a cap.
struct Head<R>(io::Take<R>);

impl<R: Read> Head<R> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).map_err(|_| cut_short())?;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, GgufError> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, GgufError> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn count(&mut self, what: &'static str) -> Result<u64, GgufError> {
        match self.u64()? {
            count if count > COUNT_MAX => Err(GgufError::OverCap { what, count, cap: COUNT_MAX }),
            count => Ok(count),
        }
    }

    fn name(&mut self) -> Result<String, GgufError> {
        let count = self.u64()?;
        if count > NAME_BYTES_MAX {
            let what = "bytes in one name";
            return Err(GgufError::OverCap { what, count, cap: NAME_BYTES_MAX });
        }
        let mut bytes = vec![0; count as usize];
        self.0.read_exact(&mut bytes).map_err(|_| cut_short())?;
        String::from_utf8(bytes).map_err(|_| GgufError::NotUtf8)
    }

    fn skip(&mut self, bytes: u64) -> Result<(), GgufError> {
        let skipped = io::copy(&mut self.0.by_ref().take(bytes), &mut io::sink());
        if skipped.ok() == Some(bytes) { Ok(()) } else { Err(cut_short()) }
    }

    fn skip_value(&mut self, key: &str, value_type: u32) -> Result<(), GgufError> {
        match value_type {
            8 => {
                let bytes = self.u64()?;
                self.skip(bytes)
            }
            9 => {
                let element_type = self.u32()?;
                let count = self.u64()?;
                if element_type == 8 {
                    // Each round reads at least eight bytes, so the cap on the head bounds it.
                    for _ in 0..count {
                        let bytes = self.u64()?;
                        self.skip(bytes)?;
                    }
                    return Ok(());
                }
                let bytes = scalar_bytes(key, element_type)?.checked_mul(count);
                self.skip(bytes.ok_or_else(cut_short)?)
            }
            _ => self.skip(scalar_bytes(key, value_type)?),
        }
    }

    fn tensor(&mut self) -> Result<GgufTensor, GgufError> {
        let name = self.name()?;
        let rank = u64::from(self.u32()?);
        if rank > 8 {
            return Err(GgufError::OverCap { what: "axes of one tensor", count: rank, cap: 8 });
        }
        let mut elements = Some(1u64);
        for _ in 0..rank {
            let axis = self.u64()?;
            elements = elements.and_then(|product| product.checked_mul(axis));
        }
        let overflow = || GgufError::SizeOverflow { tensor: name.clone() };
        let elements = elements.ok_or_else(overflow)?;
        let number = self.u32()?;
        self.u64()?;
        let (dtype, bytes) = match TYPES.iter().find(|row| row.0 == number) {
            None => (format!("type {number}"), None),
            Some(&(_, name, block, block_bytes)) => {
                let bytes = elements.div_ceil(block).checked_mul(block_bytes);
                (name.to_owned(), Some(bytes.ok_or_else(overflow)?))
            }
        };
        Ok(GgufTensor { name, dtype, elements, bytes })
    }
}

fn cut_short() -> GgufError {
    GgufError::CutShort { cap_bytes: HEAD_BYTES_MAX }
}

/// Bytes of a value that is neither text nor array.
fn scalar_bytes(key: &str, value_type: u32) -> Result<u64, GgufError> {
    match value_type {
        0 | 1 | 7 => Ok(1),
        2 | 3 => Ok(2),
        4..=6 => Ok(4),
        10..=12 => Ok(8),
        _ => Err(GgufError::ValueType { key: key.to_owned(), value_type }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Vec<u8> {
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        bytes
    }

    /// A head with a text, an array of texts, an array of numbers, and two tensors.
    fn head() -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(3u32.to_le_bytes());
        file.extend(2u64.to_le_bytes());
        file.extend(3u64.to_le_bytes());
        file.extend(
            [text("general.architecture"), 8u32.to_le_bytes().to_vec(), text("flux")].concat(),
        );
        file.extend(
            [text("words"), 9u32.to_le_bytes().to_vec(), 8u32.to_le_bytes().to_vec()].concat(),
        );
        file.extend([2u64.to_le_bytes().to_vec(), text("a"), text("bc")].concat());
        file.extend(
            [text("numbers"), 9u32.to_le_bytes().to_vec(), 4u32.to_le_bytes().to_vec()].concat(),
        );
        file.extend([2u64.to_le_bytes().to_vec(), vec![0; 8]].concat());
        for (name, axes, number) in
            [("img_in.weight", &[64u64, 32][..], 8u32), ("img_in.bias", &[32], 0)]
        {
            file.extend(text(name));
            file.extend((axes.len() as u32).to_le_bytes());
            axes.iter().for_each(|axis| file.extend(axis.to_le_bytes()));
            file.extend(number.to_le_bytes());
            file.extend(0u64.to_le_bytes());
        }
        file
    }

    #[test]
    fn the_tensor_table_is_read() {
        let tensors = read(&head()[..]).unwrap();
        let found: Vec<_> = tensors
            .iter()
            .map(|t| (t.name.as_str(), t.dtype.as_str(), t.elements, t.bytes))
            .collect();
        assert_eq!(
            found,
            [("img_in.weight", "Q8_0", 2048, Some(2176)), ("img_in.bias", "F32", 32, Some(128))]
        );
    }

    #[test]
    fn a_head_cut_anywhere_is_refused() {
        let head = head();
        for length in 0..head.len() {
            assert!(read(&head[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn a_flipped_bit_anywhere_does_no_harm() {
        let head = head();
        for bit in 0..head.len() * 8 {
            let mut damaged = head.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // Either outcome is right; that it returns is the test.
            let _ = read(&damaged[..]);
        }
    }
}
