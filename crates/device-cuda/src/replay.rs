//! Visits that a run repeats, recorded before it begins: a launch of many kernels for one call of the driver.
//!
//! A kernel on a stream costs 2.4 us between others, one in a recording 0.8 us (`bench/runs/2026-11-30-h200`). What changes
//! from step to step is read from the step counter in device memory, so a recording is good for every step. Recordings hold
//! ops alone: the order against copies stays with the streams' events, between them.
//!
//! Device memory: the driver takes it when a recording is made and keeps it for later ones. [`warm_up`] makes as many as any
//! run may have, so that what they take is in the card's reserve; a run with more of them issues the rest op by op, with the
//! same bits.

use std::ops::Range;

use crate::CudaError;
use crate::driver::{DeviceMemory, Recording, Stream};

/// Nodes of all recordings of a run: FLUX has 1,100 of them.
const NODES_MOST: usize = 4096;

/// Nodes of one recording in [`warm_up`].
const NODES_EACH: usize = 32;

/// The recordings of a program, by ascending ops.
#[derive(Debug, Default)]
pub(crate) struct Replays {
    found: Vec<(Range<u32>, Recording)>,
}

impl Replays {
    /// Records the ranges of ops for which `issue` puts work on `stream`, first come, first served.
    ///
    /// # Errors
    /// What `issue` fails with, or the driver.
    pub(crate) fn record<E: From<CudaError>>(
        stream: &Stream,
        ranges: impl Iterator<Item = Range<u32>>,
        issue: impl Fn(Range<u32>) -> Result<(), E>,
    ) -> Result<Self, E> {
        let mut left = NODES_MOST;
        let mut found = Vec::new();
        for range in ranges {
            if let Some((recording, nodes)) = stream.recording(left, || issue(range.clone()))? {
                left -= nodes;
                found.push((range, recording));
            }
        }
        found.sort_by_key(|(range, _)| range.start);
        Ok(Self { found })
    }

    /// The recording that begins with an op, and its ops.
    pub(crate) fn starting(&self, op: u32) -> Option<(&Range<u32>, &Recording)> {
        let at = self.found.binary_search_by_key(&op, |(range, _)| range.start).ok()?;
        self.found.get(at).map(|(range, recording)| (range, recording))
    }
}

/// Makes and drops as many recordings as a run may have; `scratch` is written to if they ever ran, which they do not.
///
/// # Errors
/// The driver's failure.
pub(crate) fn warm_up(stream: &Stream, scratch: &DeviceMemory) -> Result<(), CudaError> {
    let each = || {
        stream.recording(NODES_EACH, || {
            (0..NODES_EACH).try_for_each(|_| {
                // SAFETY: recorded and never run; the scratch has that word.
                unsafe { stream.set_words(scratch.base(), 0, 1) }
            })
        })
    };
    let made: Vec<_> =
        (0..NODES_MOST / NODES_EACH).map(|_| each()).collect::<Result<_, CudaError>>()?;
    // All of them are there at once before the first goes.
    drop(made);
    Ok(())
}

/// Where the compute lane is in a recording that it has put on its stream.
#[derive(Debug, Default)]
pub(crate) struct Replayed {
    /// Ops that are on the stream already and will still be asked for.
    ahead: Range<u32>,
}

impl Replayed {
    /// The ops of a recording are on the stream; its first was asked for.
    pub(crate) fn began(&mut self, ops: &Range<u32>) {
        self.ahead = ops.start + 1..ops.end;
    }

    /// Whether `op` is on the stream already; then it counts as asked for.
    pub(crate) fn takes(&mut self, op: u32) -> bool {
        let is_next = !self.ahead.is_empty() && self.ahead.start == op;
        self.ahead.start += u32::from(is_next);
        is_next
    }

    /// Whether everything on the stream has been asked for.
    pub(crate) fn is_done(&self) -> bool {
        self.ahead.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ops_of_a_recording_are_taken_in_order_and_once() {
        let mut replayed = Replayed::default();
        assert!(replayed.is_done() && !replayed.takes(0));
        replayed.began(&(3..6));
        assert!(!replayed.is_done());
        assert!(!replayed.takes(5) && replayed.takes(4) && !replayed.takes(4));
        assert!(replayed.takes(5) && replayed.is_done() && !replayed.takes(6));
        replayed.began(&(7..8));
        assert!(replayed.is_done());
    }
}
