//! The planner: for every byte of device memory an offset, for every weight a home, for every copy a place in the
//! order.
//!
//! [`plan`] is a pure function of a graph, a machine and a request. It runs in this order, a file each:
//!
//! | file | what it decides |
//! |---|---|
//! | `facts` | sizes and times, asked once and checked once |
//! | `units` | how weights are cut into pieces that are copied as one |
//! | `named`, `auto` (`residency`, `lookahead`) | which piece is held when: the strategies |
//! | `arena`, `shelf`, `walk` | where everything lies |
//! | `edges`, `hazards` | what each copy and each visit waits for |
//! | `simulate` | how long it all takes |
//! | `assemble`, `id` | the plan as data, and its name |
//!
//! [`explain`] makes a plan's [`Ledger`], [`lower_bound`] says how small any plan can be. A plan is proved by `verify`, which
//! shares no code with this room.
//!
//! Invariants:
//! - No I/O, no clock, no environment, no hash order.
//! - A plan over the line does not exist; a line is feasible for a strategy exactly from
//!   [`PlanError::Infeasible`]'s `smallest_bytes` on.
//! - Where a weight lives changes nothing but places and times: ops and their order are the graph's.

#![forbid(unsafe_code)]

mod arena;
mod assemble;
mod auto;
mod bound;
mod edges;
mod error;
mod facts;
mod hazards;
mod id;
mod item;
mod ledger;
mod line;
mod lookahead;
mod machine;
mod named;
mod offload;
mod planner;
mod residency;
mod schedule;
mod shelf;
mod simulate;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod types;
mod units;
mod walk;

pub use bound::lower_bound;
pub use error::{Advice, PeakAt, PlanError};
pub use ledger::{Ledger, LedgerRow, explain};
pub use line::{Bytes, Line, LineError};
pub use machine::Machine;
pub use planner::{Request, plan};
pub use simulate::{Timeline, simulate, steady_seconds};
pub use types::{
    ALIGNMENT, ComputeEntry, CopyEntry, Load, Offload, Phase, Plan, Prediction, Region, Unit,
    UnitWeight, Visit,
};
