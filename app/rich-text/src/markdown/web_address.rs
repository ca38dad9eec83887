//! Web addresses inside text.

use std::ops::Range;

use crate::text::is_cjk;

/// Beginnings of an address.
const SCHEMES: [&str; 2] = ["https://", "http://"];

/// Byte ranges of the addresses in a text, from first to last. As in GitHub's Markdown, final
/// punctuation and the bracket that closes an earlier one do not belong to an address.
pub fn addresses(text: &str) -> Vec<Range<usize>> {
    let (mut found, mut from) = (Vec::new(), 0);
    while let Some(start) = SCHEMES.iter().filter_map(|scheme| text[from..].find(scheme)).min().map(|at| from + at) {
        let scheme = text[start..].find("//").map_or(0, |at| at + 2);
        let end = start + scheme + length(&text[start + scheme..]);
        let within_word = text[..start].chars().next_back().is_some_and(|c| c.is_ascii_alphanumeric());
        if end > start + scheme && !within_word {
            found.push(start..end);
        }
        from = end;
    }
    found
}

/// Length of an address after its scheme, in bytes; 0 if it has no host.
fn length(text: &str) -> usize {
    let ends = |c: char| c.is_whitespace() || c.is_control() || "<>\"`|\\^{}".contains(c);
    let is_sign = |c: char| !c.is_ascii() && !c.is_alphanumeric();
    let host = text.find(|c: char| "/?#".contains(c) || ends(c) || is_cjk(c)).unwrap_or(text.len());
    if !text[..host].starts_with(|c: char| c.is_alphanumeric() || c == '[') {
        return 0;
    }
    let path = text[host..].find(|c: char| ends(c) || is_sign(c)).map_or(text.len(), |at| host + at);
    let mut address = if text[host..].starts_with(['/', '?', '#']) { &text[..path] } else { &text[..host] };
    loop {
        let closes = |open: char, close: char| {
            address.ends_with(close) && address.matches(close).count() > address.matches(open).count()
        };
        if address.ends_with(['.', ',', ':', ';', '!', '?', '\'', '*', '_', '~'])
            || closes('(', ')')
            || closes('[', ']')
        {
            address = &address[..address.len() - 1];
        } else {
            return address.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_end_where_their_sentence_goes_on() {
        for (text, want) in [
            ("see https://example.org/a_b?c=1&d=2, or", vec!["https://example.org/a_b?c=1&d=2"]),
            ("(http://a.org/x_(y)) https://b.org.", vec!["http://a.org/x_(y)", "https://b.org"]),
            ("请看https://example.org。后面", vec!["https://example.org"]),
            ("https://zh.wikipedia.org/wiki/中文。", vec!["https://zh.wikipedia.org/wiki/中文"]),
            ("http://localhost:8080/", vec!["http://localhost:8080/"]),
            ("https:// https://", vec![]),
            ("xhttps://a.org", vec![]),
        ] {
            let found: Vec<&str> = addresses(text).into_iter().map(|range| &text[range]).collect();
            assert_eq!(found, want, "{text}");
        }
    }
}
