//! The line: how many bytes of device memory a run may use, as people write it.
//!
//! Accepted: `6GiB`, `6GB`, `900MiB`, `1.5GiB`, plain bytes, `80%` (of the device), `max` (all weights
//! resident), `min` (the smallest that works). Units are case-insensitive; `K`, `M`, `G`, `T` alone are
//! refused, because half of the world means 1000 by them and half 1024.

use std::fmt;
use std::str::FromStr;

/// A line that was asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Line {
    /// So many bytes, at least 1.
    Bytes(u64),
    /// A share of [`crate::Machine::vram_bytes`] in percent, above 0 and at most 100.
    Percent(f64),
    /// As much as the fastest plan uses, at most all of the device.
    Max,
    /// As much as the smallest plan uses.
    Min,
}

/// Why a text is not a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// Not of a form that is known.
    #[error("line {text:?} is not a size; write 6GiB, 900MiB, 80%, max or min")]
    Form {
        /// What was given, at most 40 characters of it.
        text: String,
    },
    /// Nothing fits under it.
    #[error("line {text:?} is no memory at all")]
    Zero {
        /// What was given.
        text: String,
    },
    /// More than any device has.
    #[error("line {text:?} is more than any device has")]
    TooLarge {
        /// What was given.
        text: String,
    },
}

/// Lines from 1 EiB on are a slip of the hand.
const BYTES_LIMIT: f64 = (1u64 << 60) as f64;

const UNITS: [(&str, u64); 9] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("b", 1),
];

impl FromStr for Line {
    type Err = LineError;

    fn from_str(given: &str) -> Result<Self, LineError> {
        let text = || given.chars().take(40).collect::<String>();
        let lower = given.to_ascii_lowercase();
        match lower.as_str() {
            "max" => return Ok(Self::Max),
            "min" => return Ok(Self::Min),
            _ => {}
        }
        if let Some(number) = lower.strip_suffix('%') {
            let percent = decimal(number).ok_or_else(|| LineError::Form { text: text() })?;
            return match percent {
                p if p <= 0.0 => Err(LineError::Zero { text: text() }),
                p if p > 100.0 => Err(LineError::TooLarge { text: text() }),
                p => Ok(Self::Percent(p)),
            };
        }
        let (number, unit) = UNITS
            .iter()
            .find_map(|(suffix, unit)| lower.strip_suffix(suffix).map(|number| (number, *unit)))
            .unwrap_or((&lower, 1));
        if let Some(bytes) = whole(number).and_then(|number| number.checked_mul(unit)) {
            return match bytes {
                0 => Err(LineError::Zero { text: text() }),
                bytes if bytes >= 1 << 60 => Err(LineError::TooLarge { text: text() }),
                bytes => Ok(Self::Bytes(bytes)),
            };
        }
        let number = decimal(number).ok_or_else(|| LineError::Form { text: text() })?;
        let bytes = number * unit as f64;
        if bytes >= BYTES_LIMIT {
            Err(LineError::TooLarge { text: text() })
        } else if unit == 1 && number.fract() != 0.0 {
            Err(LineError::Form { text: text() })
        } else if bytes < 1.0 {
            Err(LineError::Zero { text: text() })
        } else {
            Ok(Self::Bytes(bytes as u64))
        }
    }
}

/// Digits only.
fn whole(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// Digits with at most one point inside; no sign, no exponent.
fn decimal(text: &str) -> Option<f64> {
    let (before, after) = text.split_once('.').unwrap_or((text, "0"));
    let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if is_digits(before) && is_digits(after) { text.parse().ok() } else { None }
}

impl Line {
    /// The line in bytes on a device of `vram_bytes`, at most all of it; `None` for `max` and `min`.
    pub fn bytes(&self, vram_bytes: u64) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some((*bytes).min(vram_bytes)),
            // A float holds 53 bits; on 2^53 bytes and more the share is rounded to it.
            Self::Percent(percent) => {
                Some(((vram_bytes as f64 * (percent / 100.0)) as u64).min(vram_bytes))
            }
            Self::Max | Self::Min => None,
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{}", Bytes(*bytes)),
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::Max => f.write_str("max"),
            Self::Min => f.write_str("min"),
        }
    }
}

/// Bytes for people: `12.0 MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            0..0x400 => return f.pad(&format!("{} B", self.0)),
            0x400..0x10_0000 => (1u64 << 10, "KiB"),
            0x10_0000..0x4000_0000 => (1 << 20, "MiB"),
            _ => (1 << 30, "GiB"),
        };
        f.pad(&format!("{:.2} {name}", self.0 as f64 / unit as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_as_people_write_them() {
        let cases = [
            ("6GiB", Line::Bytes(6 << 30)),
            ("6gib", Line::Bytes(6 << 30)),
            ("6GB", Line::Bytes(6_000_000_000)),
            ("900MiB", Line::Bytes(900 << 20)),
            ("1.5GiB", Line::Bytes(3 << 29)),
            ("12582912", Line::Bytes(12 << 20)),
            ("512B", Line::Bytes(512)),
            ("80%", Line::Percent(80.0)),
            ("12.5%", Line::Percent(12.5)),
            ("max", Line::Max),
            ("MIN", Line::Min),
            ("1023PB", Line::Max),
        ];
        for (text, line) in &cases[..cases.len() - 1] {
            assert_eq!(text.parse::<Line>().as_ref(), Ok(line), "{text}");
        }
        assert!(cases[cases.len() - 1].0.parse::<Line>().is_err());
    }

    #[test]
    fn everything_else_is_refused_in_one_line() {
        for text in [
            "",
            "0",
            "0GiB",
            "0%",
            "10 EiB",
            "10EiB",
            "6 G",
            "6G",
            "6 GiB",
            " 6GiB",
            "-1",
            "-5%",
            "101%",
            "1e9",
            "NaN",
            "inf",
            "GiB",
            "%",
            ".5GiB",
            "5.GiB",
            "1.5",
            "0.0000001KiB",
            "1.2.3GiB",
            "2000000TiB",
            "18446744073709551616",
            "0x10",
            "６GiB",
            "max ",
            "9999999999999999999999%",
        ] {
            let error = text.parse::<Line>().expect_err(text).to_string();
            assert!(!error.contains('\n') && error.len() < 160, "{error}");
        }
    }

    #[test]
    fn shares_are_of_the_device() {
        assert_eq!(Line::Percent(80.0).bytes(1000), Some(800));
        assert_eq!(Line::Percent(100.0).bytes(u64::MAX), Some(u64::MAX));
        assert_eq!(Line::Bytes(5000).bytes(1000), Some(1000));
        assert_eq!(Line::Max.bytes(1000), None);
    }
}
