//! NVIDIA cards: context, arena, lanes, libraries; the only room that knows CUDA.
//!
//! - [`Card::open`] finds the driver, makes a context, loads every kernel and library, and says what that takes
//!   of the device's memory ([`Card::reserved_bytes`]).
//! - [`CudaDevice::new`] takes the arena, one plain allocation, and carries out programs: two lane threads put
//!   prepared launches and copies on two streams.
//! - [`loader`] finds the libraries; [`lt`] computes products with cuBLASLt, [`dnn`] attention with cuDNN.
//! - [`CudaMachine`] is a card as the planner sees it, by a [`profile`] that [`measure`] makes.
//! - `host_memory` is how weights get from a file to the card: from registered mappings, through pinned
//!   windows, or pageable; the bits are the same.
//!
//! Invariants:
//! - nothing panics where a driver, a symbol or a library is missing: every call is behind the gate of `driver`;
//! - device memory is taken when a card is opened and when the arena is, never while a program runs;
//! - `unsafe` is calls of the driver and libraries, and the places where host memory is lent to the card.

#![deny(clippy::multiple_unsafe_ops_per_block)]

mod arena;
mod card;
mod device;
pub mod dnn;
mod driver;
mod error;
mod host_memory;
mod kernels;
mod lanes;
pub mod loader;
pub mod lt;
mod machine;
pub mod measure;
mod meter;
mod nvtx;
mod prepare;
pub mod profile;
mod ring;
mod signals;

pub use card::{Card, CardOptions};
pub use device::CudaDevice;
pub use error::CudaError;
pub use host_memory::HostOptions;
pub use host_memory::probe::{Probing, probe_child};
pub use machine::CudaMachine;
pub use meter::{CardMeter, MeterKind};
