//! Ledger, residency, slots, prefetch, arena, schedule simulation, explanation.
#![forbid(unsafe_code)]

mod machine;
mod types;

pub use machine::Machine;
pub use types::{
    ALIGNMENT, ComputeEntry, CopyEntry, Load, Offload, Phase, Plan, Prediction, Region, Unit,
    UnitWeight, Visit,
};
