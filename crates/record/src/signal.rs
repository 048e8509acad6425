//! What was observed of a run: the one thing that the next trial answers to.

use crate::criteria::Criteria;
use crate::gates::{Gates, Judgement};
use crate::record::Record;
use crate::words::{Resource, Stage, Status, words};

words! {
    /// What was observed.
    Signal {
        /// Device memory ran short before anything was computed.
        OutOfMemoryAtLoad = "out_of_memory_at_load",
        /// In a text encoder.
        OutOfMemoryAtEncode = "out_of_memory_at_encode",
        /// In the step loop, or in what is computed once for it.
        OutOfMemoryAtDenoise = "out_of_memory_at_denoise",
        /// In the decoder.
        OutOfMemoryAtDecode = "out_of_memory_at_decode",
        /// Host memory ran short.
        RamShort = "ram_short",
        /// It ran, and the output is not good.
        QualityFailed = "quality_failed",
        /// It ran and nothing is wrong with the output, but it takes too long.
        TooSlow = "over_time_limit",
    }
}

impl Signal {
    /// Whether device memory ran short.
    pub fn is_out_of_memory(self) -> bool {
        matches!(
            self,
            Self::OutOfMemoryAtLoad
                | Self::OutOfMemoryAtEncode
                | Self::OutOfMemoryAtDenoise
                | Self::OutOfMemoryAtDecode
        )
    }
}

/// The signal of a run, or why there is none that a trial could answer to.
///
/// Whatever kept it from running comes first, then quality, then time: a slow wrong picture is wrong.
///
/// # Errors
/// In words: nothing is wrong, or something that no change of settings helps.
pub fn observe(record: &Record, gates: &Gates, criteria: &Criteria) -> Result<Signal, String> {
    if record.run.status != Some(Status::Done) {
        return stopped(record);
    }
    if gates.quality.judgement == Judgement::Fail {
        return Ok(Signal::QualityFailed);
    }
    let wanted = &criteria.operation;
    let over = |measured: Option<f64>, most: Option<f64>| {
        measured.zip(most).is_some_and(|(measured, most)| measured > most)
    };
    let figures = &gates.figures;
    let bytes_over = |measured: Option<u64>, most: Option<u64>| {
        measured.zip(most).is_some_and(|(measured, most)| measured > most)
    };
    let line = record.conditions.vram_line_bytes;
    if bytes_over(figures.peak_vram, wanted.peak_vram_max.map(|most| most.0).or(line)) {
        return Ok(Signal::OutOfMemoryAtDenoise);
    }
    let installed = record.load.ram_limit;
    if bytes_over(figures.peak_ram, wanted.peak_ram_max.map(|most| most.0).or(installed)) {
        return Ok(Signal::RamShort);
    }
    let is_slow = over(figures.seconds_mean, wanted.seconds_mean_max)
        || over(figures.seconds_p95, wanted.seconds_p95_max)
        || over(wanted.per_hour_min, figures.per_hour);
    if is_slow {
        return Ok(Signal::TooSlow);
    }
    Err(match gates.quality.judgement {
        Judgement::Open => "it ran; judge its quality first (plimsoll runs judge)".to_owned(),
        _ if gates.operation.judgement == Judgement::Open => {
            "it ran and is good; repeat it to judge its operation (plimsoll runs repeat)".to_owned()
        }
        _ => "no gate failed: nothing has to change".to_owned(),
    })
}

fn stopped(record: &Record) -> Result<Signal, String> {
    let Some(failure) = &record.failure else {
        return Err("the record does not say why it did not end".to_owned());
    };
    match failure.resource {
        Some(Resource::Vram) => Ok(match failure.stage {
            Some(Stage::Encode) => Signal::OutOfMemoryAtEncode,
            Some(Stage::Hoist | Stage::Denoise) => Signal::OutOfMemoryAtDenoise,
            Some(Stage::Decode | Stage::Write) => Signal::OutOfMemoryAtDecode,
            Some(Stage::Load) | None => Signal::OutOfMemoryAtLoad,
        }),
        Some(Resource::Ram | Resource::Pinned) => Ok(Signal::RamShort),
        Some(Resource::Disk) => Err("the disk is full: no change of settings helps".to_owned()),
        None if record.run.status == Some(Status::Cancelled) => {
            Err("it was cancelled: run it again".to_owned())
        }
        None => Err(format!("no change of settings helps: {}", failure.message)),
    }
}
