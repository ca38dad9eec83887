//! Emphasis marks next to scripts without spaces between words. CommonMark requires a space between
//! a word and a mark that is followed by punctuation, so that `**「重点」**内容` would keep its
//! asterisks. Here such marks open and close as between letters, following the specification
//! *markdown-cjk-friendly*.

use std::borrow::Cow;

use super::stand_in::BETWEEN;
use crate::text::{is_cjk, joins_words};

/// Inserts [`BETWEEN`], which is not punctuation, between such marks and the characters next to
/// them.
pub fn parted(text: &str) -> Cow<'_, str> {
    if !text.contains(['*', '~']) || !text.chars().any(joins_words) {
        return Cow::Borrowed(text);
    }
    let (mut out, mut rest, mut before) = (String::with_capacity(text.len() + 32), text, None);
    while let Some(c) = rest.chars().next() {
        let length = match c {
            '*' | '~' => rest.len() - rest.trim_start_matches(c).len(),
            // An escaped mark is not a mark.
            '\\' => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            c => c.len_utf8(),
        };
        let (run, after) = rest.split_at(length);
        if c == '*' || run == "~~" {
            let next = after.chars().next();
            out.extend(is_parted(before, next).then_some(BETWEEN));
            out.push_str(run);
            out.extend(is_parted(next, before).then_some(BETWEEN));
        } else {
            out.push_str(run);
        }
        (before, rest) = (run.chars().next_back(), after);
    }
    Cow::Owned(out)
}

/// True if a mark must be separated from the character `beside` it. `other` is the character on its
/// other side.
fn is_parted(beside: Option<char>, other: Option<char>) -> bool {
    beside.is_some_and(|c| is_text(c) && (is_cjk(c) || other.is_some_and(joins_words)))
}

/// False for characters that end a word anyway: spaces and the border of a cell.
fn is_text(c: char) -> bool {
    !c.is_whitespace() && c != '|'
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `·` represents the inserted character.
    #[test]
    fn marks_beside_words_without_spaces_are_parted() {
        for (text, want) in [
            ("含**「重点」**内容", "含·**·「重点」·**·内容"),
            ("是**“名词”**的", "是·**·“名词”·**·的"),
            ("و**\"مهم\"**و", "و**·\"مهم\"·**و"),
            ("中~~（a）~~文", "中·~~·（a）·~~·文"),
        ] {
            assert_eq!(parted(text).replace(BETWEEN, "·"), want);
        }
        for text in ["a**\"b\"**c", "* 一\n* 二", "a ~一~ b", "| **a** | 一 |", "一 \\* 二", "5 * 3 一"] {
            assert_eq!(parted(text), text);
        }
    }
}
