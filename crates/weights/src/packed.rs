//! Files that `plimsoll pack` wrote: canonical names, in the order in which a plan streams them.
//!
//! What such a file has beside its model's tensors:
//! - the metadata [`PACK_KEY`], whose text says what it was made from;
//! - for a matrix `X.weight` of type `F8_E4M3`, the scales of its rows, `X.weight_scale`, `F32`;
//! - filler, `plimsoll.padding.N` of type `U8`: the format allows no holes, and weights begin at multiples of 256 bytes.
//!
//! The metadata is believed in one point only: that scales are meant in this way. Types and shapes are checked.

use std::path::Path;

use crate::dtype::WeightDType;
use crate::entries::Entries;
use crate::error::WeightsError;
use crate::header::Tensor;

/// Key of a file's metadata that tells a packed file.
pub const PACK_KEY: &str = "plimsoll.pack";

/// Bytes to which a weight is aligned in a packed file and in device memory.
pub const PACK_ALIGNMENT: u64 = 256;

/// What the names of filler begin with.
const PADDING: &str = "plimsoll.padding.";

/// What the name of a matrix's scales has at its end.
pub const SCALE_SUFFIX: &str = "_scale";

/// The name of a file's filler, by its number.
pub fn padding_name(number: usize) -> String {
    format!("{PADDING}{number}")
}

/// Whether a tensor of a packed file is filler.
pub(crate) fn is_padding(tensor: &Tensor) -> bool {
    tensor.name.starts_with(PADDING) && tensor.dtype == WeightDType::U8
}

/// Every 8-bit matrix has its scales, and no scales are without one.
pub(crate) fn check(entries: &Entries, path: &Path) -> Result<(), WeightsError> {
    let refuse = |tensor: &str, reason: String| {
        let (path, tensor) = (path.to_owned(), tensor.to_owned());
        Err(WeightsError::Scales { path, tensor, reason })
    };
    for (name, entry) in entries {
        if let Some(matrix) = name.strip_suffix(SCALE_SUFFIX)
            && entries.get(matrix).is_none_or(|matrix| matrix.dtype != WeightDType::F8E4M3)
        {
            return refuse(name, format!("scales of {matrix}, which is no 8-bit matrix"));
        }
        if entry.dtype != WeightDType::F8E4M3 {
            continue;
        }
        let &[rows, _] = entry.shape.as_slice() else {
            return refuse(name, format!("8 bits for the shape {:?}", entry.shape));
        };
        let Some(scale) = entries.get(&format!("{name}{SCALE_SUFFIX}")) else {
            return refuse(name, "has no scales".to_owned());
        };
        if scale.dtype != WeightDType::F32 || scale.shape != [rows] {
            let (dtype, shape) = (scale.dtype, &scale.shape);
            let reason = format!("its scales are {dtype} {shape:?}, expected F32 [{rows}]");
            return refuse(name, reason);
        }
    }
    Ok(())
}
