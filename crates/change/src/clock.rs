//! Time for people, and time to wait by.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970 by this machine's clock. For people only: it may jump.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// `2026-11-30T01-20-03Z`, which sorts and is a file's name everywhere.
pub fn stamp(unix_ms: u64) -> String {
    time(unix_ms).replace(':', "-")
}

/// `2026-11-30T01:20:03Z`, as RFC 3339 has it. Days to dates by the proleptic Gregorian calendar, in
/// the form of Hinnant's `civil_from_days`.
pub fn time(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000;
    let (days, s) = (seconds / 86_400, seconds % 86_400);
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", s / 3600, s / 60 % 60, s % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_the_calendars() {
        assert_eq!(stamp(0), "1970-01-01T00-00-00Z");
        assert_eq!(stamp(951_782_400_000), "2000-02-29T00-00-00Z");
        assert_eq!(stamp(1_796_000_403_000), "2026-11-30T01-00-03Z");
        assert_eq!(time(1_796_000_403_000), "2026-11-30T01:00:03Z");
    }
}
