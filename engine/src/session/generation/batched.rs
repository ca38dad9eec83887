//! Batching of a generation. One pass computes its next token and the next tokens of other
//! generations. The beginning of its prompt may be copied.

use std::{sync::atomic::AtomicU64, time::Duration};

use super::{
    super::{
        StopReason, context::SessionContext, neurons::GenerationProbe, request::EventSender, sampling::GrammarState,
    },
    Generation,
};
use thermocline_base::error::Result;
use thermocline_run::runtime::{Forward, Probe};

impl Generation<'_> {
    /// The token to compute next, if it is the only one and its logits choose another token. One
    /// pass computes it together with the tokens of other generations.
    pub fn single_token(&self, context: &SessionContext, forward: &Forward) -> Option<u32> {
        let reads_prompt =
            self.pooled.is_some() || self.in_prompt() && self.chooser.logprobs.is_some_and(|it| it.prompt);
        let chooses = self.max_tokens != Some(0) && !reads_prompt && !self.spent_thoughts();
        let single = self.todo.rest().len() == 1 && chooses;
        let ready = single && context.room() > 0 && context.is_settled(forward);
        self.todo.tokens.last().copied().filter(|_| ready)
    }

    /// The prompt tokens that are still to be computed, if copying some of them is possible.
    pub fn rest_of_prompt(&self) -> Option<&[u32]> {
        let reads_prompt = self.pooled.is_some() || self.chooser.logprobs.is_some_and(|it| it.prompt);
        Some(self.todo.rest()).filter(|rest| self.in_prompt() && !reads_prompt && rest.len() > 1)
    }

    /// Records that `tokens` of the remaining prompt were copied to the context.
    pub fn skip(&mut self, tokens: usize) {
        self.todo.computed += tokens;
        self.progress.stats.reused_tokens += tokens;
        self.telemetry.reused_tokens.add(tokens as u64);
    }

    /// True if the request is cancelled. Requests of the session with numbers below `cancelled`
    /// are.
    pub fn is_cancelled(&self, cancelled: &AtomicU64) -> bool {
        GenerationProbe::new(cancelled, self.number).cancelled()
    }

    /// The grammar whose mask the next token needs.
    pub fn grammar_mut(&mut self) -> Option<&mut GrammarState> {
        self.chooser.grammar.as_mut().filter(|_| self.text.is_answering())
    }

    /// Chooses a token from `logits`, `[n_vocab]`, which a shared pass of `time` has computed for
    /// [`Generation::single_token`]. The grammar's mask must be computed. Returns the reason if the
    /// generation has ended.
    pub fn take_logits(
        &mut self,
        logits: &[f32],
        context: &SessionContext,
        events: &EventSender,
        time: Duration,
    ) -> Result<Option<StopReason>> {
        let in_prompt = self.in_prompt();
        if in_prompt && self.todo.computed == 0 && !self.report_prompt(events) {
            return Ok(Some(StopReason::Cancelled));
        }
        self.todo.computed = self.todo.tokens.len();
        let (id, logprobs) = self.choose(logits, &context.read_tokens())?;
        let end = self.accept(id, logprobs, events);
        self.progress.add_time(in_prompt, time);
        match in_prompt {
            true => self.telemetry.prompt_tokens.add(1),
            false => self.progress.stats.decode_steps += 1,
        }
        self.progress.stats.context_used = context.tokens().len();
        Ok(end.or((!self.progress.report(events)).then_some(StopReason::Cancelled)))
    }
}
