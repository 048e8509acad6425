//! What each op is on a CUDA card: kernels built ahead for each architecture, and for every op its launches
//! as data.
//!
//! - Sources are in `kernels/`, their cubins in `cubin/ARCH/`; `tools/kernels.py` makes the second from the
//!   first and checks that they still agree.
//! - [`tasks`] says what a bound op is: launches of own kernels, and products or attention for a library
//!   where [`Backends`] names one. It is a pure function, so it is tested where there is no card.
//! - [`workspace_bytes`] is the same question asked when a plan is made: it depends on shapes and
//!   [`Backends`] alone, never on free memory.
//!
//! Invariants: no driver, no `unsafe`; every address is an offset into the arena; nothing here knows which
//! step is being run (kernels read the step from a counter on the device).

#![forbid(unsafe_code)]

mod arch;
mod expected;
mod lower;
mod shape;
#[cfg(test)]
mod signature;
mod task;
mod variant;

pub use arch::{Arch, Cubin};
pub use expected::{bound_attentions, library_attentions};
pub use lower::{is_narrow_product, tasks, unpacked_bytes, workspace_bytes};
pub use shape::{Shape, bound_shapes, graph_shapes};
pub use task::{
    Arg, AttentionBackend, Backends, Gemm, GemmActivation, GemmBackend, Launch, Matrix,
    NarrowBackend, RowScales, Sdpa, Task, Unsupported,
};
