//! One generation, computed in steps.

mod batched;
mod drafts;
mod following;
mod pictures;
mod step;
#[cfg(test)]
mod tests;

use std::{
    sync::atomic::AtomicU64,
    time::{Duration, Instant},
};

use super::{
    ChatOptions, ContextPolicy, Event, GenerationStats, LogprobsRequest, Prompt, Request, SpeculationMode, StopReason,
    TokenLogprobs,
    chat_history::ChatHistory,
    context::SessionContext,
    drafter::Drafter,
    embedding::{PooledStates, check_purpose},
    encoded_prompt::{EncodedPrompt, FittedPrompt, encode_to_fit, end_of_thoughts},
    engine_state::EngineState,
    ffn_reads::FfnSize,
    generation_progress::GenerationProgress,
    neurons::HotSetAdaptation,
    request::EventSender,
    sampling::{Breakers, GrammarState, Sampler},
    speculation::{DraftSource, PromptLookup},
    step_times::StepTimes,
    stop_strings::StopStrings,
    text::{TextStream, TokenOutcome},
};
use thermocline_base::{
    error::{Error, Result},
    telemetry::{Meter, Telemetry, neurons::DraftMasks},
};
use thermocline_run::runtime::{Forward, RoutePreference};
use thermocline_text::{EncodeOptions, Tokenizer, tools::CallSplitter};

/// A request in progress. Each step computes a chunk of the queued tokens. Once no tokens are left,
/// the step chooses a token, which becomes the new queue.
#[derive(Debug)]
pub(super) struct Generation<'a> {
    tokenizer: &'a Tokenizer,
    telemetry: &'a Telemetry,
    session: u64,
    number: u64,
    chunk: usize,
    n_vocab: usize,
    /// True if the prompt is computed in one pass, because its tokens read later tokens too.
    whole: bool,
    ffn_sizes: &'a [FfnSize],
    max_tokens: Option<usize>,
    on_full: ContextPolicy,
    ignore_eos: bool,
    /// Largest number of thought tokens, and the tokens that close the thoughts and begin the
    /// answer.
    thought_budget: Option<(usize, Vec<u32>)>,
    /// The chat, if its oldest turns may be forgotten.
    history: Option<ChatHistory<'a>>,
    chooser: Chooser,
    text: TextStream<'a>,
    /// Pooled states for the embedding of the prompt; `None` if no embedding is requested.
    pooled: Option<PooledStates<'a>>,
    /// True if the request's tokens are recorded.
    pub(super) recorded: bool,
    /// Which passes may contain drafts.
    draft_mode: SpeculationMode,
    /// Finds drafts in the text; `None` if the generation has no drafts.
    lookup: Option<PromptLookup>,
    /// Firings of a pass with drafts, held until adaptation counts the accepted tokens.
    draft_masks: DraftMasks,
    /// Hidden states of the latest pass, `[tokens, d_model]`, for a draft head.
    states: Vec<f32>,
    /// Preference of routers for resident experts. It is frozen for an answer with a given seed.
    pub(super) routes: RoutePreference,
    /// True if a drafter follows the generation.
    follows: bool,
    /// True if the drafter has failed in this generation.
    pub(super) drafter_failed: bool,
    todo: TokenQueue,
    pub(super) progress: GenerationProgress,
}

/// Chooses tokens from their logits.
#[derive(Debug)]
struct Chooser {
    sampler: Sampler,
    grammar: Option<GrammarState>,
    /// Logits with the grammar's mask applied.
    masked: Vec<f32>,
    logprobs: Option<LogprobsRequest>,
}

/// Tokens to compute.
#[derive(Debug)]
struct TokenQueue {
    tokens: Vec<u32>,
    /// Tokens at the beginning that are computed.
    computed: usize,
    /// Number of drafts at the end, the source that was to make them, and the time that it took.
    drafted: usize,
    planned: Option<DraftSource>,
    drafting: Duration,
    /// Time that making memory for the latest pass took. Later passes use this memory again.
    reserving: Duration,
    /// Beginning of the latest step, without the drafter's catching up.
    begun: Option<Instant>,
}

impl TokenQueue {
    /// The tokens that are not computed yet.
    fn rest(&self) -> &[u32] {
        &self.tokens[self.computed..]
    }

    /// Time of the latest pass, without the time of its drafts and of its memory.
    fn pass_time(&self) -> Duration {
        let all = self.begun.map_or(Duration::ZERO, |begun| begun.elapsed());
        all.saturating_sub(self.drafting + self.reserving)
    }

    fn replace(&mut self, tokens: Vec<u32>) {
        (self.tokens, self.computed) = (tokens, 0);
    }
}

/// The parts that a generation uses in a step, and its receivers.
pub(super) struct StepResources<'s, 'm> {
    pub forward: &'s mut Forward,
    pub drafter: Option<&'s mut Drafter>,
    pub events: &'s EventSender,
    /// Requests of the session below this number are cancelled.
    pub cancelled: &'s AtomicU64,
    pub adaptation: &'s HotSetAdaptation,
    pub meter: &'s mut Meter<'m>,
}

impl<'a> Generation<'a> {
    /// Checks and tokenises `request`, and removes from `context` all tokens that its prompt does
    /// not start with.
    pub fn new(
        state: &'a EngineState,
        session: u64,
        number: u64,
        request: Request,
        requested_at: Instant,
        context: &mut SessionContext,
    ) -> Result<Self> {
        let tokenizer = &state.text.tokenizer;
        let vocab = state.model.config.n_vocab;
        check_purpose(&state.model, request.reading)?;
        check(&request, context, vocab)?;
        let sampler = Sampler::new(&request.sampling, vocab, breakers_of(state, &request))?;

        let grammar = request.grammar.as_ref().map(|grammar| state.compile_grammar(grammar)).transpose()?;
        let stops = stops_of(state, &request);
        let calls = calls_of(state, &request.chat);
        // An embedding encodes a complete text; a generation continues its prompt.
        let options = if request.reading.is_some() { EncodeOptions::WHOLE } else { EncodeOptions::CHAT };
        let FittedPrompt { encoded, forgotten_tokens, history } =
            encode_to_fit(state, request.prompt, &request.chat, options, request.on_full, context.capacity())?;
        let EncodedPrompt { tokens: mut todo, starts_text, parser, pictures, second_at } = encoded;
        let detokeniser = if starts_text { tokenizer.stream().at_text_start() } else { tokenizer.stream() };
        let thought_budget = match (request.thought_budget, &parser) {
            (Some(budget), Some(_)) => Some((budget, end_of_thoughts(state)?)),
            _ => None,
        };
        let text = TextStream::new(detokeniser, stops, parser).with_calls(calls, state.text.template.tools().tokens());
        // Log probabilities and hidden states of the prompt require computing every prompt token.
        let reads_prompt = request.reading.is_some() || request.logprobs.is_some_and(|it| it.prompt);
        let reused = context.reuse(if reads_prompt { &[] } else { &todo });
        context.add_pictures(pictures);
        state.figures.telemetry.reused_tokens.add(reused as u64);
        let stats = GenerationStats {
            prompt_tokens: todo.len(),
            reused_tokens: reused,
            context_used: context.tokens().len(),
            context_length: context.capacity(),
            forgotten_tokens,
            forgotten_turns: history.as_ref().map_or(0, |history| history.forgotten),
            seed: sampler.seed(),
            ..GenerationStats::default()
        };
        context.controller.fix(request.drafts);
        let generates = request.max_tokens.is_none_or(|most| most > 1) && request.reading.is_none();
        let drafts = generates && request.speculation != SpeculationMode::Off;
        let lookup = drafts.then(|| PromptLookup::new(&todo));
        todo.drain(..reused);
        Ok(Generation {
            tokenizer,
            telemetry: &state.figures.telemetry,
            session,
            number,
            chunk: state.chunk,
            n_vocab: vocab,
            whole: state.model.config.is_encoder(),
            ffn_sizes: &state.figures.ffn_sizes,
            max_tokens: request.max_tokens,
            on_full: request.on_full,
            ignore_eos: request.ignore_eos,
            thought_budget,
            history,
            chooser: Chooser { sampler, grammar, masked: Vec::new(), logprobs: request.logprobs },
            text,
            pooled: request.reading.map(|reading| PooledStates::new(state, reading, second_at)),
            recorded: request.recorded,
            draft_mode: request.speculation,
            lookup,
            draft_masks: DraftMasks::default(),
            states: Vec::new(),
            routes: RoutePreference { frozen: request.sampling.seed.is_some(), ..state.routes },
            follows: false,
            drafter_failed: false,
            todo: TokenQueue {
                tokens: todo,
                computed: 0,
                drafted: 0,
                planned: None,
                drafting: Duration::ZERO,
                reserving: Duration::ZERO,
                begun: None,
            },
            progress: GenerationProgress::new(requested_at, stats),
        })
    }

    /// True if the answer depends on the experts that are resident. They stay until it ends.
    pub fn holds_experts(&self) -> bool {
        self.routes.frozen && !self.routes.is_off()
    }

    /// True before the first token is chosen.
    pub fn in_prompt(&self) -> bool {
        self.progress.stats.generated_tokens == 0
    }

    /// Chooses a token from `logits`, `[n_vocab]`. It follows the tokens `before`.
    fn choose(&mut self, logits: &[f32], before: &[u32]) -> Result<(u32, Option<TokenLogprobs>)> {
        let Chooser { sampler, grammar, masked, logprobs } = &mut self.chooser;
        let id = match grammar.as_mut().filter(|_| self.text.is_answering()) {
            Some(grammar) => {
                masked.clear();
                masked.extend_from_slice(logits);
                grammar.apply(masked)?;
                let id = sampler.sample(masked, before)?;
                if !self.tokenizer.is_end(id) {
                    grammar.accept(id)?;
                }
                id
            }
            None => sampler.sample(logits, before)?,
        };
        Ok((id, logprobs.map(|it| TokenLogprobs::new(logits, id, it.top)).transpose()?))
    }

    /// Ends the generation if `id` is an end token. Otherwise sends the token and queues it for
    /// computing. If that exhausts the thought budget, the tokens that close the thoughts follow
    /// it.
    fn accept(&mut self, id: u32, logprobs: Option<TokenLogprobs>, events: &EventSender) -> Option<StopReason> {
        if self.tokenizer.is_end(id) && !self.ignore_eos {
            return Some(StopReason::EndOfText);
        }
        let end = self.send_one(id, logprobs, events);
        if end.is_none() && self.spent_thoughts() { self.end_thoughts(events) } else { end }
    }

    /// Ends the generation: sends the remaining text and returns the last event.
    pub fn finish(mut self, end: Result<StopReason>, context: &SessionContext, events: &EventSender) -> Event {
        let stop = self.text.finish(matches!(end, Ok(StopReason::EndOfText)), events);
        self.progress.stats.context_used = context.tokens().len();
        match end {
            Ok(reason) => Event::Done { reason: stop.unwrap_or(reason), stats: self.progress.stats },
            Err(error) => Event::Error(error),
        }
    }

    /// True if the model is thinking and has used up its thought budget.
    fn spent_thoughts(&self) -> bool {
        let spent = |(budget, _): &(usize, Vec<u32>)| self.progress.stats.thought_tokens >= *budget;
        self.text.is_thinking() && self.thought_budget.as_ref().is_some_and(spent)
    }

    /// Closes the thoughts for the model. Sends the closing tokens and queues them after the tokens
    /// that are still to be computed.
    fn end_thoughts(&mut self, events: &EventSender) -> Option<StopReason> {
        let (_, ids) = self.thought_budget.take()?;
        let mut todo = self.todo.rest().to_vec();
        let mut end = None;
        for id in ids {
            todo.push(id);
            end = self.send_one(id, None, events);
            if end.is_some() {
                break;
            }
        }
        self.todo.replace(todo);
        end
    }

    fn send_one(&mut self, id: u32, logprobs: Option<TokenLogprobs>, events: &EventSender) -> Option<StopReason> {
        self.progress.stats.generated_tokens += 1;
        self.progress.stats.thought_tokens += usize::from(self.text.is_thinking());
        self.telemetry.generated_tokens.add(1);
        if self.progress.stats.generated_tokens == 1 {
            self.progress.stats.time_to_first_token = self.progress.requested_at.elapsed();
        }
        if let Some(lookup) = &mut self.lookup {
            lookup.push(id);
        }
        self.todo.tokens.clear();
        self.todo.tokens.push(id);
        self.todo.computed = 0;
        match self.text.push(id, logprobs, events) {
            TokenOutcome::Stop(reason) => Some(reason),
            TokenOutcome::ReceiverGone => Some(StopReason::Cancelled),
            TokenOutcome::Sent => {
                let enough = self.max_tokens.is_some_and(|most| self.progress.stats.generated_tokens >= most);
                enough.then_some(StopReason::MaxTokens)
            }
        }
    }

    /// Step times of the latest token; `None` if it was not timed.
    pub fn step_times(&self) -> Option<&StepTimes> {
        Some(&self.progress.step_times).filter(|times| !times.layers.is_empty())
    }

    fn report_prompt(&self, events: &EventSender) -> bool {
        let total = self.progress.stats.prompt_tokens;
        events.send(Event::Prompt { done: total - self.todo.rest().len(), total })
    }
}

/// The strings that end the answer to `request`.
fn stops_of(state: &EngineState, request: &Request) -> StopStrings {
    let turn_ends = match request.prompt {
        Prompt::Chat(_) | Prompt::Continue(_) => state.text.template.stop_strings(),
        Prompt::Text(_) | Prompt::Tokens(_) | Prompt::Pair { .. } => &[],
    };
    StopStrings::new(request.stop.clone(), turn_ends)
}

/// The DRY breakers of `request`; none if DRY is off.
fn breakers_of(state: &EngineState, request: &Request) -> Breakers {
    if request.sampling.dry_multiplier <= 0.0 {
        return Breakers::default();
    }
    let tokenizer = &state.text.tokenizer;
    let encode = |text: &str| tokenizer.encode(text, EncodeOptions::PLAIN).unwrap_or_default();
    let vocab = state.model.config.n_vocab;
    Breakers::new(&request.sampling.dry_breakers, vocab, |id| tokenizer.token_bytes(id), encode)
}

/// The splitter for tool calls in the answer; `None` if there are no tools.
fn calls_of(state: &EngineState, chat: &ChatOptions) -> Option<CallSplitter> {
    let format = chat.call_format.as_ref().unwrap_or(state.text.template.tools());
    (!chat.tools.is_empty()).then(|| CallSplitter::new(format.clone(), &chat.tools))
}

/// Checks everything that does not need the encoded prompt.
fn check(request: &Request, context: &SessionContext, vocab: usize) -> Result<()> {
    if request.stop.iter().any(String::is_empty) {
        return Err(Error::invalid("stop", "strings of at least one character", "an empty string"));
    }
    if let ContextPolicy::Shift { keep } = request.on_full
        && keep >= context.capacity()
    {
        let expected = format!("fewer than the {} tokens of the context", context.capacity());
        return Err(Error::invalid("keep", expected, keep));
    }
    request.sampling.validate(vocab)
}
