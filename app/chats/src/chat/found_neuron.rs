//! Neurons found by a word: first neurons that fired at the word in recorded tokens, then neurons
//! whose weights raise the word.

use std::{collections::HashSet, ops::ControlFlow};

use thermocline_engine::{
    Error, Result,
    cpu::{Cpu, CpuOptions},
    eval::token_neurons,
    model::{Ffn, Model, NeuronIndex},
    session::Engine,
    telemetry::neurons::TokenTrace,
    tokenizer::{EncodeOptions, Tokenizer},
};

use super::{
    neuron_words::NeuronWords,
    word_firing::{WordFiring, forms},
};
use crate::store::KeptWord;

/// Number of listed neurons, and the largest number listed because they fired.
const LISTED: usize = 12;
const MOST_FIRED: usize = 6;

/// Least [`WordFiring::preference`] of a neuron that is listed because it fired at the word.
const LEAST_PREFERENCE: f32 = 0.25;

/// A search for neurons by a word.
#[derive(Debug, Clone, Default)]
pub struct NeuronQuery {
    /// The word or words.
    pub text: String,
    /// Tokens of the chat from before the model was opened. If empty, the tokens recorded by the
    /// model are searched.
    pub before: Vec<TokenTrace>,
    /// Neurons recorded for this word across chats, best first.
    pub kept: Vec<KeptWord>,
}

/// A neuron that was found.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundNeuron {
    /// The neuron.
    pub place: NeuronIndex,
    /// Words that it raises and lowers. Reversed if a negative activation raises the searched word.
    pub words: NeuronWords,
    /// Tokens of the word at which it fired.
    pub fired: u32,
    /// All recorded tokens of the word.
    pub of: u32,
    /// Fraction of the other recorded tokens at which it fired.
    pub elsewhere: f32,
    /// Cosine of its down projection and the direction that the model's head reads as the word.
    pub cosine: f32,
    /// Number of recorded firings at the word across chats.
    pub kept: u32,
}

impl FoundNeuron {
    /// Finds the neurons of a word, best first; none for a text without words. Computes on the
    /// calling thread and reads all down projections of the model. Calls `proceed` now and then.
    ///
    /// # Errors
    /// The errors of [`token_neurons`].
    pub fn search(
        engine: &Engine,
        query: &NeuronQuery,
        proceed: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Vec<FoundNeuron>> {
        let (model, tokenizer, text) = (engine.model(), engine.tokenizer(), query.text.trim());
        let tokens = tokens_of(tokenizer, text)?;
        if tokens.is_empty() {
            return Ok(Vec::new());
        }
        let cpu = Cpu::new(&CpuOptions { threads: Some(1), ..CpuOptions::default() })?;
        let cosines = token_neurons(model, &cpu, &tokens, proceed)?;
        let known = known_tokens(engine, query, proceed)?;
        let firing = WordFiring::count(&known, engine.neurons().shape(), text, |token| tokenizer.token_bytes(token));
        let mut found = Vec::new();
        for candidate in ranked(model, &cosines, &firing, &query.kept) {
            if proceed().is_break() {
                return Err(Error::Cancelled);
            }
            let words = NeuronWords::of(engine, &cpu, candidate.place)?;
            let words = if candidate.cosine < 0.0 { words.reversed() } else { words };
            let RankedNeuron { place, cosine, fired, kept, .. } = candidate;
            let elsewhere = firing.elsewhere(engine.neurons().shape().range(place.layer).start + place.neuron);
            found.push(FoundNeuron { place, words, fired, of: firing.tokens, elsewhere, cosine, kept });
        }
        Ok(found)
    }
}

/// The tokens that are a whole word of `text` in any of its forms. A word without such a token
/// gives the first token of its encoding.
fn tokens_of(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
    let mut tokens = Vec::new();
    for word in text.split_whitespace() {
        let wanted: HashSet<Vec<u8>> = forms(word).into_iter().map(String::into_bytes).collect();
        let ids = 0..u32::try_from(tokenizer.vocab_len()).unwrap_or(u32::MAX);
        let before = tokens.len();
        tokens.extend(ids.filter(|id| wanted.contains(tokenizer.token_bytes(*id).trim_ascii())));
        if tokens.len() == before {
            for form in [format!(" {word}"), word.to_owned()] {
                let encoded = tokenizer.encode(&form, EncodeOptions::PLAIN)?;
                let says = |id: &u32| !tokenizer.token_bytes(*id).trim_ascii().is_empty();
                tokens.extend(encoded.into_iter().find(says));
            }
        }
    }
    tokens.sort_unstable();
    tokens.dedup();
    Ok(tokens)
}

/// Tokens with recorded neurons, oldest first. Each token is read separately, so that other readers
/// need not wait for all.
fn known_tokens(
    engine: &Engine,
    query: &NeuronQuery,
    proceed: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<Vec<TokenTrace>> {
    if !query.before.is_empty() {
        return Ok(query.before.clone());
    }
    let board = engine.neurons();
    let mut known = Vec::new();
    for index in board.kept().masks {
        if proceed().is_break() {
            return Err(Error::Cancelled);
        }
        known.extend(board.token(index));
    }
    Ok(known)
}

/// A neuron whose words are not computed yet.
#[derive(Debug, Clone, Copy)]
struct RankedNeuron {
    place: NeuronIndex,
    cosine: f32,
    fired: u32,
    kept: u32,
    preference: f32,
}

/// The neurons to list, best first.
fn ranked(model: &Model, cosines: &[Vec<f32>], firing: &WordFiring, kept: &[KeptWord]) -> Vec<RankedNeuron> {
    let shape = model.neuron_shape();
    let mut all: Vec<RankedNeuron> = Vec::with_capacity(shape.total());
    for (layer, cosines) in cosines.iter().enumerate() {
        let gated = is_gated(&model.weights.layers[layer].ffn);
        for (neuron, cosine) in cosines.iter().enumerate() {
            let index = shape.range(layer).start + neuron;
            // The activation of a neuron without a gate is never negative: such a neuron cannot
            // raise a word that its weights point away from.
            let cosine = if gated { *cosine } else { cosine.max(0.0) };
            let (fired, preference) = (firing.times(index), firing.preference(index));
            all.push(RankedNeuron { place: NeuronIndex { layer, neuron }, cosine, fired, kept: 0, preference });
        }
    }
    for KeptWord { layer, neuron, times, .. } in kept.iter().filter(|it| it.neuron < shape.neurons(it.layer)) {
        if let Some(candidate) = all.get_mut(shape.range(*layer).start + neuron) {
            candidate.kept = *times;
        }
    }
    let of_word = |it: &RankedNeuron| it.kept > 0 || (it.fired > 0 && it.preference >= LEAST_PREFERENCE);
    let mut fired: Vec<RankedNeuron> = all.iter().copied().filter(of_word).collect();
    let by_weights =
        |a: &RankedNeuron, b: &RankedNeuron| b.cosine.abs().total_cmp(&a.cosine.abs()).then(a.place.cmp(&b.place));
    // Firings recorded across chats count more than firings at the last tokens.
    let by_firing = |a: &RankedNeuron, b: &RankedNeuron| {
        b.kept.min(4).cmp(&a.kept.min(4)).then(b.preference.total_cmp(&a.preference)).then_with(|| by_weights(a, b))
    };
    fired.sort_unstable_by(by_firing);
    fired.truncate(MOST_FIRED);
    all.retain(|it| it.cosine != 0.0 && fired.iter().all(|other| other.place != it.place));
    all.sort_unstable_by(by_weights);
    fired.extend(all.into_iter().take(LISTED.saturating_sub(fired.len())));
    fired
}

fn is_gated(ffn: &Ffn) -> bool {
    match ffn {
        Ffn::Dense(ffn) => ffn.gate.is_some(),
        Ffn::Experts(moe) => moe.ffns().any(|ffn| ffn.gate.is_some()),
        Ffn::None => false,
    }
}

#[cfg(test)]
mod tests {
    use thermocline_engine::{
        model::mask,
        session::{DeviceChoice, EngineOptions, Prompt, Request, Sampling, SessionOptions},
    };

    use super::*;
    use thermocline_host::{engine_handle::EngineHandle, library::ModelId, testing::eventually};

    fn search(engine: &Engine, text: &str) -> Vec<FoundNeuron> {
        let query = NeuronQuery { text: text.to_owned(), ..NeuronQuery::default() };
        FoundNeuron::search(engine, &query, &mut || ControlFlow::Continue(())).unwrap()
    }

    #[test]
    fn search_finds_neurons_that_speak_for_a_word_and_first_those_that_fired_at_it() {
        let handle = EngineHandle::new(|| ());
        let options = EngineOptions { device: DeviceChoice::Cpu, ..EngineOptions::default() };
        handle.open(ModelId::Builtin, options);
        eventually("a model", || handle.engine().is_some());
        let engine = handle.engine().unwrap();

        // There are no tokens yet, so only the weights count.
        let silent = search(&engine, "rain");
        assert_eq!(silent.len(), LISTED);
        assert!(silent.iter().all(|found| (found.fired, found.of) == (0, 0)));
        let says = |found: &&FoundNeuron| found.words.raised.iter().any(|word| word.eq_ignore_ascii_case("rain"));
        assert!(says(&&silent[0]), "{silent:?}");

        let session = engine.session(SessionOptions::default()).unwrap();
        let prompt =
            Prompt::Text("The rain fell. Lily saw the rain and ran home. The dog sat in the house.".to_owned());
        let request = Request { sampling: Sampling::greedy(), max_tokens: Some(4), ..Request::new(prompt) };
        session.generate(request).into_iter().for_each(drop);
        let found = search(&engine, "Rain");
        let fired = found.iter().take_while(|found| found.fired > 0).count();
        assert!((1..=MOST_FIRED).contains(&fired), "{found:?}");
        assert_eq!(found.len(), LISTED);
        let board = engine.neurons();
        let of_rain = |token: &TokenTrace| engine.tokenizer().token_bytes(token.token).trim_ascii() == b"rain";
        let tokens = board.tokens(0..u64::MAX);
        let rain: Vec<&TokenTrace> = tokens.iter().filter(|token| of_rain(token)).collect();
        assert!(rain.len() >= 2, "the prompt has it twice");
        for FoundNeuron { place, fired, of, .. } in &found {
            let fires =
                |token: &&&TokenTrace| mask::contains(token.fired(board.shape(), place.layer).unwrap(), place.neuron);
            assert_eq!((*fired as usize, *of as usize), (rain.iter().filter(fires).count(), rain.len()), "{place:?}");
        }
        // The order follows the reported figures.
        let told = |found: &FoundNeuron| found.fired as f32 / found.of as f32 - found.elsewhere;
        assert!(found[..fired].windows(2).all(|two| told(&two[0]) >= told(&two[1])), "{found:?}");
        assert!(found[fired..].windows(2).all(|two| two[0].cosine.abs() >= two[1].cosine.abs()), "{found:?}");
        let is_seen = |word: &String| word.chars().any(|letter| !letter.is_control() && letter != '\u{2026}');
        assert!(found.iter().all(|found| found.words.raised.iter().all(is_seen)), "{found:?}");

        let kept = vec![KeptWord { layer: 2, neuron: 5, word: "rain".to_owned(), times: 3 }];
        let query = NeuronQuery { text: "rain".to_owned(), kept, ..NeuronQuery::default() };
        let found = FoundNeuron::search(&engine, &query, &mut || ControlFlow::Continue(())).unwrap();
        let place = NeuronIndex { layer: 2, neuron: 5 };
        assert_eq!((found[0].place, found[0].kept, found[1].kept), (place, 3, 0), "{found:?}");

        assert!(search(&engine, "  ").is_empty());
        let stopped = FoundNeuron::search(
            &engine,
            &NeuronQuery { text: "rain".to_owned(), ..NeuronQuery::default() },
            &mut || ControlFlow::Break(()),
        );
        assert!(matches!(stopped, Err(Error::Cancelled)));
    }
}
