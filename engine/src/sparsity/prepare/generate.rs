//! Text the model writes itself: no data are needed, and it is what the model will be used for.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::{
    error::Result,
    format::Checkpoint,
    model::{Forward, KvCache, Outputs, Probe},
    tokenizer::{ChatMessage, ChatTemplate, EncodeOptions, TemplateOrigin, Tokenizer},
};

/// What is asked of models that chat. `{}` is one of [`SUBJECTS`].
const REQUESTS: [&str; 16] = [
    "Tell me a story about {}.",
    "Explain {} to a curious child.",
    "What should I know about {} before I buy a book on it?",
    "Write a short poem about {}.",
    "Give me a list of ten facts about {}, with a sentence on each.",
    "Two friends disagree about {}. Write down what they say.",
    "Write a letter to a newspaper about {}.",
    "How has {} changed in the last hundred years?",
    "Write a program that prints a table of figures about {}, in a language of your choice, with comments.",
    "Summarise what is known about {} in one paragraph, then in one sentence.",
    "I have to give a talk on {} tomorrow. Draft it.",
    "What are the advantages and disadvantages of {}?",
    "Invent a riddle whose answer is {}, and explain it.",
    "Write a recipe or a set of instructions that has to do with {}.",
    "Translate a few sentences about {} into French, German and Spanish.",
    "Which questions about {} are still open, and why?",
];

/// How texts begin that other models continue.
const OPENINGS: [&str; 8] = [
    "Once upon a time, there was {}. One day,",
    "The history of {} begins",
    "In this article we look at {}. First,",
    "\"I never thought much about {},\" she said,",
    "Chapter 1. {}\n\n",
    "Question: What is {}?\nAnswer:",
    "It was a cold morning in November. He was thinking about {} when",
    "There are three reasons why {} matters.",
];

const SUBJECTS: [&str; 40] = [
    "a dog and a kite",
    "the sea at night",
    "railways",
    "a lost key",
    "the human heart",
    "bread",
    "a small red boat",
    "the moon",
    "bicycles",
    "a brave little mouse",
    "electric light",
    "gardens in winter",
    "the number zero",
    "a birthday party",
    "volcanoes",
    "old maps",
    "a talking tree",
    "money",
    "the piano",
    "a picnic in the rain",
    "bees",
    "computers",
    "a new friend at school",
    "the weather",
    "glass",
    "a cat who could not sleep",
    "elections",
    "the colour blue",
    "a big yellow truck",
    "dreams",
    "medicine",
    "a bird with a broken wing",
    "chess",
    "the desert",
    "a grandmother's garden",
    "languages",
    "the stars",
    "a box under the bed",
    "coffee",
    "the first snow",
];

/// Divides logits: lively, but not wild.
const TEMPERATURE: f32 = 0.8;
/// Tokens less likely than this share of the likeliest are not chosen.
const MIN_P: f32 = 0.05;

/// Has a model write.
#[derive(Debug)]
pub(super) struct Author {
    tokenizer: Tokenizer,
    /// Where the model has one of its own.
    template: Option<ChatTemplate>,
    /// Most tokens of a text.
    length: usize,
    seed: u64,
}

impl Author {
    pub(super) fn new(checkpoint: &Checkpoint, length: usize, seed: u64) -> Result<Self> {
        let tokenizer = Tokenizer::from_checkpoint(checkpoint)?;
        let template = ChatTemplate::from_checkpoint(checkpoint, &tokenizer);
        let template = matches!(template.origin(), TemplateOrigin::Model(_)).then_some(template);
        Ok(Author { tokenizer, template, length, seed })
    }

    /// What text `n` begins with.
    fn prompt(&self, n: usize) -> Result<Vec<u32>> {
        let forms: &[&str] = if self.template.is_some() { &REQUESTS } else { &OPENINGS };
        // Every form meets every subject before a pair comes again.
        let subject = SUBJECTS[(n + n / forms.len()) % SUBJECTS.len()];
        let text = forms[n % forms.len()].replace("{}", subject);
        match &self.template {
            None => self.tokenizer.encode(&text, EncodeOptions::TEXT),
            Some(template) => {
                let rendered = template.render(&[ChatMessage { role: "user", content: &text }], true)?;
                self.tokenizer.encode(&rendered, EncodeOptions::CHAT)
            }
        }
    }

    /// Writes text `n` into the empty cache `kv` while `probe` looks on. It depends on nothing but the number and the seed.
    pub(super) fn write(&self, n: usize, forward: &mut Forward, kv: &mut KvCache, probe: &mut dyn Probe) -> Result<()> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(n as u64);
        let mut next = self.prompt(n)?;
        next.truncate(self.length - 1);
        while kv.len() + next.len() < self.length {
            let id = draw(forward.run(&next, kv, Outputs::Last, probe)?, &mut rng);
            if self.tokenizer.is_end(id) {
                break;
            }
            next = vec![id];
        }
        Ok(())
    }
}

/// Draws a token: the largest of the logits that qualify after each had noise of Gumbel's distribution added, which is a
/// draw from their softmax.
fn draw(logits: &[f32], rng: &mut ChaCha8Rng) -> u32 {
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
    fn draws_follow_the_softmax_of_what_qualifies() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let shares = [0.6f32, 0.3, 0.1];
        let logits: Vec<f32> = shares.iter().map(|share| TEMPERATURE * share.ln()).chain([-9.0, f32::NAN]).collect();
        let mut counts = [0u32; 5];
        (0..20_000).for_each(|_| counts[draw(&logits, &mut rng) as usize] += 1);
        for (count, share) in counts.iter().zip(shares) {
            assert!((*count as f32 / 20_000.0 - share).abs() < 0.02, "{counts:?}");
        }
        assert_eq!(counts[3..], [0, 0]);
        assert_eq!(draw(&[f32::NAN; 3], &mut rng), 0);
    }

    #[test]
    fn every_form_meets_every_subject() {
        for forms in [REQUESTS.len(), OPENINGS.len()] {
            let pair = |n: usize| (n % forms, (n + n / forms) % SUBJECTS.len());
            let pairs: std::collections::HashSet<_> = (0..forms * SUBJECTS.len()).map(pair).collect();
            assert!(pairs.len() >= forms * SUBJECTS.len() / 2, "{} of {}", pairs.len(), forms * SUBJECTS.len());
        }
        assert!(REQUESTS.iter().chain(&OPENINGS).all(|form| form.matches("{}").count() == 1));
    }
}
