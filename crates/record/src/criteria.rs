//! By what a project judges its runs: one file, YAML or JSON.
//!
//! ```yaml
//! name: emoji
//! quality:
//!   psnr_min_db: 30        # against the reference
//!   ssim_min: 0.9
//!   checks: [identity]     # a person has to have passed each
//!   person: true           # without a person's verdict nothing passes (the default)
//! operation:
//!   runs_min: 3
//!   seconds_mean_max: 2
//!   seconds_p95_max: 3
//!   peak_vram_max: 12MiB
//!   peak_ram_max: 1GiB
//!   per_hour_min: 100      # pictures, or answers
//!   disk_max: 10MB         # files of one run
//!   retry_share_max: 0.2   # seconds lost in failed attempts, of all seconds
//! ```

use serde::{Deserialize, Serialize};

use crate::error::RecordError;
use crate::import;
use crate::units::Amount;

/// By what runs are judged; everything is optional.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Criteria {
    /// Name, for records.
    pub name: Option<String>,
    /// Of the quality gate.
    pub quality: QualityCriteria,
    /// Of the operation gate.
    pub operation: OperationCriteria,
}

/// When an output is good.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QualityCriteria {
    /// Least peak signal-to-noise ratio against the reference, in dB.
    pub psnr_min_db: Option<f64>,
    /// Least structural similarity to the reference.
    pub ssim_min: Option<f64>,
    /// Checks that a person has to have passed.
    pub checks: Vec<String>,
    /// Whether a person's verdict is needed.
    pub person: bool,
}

impl Default for QualityCriteria {
    fn default() -> Self {
        Self { psnr_min_db: None, ssim_min: None, checks: Vec::new(), person: true }
    }
}

/// When a load can be carried again and again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OperationCriteria {
    /// Runs to the end that a judgement needs.
    pub runs_min: u64,
    /// Most seconds on average.
    pub seconds_mean_max: Option<f64>,
    /// Most seconds of 19 in 20 runs.
    pub seconds_p95_max: Option<f64>,
    /// Most device memory.
    pub peak_vram_max: Option<Amount>,
    /// Most host memory.
    pub peak_ram_max: Option<Amount>,
    /// Least pictures or answers an hour.
    pub per_hour_min: Option<f64>,
    /// Most bytes of files of one run.
    pub disk_max: Option<Amount>,
    /// Most seconds lost in failed attempts, as a share of all seconds.
    pub retry_share_max: Option<f64>,
}

impl Default for OperationCriteria {
    fn default() -> Self {
        Self {
            // Fewer say nothing on how much they scatter.
            runs_min: 3,
            seconds_mean_max: None,
            seconds_p95_max: None,
            peak_vram_max: None,
            peak_ram_max: None,
            per_hour_min: None,
            disk_max: None,
            retry_share_max: None,
        }
    }
}

impl Criteria {
    /// From a file's text.
    ///
    /// # Errors
    /// [`RecordError::Faults`]: not YAML or JSON, an unknown name, a number that makes no sense.
    pub fn parse(source_name: &str, text: &str) -> Result<Self, RecordError> {
        let faults = |faults| RecordError::Faults { source_name: source_name.to_owned(), faults };
        let value = import::one_document(text).map_err(|fault| faults(vec![fault]))?;
        let criteria: Self =
            serde_json::from_value(value).map_err(|error| faults(vec![error.to_string()]))?;
        let found = criteria.faults();
        if found.is_empty() { Ok(criteria) } else { Err(faults(found)) }
    }

    fn faults(&self) -> Vec<String> {
        let (quality, operation) = (&self.quality, &self.operation);
        let positive = [
            ("seconds_mean_max", operation.seconds_mean_max),
            ("seconds_p95_max", operation.seconds_p95_max),
            ("per_hour_min", operation.per_hour_min),
            ("psnr_min_db", quality.psnr_min_db),
        ];
        let shares =
            [("ssim_min", quality.ssim_min), ("retry_share_max", operation.retry_share_max)];
        let wrong = |range: std::ops::RangeInclusive<f64>, expected: &'static str| {
            move |(name, value): &(&str, Option<f64>)| {
                let value = value.filter(|value| !range.contains(value))?;
                Some(format!("{name} is {value}, expected {expected}"))
            }
        };
        let mut found: Vec<String> = positive
            .iter()
            .filter_map(wrong(f64::MIN_POSITIVE..=1e12, "a number above 0"))
            .collect();
        found.extend(shares.iter().filter_map(wrong(0.0..=1.0, "0 to 1")));
        if operation.runs_min == 0 {
            found.push("runs_min is 0, expected 1 or more".to_owned());
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_and_json_say_the_same() {
        let yaml = "name: emoji\nquality:\n  ssim_min: 0.9\n  checks: [identity]\noperation:\n  \
                    seconds_p95_max: 3\n  peak_vram_max: 12MiB\n";
        let json = r#"{"name": "emoji", "quality": {"ssim_min": 0.9, "checks": ["identity"]},
                      "operation": {"seconds_p95_max": 3.0, "peak_vram_max": 12582912}}"#;
        let read = Criteria::parse("a.yaml", yaml).unwrap();
        assert_eq!(read, Criteria::parse("a.json", json).unwrap());
        assert_eq!(read.operation.peak_vram_max, Some(Amount(12 << 20)));
        assert!(read.quality.person);
        assert_eq!(Criteria::parse("empty", "").unwrap(), Criteria::default());
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (text, name) in [
            ("quality: {ssim: 1}", "ssim"),
            ("operation: {seconds_mean_max: -1}", "seconds_mean_max is -1"),
            ("quality: {ssim_min: 90}", "ssim_min is 90"),
            ("operation: {runs_min: 0}", "runs_min"),
            ("operation: {peak_vram_max: 12}", "12"),
            ("operation: {seconds_mean_max: .nan}", ".nan"),
            ("quality: [", "line"),
        ] {
            let error = Criteria::parse("criteria.yaml", text).unwrap_err().to_string();
            assert!(error.contains(name) && !error.contains('\n'), "{text}: {error}");
        }
    }
}
