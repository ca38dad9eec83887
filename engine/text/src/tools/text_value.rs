//! Reads quoted texts in calls.

use super::cursor::{Read, TextCursor, Unread};

/// The quotes around a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextQuotes<'q> {
    text: &'q str,
    /// True if a backslash escapes the next character.
    escapes: bool,
}

/// Gemma 4's quote, which also replaces every quotation mark within texts.
const GEMMA_QUOTE: &str = "<|\"|>";
/// Longest map key in bytes.
const LONGEST_KEY: usize = 256;
/// Python's and JSON's quotes.
const COMMON: [&str; 4] = ["\"\"\"", "'''", "\"", "'"];

impl<'q> TextQuotes<'q> {
    /// The quotes at `cursor`, if there are any: one of `own`, or common ones.
    pub fn of(cursor: &TextCursor<'_>, own: &'q [String]) -> Read<Option<Self>> {
        let mut ahead = *cursor;
        if let Some(at) = ahead.take_any(own)? {
            return Ok(Some(TextQuotes { text: &own[at], escapes: false }));
        }
        let rest = cursor.rest();
        let Some(text) = COMMON.into_iter().find(|text| rest.starts_with(text)) else { return Ok(None) };
        // Two quotes may be an empty text or the start of three quotes.
        if text.len() == 1 && rest.len() == 2 && rest.ends_with(text) {
            return Err(Unread::More);
        }
        Ok(Some(TextQuotes { text, escapes: true }))
    }

    /// Reads the opening quote, the text, and the first closing quote with a valid continuation.
    pub fn read(self, cursor: &mut TextCursor<'_>, may_follow: impl Fn(&str) -> Read<bool>) -> Read<String> {
        let opened = cursor.at + self.text.len();
        let body = cursor.rest().get(self.text.len()..).unwrap_or_default();
        let mut from = 0;
        loop {
            let at = self.find(body, from).ok_or(Unread::More)?;
            if may_follow(&body[at + self.text.len()..])? {
                cursor.at = opened + at + self.text.len();
                return Ok(self.meaning(&body[..at]));
            }
            from = at + self.text.len();
        }
    }

    /// The value of `text` between the quotes.
    fn meaning(self, text: &str) -> String {
        if self.escapes {
            unescape(text)
        } else if self.text.ends_with(GEMMA_QUOTE) {
            text.replace(self.text, "\"")
        } else {
            text.to_owned()
        }
    }

    /// Reads a key between the opening quote and the next quote. `None` if the next quote is too
    /// far away for a key.
    pub fn key(self, cursor: &mut TextCursor<'_>) -> Read<Option<String>> {
        let body = cursor.rest().get(self.text.len()..).unwrap_or_default();
        let Some(end) = self.find(body, 0) else {
            return if body.len() > LONGEST_KEY { Ok(None) } else { Err(Unread::More) };
        };
        cursor.at += 2 * self.text.len() + end;
        Ok((end <= LONGEST_KEY).then(|| body[..end].to_owned()))
    }

    /// Position of the next closing quote in `body`.
    fn find(self, body: &str, from: usize) -> Option<usize> {
        if !self.escapes {
            return Some(from + body[from..].find(self.text)?);
        }
        let mut is_escaped = false;
        for (at, c) in body[from..].char_indices() {
            if !is_escaped && body[from + at..].starts_with(self.text) {
                return Some(from + at);
            }
            is_escaped = !is_escaped && c == '\\';
        }
        None
    }
}

/// `text` with Python's and JSON's escapes replaced by their characters.
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let Some(c) = rest.chars().next() else {
            out.push('\\');
            break;
        };
        rest = &rest[c.len_utf8()..];
        let digits = match c {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        if digits > 0 {
            let Some(code) = Code::of(rest, digits) else {
                out.extend(['\\', c]);
                continue;
            };
            out.push(code.c);
            rest = &rest[code.used..];
            continue;
        }
        match c {
            'n' => out.push('\n'),
            't' => out.push('\t'),
            'r' => out.push('\r'),
            '0' => out.push('\0'),
            'b' => out.push('\u{8}'),
            'f' => out.push('\u{c}'),
            '\\' | '"' | '\'' | '/' => out.push(c),
            '\n' => {}
            _ => out.extend(['\\', c]),
        }
    }
    out.push_str(rest);
    out
}

/// A character given by its code.
struct Code {
    c: char,
    /// Number of bytes of its digits.
    used: usize,
}

impl Code {
    /// The character whose hexadecimal code starts `text`. JSON writes some characters as a pair of
    /// codes.
    fn of(text: &str, digits: usize) -> Option<Code> {
        let number = |text: &str| u32::from_str_radix(text.get(..digits)?, 16).ok();
        let first = number(text)?;
        if let Some(c) = char::from_u32(first) {
            return Some(Code { c, used: digits });
        }
        let second = number(text.get(digits..)?.strip_prefix("\\u")?)?;
        let is_pair = (0xd800..0xdc00).contains(&first) && (0xdc00..0xe000).contains(&second);
        let c = is_pair.then(|| 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00))?;
        Some(Code { c: char::from_u32(c)?, used: 2 * digits + 2 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_those_of_python_and_json() {
        for (text, want) in [
            (r"a\nb\t\\n", "a\nb\t\\n"),
            (r#"\"q\' \/"#, "\"q' /"),
            (r"\u00e9\xe9\U0001F600\ud83d\ude00", "éé😀😀"),
            (r"\d \u12 \ud83d. C:\dir", r"\d \u12 \ud83d. C:\dir"),
            ("a\\\nb\\", "ab\\"),
        ] {
            assert_eq!(unescape(text), want, "{text}");
        }
    }
}
