//! The writing side: receives the reports of the computing thread on every chunk.

// Records move between lists in their boxes, so that they are not copied.
#![allow(clippy::vec_box)]

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    DraftMasks, LayerFiring, MOST_TOKENS, NeuronBoard, PicturePatch, Strength, Watch,
    mass::MassSelection,
    pace::{PaceMeter, SharedPace},
    ring::SPARE,
    token_record::{Keep, TokenRecord},
};

/// One token in this many has its recording timed, because reading the clock takes time too. The
/// number is odd, so that tokens at which a block is counted are timed as well.
const TIMED: u64 = 7;

/// Number of tokens with strengths from a device after a reader asked for a token. The map asks at
/// every frame.
const WATCHED: u64 = 64;

/// The only writer to a [`NeuronBoard`]. Between [`NeuronRecorder::begin`] and
/// [`NeuronRecorder::end`] it receives the layers of one or more chunks, in order. Only whole
/// chunks become tokens of the board.
#[derive(Debug)]
pub struct NeuronRecorder {
    board: Arc<NeuronBoard>,
    /// Index of the next token.
    next: u64,
    /// Level of recording for the current tokens.
    watch: Watch,
    /// Time spent so far on recording the current tokens. `None` if it is not measured.
    spent: Option<Duration>,
    /// Index of the first token whose layer times are not measured, unless a reader asks before.
    unseen: u64,
    /// Index of the first token without strengths from a device, unless a reader asks before.
    unwatched: u64,
    /// The last watched layer. A chunk is whole once this layer is recorded.
    last_watched: Option<usize>,
    paces: [PaceMeter; 3],
    /// The current tokens, and the index of the first one that is not published yet.
    begun: Vec<BegunToken>,
    done: usize,
    decoded: bool,
    chunk: RecordedChunk,
    /// True if the current tokens are one token and drafts of the tokens after it, with their masks
    /// that are not counted yet.
    is_draft: bool,
    draft: DraftMasks,
    /// `[all words]`: mask of the neurons in VRAM, and the copy that tokens share.
    hot: Vec<u32>,
    shared_hot: Option<Arc<[u32]>>,
    hot_changed: bool,
    /// Tokens recorded while a reader held the board.
    waiting: VecDeque<Box<TokenRecord>>,
    /// Memory for reuse.
    spare: Vec<Box<TokenRecord>>,
    mass: MassSelection,
    /// True for a layer whose neurons are never zero and whose strengths are unknown. All of its
    /// neurons fire then, which is not counted.
    uncounted: bool,
}

/// A token that is about to be computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BegunToken {
    /// Number of its session.
    pub session: u64,
    /// Position in the session's context.
    pub position: usize,
    /// Token id.
    pub id: u32,
    /// Its place in a picture, for a token of a picture.
    pub patch: Option<PicturePatch>,
}

/// A chunk, as far as its layers are recorded.
#[derive(Debug, Default)]
struct RecordedChunk {
    last_layer: Option<usize>,
    /// Records of its tokens.
    records: Vec<Box<TokenRecord>>,
}

impl NeuronRecorder {
    pub(super) fn new(board: Arc<NeuronBoard>) -> Self {
        let shape = board.shape();
        NeuronRecorder {
            next: 0,
            watch: board.watch(),
            spent: None,
            unseen: 0,
            unwatched: 0,
            last_watched: (0..shape.layers()).rev().find(|layer| shape.neurons(*layer) > 0),
            paces: Default::default(),
            begun: Vec::new(),
            done: 0,
            decoded: false,
            chunk: RecordedChunk::default(),
            is_draft: false,
            draft: DraftMasks::default(),
            hot: vec![0; shape.total_words()],
            shared_hot: None,
            hot_changed: false,
            waiting: VecDeque::new(),
            spare: Vec::new(),
            mass: MassSelection::default(),
            uncounted: false,
            board,
        }
    }

    /// The board that this recorder writes to.
    pub fn board(&self) -> &Arc<NeuronBoard> {
        &self.board
    }

    /// Reports that `tokens` are about to be computed at `position` of a session's context, in one
    /// or several chunks.
    pub fn begin(&mut self, session: u64, position: usize, tokens: &[u32], decoded: bool) {
        let tokens = tokens.iter().zip(position..);
        self.begin_each(tokens.map(|(id, position)| BegunToken { session, position, id: *id, patch: None }), decoded);
    }

    /// Reports that a token and drafts of the tokens after it are about to be computed, in one
    /// chunk. Only [`NeuronRecorder::end_draft`] counts them and puts them on the board, because
    /// most drafts never become part of the text.
    pub fn begin_draft(&mut self, session: u64, position: usize, tokens: &[u32]) {
        self.begin(session, position, tokens, true);
        self.is_draft = true;
    }

    /// Reports that tokens of several sessions are about to be computed, in one chunk.
    pub fn begin_each(&mut self, tokens: impl Iterator<Item = BegunToken>, decoded: bool) {
        self.begun.clear();
        self.begun.extend(tokens);
        (self.done, self.decoded) = (0, decoded);
        self.is_draft = false;
        self.draft.clear();
        self.chunk.last_layer = None;
        self.watch = self.board.watch();
        self.spent = self.next.is_multiple_of(TIMED).then_some(Duration::ZERO);
        if self.board.was_read() {
            self.unseen = self.next + MOST_TOKENS as u64;
            // The board starts as read, although no reader asked before the first token.
            if self.next > 0 {
                self.unwatched = self.next + WATCHED;
            }
        }
    }

    /// True if the clock should be read for [`LayerFiring::cpu_ns`] and [`LayerFiring::reporting`].
    /// Then a reader asked for one of the kept tokens, or the cost of recording is measured.
    pub fn wants_times(&self) -> bool {
        self.watch != Watch::Off && (self.next < self.unseen || self.spent.is_some())
    }

    /// True if strengths are to be reported. They are kept, or they decide which neurons fire.
    pub fn wants_strength(&self) -> bool {
        self.watch == Watch::Strength || (self.watch == Watch::Firing && self.board.mass().is_some())
    }

    /// True if a device should send strengths, because a reader recently asked for tokens.
    pub fn wants_device_strength(&self) -> bool {
        self.wants_strength() && self.next < self.unwatched
    }

    /// The level of recording for the current tokens.
    pub fn watch(&self) -> Watch {
        self.watch
    }

    /// Reports that the current token took `time` to decode in all. See [`NeuronBoard::pace`].
    pub fn decoded(&mut self, time: Duration) {
        let which = self.watch as usize;
        self.paces[which].add(time, self.spent, &self.board.paces[which]);
    }

    /// Discards the paces, because tokens are now computed in another way or place.
    pub fn forget_paces(&mut self) {
        self.paces = Default::default();
        self.board.paces.iter().for_each(SharedPace::clear);
    }

    /// Reports one computed layer of the current chunk. A layer that is not after the last one
    /// begins the next chunk. Reports that do not have the board's shape are ignored.
    pub fn layer(&mut self, firing: &LayerFiring<'_>) {
        let began = self.spent.map(|_| firing.reporting.unwrap_or_else(Instant::now));
        let neurons = self.board.shape().neurons(firing.layer);
        match (self.board.mass(), firing.strength) {
            (Some(fraction), Some(told @ Strength::All(hidden))) if told.fits(firing.tokens, neurons) => {
                let mut selection = std::mem::take(&mut self.mass);
                let fired = selection.select(hidden, self.board.norms(firing.layer), neurons, fraction);
                self.record(&LayerFiring { fired, ..*firing });
                self.mass = selection;
            }
            (mass, _) => {
                self.uncounted = mass.is_some() && firing.strength.is_none();
                self.record(firing);
                self.uncounted = false;
            }
        }
        self.spend(began);
    }

    fn record(&mut self, firing: &LayerFiring<'_>) {
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
        debug_assert!(!wrong, "a firing of layer {layer} does not have the shape of the model");
        if wrong {
            return;
        }
        if self.chunk.last_layer.is_none_or(|last| layer <= last) {
            if self.is_draft && self.chunk.last_layer.is_some() {
                return;
            }
            self.publish(usize::MAX);
            self.begin_chunk(firing);
        }
        if self.chunk.records.len() != tokens || self.done + tokens > self.begun.len() {
            return;
        }
        self.chunk.last_layer = Some(layer);
        if self.is_draft {
            self.draft.hold(firing);
        } else if !self.uncounted {
            self.board.tally.add(layer, self.next, tokens, firing.fired, firing.chosen);
        }
        self.look_at_hot(firing);
        for (t, record) in self.chunk.records.iter_mut().enumerate() {
            record.layer(self.board.shape(), firing, t);
        }
    }

    /// Reports that the tokens were computed, or abandoned. Drafts, and the token before them, were
    /// abandoned.
    pub fn end(&mut self) {
        self.end_draft(if self.is_draft { 0 } else { usize::MAX });
    }

    /// Reports that the first `drawn` tokens of a pass with drafts are part of the text. They are
    /// recorded as if each had been computed alone.
    pub fn end_draft(&mut self, drawn: usize) {
        let began = self.spent.map(|_| Instant::now());
        self.count_draft(drawn);
        self.publish(drawn);
        self.begun.clear();
        self.is_draft = false;
        self.draft.clear();
        self.spend(began);
    }

    /// Counts the first `drawn` tokens of a pass with drafts, one by one.
    fn count_draft(&self, drawn: usize) {
        for LayerFiring { layer, tokens, fired, chosen, .. } in self.draft.firings(drawn) {
            let words = fired.len() / tokens.max(1);
            for t in 0..tokens {
                let experts = chosen.map(|chosen| &chosen[chosen.len() / tokens * t..][..chosen.len() / tokens]);
                self.board.tally.add(layer, self.next + t as u64, 1, &fired[words * t..][..words], experts);
            }
        }
    }

    /// Adds the time since `began` to the recording time.
    fn spend(&mut self, began: Option<Instant>) {
        if let (Some(spent), Some(began)) = (&mut self.spent, began) {
            *spent += began.elapsed();
        }
    }

    /// Hands over the tokens that readers delayed, when the engine becomes idle.
    pub fn idle(&mut self) {
        if !self.waiting.is_empty() {
            self.hand_over(true);
        }
    }

    /// Prepares records for a chunk.
    fn begin_chunk(&mut self, firing: &LayerFiring<'_>) {
        let (shape, tokens) = (self.board.shape(), firing.tokens);
        let strength = firing.strength.is_some() && self.watch == Watch::Strength;
        let keep = Keep { predicted: firing.predicted.is_some(), strength };
        let room = usize::try_from(self.board.budget()).unwrap_or(usize::MAX) / keep.bytes(shape).max(1);
        // The last tokens of a pass with drafts are not known yet.
        let masked = if self.is_draft { tokens } else { room.min(tokens).min(MOST_TOKENS) };
        self.spare.append(&mut self.chunk.records);
        for t in 0..tokens {
            let mut record = self.spare.pop().unwrap_or_default();
            // Masks are kept for the last `masked` tokens.
            record.begin(shape, (t + masked >= tokens).then_some(keep));
            self.chunk.records.push(record);
        }
        self.spare.truncate(SPARE);
    }

    /// Updates the map of hot neurons.
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

    /// Puts the first `most` tokens of the current chunk on the board if the chunk is whole. Then
    /// ends the chunk.
    fn publish(&mut self, most: usize) {
        let Some(last) = self.chunk.last_layer.take() else { return };
        if Some(last) != self.last_watched {
            return;
        }
        if std::mem::take(&mut self.hot_changed) {
            self.shared_hot = self.hot.iter().any(|word| *word != 0).then(|| self.hot.as_slice().into());
        }
        let tokens = self.chunk.records.len().min(most);
        self.spare.extend(self.chunk.records.drain(tokens..));
        for (t, mut record) in self.chunk.records.drain(..).enumerate() {
            record.index = self.next + t as u64;
            let BegunToken { session, position, id, patch } = self.begun[self.done + t];
            record.patch = patch;
            (record.token, record.session, record.position, record.decoded) = (id, session, position, self.decoded);
            record.hot = self.shared_hot.clone().filter(|_| record.is_masked());
            self.waiting.push_back(record);
        }
        self.next += tokens as u64;
        self.done += tokens;
        self.hand_over(false);
    }

    /// Moves the waiting tokens to the board, unless a reader holds it and `time` is false.
    fn hand_over(&mut self, time: bool) {
        let budget = self.board.budget();
        if let Some(mut ring) = self.board.ring(time) {
            ring.append(self.waiting.drain(..), budget, self.board.shape(), &mut self.spare);
        }
        // Limits the waiting tokens, because a reader may hold the board at every attempt.
        while self.waiting.len() > MOST_TOKENS {
            self.waiting.pop_front();
        }
    }
}
