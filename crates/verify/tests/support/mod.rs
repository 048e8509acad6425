//! Graphs and plans to check, and an oracle that runs them.
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(unreachable_pub, reason = "a module of each test binary")]
#![allow(clippy::cast_possible_truncation, reason = "small tests")]

pub mod graphs;
pub mod naive;
pub mod oracle;
pub mod simulated;

use plimsoll_graph::{Graph, Op};
use plimsoll_plan::{Machine, Plan};
use plimsoll_verify::{Verified, Violation};

/// A rule with some ops that need no workspace, as devices have.
pub fn workspace_bytes(op: &Op) -> u64 {
    match op.kind.label() {
        "linear" => 96,
        "attention" => 320,
        "conv3x3" => 512,
        _ => 0,
    }
}

/// What the process takes beside the arena.
pub const RESERVED_BYTES: u64 = 1000;

/// A machine of that rule; copies are slow, so that streaming matters.
pub struct Slow;

impl Machine for Slow {
    fn name(&self) -> &str {
        "slow"
    }
    fn vram_bytes(&self) -> u64 {
        1 << 30
    }
    fn reserved_bytes(&self) -> u64 {
        RESERVED_BYTES
    }
    fn workspace_bytes(&self, _: &Graph, op: &Op) -> u64 {
        workspace_bytes(op)
    }
    fn op_seconds(&self, _: &Graph, _: &Op) -> f64 {
        1e-3
    }
    fn copy_seconds(&self, bytes: u64, _: u64) -> f64 {
        bytes as f64 * 1e-6
    }
}

pub fn verify<'p>(graph: &'p Graph, plan: &'p Plan) -> Result<Verified<'p>, Violation> {
    plimsoll_verify::verify(graph, plan, RESERVED_BYTES, &workspace_bytes)
}

/// xorshift64*.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        ((self.next() >> 33) as usize) % limit.max(1)
    }
}
