//! Host memory and disk of a run: what is backed by files, what is not, what is pinned, and when the disk binds.

use plimsoll_graph::DType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::LedgerError;
use crate::models::Recipe;

/// What the operating system keeps for itself.
const SYSTEM_BYTES: u64 = 1 << 30;
/// Code, runtime and driver of this process.
const PROCESS_BYTES: u64 = 400 << 20;

/// Host bytes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostLedger {
    /// Weights in files, which the page cache holds and may drop: they are mapped, never copied.
    pub file_bytes: u64,
    /// Memory of the process itself: code and driver, inputs, outputs.
    pub anonymous_bytes: u64,
    /// Locked by the process beside the mapped files: none, since a registered mapping needs no second copy.
    pub pinned_bytes: u64,
    /// Of a KV cache: a diffusion transformer computes all tokens anew in each step and has none.
    pub kv_cache_bytes: u64,
    /// Bytes of the files that a step streams, once each.
    pub streamed_bytes: u64,
    /// Whether what is streamed stays in the page cache; otherwise each step reads it from disk.
    pub is_cached: bool,
}

/// The host's part of a run that streams `streamed_bytes` in each step, on a machine with `ram_bytes`.
///
/// A page cache that is smaller than a cyclic scan holds nothing of it when it comes round again, so it is all or
/// nothing.
///
/// # Errors
/// [`LedgerError::Ram`] for a machine that has not even room for the system and this program.
pub fn host_ledger(
    recipe: &Recipe,
    streamed_bytes: u64,
    ram_bytes: Option<u64>,
) -> Result<HostLedger, LedgerError> {
    let file_bytes = recipe.components().iter().map(|row| row.device_bytes + row.table_bytes).sum();
    let matrix = |rows: u64, cols: u64, dtype: DType| rows * cols * dtype.bytes();
    let of_part = |part: &Recipe| -> u64 {
        let inputs = part.graph.inputs.iter().map(|it| matrix(it.rows, it.cols, it.dtype));
        // A decoder's tiles become one picture or film.
        let outputs = part.graph.outputs.iter().map(|it| {
            let tiles = if it.name == "image" { part.tiles } else { 1 };
            matrix(it.rows, it.cols, it.dtype).saturating_mul(tiles)
        });
        inputs.chain(outputs).fold(0, u64::saturating_add)
    };
    let values = recipe.parts().map(of_part).max().unwrap_or(0);
    let anonymous_bytes = PROCESS_BYTES.saturating_add(values);
    let needed_bytes = SYSTEM_BYTES.saturating_add(anonymous_bytes);
    if let Some(ram_bytes) = ram_bytes.filter(|ram| *ram < needed_bytes) {
        return Err(LedgerError::Ram { ram_bytes, needed_bytes });
    }
    let is_cached = ram_bytes.is_none_or(|ram| ram - needed_bytes >= streamed_bytes);
    Ok(HostLedger {
        file_bytes,
        anonymous_bytes,
        pinned_bytes: 0,
        kv_cache_bytes: 0,
        streamed_bytes,
        is_cached,
    })
}
