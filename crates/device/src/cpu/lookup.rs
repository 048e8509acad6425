//! Ops that move rows: between host and device, by index, by bucket.

use super::arena::{MatMut, MatRef};
use super::convert;
use super::copy::cast;
use plimsoll_graph::DType;

use crate::contract::HostTable;
use crate::{DeviceError, HostDType, OutputBuffer};

/// Host values to device, byte for byte.
pub(crate) fn input(bytes: &[u8], mut out: MatMut<'_>) {
    let row_bytes = bytes.len() / out.rows();
    for (row, bytes) in bytes.chunks_exact(row_bytes).enumerate() {
        out.set_row_bytes(row, bytes);
    }
}

/// Device values to host, byte for byte.
pub(crate) fn output(x: MatRef<'_>, target: &OutputBuffer) {
    let mut bytes = target.bytes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let row_bytes = bytes.len() / x.rows();
    for (row, bytes) in bytes.chunks_exact_mut(row_bytes).enumerate() {
        x.row_bytes(row, bytes);
    }
}

/// Index number `at` of little-endian bytes.
pub(crate) fn index(ids: &[u8], at: usize) -> Option<u32> {
    ids.as_chunks::<4>().0.get(at).map(|bytes| u32::from_le_bytes(*bytes))
}

/// The bytes of a table's row.
fn table_row<'h>(table: &HostTable<'h>, row: usize, row_bytes: usize) -> Option<&'h [u8]> {
    let mut start = row.checked_mul(row_bytes)?;
    for piece in &table.pieces {
        if start < piece.len() {
            return piece.get(start..start.checked_add(row_bytes)?);
        }
        start -= piece.len();
    }
    None
}

/// `out[i] = table[ids[i]]`, cast.
///
/// # Errors
/// [`DeviceError::RowOutOfTable`]; `check` finds it when the program is loaded, before anything runs.
pub(crate) fn gather(
    table: &HostTable<'_>,
    ids: &[u8],
    mut out: MatMut<'_>,
) -> Result<(), DeviceError> {
    let width = if table.dtype == HostDType::F32 { 4 } else { 2 };
    let cols = out.cols();
    for row in 0..out.rows() {
        let id = index(ids, row).unwrap_or(u32::MAX);
        let bytes = table_row(table, id as usize, cols * width)
            .ok_or(DeviceError::RowOutOfTable { row: id, rows: table.rows })?;
        let mut buffer = [0.0; 256];
        for col in (0..cols).step_by(buffer.len()) {
            let chunk = &mut buffer[..256.min(cols - col)];
            convert::to_f32(&bytes[col * width..], table.dtype, chunk);
            out.store(row, col, chunk);
        }
    }
    Ok(())
}

/// `target[i] = table[ids[i]]`, row-major and cast, in host memory; for devices that cannot read host tables.
///
/// # Errors
/// [`DeviceError::RowOutOfTable`].
///
/// # Panics
/// If `target` has not the size of the rows that `ids` names.
pub fn gather_rows(
    table: &HostTable<'_>,
    ids: &[u8],
    target: &mut [u8],
    target_dtype: DType,
) -> Result<(), DeviceError> {
    let (cols, width) = (table.cols as usize, table.dtype.bytes() as usize);
    let row_bytes = cols * target_dtype.bytes() as usize;
    assert!(target.len() == ids.len() / 4 * row_bytes, "a target of another size");
    for (at, target) in target.chunks_exact_mut(row_bytes).enumerate() {
        let id = index(ids, at).unwrap_or(u32::MAX);
        let bytes = table_row(table, id as usize, cols * width)
            .ok_or(DeviceError::RowOutOfTable { row: id, rows: table.rows })?;
        cast(bytes, table.dtype, target, target_dtype);
    }
    Ok(())
}

/// `out[h, r] = weight[buckets[r], h]`; a bucket past the end takes the last row.
pub(crate) fn expand_bias(weight: MatRef<'_>, buckets: MatRef<'_>, mut out: MatMut<'_>) {
    for position in 0..out.cols() {
        let bucket = (buckets.index_at(position, 0) as usize).min(weight.rows() - 1);
        for head in 0..out.rows() {
            out.store(head, position, &[weight.at(bucket, head)]);
        }
    }
}

/// `out = x[index]`; an index past the end takes the last row.
pub(crate) fn select_row(x: MatRef<'_>, index: MatRef<'_>, mut out: MatMut<'_>) {
    let row = (index.index_at(0, 0) as usize).min(x.rows() - 1);
    let mut buffer = [0.0; 256];
    for col in (0..x.cols()).step_by(buffer.len()) {
        let chunk = &mut buffer[..256.min(x.cols() - col)];
        x.load(row, col, chunk);
        out.store(0, col, chunk);
    }
}
