//! Jinja's text filters that the template library lacks, computed as in Python. Their results stay
//! within the budget.

use minijinja::{Error, Value, value::ValueKind};

use super::{
    arguments::Arguments,
    budget::{Budget, refused},
};
use crate::prompt_text::BREAK;

/// Largest width for cutting or wrapping.
const WIDTH: i64 = 1 << 20;

/// Cuts `text` to at most `length` characters, including `end`, at the end of a word unless
/// `killwords`.
pub fn truncate(budget: &Budget, text: &str, mut options: Arguments) -> Result<Value, Error> {
    let length = options.number("length", 255)?;
    let kill = options.flag("killwords", false)?;
    let end = options.text(budget, "end", "...")?;
    let leeway = options.number("leeway", 5)?;
    options.end()?;
    let (length, leeway) = (length.clamp(0, WIDTH) as usize, leeway.clamp(0, WIDTH) as usize);
    let ending = end.chars().count();
    if length < ending {
        return Err(refused("a length is shorter than the end mark"));
    }
    if text.chars().count() <= length + leeway {
        return Ok(text.into());
    }
    let kept: String = text.chars().take(length - ending).collect();
    let kept = if kill { &*kept } else { kept.rsplit_once(' ').map_or(&*kept, |(words, _)| words) };
    budget.charge(kept.len() + end.len())?;
    Ok(format!("{kept}{end}").into())
}

/// Wraps `text` into lines of at most `width` characters.
pub fn wordwrap(budget: &Budget, text: &str, mut options: Arguments) -> Result<Value, Error> {
    let width = options.number("width", 79)?;
    let breaks_words = options.flag("break_long_words", true)?;
    let separator = options.text(budget, "wrapstring", "\n")?;
    let at_hyphens = options.flag("break_on_hyphens", true)?;
    options.end()?;
    if width < 1 {
        return Err(refused("a width is not a number above 0"));
    }
    let width = width.min(WIDTH) as usize;
    // There are at most as many line ends as characters.
    budget.charge(text.len().saturating_mul(1 + separator.len()))?;
    let lines = text.lines().map(|line| wrap(line, width, breaks_words, at_hyphens).join(&*separator));
    Ok(lines.collect::<Vec<_>>().join(&*separator).into())
}

/// Wraps `line`, without white space at the ends of the lines.
fn wrap(line: &str, width: usize, breaks_words: bool, at_hyphens: bool) -> Vec<String> {
    let mut words = words(line, at_hyphens);
    words.reverse();
    let (mut lines, length) = (Vec::new(), |word: &String| word.chars().count());
    while let Some(first) = words.last() {
        if first.trim().is_empty() && !lines.is_empty() {
            words.pop();
        }
        let (mut now, mut used): (Vec<String>, usize) = (Vec::new(), 0);
        while let Some(word) = words.pop_if(|word| used + length(word) <= width) {
            used += length(&word);
            now.push(word);
        }
        if let Some(word) = words.pop_if(|word| length(word) > width) {
            let letters: Vec<char> = word.chars().collect();
            let mut room = width - used;
            let hyphen = letters[..room].iter().rposition(|letter| *letter == '-').filter(|_| at_hyphens);
            if let Some(hyphen) = hyphen.filter(|at| letters[..*at].iter().any(|letter| *letter != '-')) {
                room = hyphen + 1;
            }
            if breaks_words {
                now.push(letters[..room].iter().collect());
                words.push(letters[room..].iter().collect());
            } else if now.is_empty() {
                now.push(word);
            } else {
                words.push(word);
            }
        }
        if now.last().is_some_and(|last| last.trim().is_empty()) {
            now.pop();
        }
        let line = now.concat();
        if !line.is_empty() {
            lines.push(line);
        }
    }
    lines
}

/// Alternating words and white space. With `at_hyphens`, a hyphenated word is split into its parts.
fn words(line: &str, at_hyphens: bool) -> Vec<String> {
    let letters: Vec<char> = line.chars().collect();
    let letter = |at: usize| letters.get(at).is_some_and(|letter| letter.is_alphabetic());
    let (mut words, mut word) = (Vec::new(), String::new());
    for (at, &now) in letters.iter().enumerate() {
        let space = now.is_whitespace();
        let other = word.chars().next_back().is_some_and(|last: char| last.is_whitespace() != space);
        if other {
            words.push(std::mem::take(&mut word));
        }
        word.push(now);
        let before =
            at >= 2 && letter(at - 1) && (letter(at - 2) || (letters[at - 2] == '-' && at >= 3 && letter(at - 3)));
        let behind = letter(at + 1) && (letter(at + 2) || (letters.get(at + 2) == Some(&'-') && letter(at + 3)));
        if at_hyphens && now == '-' && before && behind {
            words.push(std::mem::take(&mut word));
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// Encodes `value` for a URL: a text, or the pairs of a map or list as a query.
pub fn urlencode(budget: &Budget, value: &Value) -> Result<Value, Error> {
    if value.as_str().is_some() || !matches!(value.kind(), ValueKind::Map | ValueKind::Seq | ValueKind::Iterable) {
        return Ok(quoted(budget, &budget.text(value)?, false)?.into());
    }
    let mut pairs = Vec::new();
    for item in value.try_iter()? {
        let (key, item) = match value.kind() {
            ValueKind::Map => (item.clone(), value.get_item(&item)?),
            _ => (item.get_item(&0.into())?, item.get_item(&1.into())?),
        };
        let (key, item) = (budget.text(&key)?, budget.text(&item)?);
        pairs.push(format!("{}={}", quoted(budget, &key, true)?, quoted(budget, &item, true)?));
    }
    Ok(pairs.join("&").into())
}

fn quoted(budget: &Budget, text: &str, query: bool) -> Result<String, Error> {
    budget.charge(text.len().saturating_mul(3))?;
    let mut out = String::new();
    // Breaks are removed, because the encoded text cannot contain a control token.
    for byte in text.replace(BREAK, "").bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => out.push(byte.into()),
            b'/' if !query => out.push('/'),
            b' ' if query => out.push('+'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    Ok(out)
}

/// HTML entities that are decoded.
const ENTITIES: [(&str, &str); 6] =
    [("amp", "&"), ("lt", "<"), ("gt", ">"), ("quot", "\""), ("apos", "'"), ("nbsp", "\u{a0}")];

/// `text` without HTML tags and comments, with single spaces.
pub fn striptags(budget: &Budget, text: &str) -> Result<Value, Error> {
    budget.charge(text.len())?;
    let text = without(&without(text, "<!--", "-->"), "<", ">");
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut parts = text.split('&');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let known = part.split_once(';').and_then(|(name, rest)| Some((entity(name)?, rest)));
        match known {
            Some((meaning, rest)) => out.extend([&*meaning, rest]),
            None => out.extend(["&", part]),
        }
    }
    Ok(out.into())
}

fn without(text: &str, open: &str, close: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, inside)) = rest.split_once(open) {
        let Some((_, behind)) = inside.split_once(close) else { break };
        out.push_str(before);
        rest = behind;
    }
    out + rest
}

fn entity(name: &str) -> Option<String> {
    let number = |digits: &str| match digits.strip_prefix(['x', 'X']) {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => digits.parse().ok(),
    };
    match name.strip_prefix('#') {
        Some(digits) => Some(char::from_u32(number(digits)?)?.to_string()),
        None => ENTITIES.iter().find(|(known, _)| *known == name).map(|(_, meaning)| (*meaning).to_owned()),
    }
}

/// A human-readable number of bytes.
pub fn filesizeformat(value: &Value, binary: bool) -> Result<Value, Error> {
    let number = match value.as_str() {
        Some(text) => text.trim().parse().ok(),
        None => f64::try_from(value.clone()).ok(),
    };
    let bytes = number.ok_or_else(|| refused("a size is not a number"))?;
    let (base, units): (f64, [&str; 8]) = match binary {
        true => (1024.0, ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"]),
        false => (1000.0, ["kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"]),
    };
    if bytes == 1.0 {
        return Ok("1 Byte".into());
    }
    if bytes < base {
        return Ok(format!("{} Bytes", bytes.trunc()).into());
    }
    let mut unit = base;
    for name in &units[..7] {
        if bytes < unit * base {
            return Ok(format!("{:.1} {name}", bytes / unit).into());
        }
        unit *= base;
    }
    Ok(format!("{:.1} {}", bytes / unit, units[7]).into())
}
