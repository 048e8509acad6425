//! Why a run did not end well, as a record keeps it: whose fault, which resource, the numbers.

use plimsoll_device::{Memory, Shortage};
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
    if let Some(shortage) = shortage(failure) {
        return short(shortage, reason);
    }
    match failure {
        Failure::Pipeline(PipelineError::Plan(error)) => infeasible(error, reason),
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

/// Which memory ran short, by its kind and never by anybody's words.
fn shortage(failure: &Failure) -> Option<Shortage> {
    match failure {
        Failure::Pipeline(error) => error.shortage(),
        Failure::Cuda(error) => error.shortage(),
        _ => None,
    }
}

fn short(shortage: Shortage, reason: Reason) -> Reason {
    let resource = match shortage.memory {
        Memory::Device => Resource::Vram,
        Memory::Host => Resource::Ram,
        Memory::Pinned => Resource::Pinned,
    };
    let free = match shortage.memory {
        // Where more than was asked for is free, a limit of the process stood in the way, which nobody states.
        Memory::Host => machine::available_ram()
            .filter(|free| shortage.needed_bytes.is_some_and(|needed| *free < needed)),
        Memory::Device | Memory::Pinned => None,
    };
    Reason {
        resource: Some(resource),
        needed_bytes: shortage.needed_bytes,
        available_bytes: shortage.free_bytes.or(free),
        ..reason
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

#[cfg(test)]
mod tests {
    use plimsoll_device::DeviceError;
    use plimsoll_device_cuda::CudaError;
    use plimsoll_exec::ExecError;

    use super::*;

    /// From the driver's number through device, executor and pipeline to the record, without a word being read.
    #[test]
    fn what_ran_short_arrives_in_the_record_as_what_it_is() {
        let refused = |call, text: &str| {
            let error = CudaError::Driver { call, code: 2, text: text.to_owned() };
            Failure::Pipeline(ExecError::from(DeviceError::from(error)).into())
        };
        let kept = of(&refused("cuMemAlloc_v2", "kein Speicher"), Stage::Denoise);
        assert_eq!((kept.resource, kept.stage), (Some(Resource::Vram), Some(Stage::Denoise)));
        let kept = of(&refused("cuMemHostAlloc", "no words"), Stage::Load);
        assert_eq!(kept.resource, Some(Resource::Pinned));
        let busy = CudaError::Busy { needed_bytes: 9, free_bytes: 4, total_bytes: 10 };
        let kept = of(&Failure::Cuda(busy), Stage::Load);
        assert_eq!(kept.resource, Some(Resource::Vram));
        assert_eq!((kept.needed_bytes, kept.available_bytes), (Some(9), Some(4)));
        let arena = DeviceError::Arena { device: "cpu".to_owned(), bytes: u64::MAX };
        let kept = of(&Failure::Pipeline(arena.into()), Stage::Load);
        assert_eq!((kept.resource, kept.needed_bytes), (Some(Resource::Ram), Some(u64::MAX)));
        // What merely speaks of memory is none.
        let words = CudaError::DriverUnusable { cause: "out of memory".to_owned() };
        assert_eq!(of(&Failure::Cuda(words), Stage::Load).resource, None);
    }
}
