//! Text that the model generates. It needs no data and resembles the model's use.

use std::sync::LazyLock;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;

use thermocline_base::error::Result;
use thermocline_formats::format::Checkpoint;
use thermocline_run::runtime::{Forward, KvCache, Outputs, Probe};
use thermocline_text::{ChatMessage, ChatTemplate, EncodeOptions, RenderOptions, TemplateOrigin, Tokenizer};

/// Parts of the prompts for generating texts. A subject replaces `{}` in a request or opening.
#[derive(Debug, Default, Deserialize)]
struct PromptParts {
    /// Requests to chat models.
    requests: Vec<String>,
    /// Openings for models without a chat template to continue.
    openings: Vec<String>,
    subjects: Vec<String>,
}

static PARTS: LazyLock<PromptParts> =
    LazyLock::new(|| serde_json::from_str(include_str!("prompts.json")).unwrap_or_default());

/// Sampling temperature.
const TEMPERATURE: f32 = 0.8;
/// Least probability of a sampled token, relative to the most likely token.
const MIN_P: f32 = 0.05;

/// Generates texts from built-in prompts.
#[derive(Debug)]
pub(super) struct Author {
    tokenizer: Tokenizer,
    /// The model's own chat template, if it has one.
    template: Option<ChatTemplate>,
    /// Most tokens per text.
    length: usize,
    seed: u64,
}

impl Author {
    pub fn new(checkpoint: &Checkpoint, length: usize, seed: u64) -> Result<Self> {
        let tokenizer = Tokenizer::from_checkpoint(checkpoint)?;
        let template = ChatTemplate::from_checkpoint(checkpoint, &tokenizer);
        let template = matches!(template.origin(), TemplateOrigin::Model(_)).then_some(template);
        Ok(Author { tokenizer, template, length, seed })
    }

    /// Returns the prompt of text `n`.
    fn prompt(&self, n: usize) -> Result<Vec<u32>> {
        let PromptParts { requests, openings, subjects } = &*PARTS;
        let forms = if self.template.is_some() { requests } else { openings };
        // The offset varies the pairs of form and subject.
        let subject = &subjects[(n + n / forms.len()) % subjects.len()];
        let text = forms[n % forms.len()].replace("{}", subject);
        match &self.template {
            None => self.tokenizer.encode(&text, EncodeOptions::TEXT),
            Some(template) => {
                let prompt = template.render_with(&[ChatMessage::new("user", &text)], RenderOptions::new(true))?;
                self.tokenizer.encode_prompt(&prompt)
            }
        }
    }

    /// Generates text `n` into the empty cache `kv`, observed by `probe`, and returns its tokens.
    /// The text depends only on `n` and the seed.
    pub fn write(&self, n: usize, forward: &mut Forward, kv: &mut KvCache, probe: &mut dyn Probe) -> Result<Vec<u32>> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(n as u64);
        let mut next = self.prompt(n)?;
        next.truncate(self.length - 1);
        let mut text = Vec::new();
        while kv.len() + next.len() < self.length {
            let id = sample(forward.run(&next, kv, Outputs::Last, probe)?, &mut rng);
            text.append(&mut next);
            if self.tokenizer.is_end(id) {
                break;
            }
            next = vec![id];
        }
        Ok(text)
    }
}

/// Samples a token from the softmax of the qualifying logits, with the Gumbel-max trick.
fn sample(logits: &[f32], rng: &mut ChaCha8Rng) -> u32 {
    let highest = logits.iter().copied().fold(f32::MIN, f32::max);
    let lowest = highest + TEMPERATURE * MIN_P.ln();
    let mut best = (f32::MIN, 0);
    for (id, &logit) in logits.iter().enumerate().filter(|(_, logit)| **logit >= lowest) {
        let noise = -(-rng.random::<f32>().max(f32::MIN_POSITIVE).ln()).ln();
        let value = logit / TEMPERATURE + noise;
        if value > best.0 {
            best = (value, id as u32);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_follow_the_softmax_of_qualifying_tokens() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let probabilities = [0.6f32, 0.3, 0.1];
        let logits: Vec<f32> = probabilities.iter().map(|p| TEMPERATURE * p.ln()).chain([-9.0, f32::NAN]).collect();
        let mut counts = [0u32; 5];
        (0..20_000).for_each(|_| counts[sample(&logits, &mut rng) as usize] += 1);
        for (count, p) in counts.iter().zip(probabilities) {
            assert!((*count as f32 / 20_000.0 - p).abs() < 0.02, "{counts:?}");
        }
        assert_eq!(counts[3..], [0, 0]);
        assert_eq!(sample(&[f32::NAN; 3], &mut rng), 0);
    }

    #[test]
    fn prompts_cover_all_pairs_of_form_and_subject() {
        let PromptParts { requests, openings, subjects } = &*PARTS;
        assert_eq!((requests.len(), openings.len(), subjects.len()), (16, 8, 40));
        for forms in [requests.len(), openings.len()] {
            let pair = |n: usize| (n % forms, (n + n / forms) % subjects.len());
            let pairs: std::collections::HashSet<_> = (0..forms * subjects.len()).map(pair).collect();
            assert!(pairs.len() >= forms * subjects.len() / 2, "{} of {}", pairs.len(), forms * subjects.len());
        }
        assert!(requests.iter().chain(openings).all(|form| form.matches("{}").count() == 1));
    }
}
