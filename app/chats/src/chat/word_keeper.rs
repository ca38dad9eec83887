//! Recording of neurons' words across chats, off by default. After an answer, a thread finds the
//! neurons that fired at each of its words and at few other tokens. They are written into the store
//! in small batches.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::mpsc::{self, Receiver, Sender},
    thread,
};

use thermocline_engine::{
    session::Engine,
    sparsity::sidecar::Identity,
    telemetry::neurons::{NeuronBoard, TokenTrace, neurons_of},
};

use crate::store::{KeptWord, Store, StoreError};
use thermocline_host::engine_handle::EngineHandle;

/// Number of tokens at the end of an answer that are searched.
const MOST_TOKENS: u64 = 256;
/// Largest number of neurons recorded for each word of an answer.
const NEURONS_OF_WORD: usize = 24;
/// Least difference between a neuron's firing fraction at the word's tokens and at all tokens.
const LEAST_PREFERENCE: f32 = 0.5;
/// Longest word, in characters.
const LONGEST: usize = 32;
/// Rows written at once, so that no frame waits long.
const BATCH: usize = 256;

/// Recorded words of an answer, and the fingerprint of its model.
#[derive(Debug)]
struct CountedWords {
    model: String,
    words: Vec<KeptWord>,
}

/// Writes the words of answers into the store while it is on.
#[derive(Debug)]
pub(super) struct WordKeeper {
    on: bool,
    counted: (Sender<CountedWords>, Receiver<CountedWords>),
    waiting: VecDeque<CountedWords>,
    revision: u64,
}

impl Default for WordKeeper {
    fn default() -> Self {
        WordKeeper { on: false, counted: mpsc::channel(), waiting: VecDeque::new(), revision: 0 }
    }
}

impl WordKeeper {
    /// Turns the recording on or off. Turning it off drops words that are not written yet.
    pub fn set_on(&mut self, on: bool) {
        if self.on && !on {
            self.forget();
        }
        self.on = on;
    }

    /// Drops words that are not written yet.
    pub fn forget(&mut self) {
        *self = WordKeeper { on: self.on, revision: self.revision + 1, ..WordKeeper::default() };
    }

    /// Number that changes when words were written.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Starts to count the words of the answer that `session` has just ended.
    pub fn answered(&self, engine: &Engine, session: u64, handle: &EngineHandle) {
        if !self.on {
            return;
        }
        let (engine, handle, counted) = (engine.clone(), handle.clone(), self.counted.0.clone());
        let work = move || {
            let words = words(&engine, session);
            if !words.is_empty() {
                let model = Identity::of_model(engine.model()).fingerprint();
                // The keeper may have been turned off.
                let _ = counted.send(CountedWords { model, words });
                handle.notify();
            }
        };
        if let Err(error) = thread::Builder::new().name("count-words".to_owned()).spawn(work) {
            tracing::warn!(%error, "the words of an answer are not kept");
        }
    }

    /// Writes a batch of counted words. Words that cannot be written are dropped.
    ///
    /// # Errors
    /// The store's error.
    pub fn poll(&mut self, store: &mut Store, handle: &EngineHandle) -> Result<(), StoreError> {
        self.waiting.extend(self.counted.1.try_iter());
        let Some(mut next) = self.waiting.pop_front() else { return Ok(()) };
        let rest = next.words.split_off(next.words.len().min(BATCH));
        let written = store.add_kept_words(&next.model, &next.words);
        self.revision += 1;
        if written.is_ok() && !rest.is_empty() {
            self.waiting.push_front(CountedWords { words: rest, ..next });
        }
        if !self.waiting.is_empty() {
            handle.notify();
        }
        written
    }
}

/// The words of the last answer of `session`, with their neurons.
fn words(engine: &Engine, session: u64) -> Vec<KeptWord> {
    let board = engine.neurons();
    let end = board.kept().masks;
    let mut tokens = Vec::new();
    for index in (end.start.max(end.end.saturating_sub(MOST_TOKENS))..end.end).rev() {
        let Some(token) = board.token(index).filter(|token| token.session == session) else { continue };
        if !token.decoded {
            break;
        }
        tokens.push(token);
    }
    tokens.reverse();
    let of_words = tokens_of_words(&tokens, |token| engine.tokenizer().token_bytes(token));
    let frequencies = frequencies(board);
    let mut words = Vec::new();
    for (word, at) in of_words {
        let at: Vec<&TokenTrace> = at.into_iter().filter_map(|at| tokens.get(at)).collect();
        words.extend(neurons_of_word(board, &frequencies, &word, &at));
    }
    words
}

/// Per layer and neuron, the fraction of all tokens at which the neuron fired since the model was
/// opened.
fn frequencies(board: &NeuronBoard) -> Vec<Vec<f32>> {
    let of_layer = |layer| {
        let tally = board.tally(layer);
        tally.counts.iter().map(|count| *count as f32 / tally.tokens.max(1) as f32).collect()
    };
    (0..board.shape().layers()).map(of_layer).collect()
}

/// The lowercased words of a text, each with the indices of its tokens. Words without letters are
/// skipped.
fn tokens_of_words<'a>(tokens: &[TokenTrace], bytes: impl Fn(u32) -> &'a [u8]) -> BTreeMap<String, Vec<usize>> {
    let (mut text, mut owners) = (Vec::new(), Vec::new());
    for (at, token) in tokens.iter().enumerate() {
        let bytes = bytes(token.token);
        text.extend_from_slice(bytes);
        owners.extend(std::iter::repeat_n(at, bytes.len()));
    }
    let mut words: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    let is_letter = |byte: &u8| byte.is_ascii_alphabetic() || *byte >= 0x80 || *byte == b'\'';
    let mut start = 0;
    for part in text.chunk_by(|a, b| is_letter(a) == is_letter(b)) {
        let place = start..start + part.len();
        start = place.end;
        // A part that begins or ends inside a character is not a whole word.
        let Ok(word) = std::str::from_utf8(part) else { continue };
        let word = word.trim_matches('\'').to_lowercase();
        if word.chars().count() > LONGEST || !word.chars().any(char::is_alphabetic) {
            continue;
        }
        let of_word = words.entry(word).or_default();
        of_word.extend(owners.get(place).into_iter().flatten());
        of_word.dedup();
    }
    words
}

/// The neurons that fire at the tokens `at` of `word` and at few of all tokens.
fn neurons_of_word(board: &NeuronBoard, frequencies: &[Vec<f32>], word: &str, at: &[&TokenTrace]) -> Vec<KeptWord> {
    let shape = board.shape();
    let mut found: Vec<(f32, KeptWord)> = Vec::new();
    for (layer, frequencies) in frequencies.iter().enumerate() {
        let mut times: BTreeMap<usize, u32> = BTreeMap::new();
        for neuron in at.iter().filter_map(|token| token.fired(shape, layer)).flat_map(neurons_of) {
            *times.entry(neuron).or_default() += 1;
        }
        for (neuron, times) in times {
            let often = frequencies.get(neuron).copied().unwrap_or(1.0);
            let preference = times as f32 / at.len().max(1) as f32 - often;
            if preference >= LEAST_PREFERENCE {
                found.push((preference, KeptWord { layer, neuron, word: word.to_owned(), times }));
            }
        }
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    found.into_iter().take(NEURONS_OF_WORD).map(|(_, word)| word).collect()
}

#[cfg(test)]
mod tests {
    use thermocline_engine::{
        model::mask,
        session::{DeviceChoice, EngineOptions, Prompt, Request, Sampling, SessionOptions},
    };

    use super::*;
    use thermocline_host::{library::ModelId, testing::eventually};

    /// The words recorded for an answer of the built-in model, the engine, and the model's
    /// fingerprint. The keeper is on if `on`.
    fn kept(on: bool) -> (Store, Engine, String) {
        let handle = EngineHandle::new(|| ());
        handle.open(ModelId::Builtin, EngineOptions { device: DeviceChoice::Cpu, ..EngineOptions::default() });
        eventually("a model", || handle.engine().is_some());
        let engine = handle.engine().unwrap();
        let session = engine.session(SessionOptions::default()).unwrap();
        let prompt = Prompt::Text("Once upon a time there was a dog".to_owned());
        let request = Request { sampling: Sampling::greedy(), max_tokens: Some(60), ..Request::new(prompt) };
        session.generate(request).into_iter().for_each(drop);
        let (mut store, mut keeper) = (Store::in_memory().unwrap(), WordKeeper::default());
        keeper.set_on(on);
        keeper.answered(&engine, session.id(), &handle);
        let before = keeper.revision();
        if on {
            eventually("words", || {
                keeper.poll(&mut store, &handle).unwrap();
                keeper.revision() > before && keeper.waiting.is_empty()
            });
        } else {
            keeper.poll(&mut store, &handle).unwrap();
        }
        let model = Identity::of_model(engine.model()).fingerprint();
        (store, engine, model)
    }

    #[test]
    fn nothing_is_kept_unless_it_is_switched_on() {
        let (store, ..) = kept(false);
        assert!(!store.has_kept_words().unwrap());
    }

    #[test]
    fn words_that_are_kept_are_those_at_which_the_neuron_fired() {
        let (store, engine, model) = kept(true);
        let board = engine.neurons();
        let tokens: Vec<TokenTrace> = board.tokens(0..u64::MAX).into_iter().filter(|token| token.decoded).collect();
        let words = tokens_of_words(&tokens, |token| engine.tokenizer().token_bytes(token));
        assert!(words.len() > 10, "{words:?}");
        let mut seen = 0;
        for (word, at) in &words {
            let neurons = store.neurons_of_word(&model, word, 99).unwrap();
            assert!(neurons.len() <= NEURONS_OF_WORD, "{word}");
            for KeptWord { layer, neuron, times, .. } in neurons {
                let fires = |at: &&usize| mask::contains(tokens[**at].fired(board.shape(), layer).unwrap(), neuron);
                assert_eq!(times as usize, at.iter().filter(fires).count(), "{word} {layer} {neuron}");
                seen += 1;
            }
        }
        assert!(seen > 50, "{seen}");
    }

    #[test]
    fn words_are_in_small_letters_and_know_their_tokens() {
        let token = |token| TokenTrace {
            index: 0,
            token,
            patch: None,
            session: 0,
            position: 0,
            decoded: true,
            layers: [].into(),
            masks: None,
            hot: None,
        };
        let vocabulary: [&[u8]; 6] = [b"The", b" d", b"og", b"'s 12 ", b"\xc3", b"\xa9t\xc3\xa9."];
        let tokens: Vec<TokenTrace> = (0..6).chain([1, 2]).map(token).collect();
        let words = tokens_of_words(&tokens, |token| vocabulary[token as usize]);
        let words: Vec<(&str, &[usize])> = words.iter().map(|(word, at)| (&**word, &**at)).collect();
        assert_eq!(words, [("dog", &[6, 7][..]), ("dog's", &[1, 2, 3]), ("the", &[0]), ("été", &[4, 5])]);
    }
}
