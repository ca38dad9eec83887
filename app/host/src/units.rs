//! Formats and parses sizes and counts.

/// The largest allowed count. In other programs, a negative number means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Any count.
    None,
    /// This count.
    Of(usize),
}

impl Limit {
    /// Returns the count, or `unlimited` without a limit.
    pub fn count_or(self, unlimited: usize) -> usize {
        self.count().unwrap_or(unlimited)
    }

    /// Returns the count, if there is one.
    pub fn count(self) -> Option<usize> {
        if let Limit::Of(count) = self { Some(count) } else { None }
    }
}

/// The requested seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seed {
    /// A random seed: a negative number.
    Any,
    /// This seed.
    Fixed(u64),
}

impl Seed {
    /// Returns the seed, unless it is random.
    pub fn fixed(self) -> Option<u64> {
        if let Seed::Fixed(seed) = self { Some(seed) } else { None }
    }
}

/// True for the digits of a negative whole number.
fn is_negative(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or_default();
    !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit())
}

/// Parses a limit: a count, or a negative number for no limit.
pub fn parse_limit(text: &str) -> Result<Limit, String> {
    if is_negative(text) {
        return Ok(Limit::None);
    }
    text.parse().map(Limit::Of).map_err(|_| "expected a whole number; -1 is no limit".to_owned())
}

/// Parses a seed, or a negative number for a random one.
pub fn parse_seed(text: &str) -> Result<Seed, String> {
    if is_negative(text) {
        return Ok(Seed::Any);
    }
    text.parse().map(Seed::Fixed).map_err(|_| "expected a whole number; -1 is a random seed".to_owned())
}

/// Formats `1536` as `1.5 KiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// Formats `6_738_415_616` as `6.74 B`.
pub fn parameters(count: u64) -> String {
    match count as f64 {
        c if c >= 1e12 => format!("{:.2} T", c / 1e12),
        c if c >= 1e9 => format!("{:.2} B", c / 1e9),
        c if c >= 1e6 => format!("{:.2} M", c / 1e6),
        c if c >= 1e3 => format!("{:.1} K", c / 1e3),
        _ => count.to_string(),
    }
}

/// Formats `12.3` tokens per second as `12 tok/s`, and very low rates as time per token.
pub fn rate(tokens_per_second: f64) -> String {
    let seconds = 1.0 / tokens_per_second;
    match tokens_per_second {
        rate if rate >= 9.95 => format!("{rate:.0} tok/s"),
        rate if rate >= 0.095 => format!("{rate:.1} tok/s"),
        _ if seconds < 120.0 => format!("{seconds:.0} s a token"),
        _ if seconds < 7200.0 => format!("{:.0} min a token", seconds / 60.0),
        _ => "hours a token".to_owned(),
    }
}

/// Formats `1_500_000` nanoseconds as `1.50 ms`.
pub fn milliseconds(nanoseconds: u64) -> String {
    let milliseconds = nanoseconds as f64 / 1e6;
    match milliseconds {
        ms if ms >= 9999.5 => format!("{:.1} s", ms / 1e3),
        ms if ms >= 99.95 => format!("{ms:.0} ms"),
        ms if ms >= 9.995 => format!("{ms:.1} ms"),
        ms => format!("{ms:.2} ms"),
    }
}

/// Formats `1` as `1 layer` and `12` as `12 layers`. The plural only adds an s.
pub fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// Parses a token count: `4096`, or `4k` for 4 x 1024.
pub fn parse_tokens(text: &str) -> Result<usize, String> {
    let (digits, factor) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1024),
        None => (text, 1),
    };
    let count: usize = digits.parse().map_err(|_| "expected a number of tokens, like 4096 or 4k".to_owned())?;
    match count.checked_mul(factor) {
        Some(0) | None => Err("expected a number of tokens of at least 1".to_owned()),
        Some(count) => Ok(count),
    }
}

/// Parses a number of bytes: `6GiB`, `512 MiB`, `8GB` (decimal), `1.5G` (binary), `4096`.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || "expected a number of bytes, like 6GiB or 512MiB".to_owned();
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len()));
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let unit = unit.trim().to_ascii_lowercase();
    let Some(power) = ["", "k", "m", "g", "t"].iter().position(|prefix| {
        let rest = unit.strip_prefix(prefix);
        rest.is_some_and(|rest| matches!(rest, "" | "b" | "ib")) && !(prefix.is_empty() && unit == "ib")
    }) else {
        return Err(wrong());
    };
    let step: f64 = if power > 0 && unit.ends_with('b') && !unit.ends_with("ib") { 1000.0 } else { 1024.0 };
    let bytes = number * step.powi(power as i32);
    if bytes < 2f64.powi(63) { Ok(bytes as u64) } else { Err(wrong()) }
}

/// Parses token ids between commas or blanks: `1,2,3`.
pub fn parse_ids(text: &str) -> Result<Vec<u32>, String> {
    text.split(|c: char| c == ',' || c.is_whitespace())
        .filter(|part| !part.is_empty())
        .map(|part| part.parse().map_err(|_| format!("`{part}` is not a token id")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_parameters_are_formatted() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
        assert_eq!(parameters(6_738_415_616), "6.74 B");
        assert_eq!(parameters(384), "384");
    }

    #[test]
    fn low_rates_are_formatted_as_time_per_token() {
        let said = [41.2, 9.96, 9.94, 0.1, 0.05, 0.01, 1.0 / 150.0, 1e-6, 0.0].map(rate);
        let want = ["41 tok/s", "10 tok/s", "9.9 tok/s", "0.1 tok/s", "20 s a token", "100 s a token", "2 min a token"];
        assert_eq!(said[..7], want);
        assert_eq!(said[7..], ["hours a token", "hours a token"]);
    }

    #[test]
    fn milliseconds_have_three_digits() {
        let said = [0, 1_500_000, 9_994_999, 12_345_678, 123_456_789, 9_999_499_999, 12_345_678_901].map(milliseconds);
        assert_eq!(said, ["0.00 ms", "1.50 ms", "9.99 ms", "12.3 ms", "123 ms", "9999 ms", "12.3 s"]);
    }

    #[test]
    fn counted_uses_the_singular_for_one() {
        assert_eq!([0, 1, 2].map(|count| counted(count, "layer")), ["0 layers", "1 layer", "2 layers"]);
    }

    #[test]
    fn limits_and_seeds_below_zero_are_none() {
        assert_eq!(
            ["-1", "-2", "0", "7"].map(parse_limit),
            [Ok(Limit::None), Ok(Limit::None), Ok(Limit::Of(0)), Ok(Limit::Of(7))]
        );
        assert_eq!([parse_seed("-1"), parse_seed("7")], [Ok(Seed::Any), Ok(Seed::Fixed(7))]);
        for bad in ["", "-", "--1", "-1.5", "1.5", "x", "-x", "99999999999999999999999"] {
            assert!(parse_limit(bad).is_err() && parse_seed(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn parse_tokens_accepts_multiples_of_1024() {
        assert_eq!(parse_tokens("4k"), Ok(4096));
        assert_eq!(parse_tokens("17"), Ok(17));
        assert!(parse_tokens("0").is_err());
        assert!(parse_tokens("-1").is_err());
        assert!(parse_tokens("99999999999999999999k").is_err());
        assert!(parse_tokens("18446744073709551615k").is_err());
    }

    #[test]
    fn parse_bytes_accepts_binary_and_decimal_units() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("512MiB", 512 << 20),
            ("6 GiB", 6 << 30),
            ("1.5g", 3 << 29),
            ("2K", 2048),
            ("8GB", 8_000_000_000),
            ("1tib", 1 << 40),
            ("7b", 7),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "GiB", "-1", "1.2.3GiB", "1e9", "3 apples", "4ib", "99999999999TiB", "1GiBs", "nan"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn parse_ids_accepts_commas_and_blanks() {
        assert_eq!(parse_ids("1, 2,3"), Ok(vec![1, 2, 3]));
        assert_eq!(parse_ids(""), Ok(vec![]));
        assert!(parse_ids("1,x").is_err());
        assert!(parse_ids("-4").is_err());
    }
}
