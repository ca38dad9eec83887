//! Tokens of an answer to events with text.

use super::{Event, StopReason, outbox::Outbox, stop::StopStrings};
use crate::tokenizer::Detokeniser;

/// What became of a token.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// It is on its way.
    Yes,
    /// Nobody listens any more.
    No,
    /// It completed a stop string.
    Stop(StopReason),
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
    kept: Option<(u32, String)>,
}

impl<'a> TextStream<'a> {
    pub fn new(detokeniser: Detokeniser<'a>, stops: StopStrings) -> Self {
        TextStream { detokeniser, stops, kept: None }
    }

    /// Takes the next token.
    pub fn push(&mut self, id: u32, events: &Outbox) -> Heard {
        let piece = self.detokeniser.push(id);
        let (text, stop) = self.stops.push(&piece);
        let mut listening = self.release(events);
        match stop {
            Some(reason) => {
                let _ = events.send(Event::Token { id, text });
                return Heard::Stop(reason);
            }
            None if self.detokeniser.is_holding() || self.stops.is_holding() => self.kept = Some((id, text)),
            None => listening &= events.send(Event::Token { id, text }),
        }
        if listening { Heard::Yes } else { Heard::No }
    }

    /// Sends what was kept back; no token follows. Returns the reason to stop, if the last bytes completed a stop string.
    pub fn finish(&mut self, events: &Outbox) -> Option<StopReason> {
        let (mut text, stop) = self.stops.push(&self.detokeniser.finish());
        if stop.is_none() {
            text.push_str(&self.stops.finish());
        }
        if let Some((_, kept)) = &mut self.kept {
            kept.push_str(&text);
        }
        let _ = self.release(events);
        stop
    }

    fn release(&mut self, events: &Outbox) -> bool {
        self.kept.take().is_none_or(|(id, text)| events.send(Event::Token { id, text }))
    }
}
