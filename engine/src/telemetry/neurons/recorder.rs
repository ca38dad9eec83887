//! The writing side: what the thread that computes tells of every chunk.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    LayerFiring, LayerTrace, MOST_TOKENS, NeuronBoard, TokenMasks, TokenTrace, Watch,
    pace::{PaceMeter, SharedPace},
};

/// Of so many tokens, the time recording takes is measured at one: looking at the clock takes time, too. Odd, so that tokens with
/// which a block is counted have their turn.
const TIMED: u64 = 7;

/// Writes to a [`NeuronBoard`]; there is one of it. Between [`NeuronRecorder::begin`] and [`NeuronRecorder::end`] it hears of
/// the layers of one or more chunks, in order. Only whole chunks become tokens of the board.
#[derive(Debug)]
pub struct NeuronRecorder {
    board: Arc<NeuronBoard>,
    /// Index of the next token.
    next: u64,
    /// What is recorded of what was begun.
    watch: Watch,
    /// Time that took so far; `None` if nobody looks.
    spent: Option<Duration>,
    paces: [PaceMeter; 3],
    /// What was begun: the tokens still to come, and where the first of them stands.
    ids: Vec<u32>,
    done: usize,
    session: u64,
    position: usize,
    decoded: bool,
    chunk: Chunk,
    /// `[all words]`: neurons in VRAM, and the same as the tokens have it.
    hot: Vec<u32>,
    shared_hot: Option<Arc<[u32]>>,
    hot_changed: bool,
    /// Tokens that came while somebody read.
    waiting: VecDeque<TokenTrace>,
    /// Memory to use again.
    spare: Vec<TokenMasks>,
}

/// A chunk, as far as its layers have come.
#[derive(Debug, Default)]
struct Chunk {
    tokens: usize,
    last_layer: Option<usize>,
    /// `[tokens, layers]`
    figures: Vec<LayerTrace>,
    /// Of the last tokens.
    masks: Vec<TokenMasks>,
}

impl NeuronRecorder {
    pub(super) fn new(board: Arc<NeuronBoard>) -> Self {
        NeuronRecorder {
            next: 0,
            watch: board.watch(),
            spent: None,
            paces: Default::default(),
            ids: Vec::new(),
            done: 0,
            session: 0,
            position: 0,
            decoded: false,
            chunk: Chunk::default(),
            hot: vec![0; board.shape().total_words()],
            shared_hot: None,
            hot_changed: false,
            waiting: VecDeque::new(),
            spare: Vec::new(),
            board,
        }
    }

    /// What it writes to.
    pub fn board(&self) -> &Arc<NeuronBoard> {
        &self.board
    }

    /// `tokens` are about to be computed at `position` of a session's context, in one or several chunks.
    pub fn begin(&mut self, session: u64, position: usize, tokens: &[u32], decoded: bool) {
        self.ids.clear();
        self.ids.extend_from_slice(tokens);
        (self.done, self.session, self.position, self.decoded) = (0, session, position, decoded);
        self.chunk.last_layer = None;
        self.watch = self.board.watch();
        self.spent = self.next.is_multiple_of(TIMED).then_some(Duration::ZERO);
    }

    /// How much is recorded of what was begun.
    pub fn watch(&self) -> Watch {
        self.watch
    }

    /// What was begun was a token that took `time` to decode in all: see [`NeuronBoard::pace`].
    pub fn decoded(&mut self, time: Duration) {
        let which = self.watch as usize;
        self.paces[which].add(time, self.spent, &self.board.paces[which]);
    }

    /// Tokens are computed in another way or place from now on, so that earlier ones say nothing of what watching costs.
    pub fn forget_paces(&mut self) {
        self.paces = Default::default();
        self.board.paces.iter().for_each(SharedPace::clear);
    }

    /// A layer of the current chunk was computed. Layers come in order; one that does not begins the next chunk. What does
    /// not have the board's shape is ignored.
    pub fn layer(&mut self, firing: &LayerFiring<'_>) {
        let began = firing.reporting.or_else(|| self.spent.map(|_| Instant::now()));
        self.take(firing);
        self.spend(began);
    }

    fn take(&mut self, firing: &LayerFiring<'_>) {
        let shape = self.board.shape();
        let (layer, tokens) = (firing.layer, firing.tokens);
        let (words, neurons) = (shape.words(layer), shape.neurons(layer));
        let (mask, experts) = (words.len() * tokens, shape.expert_words(layer));
        let wrong = mask == 0
            || firing.fired.len() != mask
            || firing.chosen.map_or(0, <[u32]>::len) != experts.len() * tokens
            || firing.predicted.is_some_and(|predicted| predicted.len() != mask)
            || firing.hot.is_some_and(|hot| hot.len() != words.len())
            || firing.strength.is_some_and(|strength| !strength.fits(tokens, neurons));
        debug_assert!(!wrong, "a firing of {layer} that is not the model's");
        if wrong {
            return;
        }
        if self.chunk.last_layer.is_none_or(|last| layer <= last) {
            self.publish();
            self.begin_chunk(firing);
        }
        if self.chunk.tokens != tokens || self.done + tokens > self.ids.len() {
            return;
        }
        self.chunk.last_layer = Some(layer);
        self.board.tally.add(layer, self.next, tokens, firing.fired, firing.chosen);
        self.look_at_hot(firing);
        let (layers, unmasked) = (self.board.shape().layers(), tokens - self.chunk.masks.len());
        for t in 0..tokens {
            let row = t * words.len()..(t + 1) * words.len();
            let fired = &firing.fired[row.clone()];
            let predicted = firing.predicted.map(|mask| &mask[row]);
            let chosen = firing.chosen.map(|chosen| &chosen[t * experts.len()..][..experts.len()]);
            self.chunk.figures[t * layers + layer] = figures(firing, fired, predicted, chosen);
            if let Some(masks) = t.checked_sub(unmasked).and_then(|t| self.chunk.masks.get_mut(t)) {
                masks.fired[words.clone()].copy_from_slice(fired);
                if let Some(chosen) = chosen {
                    masks.chosen[experts.clone()].copy_from_slice(chosen);
                }
                if let (Some(predicted), Some(mask)) = (predicted, masks.predicted.get_mut(words.clone())) {
                    mask.copy_from_slice(predicted);
                }
                let range = self.board.shape().range(layer);
                if let (Some(strength), Some(into)) = (firing.strength, masks.strength.get_mut(range)) {
                    masks.greatest[layer] = strength.quantise(t, into);
                }
            }
        }
    }

    /// The tokens were computed, or given up.
    pub fn end(&mut self) {
        let began = self.spent.map(|_| Instant::now());
        self.publish();
        self.ids.clear();
        self.spend(began);
    }

    /// Recording was at work since `began`.
    fn spend(&mut self, began: Option<Instant>) {
        if let (Some(spent), Some(began)) = (&mut self.spent, began) {
            *spent += began.elapsed();
        }
    }

    /// Nothing is computed for a while: hands over what readers were in the way of.
    pub fn idle(&mut self) {
        if !self.waiting.is_empty() {
            self.hand_over(true);
        }
    }

    /// Makes room for a chunk.
    fn begin_chunk(&mut self, firing: &LayerFiring<'_>) {
        let (shape, tokens) = (self.board.shape(), firing.tokens);
        let (words, experts, layers) = (shape.total_words(), shape.total_expert_words(), shape.layers());
        let predicted = if firing.predicted.is_some() { words } else { 0 };
        let strong = firing.strength.is_some() && self.watch == Watch::Strength;
        let (strengths, greatest) = if strong { (shape.total(), layers) } else { (0, 0) };
        let bytes = (words + experts + predicted + greatest) * 4 + strengths;
        let room = usize::try_from(self.board.budget()).unwrap_or(usize::MAX) / bytes.max(1);
        self.chunk.tokens = tokens;
        self.chunk.figures.clear();
        self.chunk.figures.resize(tokens * layers, LayerTrace::default());
        self.spare.append(&mut self.chunk.masks);
        for _ in 0..room.min(tokens).min(MOST_TOKENS) {
            let mut masks = self.spare.pop().unwrap_or_default();
            masks.clear();
            resize(&mut masks.fired, words);
            resize(&mut masks.chosen, experts);
            resize(&mut masks.predicted, predicted);
            resize(&mut masks.strength, strengths);
            resize(&mut masks.greatest, greatest);
            self.chunk.masks.push(masks);
        }
        self.spare.truncate(2);
    }

    /// Keeps the map of what is hot up to date.
    fn look_at_hot(&mut self, firing: &LayerFiring<'_>) {
        if firing.hot.is_none() && self.shared_hot.is_none() && !self.hot_changed {
            return;
        }
        let held = &mut self.hot[self.board.shape().words(firing.layer)];
        match firing.hot {
            Some(hot) if held != hot => held.copy_from_slice(hot),
            None if held.iter().any(|word| *word != 0) => held.fill(0),
            _ => return,
        }
        self.hot_changed = true;
    }

    /// Puts the current chunk on the board if it is whole; there is none afterwards.
    fn publish(&mut self) {
        let shape = self.board.shape();
        let last_watched = (0..shape.layers()).rev().find(|layer| shape.neurons(*layer) > 0);
        let Some(last) = self.chunk.last_layer.take() else { return };
        if Some(last) != last_watched {
            return;
        }
        if std::mem::take(&mut self.hot_changed) {
            self.shared_hot = self.hot.iter().any(|word| *word != 0).then(|| self.hot.as_slice().into());
        }
        let (tokens, layers) = (self.chunk.tokens, shape.layers());
        let unmasked = tokens - self.chunk.masks.len();
        let mut masks = self.chunk.masks.drain(..);
        for (t, figures) in self.chunk.figures.chunks_exact(layers).enumerate() {
            let masks = if t < unmasked { None } else { masks.next().map(Arc::new) };
            self.waiting.push_back(TokenTrace {
                index: self.next + t as u64,
                token: self.ids[self.done + t],
                session: self.session,
                position: self.position + self.done + t,
                decoded: self.decoded,
                layers: figures.into(),
                hot: self.shared_hot.clone().filter(|_| masks.is_some()),
                masks,
            });
        }
        drop(masks);
        self.next += tokens as u64;
        self.done += tokens;
        self.hand_over(false);
    }

    /// What waits goes to the board, unless somebody is reading it and there is no time to wait.
    fn hand_over(&mut self, time: bool) {
        let budget = self.board.budget();
        if let Some(mut ring) = self.board.ring(time) {
            ring.append(self.waiting.drain(..), budget, &mut self.spare);
        }
        // Readers that are always there must not make it grow.
        while self.waiting.len() > MOST_TOKENS {
            self.waiting.pop_front();
        }
    }
}

/// No longer than needed: the budget counts what is reserved.
fn resize<T: Clone + Default>(vec: &mut Vec<T>, length: usize) {
    vec.reserve_exact(length);
    vec.resize(length, T::default());
}

/// A token's figures of a layer.
fn figures(firing: &LayerFiring<'_>, fired: &[u32], predicted: Option<&[u32]>, chosen: Option<&[u32]>) -> LayerTrace {
    let count = |mask: &[u32]| mask.iter().map(|word| word.count_ones()).sum::<u32>();
    let both = |mask: &[u32]| fired.iter().zip(mask).map(|(a, b)| (a & b).count_ones()).sum::<u32>();
    let share = |of: u64| of / firing.tokens as u64;
    let all = count(fired);
    LayerTrace {
        fired: all,
        hot: firing.hot.map_or(0, both),
        experts: chosen.map(count),
        predicted: predicted.map(count),
        missed: predicted.filter(|_| firing.complete).map(|mask| all - both(mask)),
        cpu_bytes: share(firing.cpu_bytes),
        bus_bytes: share(firing.bus_bytes),
        cpu_ns: share(firing.cpu_ns),
        wait_ns: share(firing.wait_ns),
    }
}
