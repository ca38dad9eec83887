//! A generation among others: its next token is computed in a pass with theirs, and the beginning of its prompt may be copied.

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
    /// The token to compute next, if it is the only one and another will be chosen by its logits: other generations' are computed with
    /// it, in one pass.
    pub fn single_token(&self, context: &SessionContext, forward: &Forward) -> Option<u32> {
        let reads_prompt =
            self.pooled.is_some() || self.in_prompt() && self.chooser.logprobs.is_some_and(|it| it.prompt);
        let chooses = self.max_tokens != Some(0) && !reads_prompt && !self.spent_thoughts();
        let single = self.todo.rest().len() == 1 && chooses;
        let ready = single && context.room() > 0 && context.is_settled(forward);
        self.todo.tokens.last().copied().filter(|_| ready)
    }

    /// The tokens of its prompt that are not computed yet, where some may be copied instead.
    pub fn rest_of_prompt(&self) -> Option<&[u32]> {
        let reads_prompt = self.pooled.is_some() || self.chooser.logprobs.is_some_and(|it| it.prompt);
        Some(self.todo.rest()).filter(|rest| self.in_prompt() && !reads_prompt && rest.len() > 1)
    }

    /// `tokens` of the rest of its prompt were copied to its context.
    pub fn skip(&mut self, tokens: usize) {
        self.todo.computed += tokens;
        self.progress.stats.reused_tokens += tokens;
        self.telemetry.reused_tokens.add(tokens as u64);
    }

    /// Its number within its session: requests below the session's cancelled ones are cancelled.
    pub fn is_cancelled(&self, cancelled: &AtomicU64) -> bool {
        GenerationProbe::new(cancelled, self.number).cancelled()
    }

    /// The grammar whose mask the next token needs.
    pub fn grammar_mut(&mut self) -> Option<&mut GrammarState> {
        self.chooser.grammar.as_mut().filter(|_| self.text.is_answering())
    }

    /// Chooses a token by `logits`, `[n_vocab]`, which a pass of `time` has computed for [`Generation::single_token`] among others. The
    /// grammar's mask is computed. Returns the reason if the generation has ended.
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
        let (id, logprobs) = self.choose(logits, context)?;
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
