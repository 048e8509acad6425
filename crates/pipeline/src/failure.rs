//! The one error of assembling, placing and generating, and whose fault it is.

use plimsoll_device::{DeviceError, Shortage};
use plimsoll_exec::ExecError;
use plimsoll_host::HostError;
use plimsoll_models::ModelError;
use plimsoll_plan::PlanError;
use plimsoll_verify::Violation;
use plimsoll_weights::{WeightsError, WriteError};

use crate::error::{Fault, ImageError, SchedulerError, TableError, TokenizerError};

/// Why no picture came of a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// A checkpoint is not what it should be.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A checkpoint's bytes cannot be had.
    #[error(transparent)]
    Host(#[from] HostError),
    /// A component's configuration, or a size that the model cannot take.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The sampler's configuration or the number of steps.
    #[error("scheduler: {0}")]
    Scheduler(#[from] SchedulerError),
    /// A tokenizer's files or the prompt.
    #[error("{component}: {cause}")]
    Tokenizer {
        /// Which tokenizer.
        component: &'static str,
        /// What is wrong with it.
        cause: TokenizerError,
    },
    /// A table that the host computes is too large or contradicts itself.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A picture cannot be made or written.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A file of tensors cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// No plan fits.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The plan is wrong: our bug, found before the run.
    #[error("the plan is not sound, which is a bug: {0}")]
    Unsound(Box<Violation>),
    /// The run failed or was cancelled.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// The device could not be made.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The pipeline is of a class that is not run.
    #[error("{path} is a {class}, expected a FluxPipeline")]
    PipelineClass {
        /// The folder.
        path: String,
        /// The class that it names.
        class: String,
    },
    /// A part of the pipeline is absent.
    #[error("{path} has no {part}")]
    PartMissing {
        /// The folder.
        path: String,
        /// Component or file.
        part: String,
    },
    /// A component's numbers are of a type that is not computed with.
    #[error(
        "{component}: {entry} is {dtype}; f32, f16, bf16 and what pack writes are read, other quantized files are not yet"
    )]
    WeightType {
        /// Component.
        component: String,
        /// Name of the tensor.
        entry: String,
        /// Its type.
        dtype: String,
    },
    /// A weight that should be stored in 8 bits is not a number.
    #[error("{component}: {entry} holds an element that is infinite or not a number")]
    NotFinite {
        /// Component.
        component: String,
        /// Name of the tensor.
        entry: String,
    },
    /// A number of the request makes no sense.
    #[error("{what} is {value}, expected {expected}")]
    Request {
        /// Option's name.
        what: &'static str,
        /// What was asked for.
        value: String,
        /// What may be asked for.
        expected: &'static str,
    },
}

/// What kind of failure it is, for exit codes and advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The request has to change.
    Usage,
    /// The line has to rise, or the request has to shrink.
    Infeasible,
    /// A file has to be replaced.
    File,
    /// The device or the machine failed, or we have a bug.
    Device,
    /// Somebody asked for it.
    Cancelled,
}

impl PipelineError {
    /// Which memory ran short on the way, if that is what happened. A plan that does not fit is none: there nothing
    /// was taken.
    pub fn shortage(&self) -> Option<Shortage> {
        match self {
            Self::Device(error) => error.shortage(),
            Self::Exec(error) => error.shortage(),
            _ => None,
        }
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> Kind {
        let of = |fault| match fault {
            Fault::Caller => Kind::Usage,
            Fault::File => Kind::File,
            Fault::Disk | Fault::Bug => Kind::Device,
        };
        match self {
            Self::Weights(_)
            | Self::Host(_)
            | Self::PipelineClass { .. }
            | Self::PartMissing { .. }
            | Self::WeightType { .. }
            | Self::NotFinite { .. } => Kind::File,
            Self::Model(ModelError::Request { .. }) | Self::Request { .. } => Kind::Usage,
            Self::Model(_) => Kind::File,
            Self::Scheduler(error) => of(error.fault()),
            Self::Tokenizer { cause, .. } => of(cause.fault()),
            Self::Table(_) => Kind::Usage,
            Self::Image(error) => of(error.fault()),
            Self::Plan(PlanError::Infeasible { .. }) => Kind::Infeasible,
            Self::Plan(_) => Kind::Usage,
            Self::Exec(error) if error.is_cancelled() => Kind::Cancelled,
            Self::Device(DeviceError::Cancelled) | Self::Write(WriteError::Cancelled) => {
                Kind::Cancelled
            }
            Self::Exec(
                ExecError::Weight { .. } | ExecError::Device(DeviceError::HostRead { .. }),
            ) => Kind::File,
            Self::Unsound(_) | Self::Exec(_) | Self::Device(_) | Self::Write(_) => Kind::Device,
        }
    }
}
