//! What a run takes, told from names: known models on known machines, rules of thumb beside exact figures, strategies
//! side by side, the curve over all lines, and what to change.
//!
//! | file | what it answers |
//! |---|---|
//! | `thumb` | what the field's rules of thumb say, from their formulas |
//! | `machines` | which cards and buses there are, each figure with its source (`data/machines.json`) |
//! | `models` | which models there are, their parameters and bytes by component, their graphs |
//! | `fit` | in how many pieces and tiles a run fits under a line |
//! | `report` | all that is told of a run, as JSON with a schema |
//! | `forecast` | how long an op takes that no device runs yet |
//! | `outcome` | what one plan takes |
//! | `strategies` | the field's ways and ours, and which to take |
//! | `curve` | seconds for every line, and what binds |
//! | `host` | host memory, and when the disk binds |
//! | `advice` | what to change where it does not fit, what more memory buys where it does |
//! | `picture` | the lanes of a step, memory over the run, the curve, as SVG |
//! | `exact` | the questions of the rules of thumb, answered by plans |
//!
//! Every figure comes out of the planner that makes the plans of runs; this room only asks it.
//!
//! Invariants:
//! - No I/O, no clock, no environment: the same question gives the same bytes.
//! - Every figure is computed from its inputs; no table is stored text.
//! - What is not measured is called an estimate and carries a band.

#![forbid(unsafe_code)]

mod advice;
mod curve;
mod error;
pub mod exact;
mod fit;
mod forecast;
mod host;
mod machines;
mod models;
mod outcome;
mod picture;
mod report;
mod strategies;
pub mod thumb;

pub use advice::{Change, Verdict, advise};
pub use curve::{Binds, Curve, Point, all_resident, binds, curve};
pub use error::LedgerError;
pub use fit::{Fit, Fitter, fit};
pub use forecast::Forecast;
pub use host::{HostLedger, host_ledger};
pub use machines::{Bus, Card, Class, Figure, Known, Machines, Source};
pub use models::{Architecture, Ask, Codings, ComponentRow, KnownModel, NAMES, Recipe, known};
pub use outcome::{Outcome, outcome, planned, plans};
pub use picture::{curve_svg, timeline_svg};
pub use report::{
    Answer, FORECAST_VERSION, ForecastReport, PartReport, PeakReport, PhaseReport, Recommendation,
    RefusalReport, schema,
};
pub use strategies::{Quality, StrategyRow, recommend, strategies};
