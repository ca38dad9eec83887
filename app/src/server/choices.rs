//! The choices of an answer: one after the other they are generated, read and, where more are generated than returned, chosen from.

use thermocline_engine::session::{GenerationStats, StopReason};

use super::{
    answer_reader::{AnswerPiece, AnswerReader, RequestedTools},
    generation::GenerationUpdate,
    logprobs::{LogprobsFormat, ScoredToken},
    prompts::ChoiceFields,
    request::Endpoint,
};

/// One complete choice.
#[derive(Debug)]
pub struct Choice {
    /// Its pieces, the echoed prompt first.
    pub pieces: Vec<AnswerPiece>,
    /// Its tokens with log probabilities, if they are wanted.
    pub scored: Vec<ScoredToken>,
    /// The reason why it ended.
    pub reason: StopReason,
    /// True if it has called tools, and the last call is complete.
    pub called: bool,
    /// Its token counts.
    pub stats: GenerationStats,
    /// Formatter of its log probabilities.
    pub logprobs: LogprobsFormat,
}

/// The readers of a request's choices.
#[derive(Debug)]
pub struct ChoiceReaders {
    endpoint: Endpoint,
    fields: ChoiceFields,
    tools: Option<RequestedTools>,
    /// Texts of the prompts, if they are echoed.
    echoes: Vec<String>,
    /// Number of choices begun.
    started: usize,
    total: GenerationStats,
}

/// The reader of one choice.
#[derive(Debug)]
pub struct ChoiceReader {
    /// Number of the choice.
    pub index: usize,
    /// Formatter of its log probabilities.
    pub logprobs: LogprobsFormat,
    answer: AnswerReader,
    /// The answer has a form and calls no tools.
    formed: bool,
    echo: Option<String>,
}

impl ChoiceReaders {
    /// The readers of the answers to a request.
    pub fn new(endpoint: Endpoint, fields: ChoiceFields, tools: Option<RequestedTools>, echoes: Vec<String>) -> Self {
        ChoiceReaders { endpoint, fields, tools, echoes, started: 0, total: GenerationStats::default() }
    }

    /// The reader of the next choice.
    pub fn next_reader(&mut self) -> ChoiceReader {
        let index = self.started;
        self.started += 1;
        let echo = self.echoes.get(index / self.fields.best_of).cloned();
        let logprobs = LogprobsFormat::new(self.endpoint, echo.as_deref());
        ChoiceReader { index, logprobs, answer: AnswerReader::new(self.tools.as_ref()), formed: false, echo }
    }

    /// True if log probabilities are returned.
    pub fn returns_logprobs(&self) -> bool {
        self.fields.logprobs.is_some()
    }

    /// Counts the tokens of the choice that was begun last: those of a prompt once.
    pub fn count(&mut self, stats: &GenerationStats) {
        if (self.started - 1).is_multiple_of(self.fields.best_of) {
            self.total.prompt_tokens += stats.prompt_tokens;
            self.total.reused_tokens += stats.reused_tokens;
        }
        self.total.forgotten_tokens = self.total.forgotten_tokens.max(stats.forgotten_tokens);
        self.total.forgotten_turns = self.total.forgotten_turns.max(stats.forgotten_turns);
        self.total.generated_tokens += stats.generated_tokens;
        self.total.thought_tokens += stats.thought_tokens;
        self.total.drafted_tokens += stats.drafted_tokens;
        self.total.accepted_tokens += stats.accepted_tokens;
        self.total.prompt_time += stats.prompt_time;
        self.total.decode_time += stats.decode_time;
    }

    /// Token counts and times of all choices.
    pub fn total(&self) -> &GenerationStats {
        &self.total
    }

    /// The choices that are returned: of each prompt the likeliest, by mean log probability of their tokens.
    pub fn returned(&self, mut choices: Vec<Choice>) -> Vec<Choice> {
        let ChoiceFields { answers, best_of, .. } = self.fields;
        if best_of == answers {
            return choices;
        }
        for prompt in choices.chunks_mut(best_of) {
            prompt.sort_by(|a, b| mean_logprob(b).total_cmp(&mean_logprob(a)));
        }
        let mut at = 0..;
        choices.retain(|_| at.next().is_some_and(|at: usize| at % best_of < answers));
        choices
    }
}

impl ChoiceReader {
    /// The pieces of new text. The first of them is the echoed prompt.
    pub fn push(&mut self, update: &GenerationUpdate) -> Vec<AnswerPiece> {
        if update.formed && !self.formed {
            // Nothing was read before: no text of the form is a call.
            (self.answer, self.formed) = (AnswerReader::new(None), true);
        }
        let mut pieces: Vec<_> = self.echo.take().map(AnswerPiece::Content).into_iter().collect();
        pieces.extend(self.answer.push(&update.text));
        if update.end.is_some() {
            pieces.extend(self.answer.finish());
        }
        pieces
    }

    /// True if the answer has called tools so far, and the last call is complete.
    pub fn called(&self) -> bool {
        self.answer.called()
    }
}

fn mean_logprob(choice: &Choice) -> f32 {
    let generated = choice.scored.iter().rev().take(choice.stats.generated_tokens);
    let (sum, count) = generated.fold((0.0, 0.0), |(sum, count), it| (sum + it.logprob.unwrap_or(0.0), count + 1.0));
    if count == 0.0 { f32::NEG_INFINITY } else { sum / count }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returned_choices_are_the_likeliest_of_each_prompt() {
        let fields = ChoiceFields { answers: 1, best_of: 2, echo: false, logprobs: None };
        let mut readers = ChoiceReaders::new(Endpoint::Completion, fields, None, Vec::new());
        let choices = [-2.0, -1.0, -0.5, -3.0].map(|logprob| {
            let reader = readers.next_reader();
            let stats = GenerationStats { prompt_tokens: 5, generated_tokens: 1, ..GenerationStats::default() };
            readers.count(&stats);
            let token = ScoredToken { bytes: b"a".to_vec(), visible: true, logprob: Some(logprob), top: Vec::new() };
            let scored = vec![token];
            let (pieces, reason) = (Vec::new(), StopReason::MaxTokens);
            Choice { pieces, scored, reason, called: false, stats, logprobs: reader.logprobs }
        });
        let total = readers.total();
        assert_eq!((total.prompt_tokens, total.generated_tokens), (10, 4));
        let left: Vec<_> = readers.returned(choices.into()).iter().map(|it| it.scored[0].logprob).collect();
        assert_eq!(left, [Some(-1.0), Some(-0.5)]);
    }
}
