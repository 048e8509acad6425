//! What a person is told when it does not work, and the exit code.

use plimsoll_device_cuda::CudaError;
use plimsoll_pipeline::{Kind, PipelineError};
use plimsoll_record::RecordError;
use plimsoll_weights::{WeightsError, WriteError};

/// A failure at the command line.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error("{0}")]
    Usage(String),
    #[error("cannot write {path}: {cause}")]
    Write { path: String, cause: std::io::Error },
    #[error("cannot read {path}: {cause}")]
    Read { path: String, cause: std::io::Error },
    #[error("{0}")]
    Host(String),
    #[error(transparent)]
    Cuda(CudaError),
    #[error(transparent)]
    WriteWeights(#[from] WriteError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("the run's record is lost: {error}, and beside the picture: {cause}")]
    RecordLost { error: String, cause: String },
    #[error("the trial {run_id} did not end well")]
    Trial { run_id: String, code: u8 },
    #[error("{failed} of doctor's checks failed")]
    Doctor { failed: usize },
}

impl Failure {
    /// 1 a check of doctor failed, 2 usage, 3 infeasible, 4 bad file, 5 device, 130 cancelled.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Cuda(CudaError::NoSuchDevice { .. }) => 2,
            Self::Host(_) => 3,
            Self::Weights(_) | Self::Read { .. } => 4,
            Self::WriteWeights(WriteError::Cancelled) => 130,
            Self::Record(error) => match error {
                RecordError::UnknownRun { .. } | RecordError::AmbiguousRun { .. } => 2,
                RecordError::Storage { .. } => 5,
                _ => 4,
            },
            Self::Trial { code, .. } => *code,
            Self::Doctor { .. } => 1,
            Self::Cuda(_)
            | Self::Write { .. }
            | Self::WriteWeights(_)
            | Self::RecordLost { .. } => 5,
            Self::Pipeline(error) => match error.kind() {
                Kind::Usage => 2,
                Kind::Infeasible => 3,
                Kind::File => 4,
                Kind::Device => 5,
                Kind::Cancelled => 130,
            },
        }
    }

    /// The one line, with its causes.
    pub(crate) fn text(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            let reason = error.to_string();
            if !text.contains(&reason) {
                text = format!("{text}: {reason}");
            }
            cause = error.source();
        }
        text
    }
}
