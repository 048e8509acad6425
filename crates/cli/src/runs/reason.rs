//! Why a run did not end well, as a record keeps it: whose fault, which resource, the numbers.

use plimsoll_device::DeviceError;
use plimsoll_device_cuda::CudaError;
use plimsoll_exec::ExecError;
use plimsoll_pipeline::PipelineError;
use plimsoll_pipeline::error::ImageError;
use plimsoll_plan::PlanError;
use plimsoll_record::{Failure as Reason, Finding, FindingCode, Resource, Stage, Status};

use crate::failure::Failure;
use crate::runs::machine;

/// How a run with this failure ended.
pub(crate) fn status(failure: &Failure) -> Status {
    // It ran to the end: what came of it is no picture, and that is quality.
    if finding(failure).is_some() {
        return Status::Done;
    }
    match failure.exit_code() {
        2 | 3 => Status::Refused,
        130 => Status::Cancelled,
        _ => Status::Failed,
    }
}

/// What is wrong with what the run made, where that is its failure.
pub(crate) fn finding(failure: &Failure) -> Option<Finding> {
    let Failure::Pipeline(PipelineError::Image(error @ ImageError::NotANumber { .. })) = failure
    else {
        return None;
    };
    Some(Finding { code: FindingCode::NonFinite, text: error.to_string() })
}

/// The failure as a record keeps it; `stage` is how far the run had come.
pub(crate) fn of(failure: &Failure, stage: Stage) -> Reason {
    let kind = match failure.exit_code() {
        2 => "usage",
        3 => "infeasible",
        4 => "file",
        130 => "cancelled",
        _ => "device",
    };
    let reason = Reason {
        kind: kind.to_owned(),
        message: failure.text(),
        stage: Some(stage),
        ..Reason::default()
    };
    match failure {
        Failure::Pipeline(PipelineError::Plan(error)) => infeasible(error, reason),
        Failure::Pipeline(
            PipelineError::Device(error) | PipelineError::Exec(ExecError::Device(error)),
        ) => device(error, reason),
        Failure::Cuda(error) => card(error, reason),
        Failure::Pipeline(PipelineError::Image(ImageError::Write { source, .. })) => {
            disk(source, reason)
        }
        Failure::Write { cause, .. } => disk(cause, reason),
        _ => reason,
    }
}

/// A panic of ours.
pub(crate) fn bug(message: String, stage: Stage) -> Reason {
    Reason { kind: "bug".to_owned(), message, stage: Some(stage), ..Reason::default() }
}

fn infeasible(error: &PlanError, reason: Reason) -> Reason {
    let PlanError::Infeasible { line_bytes, smallest_bytes, smallest_any_bytes, at, .. } = error
    else {
        return reason;
    };
    let stage = [Stage::Encode, Stage::Hoist, Stage::Denoise, Stage::Decode]
        .into_iter()
        .find(|stage| at.phase.starts_with(stage.word()));
    Reason {
        resource: Some(Resource::Vram),
        stage: stage.or(reason.stage),
        needed_bytes: Some(*smallest_bytes),
        available_bytes: Some(*line_bytes),
        smallest_bytes: Some(*smallest_any_bytes),
        activation_bytes: Some(at.tensor_bytes.saturating_add(at.workspace_bytes)),
        ..reason
    }
}

fn device(error: &DeviceError, reason: Reason) -> Reason {
    match error {
        // The CPU's device memory is RAM.
        DeviceError::Arena { device, bytes } => Reason {
            resource: Some(if device == "cuda" { Resource::Vram } else { Resource::Ram }),
            stage: Some(Stage::Load),
            needed_bytes: Some(*bytes),
            // Where more than that is free, a limit of the process stood in the way, which nobody states.
            available_bytes: machine::available_ram()
                .filter(|free| device != "cuda" && free < bytes),
            ..reason
        },
        DeviceError::Driver { cause, .. } if is_out_of_memory(cause) => {
            Reason { resource: Some(Resource::Vram), ..reason }
        }
        _ => reason,
    }
}

fn card(error: &CudaError, reason: Reason) -> Reason {
    match error {
        CudaError::Busy { needed_bytes, free_bytes, .. } => Reason {
            resource: Some(Resource::Vram),
            needed_bytes: Some(*needed_bytes),
            available_bytes: Some(*free_bytes),
            ..reason
        },
        other if is_out_of_memory(&other.to_string()) => {
            Reason { resource: Some(Resource::Vram), ..reason }
        }
        _ => reason,
    }
}

fn disk(error: &std::io::Error, reason: Reason) -> Reason {
    use std::io::ErrorKind;
    let is_full = matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
    );
    Reason { resource: is_full.then_some(Resource::Disk), stage: Some(Stage::Write), ..reason }
}

/// `CUDA_ERROR_OUT_OF_MEMORY` and what libraries make of it.
fn is_out_of_memory(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    text.contains("out_of_memory") || text.contains("out of memory")
}
