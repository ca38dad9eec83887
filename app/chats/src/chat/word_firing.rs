//! Firings at a word: how often each neuron fires at the tokens of a word in a text, and how often
//! at the other tokens.

use thermocline_engine::telemetry::neurons::{NeuronShape, TokenTrace, neurons_of};

/// Firing counts of a model's neurons, in the order of the ranges of [`NeuronShape`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WordFiring {
    /// Number of tokens of the word.
    pub tokens: u32,
    /// For each neuron, the number of the word's tokens at which it fired.
    at_word: Vec<u32>,
    /// Number of other tokens, and for each neuron the number of these tokens at which it fired.
    others: u32,
    elsewhere: Vec<u32>,
}

impl WordFiring {
    /// Counts firings at the tokens that are part of `word` and at the other tokens. `bytes` gives
    /// the bytes of a token. A match begins at the start of a word in the text, in any of the
    /// word's `forms`.
    pub fn count<'a>(tokens: &[TokenTrace], shape: &NeuronShape, word: &str, bytes: impl Fn(u32) -> &'a [u8]) -> Self {
        let mut text = Vec::new();
        let ends: Vec<usize> = tokens
            .iter()
            .map(|token| {
                text.extend_from_slice(bytes(token.token));
                text.len()
            })
            .collect();
        let places = places(&text, word);
        let none = vec![0; shape.total()];
        let mut firing = WordFiring { tokens: 0, at_word: none.clone(), others: 0, elsewhere: none };
        let mut start = 0;
        for (token, end) in tokens.iter().zip(ends) {
            let at_word = places.iter().any(|(from, to)| *from < end && start < *to);
            start = end;
            let (seen, counts) = match at_word {
                true => (&mut firing.tokens, &mut firing.at_word),
                false => (&mut firing.others, &mut firing.elsewhere),
            };
            *seen += 1;
            for layer in 0..shape.layers() {
                let first = shape.range(layer).start;
                for neuron in token.fired(shape, layer).into_iter().flat_map(neurons_of) {
                    if let Some(count) = counts.get_mut(first + neuron) {
                        *count += 1;
                    }
                }
            }
        }
        firing
    }

    /// Number of the word's tokens at which the neuron at `index` fired.
    pub fn times(&self, index: usize) -> u32 {
        self.at_word.get(index).copied().unwrap_or(0)
    }

    /// Fraction of the word's tokens at which the neuron at `index` fires, minus its fraction of
    /// the other tokens. 1 for a neuron of this word alone, about 0 for a neuron that fires
    /// everywhere.
    pub fn preference(&self, index: usize) -> f32 {
        fraction(self.times(index), self.tokens) - self.elsewhere(index)
    }

    /// Fraction of the other tokens at which the neuron at `index` fires.
    pub fn elsewhere(&self, index: usize) -> f32 {
        fraction(self.elsewhere.get(index).copied().unwrap_or(0), self.others)
    }
}

fn fraction(count: u32, of: u32) -> f32 {
    if of == 0 { 0.0 } else { count as f32 / of as f32 }
}

/// Written forms of a word: unchanged, lower case, capitalised, upper case.
pub fn forms(word: &str) -> Vec<String> {
    let small = word.to_lowercase();
    let mut letters = small.chars();
    let first: String = letters.next().map(|letter| letter.to_uppercase().collect()).unwrap_or_default();
    let mut forms = vec![word.to_owned(), first + letters.as_str(), word.to_uppercase(), small];
    forms.sort();
    forms.dedup();
    forms
}

/// Byte ranges of `word` in `text`, as start and end, if a word of the text begins there.
fn places(text: &[u8], word: &str) -> Vec<(usize, usize)> {
    let mut places = Vec::new();
    for form in forms(word).iter().filter(|form| !form.is_empty()) {
        let found = text.windows(form.len()).enumerate().filter(|(_, part)| *part == form.as_bytes());
        let begins = |at: usize| at == 0 || !text[at - 1].is_ascii_alphanumeric();
        places.extend(found.filter(|(at, _)| begins(*at)).map(|(at, part)| (at, at + part.len())));
    }
    places
}

#[cfg(test)]
mod tests {
    use thermocline_engine::telemetry::neurons::{LayerFiring, NeuronBoard};

    use super::*;

    #[test]
    fn firings_at_a_word_are_told_from_those_elsewhere() {
        let (board, mut recorder) = NeuronBoard::new(NeuronShape::new([32, 32]));
        let vocabulary: [&[u8]; 6] = [b"The ", b"tr", b"rain", b" Ra", b"in", b" fell"];
        // "The trrain fell Rain fell": the word takes up two tokens, and its letters also occur
        // inside another word.
        for (position, token) in [0u32, 1, 2, 5, 3, 4, 5].into_iter().enumerate() {
            let fired = if [3, 4].contains(&token) { 0b11 } else { 0b10 };
            recorder.begin(0, position, &[token], true);
            for layer in 0..2 {
                let fired = [if layer == 1 { fired } else { 0 }];
                recorder.layer(&LayerFiring { layer, tokens: 1, fired: &fired, ..LayerFiring::default() });
            }
            recorder.end();
        }
        let count = |word| {
            let tokens = board.tokens(0..u64::MAX);
            WordFiring::count(&tokens, board.shape(), word, |token| vocabulary[token as usize])
        };
        let rain = count("rain");
        assert_eq!(rain.tokens, 2, "not that within another word");
        assert_eq!((rain.times(32), rain.times(33), rain.times(0)), (2, 2, 0));
        assert_eq!((rain.preference(32), rain.preference(33), rain.preference(0)), (1.0, 0.0, 0.0));
        assert_eq!((count("RAIN"), count("fell").tokens, count("snow").tokens), (rain, 2, 0));
        assert_eq!(count("snow").preference(33), -1.0);
    }
}
