//! The clock: local date and time, and UTC.

use chrono::{DateTime, FixedOffset, Local};

/// The current date and time.
pub fn now() -> String {
    text(Local::now().fixed_offset())
}

fn text(now: DateTime<FixedOffset>) -> String {
    let (here, utc) = (now.format("%A, %-d %B %Y, %H:%M:%S (UTC%:z)"), now.to_utc().format("%Y-%m-%dT%H:%M:%SZ"));
    format!("Local time: {here}\nUTC: {utc}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_says_local_time_and_utc() {
        let then = DateTime::parse_from_rfc3339("2026-11-25T00:30:05+05:30").unwrap();
        let want = "Local time: Wednesday, 25 November 2026, 00:30:05 (UTC+05:30)\nUTC: 2026-11-24T19:00:05Z";
        assert_eq!(text(then), want);
        assert!(now().starts_with("Local time: "));
    }
}
