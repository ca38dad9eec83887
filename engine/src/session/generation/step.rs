//! One step of a generation: computes the next tokens and chooses the token after them.

use std::{
    thread::ScopedJoinHandle,
    time::{Duration, Instant},
};

use super::{
    super::{
        ContextPolicy, Event, StopReason, TokenLogprobs,
        context::{ComputedLogits, SessionContext, WantedLogits},
        neurons::GenerationProbe,
        request::EventSender,
        step_times::StepTimes,
    },
    Generation, StepResources,
};
use thermocline_base::{
    error::{Error, Result},
    telemetry::Meter,
};
use thermocline_run::runtime::{Forward, Probe, RoutePreference, Sparsity};

/// Largest number of logits (32 MiB) computed at once for a prompt's log probabilities.
const LOGITS_OF_CHUNK: usize = 8 << 20;

/// The tokens that a step computes, from the front of the queue.
#[derive(Debug, Clone, Copy)]
struct StepChunk {
    len: usize,
    /// Number of queued tokens, including the chunk.
    rest: usize,
    in_prompt: bool,
    /// True if the chunk must end before the last token of the prompt.
    stops_before_last: bool,
    /// True if log probabilities of the prompt's tokens are requested.
    scores_prompt: bool,
}

impl StepChunk {
    /// True if the queue has no tokens after the chunk.
    fn is_last(&self) -> bool {
        self.len == self.rest
    }
}

impl Generation<'_> {
    /// Computes the next chunk, of at most `most` tokens, and chooses a token if the chunk was the
    /// last one. Returns the reason if the generation has ended.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if the request was cancelled.
    pub fn step(
        &mut self,
        context: &mut SessionContext,
        most: usize,
        resources: StepResources<'_, '_>,
    ) -> Result<Option<StopReason>> {
        let StepResources { forward, mut drafter, events, cancelled, adaptation, meter } = resources;
        // A processor that streams weights computes longer chunks.
        let most = most.min(self.chunk.max(forward.chunk()));
        let mut probe = GenerationProbe::new(cancelled, self.number);
        if probe.cancelled() {
            return Err(Error::Cancelled);
        }
        let in_prompt = self.in_prompt();
        if in_prompt && self.todo.computed == 0 && !self.report_prompt(events) {
            return Err(Error::Cancelled);
        }
        let started = Instant::now();
        if !context.is_settled(forward) {
            let settled = context.settle(forward, most, &mut probe);
            self.progress.add_time(in_prompt, started.elapsed());
            return settled.map(|()| None);
        }
        self.follows = drafter.is_some() && self.may_draft(forward) && !self.drafter_failed;
        self.follow(context, drafter.as_deref_mut(), &mut probe)?;
        (self.todo.begun, self.todo.drafting, self.todo.reserving) =
            (Some(Instant::now()), Duration::ZERO, Duration::ZERO);
        if !in_prompt && self.todo.drafted == 0 && self.todo.tokens.len() == 1 {
            self.add_draft(context, most, forward, drafter);
        }
        let chunk = self.next_chunk(context, most, forward);
        if chunk.len > context.room() {
            return self.make_room(context, forward);
        }
        // True only if the prompt has opened thoughts and the budget allows none.
        let spent_thoughts = self.spent_thoughts();
        let counted = self.recorded && adaptation.counts(in_prompt);
        let probe = if counted { probe.with_adaptation(adaptation) } else { probe };
        let routes = if in_prompt { RoutePreference::OFF } else { self.routes };
        forward.set_routes(routes);
        let pass_started = Instant::now();
        let computed = self.compute(chunk, context, forward, probe, meter);
        if self.todo.drafted == 0 && counted {
            adaptation.record_tokens(chunk.len, pass_started.elapsed());
        }
        let computed = computed.inspect_err(|_| self.drop_drafts())?;
        if !self.report_computed(chunk, &computed, context, events)? {
            return Err(Error::Cancelled);
        }
        if self.todo.drafted > 0
            && let ComputedLogits::Logits(logits) = computed
        {
            return self.accept_drafts(logits, context, events, started, adaptation, meter);
        }
        let goes_on = chunk.is_last() && self.max_tokens != Some(0) && self.pooled.is_none();
        let ends_thoughts = goes_on && spent_thoughts;
        let chosen = if goes_on && !ends_thoughts { self.choose_next(computed, context)? } else { None };
        if chunk.stops_before_last && self.todo.rest().len() == 1 {
            context.take_snapshot();
        }
        let end = match chosen {
            None if ends_thoughts => self.end_thoughts(events),
            Some((id, logprobs)) => self.accept(id, logprobs, events),
            None => chunk.is_last().then_some(StopReason::MaxTokens),
        };
        let time = started.elapsed();
        if !in_prompt && chunk.rest == 1 {
            self.progress.single_steps.0 += 1;
            self.progress.single_steps.1 += time;
            match self.todo.planned.take() {
                // The source had no drafts.
                Some(source) => {
                    context.controller.note_pass(source, 0, 0, self.todo.pass_time(), self.todo.drafting);
                }
                None => context.controller.note_single(self.todo.pass_time()),
            }
        }
        self.progress.update(in_prompt, chunk.len, chunk.is_last(), time, context, meter);
        let listening = if in_prompt && end.is_none() && self.progress.stats.generated_tokens == 0 {
            self.report_prompt(events)
        } else {
            self.progress.report(events)
        };
        Ok(end.or((!listening).then_some(StopReason::Cancelled)))
    }

    /// The tokens to compute next, at most `most`.
    fn next_chunk(&self, context: &SessionContext, most: usize, forward: &Forward) -> StepChunk {
        let (in_prompt, rest) = (self.in_prompt(), self.todo.rest().len());
        // Another answer computes the last token of a prompt again. Recurrent states are therefore
        // saved before it.
        let stops_before_last = in_prompt && rest > 1 && context.is_recurrent();
        let scores_prompt = in_prompt && self.chooser.logprobs.is_some_and(|it| it.prompt);
        let most = if scores_prompt { most.min((LOGITS_OF_CHUNK / self.n_vocab).max(1)) } else { most };
        let most = if self.whole { usize::MAX } else { most };
        let len = (rest - usize::from(stops_before_last)).min(most);
        let len = context.whole_chunk(forward, self.todo.rest(), len);
        StepChunk { len, rest, in_prompt, stops_before_last, scores_prompt }
    }

    /// Makes a full context forget tokens, or ends the generation, as the request demands.
    fn make_room(&mut self, context: &mut SessionContext, forward: &Forward) -> Result<Option<StopReason>> {
        let ContextPolicy::Shift { keep } = self.on_full else { return Ok(Some(StopReason::ContextFull)) };
        let held = context.tokens().len();
        let mut again = match &mut self.history {
            None => context.shift(forward.isa(), keep),
            Some(history) => {
                let wanted = history.make_room(context.tokens(), context.capacity())?;
                let Some(wanted) = wanted else { return Ok(Some(StopReason::ContextFull)) };
                self.progress.stats.forgotten_turns = history.forgotten;
                context.shorten(forward.isa(), &wanted)
            }
        };
        self.progress.stats.forgotten_tokens += held - context.tokens().len() - again.len();
        again.extend(self.todo.rest());
        self.todo.replace(again);
        Ok(None)
    }

    /// The logits to compute for a chunk.
    fn wanted_logits(&mut self, chunk: StepChunk, context: &SessionContext) -> WantedLogits {
        if let Some(pooled) = &self.pooled {
            WantedLogits::Hidden { second_at: pooled.second_at.map(|at| at.saturating_sub(self.todo.computed)) }
        } else if chunk.scores_prompt {
            WantedLogits::EveryLogits
        } else if !chunk.is_last() || self.max_tokens == Some(0) {
            WantedLogits::Nothing
        } else if self.todo.drafted > 0 {
            WantedLogits::DraftLogits
        } else if context.on_device() && self.chooser.grammar.is_none() && self.chooser.logprobs.is_none() {
            // Reading back all logits is slow.
            let tokens = context.read(&self.todo.rest()[..chunk.len]);
            let shortlist = self.chooser.sampler.shortlist(&context.read_tokens(), &tokens);
            shortlist.map_or(WantedLogits::Logits, WantedLogits::Shortlist)
        } else {
            WantedLogits::Logits
        }
    }

    /// Computes a chunk, and the mask of the tokens that may follow it if a grammar applies.
    fn compute<'f>(
        &mut self,
        chunk: StepChunk,
        context: &mut SessionContext,
        forward: &'f mut Forward,
        probe: GenerationProbe<'_>,
        meter: &mut Meter<'_>,
    ) -> Result<ComputedLogits<'f>> {
        let wanted = self.wanted_logits(chunk, context);
        let tokens = &self.todo.rest()[..chunk.len];
        let collects_states = self.collects_states(context);
        let neurons = meter.neurons();
        let position = context.tokens().len();
        let mut probe = probe;
        self.states.clear();
        if collects_states {
            probe.states = Some(&mut self.states);
        }
        if self.todo.drafted > 0 {
            self.draft_masks.clear();
            probe.draft = Some(&mut self.draft_masks);
        }
        if self.recorded {
            match self.todo.drafted {
                0 => neurons.begin_each(context.begun(self.session, tokens), !chunk.in_prompt),
                _ => neurons.begin_draft(self.session, position, tokens),
            }
            probe = probe.with_recorder(neurons);
        }
        let (before, dense) = (self.progress.stats.ffn.dense_bytes, forward.sparsity() == Sparsity::Dense);
        self.progress.step_times.clear();
        if !chunk.in_prompt && chunk.rest == 1 && StepTimes::are_due(self.progress.single_steps.0) {
            probe.times = Some(&mut self.progress.step_times);
        }
        if !chunk.in_prompt && chunk.len == 1 {
            probe.reads = Some((self.ffn_sizes, &mut self.progress.stats.ffn, dense));
            probe.only_reads = !self.recorded;
        }
        let mut grammar = self.chooser.grammar.as_mut().filter(|_| chunk.is_last() && self.text.is_answering());
        let (computed, masked) = std::thread::scope(|scope| {
            // Both the mask and the logits depend on the tokens so far, so they are computed at
            // once.
            let mask = grammar.as_mut().map(|grammar| scope.spawn(|| grammar.compute_mask()));
            let computed = context.compute(forward, tokens, wanted, &mut probe);
            (computed, mask.map(ScopedJoinHandle::join))
        });
        // Drafts are recorded once the accepted ones are known.
        if self.todo.drafted == 0 || computed.is_err() {
            meter.neurons().end();
        }
        self.progress.stats.ffn.tokens += usize::from(self.progress.stats.ffn.dense_bytes > before);
        let computed = computed?;
        context.add_states(chunk.len, &self.states);
        match masked {
            None => {}
            Some(Ok(mask)) => mask?,
            Some(Err(_)) => return Err(Error::invalid("grammar", "a mask of the allowed next tokens", "a failure")),
        }
        Ok(computed)
    }

    /// Sends the requested log probabilities or embedding of the prompt, and counts the chunk as
    /// computed. False if the receiver is gone.
    fn report_computed(
        &mut self,
        chunk: StepChunk,
        computed: &ComputedLogits<'_>,
        context: &SessionContext,
        events: &EventSender,
    ) -> Result<bool> {
        if let ComputedLogits::Logits(logits) = computed
            && chunk.scores_prompt
        {
            let top = self.chooser.logprobs.map_or(0, |it| it.top);
            let prompt = context.read(&self.todo.tokens);
            let logprobs = score_prompt(&prompt, self.todo.computed, logits.chunks_exact(self.n_vocab), top)?;
            if !logprobs.is_empty() && !events.send(Event::PromptLogprobs(logprobs)) {
                return Ok(false);
            }
        }
        self.todo.computed += chunk.len;
        if let Some(pooled) = &mut self.pooled
            && let ComputedLogits::Hidden(states) = computed
        {
            pooled.add(states);
            return Ok(!chunk.is_last() || events.send(Event::Embedding(pooled.answer()?)));
        }
        Ok(true)
    }

    /// Chooses a token from the computed logits; `None` without logits.
    fn choose_next(
        &mut self,
        computed: ComputedLogits<'_>,
        context: &SessionContext,
    ) -> Result<Option<(u32, Option<TokenLogprobs>)>> {
        match computed {
            ComputedLogits::Nothing | ComputedLogits::Hidden(_) => Ok(None),
            ComputedLogits::Logits(logits) => {
                self.choose(&logits[logits.len() - self.n_vocab..], &context.read_tokens()).map(Some)
            }
            ComputedLogits::Shortlist(shortlist) => {
                Ok(Some((self.chooser.sampler.sample_from(shortlist, &context.read_tokens())?, None)))
            }
        }
    }
}

/// Log probabilities of the prompt's tokens. `logits` has one row for each token from index `from`
/// on, and each row predicts the next token. If `from` is 0, the result begins with the first
/// token, which no row predicts.
fn score_prompt<'l>(
    prompt: &[u32],
    from: usize,
    logits: impl Iterator<Item = &'l [f32]>,
    top: usize,
) -> Result<Vec<TokenLogprobs>> {
    let first = prompt.first().filter(|_| from == 0).map(|&id| Ok(TokenLogprobs::unpredicted(id)));
    let predicted = prompt.iter().skip(from + 1).zip(logits);
    first.into_iter().chain(predicted.map(|(&id, logits)| TokenLogprobs::new(logits, id, top))).collect()
}
