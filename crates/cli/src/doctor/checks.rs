//! What doctor concludes: a verdict a line, with its number and, where it fails, the likely cause.
//!
//! Pure functions over [`Evidence`]: a planted fault in the evidence fails its own line and no other. What was not seen
//! is neither passed nor failed.

mod memory;
mod work;

use serde::Serialize;

use crate::doctor::evidence::Evidence;

/// A verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Pass,
    Fail,
    /// It cannot be known here.
    Unknown,
}

impl Verdict {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "FAIL",
            Self::Unknown => "?",
        }
    }
}

/// What was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Check {
    FlatOverSteps,
    BackToIdle,
    HostMemory,
    Dtypes,
    Peak,
    Streamed,
    Time,
    SameBits,
}

impl Check {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::FlatOverSteps => "VRAM flat over the steps",
            Self::BackToIdle => "back to idle",
            Self::HostMemory => "RAM flat over the steps",
            Self::Dtypes => "dtypes as executed",
            Self::Peak => "peak within prediction",
            Self::Streamed => "streamed as planned",
            Self::Time => "time in the plan's range",
            Self::SameBits => "same bits each time",
        }
    }
}

/// One line of the diagnosis.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Line {
    pub(crate) check: Check,
    pub(crate) verdict: Verdict,
    /// The number.
    pub(crate) seen: String,
    /// Where it fails: why, most likely, and what to do. Where it is not known: why not.
    pub(crate) cause: Option<String>,
}

/// The whole diagnosis, in the order in which it is read.
pub(crate) fn judge(evidence: &Evidence) -> Vec<Line> {
    vec![
        memory::flat_over_steps(evidence),
        memory::back_to_idle(evidence),
        memory::host_memory(evidence),
        work::dtypes(evidence),
        memory::peak(evidence),
        work::streamed(evidence),
        work::time(evidence),
        work::same_bits(evidence),
    ]
}

fn pass(check: Check, seen: impl Into<String>) -> Line {
    Line { check, verdict: Verdict::Pass, seen: seen.into(), cause: None }
}

fn fail(check: Check, seen: impl Into<String>, cause: impl Into<String>) -> Line {
    Line { check, verdict: Verdict::Fail, seen: seen.into(), cause: Some(cause.into()) }
}

fn unknown(check: Check, why: impl Into<String>) -> Line {
    Line { check, verdict: Verdict::Unknown, seen: String::new(), cause: Some(why.into()) }
}

#[cfg(test)]
mod tests;
