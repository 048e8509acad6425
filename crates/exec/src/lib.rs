//! Carries out a verified plan on a device: binding, lanes, cancel, meter.
//!
//! - [`bind`] gives every operand of a plan its address and every copy its host bytes: a [`Program`].
//! - [`choose_disk`] says which copies come from the disk, where RAM is short.
//! - [`run`] issues the plan's two orders to the device's lanes and reads the meters afterwards.
//! - [`executed`] reads off a traced run in which numbers each component was computed.
//!
//! Invariants: only a plan that `verify` has proved can be bound; nothing here chooses an address, an order
//! or an algorithm; from the first command to the last nothing here takes memory.
//!
//! [`Program`]: plimsoll_device::Program

#![forbid(unsafe_code)]

mod bind;
mod error;
mod executed;
mod run;
mod runs;
mod tier;

pub use bind::{WeightBytes, WeightSource, bind};
pub use error::ExecError;
pub use executed::{Executed, executed};
pub use run::{Progress, Report, StageSeconds, run};
pub use runs::HostRun;
pub use tier::choose_disk;
