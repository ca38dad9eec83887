//! What any thread may read.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicU8, AtomicU64, Ordering::Relaxed},
    },
};

use super::{LayerTally, NeuronRecorder, NeuronShape, Pace, TokenMasks, TokenTrace, pace::SharedPace, tally::Tally};

/// Tokens whose figures are kept.
pub const MOST_TOKENS: usize = 1000;

/// Bytes of masks that are kept unless told otherwise: all 1000 tokens of a 7B model (44 KB each), 230 of an 80-layer model
/// with 28672 neurons each (287 KB).
pub const DEFAULT_BUDGET: u64 = 64 << 20;

/// What of the neurons is recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Watch {
    /// Nothing.
    Off,
    /// Which neurons fire.
    #[default]
    Firing,
    /// And how strongly, which costs the engine more.
    Strength,
}

/// What the board holds of single tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Indices of the tokens whose figures are kept.
    pub tokens: Range<u64>,
    /// Those of them whose masks are kept, too.
    pub masks: Range<u64>,
    /// Bytes of these masks.
    pub bytes: u64,
    /// Most bytes of masks.
    pub budget: u64,
}

/// A model's neurons, as [the module](super) says. Readers take shared pieces out in no more time than it takes to count
/// references; a writer that finds one at it goes on and comes back with its next token.
#[derive(Debug)]
pub struct NeuronBoard {
    shape: NeuronShape,
    pub(super) tally: Tally,
    watch: AtomicU8,
    /// By [`Watch`].
    pub(super) paces: [SharedPace; 3],
    budget: AtomicU64,
    ring: Mutex<Ring>,
}

/// The latest tokens, in order and without gaps.
#[derive(Debug, Default)]
pub(super) struct Ring {
    tokens: VecDeque<TokenTrace>,
    /// How many of the last have masks.
    masked: usize,
    /// Bytes of these.
    bytes: u64,
}

impl NeuronBoard {
    /// An empty board, and what writes to it.
    pub fn new(shape: NeuronShape) -> (Arc<Self>, NeuronRecorder) {
        let board = Arc::new(NeuronBoard {
            tally: Tally::new(&shape),
            shape,
            watch: AtomicU8::new(Watch::default() as u8),
            paces: Default::default(),
            budget: AtomicU64::new(DEFAULT_BUDGET),
            ring: Mutex::default(),
        });
        (Arc::clone(&board), NeuronRecorder::new(board))
    }

    /// Layers and their neurons.
    pub fn shape(&self) -> &NeuronShape {
        &self.shape
    }

    /// What is recorded.
    pub fn watch(&self) -> Watch {
        [Watch::Off, Watch::Firing, Watch::Strength][usize::from(self.watch.load(Relaxed).min(2))]
    }

    /// Changes what is recorded, from the next chunk or token on.
    pub fn set_watch(&self, watch: Watch) {
        self.watch.store(watch as u8, Relaxed);
    }

    /// How fast tokens were decoded lately while `watch` was recorded. `None` if none was since the model was opened, or since
    /// where or how it is computed changed.
    pub fn pace(&self, watch: Watch) -> Option<Pace> {
        self.paces[watch as usize].get()
    }

    /// Most bytes of masks to keep.
    pub fn budget(&self) -> u64 {
        self.budget.load(Relaxed)
    }

    /// Changes it, from the next chunk or token on; with 0 only figures are kept.
    pub fn set_budget(&self, bytes: u64) {
        self.budget.store(bytes, Relaxed);
    }

    /// The latest token.
    pub fn latest(&self) -> Option<TokenTrace> {
        self.lock().tokens.back().cloned()
    }

    /// The token of that index, if it is still kept.
    pub fn token(&self, index: u64) -> Option<TokenTrace> {
        let ring = self.lock();
        let first = ring.tokens.front()?.index;
        ring.tokens.get(usize::try_from(index.checked_sub(first)?).ok()?).cloned()
    }

    /// Those of the tokens in `range` that are still kept, in order; all from one instant.
    pub fn tokens(&self, range: Range<u64>) -> Vec<TokenTrace> {
        let ring = self.lock();
        let Some(first) = ring.tokens.front().map(|token| token.index) else { return Vec::new() };
        let at = |index: u64| usize::try_from(index.saturating_sub(first)).unwrap_or(usize::MAX).min(ring.tokens.len());
        let (start, end) = (at(range.start), at(range.end));
        ring.tokens.range(start..end.max(start)).cloned().collect()
    }

    /// Which tokens are kept.
    pub fn kept(&self) -> Kept {
        let ring = self.lock();
        let first = ring.tokens.front().map_or(0, |token| token.index);
        let end = first + ring.tokens.len() as u64;
        Kept { tokens: first..end, masks: end - ring.masked as u64..end, bytes: ring.bytes, budget: self.budget() }
    }

    /// How often a layer's neurons fire; empty for a layer that is not watched.
    pub fn tally(&self, layer: usize) -> LayerTally {
        let mut tally = LayerTally::default();
        self.tally.read(layer, &mut tally);
        tally
    }

    /// The same into memory that is there already: for whoever asks for every picture.
    pub fn read_tally(&self, layer: usize, into: &mut LayerTally) {
        self.tally.read(layer, into);
    }

    /// Bytes of the counts, which do not change.
    pub fn tally_bytes(&self) -> u64 {
        self.tally.bytes()
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        // Nothing is left half done where it is held.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For the writer: the ring if nobody is reading it, or in any case if it has `time` to wait.
    pub(super) fn ring(&self, time: bool) -> Option<MutexGuard<'_, Ring>> {
        if time {
            return Some(self.lock());
        }
        match self.ring.try_lock() {
            Ok(ring) => Some(ring),
            Err(TryLockError::Poisoned(ring)) => Some(ring.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// Bytes a token's masks take, the hot one among them if it is not the token's before.
fn mask_bytes(token: &TokenTrace, before: Option<&TokenTrace>) -> u64 {
    let hot = match (&token.hot, before.and_then(|before| before.hot.as_ref())) {
        (Some(hot), Some(before)) if Arc::ptr_eq(hot, before) => 0,
        (hot, _) => hot.as_ref().map_or(0, |hot| size_of_val(&**hot) as u64),
    };
    token.masks.as_ref().map_or(0, |masks| masks.bytes()) + hot
}

impl Ring {
    /// Appends `tokens` and forgets what is then too much. Masks nobody else holds come back in `spare`, if that is short.
    pub fn append(&mut self, tokens: impl Iterator<Item = TokenTrace>, budget: u64, spare: &mut Vec<TokenMasks>) {
        for token in tokens {
            if self.tokens.back().is_some_and(|last| last.index + 1 != token.index) {
                *self = Ring::default();
            }
            if token.masks.is_some() {
                self.bytes += mask_bytes(&token, self.tokens.back().filter(|_| self.masked > 0));
                self.masked += 1;
            } else {
                // Masks are kept of the latest only.
                self.thin(self.masked, spare);
            }
            self.tokens.push_back(token);
            while self.bytes > budget && self.masked > 0 {
                self.thin(1, spare);
            }
            if self.tokens.len() > MOST_TOKENS {
                if self.masked == self.tokens.len() {
                    self.thin(1, spare);
                }
                self.tokens.pop_front();
            }
        }
    }

    /// Forgets the masks of the `count` oldest tokens that have any.
    fn thin(&mut self, count: usize, spare: &mut Vec<TokenMasks>) {
        for _ in 0..count {
            let at = self.tokens.len() - self.masked;
            let next_hot = self.tokens.get(at + 1).and_then(|next| next.hot.clone());
            let Some(token) = self.tokens.get_mut(at) else { return };
            let shared = match (&token.hot, &next_hot) {
                (Some(hot), Some(next)) => Arc::ptr_eq(hot, next),
                _ => false,
            };
            let hot = token.hot.take().filter(|_| !shared).map_or(0, |hot| size_of_val(&*hot) as u64);
            self.masked -= 1;
            let Some(masks) = token.masks.take() else { continue };
            self.bytes = self.bytes.saturating_sub(masks.bytes() + hot);
            if let Some(mut masks) = Arc::into_inner(masks).filter(|_| spare.len() < 2) {
                masks.clear();
                spare.push(masks);
            }
        }
    }
}
