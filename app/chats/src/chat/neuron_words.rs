//! The words of a neuron: the tokens that it raises and lowers, as text.

use thermocline_engine::{
    Result, cpu::Cpu, eval::neuron_lens, model::NeuronIndex, session::Engine, tokenizer::Tokenizer,
};

/// Tokens on either side, and those looked at: some are no text.
const WORDS: usize = 5;
const SEARCHED: usize = 4 * WORDS;

/// Words whose logits a neuron changes most.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NeuronWords {
    /// Tokens that it raises, as text, most first.
    pub raised: Vec<String>,
    /// Tokens that it lowers.
    pub lowered: Vec<String>,
}

impl NeuronWords {
    /// Words of the neuron at `place` where its activation is positive. It takes a product with the model's head.
    ///
    /// # Errors
    /// [`Error::Invalid`](thermocline_engine::Error::Invalid) for a neuron that the model does not have.
    pub fn of(engine: &Engine, cpu: &Cpu, place: NeuronIndex) -> Result<Self> {
        let lens = neuron_lens(engine.model(), cpu, place, SEARCHED)?;
        let texts = |tokens: &[(u32, f32)]| {
            let texts = tokens.iter().map(|(id, _)| piece_text(engine.tokenizer(), *id));
            texts.filter(|text| text.chars().any(is_seen)).take(WORDS).collect()
        };
        Ok(NeuronWords { raised: texts(&lens.promoted), lowered: texts(&lens.suppressed) })
    }

    /// The same where the activation is negative, which turns the neuron's effects around.
    pub fn reversed(self) -> Self {
        NeuronWords { raised: self.lowered, lowered: self.raised }
    }
}

/// A token as text; it may be part of a letter.
fn token_text(tokenizer: &Tokenizer, id: u32) -> String {
    tokenizer.decode(&[id], false).trim().replace('\u{fffd}', "\u{2026}")
}

/// A token as a word of a list: one that goes on a word has a hyphen in front.
fn piece_text(tokenizer: &Tokenizer, id: u32) -> String {
    let text = token_text(tokenizer, id);
    let continues = tokenizer.token_bytes(id).first().is_some_and(u8::is_ascii_lowercase);
    if continues { format!("-{text}") } else { text }
}

/// True for a letter that one can see.
fn is_seen(letter: char) -> bool {
    !letter.is_control() && !letter.is_whitespace() && letter != '\u{2026}'
}
