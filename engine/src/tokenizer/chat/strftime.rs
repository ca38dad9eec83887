//! Dates for `strftime_now`, by the clock of this place.

use chrono::Local;

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
/// From Sunday.
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// The present moment in the format that C's `strftime` and Python's describe. Unknown directives are left as they are.
pub fn now(format: &str) -> String {
    let now = Local::now();
    let seconds = u64::try_from(now.timestamp()).unwrap_or(0);
    Moment::new(seconds, now.offset().local_minus_utc(), now.timestamp_subsec_micros()).format(format)
}

/// A moment by the clock and calendar of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Moment {
    /// Since the beginning of 1970, in UTC.
    seconds: u64,
    microseconds: u32,
    /// Seconds that the place is ahead of UTC.
    offset: i32,
    year: u64,
    /// From 1, as are the two below.
    month: u64,
    day: u64,
    year_day: u64,
    /// From 0, Sunday.
    week_day: u64,
    hour: u64,
    minute: u64,
    second: u64,
}

impl Moment {
    fn new(seconds: u64, offset: i32, microseconds: u32) -> Self {
        let local = seconds.saturating_add_signed(offset.into());
        let (days, second) = (local / 86_400, local % 86_400);
        let (year, month, day, year_day) = civil(days);
        Moment {
            seconds,
            microseconds,
            offset,
            year,
            month,
            day,
            year_day,
            // It was a Thursday.
            week_day: (days + 4) % 7,
            hour: second / 3600,
            minute: second / 60 % 60,
            second: second % 60,
        }
    }

    fn format(&self, format: &str) -> String {
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
            let value = directive.and_then(|directive| {
                let number = || {
                    self.number(directive).map(|(value, width)| match padded {
                        true => format!("{value:0width$}"),
                        false => value.to_string(),
                    })
                };
                number().or_else(|| self.words(directive))
            });
            match (value, directive) {
                (Some(value), _) => text.push_str(&value),
                (None, Some(other)) => text.extend(['%', other]),
                (None, None) => text.push('%'),
            }
        }
        text
    }

    /// The value of a directive that is a number, and its digits.
    fn number(&self, directive: char) -> Option<(u64, usize)> {
        let hour = (self.hour + 11) % 12 + 1;
        let monday = (self.week_day + 6) % 7;
        let week = |first: u64| (self.year_day + 6 - first) / 7;
        let (iso_year, iso_week) = self.iso_week();
        Some(match directive {
            'Y' => (self.year, 1),
            'G' => (iso_year, 1),
            'C' => (self.year / 100, 2),
            'y' => (self.year % 100, 2),
            'g' => (iso_year % 100, 2),
            'm' => (self.month, 2),
            'd' => (self.day, 2),
            'j' => (self.year_day, 3),
            'H' => (self.hour, 2),
            'I' => (hour, 2),
            'M' => (self.minute, 2),
            'S' => (self.second, 2),
            'f' => (self.microseconds.into(), 6),
            's' => (self.seconds, 1),
            'u' => (monday + 1, 1),
            'w' => (self.week_day, 1),
            'U' => (week(self.week_day), 2),
            'W' => (week(monday), 2),
            'V' => (iso_week, 2),
            _ => return None,
        })
    }

    /// The text of a directive that is none.
    fn words(&self, directive: char) -> Option<String> {
        let (month, day) = (MONTHS[self.month as usize - 1], DAYS[self.week_day as usize]);
        let half = if self.hour < 12 { "AM" } else { "PM" };
        let (sign, minutes) = (if self.offset < 0 { '-' } else { '+' }, self.offset.unsigned_abs() / 60);
        let (hours, minutes) = (minutes / 60, minutes % 60);
        Some(match directive {
            'e' => format!("{:2}", self.day),
            'k' => format!("{:2}", self.hour),
            'l' => format!("{:2}", (self.hour + 11) % 12 + 1),
            'B' => month.to_owned(),
            'b' | 'h' => month[..3].to_owned(),
            'A' => day.to_owned(),
            'a' => day[..3].to_owned(),
            'p' => half.to_owned(),
            'P' => half.to_lowercase(),
            'z' => format!("{sign}{hours:02}{minutes:02}"),
            'Z' if self.offset == 0 => "UTC".to_owned(),
            'Z' => format!("UTC{sign}{hours:02}:{minutes:02}"),
            'c' => self.format("%a %b %e %H:%M:%S %Y"),
            'D' | 'x' => self.format("%m/%d/%y"),
            'F' => self.format("%Y-%m-%d"),
            'r' => self.format("%I:%M:%S %p"),
            'R' => self.format("%H:%M"),
            'T' | 'X' => self.format("%H:%M:%S"),
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }

    /// Year and week by ISO 8601: weeks begin on Monday, and the first has the year's first Thursday.
    fn iso_week(&self) -> (u64, u64) {
        let monday = (self.week_day + 6) % 7;
        // The day of the year of this week's Thursday, from 0; before the year's first it is in the last week of the year before.
        let thursday = (self.year_day + 2).checked_sub(monday);
        match thursday {
            None => {
                let before = self.year.saturating_sub(1);
                (before, (self.year_day + 2 + days_of(before) - monday) / 7 + 1)
            }
            Some(day) if day >= days_of(self.year) => (self.year + 1, 1),
            Some(day) => (self.year, day / 7 + 1),
        }
    }
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_of(year: u64) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

/// Year, month, day of the month and day of the year, the last three from 1, of a day after the beginning of 1970.
fn civil(mut day: u64) -> (u64, u64, u64, u64) {
    // The calendar repeats every 400 years.
    let mut year = 1970 + day / 146_097 * 400;
    day %= 146_097;
    while day >= days_of(year) {
        day -= days_of(year);
        year += 1;
    }
    let year_day = day + 1;
    let lengths = [31, if is_leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
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

    fn at(seconds: u64, format: &str) -> String {
        Moment::new(seconds, 0, 0).format(format)
    }

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
        let all = "%z %Z|%D %x|%R %X|%c|%U %W %V %G %g|%u %w|%P|%C|%k %l|%r|%s";
        let python = "+0000 UTC|02/29/24 02/29/24|12:34 12:34:56|Thu Feb 29 12:34:56 2024|08 09 09 2024 24|4 4|pm|20|12 12|12:34:56 PM|1709210096";
        assert_eq!(at(1_709_210_096, all), python);
        assert_eq!(Moment::new(0, 0, 42).format("%f %n%t"), "000042 \n\t");
    }

    /// Days at the borders of years, with the week of C's `strftime`: Sunday's, Monday's, ISO's.
    #[test]
    fn weeks_are_those_of_the_calendar() {
        for (seconds, want) in [
            (1_104_537_600, "2005-01-01 00 00 53 2004 6 6"),
            (1_104_710_400, "2005-01-03 01 01 01 2005 1 1"),
            (1_230_681_600, "2008-12-31 52 52 01 2009 3 3"),
            (1_262_476_800, "2010-01-03 01 00 53 2009 7 0"),
            (1_609_372_800, "2020-12-31 52 52 53 2020 4 4"),
        ] {
            assert_eq!(at(seconds, "%F %U %W %V %G %u %w"), want);
        }
    }

    #[test]
    fn clock_is_that_of_the_place() {
        let moment = |offset| Moment::new(1_709_210_096, offset, 0).format("%F %H|%z|%Z|%A");
        assert_eq!(moment(9 * 3600), "2024-02-29 21|+0900|UTC+09:00|Thursday");
        assert_eq!(moment(12 * 3600), "2024-03-01 00|+1200|UTC+12:00|Friday");
        assert_eq!(moment(-(3 * 3600 + 1800)), "2024-02-29 09|-0330|UTC-03:30|Thursday");
        assert_eq!(Moment::new(10, -3600, 0).format("%F"), "1970-01-01");
        assert_eq!(now("%z"), Local::now().format("%z").to_string());
    }
}
