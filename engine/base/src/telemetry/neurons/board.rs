//! The board: records of the latest tokens, readable by any thread.

use std::{
    ops::Range,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::{Mutex, MutexGuard};

use super::{LayerTally, NeuronRecorder, NeuronShape, Pace, TokenTrace, pace::SharedPace, ring::Ring, tally::Tally};

/// Tokens whose figures are kept.
pub const MOST_TOKENS: usize = 1000;

/// Bytes of masks that are kept unless told otherwise: all 1000 tokens of a 7B model (44 KB each), 230 of an 80-layer model
/// with 28672 neurons each (287 KB).
pub const DEFAULT_BUDGET: u64 = 64 << 20;

/// How much of the neurons' activity is recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Watch {
    /// Nothing.
    Off,
    /// Neurons that fire.
    #[default]
    Firing,
    /// And how strongly, which costs the engine more.
    Strength,
}

/// The tokens the board holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptTokens {
    /// Indices of the tokens whose figures are kept.
    pub tokens: Range<u64>,
    /// Those of them whose masks are kept, too.
    pub masks: Range<u64>,
    /// Bytes of these masks.
    pub bytes: u64,
    /// Most bytes of masks.
    pub budget: u64,
}

/// A model's neurons, as [the module](super) says. The first reader of a token builds its trace, others share it; a
/// writer that finds one at it goes on and comes back with its next token.
#[derive(Debug)]
pub struct NeuronBoard {
    shape: NeuronShape,
    pub(super) tally: Tally,
    watch: AtomicU8,
    /// By [`Watch`].
    pub(super) paces: [SharedPace; 3],
    budget: AtomicU64,
    /// An f32: fraction of the output mass; 0 where neurons fire or are zero.
    mass: AtomicU32,
    /// Of each layer, `[n_ff]`: norms of the down columns, once they are known.
    norms: Box<[OnceLock<Vec<f32>>]>,
    /// True if a reader asked for tokens since the last [`NeuronBoard::was_read`].
    read: AtomicBool,
    ring: Mutex<Ring>,
}

impl NeuronBoard {
    /// An empty board, and what writes to it.
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

    /// Layers and their neurons.
    pub fn shape(&self) -> &NeuronShape {
        &self.shape
    }

    /// The activity that is recorded.
    pub fn watch(&self) -> Watch {
        [Watch::Off, Watch::Firing, Watch::Strength][usize::from(self.watch.load(Relaxed).min(2))]
    }

    /// Changes what is recorded, from the next chunk or token on.
    pub fn set_watch(&self, watch: Watch) {
        self.watch.store(watch as u8, Relaxed);
    }

    /// Fraction of a layer's output mass that the neurons of a token have to hold together to be those that fire; `None` where
    /// neurons fire that are not zero.
    pub fn mass(&self) -> Option<f32> {
        Some(f32::from_bits(self.mass.load(Relaxed))).filter(|fraction| *fraction > 0.0)
    }

    /// Changes it, from the next chunk or token on; `None` for models whose neurons are zero for most tokens.
    pub fn set_mass(&self, fraction: Option<f32>) {
        self.mass.store(fraction.unwrap_or(0.0).clamp(0.0, 1.0).to_bits(), Relaxed);
    }

    /// Norms of the down columns of `layer`, `[n_ff]`, by which masses are weighed from now on. The first call counts.
    pub fn set_norms(&self, layer: usize, norms: Vec<f32>) {
        if let Some(kept) = self.norms.get(layer).filter(|_| norms.len() == self.shape.neurons(layer)) {
            // What is known already does not change.
            let _ = kept.set(norms);
        }
    }

    /// The norms of `layer`; empty while they are not known.
    pub fn norms(&self, layer: usize) -> &[f32] {
        self.norms.get(layer).and_then(OnceLock::get).map_or(&[], Vec::as_slice)
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
        let mut ring = self.reading();
        let last = ring.len().checked_sub(1)?;
        ring.get_mut(last).map(|record| record.trace(&self.shape).clone())
    }

    /// The token of that index, if it is still kept.
    pub fn token(&self, index: u64) -> Option<TokenTrace> {
        let mut ring = self.reading();
        let at = usize::try_from(index.checked_sub(ring.first()?)?).ok()?;
        ring.get_mut(at).map(|record| record.trace(&self.shape).clone())
    }

    /// Those of the tokens in `range` that are still kept, in order; all from one instant.
    pub fn tokens(&self, range: Range<u64>) -> Vec<TokenTrace> {
        let mut ring = self.reading();
        let Some(first) = ring.first() else { return Vec::new() };
        let at = |index: u64| usize::try_from(index.saturating_sub(first)).unwrap_or(usize::MAX).min(ring.len());
        let (start, end) = (at(range.start), at(range.end));
        (start..end).filter_map(|at| Some(ring.get_mut(at)?.trace(&self.shape).clone())).collect()
    }

    /// Ranges of the tokens that are kept, and their bytes.
    pub fn kept(&self) -> KeptTokens {
        let ring = self.ring.lock();
        let first = ring.first().unwrap_or(0);
        let end = first + ring.len() as u64;
        let (masked, bytes) = ring.masked();
        KeptTokens { tokens: first..end, masks: end - masked as u64..end, bytes, budget: self.budget() }
    }

    /// How often a layer's neurons fire; empty for a layer that is not watched.
    pub fn tally(&self, layer: usize) -> LayerTally {
        let mut tally = LayerTally::default();
        self.tally.read(layer, &mut tally);
        tally
    }

    /// [`NeuronBoard::tally`] into existing memory, for readers that ask once per frame.
    pub fn read_tally(&self, layer: usize, into: &mut LayerTally) {
        self.tally.read(layer, into);
    }

    /// The ring, for a reader; notes that it was read.
    fn reading(&self) -> MutexGuard<'_, Ring> {
        self.read.store(true, Relaxed);
        self.ring.lock()
    }

    /// True if a reader asked for tokens since the last call.
    pub(super) fn was_read(&self) -> bool {
        // The writer would otherwise take the line from the readers with every token.
        self.read.load(Relaxed) && self.read.swap(false, Relaxed)
    }

    /// The ring, for the writer: `None` while a reader holds it, unless the writer has `time` to wait.
    pub(super) fn ring(&self, time: bool) -> Option<MutexGuard<'_, Ring>> {
        if time { Some(self.ring.lock()) } else { self.ring.try_lock() }
    }
}
