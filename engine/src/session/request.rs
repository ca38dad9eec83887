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

use super::{DeviceEvent, DraftsBySource, LogprobsRequest, StateReading, TokenLogprobs, sampling::Grammar};
use thermocline_base::error::{Error, Result};
use thermocline_pictures::Picture;
use thermocline_text::{reasoning::AnswerPart, tools::ToolFormat};

/// The speaker of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Role {
    System,
    User,
    Assistant,
    /// The result of a tool call.
    Tool,
}

impl Role {
    /// Name of the role in templates and requests.
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
    /// Text of the message. An assistant's text is a
    /// [transcript](thermocline_text::reasoning::transcript).
    pub content: String,
    /// Further fields for the template, in OpenAI's form: `tool_calls`, `tool_call_id`, `name`.
    pub fields: Map<String, Value>,
    /// Pictures before the text.
    pub pictures: Vec<Picture>,
}

impl Message {
    /// A message without further fields.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Message { role, content: content.into(), fields: Map::new(), pictures: Vec::new() }
    }
}

/// Values for the chat template besides the messages.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ChatOptions {
    /// Definitions of the tools that the model may call, in OpenAI's form.
    pub tools: Vec<Value>,
    /// Further template variables, such as `enable_thinking`.
    pub variables: Map<String, Value>,
    /// Format of tool calls in the answer; `None` for the model's own. A grammar may force
    /// [another](ToolFormat::forced).
    pub call_format: Option<ToolFormat>,
}

/// The beginning that a generation continues.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// Plain text: special tokens are recognised, and BOS is added if the vocabulary asks for it.
    Text(String),
    /// Token ids, used unchanged.
    Tokens(Vec<u32>),
    /// A chat rendered with the model's template; the assistant speaks next.
    Chat(Vec<Message>),
    /// A chat whose last message, by the assistant, is continued.
    Continue(Vec<Message>),
    /// A query and a document whose relevance to it is asked for, in the form of the reranker.
    Pair {
        /// The query.
        query: String,
        /// The document.
        document: String,
    },
}

impl Prompt {
    /// The pictures of a chat's messages, in their order.
    pub fn pictures(&self) -> impl Iterator<Item = &Picture> {
        let messages = match self {
            Prompt::Chat(messages) | Prompt::Continue(messages) => &messages[..],
            Prompt::Text(_) | Prompt::Tokens(_) | Prompt::Pair { .. } => &[],
        };
        messages.iter().flat_map(|message| &message.pictures)
    }
}

/// Text of an answer in pieces, each with the part of the answer that it belongs to. Its `str` form
/// is the whole text.
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

    /// The pieces in order; neighbouring pieces belong to different parts.
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

/// Settings for choosing the next token. They apply in this order: logit bias, penalties, DRY,
/// top-k, typical, top-p, min-p, temperature, draw. The default suits chats; [`Sampling::greedy`]
/// is the argmax.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// Keeps the `k` most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the smallest set of tokens with this total probability; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens that are at least this fraction as likely as the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Locally typical sampling (Meister et al. 2022): probability mass to keep; 1 keeps all.
    pub typical_p: f32,
    /// Divides positive and multiplies negative logits of recent tokens; 1 is off.
    pub repeat_penalty: f32,
    /// Subtracted once from logits of recent tokens.
    pub presence_penalty: f32,
    /// Subtracted per occurrence from logits of recent tokens.
    pub frequency_penalty: f32,
    /// Number of recent tokens that the three penalties consider; 0 is off, `usize::MAX` means the
    /// whole context.
    pub penalty_last_n: usize,
    /// DRY (don't repeat yourself): strength; 0 is off.
    pub dry_multiplier: f32,
    /// DRY: base of the exponential.
    pub dry_base: f32,
    /// DRY: longest repeat without a penalty.
    pub dry_allowed_length: usize,
    /// DRY: number of recent tokens to consider; `usize::MAX` means the whole context.
    pub dry_last_n: usize,
    /// DRY: strings that break a repeat.
    pub dry_breakers: Vec<String>,
    /// Added to the logits of single tokens; `-inf` bans a token.
    pub logit_bias: Vec<(u32, f32)>,
    /// The same seed gives the same text. `None` draws a seed, which [`GenerationStats`] reports.
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
    /// Always chooses the most likely token.
    pub fn greedy() -> Self {
        Sampling { temperature: 0.0, ..Self::default() }
    }

    /// Checks every parameter against its domain; `vocab` is the number of tokens.
    ///
    /// [`Error::Invalid`] names the first parameter outside its domain.
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
    /// The generation ends with [`StopReason::ContextFull`]; a prompt that does not fit is an
    /// error.
    #[default]
    Stop,
    /// The context forgets its beginning and the generation continues. A chat loses its oldest
    /// turns, but never its system prompt. Once only its last turn is left, it loses the older half
    /// of the answer. Any other prompt loses the older half of the tokens after its first `keep`. A
    /// chat whose last turn alone does not fit is an error.
    Shift {
        /// Number of tokens at the start that are never forgotten; ignored for chats.
        keep: usize,
    },
}

/// The parameters of one generation.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The prompt to continue.
    pub prompt: Prompt,
    /// Settings for choosing tokens.
    pub sampling: Sampling,
    /// Largest number of tokens to generate; `None` generates until the model ends or the context
    /// is full.
    pub max_tokens: Option<usize>,
    /// Texts that end the generation. They are searched for only in the answer to the user, not in
    /// thoughts or tool calls, and are not part of the output.
    pub stop: Vec<String>,
    /// Behaviour when the context is full.
    pub on_full: ContextPolicy,
    /// Continue past the end-of-text token (for benchmarks).
    pub ignore_eos: bool,
    /// Values for the chat template; used by [`Prompt::Chat`] and [`Prompt::Continue`].
    pub chat: ChatOptions,
    /// Grammar of the answer, which does not apply to thoughts.
    pub grammar: Option<Grammar>,
    /// Drafts of following tokens, computed together with the next token.
    pub speculation: SpeculationMode,
    /// Number of drafts of every pass, as far as a source has them. `None`: as many as pay, by
    /// measurement.
    pub drafts: Option<usize>,
    /// Log probabilities to report.
    pub logprobs: Option<LogprobsRequest>,
    /// Largest number of thought tokens, after which the answer is forced to begin; `None` for no
    /// limit.
    pub thought_budget: Option<usize>,
    /// What to compute of the prompt's hidden states. If present, nothing is generated.
    pub reading: Option<StateReading>,
    /// True to record the request's tokens. Their neurons are recorded on the board, in the counts
    /// and for the hot set, and their times among the measured speeds. A pass shared with an
    /// unrecorded request is not recorded.
    pub recorded: bool,
}

/// Which passes may have drafts. The sources of drafts are those of the engine
/// ([`DraftSource`](super::DraftSource)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SpeculationMode {
    /// No pass: every pass computes one token.
    Off,
    /// Passes in which each token gets the same bits as in its own pass
    /// ([`Forward::same_bits`](thermocline_run::runtime::Forward::same_bits)). The text equals the
    /// text without drafts.
    #[default]
    SameBits,
    /// All passes. Longer passes may round differently, so a token may be replaced by a nearly
    /// equally likely one. Models with recurrent states get at most
    /// [`MOST_PLANES`](thermocline_run::runtime::MOST_PLANES) drafts in a pass. Approximate
    /// sparsity modes draft as [`SpeculationMode::SameBits`].
    Always,
}

impl Request {
    /// A request for `prompt` with default settings.
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
            drafts: None,
            logprobs: None,
            thought_budget: None,
            reading: None,
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
    /// Tokens of the prompt, after shortening it to fit.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were already in the KV cache and were not computed again.
    pub reused_tokens: usize,
    /// Pictures of the prompt that the vision tower computed. Others were known.
    pub computed_pictures: usize,
    /// Computed pictures whose layers a device computed.
    pub device_pictures: usize,
    /// Generated tokens, each with an [`Event::Token`]. A token that ended the text is not counted.
    pub generated_tokens: usize,
    /// Generated tokens that were thoughts.
    pub thought_tokens: usize,
    /// Number of decoding steps: generated tokens that were fed back to compute the next one.
    pub decode_steps: usize,
    /// Drafted and accepted tokens of each source.
    pub drafts: DraftsBySource,
    /// Time to compute the prompt, without other sessions' turns.
    pub prompt_time: Duration,
    /// Time from the request to the first token, including waiting.
    pub time_to_first_token: Duration,
    /// Time of all decoding steps, without other sessions' turns.
    pub decode_time: Duration,
    /// Number of tokens in the context now.
    pub context_used: usize,
    /// Length of the context.
    pub context_length: usize,
    /// Tokens of the chat that the model no longer sees. They were cut from a long prompt or
    /// forgotten when the context was full. See [`ContextPolicy::Shift`].
    pub forgotten_tokens: usize,
    /// Forgotten turns of the chat. A turn is a user message and all messages up to the next user
    /// message.
    pub forgotten_turns: usize,
    /// FFN reads of the decoded tokens; zero tokens if neurons are not recorded.
    pub ffn: FfnReads,
    /// Seed of the sampler.
    pub seed: u64,
}

/// Reads and skips in the FFNs of decoded tokens, summed over tokens and layers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FfnReads {
    /// Number of tokens counted.
    pub tokens: usize,
    /// Bytes of weights that the CPU read.
    pub read_bytes: u64,
    /// Bytes that the same FFNs read without skipping. MoE layers count the experts in use.
    pub dense_bytes: u64,
    /// Neurons whose up and down rows were used. [`FfnReads::neurons`] counts all neurons of the
    /// same FFNs, in MoE layers those of the experts in use.
    pub used_neurons: u64,
    /// See [`FfnReads::used_neurons`].
    pub neurons: u64,
    /// True if a GPU computed some of the neurons. `read_bytes` then counts only what the CPU read.
    pub on_device: bool,
}

impl FfnReads {
    /// Fraction of the bytes that the CPU did not read; `None` without tokens.
    pub fn spared(&self) -> Option<f64> {
        (self.dense_bytes > 0).then(|| 1.0 - (self.read_bytes as f64 / self.dense_bytes as f64).min(1.0))
    }
}

impl GenerationStats {
    /// Number of drafted tokens.
    pub fn drafted_tokens(&self) -> usize {
        self.drafts.total().drafted
    }

    /// Number of drafted tokens that the sampler also chose.
    pub fn accepted_tokens(&self) -> usize {
        self.drafts.total().accepted
    }

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

/// An event of a generation. The channel closes after [`Event::Done`] or [`Event::Error`].
#[derive(Debug)]
pub enum Event {
    /// The prompt is being computed.
    Prompt {
        /// Tokens in the cache.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// A token was chosen. While its text is incomplete, the event waits for the next token. The
    /// text of the last event is therefore complete, however the generation ends.
    Token {
        /// Id of the token.
        id: u32,
        /// Text that the token completed. It may be empty (inside a UTF-8 character or a possible
        /// stop string) and may contain the text of several tokens. It never contains the markers
        /// of thoughts.
        text: AnswerText,
        /// Log probability of the token, if requested.
        logprobs: Option<TokenLogprobs>,
    },
    /// Log probabilities of the next prompt tokens in order, if requested. All arrive before the
    /// first [`Event::Token`].
    PromptLogprobs(Vec<TokenLogprobs>),
    /// The embedding of the prompt with length 1, or the relevance of a pair, if requested.
    Embedding(Vec<f32>),
    /// The device changed; the generation continues.
    Device(DeviceEvent),
    /// Counts and times so far, at most a few times per second.
    Stats(GenerationStats),
    /// The generation ended.
    Done {
        /// Reason of the end.
        reason: StopReason,
        /// Final counts and times.
        stats: GenerationStats,
    },
    /// The generation failed. Tokens generated before the error stay valid.
    Error(Error),
}

/// The reason why an engine has stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EngineStop {
    /// An internal fault, with its message.
    Fault(String),
    /// A mapped file of the model is lost.
    FileLost(PathBuf),
}

impl EngineStop {
    /// The error of every request after the stop.
    pub fn error(&self) -> Error {
        match self {
            EngineStop::Fault(message) => Error::Stopped(message.clone()),
            EngineStop::FileLost(path) => Error::FileLost { path: path.clone() },
        }
    }
}

/// The reason why an engine stopped; unset while it runs.
pub(super) type StopCell = Arc<OnceLock<EngineStop>>;

/// Sends a generation's events and makes sure that the last one is an end. If it is dropped without
/// one, by a panic or with a queue, it reports that the engine stopped.
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
    stopped.get().map_or_else(|| Error::Stopped("the model was closed".to_owned()), EngineStop::error)
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
