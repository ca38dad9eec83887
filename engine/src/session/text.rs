//! The text of an answer: tokens become events with whole characters and parts, and stop strings
//! end the answer.

use super::{
    StopReason, TokenLogprobs,
    request::{AnswerText, Event, EventSender},
    stop_strings::StopStrings,
    thought_calls::ThoughtCalls,
};
use thermocline_text::{
    Detokeniser,
    reasoning::{AnswerParser, AnswerPart},
    tools::{CONTROL, CallSplitter, CallToken},
};

/// The outcome of a token.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TokenOutcome {
    /// The token was sent, or is held back until its text is complete.
    Sent,
    /// The receiver of the events is gone.
    ReceiverGone,
    /// The token completed a stop string.
    Stop(StopReason),
}

/// A token whose event waits for the rest of its text.
#[derive(Debug)]
struct KeptToken {
    id: u32,
    text: AnswerText,
    logprobs: Option<TokenLogprobs>,
}

/// Turns the tokens of one generation into [`Event::Token`]s, one event per token, with whole
/// characters and no stop string. The caller's stop strings are searched for in the answer to the
/// user, not in thoughts or tool calls.
///
/// An event whose text is incomplete is held back until the next token or the end. Thus there is
/// always an event left to carry the text.
#[derive(Debug)]
pub(super) struct TextStream<'a> {
    detokeniser: Detokeniser<'a>,
    /// Stop strings of the answer.
    stops: StopStrings,
    /// Turn ends, the only stop strings in thoughts and tool calls.
    turn_ends: StopStrings,
    /// `None` if the whole text is the answer.
    parser: Option<AnswerParser>,
    /// `None` if the answer has no tool calls.
    calls: Option<CallSplitter>,
    /// Reader of tool calls at the end of unclosed thoughts. `None` under the same condition.
    thought_calls: Option<ThoughtCalls>,
    /// Part of the last piece.
    part: AnswerPart,
    thought: bool,
    /// True once the answer has text.
    spoke: bool,
    stopped: bool,
    kept: Option<KeptToken>,
    /// Tokens that are part of tool calls.
    call_tokens: Vec<CallToken>,
}

impl<'a> TextStream<'a> {
    pub fn new(detokeniser: Detokeniser<'a>, stops: StopStrings, parser: Option<AnswerParser>) -> Self {
        TextStream {
            detokeniser,
            turn_ends: stops.turn_ends(),
            stops,
            parser,
            calls: None,
            thought_calls: None,
            part: AnswerPart::Answer,
            thought: false,
            spoke: false,
            stopped: false,
            kept: None,
            call_tokens: Vec::new(),
        }
    }

    /// Separates tool calls from the answer if there are `calls`; `call_tokens` are shown in their
    /// text.
    pub fn with_calls(self, calls: Option<CallSplitter>, call_tokens: &[CallToken]) -> Self {
        let call_tokens = if calls.is_some() { call_tokens.to_vec() } else { Vec::new() };
        TextStream { thought_calls: calls.clone().map(ThoughtCalls::new), calls, call_tokens, ..self }
    }

    /// Adds the next token of the answer.
    pub fn push(&mut self, id: u32, logprobs: Option<TokenLogprobs>, events: &EventSender) -> TokenOutcome {
        let piece = self.piece(id);
        let pieces = match &mut self.parser {
            Some(parser) if parser.is_marker(id) => {
                let before = piece.strip_suffix(parser.marker_text(id));
                let mut pieces = parser.push(before.unwrap_or(&piece));
                pieces.extend(parser.push_marker(id, before.is_some()));
                pieces
            }
            Some(parser) => parser.push(&piece),
            None => vec![(AnswerPart::Answer, piece)],
        };
        let mut text = AnswerText::default();
        let stop = self.read(pieces, &mut text);
        let mut listening = self.release(events);
        match stop {
            Some(reason) => {
                let _ = events.send(Event::Token { id, text, logprobs });
                return TokenOutcome::Stop(reason);
            }
            None if self.is_holding() => self.kept = Some(KeptToken { id, text, logprobs }),
            None => listening &= events.send(Event::Token { id, text, logprobs }),
        }
        if listening { TokenOutcome::Sent } else { TokenOutcome::ReceiverGone }
    }

    /// The text of the next token.
    fn piece(&mut self, id: u32) -> String {
        let mut piece = self.detokeniser.push(id);
        if self.calls.is_some() && piece.contains(CONTROL) {
            piece = piece.replace(CONTROL, "");
        }
        if let Some(token) = self.call_tokens.iter().find(|token| token.id == id) {
            // The vocabulary may hide the token's text.
            piece.truncate(piece.strip_suffix(&*token.text).unwrap_or(&piece).len());
            piece.push_str(&token.shown);
        }
        piece
    }

    /// Sends the text that was held back, because no token follows. `ended` is true if the model
    /// ended its answer and the answer was not cut short. Returns the reason to stop if the last
    /// bytes completed a stop string.
    pub fn finish(&mut self, ended: bool, events: &EventSender) -> Option<StopReason> {
        let mut text = AnswerText::default();
        let stop = if self.stopped { None } else { self.read_rest(ended, &mut text) };
        if let Some(kept) = &mut self.kept {
            kept.text.append(&text);
        }
        let _ = self.release(events);
        stop
    }

    /// Reads all text that is held back.
    fn read_rest(&mut self, ended: bool, text: &mut AnswerText) -> Option<StopReason> {
        let rest = self.detokeniser.finish();
        let in_thoughts = self.is_thinking();
        let pieces = match &mut self.parser {
            Some(parser) => {
                let mut pieces = parser.push(&rest);
                pieces.extend(parser.finish(ended));
                pieces
            }
            None => vec![(AnswerPart::Answer, rest)],
        };
        let stop = self.read(pieces, text);
        let thoughts = self.thought_calls.as_mut().map(|calls| calls.finish(ended && in_thoughts));
        let stop = stop.or_else(|| self.watch_all(thoughts.unwrap_or_default(), text));
        let stop = stop.or_else(|| self.read_rest_of_call(text));
        if stop.is_none() {
            self.flush(text);
        }
        stop
    }

    fn read_rest_of_call(&mut self, text: &mut AnswerText) -> Option<StopReason> {
        let rest = self.calls.as_mut().map(CallSplitter::finish).unwrap_or_default();
        self.watch_all(rest, text)
    }

    fn watch_all(&mut self, pieces: Vec<(AnswerPart, String)>, text: &mut AnswerText) -> Option<StopReason> {
        pieces.iter().find_map(|(part, piece)| self.watch(*part, piece, text))
    }

    /// Adds the text of the next pieces to `text`, unless it may still become part of a stop
    /// string. Returns the reason to stop if a stop string is complete, and drops the text after
    /// it.
    fn read(&mut self, pieces: Vec<(AnswerPart, String)>, text: &mut AnswerText) -> Option<StopReason> {
        for (part, piece) in pieces {
            let stop = match &mut self.thought_calls {
                Some(calls) if part == AnswerPart::Thinking => {
                    let pieces = calls.push(&piece);
                    self.read_rest_of_call(text).or_else(|| self.watch_all(pieces, text))
                }
                Some(calls) => {
                    let thoughts = calls.finish(false);
                    self.watch_all(thoughts, text).or_else(|| self.read_behind_thoughts(part, &piece, text))
                }
                None => self.watch(part, &piece, text),
            };
            if stop.is_some() {
                self.stopped = true;
                return stop;
            }
        }
        None
    }

    fn read_behind_thoughts(&mut self, part: AnswerPart, piece: &str, text: &mut AnswerText) -> Option<StopReason> {
        match &mut self.calls {
            Some(calls) if part == AnswerPart::Answer => {
                let pieces = calls.push(piece);
                self.watch_all(pieces, text)
            }
            _ => self.read_rest_of_call(text).or_else(|| self.watch(part, piece, text)),
        }
    }

    /// Searches a piece for stop strings. A stop string never spans two parts.
    fn watch(&mut self, part: AnswerPart, piece: &str, text: &mut AnswerText) -> Option<StopReason> {
        if part != self.part {
            self.flush(text);
            self.part = part;
        }
        let mut piece = piece;
        self.thought |= part == AnswerPart::Thinking;
        if part == AnswerPart::Answer && self.thought && !self.spoke {
            // Line ends between thoughts and the answer belong to neither.
            let words = piece.trim_start_matches('\n');
            text.push(part, &piece[..piece.len() - words.len()]);
            self.spoke = !words.is_empty();
            piece = words;
        }
        let (certain, stop) = self.stops_of(part).push(piece);
        text.push(part, &certain);
        stop
    }

    /// Adds the held-back text that might have become a stop string.
    fn flush(&mut self, text: &mut AnswerText) {
        let part = self.part;
        text.push(part, &self.stops_of(part).finish());
    }

    fn stops_of(&mut self, part: AnswerPart) -> &mut StopStrings {
        if part == AnswerPart::Answer { &mut self.stops } else { &mut self.turn_ends }
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
        let calling = self.calls.as_ref().is_some_and(CallSplitter::is_holding);
        let calling = calling || self.thought_calls.as_ref().is_some_and(ThoughtCalls::is_holding);
        parsing || calling || self.detokeniser.is_holding() || self.stops.is_holding() || self.turn_ends.is_holding()
    }

    fn release(&mut self, events: &EventSender) -> bool {
        let Some(KeptToken { id, text, logprobs }) = self.kept.take() else { return true };
        events.send(Event::Token { id, text, logprobs })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Receiver;

    use super::*;
    use thermocline_formats::format::{Array, Metadata, Value};
    use thermocline_text::{Tokenizer, reasoning::ReasoningFormat, tools::ToolFormat};

    /// A tokenizer with these tokens, of these types, and all byte tokens.
    fn tokenizer_of(texts: [&str; 4], types: [i32; 4]) -> Tokenizer {
        let mut metadata = Metadata::new("m.gguf");
        let mut tokens = texts.map(str::to_owned).to_vec();
        tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
        let types = (0..tokens.len()).map(|id| types.get(id).copied().unwrap_or(6)).collect();
        metadata.set("tokenizer.ggml.model", Value::String("llama".into()));
        metadata.set("tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0; tokens.len()])));
        metadata.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
        metadata.set("tokenizer.ggml.token_type", Value::Array(Array::I32(types)));
        Tokenizer::from_metadata(&metadata).expect("valid")
    }

    /// A tokenizer with text, `<think>`, `</think>` and bytes.
    fn tokenizer() -> Tokenizer {
        tokenizer_of(["<think>", "</think>", "Hm", "Yes"], [4, 3, 1, 1])
    }

    /// The token ids and the whole text of the sent events.
    fn received(events: EventSender, received: Receiver<Event>) -> (Vec<u32>, AnswerText) {
        events.finish(Event::Error(thermocline_base::error::Error::Cancelled));
        let (mut ids, mut text) = (Vec::new(), AnswerText::default());
        for event in received {
            let Event::Token { id, text: more, .. } = event else { continue };
            ids.push(id);
            text.append(&more);
        }
        (ids, text)
    }

    #[test]
    fn events_have_one_token_each_and_the_parts_of_its_text() {
        use AnswerPart::{Answer, Thinking};
        let tokenizer = tokenizer();
        let format = ReasoningFormat::detect(&tokenizer, "");
        let byte = |byte: u32| 4 + byte;
        // The answer contains a letter that is cut off by the end of the thoughts, and half a stop
        // string.
        let ids = [0, 2, byte(0xc3), 1, byte(0x45), 3, byte(0xc3), byte(0xa9), 0, byte(0x45), byte(0x4e), 2];
        let stops = StopStrings::new(vec!["EN".to_owned()], &[]);
        let mut stream = TextStream::new(tokenizer.stream(), stops, Some(format.parser("", None)));
        let (events, inbox) = EventSender::new(&Default::default());
        let mut outcomes = ids.iter().map(|&id| stream.push(id, None, &events));
        assert!(outcomes.by_ref().take(10).all(|outcome| outcome == TokenOutcome::Sent));
        assert_eq!(outcomes.next(), Some(TokenOutcome::Stop(StopReason::StopString("EN".to_owned()))));
        drop(outcomes);
        let (seen, text) = received(events, inbox);
        assert_eq!(seen, ids[..11]);
        let want = [(Thinking, "Hm"), (Answer, "\u{fffd}EYesé<think>")];
        assert_eq!(text.pieces().collect::<Vec<_>>(), want);
        assert_eq!(&*text, "Hm\u{fffd}EYesé<think>");
    }

    /// Reads an answer that arrives byte by byte. Returns its parts and its stop string; `calls`
    /// enables tool calls.
    fn answer(text: &str, stops: &[&str], calls: bool) -> (Vec<(AnswerPart, String)>, Option<String>) {
        let tokenizer = tokenizer();
        let format = ReasoningFormat::detect(&tokenizer, "");
        let stops = StopStrings::new(stops.iter().map(|&stop| stop.to_owned()).collect(), &["\nUser:"]);
        let mut stream = TextStream::new(tokenizer.stream(), stops, Some(format.parser("", None)));
        if calls {
            let calls = CallSplitter::new(ToolFormat::detect(&tokenizer, ""), &[]);
            stream = stream.with_calls(Some(calls), &[]);
        }
        let (events, inbox) = EventSender::new(&Default::default());
        let markers = [("<think>", 0), ("</think>", 1)];
        let (mut rest, mut stop) = (text, None);
        while !rest.is_empty() && stop.is_none() {
            let marker = markers.iter().find(|(marker, _)| rest.starts_with(marker));
            let (id, length) = marker.map_or((4 + u32::from(rest.as_bytes()[0]), 1), |(text, id)| (*id, text.len()));
            rest = &rest[length..];
            match stream.push(id, None, &events) {
                TokenOutcome::Stop(StopReason::StopString(text)) => stop = Some(text),
                TokenOutcome::Stop(reason) => stop = Some(format!("{reason:?}")),
                TokenOutcome::Sent | TokenOutcome::ReceiverGone => {}
            }
        }
        assert_eq!(stream.finish(false, &events), None);
        let (_, text) = received(events, inbox);
        (text.pieces().map(|(part, piece)| (part, piece.to_owned())).collect(), stop)
    }

    /// The parts of an answer of a model whose tokens are bytes, `<think>`, `</think>`,
    /// `<tool_call>` and `</tool_call>`. In the answer and in the parts, `#` precedes a token.
    /// `ended` is true if the model ended its answer.
    fn parts_of(answer: &str, ended: bool) -> Vec<(AnswerPart, String)> {
        let tokens = ["<think>", "</think>", "<tool_call>", "</tool_call>"];
        let tokenizer = tokenizer_of(tokens, [3; 4]);
        let template = "{{ tools }}<tool_call>{{ '<think>' }}{{ '</think>' }}";
        let (reasoning, tools) =
            (ReasoningFormat::detect(&tokenizer, template), ToolFormat::detect(&tokenizer, template));
        let stops = StopStrings::new(Vec::new(), &[]);
        let stream = TextStream::new(tokenizer.stream(), stops, Some(reasoning.parser("", None)));
        let mut stream = stream.with_calls(Some(CallSplitter::new(tools.clone(), &[])), tools.tokens());
        let (events, inbox) = EventSender::new(&Default::default());
        let mut rest = answer;
        while let Some(first) = rest.bytes().next() {
            let behind = rest.strip_prefix('#').unwrap_or("");
            let token = tokens.iter().position(|token| behind.starts_with(token));
            let (id, length) = token.map_or((tokens.len() + usize::from(first), 1), |id| (id, 1 + tokens[id].len()));
            rest = &rest[length..];
            assert_eq!(stream.push(id as u32, None, &events), TokenOutcome::Sent);
        }
        assert_eq!(stream.finish(ended, &events), None);
        let (_, text) = received(events, inbox);
        text.pieces().map(|(part, piece)| (part, piece.replace(CONTROL, "#"))).collect()
    }

    #[test]
    fn control_tokens_of_calls_and_the_same_letters_are_two_things() {
        use AnswerPart::{Answer, ToolCall};
        let body = "\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n";
        let call = format!("#<tool_call>{body}#</tool_call>");
        let letters = call.replace('#', "");
        assert_eq!(parts_of(&call, true), [(ToolCall, call.clone())]);
        assert_eq!(parts_of(&letters, true), [(Answer, letters.clone())]);
        let text = "<function=f>\n<parameter=a>\nx</parameter></function></tool_call>\n</parameter>\n</function>\n";
        let call = format!("#<tool_call>{text}#</tool_call>");
        assert_eq!(parts_of(&format!("{letters}{call}"), true), [(Answer, letters), (ToolCall, call)]);
        assert_eq!(parts_of("A #<tool_call> tag.", true), [(Answer, "A <tool_call> tag.".to_owned())]);
    }

    #[test]
    fn calls_in_thoughts_that_are_not_closed_are_calls_where_the_answer_ends() {
        use AnswerPart::{Answer, Thinking, ToolCall};
        let body = "\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n";
        let call = format!("#<tool_call>{body}#</tool_call>");
        let thinking = |text: &str| (Thinking, text.to_owned());
        let two = format!("{call}\n{call}");
        assert_eq!(parts_of(&format!("#<think>Hm.\n{two}"), true), [thinking("Hm.\n"), (ToolCall, two)]);
        let thought = call.replace('#', "");
        assert_eq!(parts_of(&format!("#<think>Hm.{call}"), false), [thinking(&format!("Hm.{thought}"))]);
        let answer = format!("#<think>Hm {call}?#</think>{call}");
        assert_eq!(parts_of(&answer, true), [thinking(&format!("Hm {thought}?")), (ToolCall, call.clone())]);
        let answer = format!("#<think>{call}#</think>Yes.");
        assert_eq!(parts_of(&answer, true), [thinking(&thought), (Answer, "Yes.".to_owned())]);
    }

    #[test]
    fn stop_strings_count_in_words_only() {
        use AnswerPart::{Answer, Thinking, ToolCall};
        let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x, y\"}}\n</tool_call>";
        let two = format!("Hm.{call}\n{call}");
        for (text, stops, want, stop) in [
            (
                "<think>\nWhat is\nit?</think>\n\nYes\nno",
                "\n",
                vec![(Thinking, "\nWhat is\nit?"), (Answer, "\n\nYes")],
                Some("\n"),
            ),
            ("<think>a is</think>b is", " is", vec![(Thinking, "a is"), (Answer, "b")], Some(" is")),
            ("<think>a is", " is", vec![(Thinking, "a is")], None),
            ("<think>a\nUser: b", "x", vec![(Thinking, "a")], Some("EndOfText")),
            (&two, "\n", vec![(Answer, "Hm."), (ToolCall, &two[3..])], None),
            (&two, "}", vec![(Answer, "Hm."), (ToolCall, &two[3..])], None),
            (&two, ", ", vec![(Answer, "Hm."), (ToolCall, &two[3..])], None),
            (&two, "m.", vec![(Answer, "H")], Some("m.")),
            (&two[3..90], "\"", vec![(ToolCall, &two[3..90])], None),
        ] {
            let want: Vec<_> = want.into_iter().map(|(part, text)| (part, text.to_owned())).collect();
            assert_eq!(answer(text, &[stops], true), (want, stop.map(str::to_owned)), "{text} until {stops:?}");
        }
        // Without tools the whole text is the answer.
        assert_eq!(answer(&two, &["}"], false).1, Some("}".to_owned()));
    }
}
