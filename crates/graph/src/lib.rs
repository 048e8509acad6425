//! What is computed: components, blocks, ops, tensors, weights and lifetimes; data only.
//!
//! A model is an ordinary function over a [`Builder`] that reads like its paper; it is written for one
//! sample and one step. [`Builder::finish`] lowers that trace to a [`Graph`]: what does not depend on the
//! latent is hoisted out of the step loop, several samples become several visits of the same block, and the
//! phases (encode, hoist, denoise, decode) are laid in order. The planner, the verifier and every device
//! read the same [`Graph`].
//!
//! Invariants:
//! - No I/O, no clock, no environment: the same trace gives the same graph.
//! - Every tensor is a matrix `[rows, cols]`: tokens by features, or pixels (row-major) by channels.
//! - A weight belongs to exactly one block; a block is the unit of streaming.
//! - No op knows where its operands live.

#![forbid(unsafe_code)]

mod access;
mod builder;
mod builder_adapters;
mod builder_pixels;
mod builder_planned;
mod builder_tiles;
mod builder_weights;
mod cost;
mod dtype;
mod error;
mod graph;
mod lower;
mod op;
mod planned;
mod tiles;

pub use access::Access;
pub use builder::{Builder, PhaseSpec, Value};
pub use builder_planned::ConvShape;
pub use dtype::DType;
pub use error::GraphError;
pub use graph::{
    Block, BlockId, Coding, Component, ComponentId, Dependence, Graph, Input, InputId, Output,
    OutputId, Part, Phase, PhaseKind, RowSelect, Table, TableId, Tensor, TensorId, View, Visit,
    Weight, WeightId,
};
pub use lower::LowerOptions;
pub use op::{Activation, Norm, Op, OpKind, RelativeBias, Residual};
pub use planned::PlannedOp;
pub use tiles::{Fade, TileOp};
