//! One token's record on the board, kept as reported until the first reader asks for the token's
//! trace.

use std::sync::Arc;

use super::{LayerFiring, LayerTrace, NeuronShape, PicturePatch, TokenMasks, TokenTrace};

/// Masks and figures of one token. Its trace is built for the first reader, and most tokens are
/// never read. The memory of unread records is reused as it is.
#[derive(Debug, Default)]
pub(super) struct TokenRecord {
    /// As in [`TokenTrace`], like the next five fields.
    pub index: u64,
    pub token: u32,
    pub patch: Option<PicturePatch>,
    pub session: u64,
    pub position: usize,
    pub decoded: bool,
    /// The figures of each layer. If masks are kept, neurons and experts are not counted yet.
    /// `predicted` and `missed` then only say whether they will be counted.
    figures: Vec<LayerTrace>,
    /// Empty if no masks are kept.
    masks: TokenMasks,
    /// As in [`TokenTrace`].
    pub hot: Option<Arc<[u32]>>,
    /// The trace, built for the first reader.
    trace: Option<TokenTrace>,
}

/// The masks of a token to keep, besides the mask of its firing neurons.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keep {
    pub predicted: bool,
    pub strength: bool,
}

impl Keep {
    /// Bytes of one token's masks.
    pub fn bytes(self, shape: &NeuronShape) -> usize {
        let [words, experts, predicted, greatest, strength] = self.lengths(shape);
        (words + experts + predicted + greatest) * 4 + strength
    }

    /// Lengths of the fields of [`TokenMasks`], the strengths last.
    fn lengths(self, shape: &NeuronShape) -> [usize; 5] {
        let words = shape.total_words();
        let predicted = if self.predicted { words } else { 0 };
        let (strength, greatest) = if self.strength { (shape.total(), shape.layers()) } else { (0, 0) };
        [words, shape.total_expert_words(), predicted, greatest, strength]
    }
}

impl TokenRecord {
    /// Clears the record for a new token.
    pub fn begin(&mut self, shape: &NeuronShape, keep: Option<Keep>) {
        (self.hot, self.trace) = (None, None);
        self.figures.clear();
        resize(&mut self.figures, shape.layers());
        self.masks.clear();
        if let Some(keep) = keep {
            let [words, experts, predicted, greatest, strength] = keep.lengths(shape);
            resize(&mut self.masks.fired, words);
            resize(&mut self.masks.chosen, experts);
            resize(&mut self.masks.predicted, predicted);
            resize(&mut self.masks.greatest, greatest);
            resize(&mut self.masks.strength, strength);
        }
    }

    /// Records token `t` of a chunk's report on a layer. The report has the board's shape.
    pub fn layer(&mut self, shape: &NeuronShape, firing: &LayerFiring<'_>, t: usize) {
        let (layer, words, experts) = (firing.layer, shape.words(firing.layer), shape.expert_words(firing.layer));
        let fired = &firing.fired[t * words.len()..][..words.len()];
        let predicted = firing.predicted.map(|mask| &mask[t * words.len()..][..words.len()]);
        let chosen = firing.chosen.map(|mask| &mask[t * experts.len()..][..experts.len()]);
        let Some(figures) = self.figures.get_mut(layer) else { return };
        let per_token = |of: u64| if firing.tokens == 1 { of } else { of / firing.tokens as u64 };
        *figures = LayerTrace {
            experts: chosen.map(|_| 0),
            predicted: predicted.map(|_| 0),
            missed: predicted.filter(|_| firing.complete).map(|_| 0),
            cpu_bytes: per_token(firing.cpu_bytes),
            bus_bytes: per_token(firing.bus_bytes),
            gpu_ns: per_token(firing.gpu_ns),
            cpu_ns: per_token(firing.cpu_ns),
            wait_ns: per_token(firing.wait_ns),
            ..LayerTrace::default()
        };
        let masks = &mut self.masks;
        let Some(kept) = masks.fired.get_mut(words.clone()) else {
            count(figures, fired, predicted, chosen, firing.hot);
            return;
        };
        kept.copy_from_slice(fired);
        if let (Some(chosen), Some(kept)) = (chosen, masks.chosen.get_mut(experts)) {
            kept.copy_from_slice(chosen);
        }
        if let (Some(predicted), Some(kept)) = (predicted, masks.predicted.get_mut(words)) {
            kept.copy_from_slice(predicted);
        } else if let Some(predicted) = predicted {
            // The first layer reported no prediction, so there is no mask to keep this one in. It
            // is counted now.
            count_prediction(figures, fired, predicted);
        }
        let strength = masks.strength.get_mut(shape.range(layer));
        if let (Some(told), Some(kept), Some(greatest)) = (firing.strength, strength, masks.greatest.get_mut(layer)) {
            *greatest = told.quantise(t, kept);
        }
    }

    /// True if the token's masks are kept.
    pub fn is_masked(&self) -> bool {
        self.trace.as_ref().map_or(!self.masks.fired.is_empty(), |trace| trace.masks.is_some())
    }

    /// `[all words]`: mask of the neurons that were in VRAM.
    fn resident(&self) -> Option<&Arc<[u32]>> {
        self.trace.as_ref().map_or(self.hot.as_ref(), |trace| trace.hot.as_ref())
    }

    /// Bytes of the token's masks. Includes the mask of hot neurons unless `other` shares it.
    pub fn bytes(&self, other: Option<&TokenRecord>) -> u64 {
        let own = match &self.trace {
            Some(trace) => trace.masks.as_ref().map_or(0, |masks| masks.bytes()),
            None => self.masks.bytes(),
        };
        own + match (self.resident(), other.and_then(TokenRecord::resident)) {
            (Some(hot), Some(other)) if Arc::ptr_eq(hot, other) => 0,
            (hot, _) => hot.map_or(0, |hot| size_of_val(&**hot) as u64),
        }
    }

    /// The token's trace, built on the first call.
    pub fn trace(&mut self, shape: &NeuronShape) -> &mut TokenTrace {
        let TokenRecord { index, token, patch, session, position, decoded, figures, masks, hot, trace } = self;
        trace.get_or_insert_with(|| {
            let masks = (!masks.fired.is_empty()).then(|| std::mem::take(masks));
            if let Some(masks) = &masks {
                for (layer, figures) in figures.iter_mut().enumerate().filter(|(layer, _)| shape.neurons(*layer) > 0) {
                    let words = shape.words(layer);
                    let Some(fired) = masks.fired.get(words.clone()) else { continue };
                    let resident = hot.as_ref().and_then(|hot| hot.get(words.clone()));
                    let (predicted, chosen) = (masks.predicted.get(words), masks.chosen.get(shape.expert_words(layer)));
                    count(figures, fired, predicted, chosen, resident);
                }
            }
            TokenTrace {
                index: *index,
                token: *token,
                patch: *patch,
                session: *session,
                position: *position,
                decoded: *decoded,
                layers: std::mem::take(figures).into(),
                hot: hot.take().filter(|_| masks.is_some()),
                masks: masks.map(Arc::new),
            }
        })
    }

    /// Discards the masks but not the figures. Returns the memory of masks that no reader holds.
    pub fn thin(&mut self, shape: &NeuronShape) -> Option<Box<TokenRecord>> {
        let trace = self.trace(shape);
        trace.hot = None;
        let masks = Arc::into_inner(trace.masks.take()?)?;
        Some(Box::new(TokenRecord { masks, ..TokenRecord::default() }))
    }

    /// Takes back masks that no reader holds, to reuse their memory, after the token has left the
    /// board.
    pub fn retire(&mut self) {
        if let Some(masks) = self.trace.take().and_then(|trace| Arc::into_inner(trace.masks?)) {
            self.masks = masks;
        }
    }
}

/// Counts the neurons and experts of a layer. `figures` says which of them were reported.
fn count(
    figures: &mut LayerTrace,
    fired: &[u32],
    predicted: Option<&[u32]>,
    chosen: Option<&[u32]>,
    hot: Option<&[u32]>,
) {
    figures.fired = ones(fired);
    figures.hot = hot.map_or(0, |hot| both(fired, hot));
    if let (Some(experts), Some(chosen)) = (&mut figures.experts, chosen) {
        *experts = ones(chosen);
    }
    if let Some(predicted) = predicted.filter(|_| figures.predicted.is_some()) {
        count_prediction(figures, fired, predicted);
    }
}

fn count_prediction(figures: &mut LayerTrace, fired: &[u32], predicted: &[u32]) {
    figures.predicted = Some(ones(predicted));
    figures.missed = figures.missed.map(|_| ones(fired) - both(fired, predicted));
}

fn both(one: &[u32], other: &[u32]) -> u32 {
    one.iter().zip(other).map(|(one, other)| (one & other).count_ones()).sum()
}

fn ones(mask: &[u32]) -> u32 {
    mask.iter().map(|word| word.count_ones()).sum()
}

/// Resizes `vec` without spare capacity, because the budget counts the reserved bytes.
fn resize<T: Clone + Default>(vec: &mut Vec<T>, length: usize) {
    vec.reserve_exact(length);
    vec.resize(length, T::default());
}
