//! What would repeat a check, and when it was.

use crate::run::{Finding, Options};
use std::fmt::Write as _;

/// The command that asks the same again.
pub fn command(f: &Finding) -> String {
    let o = &f.options;
    if !o.only.is_empty() {
        return format!("lockstep check {} --replay FILE", f.url);
    }
    let plain = Options::of(o.profile);
    let mut words = format!(
        "lockstep check {} --profile {} --sessions {} --rounds {} --context {} --max-tokens {} \
         --seed {}",
        f.url,
        o.profile.name(),
        o.sessions,
        o.sizes.rounds,
        o.sizes.context_tokens,
        o.sizes.answer_tokens_max,
        o.seed
    );
    if !o.kinds.is_empty() {
        let kinds: Vec<&str> = o.kinds.iter().map(|k| k.name()).collect();
        // Writing to a String cannot fail.
        let _ = write!(words, " --kinds {}", kinds.join(","));
    }
    if let Some(bound) = o.bound {
        let _ = write!(words, " --bound {bound}");
    }
    if o.deterministic != plain.deterministic {
        let _ = write!(words, " --deterministic {}", o.deterministic.name());
    }
    if o.calibrations != plain.calibrations {
        let _ = write!(words, " --calibrations {}", o.calibrations);
    }
    if let Some(log) = &o.decode_log {
        let _ = write!(words, " --decode-log {}", log.display());
    }
    if o.accept_partial_coverage {
        words.push_str(" --accept-partial-coverage");
    }
    if o.isolate {
        words.push_str(" --isolate");
    }
    if let Some(url) = &o.other_url {
        let _ = write!(words, " --other-url {url}");
    }
    words
}

const fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

/// Seconds since 1970 as `2026-11-30 17:05 UTC`.
pub fn date(unix_s: u64) -> String {
    let (mut days, second) = (unix_s / 86_400, unix_s % 86_400);
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{:02} {hour:02}:{minute:02} UTC", days + 1)
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn dates_are_the_calendars() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_796_000_403), "2026-11-30 01:00 UTC");
        assert_eq!(date(1_798_761_599), "2026-12-31 23:59 UTC");
        assert_eq!(date(1_798_761_600), "2027-01-01 00:00 UTC");
    }
}
