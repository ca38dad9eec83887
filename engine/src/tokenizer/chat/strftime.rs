//! Dates for `strftime_now`, in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// The present moment in the format that C's `strftime` describes. Unknown directives are left as they are.
pub fn now(format: &str) -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    at(seconds, format)
}

/// `seconds` after the beginning of 1970.
fn at(seconds: u64, format: &str) -> String {
    let (day, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, date, year_day) = civil(day);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let month_name = MONTHS[month as usize - 1];
    let day_name = DAYS[(day % 7) as usize];
    let mut text = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        let mut directive = characters.next();
        let padded = directive != Some('-');
        if !padded {
            directive = characters.next();
        }
        let two = |value: u64| if padded { format!("{value:02}") } else { value.to_string() };
        match directive {
            Some('Y') => text.push_str(&year.to_string()),
            Some('y') => text.push_str(&two(year % 100)),
            Some('m') => text.push_str(&two(month)),
            Some('d') => text.push_str(&two(date)),
            Some('e') => text.push_str(&format!("{date:2}")),
            Some('j') => text.push_str(&format!("{year_day:03}")),
            Some('B') => text.push_str(month_name),
            Some('b' | 'h') => text.push_str(&month_name[..3]),
            Some('A') => text.push_str(day_name),
            Some('a') => text.push_str(&day_name[..3]),
            Some('H') => text.push_str(&two(hour)),
            Some('I') => text.push_str(&two((hour + 11) % 12 + 1)),
            Some('p') => text.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('M') => text.push_str(&two(minute)),
            Some('S') => text.push_str(&two(second)),
            Some('F') => text.push_str(&format!("{year}-{month:02}-{date:02}")),
            Some('T') => text.push_str(&format!("{hour:02}:{minute:02}:{second:02}")),
            Some('Z') => text.push_str("UTC"),
            Some('%') => text.push('%'),
            Some(other) => text.extend(['%', other]),
            None => text.push('%'),
        }
    }
    text
}

/// Year, month, day of the month and day of the year, the last three from 1, of a day after the beginning of 1970.
fn civil(mut day: u64) -> (u64, u64, u64, u64) {
    // The calendar repeats every 400 years.
    let mut year = 1970 + day / 146_097 * 400;
    day %= 146_097;
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days = |year: u64| if leap(year) { 366 } else { 365 };
    while day >= days(year) {
        day -= days(year);
        year += 1;
    }
    let year_day = day + 1;
    let lengths = [31, if leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    (year, month, day + 1, year_day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strftime_matches_known_dates() {
        let all = "%d %b %Y|%Y-%m-%d|%A %a %B|%H:%M:%S|%-d %e %j|%I %p|%F %T|%%|%q|%";
        assert_eq!(
            at(1_709_210_096, all),
            "29 Feb 2024|2024-02-29|Thursday Thu February|12:34:56|29 29 060|12 PM|2024-02-29 12:34:56|%|%q|%"
        );
        assert_eq!(at(0, "%F %A %I%p"), "1970-01-01 Thursday 12AM");
        assert_eq!(at(946_684_799, "%F %T"), "1999-12-31 23:59:59");
        assert_eq!(at(4_107_542_400, "%F"), "2100-03-01");
        assert!(at(u64::MAX, "%Y").len() > 4);
    }
}
