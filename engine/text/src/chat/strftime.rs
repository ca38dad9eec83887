//! Dates for `strftime_now`, in local time.

use chrono::{DateTime, FixedOffset, Local};

/// Numeric directives, which `-` writes without leading zeros or spaces.
const NUMBERS: &str = "YGCygmdjHIMSsuwUWV";
/// Other directives that work as in C and Python.
const WORDS: &str = "eklBbhAapPzcDxFrRTXnt%";

/// Formats the current time as C's and Python's `strftime` do. Unknown directives stay unchanged.
pub fn now(format: &str) -> String {
    written(Local::now().fixed_offset(), format)
}

fn written(moment: DateTime<FixedOffset>, format: &str) -> String {
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
        let microseconds = moment.timestamp_subsec_micros();
        let known = |directive: String| moment.format(&directive).to_string();
        text.push_str(&match directive {
            None => "%".to_owned(),
            Some('f') if padded => format!("{microseconds:06}"),
            Some('f') => microseconds.to_string(),
            Some('Z') if moment.offset().local_minus_utc() == 0 => "UTC".to_owned(),
            Some('Z') => known("UTC%:z".to_owned()),
            Some(number) if !padded && NUMBERS.contains(number) => known(format!("%-{number}")),
            Some(word) if NUMBERS.contains(word) || WORDS.contains(word) => known(format!("%{word}")),
            Some(other) => format!("%{other}"),
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(seconds: i64) -> DateTime<FixedOffset> {
        DateTime::from_timestamp(seconds, 42_000).expect("within the calendar").fixed_offset()
    }

    fn at(seconds: i64, format: &str) -> String {
        written(moment(seconds), format)
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
        let all = "%z %Z|%D %x|%R %X|%c|%U %W %V %G %g|%u %w|%P|%C|%k %l|%r|%s";
        let python = "+0000 UTC|02/29/24 02/29/24|12:34 12:34:56|Thu Feb 29 12:34:56 2024|08 09 09 2024 24|4 4|pm|20|12 12|12:34:56 PM|1709210096";
        assert_eq!(at(1_709_210_096, all), python);
        assert_eq!(at(0, "%f %n%t%-f"), "000042 \n\t42");
    }

    /// Days near year ends with their week numbers in C's `strftime`: weeks from Sunday, from
    /// Monday, and ISO weeks.
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
        let in_place = |offset| {
            let offset = FixedOffset::east_opt(offset).expect("less than a day");
            written(moment(1_709_210_096).with_timezone(&offset), "%F %H|%z|%Z|%A")
        };
        assert_eq!(in_place(9 * 3600), "2024-02-29 21|+0900|UTC+09:00|Thursday");
        assert_eq!(in_place(12 * 3600), "2024-03-01 00|+1200|UTC+12:00|Friday");
        assert_eq!(in_place(-(3 * 3600 + 1800)), "2024-02-29 09|-0330|UTC-03:30|Thursday");
        assert_eq!(now("%z"), Local::now().format("%z").to_string());
    }
}
