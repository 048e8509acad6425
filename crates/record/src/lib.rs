//! Run records, the three gates that judge them, and the one change that comes next.
//!
//! "It ran" and "it is good" are different facts, and a next trial changes one axis; else nobody knows after
//! twenty trials which change did what. So every run leaves a [`Record`] whose execution conditions, execution
//! load and quality stand apart, three [`gates`] judge it apart, and [`next`] proposes exactly one [`Axis`].
//!
//! | file | what it holds |
//! |---|---|
//! | `record`, `fields`, `words` | what a record says, by the field names that the practice uses |
//! | `store`, `schema` | SQLite: a record is whole or absent |
//! | `axes` | what differs between two runs |
//! | `gates`, `criteria`, `picture` | feasibility, quality, operation |
//! | `signal`, `next` | from what was observed to one axis |
//! | `import` | records of other software, and what is contradictory in them |
//!
//! Invariants:
//! - Nothing but `store` does I/O; only [`new_run_id`] reads a clock's value, which it is given.
//! - A record is written in one transaction: whole or absent.
//! - `dtype`, `quantization`, `offload` and `input_size` are four axes, never merged.
//!
//! Not here: what a run is and how it is carried out; this room knows no other.

#![forbid(unsafe_code)]

pub mod axes;
mod criteria;
mod error;
mod fields;
pub mod gates;
mod identity;
pub mod import;
pub mod next;
pub mod picture;
mod record;
mod schema;
mod signal;
mod store;
pub mod units;
mod words;

pub use axes::{Axis, Difference, FieldChange, TrialOf, differences, trial_of};
pub use criteria::{Criteria, OperationCriteria, QualityCriteria};
pub use error::RecordError;
pub use fields::Json;
pub use identity::{new_run_id, short_id, utc};
pub use record::{
    Comparison, Conditions, Failure, Finding, Load, Quality, Record, Run, Stage, StageSeconds,
    Verdict,
};
pub use schema::{APPLICATION_ID, VERSION};
pub use signal::{Signal, observe};
pub use store::{Filter, Store};
pub use words::{FindingCode, Resource, Status};
