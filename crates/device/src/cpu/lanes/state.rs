//! What a lane holds: its commands, its signals, and who is rung for them.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use super::super::bell::Bell;
use crate::Command;

/// Commands that a ring holds.
pub(super) const RING: usize = 512;

/// One lane's commands and signals.
pub(super) struct LaneState {
    pub(super) name: &'static str,
    pub(super) ring: Mutex<VecDeque<Command>>,
    /// Held by whoever carries out the copy lane's next command.
    pub(super) turn: Mutex<()>,
    /// Rung when a command comes or no more will.
    pub(super) filled: Bell,
    /// Rung when the ring is half empty.
    pub(super) drained: Bell,
    pub(super) signals: AtomicU64,
    /// The count of signals that the other lane waits for; what it last waited for where it does not.
    pub(super) awaited: AtomicU64,
    /// Rung when that count is reached. To wake the other lane at each signal would cost a processor, and the ops
    /// that run on it, some ten microseconds each time.
    pub(super) signalled: Bell,
}

impl LaneState {
    pub(super) fn new(name: &'static str) -> Self {
        Self {
            name,
            ring: Mutex::new(VecDeque::with_capacity(RING)),
            turn: Mutex::new(()),
            filled: Bell::default(),
            drained: Bell::default(),
            signals: AtomicU64::new(0),
            awaited: AtomicU64::new(0),
            signalled: Bell::default(),
        }
    }
}
