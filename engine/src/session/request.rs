//! What a caller may ask of a session.

use crate::error::{Error, Result};

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Role {
    System,
    User,
    Assistant,
}

/// One turn of a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: String,
}

/// What to continue.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// Text as it is, special tokens recognised, BOS added where the vocabulary wants it.
    Text(String),
    /// Token ids as they are.
    Tokens(Vec<u32>),
    /// A chat, rendered with the model's template, the assistant to speak next.
    Chat(Vec<Message>),
}

/// How the next token is chosen. Applied in this order: logit bias, penalties, DRY, top-k, typical, top-p, min-p,
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
    /// How many recent tokens the three penalties look at; 0 is off, `usize::MAX` the whole context.
    pub penalty_last_n: usize,
    /// DRY (don't repeat yourself): strength; 0 is off.
    pub dry_multiplier: f32,
    /// DRY: base of the exponential.
    pub dry_base: f32,
    /// DRY: repeats up to this length are free.
    pub dry_allowed_length: usize,
    /// DRY: how far back to look; `usize::MAX` is the whole context.
    pub dry_last_n: usize,
    /// DRY: strings that break a repeat.
    pub dry_breakers: Vec<String>,
    /// Added to the logits of single tokens; `-inf` bans.
    pub logit_bias: Vec<(u32, f32)>,
    /// Same seed, same text. `None` draws one, reported in [`super::GenerationStats`].
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

/// What to do when the context is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ContextPolicy {
    /// End with [`super::StopReason::ContextFull`]; a prompt that does not fit is an error.
    #[default]
    Stop,
    /// Keep the first `keep` tokens, forget the older half of the rest, and go on.
    Shift {
        /// Tokens at the start that are never forgotten.
        keep: usize,
    },
}

/// One generation.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// What to continue.
    pub prompt: Prompt,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Most tokens to generate; `None`: until the model ends or the context is full.
    pub max_tokens: Option<usize>,
    /// Text that ends the generation; it is not part of the output.
    pub stop: Vec<String>,
    /// When the context is full.
    pub on_full: ContextPolicy,
    /// Go on past the end-of-text token (benchmarks).
    pub ignore_eos: bool,
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
        }
    }
}
