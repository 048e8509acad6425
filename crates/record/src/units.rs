//! Sizes and seconds as people write them.

use serde::{Deserialize, Deserializer, Serialize};

/// Units of sizes, longest names first.
const SIZES: &[(&str, u64)] = &[
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

/// A plain number under this is no number of bytes but one whose unit was left out.
const PLAIN_BYTES_MIN: f64 = 65_536.0;

/// Bytes from a number with a unit, or a plain number that can only be bytes.
///
/// # Errors
/// What is wrong, in words.
pub fn bytes(text: &str) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let (number, unit) = SIZES
        .iter()
        .find_map(|(name, unit)| {
            lower.strip_suffix(name).map(|number| (number.trim(), Some(*unit)))
        })
        .unwrap_or((&lower, None));
    let value =
        decimal(number).ok_or_else(|| format!("{text:?} is no size: write 5.2GiB, or bytes"))?;
    if unit.is_none() && value > 0.0 && value < PLAIN_BYTES_MIN {
        return Err(format!("{text} has no unit: write {text}GiB, {text}MiB or bytes"));
    }
    let value = value * unit.unwrap_or(1) as f64;
    if value >= (1u64 << 60) as f64 {
        return Err(format!("{text} is more than any machine has"));
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 0 to 2^60.
    Ok(value.round() as u64)
}

/// Seconds from a plain number, or one with `s`, `ms` or `min`.
///
/// # Errors
/// What is wrong, in words.
pub fn seconds(text: &str) -> Result<f64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let (number, unit) = [("ms", 1e-3), ("min", 60.0), ("s", 1.0)]
        .iter()
        .find_map(|(name, unit)| lower.strip_suffix(name).map(|number| (number.trim(), *unit)))
        .unwrap_or((&lower, 1.0));
    let value = decimal(number).ok_or_else(|| format!("{text:?} is no number of seconds"))?;
    Ok(value * unit)
}

/// Digits with at most one point, not negative, no exponent, finite.
fn decimal(text: &str) -> Option<f64> {
    let is_plain =
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if is_plain { text.parse().ok() } else { None }
}

/// Bytes in a file of criteria: a number, or a text with a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Amount(pub u64);

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(text) => text,
            other => other.to_string(),
        };
        bytes(&text).map(Self).map_err(serde::de::Error::custom)
    }
}

/// Bytes for people: `11.78 MiB`.
pub fn show_bytes(bytes: u64) -> String {
    let (unit, name) = match bytes {
        0..0x400 => return format!("{bytes} B"),
        0x400..0x10_0000 => (1u64 << 10, "KiB"),
        0x10_0000..0x4000_0000 => (1 << 20, "MiB"),
        _ => (1 << 30, "GiB"),
    };
    format!("{:.2} {name}", bytes as f64 / unit as f64)
}

/// Seconds for people: three digits that matter.
pub fn show_seconds(seconds: f64) -> String {
    match seconds {
        value if value < 9.995 => format!("{value:.3} s"),
        value if value < 99.95 => format!("{value:.2} s"),
        value if value < 600.0 => format!("{value:.1} s"),
        value => format!("{:.1} min", value / 60.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_unit_or_are_bytes() {
        for (text, expected) in [
            ("5.2GiB", 5_583_457_485),
            ("5.2 GB", 5_200_000_000),
            ("900MiB", 900 << 20),
            ("0", 0),
            ("12582912", 12 << 20),
            ("512 B", 512),
        ] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in
            ["5.2", "11264", "", "GiB", "-1GiB", "1e9", "5,2GB", "nan", "9999999TiB", "1.2.3"]
        {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn seconds_are_plain_or_have_a_unit() {
        assert_eq!(seconds("12.5"), Ok(12.5));
        assert_eq!(seconds("850 ms"), Ok(0.85));
        assert_eq!(seconds("2min"), Ok(120.0));
        assert_eq!(seconds("3s"), Ok(3.0));
        assert!(seconds("-1").is_err() && seconds("fast").is_err() && seconds("inf").is_err());
    }
}
