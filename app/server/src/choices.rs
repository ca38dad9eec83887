//! Collects the choices of a whole answer from its events. If more choices are generated than
//! returned, the most likely ones are kept.

use thermocline_engine::session::{GenerationStats, StopReason};

use super::{
    answer_events::{AnswerEvent, ChoiceEnd},
    answer_reader::AnswerPiece,
    error::ApiError,
    generation::ScoredToken,
    request::ChoiceFields,
};

/// One choice.
#[derive(Debug)]
pub struct AnswerChoice {
    /// Text of the prompt, if the answer begins with it.
    pub echo: Option<String>,
    /// Pieces of the choice, the echoed prompt first.
    pub pieces: Vec<AnswerPiece>,
    /// Tokens with log probabilities, if the request wants them.
    pub scored: Vec<ScoredToken>,
    /// Why the choice ended.
    pub reason: StopReason,
    /// True if the choice has called tools, and the last call is complete.
    pub called: bool,
    /// Token counts of the choice.
    pub stats: GenerationStats,
}

/// A whole answer.
#[derive(Debug, Default)]
pub struct WholeAnswer {
    /// The choices so far.
    pub choices: Vec<AnswerChoice>,
    /// Token counts and times of all choices.
    pub total: GenerationStats,
}

impl AnswerChoice {
    /// Begins a choice.
    pub fn new(echo: Option<String>) -> Self {
        let (reason, stats) = (StopReason::EndOfText, GenerationStats::default());
        AnswerChoice { echo, pieces: Vec::new(), scored: Vec::new(), reason, called: false, stats }
    }

    fn mean_logprob(&self) -> f32 {
        let generated = self.scored.iter().rev().take(self.stats.generated_tokens);
        let (sum, count) =
            generated.fold((0.0, 0.0), |(sum, count), it| (sum + it.logprob.unwrap_or(0.0), count + 1.0));
        if count == 0.0 { f32::NEG_INFINITY } else { sum / count }
    }
}

impl WholeAnswer {
    /// Adds an event. Returns the error of an answer that fails.
    pub fn push(&mut self, event: AnswerEvent) -> Result<(), ApiError> {
        match (event, self.choices.last_mut()) {
            (AnswerEvent::Begin { echo, .. }, _) => self.choices.push(AnswerChoice::new(echo)),
            (AnswerEvent::Pieces { pieces, scored, .. }, Some(choice)) => {
                choice.pieces.extend(pieces);
                choice.scored.extend(scored);
            }
            (AnswerEvent::End(end), Some(choice)) => {
                let ChoiceEnd { reason, called, stats, total, .. } = *end;
                (choice.reason, choice.called, choice.stats, self.total) = (reason, called, stats, total);
            }
            (AnswerEvent::Failed(error), _) => return Err(error),
            (AnswerEvent::Pieces { .. } | AnswerEvent::End(_), None) => {}
        }
        Ok(())
    }
}

impl ChoiceFields {
    /// Keeps the most likely choices of each prompt, by the mean log probability of their tokens.
    pub fn returned(&self, mut choices: Vec<AnswerChoice>) -> Vec<AnswerChoice> {
        if self.best_of == self.answers {
            return choices;
        }
        for prompt in choices.chunks_mut(self.best_of) {
            prompt.sort_by(|a, b| b.mean_logprob().total_cmp(&a.mean_logprob()));
        }
        let mut at = 0..;
        choices.retain(|_| at.next().is_some_and(|at: usize| at % self.best_of < self.answers));
        choices
    }
}

/// Adds the counts of a choice to the total. A prompt's tokens count only with its first choice.
pub fn add_stats(total: &mut GenerationStats, stats: &GenerationStats, is_first: bool) {
    if is_first {
        total.prompt_tokens += stats.prompt_tokens;
        total.reused_tokens += stats.reused_tokens;
    }
    total.forgotten_tokens = total.forgotten_tokens.max(stats.forgotten_tokens);
    total.forgotten_turns = total.forgotten_turns.max(stats.forgotten_turns);
    total.generated_tokens += stats.generated_tokens;
    total.thought_tokens += stats.thought_tokens;
    total.drafts += stats.drafts;
    total.prompt_time += stats.prompt_time;
    total.decode_time += stats.decode_time;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returned_choices_are_the_likeliest_of_each_prompt() {
        let fields = ChoiceFields { answers: 1, best_of: 2, echo: false, logprobs: None };
        let mut total = GenerationStats::default();
        let choices = [-2.0, -1.0, -0.5, -3.0].into_iter().enumerate().map(|(at, logprob)| {
            let stats = GenerationStats { prompt_tokens: 5, generated_tokens: 1, ..GenerationStats::default() };
            add_stats(&mut total, &stats, at % 2 == 0);
            let token = ScoredToken { bytes: b"a".to_vec(), visible: true, logprob: Some(logprob), top: Vec::new() };
            AnswerChoice { scored: vec![token], stats, ..AnswerChoice::new(None) }
        });
        let left: Vec<_> = fields.returned(choices.collect()).iter().map(|it| it.scored[0].logprob).collect();
        assert_eq!(left, [Some(-1.0), Some(-0.5)]);
        assert_eq!((total.prompt_tokens, total.generated_tokens), (10, 4));
    }
}
