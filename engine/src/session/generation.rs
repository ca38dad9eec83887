//! One generation, computed in steps.

mod batched;
mod step;
#[cfg(test)]
mod tests;

use std::{
    sync::atomic::AtomicU64,
    time::{Duration, Instant},
};

use smallvec::SmallVec;

use super::{
    ChatOptions, ContextPolicy, Event, GenerationStats, LogprobsRequest, Prompt, Request, SpeculationMode, StopReason,
    TokenLogprobs,
    chat_history::ChatHistory,
    context::Context,
    embedding::PooledStates,
    encoded_prompt::{EncodedPrompt, FittedPrompt, encode_to_fit, end_of_thoughts},
    engine::EngineState,
    ffn_reads::FfnSize,
    neurons::HotSetAdaptation,
    request::EventSender,
    sampling::{Breakers, GrammarState, Sampler},
    speculation::Speculation,
    step_times::StepTimes,
    stop_strings::StopStrings,
    text::{TextStream, TokenOutcome},
};
use crate::{
    error::{Error, Result},
    runtime::{Forward, Sparsity},
    telemetry::{Meter, neurons::DraftMasks},
    tokenizer::{EncodeOptions, Tokenizer, tools::CallSplitter},
};

/// Shortest time between two [`Event::Stats`].
const STATS_INTERVAL: Duration = Duration::from_millis(250);

/// Most logits computed at once for a prompt's log probabilities: 32 MiB of them.
const LOGITS_OF_CHUNK: usize = 8 << 20;

/// A request being carried out. A step computes a chunk of what is to be computed; when nothing is left of that, it
/// chooses a token, which is then what is to be computed.
#[derive(Debug)]
pub(super) struct Generation<'a> {
    tokenizer: &'a Tokenizer,
    session: u64,
    number: u64,
    chunk: usize,
    max_tokens: Option<usize>,
    on_full: ContextPolicy,
    /// The chat, if its oldest turns may be forgotten.
    history: Option<ChatHistory<'a>>,
    ignore_eos: bool,
    logprobs: Option<LogprobsRequest>,
    n_vocab: usize,
    sampler: Sampler,
    grammar: Option<GrammarState>,
    /// Logits that the grammar has changed.
    masked: Vec<f32>,
    text: TextStream<'a>,
    /// Most tokens of thoughts, and those that end thoughts and begin the answer.
    thought_budget: Option<(usize, Vec<u32>)>,
    /// The embedding of the prompt, if that is what is wanted.
    pooled: Option<PooledStates>,
    /// True if its tokens are recorded.
    recorded: bool,
    /// The passes in which there may be drafts.
    drafts: SpeculationMode,
    /// Drafts of the tokens to come.
    speculation: Option<Speculation>,
    /// Tokens to compute, and the number of them that are computed.
    todo: Vec<u32>,
    computed: usize,
    /// Number of tokens at the end of those to compute that are drafts.
    drafted: usize,
    /// Firings of a pass with drafts, until adaptation counts those of the drawn ones.
    draft_masks: DraftMasks,
    /// Steps that computed one token, and their time.
    single_steps: (usize, Duration),
    /// Times of the steps of the token that was computed last, if it was timed.
    step_times: StepTimes,
    ffn_sizes: &'a [FfnSize],
    requested_at: Instant,
    reported_at: Instant,
    stats: GenerationStats,
}

/// Resources of a step: a generation computes with them, and tells of it.
pub(super) struct StepResources<'s, 'm> {
    pub forward: &'s mut Forward,
    pub events: &'s EventSender,
    /// Requests of the session below this number are cancelled.
    pub cancelled: &'s AtomicU64,
    pub adaptation: &'s HotSetAdaptation,
    pub meter: &'s mut Meter<'m>,
}

impl<'a> Generation<'a> {
    /// Checks and tokenises `request`, and makes `context` forget what is not part of its prompt.
    pub fn new(
        state: &'a EngineState,
        session: u64,
        number: u64,
        request: Request,
        requested_at: Instant,
        context: &mut Context,
    ) -> Result<Self> {
        let tokenizer = &state.tokenizer;
        let vocab = state.model.config.n_vocab;
        check(&request, context, vocab)?;
        let sampler = Sampler::new(&request.sampling, vocab, breakers_of(state, &request))?;

        let grammar = request.grammar.as_ref().map(|grammar| state.compile_grammar(grammar)).transpose()?;
        let stops = stops_of(state, &request);
        let calls = calls_of(state, &request.chat);
        // An embedding is of a whole text; every other prompt is continued.
        let options = if request.embedding.is_some() { EncodeOptions::WHOLE } else { EncodeOptions::CHAT };
        let FittedPrompt { encoded, forgotten_tokens, history } =
            encode_to_fit(state, request.prompt, &request.chat, options, request.on_full, context.capacity())?;
        let EncodedPrompt { tokens: mut todo, starts_text, parser } = encoded;
        let detokeniser = if starts_text { tokenizer.stream().at_text_start() } else { tokenizer.stream() };
        let thought_budget = match (request.thought_budget, &parser) {
            (Some(budget), Some(_)) => Some((budget, end_of_thoughts(state)?)),
            _ => None,
        };
        let text = TextStream::new(detokeniser, stops, parser).with_calls(calls, state.template.tools().tokens());
        // Every place of the prompt is computed where its log probabilities or its hidden states are wanted.
        let reads_prompt = request.embedding.is_some() || request.logprobs.is_some_and(|it| it.prompt);
        let reused = context.reuse(if reads_prompt { &[] } else { &todo });
        state.telemetry.reused_tokens.add(reused as u64);
        let stats = GenerationStats {
            prompt_tokens: todo.len(),
            reused_tokens: reused,
            context_used: context.tokens().len(),
            context_length: context.capacity(),
            forgotten_tokens,
            forgotten_turns: history.as_ref().map_or(0, ChatHistory::forgotten),
            seed: sampler.seed(),
            ..GenerationStats::default()
        };
        let drafts = request.speculation;
        let looks_up = drafts != SpeculationMode::Off && grammar.is_none() && !state.model.config.is_recurrent();
        let speculation = looks_up.then(|| Speculation::new(&todo));
        todo.drain(..reused);
        Ok(Generation {
            tokenizer,
            session,
            number,
            chunk: state.chunk,
            max_tokens: request.max_tokens,
            on_full: request.on_full,
            history,
            ignore_eos: request.ignore_eos,
            logprobs: request.logprobs,
            n_vocab: vocab,
            sampler,
            grammar,
            masked: Vec::new(),
            text,
            thought_budget,
            pooled: request.embedding.map(|pooling| PooledStates::new(pooling, state.model.config.d_model)),
            recorded: request.recorded,
            drafts,
            speculation,
            todo,
            computed: 0,
            drafted: 0,
            draft_masks: DraftMasks::default(),
            single_steps: (0, Duration::ZERO),
            step_times: StepTimes::default(),
            ffn_sizes: &state.ffn_sizes,
            requested_at,
            reported_at: Instant::now(),
            stats,
        })
    }

    /// True before the first token is chosen.
    pub fn in_prompt(&self) -> bool {
        self.stats.generated_tokens == 0
    }

    /// Chooses a token by `logits`, `[n_vocab]`.
    fn choose(&mut self, logits: &[f32], context: &Context) -> Result<(u32, Option<TokenLogprobs>)> {
        let id = match self.grammar.as_mut().filter(|_| self.text.is_answering()) {
            Some(grammar) => {
                self.masked.clear();
                self.masked.extend_from_slice(logits);
                grammar.apply(&mut self.masked)?;
                let id = self.sampler.sample(&self.masked, context.tokens())?;
                if !self.tokenizer.is_end(id) {
                    grammar.accept(id)?;
                }
                id
            }
            None => self.sampler.sample(logits, context.tokens())?,
        };
        Ok((id, self.logprobs.map(|it| TokenLogprobs::new(logits, id, it.top)).transpose()?))
    }

    /// Ends with a chosen token, or sends it.
    fn accept(
        &mut self,
        id: u32,
        logprobs: Option<TokenLogprobs>,
        events: &EventSender,
        meter: &Meter<'_>,
    ) -> Option<StopReason> {
        match self.tokenizer.is_end(id) && !self.ignore_eos {
            true => Some(StopReason::EndOfText),
            false => self.send_token(id, logprobs, events, meter),
        }
    }

    /// The most tokens of a pass with drafts; 1 if there are none.
    fn longest_draft_pass(&self, forward: &Forward) -> usize {
        let skips_inputs = forward.model().weights.input_level.is_some() && forward.sparsity() != Sparsity::Dense;
        let approximates = skips_inputs || !matches!(forward.sparsity(), Sparsity::Dense | Sparsity::Exact);
        match self.drafts {
            // In other passes of several tokens a device skips nothing.
            SpeculationMode::PromptLookup if !approximates => usize::MAX,
            SpeculationMode::SameBits | SpeculationMode::PromptLookup => forward.same_bits(),
            SpeculationMode::Off => 1,
        }
    }

    /// Drafts tokens behind the one to compute, where there is room for them.
    fn add_draft(&mut self, context: &Context, forward: &Forward) {
        let longest = self.longest_draft_pass(forward);
        let Some(speculation) = self.speculation.as_mut().filter(|_| longest > 1) else { return };
        let left = self.max_tokens.map_or(usize::MAX, |most| most.saturating_sub(self.stats.generated_tokens));
        let room = context.room().min(left).min(self.chunk).min(forward.chunk()).min(longest).saturating_sub(1);
        speculation.draft(room, &mut self.todo);
        self.drafted = self.todo.len() - 1;
    }

    /// Takes back drafts that could not be computed. They are drafted anew, so that a token and its drafts are always one pass.
    fn drop_drafts(&mut self) {
        let drafted = std::mem::take(&mut self.drafted);
        self.todo.truncate(self.todo.len() - drafted);
    }

    /// Draws a token behind each token of a pass, `logits` being `[tokens, n_vocab]`, until one is not the draft, which is then to be
    /// computed next. Drafts behind are forgotten, and recorded nowhere.
    fn accept_drafts(
        &mut self,
        logits: &[f32],
        context: &mut Context,
        events: &EventSender,
        started: Instant,
        adaptation: &HotSetAdaptation,
        meter: &mut Meter<'_>,
    ) -> Result<Option<StopReason>> {
        let drafted = std::mem::take(&mut self.drafted);
        let first = context.tokens().len() - drafted;
        let drafts: SmallVec<[u32; 16]> = context.tokens()[first..].iter().copied().collect();
        let (mut accepted, mut end) = (0, None);
        for (at, logits) in logits.chunks_exact(logits.len() / (1 + drafted)).enumerate() {
            let id = self.sampler.sample(logits, &context.tokens()[..first + at])?;
            let logprobs = self.logprobs.map(|it| TokenLogprobs::new(logits, id, it.top)).transpose()?;
            end = self.accept(id, logprobs, events, meter);
            if end.is_some() || drafts.get(at) != Some(&id) || self.todo.len() > 1 {
                break;
            }
            accepted += 1;
        }
        context.truncate(first + accepted);
        meter.neurons().end_draft(1 + accepted);
        if self.recorded {
            adaptation.record_draft(&self.draft_masks, 1 + accepted);
        }
        self.stats.drafted_tokens += drafted;
        self.stats.accepted_tokens += accepted;
        let time = started.elapsed();
        if let Some(speculation) = &mut self.speculation {
            speculation.note_draft(drafted, accepted, time);
        }
        self.update_stats(false, 1 + accepted, true, time, context, meter);
        let listening = self.report_stats(events);
        Ok(end.or((!listening).then_some(StopReason::Cancelled)))
    }

    /// Ends the generation: sends the text that is left and returns the last event.
    pub fn finish(mut self, end: Result<StopReason>, context: &Context, events: &EventSender) -> Event {
        let stop = self.text.finish(matches!(end, Ok(StopReason::EndOfText)), events);
        self.stats.context_used = context.tokens().len();
        match end {
            Ok(reason) => Event::Done { reason: stop.unwrap_or(reason), stats: self.stats },
            Err(error) => Event::Error(error),
        }
    }

    /// True if the model is thinking and may not think any longer.
    fn spent_thoughts(&self) -> bool {
        let spent = |(budget, _): &(usize, Vec<u32>)| self.stats.thought_tokens >= *budget;
        self.text.is_thinking() && self.thought_budget.as_ref().is_some_and(spent)
    }

    /// Ends the thoughts in the model's stead: sends the tokens that do, which are computed next, behind what is to be computed.
    fn end_thoughts(&mut self, events: &EventSender, meter: &Meter<'_>) -> Option<StopReason> {
        let (_, ids) = self.thought_budget.take()?;
        let mut todo = self.todo.split_off(self.computed);
        let mut end = None;
        for id in ids {
            todo.push(id);
            end = self.send_one(id, None, events, meter);
            if end.is_some() {
                break;
            }
        }
        (self.todo, self.computed) = (todo, 0);
        end
    }

    /// Sends a chosen token, which is to be computed next; behind it those that end thoughts, if it was the last of them.
    fn send_token(
        &mut self,
        id: u32,
        logprobs: Option<TokenLogprobs>,
        events: &EventSender,
        meter: &Meter<'_>,
    ) -> Option<StopReason> {
        let end = self.send_one(id, logprobs, events, meter);
        if end.is_none() && self.spent_thoughts() { self.end_thoughts(events, meter) } else { end }
    }

    fn send_one(
        &mut self,
        id: u32,
        logprobs: Option<TokenLogprobs>,
        events: &EventSender,
        meter: &Meter<'_>,
    ) -> Option<StopReason> {
        self.stats.generated_tokens += 1;
        self.stats.thought_tokens += usize::from(self.text.is_thinking());
        meter.telemetry().generated_tokens.add(1);
        if self.stats.generated_tokens == 1 {
            self.stats.time_to_first_token = self.requested_at.elapsed();
        }
        if let Some(speculation) = &mut self.speculation {
            speculation.push(id);
        }
        self.todo.clear();
        self.todo.push(id);
        self.computed = 0;
        match self.text.push(id, logprobs, events) {
            TokenOutcome::Stop(reason) => Some(reason),
            TokenOutcome::ReceiverGone => Some(StopReason::Cancelled),
            TokenOutcome::Sent => {
                let enough = self.max_tokens.is_some_and(|most| self.stats.generated_tokens >= most);
                enough.then_some(StopReason::MaxTokens)
            }
        }
    }

    /// Passes of one token so far, and their time.
    pub fn single_steps(&self) -> (usize, Duration) {
        self.single_steps
    }

    /// Times of the steps of the token that was computed last; `None` if it was not timed.
    pub fn step_times(&self) -> Option<&StepTimes> {
        Some(&self.step_times).filter(|times| !times.layers.is_empty())
    }

    fn add_time(&mut self, in_prompt: bool, time: Duration) {
        *if in_prompt { &mut self.stats.prompt_time } else { &mut self.stats.decode_time } += time;
    }

    fn update_stats(
        &mut self,
        in_prompt: bool,
        chunk: usize,
        complete: bool,
        time: Duration,
        context: &Context,
        meter: &mut Meter<'_>,
    ) {
        self.add_time(in_prompt, time);
        if in_prompt {
            meter.prompt(chunk, time);
        } else if complete {
            self.stats.decode_steps += chunk;
            meter.decode(chunk, 1, time);
        }
        self.stats.context_used = context.tokens().len();
        meter.context(context.tokens().len(), context.capacity());
    }

    fn report_prompt(&self, events: &EventSender) -> bool {
        let total = self.stats.prompt_tokens;
        events.send(Event::Prompt { done: total - (self.todo.len() - self.computed), total })
    }

    fn report_stats(&mut self, events: &EventSender) -> bool {
        if self.reported_at.elapsed() < STATS_INTERVAL {
            return true;
        }
        self.reported_at = Instant::now();
        events.send(Event::Stats(self.stats.clone()))
    }
}

/// The strings that end the answer to `request`.
fn stops_of(state: &EngineState, request: &Request) -> StopStrings {
    let turn_ends = match request.prompt {
        Prompt::Chat(_) | Prompt::Continue(_) => state.template.stop_strings(),
        Prompt::Text(_) | Prompt::Tokens(_) => &[],
    };
    StopStrings::new(request.stop.clone(), turn_ends)
}

/// The strings that break a repeat, if repeats are punished.
fn breakers_of(state: &EngineState, request: &Request) -> Breakers {
    if request.sampling.dry_multiplier <= 0.0 {
        return Breakers::default();
    }
    let tokenizer = &state.tokenizer;
    let encode = |text: &str| tokenizer.encode(text, EncodeOptions::PLAIN).unwrap_or_default();
    let vocab = state.model.config.n_vocab;
    Breakers::new(&request.sampling.dry_breakers, vocab, |id| tokenizer.token_bytes(id), encode)
}

/// The splitter of an answer in which tools may be called.
fn calls_of(state: &EngineState, chat: &ChatOptions) -> Option<CallSplitter> {
    let format = chat.call_format.as_ref().unwrap_or(state.template.tools());
    (!chat.tools.is_empty()).then(|| CallSplitter::new(format.clone(), &chat.tools))
}

/// Checks what can be checked before the prompt is encoded.
fn check(request: &Request, context: &Context, vocab: usize) -> Result<()> {
    if request.stop.iter().any(String::is_empty) {
        return Err(Error::invalid("stop", "strings of at least one character", "an empty one"));
    }
    if let ContextPolicy::Shift { keep } = request.on_full
        && keep >= context.capacity()
    {
        let expected = format!("fewer tokens than the context's {}", context.capacity());
        return Err(Error::invalid("keep", expected, keep));
    }
    request.sampling.validate(vocab)
}

/// The log probabilities of those of the prompt's tokens that `logits`, one row for each token from the one at `from` on, predict; with
/// the first row comes the prompt's first token.
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
