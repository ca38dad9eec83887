//! Drafts of a generation: tokens computed in advance, in one pass with the next token.

use std::time::Instant;

use smallvec::SmallVec;

use super::{
    super::{
        SpeculationMode, StopReason, TokenLogprobs, context::SessionContext, neurons::HotSetAdaptation,
        request::EventSender,
    },
    Generation,
};
use thermocline_base::{error::Result, telemetry::Meter};
use thermocline_run::runtime::{Forward, Sparsity};

impl Generation<'_> {
    /// Largest number of tokens in a pass with drafts; 1 without drafts.
    fn longest_draft_pass(&self, forward: &Forward) -> usize {
        let skips_inputs = forward.model().weights.input_level.is_some() && forward.sparsity() != Sparsity::Dense;
        let approximates = skips_inputs || !matches!(forward.sparsity(), Sparsity::Dense | Sparsity::Exact);
        match self.draft_mode {
            // In approximate modes a device skips nothing in longer passes.
            SpeculationMode::PromptLookup if !approximates => usize::MAX,
            SpeculationMode::SameBits | SpeculationMode::PromptLookup => forward.same_bits(),
            SpeculationMode::Off => 1,
        }
    }

    /// Appends drafts after the token to compute, if there is room for them.
    pub(super) fn add_draft(&mut self, context: &SessionContext, forward: &Forward) {
        let longest = self.longest_draft_pass(forward);
        let Some(speculation) = self.speculation.as_mut().filter(|_| longest > 1) else { return };
        let left = self.max_tokens.map_or(usize::MAX, |most| most.saturating_sub(self.progress.stats.generated_tokens));
        let room = context.room().min(left).min(self.chunk).min(forward.chunk()).min(longest).saturating_sub(1);
        speculation.draft(room, &mut self.todo.tokens);
        self.todo.drafted = self.todo.tokens.len() - 1;
    }

    /// Removes drafts that could not be computed. They are drafted again, so that one pass always
    /// computes a token and its drafts.
    pub(super) fn drop_drafts(&mut self) {
        let drafted = std::mem::take(&mut self.todo.drafted);
        self.todo.tokens.truncate(self.todo.tokens.len() - drafted);
    }

    /// Draws a token after each token of a pass with `logits`, `[tokens, n_vocab]`. It stops at the
    /// first token that differs from its draft, which is queued to be computed next. Later drafts
    /// are dropped and never recorded.
    pub(super) fn accept_drafts(
        &mut self,
        logits: &[f32],
        context: &mut SessionContext,
        events: &EventSender,
        started: Instant,
        adaptation: &HotSetAdaptation,
        meter: &mut Meter<'_>,
    ) -> Result<Option<StopReason>> {
        let drafted = std::mem::take(&mut self.todo.drafted);
        let first = context.tokens().len() - drafted;
        let drafts: SmallVec<[u32; 16]> = context.tokens()[first..].iter().copied().collect();
        let (mut accepted, mut end) = (0, None);
        for (at, logits) in logits.chunks_exact(logits.len() / (1 + drafted)).enumerate() {
            let id = self.chooser.sampler.sample(logits, &context.tokens()[..first + at])?;
            let logprobs = self.chooser.logprobs.map(|it| TokenLogprobs::new(logits, id, it.top)).transpose()?;
            end = self.accept(id, logprobs, events);
            if end.is_some() || drafts.get(at) != Some(&id) || self.todo.tokens.len() > 1 {
                break;
            }
            accepted += 1;
        }
        context.truncate(first + accepted);
        meter.neurons().end_draft(1 + accepted);
        if self.recorded {
            adaptation.record_draft(&self.draft_masks, 1 + accepted);
        }
        self.progress.stats.drafted_tokens += drafted;
        self.progress.stats.accepted_tokens += accepted;
        let time = started.elapsed();
        if let Some(speculation) = &mut self.speculation {
            speculation.note_draft(drafted, accepted, time);
        }
        self.progress.update(false, 1 + accepted, true, time, context, meter);
        let listening = self.progress.report(events);
        Ok(end.or((!listening).then_some(StopReason::Cancelled)))
    }
}
