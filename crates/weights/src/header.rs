//! Reads the header of a safetensors file, which nobody vouches for.
//!
//! The file is a little-endian `u64` header length, that many bytes of JSON, and the data.
//! A parser of our own on `serde_json`, because the reference crate collects names in a hash map,
//! where of two equal names one silently wins, and allows a header of 100 MB.
//!
//! Invariants of a [`Header`] that exists:
//! - names are unique, and every tensor's bytes are exactly its shape times its dtype;
//! - the tensors' ranges lie end to end from [`Header::data_start`] to the end of the file, so none
//!   overlaps, none lies outside, and no byte belongs to nobody;
//! - nothing was allocated but the header itself (at most [`HEADER_BYTES_MAX`]) and a small
//!   multiple of it for the parsed names and shapes.
//!
//! Not here: what the names mean (`recognise`), and reading any data.
//! Source: huggingface/safetensors 24b0b28, `safetensors/src/tensor.rs`.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::dtype::WeightDType;
use crate::header_error::HeaderError;

/// Greatest header that is read. The largest real one known (an all-in-one file of 1,443 tensors)
/// takes 0.2 MB, a 4-bit file of five tensors a layer under 1 MB.
pub const HEADER_BYTES_MAX: u64 = 16 << 20;

/// Most tensors in one file; a header within the cap could name 300,000 empty ones.
const TENSORS_MAX: usize = 1 << 16;

/// Most pairs of one JSON object other than the tensors: metadata, or the map of an index.
const PAIRS_MAX: usize = 1 << 17;

/// Most axes of a tensor; a 3-D convolution has five.
const RANK_MAX: usize = 8;

/// Bytes of the header length at the head of the file.
pub(crate) const LENGTH_BYTES: u64 = 8;

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The name as the file has it.
    pub name: String,
    /// Element type.
    pub dtype: WeightDType,
    /// Row-major shape; empty for a scalar.
    pub shape: Vec<u64>,
    /// First byte, from the begin of the file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// The checked header of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Where the data begins, from the begin of the file.
    pub data_start: u64,
    /// The tensors by ascending offset.
    pub tensors: Vec<Tensor>,
    /// The free text pairs of `__metadata__`; a hint, never a fact.
    pub metadata: BTreeMap<String, String>,
}

impl Header {
    /// Length of the JSON, from the first eight bytes of a file of `file_bytes` bytes.
    ///
    /// # Errors
    /// [`HeaderError::OverCap`] and [`HeaderError::PastEnd`].
    pub(crate) fn json_bytes(length: [u8; 8], file_bytes: u64) -> Result<u64, HeaderError> {
        let header_bytes = u64::from_le_bytes(length);
        if header_bytes > HEADER_BYTES_MAX {
            return Err(HeaderError::OverCap { header_bytes, cap_bytes: HEADER_BYTES_MAX });
        }
        let header_end = LENGTH_BYTES + header_bytes;
        if header_end > file_bytes {
            return Err(HeaderError::PastEnd { header_end, file_bytes });
        }
        Ok(header_bytes)
    }

    /// Parses a whole file that is in memory; reads only its header.
    ///
    /// # Errors
    /// The first [`HeaderError`] found.
    pub fn of_bytes(file: &[u8]) -> Result<Self, HeaderError> {
        let file_bytes = file.len() as u64;
        let too_short = HeaderError::TooShort { file_bytes };
        let length = *file.first_chunk::<8>().ok_or(too_short)?;
        let json_bytes = Self::json_bytes(length, file_bytes)?;
        // In range: `json_bytes` checked it against the length of this very slice.
        Self::parse(&file[8..8 + json_bytes as usize], file_bytes)
    }

    /// Parses the JSON of a header, given the length of the whole file.
    ///
    /// # Errors
    /// The first [`HeaderError`] found.
    pub(crate) fn parse(json: &[u8], file_bytes: u64) -> Result<Self, HeaderError> {
        let text = std::str::from_utf8(json)
            .map_err(|e| HeaderError::NotUtf8 { offset: e.valid_up_to() as u64 })?;
        if !text.starts_with('{') {
            let reason = "it does not begin with `{`".to_owned();
            return Err(HeaderError::Syntax { reason });
        }
        let data_start = LENGTH_BYTES + json.len() as u64;
        let (raw, metadata) = parse_json(text)?;
        let mut tensors =
            raw.into_iter().map(|(name, raw)| raw.check(name)).collect::<Result<Vec<_>, _>>()?;

        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(pair) = tensors.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(HeaderError::DuplicateName { name: pair[0].name.clone() });
        }

        tensors.sort_by_key(|t| (t.offset, t.bytes));
        let mut previous_end = 0u64;
        for tensor in &tensors {
            let (begin, name) = (tensor.offset, &tensor.name);
            if begin < previous_end {
                return Err(HeaderError::Overlap { tensor: name.clone(), begin, previous_end });
            }
            if begin > previous_end {
                return Err(HeaderError::Hole { tensor: name.clone(), begin, previous_end });
            }
            // Cannot overflow: `check` computed the bytes as end less begin.
            previous_end = begin + tensor.bytes;
        }

        // An end near 2^64 is past any file's end.
        let expected_bytes = previous_end.saturating_add(data_start);
        if expected_bytes > file_bytes {
            return Err(HeaderError::FileShort { expected_bytes, actual_bytes: file_bytes });
        }
        if expected_bytes < file_bytes {
            return Err(HeaderError::TrailingBytes { expected_bytes, actual_bytes: file_bytes });
        }
        for tensor in &mut tensors {
            tensor.offset += data_start;
        }
        Ok(Self { data_start, tensors, metadata })
    }
}

/// A tensor as written, before any check; offsets are relative to the data.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTensor {
    dtype: String,
    shape: Shape,
    data_offsets: (u64, u64),
}

impl RawTensor {
    /// Checks what one tensor can be checked for alone.
    fn check(self, tensor: String) -> Result<Tensor, HeaderError> {
        let Some(dtype) = WeightDType::from_name(&self.dtype) else {
            return Err(HeaderError::UnknownDType { tensor, dtype: self.dtype });
        };
        let Shape { axes: shape, rank } = self.shape;
        if rank > RANK_MAX {
            return Err(HeaderError::RankOverCap { tensor, rank, cap: RANK_MAX });
        }
        let (begin, end) = self.data_offsets;
        let Some(actual_bytes) = end.checked_sub(begin) else {
            return Err(HeaderError::ReversedOffsets { tensor, begin, end });
        };
        let bits = shape.iter().try_fold(dtype.bits(), |bits, &axis| bits.checked_mul(axis));
        let Some(bits) = bits else {
            return Err(HeaderError::SizeOverflow { tensor, dtype, shape });
        };
        if !bits.is_multiple_of(8) {
            return Err(HeaderError::PartialByte { tensor, dtype, shape });
        }
        let expected_bytes = bits / 8;
        if expected_bytes != actual_bytes {
            return Err(HeaderError::SizeMismatch {
                tensor,
                dtype,
                shape,
                expected_bytes,
                actual_bytes,
            });
        }
        Ok(Tensor { name: tensor, dtype, shape, offset: begin, bytes: actual_bytes })
    }
}

/// A shape that keeps at most [`RANK_MAX`] axes but counts them all.
struct Shape {
    axes: Vec<u64>,
    rank: usize,
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ShapeVisitor;
        impl<'de> Visitor<'de> for ShapeVisitor {
            type Value = Shape;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of axis lengths")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
                let mut shape = Shape { axes: Vec::new(), rank: 0 };
                while let Some(axis) = seq.next_element::<u64>()? {
                    if shape.rank < RANK_MAX {
                        shape.axes.push(axis);
                    }
                    shape.rank += 1;
                }
                Ok(shape)
            }
        }
        deserializer.deserialize_seq(ShapeVisitor)
    }
}

type RawHeader = (Vec<(String, RawTensor)>, BTreeMap<String, String>);

fn parse_json(text: &str) -> Result<RawHeader, HeaderError> {
    // Errors of our own cannot travel inside `serde_json::Error` as more than text.
    let mut typed = None;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let parsed = HeaderSeed { typed: &mut typed }
        .deserialize(&mut deserializer)
        .and_then(|raw| deserializer.end().map(|()| raw));
    parsed.map_err(|e| typed.unwrap_or(HeaderError::Syntax { reason: e.to_string() }))
}

/// Reads the outer object; unlike a map it sees every key, repeated ones too.
struct HeaderSeed<'a> {
    typed: &'a mut Option<HeaderError>,
}

impl HeaderSeed<'_> {
    fn stop<E: de::Error>(self, error: HeaderError) -> E {
        *self.typed = Some(error);
        E::custom("refused")
    }
}

impl<'de> DeserializeSeed<'de> for HeaderSeed<'_> {
    type Value = RawHeader;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<RawHeader, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for HeaderSeed<'_> {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        let mut tensors = Vec::new();
        let mut metadata: Option<BTreeMap<String, String>> = None;
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                let Pairs(pairs) = map.next_value()?;
                if metadata.is_some() {
                    return Err(self.stop(HeaderError::DuplicateName { name }));
                }
                let mut unique = BTreeMap::new();
                for (key, value) in pairs {
                    if unique.contains_key(&key) {
                        return Err(self.stop(HeaderError::DuplicateName { name: key }));
                    }
                    unique.insert(key, value);
                }
                metadata = Some(unique);
            } else {
                if tensors.len() == TENSORS_MAX {
                    return Err(self.stop(HeaderError::TooManyTensors { cap: TENSORS_MAX }));
                }
                tensors.push((name, map.next_value::<RawTensor>()?));
            }
        }
        Ok((tensors, metadata.unwrap_or_default()))
    }
}

/// A JSON object as the pairs that were written, repeated keys included; at most [`PAIRS_MAX`].
pub(crate) struct Pairs<V>(pub(crate) Vec<(String, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Pairs<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairsVisitor<V>(std::marker::PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for PairsVisitor<V> {
            type Value = Pairs<V>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<V>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    if pairs.len() == PAIRS_MAX {
                        let reason = format_args!("more than {PAIRS_MAX} entries");
                        return Err(de::Error::custom(reason));
                    }
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(PairsVisitor(std::marker::PhantomData))
    }
}
