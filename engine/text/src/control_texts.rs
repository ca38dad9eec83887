//! Finds texts of control tokens in contents.

use std::borrow::Cow;

use super::{added::AddedTokens, prompt_text::BREAK};

/// Longest control token text, in bytes, whose parts are found at the borders of a content.
const LONGEST: usize = 256;

/// The texts of a vocabulary's control tokens, ordered to find their beginnings and ends.
#[derive(Debug, Default)]
pub(super) struct ControlTexts {
    /// Texts in ascending order.
    texts: Vec<String>,
    /// Texts with reversed characters, in ascending order.
    reversed: Vec<String>,
    /// All texts joined by line ends, to find parts from the middle.
    joined: String,
    longest: usize,
}

impl ControlTexts {
    /// The texts of the control tokens in `added`.
    pub fn of<'a>(added: impl IntoIterator<Item = &'a AddedTokens>) -> Self {
        let specials = added.into_iter().flat_map(AddedTokens::special_texts);
        let mut texts: Vec<String> = specials.map(str::to_owned).collect();
        texts.sort_unstable();
        texts.dedup();
        let mut reversed: Vec<String> = texts.iter().map(|text| text.chars().rev().collect()).collect();
        reversed.sort_unstable();
        let longest = texts.iter().map(String::len).max().unwrap_or(0).min(LONGEST);
        ControlTexts { joined: texts.join("\n"), texts, reversed, longest }
    }

    /// `text` with a break at each border where it may complete a control token. Its start may end
    /// one that begins before it, its end may begin one, or all of it may be the middle of one.
    pub fn break_borders<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let is_name = |text: &str| text.chars().all(|c| c.is_alphanumeric() || c == '_');
        // Templates may strip white space.
        let inner = text.trim();
        let (at_start, at_end) = (self.ends_one(inner), self.begins_one(inner));
        let in_middle = inner.len() <= self.longest && !is_name(inner) && self.joined.contains(inner);
        if !at_start && !at_end && !in_middle {
            return text.into();
        }
        let (before, behind) = (text.len() - text.trim_start().len(), text.trim_end().len());
        let mut broken = text.to_owned();
        if at_end {
            broken.insert(behind, BREAK);
        }
        if at_start || in_middle {
            broken.insert(before, BREAK);
        }
        broken.into()
    }

    /// True if `text` begins with the end of a control token.
    fn ends_one(&self, text: &str) -> bool {
        let ends = text.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end < self.longest);
        let mut beginning = String::new();
        ends.into_iter().any(|end| {
            beginning.clear();
            beginning.extend(text[..end].chars().rev());
            begins_longer(&self.reversed, &beginning)
        })
    }

    /// True if `text` ends with the beginning of a control token.
    fn begins_one(&self, text: &str) -> bool {
        let starts = text.char_indices().rev().map(|(at, _)| at).take_while(|at| text.len() - at < self.longest);
        starts.into_iter().any(|at| begins_longer(&self.texts, &text[at..]))
    }
}

/// True if one of the ascending `texts` is longer than `beginning` and starts with it.
fn begins_longer(texts: &[String], beginning: &str) -> bool {
    let next = texts.partition_point(|text| text.as_str() <= beginning);
    texts.get(next).is_some_and(|text| text.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::added::AddedToken;

    fn texts(specials: &[&str]) -> ControlTexts {
        let token = |text: &&str| AddedToken { text: (*text).to_owned(), special: true, ..AddedToken::default() };
        let ordinary = AddedToken { text: "<tool>".to_owned(), ..AddedToken::default() };
        let tokens = specials.iter().map(token).chain([ordinary]).collect();
        ControlTexts::of([&AddedTokens::new(tokens).expect("small")])
    }

    #[test]
    fn parts_of_control_tokens_at_the_borders_are_broken() {
        let texts = texts(&["<|end|>", "<|user|>", "[INST]"]);
        let shown = |text: &str| texts.break_borders(text).replace(BREAK, "#");
        for (text, want) in [
            ("hello", "hello"),
            ("end", "end"),
            ("", ""),
            ("a < ", "a <# "),
            ("a <|en", "a <|en#"),
            ("a <|x", "a <|x"),
            (" \n|> b", " \n#|> b"),
            ("end|>", "#end|>"),
            ("|end", "#|end"),
            ("] [", "#] [#"),
            ("<|end|>", "#<|end|>"),
            ("<tool", "<tool"),
        ] {
            assert_eq!(shown(text), want, "{text:?}");
        }
    }
}
