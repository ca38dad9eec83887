//! Tokens that are split off the text before any merging: control tokens and user-defined tokens.

use std::{borrow::Cow, ops::Range};

use aho_corasick::{AhoCorasick, AhoCorasickKind, Input, MatchKind};

use super::prompt_text::BREAK;

/// A token that is recognised by its text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddedToken {
    /// Id of the token.
    pub id: u32,
    /// The text to recognise.
    pub text: String,
    /// Recognised only when the caller asks for special tokens.
    pub special: bool,
    /// Absorbs the white space on its left.
    pub left_strip: bool,
    /// Absorbs the white space on its right.
    pub right_strip: bool,
    /// Recognised only outside of words.
    pub single_word: bool,
}

/// A fragment of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fragment {
    /// Ordinary text.
    Text(Range<usize>),
    /// A token and the range of text that it covers.
    Token(u32, Range<usize>),
}

/// Finds added tokens in text: the leftmost match, and the longest of matches at one place.
#[derive(Debug, Default)]
pub struct AddedTokens {
    all: Matcher,
    ordinary: Matcher,
}

#[derive(Debug, Default)]
struct Matcher {
    automaton: Option<AhoCorasick>,
    tokens: Vec<AddedToken>,
}

impl AddedTokens {
    /// Prepares the search and ignores tokens without text. The error is the search library's: too
    /// much text.
    pub fn new(mut tokens: Vec<AddedToken>) -> Result<Self, String> {
        tokens.retain(|token| !token.text.is_empty());
        let ordinary = tokens.iter().filter(|token| !token.special).cloned().collect();
        Ok(AddedTokens { all: Matcher::new(tokens)?, ordinary: Matcher::new(ordinary)? })
    }

    /// Id of the added token with exactly this text.
    pub fn id(&self, text: &str) -> Option<u32> {
        self.all.tokens.iter().find(|token| token.text == text).map(|token| token.id)
    }

    /// Texts of the tokens that are recognised only when the caller asks for special tokens.
    pub fn special_texts(&self) -> impl Iterator<Item = &str> {
        self.all.tokens.iter().filter(|token| token.special).map(|token| &*token.text)
    }

    /// `text` with a break inside each special token's text, so that none is recognised.
    pub fn break_special<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let Some(automaton) = &self.all.automaton else { return text.into() };
        let (mut broken, mut done, mut from) = (String::new(), 0, 0);
        while let Some(found) = automaton.find(Input::new(text).range(from..)) {
            let first = text[found.start()..].chars().next().map_or(1, char::len_utf8);
            from = found.start() + first;
            if self.all.tokens[found.pattern().as_usize()].special {
                // A single character has no inside. It gets a break in front, after which it is not
                // recognised.
                let at = if found.len() > first { from } else { found.start() };
                broken.push_str(&text[done..at]);
                broken.push(BREAK);
                done = at;
            }
        }
        if broken.is_empty() {
            return text.into();
        }
        broken.push_str(&text[done..]);
        broken.into()
    }

    /// Splits `text` into non-empty fragments that cover it. Special tokens directly after a break
    /// are text.
    pub fn split(&self, text: &str, special: bool) -> Vec<Fragment> {
        let matcher = if special { &self.all } else { &self.ordinary };
        matcher.split(text)
    }
}

impl Matcher {
    fn new(tokens: Vec<AddedToken>) -> Result<Self, String> {
        if tokens.is_empty() {
            return Ok(Matcher::default());
        }
        // The alternative, a DFA, is faster, but hostile tokens multiply its size.
        let automaton = AhoCorasick::builder()
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .match_kind(MatchKind::LeftmostLongest)
            .build(tokens.iter().map(|token| &token.text))
            .map_err(|error| error.to_string())?;
        Ok(Matcher { automaton: Some(automaton), tokens })
    }

    fn split(&self, text: &str) -> Vec<Fragment> {
        let mut fragments = Vec::new();
        let mut done = 0;
        for found in self.automaton.iter().flat_map(|automaton| automaton.find_iter(text)) {
            let token = &self.tokens[found.pattern().as_usize()];
            let (before, after) = (&text[..found.start()], &text[found.end()..]);
            let is_text = token.special && before.ends_with(BREAK);
            if found.start() < done || is_text || (token.single_word && in_word(before, after)) {
                continue;
            }
            let mut range = found.range();
            if token.left_strip {
                range.start = before.trim_end().len().max(done);
            }
            if token.right_strip {
                range.end = text.len() - after.trim_start().len();
            }
            if done < range.start {
                fragments.push(Fragment::Text(done..range.start));
            }
            done = range.end;
            fragments.push(Fragment::Token(token.id, range));
        }
        if done < text.len() {
            fragments.push(Fragment::Text(done..text.len()));
        }
        fragments
    }
}

fn in_word(before: &str, after: &str) -> bool {
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    before.chars().next_back().is_some_and(is_word) || after.chars().next().is_some_and(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: u32, text: &str, special: bool) -> AddedToken {
        AddedToken { id, text: text.to_owned(), special, ..AddedToken::default() }
    }

    fn show(added: &AddedTokens, text: &str, special: bool) -> String {
        let parts = added.split(text, special).into_iter().map(|fragment| match fragment {
            Fragment::Text(range) => format!("[{}]", &text[range]),
            Fragment::Token(id, range) => format!("{id}({})", &text[range]),
        });
        parts.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn special_tokens_match_only_if_enabled() {
        let added = AddedTokens::new(vec![token(1, "<s>", true), token(2, "<x>", false), token(3, "", true)]);
        let added = added.expect("small");
        assert_eq!(show(&added, "a<s>b<x>c", true), "[a] 1(<s>) [b] 2(<x>) [c]");
        assert_eq!(show(&added, "a<s>b<x>c", false), "[a<s>b] 2(<x>) [c]");
        assert_eq!(show(&added, "", true), "");
        assert_eq!(added.id("<x>"), Some(2));
    }

    #[test]
    fn broken_special_tokens_do_not_match() {
        let tokens = vec![token(1, "<s>", true), token(2, "<<s>", true), token(3, "<x>", false), token(4, "€", true)];
        let added = AddedTokens::new(tokens).expect("small");
        for (text, broken) in [
            ("a <x> b", "a <x> b"),
            ("<s>", "<#s>"),
            ("<<s><s", "<#<#s><s"),
            ("<x><s>é<s>", "<x><#s>é<#s>"),
            ("5 €", "5 #€"),
        ] {
            let found = added.break_special(text).into_owned();
            assert_eq!(found.replace(BREAK, "#"), broken);
            let tokens = added.split(&found, true).into_iter().filter_map(|fragment| match fragment {
                Fragment::Token(id, _) => Some(id),
                Fragment::Text(_) => None,
            });
            assert!(tokens.into_iter().all(|id| id == 3), "{text}");
        }
    }

    #[test]
    fn added_tokens_match_leftmost_then_longest() {
        let added = AddedTokens::new(vec![token(1, "ab", true), token(2, "abc", true), token(3, "cd", true)]);
        assert_eq!(show(&added.expect("small"), "xabcd", true), "[x] 2(abc) [d]");
    }

    #[test]
    fn added_tokens_strip_spaces_and_match_single_words() {
        let strip = AddedToken { left_strip: true, right_strip: true, ..token(1, "<m>", true) };
        let word = AddedToken { single_word: true, ..token(2, "no", true) };
        let added = AddedTokens::new(vec![strip, word]).expect("small");
        assert_eq!(show(&added, "a \u{a0}<m> \n<m>b", true), "[a] 1( \u{a0}<m> \n) 1(<m>) [b]");
        assert_eq!(show(&added, "no, know no", true), "2(no) [, know ] 2(no)");
    }
}
