//! One token's firings.

use std::sync::Arc;

use super::NeuronShape;

/// The place of a token in a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PicturePatch {
    /// SHA-256 of the picture's size and pixels.
    pub picture: [u8; 32],
    /// Index of the token in its picture.
    pub token: u32,
    /// Number of the picture's tokens.
    pub tokens: u32,
    /// Rows of a grid over the whole picture, of which the token sees a cell. The overview and the
    /// slices of a picture have different grids. Tokens may share a cell.
    pub rows: u32,
    /// Columns of the grid.
    pub cols: u32,
    /// Index of the cell, counted row by row.
    pub index: u32,
}

impl PicturePatch {
    /// Row and column, from 1.
    pub fn place(self) -> [u32; 2] {
        let cols = self.cols.max(1);
        [self.index / cols + 1, self.index % cols + 1]
    }
}

/// Figures and masks of every layer for one token. It shares its contents with the board, so that
/// clones are cheap.
#[derive(Debug, Clone)]
pub struct TokenTrace {
    /// Index of the token, counted over all sessions from 0.
    pub index: u64,
    /// Token id in the vocabulary.
    pub token: u32,
    /// The place in a picture, for a token of a picture.
    pub patch: Option<PicturePatch>,
    /// Number of the session.
    pub session: u64,
    /// Position in the session's context.
    pub position: usize,
    /// True for a generated token, false for a token of a prompt.
    pub decoded: bool,
    /// The figures of each layer.
    pub layers: Arc<[LayerTrace]>,
    /// Masks of the neurons that fired, while the board has room for them.
    pub masks: Option<Arc<TokenMasks>>,
    /// `[all words]`: mask of the neurons that were resident in VRAM. `None` if there were none, or
    /// if `masks` is discarded. Consecutive tokens share the mask until it changes.
    pub hot: Option<Arc<[u32]>>,
}

/// A layer's figures of one token. Bytes and times of a prompt's chunk are shared equally among its
/// tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LayerTrace {
    /// Neurons that fired.
    pub fired: u32,
    /// Neurons that fired and were resident in VRAM.
    pub hot: u32,
    /// Number of experts chosen. `None` for a layer without experts.
    pub experts: Option<u32>,
    /// Neurons that the predictor selected. `None` if no predictor ran.
    pub predicted: Option<u32>,
    /// Neurons that fired although the predictor did not select them. Known only for tokens whose
    /// every neuron was computed.
    pub missed: Option<u32>,
    /// Bytes of weights that the CPU read.
    pub cpu_bytes: u64,
    /// Bytes that crossed the bus.
    pub bus_bytes: u64,
    /// Nanoseconds that a device worked, attention included. 0 if not measured, as in the next two
    /// fields.
    pub gpu_ns: u64,
    /// Nanoseconds that the CPU worked on the FFN.
    pub cpu_ns: u64,
    /// Nanoseconds that the CPU waited for the device.
    pub wait_ns: u64,
}

impl LayerTrace {
    /// Neurons that fired and were computed by the CPU.
    pub fn cold(&self) -> u32 {
        self.fired - self.hot
    }

    /// Sum of two layers' figures.
    fn plus(self, other: LayerTrace) -> LayerTrace {
        let add = |a: Option<u32>, b: Option<u32>| match (a, b) {
            (Some(a), Some(b)) => Some(a.saturating_add(b)),
            (one, none) => one.or(none),
        };
        LayerTrace {
            fired: self.fired.saturating_add(other.fired),
            hot: self.hot.saturating_add(other.hot),
            experts: add(self.experts, other.experts),
            predicted: add(self.predicted, other.predicted),
            missed: add(self.missed, other.missed),
            cpu_bytes: self.cpu_bytes.saturating_add(other.cpu_bytes),
            bus_bytes: self.bus_bytes.saturating_add(other.bus_bytes),
            gpu_ns: self.gpu_ns.saturating_add(other.gpu_ns),
            cpu_ns: self.cpu_ns.saturating_add(other.cpu_ns),
            wait_ns: self.wait_ns.saturating_add(other.wait_ns),
        }
    }
}

/// Masks of one token. The layers follow each other as in [`NeuronShape::words`].
#[derive(Debug, Default, PartialEq)]
pub struct TokenMasks {
    /// Neurons that fired.
    pub fired: Vec<u32>,
    /// Experts that were chosen, in the form of [`NeuronShape::expert_words`]. Empty for a model
    /// without MoE layers.
    pub chosen: Vec<u32>,
    /// Neurons that the predictor selected. Empty if no predictor ran.
    pub predicted: Vec<u32>,
    /// Magnitudes of the hidden activations relative to the layer's greatest, 0 to 255, in the
    /// order of [`NeuronShape::range`]. Empty unless strengths are recorded.
    pub strength: Vec<u8>,
    /// Greatest magnitude of each layer, or empty.
    pub greatest: Vec<f32>,
}

impl TokenMasks {
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        let words = [&self.fired, &self.chosen, &self.predicted].map(Vec::capacity).iter().sum::<usize>();
        ((words + self.greatest.capacity()) * 4 + self.strength.capacity()) as u64
    }

    /// Clears the masks but keeps their memory.
    pub(super) fn clear(&mut self) {
        self.fired.clear();
        self.chosen.clear();
        self.predicted.clear();
        self.strength.clear();
        self.greatest.clear();
    }
}

/// How a layer's firing differs between two tokens, as masks of the layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Neurons that fire now and did not before.
    pub began: Vec<u32>,
    /// Neurons that fired before and do not now.
    pub ended: Vec<u32>,
}

impl TokenTrace {
    /// All layers' figures together.
    pub fn total(&self) -> LayerTrace {
        self.layers.iter().fold(LayerTrace::default(), |sum, layer| sum.plus(*layer))
    }

    /// The mask of a layer's neurons that fired, if the mask is still kept.
    pub fn fired(&self, shape: &NeuronShape, layer: usize) -> Option<&[u32]> {
        self.masks.as_ref()?.fired.get(shape.words(layer))
    }

    /// The mask of the experts that an MoE layer chose, if the mask is still kept.
    pub fn chosen(&self, shape: &NeuronShape, layer: usize) -> Option<&[u32]> {
        self.masks.as_ref()?.chosen.get(shape.expert_words(layer)).filter(|chosen| !chosen.is_empty())
    }

    /// The mask of a layer's neurons that were in VRAM, if there were any and the mask is still
    /// kept.
    pub fn hot(&self, shape: &NeuronShape, layer: usize) -> Option<&[u32]> {
        self.hot.as_ref()?.get(shape.words(layer))
    }

    /// Neurons of `layer` that fire at only one of this token and `earlier`. `None` if the masks of
    /// either token are no longer kept.
    pub fn difference(&self, earlier: &TokenTrace, shape: &NeuronShape, layer: usize) -> Option<Difference> {
        let (now, before) = (self.fired(shape, layer)?, earlier.fired(shape, layer)?);
        let of = |pick: fn(u32, u32) -> u32| now.iter().zip(before).map(|(now, before)| pick(*now, *before)).collect();
        Some(Difference { began: of(|now, before| now & !before), ended: of(|now, before| before & !now) })
    }
}

/// Neurons of a mask, in order.
pub fn neurons_of(mask: &[u32]) -> impl Iterator<Item = usize> {
    mask.iter().enumerate().flat_map(|(word, bits)| {
        let mut bits = *bits;
        std::iter::from_fn(move || {
            let bit = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
            bits &= bits - 1;
            Some(word * 32 + bit)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(fired: &[u32]) -> TokenTrace {
        let layer = |fired, missed| LayerTrace { fired, hot: 1, missed, cpu_bytes: 10, ..LayerTrace::default() };
        TokenTrace {
            index: 0,
            token: 0,
            patch: None,
            session: 0,
            position: 0,
            decoded: true,
            layers: [layer(3, None), layer(4, Some(2))].into(),
            masks: Some(Arc::new(TokenMasks { fired: fired.to_vec(), ..TokenMasks::default() })),
            hot: None,
        }
    }

    #[test]
    fn trace_totals_and_differences_match_their_masks() {
        let shape = NeuronShape::new([40, 8]);
        let (before, now) = (trace(&[0b0110, 1, 0b1111]), trace(&[0b1010, 0, 0b1111]));
        let total = now.total();
        assert_eq!((total.fired, total.cold(), total.missed, total.predicted), (7, 5, Some(2), None));
        let difference = |layer| now.difference(&before, &shape, layer).unwrap();
        assert_eq!(difference(0), Difference { began: vec![0b1000, 0], ended: vec![0b0100, 1] });
        assert_eq!(difference(1), Difference { began: vec![0], ended: vec![0] });
        assert_eq!(now.difference(&TokenTrace { masks: None, ..before }, &shape, 0), None);
        assert_eq!(now.hot(&shape, 0), None);
    }

    #[test]
    fn mask_lists_its_neurons() {
        assert_eq!(neurons_of(&[0, 0x8000_0001, u32::MAX]).count(), 34);
        assert_eq!(neurons_of(&[5, 0, 1 << 31]).collect::<Vec<_>>(), [0, 2, 95]);
    }
}
