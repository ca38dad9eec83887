//! An answer that either calls tools or follows a grammar. No token mask allows both, because text
//! may precede a call. So the model first answers freely, and the server holds the text back. If
//! the model calls a tool, the held text is the answer. If not, the model answers again under the
//! grammar.

use thermocline_engine::session::{Grammar, Request};

use super::{
    answer_reader::{AnswerReader, RequestedTools},
    generation::GenerationUpdate,
};

/// The tools and the grammar of an answer that either calls tools or follows the grammar.
#[derive(Debug, Clone, PartialEq)]
pub struct CallsOrForm {
    /// Tools that may be called.
    pub tools: RequestedTools,
    /// Grammar of an answer without a call.
    pub form: Grammar,
}

/// A free answer that has not called a tool yet.
#[derive(Debug)]
pub struct UndecidedAnswer {
    /// The same request with the grammar.
    formed: Request,
    reader: AnswerReader,
    /// Text and tokens so far.
    held: GenerationUpdate,
}

/// The state of an answer that may call tools.
#[derive(Debug)]
pub enum Decision {
    /// The answer may still call a tool.
    Open(Box<UndecidedAnswer>),
    /// The answer calls a tool or has failed. The update is its beginning.
    Free(Box<GenerationUpdate>),
    /// The answer has ended without a call. Answer this request instead.
    Formed(Box<Request>),
}

impl UndecidedAnswer {
    /// Begins the free answer to `request`.
    pub fn new(request: &Request, may_be: &CallsOrForm) -> Self {
        let formed = Request { grammar: Some(may_be.form.clone()), ..request.clone() };
        UndecidedAnswer { formed, reader: AnswerReader::new(Some(&may_be.tools)), held: GenerationUpdate::default() }
    }

    /// Adds an update, and decides if it can.
    pub fn push(mut self, mut update: GenerationUpdate) -> Decision {
        self.reader.push(&update.text);
        self.held.text.append(&update.text);
        self.held.scored.append(&mut update.scored);
        let (ended, failed) = (update.end.is_some(), matches!(update.end, Some(Err(_))));
        self.held.end = update.end;
        if ended {
            self.reader.finish();
        }
        if failed || self.reader.has_begun_call() {
            Decision::Free(Box::new(self.held))
        } else if ended {
            Decision::Formed(Box::new(self.formed))
        } else {
            Decision::Open(Box::new(self))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use thermocline_engine::{
        session::{AnswerText, GenerationStats, Prompt, StopReason},
        tokenizer::{reasoning::AnswerPart, tools::ToolFormat},
    };

    use super::*;
    use crate::error::ApiError;

    fn undecided() -> UndecidedAnswer {
        let tool = json!({ "type": "function", "function": { "name": "f", "parameters": {} } });
        let tools = RequestedTools { format: ToolFormat::forced(), definitions: vec![tool] };
        let form = Grammar::Regex("a".to_owned());
        UndecidedAnswer::new(&Request::new(Prompt::Text("x".to_owned())), &CallsOrForm { tools, form })
    }

    fn said(text: &str) -> GenerationUpdate {
        let mut answer = AnswerText::default();
        answer.push(AnswerPart::Answer, text);
        GenerationUpdate { text: answer, ..GenerationUpdate::default() }
    }

    #[test]
    fn answer_is_held_until_it_calls_a_tool_or_ends_without() {
        let Decision::Open(it) = undecided().push(said("{\"name\": ")) else { panic!("too early") };
        let Decision::Free(update) = it.push(said("\"f\", \"arguments\": {")) else { panic!("it calls") };
        assert_eq!(&*update.text, "{\"name\": \"f\", \"arguments\": {");

        let Decision::Open(it) = undecided().push(said("Well")) else { panic!("too early") };
        let end = Some(Ok((StopReason::EndOfText, GenerationStats::default())));
        let Decision::Formed(request) = it.push(GenerationUpdate { end, ..said(".") }) else { panic!("no call") };
        assert_eq!(request.grammar, Some(Grammar::Regex("a".to_owned())));

        let end = Some(Err(ApiError::unavailable("gone")));
        let failed = undecided().push(GenerationUpdate { end, ..GenerationUpdate::default() });
        assert!(matches!(failed, Decision::Free(update) if matches!(update.end, Some(Err(_)))));
    }
}
