//! Errors of carrying out a plan.

use plimsoll_device::{DeviceError, Shortage};

/// Why a run did not end with its outputs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// The device failed, or the run was cancelled ([`DeviceError::Cancelled`]).
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A weight's bytes in host memory are not what the plan needs.
    #[error("{component}: weight {entry}: {what}")]
    Weight {
        /// Component that owns it.
        component: String,
        /// Name in the catalog.
        entry: String,
        /// What does not fit, with the sizes.
        what: String,
    },
    /// A host input has another size than the graph states.
    #[error("input {name} has {found_bytes} bytes, expected {expected_bytes}")]
    Input {
        /// Name of the input.
        name: String,
        /// Bytes given.
        found_bytes: u64,
        /// Bytes of the graph's shape.
        expected_bytes: u64,
    },
    /// The run touched more of the arena than its plan allows: our bug, the session must stop.
    #[error("the line was crossed: {peak_bytes} bytes touched, {planned_bytes} planned")]
    LineCrossed {
        /// Highest byte touched.
        peak_bytes: u64,
        /// The plan's peak.
        planned_bytes: u64,
    },
}

impl ExecError {
    /// Which memory ran short, if that is what happened.
    pub fn shortage(&self) -> Option<Shortage> {
        match self {
            Self::Device(error) => error.shortage(),
            _ => None,
        }
    }

    /// Whether the run ended because it was asked to.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Self::Device(DeviceError::Cancelled))
    }
}
