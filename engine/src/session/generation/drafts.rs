//! Drafts of a generation: tokens computed in advance, in one pass with the next token.

use std::time::Instant;

use super::{
    super::{
        DraftCounts, SpeculationMode, StopReason,
        context::SessionContext,
        drafter::Drafter,
        neurons::HotSetAdaptation,
        request::EventSender,
        speculation::{DraftPlan, DraftSource},
    },
    Generation, TokenQueue,
};
use thermocline_base::{error::Result, telemetry::Meter};
use thermocline_run::runtime::{Forward, MOST_PLANES, Sparsity};

impl Generation<'_> {
    /// True if passes of this request may have drafts.
    pub(super) fn may_draft(&self, forward: &Forward) -> bool {
        self.lookup.is_some() && self.longest_draft_pass(forward) > 1
    }

    /// Largest number of tokens in a pass with drafts; 1 without drafts.
    fn longest_draft_pass(&self, forward: &Forward) -> usize {
        let skips_inputs = forward.model().weights.input_level.is_some() && forward.sparsity() != Sparsity::Dense;
        let approximates = skips_inputs || !matches!(forward.sparsity(), Sparsity::Dense | Sparsity::Exact);
        match self.draft_mode {
            // In approximate modes a device skips nothing in longer passes.
            SpeculationMode::Always if !approximates => usize::MAX,
            SpeculationMode::SameBits | SpeculationMode::Always => forward.same_bits(),
            SpeculationMode::Off => 1,
        }
    }

    /// Appends drafts after the token to compute, if they are expected to pay and there is room for
    /// them in a pass of `most` tokens.
    pub(super) fn add_draft(
        &mut self,
        context: &mut SessionContext,
        most: usize,
        forward: &mut Forward,
        drafter: Option<&mut Drafter>,
    ) {
        self.todo.planned = None;
        let longest = self.longest_draft_pass(forward);
        let Some(lookup) = self.lookup.as_ref().filter(|_| longest > 1) else { return };
        let left = self.max_tokens.map_or(usize::MAX, |most| most.saturating_sub(self.progress.stats.generated_tokens));
        let planes = if context.is_recurrent() { 1 + MOST_PLANES } else { usize::MAX };
        let longest = longest.min(planes).min(forward.chunk());
        let room = context.room().min(left).min(most).min(longest).saturating_sub(1);
        lookup.find(&mut self.todo.tokens);
        self.cut_forbidden_drafts();
        let drafter = drafter.filter(|_| context.is_drafter_ready());
        let other = drafter.as_ref().map(|drafter| drafter.source());
        let plan = context.controller.plan(self.todo.tokens.len() - 1, other, room);
        // The context has to be able to forget the drafts that are rejected.
        let reserving = Instant::now();
        let kept = plan.map_or(0, |plan| context.reserve_separate(1 + plan.tokens) - 1);
        self.todo.reserving = reserving.elapsed();
        context.controller.note_reserving(self.todo.reserving);
        let Some(plan) = plan.filter(|_| kept > 0) else { return self.todo.tokens.truncate(1) };
        let started = Instant::now();
        let plan = DraftPlan { tokens: plan.tokens.min(kept), ..plan };
        match drafter {
            Some(drafter) if plan.source != DraftSource::Lookup => {
                self.todo.tokens.truncate(1);
                self.draft_by(context, forward, drafter, plan);
                self.cut_forbidden_drafts();
            }
            _ => self.todo.tokens.truncate(1 + plan.tokens),
        }
        self.todo.planned = Some(plan.source);
        (self.todo.drafted, self.todo.drafting) = (self.todo.tokens.len() - 1, started.elapsed());
    }

    /// Removes drafts that the grammar forbids, because they are never accepted.
    fn cut_forbidden_drafts(&mut self) {
        if let Some(grammar) = self.chooser.grammar.as_mut().filter(|_| self.text.is_answering()) {
            let allowed = grammar.allowed(&self.todo.tokens[1..]);
            self.todo.tokens.truncate(1 + allowed);
        }
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
        let (accepted, end) = self.draw_drafts(logits, &context.read_tokens(), first, events);
        context.truncate(first + accepted);
        meter.neurons().end_draft(1 + accepted);
        if self.recorded {
            adaptation.record_draft(&self.draft_masks, 1 + accepted, self.todo.pass_time());
        }
        let TokenQueue { drafting, .. } = self.todo;
        let source = self.todo.planned.take().unwrap_or(DraftSource::Lookup);
        self.progress.stats.drafts.add(source, DraftCounts { drafted, accepted });
        context.controller.note_pass(source, drafted, accepted, self.todo.pass_time(), drafting);
        let time = started.elapsed();
        self.progress.update(false, 1 + accepted, true, time, context, meter);
        let listening = self.progress.report(events);
        Ok(end?.or((!listening).then_some(StopReason::Cancelled)))
    }

    /// Draws a token after each of `tokens` from index `first - 1` on. All of them but the first
    /// are drafts. Returns the number of drafts that were drawn, and the reason if the generation
    /// has ended.
    ///
    /// Each token is drawn as without drafts, from the logits behind the tokens before it. These
    /// tokens also determine its penalties and the state of the grammar. It takes the sampler's
    /// next random number. Drafts thus change neither the text of a seed nor the distribution of
    /// texts.
    fn draw_drafts(
        &mut self,
        logits: &[f32],
        tokens: &[u32],
        first: usize,
        events: &EventSender,
    ) -> (usize, Result<Option<StopReason>>) {
        let mut accepted = 0;
        for logits in logits.chunks_exact(logits.len() / (1 + tokens.len() - first)) {
            let at = first + accepted;
            let (id, logprobs) = match self.choose(logits, &tokens[..at]) {
                Ok(chosen) => chosen,
                Err(error) => return (accepted, Err(error)),
            };
            let end = self.accept(id, logprobs, events);
            if end.is_some() || tokens.get(at) != Some(&id) || self.todo.tokens.len() > 1 {
                return (accepted, Ok(end));
            }
            accepted += 1;
        }
        (accepted, Ok(None))
    }
}
