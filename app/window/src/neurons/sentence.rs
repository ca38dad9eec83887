//! A token in its sentence.

/// Maximum number of characters before and after the token.
const BEFORE: usize = 140;
const AFTER: usize = 100;

/// Characters that end a sentence.
const ENDS: [char; 4] = ['.', '!', '?', '\n'];

/// A token and the text around it, within its sentence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sentence {
    /// The text before the token.
    pub before: String,
    /// The token.
    pub token: String,
    /// The text after the token.
    pub after: String,
}

impl Sentence {
    /// The sentence of token `at` of the consecutive `ids`. `text` converts tokens to text.
    pub fn of(ids: &[u32], at: usize, text: impl Fn(&[u32]) -> String) -> Self {
        let (from, to) = (at.saturating_sub(BEFORE), (at + 1 + AFTER).min(ids.len()));
        let part = |range: std::ops::Range<usize>| ids.get(range).map(&text).unwrap_or_default();
        let (before, token, after) = (part(from..at), part(at..at + 1), part(at + 1..to));
        let begins = before.rfind(ENDS).map_or(0, |end| end + 1);
        let ends = match token.contains(ENDS) {
            true => 0,
            false => after.find(ENDS).map_or(after.len(), |end| end + 1),
        };
        Sentence {
            before: last(before[begins..].trim_start(), BEFORE),
            token: shown(&token),
            after: first(after[..ends].trim_end(), AFTER),
        }
    }
}

/// Replaces line breaks with spaces and partial characters with ellipses.
fn shown(text: &str) -> String {
    text.chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect::<String>()
        .replace('\u{fffd}', "…")
}

fn last(text: &str, letters: usize) -> String {
    match text.char_indices().rev().nth(letters) {
        Some((at, letter)) => shown(&format!("…{}", &text[at + letter.len_utf8()..])),
        None => shown(text),
    }
}

fn first(text: &str, letters: usize) -> String {
    match text.char_indices().nth(letters) {
        Some((at, _)) => shown(&format!("{}…", &text[..at])),
        None => shown(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pieces: &[&str], at: usize) -> [String; 3] {
        let ids: Vec<u32> = (0..pieces.len() as u32).collect();
        let text = |ids: &[u32]| ids.iter().map(|id| pieces[*id as usize]).collect();
        let Sentence { before, token, after } = Sentence::of(&ids, at, text);
        [before, token, after]
    }

    #[test]
    fn token_stands_in_its_sentence_alone() {
        let text = ["Go.", " Tom", " had", " a", " dog.", " It", " ran.\n"];
        assert_eq!(of(&text, 3), ["Tom had", " a", " dog."]);
        assert_eq!(of(&text, 4), ["Tom had a", " dog.", ""], "it ends with the token");
        assert_eq!(of(&text, 5), ["", " It", " ran."]);
        assert_eq!(of(&text, 0), ["", "Go.", ""]);
        assert_eq!(of(&["a\n"], 0), ["", "a ", ""]);
        assert_eq!(of(&[], 0), ["", "", ""], "no token");
    }

    #[test]
    fn long_sentences_are_shortened_at_both_ends() {
        let words = vec![" word"; 400];
        let [before, token, after] = of(&words, 200);
        assert_eq!((before.chars().count(), token.as_str(), after.chars().count()), (BEFORE + 1, " word", AFTER + 1));
        assert!(before.starts_with('…') && after.ends_with('…'));
    }
}
