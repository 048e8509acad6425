//! Whether an 8-bit transformer is what a checkpoint packs to, by some of its rows.
//!
//! To compare all of it would take as long as to pack it. Another checkpoint of the same shapes, a fine-tune say, differs
//! in nearly every row, and so does a file that was damaged on its way; what changed a few rows of one matrix is not
//! found.

use plimsoll_models::flux;
use plimsoll_weights::{Entry, SCALE_SUFFIX, WeightDType, f8_encode, f8_scale};

use crate::assembled::{Assembled, COMPONENTS, catalog};
use crate::failure::PipelineError;
use crate::packing::{Stored, size};

/// Bytes that are compared at either end of a tensor that is stored as it was.
const SAMPLE_BYTES: u64 = 4096;

impl Assembled {
    /// Whether the transformer of `packed` is this one's with its matrices in 8 bits, as far as the first, middle and
    /// last row of each matrix and the ends of all other tensors tell.
    ///
    /// Reads some 20 MB of either for FLUX.1.
    ///
    /// # Errors
    /// A transformer that is missing, or files that do not hold what their headers said.
    pub fn is_packed_as(&self, packed: &Self) -> Result<bool, PipelineError> {
        let at = COMPONENTS.iter().position(|name| *name == flux::TRANSFORMER).unwrap_or_default();
        let mine = catalog(&self.checkpoint, flux::TRANSFORMER)?;
        let theirs = catalog(&packed.checkpoint, flux::TRANSFORMER)?;
        for (name, entry) in mine.iter() {
            let Some(found) = theirs.get(name) else { return Ok(false) };
            let sides = (Stored::of(self, at, entry)?, Stored::of(packed, at, found)?);
            let (Some(source), Some(target)) = sides else { continue };
            let is_same = if is_narrowed(name, entry) {
                let Some(scales) = theirs.get(&format!("{name}{SCALE_SUFFIX}")) else {
                    return Ok(false);
                };
                let Some(scales) = Stored::of(packed, at, scales)? else { return Ok(false) };
                found.dtype == WeightDType::F8E4M3
                    && found.shape == entry.shape
                    && rows_agree(&source, &target, &scales)
            } else {
                entry.dtype == found.dtype && ends_agree(&source, &target)
            };
            if !is_same {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn is_narrowed(name: &str, entry: &Entry) -> bool {
    flux::is_block_matrix(flux::TRANSFORMER, name) && entry.dtype != WeightDType::F8E4M3
}

/// Whether some rows have the codes and scales that packing gives them.
fn rows_agree(source: &Stored<'_>, codes: &Stored<'_>, scales: &Stored<'_>) -> bool {
    let (cols, last) = (size(source.cols), source.rows().saturating_sub(1));
    let (mut bytes, mut values, mut found) = (Vec::new(), vec![0.0; cols], vec![0; cols]);
    [0, last / 2, last].iter().all(|row| {
        source.values(row * source.cols, &mut bytes, &mut values);
        codes.read(size(*row) * cols, &mut found);
        let mut scale = [0; 4];
        scales.read(size(*row) * 4, &mut scale);
        f8_scale(&values).is_some_and(|expected| {
            let mut pairs = values.iter().zip(&found);
            expected.to_le_bytes() == scale
                && pairs.all(|(value, code)| f8_encode(value / expected) == *code)
        })
    })
}

/// Whether two tensors begin and end alike.
fn ends_agree(one: &Stored<'_>, other: &Stored<'_>) -> bool {
    let bytes = one.bytes();
    let length = bytes.min(SAMPLE_BYTES);
    let (mut here, mut there) = (vec![0; size(length)], vec![0; size(length)]);
    bytes == other.bytes()
        && [0, bytes - length].iter().all(|offset| {
            one.read(size(*offset), &mut here);
            other.read(size(*offset), &mut there);
            here == there
        })
}
