//! Words of a neuron: the tokens that it raises and lowers, as text.

use thermocline_engine::{
    Result, cpu::Cpu, eval::neuron_lens, model::NeuronIndex, session::Engine, tokenizer::Tokenizer,
};

/// Number of words on either side, and number of tokens searched. Some tokens are not text.
const WORDS: usize = 5;
const SEARCHED: usize = 4 * WORDS;

/// Words whose logits a neuron changes most.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NeuronWords {
    /// Tokens that it raises, as text, the strongest first.
    pub raised: Vec<String>,
    /// Tokens that it lowers, as text, the strongest first.
    pub lowered: Vec<String>,
}

impl NeuronWords {
    /// The words of the neuron at `place` for a positive activation. Computes a product with the
    /// model's head.
    ///
    /// # Errors
    /// [`Error::Invalid`](thermocline_engine::Error::Invalid) for a neuron that the model does not
    /// have.
    pub fn of(engine: &Engine, cpu: &Cpu, place: NeuronIndex) -> Result<Self> {
        let lens = neuron_lens(engine.model(), cpu, place, SEARCHED)?;
        let texts = |tokens: &[(u32, f32)]| {
            let texts = tokens.iter().map(|(id, _)| piece_text(engine.tokenizer(), *id));
            texts.filter(|text| text.chars().any(is_seen)).take(WORDS).collect()
        };
        Ok(NeuronWords { raised: texts(&lens.promoted), lowered: texts(&lens.suppressed) })
    }

    /// The words for a negative activation, which reverses the neuron's effects.
    pub fn reversed(self) -> Self {
        NeuronWords { raised: self.lowered, lowered: self.raised }
    }
}

/// A token as text. The token may be part of a character.
fn token_text(tokenizer: &Tokenizer, id: u32) -> String {
    tokenizer.decode(&[id], false).trim().replace('\u{fffd}', "\u{2026}")
}

/// A token as a listed word. A hyphen marks tokens that continue a word.
fn piece_text(tokenizer: &Tokenizer, id: u32) -> String {
    let text = token_text(tokenizer, id);
    let continues = tokenizer.token_bytes(id).first().is_some_and(u8::is_ascii_lowercase);
    if continues { format!("-{text}") } else { text }
}

/// True for a visible character.
fn is_seen(letter: char) -> bool {
    !letter.is_control() && !letter.is_whitespace() && letter != '\u{2026}'
}
