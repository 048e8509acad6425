//! Work of a stream, recorded once and put on it whole as often as wanted.

use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys;

use super::{Context, Result, Stream, check};
use crate::CudaError;

/// Recorded work; what it touches is as when it was recorded.
#[derive(Debug)]
pub(crate) struct Recording {
    context: Arc<Context>,
    raw: sys::CUgraphExec,
}

// SAFETY: point 3 of the parent file's head.
unsafe impl Send for Recording {}
// SAFETY: as above.
unsafe impl Sync for Recording {}

/// A graph that is thrown away once it has been instantiated, or was not good for that.
struct Graph(sys::CUgraph);

impl Drop for Graph {
    fn drop(&mut self) {
        if !self.0.is_null() {
            let _ = driver!(cuGraphDestroy(self.0));
        }
    }
}

impl Stream {
    /// Records what `issue` puts on this stream, which runs nothing meanwhile; gives it with its number of nodes, or
    /// `None` where it has more than `nodes_most`.
    ///
    /// # Errors
    /// The driver's failure, or `issue`'s.
    pub(crate) fn recording<E: From<CudaError>>(
        &self,
        nodes_most: usize,
        issue: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<Option<(Recording, usize)>, E> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        driver!(cuStreamBeginCapture_v2(self.raw(), mode))?;
        let issued = issue();
        let mut graph = Graph(ptr::null_mut());
        // Whatever happened: the stream must not go on recording.
        let ended = driver!(cuStreamEndCapture(self.raw(), &raw mut graph.0));
        issued?;
        ended?;
        let mut nodes = 0;
        driver!(cuGraphGetNodes(graph.0, ptr::null_mut(), &raw mut nodes))?;
        if nodes > nodes_most {
            return Ok(None);
        }
        let mut made = Recording { context: Arc::clone(self.context()), raw: ptr::null_mut() };
        driver!(cuGraphInstantiateWithFlags(&raw mut made.raw, graph.0, 0))?;
        driver!(cuGraphUpload(made.raw, self.raw()))?;
        Ok(Some((made, nodes)))
    }

    /// Puts recorded work on this stream.
    ///
    /// # Safety
    /// All memory that the work names is still what it was when it was recorded.
    pub(crate) unsafe fn replay(&self, recording: &Recording) -> Result<()> {
        driver!(cuGraphLaunch(recording.raw, self.raw()))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            let _ = self.context.enter().and_then(|()| driver!(cuGraphExecDestroy(self.raw)));
        }
    }
}
