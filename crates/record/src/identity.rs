//! Names of runs: the time, and a random part.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

/// Letters of the random part: no vowels, so no words; no look-alikes.
const LETTERS: &[u8; 24] = b"23456789bcdfghjkmnpqrtvw";

/// Length of the random part: 24^6 = 191 million, and ids of one second only can meet.
const RANDOM_LETTERS: usize = 6;

/// UTC as `2026-11-30 17:18:04`.
pub fn utc(now: SystemTime) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// A new run's id, such as `20261130-171804-k7m2wq`: ids sort by time, and the last part alone names a run.
pub fn new_run_id(now: SystemTime) -> String {
    let stamp: String = utc(now).replace(['-', ':'], "").replace(' ', "-");
    // Seeded by the operating system's randomness, anew for each value.
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    let mut random = hasher.finish();
    let mut id = format!("{stamp}-");
    for _ in 0..RANDOM_LETTERS {
        id.push(char::from(LETTERS[(random % 24) as usize]));
        random /= 24;
    }
    id
}

/// The part of an id that names its run alone, for tables; an id that is not ours is all of it.
pub fn short_id(run_id: &str) -> &str {
    let parts: Vec<&str> = run_id.split('-').collect();
    match parts[..] {
        [day, time, random]
            if day.len() == 8 && time.len() == 6 && random.len() == RANDOM_LETTERS =>
        {
            random
        }
        _ => run_id,
    }
}

/// Year, month and day of a day count since 1970-01-01.
///
/// # Source
/// Howard Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`, for days since 1970.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_400, "2000-02-29 00:00:00"),
            (4_107_542_399, "2100-02-28 23:59:59"),
            (4_107_542_400, "2100-03-01 00:00:00"),
            (1_796_058_000, "2026-11-30 17:00:00"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn ids_of_one_second_differ() {
        let now = UNIX_EPOCH + Duration::from_secs(1_796_058_000);
        let mut ids: Vec<_> = (0..1000).map(|_| new_run_id(now)).collect();
        assert!(ids[0].starts_with("20261130-170000-"), "{}", ids[0]);
        assert_eq!(ids[0].len(), 22);
        ids.sort();
        ids.dedup();
        // 1000 of 191 million: two alike once in 380 runs of this test, three alike never.
        assert!(ids.len() >= 998, "{} of 1000", ids.len());
    }
}
