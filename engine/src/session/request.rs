//! Requests to a session, and the events that answer them.

use std::{
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        mpsc::{self, Receiver, Sender},
    },
    time::Duration,
};

use serde_json::{Map, Value};

use super::{DeviceEvent, LogprobsRequest, Pooling, TokenLogprobs, sampling::Grammar};
use thermocline_base::error::{Error, Result};
use thermocline_text::{reasoning::AnswerPart, tools::ToolFormat};

/// The speaker of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Role {
    System,
    User,
    Assistant,
    /// The result of a tool's call.
    Tool,
}

impl Role {
    /// Its name in templates and requests.
    pub fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

/// One turn of a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The speaker.
    pub role: Role,
    /// Its text; of the assistant a [transcript](thermocline_text::reasoning::transcript).
    pub content: String,
    /// Further fields for the template, in OpenAI's form: `tool_calls`, `tool_call_id`, `name`.
    pub fields: Map<String, Value>,
}

impl Message {
    /// A message without further fields.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Message { role, content: content.into(), fields: Map::new() }
    }
}

/// Values that a chat template is given beside the messages.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ChatOptions {
    /// Definitions of the tools that the model may call, in OpenAI's form.
    pub tools: Vec<Value>,
    /// Further variables of the template, like `enable_thinking`.
    pub variables: Map<String, Value>,
    /// Format of the calls in the answer; `None`: the model's. A grammar may force [another](ToolFormat::forced).
    pub call_format: Option<ToolFormat>,
}

/// The beginning that a generation continues.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// Text as it is, special tokens recognised, BOS added where the vocabulary wants it.
    Text(String),
    /// Token ids as they are.
    Tokens(Vec<u32>),
    /// A chat, rendered with the model's template, the assistant to speak next.
    Chat(Vec<Message>),
    /// A chat whose last message, the assistant's, is to be continued.
    Continue(Vec<Message>),
}

/// Text of an answer, with the parts of the answer that its pieces belong to. As a `str` it is all of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnswerText {
    text: String,
    /// Where each piece ends.
    pieces: Vec<(AnswerPart, usize)>,
}

impl AnswerText {
    /// Appends a piece.
    pub fn push(&mut self, part: AnswerPart, piece: &str) {
        if piece.is_empty() {
            return;
        }
        self.text.push_str(piece);
        match self.pieces.last_mut() {
            Some((last, end)) if *last == part => *end = self.text.len(),
            _ => self.pieces.push((part, self.text.len())),
        }
    }

    /// Appends all of `other`.
    pub fn append(&mut self, other: &AnswerText) {
        other.pieces().for_each(|(part, piece)| self.push(part, piece));
    }

    /// The pieces in order; neighbours are of different parts.
    pub fn pieces(&self) -> impl Iterator<Item = (AnswerPart, &str)> {
        let starts = std::iter::once(0).chain(self.pieces.iter().map(|&(_, end)| end));
        starts.zip(&self.pieces).map(|(start, &(part, end))| (part, &self.text[start..end]))
    }
}

impl std::ops::Deref for AnswerText {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

/// Settings by which the next token is chosen. Applied in this order: logit bias, penalties, DRY, top-k, typical, top-p, min-p,
/// temperature, draw. The default is the usual chat setting; [`Sampling::greedy`] is the argmax.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// Keep the `k` likeliest; 0 keeps all.
    pub top_k: usize,
    /// Keep the smallest set with this much probability; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this fraction as likely as the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Locally typical sampling (Meister et al. 2022): mass kept; 1 keeps all.
    pub typical_p: f32,
    /// Divides positive and multiplies negative logits of recent tokens; 1 is off.
    pub repeat_penalty: f32,
    /// Subtracted once from logits of recent tokens.
    pub presence_penalty: f32,
    /// Subtracted per occurrence from logits of recent tokens.
    pub frequency_penalty: f32,
    /// Number of recent tokens that the three penalties look at; 0 is off, `usize::MAX` the whole context.
    pub penalty_last_n: usize,
    /// DRY (don't repeat yourself): strength; 0 is off.
    pub dry_multiplier: f32,
    /// DRY: base of the exponential.
    pub dry_base: f32,
    /// DRY: repeats up to this length are free.
    pub dry_allowed_length: usize,
    /// DRY: number of recent tokens looked at; `usize::MAX` is the whole context.
    pub dry_last_n: usize,
    /// DRY: strings that break a repeat.
    pub dry_breakers: Vec<String>,
    /// Added to the logits of single tokens; `-inf` bans.
    pub logit_bias: Vec<(u32, f32)>,
    /// Same seed, same text. `None` draws one, reported in [`GenerationStats`].
    pub seed: Option<u64>,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_last_n: 64,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_last_n: usize::MAX,
            dry_breakers: ["\n", ":", "\"", "*"].map(str::to_owned).to_vec(),
            logit_bias: Vec::new(),
            seed: None,
        }
    }
}

impl Sampling {
    /// Always the likeliest token.
    pub fn greedy() -> Self {
        Sampling { temperature: 0.0, ..Self::default() }
    }

    /// Checks every parameter against its domain; `vocab` is the number of tokens.
    ///
    /// [`Error::Invalid`] names the first one outside.
    pub fn validate(&self, vocab: usize) -> Result<()> {
        let finite = |value: f32, low: f32, high: f32| value.is_finite() && (low..=high).contains(&value);
        for (what, value, low, high, domain) in [
            ("temperature", self.temperature, 0.0, f32::MAX, "a number >= 0"),
            ("top_p", self.top_p, 0.0, 1.0, "a number from 0 to 1"),
            ("min_p", self.min_p, 0.0, 1.0, "a number from 0 to 1"),
            ("typical_p", self.typical_p, 0.0, 1.0, "a number from 0 to 1"),
            ("repeat_penalty", self.repeat_penalty, f32::MIN_POSITIVE, f32::MAX, "a number > 0"),
            ("presence_penalty", self.presence_penalty, f32::MIN, f32::MAX, "a finite number"),
            ("frequency_penalty", self.frequency_penalty, f32::MIN, f32::MAX, "a finite number"),
            ("dry_multiplier", self.dry_multiplier, 0.0, f32::MAX, "a number >= 0"),
            ("dry_base", self.dry_base, 1.0, f32::MAX, "a number >= 1"),
        ] {
            if !finite(value, low, high) {
                return Err(Error::invalid(what, domain, value));
            }
        }
        for &(id, bias) in &self.logit_bias {
            if id as usize >= vocab {
                return Err(Error::invalid("logit_bias", format!("a token id below {vocab}"), id));
            }
            if bias.is_nan() || bias == f32::INFINITY {
                return Err(Error::invalid("logit_bias", "a finite number or -inf", bias));
            }
        }
        Ok(())
    }
}

/// Behaviour when the context is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ContextPolicy {
    /// End with [`StopReason::ContextFull`]; a prompt that does not fit is an error.
    #[default]
    Stop,
    /// Forget the beginning and go on: of a chat its oldest turns, never its system prompt, and where only the last turn is
    /// left the older half of the answer; of another prompt the older half of what follows its first `keep` tokens. A chat
    /// whose last turn alone does not fit is an error.
    Shift {
        /// Tokens at the start that are never forgotten, where the prompt is no chat.
        keep: usize,
    },
}

/// One generation to be done.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The beginning to continue.
    pub prompt: Prompt,
    /// Settings by which tokens are chosen.
    pub sampling: Sampling,
    /// Most tokens to generate; `None`: until the model ends or the context is full.
    pub max_tokens: Option<usize>,
    /// Texts that end the generation where they are said to the user, not in thoughts or calls of tools; not part of the output.
    pub stop: Vec<String>,
    /// Behaviour when the context is full.
    pub on_full: ContextPolicy,
    /// Go on past the end-of-text token (benchmarks).
    pub ignore_eos: bool,
    /// Values for the chat template; used by [`Prompt::Chat`] and [`Prompt::Continue`].
    pub chat: ChatOptions,
    /// Grammar of the answer, thoughts before it excepted.
    pub grammar: Option<Grammar>,
    /// Drafts of tokens that may follow, computed together with the next one.
    pub speculation: SpeculationMode,
    /// Log probabilities to report; `None`: none.
    pub logprobs: Option<LogprobsRequest>,
    /// Most tokens of thoughts: behind them the answer is begun by force. `None`: as many as the model writes.
    pub thought_budget: Option<usize>,
    /// Compute an embedding of the prompt and generate nothing.
    pub embedding: Option<Pooling>,
    /// Record its tokens: their neurons on the board, in the counts and for the hot set, their times among the measured speeds. A pass
    /// shared with a request that is not recorded is not either.
    pub recorded: bool,
}

/// The source of drafted tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SpeculationMode {
    /// None: every pass is of one token.
    Off,
    /// [`SpeculationMode::PromptLookup`] where a pass of several tokens gives each the bits of a pass of its own
    /// ([`Forward::same_bits`](thermocline_run::runtime::Forward::same_bits)). The text is the one without drafts.
    #[default]
    SameBits,
    /// Repetitions: the tokens that followed the last ones where these occurred before. Rounding may differ in passes of several
    /// tokens, so a token may take the place of one that is nearly as likely. Models with recurrent states and answers by a grammar
    /// have no drafts. Approximate sparsity modes have those of [`SpeculationMode::SameBits`].
    PromptLookup,
}

impl Request {
    /// `prompt` with default settings.
    pub fn new(prompt: Prompt) -> Self {
        Request {
            prompt,
            sampling: Sampling::default(),
            max_tokens: None,
            stop: Vec::new(),
            on_full: ContextPolicy::Stop,
            ignore_eos: false,
            chat: ChatOptions::default(),
            grammar: None,
            speculation: SpeculationMode::default(),
            logprobs: None,
            thought_budget: None,
            embedding: None,
            recorded: true,
        }
    }
}

/// The reason why a generation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    /// The model ended its turn or text.
    EndOfText,
    /// This stop string occurred.
    StopString(String),
    /// `max_tokens` were generated.
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// The caller cancelled.
    Cancelled,
}

/// Counts and times of one generation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationStats {
    /// Tokens of the prompt, after it was shortened to fit.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were still in the KV cache and were not computed again.
    pub reused_tokens: usize,
    /// Tokens generated: one [`Event::Token`] each. A token that ended the text is not among them.
    pub generated_tokens: usize,
    /// Those of them that were thoughts.
    pub thought_tokens: usize,
    /// Decoding steps: generated tokens that were fed back to find the next one.
    pub decode_steps: usize,
    /// Tokens that were drafted, and those of them that were drawn.
    pub drafted_tokens: usize,
    /// See [`GenerationStats::drafted_tokens`].
    pub accepted_tokens: usize,
    /// Time to compute the prompt, without the turns of other sessions.
    pub prompt_time: Duration,
    /// Time from the request to the first token, waiting included.
    pub time_to_first_token: Duration,
    /// Time of all decoding steps, without the turns of other sessions.
    pub decode_time: Duration,
    /// Tokens now in the context.
    pub context_used: usize,
    /// Length of the context.
    pub context_length: usize,
    /// Tokens of the chat that the model no longer has: left out of a prompt that was too long, or forgotten when the context was
    /// full. See [`ContextPolicy::Shift`].
    pub forgotten_tokens: usize,
    /// Turns of the chat that are forgotten: its oldest messages of the user, each with all up to the next one.
    pub forgotten_turns: usize,
    /// Reads of the FFNs of the decoded tokens; of no tokens where neurons are not recorded.
    pub ffn: FfnReads,
    /// Seed of the sampler.
    pub seed: u64,
}

/// Reads and skips of the FFNs of decoded tokens, summed over tokens and layers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FfnReads {
    /// Tokens counted.
    pub tokens: usize,
    /// Bytes of weights the CPU read.
    pub read_bytes: u64,
    /// Bytes of the weights of the same FFNs, of MoE layers of the experts in use: what is read where nothing is skipped.
    pub dense_bytes: u64,
    /// Neurons whose up and down rows were used, and all neurons of the same FFNs (of MoE layers those of the experts in use).
    pub used_neurons: u64,
    /// See [`FfnReads::used_neurons`].
    pub neurons: u64,
    /// True if a device computed some of the neurons: what it read of its own memory is not among the bytes.
    pub on_device: bool,
}

impl FfnReads {
    /// Fraction of the bytes that the CPU did not read; `None` without a token.
    pub fn spared(&self) -> Option<f64> {
        (self.dense_bytes > 0).then(|| 1.0 - (self.read_bytes as f64 / self.dense_bytes as f64).min(1.0))
    }
}

impl GenerationStats {
    /// Prompt tokens computed per second.
    pub fn prompt_rate(&self) -> f64 {
        rate(self.prompt_tokens.saturating_sub(self.reused_tokens), self.prompt_time)
    }

    /// Decoding steps per second.
    pub fn decode_rate(&self) -> f64 {
        rate(self.decode_steps, self.decode_time)
    }
}

fn rate(count: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

/// One event of a generation. After [`Event::Done`] or [`Event::Error`] the channel closes.
#[derive(Debug)]
pub enum Event {
    /// The prompt is being computed.
    Prompt {
        /// Tokens in the cache so far.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// A token was chosen. While its text is incomplete the event waits for the next token, so that the text of the last
    /// event, whatever ends the generation, is complete.
    Token {
        /// Its id.
        id: u32,
        /// Text that became complete with it: may be empty (inside a UTF-8 character or a possible stop string) and
        /// may hold the text of several tokens. The marks of a model's thoughts are not part of it.
        text: AnswerText,
        /// Its log probability, if the request wants it.
        logprobs: Option<TokenLogprobs>,
    },
    /// The log probabilities of the next tokens of the prompt, in order, if the request wants them; all before the first
    /// [`Event::Token`].
    PromptLogprobs(Vec<TokenLogprobs>),
    /// The embedding of the prompt, `[d_model]`, if the request wants it, of length 1.
    Embedding(Vec<f32>),
    /// The device changed; the generation goes on.
    Device(DeviceEvent),
    /// Counts and times so far, at most a few times per second.
    Stats(GenerationStats),
    /// The end.
    Done {
        /// The reason.
        reason: StopReason,
        /// Final counts and times.
        stats: GenerationStats,
    },
    /// The end, by an error. Tokens generated before stay valid.
    Error(Error),
}

/// The reason why an engine has stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EngineStop {
    /// A fault inside it: a message.
    Fault(String),
    /// A mapped file of the model is lost.
    FileLost(PathBuf),
}

impl EngineStop {
    /// The error of every request from then on.
    pub fn error(&self) -> Error {
        match self {
            EngineStop::Fault(message) => Error::Stopped(message.clone()),
            EngineStop::FileLost(path) => Error::FileLost { path: path.clone() },
        }
    }
}

/// The cause of an engine's end; unset while it runs.
pub(super) type StopCell = Arc<OnceLock<EngineStop>>;

/// The sending end of a generation's events. It makes sure that the last event is an end: dropped without one, by a panic or with a
/// queue, it reports that the engine stopped.
#[derive(Debug)]
pub(super) struct EventSender {
    sender: Option<Sender<Event>>,
    stopped: StopCell,
}

impl EventSender {
    pub fn new(stopped: &StopCell) -> (Self, Receiver<Event>) {
        let (sender, receiver) = mpsc::channel();
        (EventSender { sender: Some(sender), stopped: Arc::clone(stopped) }, receiver)
    }

    /// Sends `event`. False if the receiver is gone.
    #[must_use]
    pub fn send(&self, event: Event) -> bool {
        self.sender.as_ref().is_some_and(|sender| sender.send(event).is_ok())
    }

    /// Sends the last event.
    pub fn finish(mut self, event: Event) {
        if let Some(sender) = self.sender.take() {
            // The receiver may be gone.
            let _ = sender.send(event);
        }
    }
}

impl Drop for EventSender {
    fn drop(&mut self) {
        if let Some(sender) = self.sender.take() {
            let _ = sender.send(Event::Error(stopped_error(&self.stopped)));
        }
    }
}

/// The error of an engine that has stopped.
pub(super) fn stopped_error(stopped: &StopCell) -> Error {
    stopped.get().map_or_else(|| Error::Stopped("it was closed".to_owned()), EngineStop::error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_event_sender_reports_that_the_engine_stopped() {
        let stopped = StopCell::default();
        let (sender, events) = EventSender::new(&stopped);
        stopped.set(EngineStop::Fault("out of luck".to_owned())).unwrap();
        drop(sender);
        let end: Vec<Event> = events.iter().collect();
        assert!(matches!(&end[..], [Event::Error(Error::Stopped(why))] if why == "out of luck"));
    }

    #[test]
    fn event_sender_ends_once_and_notices_a_dropped_receiver() {
        let (sender, events) = EventSender::new(&StopCell::default());
        assert!(sender.send(Event::Prompt { done: 0, total: 1 }));
        let stats = GenerationStats::default();
        sender.finish(Event::Done { reason: StopReason::MaxTokens, stats });
        assert_eq!(events.iter().count(), 2);
        let (sender, events) = EventSender::new(&StopCell::default());
        drop(events);
        assert!(!sender.send(Event::Prompt { done: 0, total: 1 }));
    }
}
