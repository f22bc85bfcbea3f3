//! When a checkpoint was saved: for people, and never for the order.

use std::time::{SystemTime, UNIX_EPOCH};

const SECONDS_OF_DAY: u64 = 86_400;

/// The time now; none where the clock is before 1970 or after the year 9999.
pub(super) fn now() -> Option<String> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    text(since.as_secs())
}

/// Whether a text has the form of a time.
pub(super) fn is_time(text: &str) -> bool {
    let form = b"0000-00-00T00:00:00Z";
    let fits = |(byte, &form): (u8, &u8)| if form == b'0' { byte.is_ascii_digit() } else { byte == form };
    text.len() == form.len() && text.bytes().zip(form).all(fits)
}

/// A time as RFC 3339 has it, in UTC, by its seconds since 1970.
fn text(seconds: u64) -> Option<String> {
    // Counted from 1 March of the year 0, so that a leap day is the last of its year, and months follow a line.
    let days = seconds / SECONDS_OF_DAY + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let months = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * months + 2) / 5 + 1;
    let month = if months < 10 { months + 3 } else { months - 9 };
    let year = 400 * era + year_of_era + u64::from(month <= 2);
    let second = seconds % SECONDS_OF_DAY;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    (year <= 9999).then(|| format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        let times = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (253_402_300_799, "9999-12-31T23:59:59Z"),
        ];
        for (seconds, expected) in times {
            assert_eq!(text(seconds).unwrap(), expected);
            assert!(is_time(expected));
        }
        assert_eq!(text(253_402_300_800), None);
        for wrong in
            ["", "1970-01-01", "1970-01-01 00:00:00Z", "1970-01-01T00:00:00z", "1970-01-01T00:00:0\u{1b}Z"]
        {
            assert!(!is_time(wrong), "{wrong}");
        }
        assert!(is_time(&now().unwrap()));
    }
}
