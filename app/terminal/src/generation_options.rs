//! Options of sampling and length, shared by the commands that generate.

use clap::{Args, ValueEnum};
use thermocline_engine::session::{ContextPolicy, Prompt, Request, Sampling, SpeculationMode};

use crate::named::by_name;
use thermocline_host::units::{Limit, Seed, parse_limit, parse_seed};

/// Sampling options. An option that is not given keeps the model's default.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingOptions {
    /// Sampling temperature; 0 always takes the most probable token [default: 0.8; storyteller:
    /// 0.7]
    #[arg(long, visible_alias = "temperature", value_name = "T", value_parser = non_negative)]
    pub temp: Option<f32>,
    /// Top-k sampling: keep the K most probable tokens; 0 or -1 keeps all [default: 40;
    /// storyteller: 0]
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = parse_limit)]
    pub top_k: Option<Limit>,
    /// Nucleus sampling: keep the most probable tokens up to cumulative probability P [default:
    /// 0.95; storyteller: 0.9]
    #[arg(long, value_name = "P", value_parser = fraction)]
    pub top_p: Option<f32>,
    /// Keep tokens at least P times as probable as the most probable one [default: 0.05;
    /// storyteller: 0]
    #[arg(long, value_name = "P", value_parser = fraction)]
    pub min_p: Option<f32>,
    /// Locally typical sampling: probability kept; 1 is off [default: 1]
    #[arg(long, value_name = "P", value_parser = fraction)]
    pub typical: Option<f32>,
    /// Make recent tokens less likely by this factor; 1 is off [default: 1]
    #[arg(long, value_name = "X", value_parser = positive)]
    pub repeat_penalty: Option<f32>,
    /// Subtract from the logits of tokens that occurred recently [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = finite)]
    pub presence_penalty: Option<f32>,
    /// Subtract from the logits of recent tokens for each time they occurred [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = finite)]
    pub frequency_penalty: Option<f32>,
    /// Number of recent tokens that the penalties consider; -1 is the whole context [default: 64]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_limit)]
    pub penalty_last_n: Option<Limit>,
    /// DRY, a penalty on repeated sequences: multiplier; 0 is off [default: 0]
    #[arg(long, value_name = "X", value_parser = non_negative)]
    pub dry_multiplier: Option<f32>,
    /// DRY: base of the growth with the length of the sequence [default: 1.75]
    #[arg(long, value_name = "X", value_parser = positive)]
    pub dry_base: Option<f32>,
    /// DRY: sequences up to this many tokens are not penalised [default: 2]
    #[arg(long, value_name = "N")]
    pub dry_allowed_length: Option<usize>,
    /// DRY: number of tokens to look back [default: the whole context]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_limit)]
    pub dry_last_n: Option<Limit>,
    /// DRY: sequence breaker; replaces the default ones (newline, colon, quote, star); may be
    /// repeated
    #[arg(long, value_name = "TEXT", value_parser = breaker)]
    pub dry_breaker: Vec<String>,
    /// Add BIAS to the logit of token ID, -inf to ban it; may be repeated
    #[arg(long, value_name = "ID=BIAS", value_parser = logit_bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the sampler; -1 is a random one [default: a random one, shown with the statistics]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = parse_seed)]
    pub seed: Option<Seed>,
}

impl SamplingOptions {
    /// Applies the options to `base`.
    pub fn over(&self, base: Sampling) -> Sampling {
        Sampling {
            temperature: self.temp.unwrap_or(base.temperature),
            top_k: self.top_k.map_or(base.top_k, |limit| limit.count_or(0)),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            typical_p: self.typical.unwrap_or(base.typical_p),
            repeat_penalty: self.repeat_penalty.unwrap_or(base.repeat_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(base.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(base.frequency_penalty),
            penalty_last_n: self.penalty_last_n.map_or(base.penalty_last_n, |limit| limit.count_or(usize::MAX)),
            dry_multiplier: self.dry_multiplier.unwrap_or(base.dry_multiplier),
            dry_base: self.dry_base.unwrap_or(base.dry_base),
            dry_allowed_length: self.dry_allowed_length.unwrap_or(base.dry_allowed_length),
            dry_last_n: self.dry_last_n.map_or(base.dry_last_n, |limit| limit.count_or(usize::MAX)),
            dry_breakers: if self.dry_breaker.is_empty() { base.dry_breakers } else { self.dry_breaker.clone() },
            logit_bias: self.logit_bias.clone(),
            seed: self.seed.map_or(base.seed, Seed::fixed),
        }
    }
}

/// Length options.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Length")]
pub struct LengthOptions {
    /// Largest number of tokens to generate; -1 is no limit [default: until the model ends or the
    /// context is full]
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true, value_parser = parse_limit)]
    pub max_tokens: Option<Limit>,
    /// Stop before this text (\n, \t and \\ are understood); may be repeated; an empty text has no
    /// effect
    #[arg(long, value_name = "TEXT", value_parser = unescape)]
    stop: Vec<String>,
    /// When the context is full: stop ends the answer, shift removes the oldest turns of a chat (or
    /// the older half of a text) and continues
    #[arg(long, value_name = "WHAT", value_enum, default_value_t)]
    pub on_full: OnFull,
    /// With --on-full shift: number of tokens at the start of a text that are never removed. The
    /// system prompt of a chat is never removed
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub keep: usize,
    /// Speculative decoding, which computes drafts of the next tokens in one pass. The drafts come
    /// from the text, the model's draft head or a draft model. auto drafts if the greedy text stays
    /// the same, always drafts if it may save time, off never drafts
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = by_name([
        ("auto", SpeculationMode::SameBits), ("always", SpeculationMode::Always), ("off", SpeculationMode::Off)]))]
    pub speculation: SpeculationMode,
    /// Number of drafts of every pass [default: as many as pay, by measurement]
    #[arg(long, value_name = "N")]
    pub drafts: Option<usize>,
}

// Policy for a full context. (Doc comments on the values would make every --help long.)
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum OnFull {
    #[default]
    Stop,
    Shift,
}

impl LengthOptions {
    /// Returns the texts to stop before.
    pub fn stops(&self) -> Vec<String> {
        self.stop.iter().filter(|text| !text.is_empty()).cloned().collect()
    }

    /// Creates a request for `prompt` with these limits.
    pub fn request(&self, prompt: Prompt, sampling: Sampling) -> Request {
        Request {
            sampling,
            max_tokens: self.max_tokens.and_then(Limit::count),
            stop: self.stops(),
            on_full: match self.on_full {
                OnFull::Stop => ContextPolicy::Stop,
                OnFull::Shift => ContextPolicy::Shift { keep: self.keep },
            },
            speculation: self.speculation,
            drafts: self.drafts,
            ..Request::new(prompt)
        }
    }
}

fn finite(text: &str) -> Result<f32, String> {
    text.parse::<f32>().ok().filter(|value| value.is_finite()).ok_or_else(|| "expected a number".to_owned())
}

fn non_negative(text: &str) -> Result<f32, String> {
    finite(text).ok().filter(|value| *value >= 0.0).ok_or_else(|| "expected a number of at least 0".to_owned())
}

fn positive(text: &str) -> Result<f32, String> {
    finite(text).ok().filter(|value| *value > 0.0).ok_or_else(|| "expected a number above 0".to_owned())
}

fn fraction(text: &str) -> Result<f32, String> {
    let fits = finite(text).ok().filter(|value| (0.0..=1.0).contains(value));
    fits.ok_or_else(|| "expected a number from 0 to 1".to_owned())
}

fn logit_bias(text: &str) -> Result<(u32, f32), String> {
    let parts = text.split_once('=').and_then(|(id, bias)| Some((id.trim().parse().ok()?, bias.trim().parse().ok()?)));
    let pair = parts.filter(|(_, bias): &(u32, f32)| !bias.is_nan() && *bias != f32::INFINITY);
    pair.ok_or_else(|| "expected ID=BIAS, like 15=-2.5 or 15=-inf".to_owned())
}

/// Parses the text of a sequence breaker.
fn breaker(text: &str) -> Result<String, String> {
    let text = unescape(text)?;
    if text.is_empty() { Err("expected at least one character".to_owned()) } else { Ok(text) }
}

fn unescape(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('n') => out.push('\n'),
                Some('t') => out.push('\t'),
                Some('\\') => out.push('\\'),
                Some(other) => out.extend(['\\', other]),
                None => out.push('\\'),
            },
            c => out.push(c),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logit_bias_is_an_id_and_a_number() {
        assert_eq!(logit_bias("15=-2.5"), Ok((15, -2.5)));
        assert_eq!(logit_bias("15=-inf"), Ok((15, f32::NEG_INFINITY)));
        for bad in ["", "15", "=1", "15=", "x=1", "-1=1", "1=nan", "1=inf"] {
            assert!(logit_bias(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_outside_their_range_are_refused() {
        assert!(fraction("1.01").is_err() && fraction("NaN").is_err() && fraction("0").is_ok());
        assert!(positive("0").is_err() && non_negative("0").is_ok() && non_negative("inf").is_err());
    }

    #[test]
    fn unescape_understands_newline_tab_and_backslash() {
        assert_eq!(unescape(r"a\n\\n\q\"), Ok("a\n\\n\\q\\".to_owned()));
        assert!(unescape("") == Ok(String::new()) && breaker("").is_err());
    }

    #[test]
    fn over_changes_given_options_only() {
        let options = SamplingOptions { top_k: Some(Limit::Of(5)), ..SamplingOptions::default() };
        assert_eq!(options.over(Sampling::greedy()), Sampling { top_k: 5, ..Sampling::greedy() });
        let none = Some(Limit::None);
        let options =
            SamplingOptions { top_k: none, penalty_last_n: none, seed: Some(Seed::Any), ..Default::default() };
        let base = Sampling { seed: Some(3), ..Sampling::default() };
        let wanted = Sampling { top_k: 0, penalty_last_n: usize::MAX, seed: None, ..Sampling::default() };
        assert_eq!(options.over(base), wanted);
    }
}
