//! Searches an arriving answer for strings that end it.

use super::StopReason;

/// Stop strings, searched for in a text that arrives in pieces. The returned text never contains a
/// stop string. It is held back only while it may still become one.
#[derive(Debug)]
pub(super) struct StopStrings {
    /// The caller's strings, followed by those that end a turn.
    strings: Vec<String>,
    /// Number of the caller's strings.
    asked: usize,
    /// The end of the text so far that may begin a stop string.
    held: String,
}

impl StopStrings {
    /// Watches for the caller's `strings`, and for the `turn_ends` of chat formats without an end
    /// token. No string may be empty.
    pub fn new(mut strings: Vec<String>, turn_ends: &[&str]) -> Self {
        let asked = strings.len();
        strings.extend(turn_ends.iter().map(|&end| end.to_owned()));
        StopStrings { strings, asked, held: String::new() }
    }

    /// A copy that watches only for the strings that end a turn.
    pub fn turn_ends(&self) -> Self {
        StopStrings { strings: self.strings[self.asked..].to_vec(), asked: 0, held: String::new() }
    }

    /// Adds the next piece. Returns the text that cannot be part of a stop string, and the reason
    /// to stop if a string is complete. The text after that string is dropped.
    ///
    /// Of several strings the first complete one counts, so that the result does not depend on
    /// where pieces end.
    pub fn push(&mut self, piece: &str) -> (String, Option<StopReason>) {
        self.held.push_str(piece);
        let found = self.strings.iter().enumerate().filter_map(|(at, stop)| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start, at))
        });
        if let Some((_, start, at)) = found.min() {
            let asked = at < self.asked;
            let reason = if asked { StopReason::StopString(self.strings[at].clone()) } else { StopReason::EndOfText };
            self.held.truncate(start);
            return (std::mem::take(&mut self.held), Some(reason));
        }
        let possible = self.strings.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - possible);
        (std::mem::replace(&mut self.held, rest), None)
    }

    /// True if text is being held back.
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Returns the text held back, because no more text follows.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Length of the longest proper prefix of `stop` that `text` ends with.
fn overlap(text: &str, stop: &str) -> usize {
    let fits = |length: &usize| stop.is_char_boundary(*length) && text.ends_with(&stop[..*length]);
    (1..stop.len()).rev().find(fits).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<String>) {
        let mut watch = StopStrings::new(stops.iter().map(|&stop| stop.to_owned()).collect(), &[]);
        let mut text = String::new();
        for piece in pieces {
            let (certain, stop) = watch.push(piece);
            text.push_str(&certain);
            match stop {
                Some(StopReason::StopString(stop)) => return (text, Some(stop)),
                other => assert_eq!(other, None),
            }
        }
        (text + &watch.finish(), None)
    }

    #[test]
    fn stop_strings_are_never_part_of_the_text() {
        assert_eq!(run(&["END"], &["one E", "N", "D two"]), ("one ".into(), Some("END".into())));
        assert_eq!(run(&["END"], &["one E", "N", "x"]), ("one ENx".into(), None));
        assert_eq!(run(&["\n\n"], &["a\n", "b\n"]), ("a\nb\n".into(), None));
        assert_eq!(run(&["é!"], &["caf", "é", "!"]), ("caf".into(), Some("é!".into())));
        assert_eq!(run(&[], &["a", "b"]), ("ab".into(), None));
    }

    #[test]
    fn text_is_held_back_only_while_it_may_be_a_stop_string() {
        let mut watch = StopStrings::new(vec!["<end>".to_owned()], &[]);
        assert_eq!(watch.push("a<e"), ("a".to_owned(), None));
        assert!(watch.is_holding());
        assert_eq!(watch.push("<en"), ("<e".to_owned(), None));
        assert_eq!(watch.push("x"), ("<enx".to_owned(), None));
        assert!(!watch.is_holding());
    }

    #[test]
    fn turn_end_strings_stop_with_end_of_text() {
        let mut watch = StopStrings::new(vec!["User".to_owned()], &["\nUser:"]);
        assert_eq!(watch.push("well\n"), ("well".to_owned(), None));
        assert_eq!(watch.push("User"), ("\n".to_owned(), Some(StopReason::StopString("User".to_owned()))));
        let mut watch = StopStrings::new(Vec::new(), &["\nUser:"]);
        assert_eq!(watch.push("well\nUser: hm"), ("well".to_owned(), Some(StopReason::EndOfText)));
    }

    proptest! {
        #[test]
        fn stop_strings_do_not_depend_on_where_pieces_end(
            text in "[abé]{0,40}",
            stops in prop::collection::vec("[abé]{1,4}", 0..4),
            splits in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            // Character by character, the text ends where the first stop string is complete.
            let mut want = (text.clone(), None);
            'text: for end in (1..=text.len()).filter(|&at| text.is_char_boundary(at)) {
                let mut complete: Vec<_> = stops.iter().filter(|stop| text[..end].ends_with(stop.as_str())).collect();
                complete.sort_by_key(|stop| stop.len());
                if let Some(stop) = complete.pop() {
                    want = (text[..end - stop.len()].to_owned(), Some(stop.clone()));
                    break 'text;
                }
            }
            let mut splits: Vec<usize> = splits.iter().map(|split| split.index(text.len() + 1)).collect();
            splits.extend([0, text.len()]);
            splits.retain(|&at| text.is_char_boundary(at));
            splits.sort_unstable();
            let pieces: Vec<&str> = splits.windows(2).map(|split| &text[split[0]..split[1]]).collect();
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            prop_assert_eq!(run(&stops, &pieces), want);
        }
    }
}
