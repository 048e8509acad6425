//! Plans that are built ahead of the program that will want them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use plimsoll_cuda_kernels::Sdpa;

use super::{Dnn, lock};
use crate::driver::Context;

/// A thread in which cuDNN builds plans for attentions, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Building {
    left: Arc<Mutex<VecDeque<Sdpa>>>,
    thread: Option<JoinHandle<()>>,
}

impl Building {
    /// Begins; where there is no thread, a plan is built where it is wanted.
    pub(crate) fn start(context: &Arc<Context>, dnn: &Arc<Dnn>, attentions: Vec<Sdpa>) -> Self {
        let left = Arc::new(Mutex::new(VecDeque::from(attentions)));
        let (taken, context, dnn) = (Arc::clone(&left), Arc::clone(context), Arc::clone(dnn));
        let build = move || {
            if context.enter().is_err() {
                return;
            }
            // The queue is free while a plan is built.
            let next = || lock(&taken).pop_front();
            while let Some(attention) = next() {
                // One that cannot be built is told of where it is wanted.
                let _built = dnn.prepare(&attention);
            }
        };
        let thread = std::thread::Builder::new().name("cuDNN plans".to_owned()).spawn(build).ok();
        Self { left, thread }
    }

    /// Leaves out what is not wanted after all.
    pub(crate) fn only(&self, wanted: &[Sdpa]) {
        lock(&self.left).retain(|attention| wanted.contains(attention));
    }
}

impl Drop for Building {
    fn drop(&mut self) {
        lock(&self.left).clear();
        // A panic of the library's has no reader here.
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}
