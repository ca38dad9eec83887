//! The text of an answer: tokens become events with whole characters and parts, and stop strings end it.

use super::{
    StopReason, TokenLogprobs,
    request::{AnswerText, Event, EventSender},
};
use crate::tokenizer::{
    Detokeniser,
    reasoning::{AnswerParser, AnswerPart},
};

/// The outcome of a token.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TokenOutcome {
    /// It was sent, or is kept back until its text is complete.
    Sent,
    /// The receiver of the events is gone.
    ReceiverGone,
    /// It completed a stop string.
    Stop(StopReason),
}

/// A token whose event waits for the rest of its text.
#[derive(Debug)]
struct KeptToken {
    id: u32,
    text: AnswerText,
    logprobs: Option<TokenLogprobs>,
}

/// Turns the tokens of one generation into [`Event::Token`]s: whole characters, nothing of a stop string, one event per
/// token.
///
/// An event whose text is incomplete is kept back until the next token or the end, so there is always an event left for
/// the text to go with.
#[derive(Debug)]
pub(super) struct TextStream<'a> {
    detokeniser: Detokeniser<'a>,
    stops: StopStrings,
    /// Absent: all is the answer.
    parser: Option<AnswerParser>,
    kept: Option<KeptToken>,
    /// Tokens that are hidden from texts but part of calls of tools.
    markers: Vec<(u32, &'static str)>,
}

impl<'a> TextStream<'a> {
    pub fn new(detokeniser: Detokeniser<'a>, stops: StopStrings, parser: Option<AnswerParser>) -> Self {
        TextStream { detokeniser, stops, parser, kept: None, markers: Vec::new() }
    }

    /// Shows the texts of these tokens, too.
    pub fn with_markers(self, markers: &[(u32, &'static str)]) -> Self {
        TextStream { markers: markers.to_vec(), ..self }
    }

    /// Adds the next token of the answer.
    pub fn push(&mut self, id: u32, logprobs: Option<TokenLogprobs>, events: &EventSender) -> TokenOutcome {
        let mut piece = self.detokeniser.push(id);
        if let Some((_, text)) = self.markers.iter().find(|(marker, _)| *marker == id)
            && !piece.ends_with(text)
        {
            piece.push_str(text);
        }
        let mut text = AnswerText::default();
        let stop = match &self.parser {
            Some(parser) if parser.is_marker(id) => {
                let before = piece.strip_suffix(parser.marker_text(id));
                self.push_marker(id, before.unwrap_or(&piece), before.is_some(), &mut text)
            }
            _ => {
                let (certain, stop) = self.stops.push(&piece);
                self.parse(&certain, &mut text);
                stop
            }
        };
        let mut listening = self.release(events);
        match stop {
            Some(reason) => {
                self.end(&mut text);
                let _ = events.send(Event::Token { id, text, logprobs });
                return TokenOutcome::Stop(reason);
            }
            None if self.is_holding() => self.kept = Some(KeptToken { id, text, logprobs }),
            None => listening &= events.send(Event::Token { id, text, logprobs }),
        }
        if listening { TokenOutcome::Sent } else { TokenOutcome::ReceiverGone }
    }

    /// Sends the text that was kept back; no token follows. Returns the reason to stop, if the last bytes completed a stop string.
    pub fn finish(&mut self, events: &EventSender) -> Option<StopReason> {
        let (mut rest, stop) = self.stops.push(&self.detokeniser.finish());
        if stop.is_none() {
            rest.push_str(&self.stops.finish());
        }
        let mut text = AnswerText::default();
        self.parse(&rest, &mut text);
        self.end(&mut text);
        if let Some(kept) = &mut self.kept {
            kept.text.append(&text);
        }
        let _ = self.release(events);
        stop
    }

    /// Adds a marker's token, with the text that came with it. A stop string cannot reach over a marker.
    fn push_marker(&mut self, id: u32, before: &str, visible: bool, text: &mut AnswerText) -> Option<StopReason> {
        let (mut certain, stop) = self.stops.push(before);
        if stop.is_none() {
            certain.push_str(&self.stops.finish());
        }
        self.parse(&certain, text);
        if stop.is_none()
            && let Some(parser) = &mut self.parser
        {
            parser.push_marker(id, visible).iter().for_each(|(part, piece)| text.push(*part, piece));
        }
        stop
    }

    fn parse(&mut self, piece: &str, text: &mut AnswerText) {
        match &mut self.parser {
            Some(parser) => parser.push(piece).iter().for_each(|(part, piece)| text.push(*part, piece)),
            None => text.push(AnswerPart::Answer, piece),
        }
    }

    fn end(&mut self, text: &mut AnswerText) {
        if let Some(parser) = &mut self.parser {
            parser.finish().iter().for_each(|(part, piece)| text.push(*part, piece));
        }
    }

    /// True if the next token belongs to the answer rather than to thoughts or a header.
    pub fn is_answering(&self) -> bool {
        self.parser.as_ref().is_none_or(AnswerParser::is_answering)
    }

    /// True if the next token belongs to thoughts.
    pub fn is_thinking(&self) -> bool {
        self.parser.as_ref().is_some_and(AnswerParser::is_thinking)
    }

    fn is_holding(&self) -> bool {
        let parsing = self.parser.as_ref().is_some_and(AnswerParser::is_holding);
        parsing || self.detokeniser.is_holding() || self.stops.is_holding()
    }

    fn release(&mut self, events: &EventSender) -> bool {
        let Some(KeptToken { id, text, logprobs }) = self.kept.take() else { return true };
        events.send(Event::Token { id, text, logprobs })
    }
}

/// Stop strings, searched for in a text that arrives in pieces. The text that comes out never contains one, and is held back only
/// while it may still become one.
#[derive(Debug)]
pub(super) struct StopStrings {
    /// The caller's, then those that end a turn.
    strings: Vec<String>,
    /// Number of the caller's.
    asked: usize,
    /// The end of the text so far that is the beginning of a stop string.
    held: String,
}

impl StopStrings {
    /// Watches for the caller's `strings` and for `turn_ends`, which a chat format has instead of an end token; none of them
    /// is empty.
    pub fn new(mut strings: Vec<String>, turn_ends: &[&str]) -> Self {
        let asked = strings.len();
        strings.extend(turn_ends.iter().map(|&end| end.to_owned()));
        StopStrings { strings, asked, held: String::new() }
    }

    /// Adds the next piece. Returns the text that is certain, and the reason to stop if a string is complete (the text behind it
    /// is dropped).
    ///
    /// Of several strings the one that is complete first counts, so that the result does not depend on where pieces end.
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

    /// The text held back; no more follows.
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
    use crate::{
        format::{Array, Metadata, Value},
        tokenizer::{Tokenizer, reasoning::ReasoningFormat},
    };

    /// Text, `<think>`, `</think>` and bytes.
    fn tokenizer() -> Tokenizer {
        let mut metadata = Metadata::new("m.gguf");
        let mut tokens = ["<think>", "</think>", "Hm", "Yes"].map(str::to_owned).to_vec();
        tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
        let types = (0..tokens.len()).map(|id| [4, 3, 1, 1].get(id).copied().unwrap_or(6)).collect();
        metadata.set("tokenizer.ggml.model", Value::String("llama".into()));
        metadata.set("tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0; tokens.len()])));
        metadata.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
        metadata.set("tokenizer.ggml.token_type", Value::Array(Array::I32(types)));
        Tokenizer::from_metadata(&metadata).expect("valid")
    }

    #[test]
    fn events_have_one_token_each_and_the_parts_of_its_text() {
        use AnswerPart::{Answer, Thinking};
        let tokenizer = tokenizer();
        let format = ReasoningFormat::detect(&tokenizer, "");
        let byte = |byte: u32| 4 + byte;
        // In the middle, a letter that ends with the thoughts, and half a stop string.
        let ids = [0, 2, byte(0xc3), 1, byte(0x45), 3, byte(0xc3), byte(0xa9), 0, byte(0x45), byte(0x4e), 2];
        let stops = StopStrings::new(vec!["EN".to_owned()], &[]);
        let mut stream = TextStream::new(tokenizer.stream(), stops, Some(format.parser("", None)));
        let (events, received) = EventSender::new(&Default::default());
        let mut outcomes = ids.iter().map(|&id| stream.push(id, None, &events));
        assert!(outcomes.by_ref().take(10).all(|outcome| outcome == TokenOutcome::Sent));
        assert_eq!(outcomes.next(), Some(TokenOutcome::Stop(StopReason::StopString("EN".to_owned()))));
        drop(outcomes);
        events.finish(Event::Error(crate::Error::Cancelled));
        let (mut seen, mut text) = (Vec::new(), AnswerText::default());
        for event in received {
            let Event::Token { id, text: more, .. } = event else { continue };
            seen.push(id);
            text.append(&more);
        }
        assert_eq!(seen, ids[..11]);
        let want = [(Thinking, "Hm"), (Answer, "\u{fffd}EYesé<think>")];
        assert_eq!(text.pieces().collect::<Vec<_>>(), want);
        assert_eq!(&*text, "Hm\u{fffd}EYesé<think>");
    }

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
            // Character by character: the text ends where some stop string first becomes complete.
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
