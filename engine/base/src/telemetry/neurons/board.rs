//! The board: the records of the latest tokens, readable by any thread.

use std::{
    ops::Range,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::{Mutex, MutexGuard};

use super::{LayerTally, NeuronRecorder, NeuronShape, Pace, TokenTrace, pace::SharedPace, ring::Ring, tally::Tally};

/// Most tokens whose figures are kept.
pub const MOST_TOKENS: usize = 1000;

/// Default budget for masks, in bytes. It holds all 1000 tokens of a 7B model (44 KB each), or 230
/// of an 80-layer model with 28672 neurons per layer (287 KB each).
pub const DEFAULT_BUDGET: u64 = 64 << 20;

/// Level of detail at which the neurons' activity is recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Watch {
    /// Nothing.
    Off,
    /// Which neurons fire.
    #[default]
    Firing,
    /// Which neurons fire and how strongly, which costs the engine more.
    Strength,
}

/// The tokens the board holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptTokens {
    /// Indices of the tokens whose figures are kept.
    pub tokens: Range<u64>,
    /// Indices of the tokens whose masks are kept as well.
    pub masks: Range<u64>,
    /// Bytes of the kept masks.
    pub bytes: u64,
    /// Most bytes of masks.
    pub budget: u64,
}

/// The record of a model's neurons, see [the module](super). The first reader of a token builds its
/// trace, and other readers share the trace. If a reader holds the board, the writer continues and
/// tries again at its next token.
#[derive(Debug)]
pub struct NeuronBoard {
    shape: NeuronShape,
    pub(super) tally: Tally,
    watch: AtomicU8,
    /// Indexed by [`Watch`].
    pub(super) paces: [SharedPace; 3],
    budget: AtomicU64,
    /// An f32: the fraction of the output mass that firing neurons hold. 0 if the other neurons are
    /// exactly zero.
    mass: AtomicU32,
    /// Norms of each layer's down columns, `[n_ff]`, once known.
    norms: Box<[OnceLock<Vec<f32>>]>,
    /// True if a reader asked for tokens since the last [`NeuronBoard::was_read`].
    read: AtomicBool,
    ring: Mutex<Ring>,
}

impl NeuronBoard {
    /// Returns an empty board and its recorder.
    pub fn new(shape: NeuronShape) -> (Arc<Self>, NeuronRecorder) {
        let board = Arc::new(NeuronBoard {
            tally: Tally::new(&shape),
            norms: (0..shape.layers()).map(|_| OnceLock::new()).collect(),
            mass: AtomicU32::new(0),
            shape,
            watch: AtomicU8::new(Watch::default() as u8),
            paces: Default::default(),
            budget: AtomicU64::new(DEFAULT_BUDGET),
            read: AtomicBool::new(true),
            ring: Mutex::default(),
        });
        (Arc::clone(&board), NeuronRecorder::new(board))
    }

    /// The layers and their neurons.
    pub fn shape(&self) -> &NeuronShape {
        &self.shape
    }

    /// The level of detail at which activity is recorded.
    pub fn watch(&self) -> Watch {
        [Watch::Off, Watch::Firing, Watch::Strength][usize::from(self.watch.load(Relaxed).min(2))]
    }

    /// Changes the level of detail, from the next chunk or token on.
    pub fn set_watch(&self, watch: Watch) {
        self.watch.store(watch as u8, Relaxed);
    }

    /// The fraction of a layer's output mass that defines firing: the fewest neurons that hold it
    /// together fire. `None` if every neuron that is not zero fires.
    pub fn mass(&self) -> Option<f32> {
        Some(f32::from_bits(self.mass.load(Relaxed))).filter(|fraction| *fraction > 0.0)
    }

    /// Changes the fraction of the output mass, from the next chunk or token on. `None` for models
    /// whose neurons are zero for most tokens.
    pub fn set_mass(&self, fraction: Option<f32>) {
        self.mass.store(fraction.unwrap_or(0.0).clamp(0.0, 1.0).to_bits(), Relaxed);
    }

    /// Sets the norms of the down columns of `layer`, `[n_ff]`, which weigh masses from now on.
    /// Later calls for the layer are ignored.
    pub fn set_norms(&self, layer: usize, norms: Vec<f32>) {
        if let Some(kept) = self.norms.get(layer).filter(|_| norms.len() == self.shape.neurons(layer)) {
            // Norms that are already set do not change.
            let _ = kept.set(norms);
        }
    }

    /// The norms of `layer`. Empty until they are set.
    pub fn norms(&self, layer: usize) -> &[f32] {
        self.norms.get(layer).and_then(OnceLock::get).map_or(&[], Vec::as_slice)
    }

    /// Recent decoding speed while `watch` was recorded. `None` if no token was decoded since the
    /// model was opened, or since the way or place of computation changed.
    pub fn pace(&self, watch: Watch) -> Option<Pace> {
        self.paces[watch as usize].get()
    }

    /// Most bytes of masks to keep.
    pub fn budget(&self) -> u64 {
        self.budget.load(Relaxed)
    }

    /// Changes the budget, from the next chunk or token on. With 0 only figures are kept.
    pub fn set_budget(&self, bytes: u64) {
        self.budget.store(bytes, Relaxed);
    }

    /// Trace of the latest token.
    pub fn latest(&self) -> Option<TokenTrace> {
        let mut ring = self.reading();
        let last = ring.len().checked_sub(1)?;
        ring.get_mut(last).map(|record| record.trace(&self.shape).clone())
    }

    /// Trace of the token with this index, if it is still kept.
    pub fn token(&self, index: u64) -> Option<TokenTrace> {
        let mut ring = self.reading();
        let at = usize::try_from(index.checked_sub(ring.first()?)?).ok()?;
        ring.get_mut(at).map(|record| record.trace(&self.shape).clone())
    }

    /// Traces of the tokens in `range` that are still kept, in order. All are read at one instant.
    pub fn tokens(&self, range: Range<u64>) -> Vec<TokenTrace> {
        let mut ring = self.reading();
        let Some(first) = ring.first() else { return Vec::new() };
        let at = |index: u64| usize::try_from(index.saturating_sub(first)).unwrap_or(usize::MAX).min(ring.len());
        let (start, end) = (at(range.start), at(range.end));
        (start..end).filter_map(|at| Some(ring.get_mut(at)?.trace(&self.shape).clone())).collect()
    }

    /// The ranges of the kept tokens, and the bytes of their masks.
    pub fn kept(&self) -> KeptTokens {
        let ring = self.ring.lock();
        let first = ring.first().unwrap_or(0);
        let end = first + ring.len() as u64;
        let (masked, bytes) = ring.masked();
        KeptTokens { tokens: first..end, masks: end - masked as u64..end, bytes, budget: self.budget() }
    }

    /// How often the neurons of a layer fire. Empty for a layer that is not watched.
    pub fn tally(&self, layer: usize) -> LayerTally {
        let mut tally = LayerTally::default();
        self.tally.read(layer, &mut tally);
        tally
    }

    /// Writes [`NeuronBoard::tally`] into existing memory, for readers that ask once per frame.
    pub fn read_tally(&self, layer: usize, into: &mut LayerTally) {
        self.tally.read(layer, into);
    }

    /// Locks the ring for a reader, and notes that it was read.
    fn reading(&self) -> MutexGuard<'_, Ring> {
        self.read.store(true, Relaxed);
        self.ring.lock()
    }

    /// True if a reader asked for tokens since the last call.
    pub(super) fn was_read(&self) -> bool {
        // Swapping at every token would take the cache line from the readers.
        self.read.load(Relaxed) && self.read.swap(false, Relaxed)
    }

    /// Locks the ring for the writer. `None` while a reader holds it, unless the writer has `time`
    /// to wait.
    pub(super) fn ring(&self, time: bool) -> Option<MutexGuard<'_, Ring>> {
        if time { Some(self.ring.lock()) } else { self.ring.try_lock() }
    }
}
