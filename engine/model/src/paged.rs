//! Models that are larger than the RAM that they may use.

use std::{ops::Range, sync::Arc};

use super::{EmbeddingHead, Ffn, Linear, Model, PredictorKind, mask};
use thermocline_formats::format::{Bytes, Matrix, PagedAccess, PagedTensor, Pager};

/// Units that are looked up at a time, a multiple of the bits of a word. Reads of weights wait
/// meanwhile.
const UNITS_AT_ONCE: usize = 1024;

impl Model {
    /// Keeps at most `bytes` bytes of the model's weights in RAM and reads the others from disk
    /// when they are needed. Returns `None`, and changes nothing, if all weights fit or are in RAM
    /// already. The matrices of its sidecar and of its draft head are included.
    pub fn keep_within(&self, bytes: u64) -> Option<Arc<Pager>> {
        Pager::attach(&self.paged_tensors(), bytes)
    }

    /// The bytes of the matrices that every token reads, in files.
    pub fn matrices_of_each_token(&self) -> impl Iterator<Item = Bytes> {
        self.paged_tensors().into_iter().filter(|it| it.access == PagedAccess::Matrix).map(|it| it.data)
    }

    /// Decides which weights are in RAM. `None` if all of them are.
    pub fn pager(&self) -> Option<&Pager> {
        self.checkpoint.files().pager()
    }

    /// Returns the units of `layer` (neurons, or the experts of an MoE layer) whose weights are in
    /// RAM, one bit each as in [`mask`]. The weights of the others are only on disk, or in GPU
    /// memory. Weights may come and go meanwhile. `None` without a pager.
    pub fn in_ram(&self, layer: usize) -> Option<Vec<u32>> {
        let (pager, ffn) = (self.pager()?, &self.weights.layers.get(layer)?.ffn);
        let mut in_ram = vec![0; mask::words(ffn.units())];
        for (units, words) in steps(ffn.units()).zip(in_ram.chunks_mut(mask::words(UNITS_AT_ONCE))) {
            let (first, n) = (units.start, units.len());
            pager.present(|is_present| mask::fill(words, n, |unit| ffn.rows_of(first + unit).all(is_present)));
        }
        Some(in_ram)
    }

    /// True if the weights of one unit of [`Model::in_ram`] are in RAM.
    pub fn is_in_ram(&self, layer: usize, unit: usize) -> Option<bool> {
        let (pager, ffn) = (self.pager()?, &self.weights.layers.get(layer)?.ffn);
        (unit < ffn.units()).then(|| pager.present(|is_present| ffn.rows_of(unit).all(is_present)))
    }

    /// The matrices in files that the CPU may read.
    fn paged_tensors(&self) -> Vec<PagedTensor> {
        let mut all = Vec::new();
        let mut add = |matrix: &Matrix, access: PagedAccess| {
            if matrix.file().is_some() {
                all.push(PagedTensor { data: matrix.bytes().clone(), access });
            }
        };
        for model in [Some(self), self.draft_head.as_deref()].into_iter().flatten() {
            model.tables().for_each(|matrix| add(matrix, PagedAccess::Table));
            model.matrices_of_no_layer().for_each(|linear| add(&linear.weight, PagedAccess::Matrix));
            for layer in &model.weights.layers {
                layer.mixers().for_each(|linear| add(&linear.weight, PagedAccess::Matrix));
                match layer.predictor.as_ref().map(|predictor| &predictor.kind) {
                    Some(PredictorKind::LowRank { fc1, fc2 }) => {
                        [fc1, fc2].into_iter().for_each(|matrix| add(matrix, PagedAccess::Matrix))
                    }
                    Some(PredictorKind::Rows { rows, .. }) => add(rows, PagedAccess::Matrix),
                    None => {}
                }
                match &layer.ffn {
                    Ffn::None => {}
                    Ffn::Dense(ffn) => {
                        let all = ffn.linears().chain(&ffn.bundled_gate);
                        all.for_each(|linear| add(&linear.weight, PagedAccess::Matrix));
                    }
                    Ffn::Experts(moe) => {
                        moe.always_read().for_each(|linear| add(&linear.weight, PagedAccess::Matrix));
                        let chosen = moe.experts.iter().flat_map(|expert| expert.linears());
                        chosen.for_each(|linear| add(&linear.weight, PagedAccess::Experts));
                    }
                }
            }
        }
        all
    }

    /// The matrices of which a token reads one row.
    fn tables(&self) -> impl Iterator<Item = &Matrix> {
        let weights = &self.weights;
        let per_layer = weights.per_layer.iter().map(|table| &table.rows);
        let of_token = [&weights.token_embedding].into_iter().chain(&weights.token_types);
        of_token.chain(&weights.position_embedding).chain(per_layer)
    }

    /// The heads, and maps around the layers.
    fn matrices_of_no_layer(&self) -> impl Iterator<Item = &Linear> {
        let weights = &self.weights;
        let per_layer = weights.per_layer.iter().map(|table| &table.projection);
        let of_states = weights.state_input.iter().map(|state| &state.projection);
        let altup = weights.altup.iter().flat_map(|altup| altup.projections.iter().chain(&altup.unembed));
        let assistant = weights.assistant.iter().flat_map(|of| {
            let centroids = of.centroids.iter().map(|centroids| &centroids.rows);
            [&of.input, &of.state].into_iter().chain(centroids)
        });
        let EmbeddingHead { dense, classifier } = &weights.embedding_head;
        let ranking = classifier.iter().flat_map(|of| of.dense.iter().chain([&of.output]));
        let of_text = dense.iter().chain(ranking);
        per_layer.chain(of_states).chain(altup).chain(assistant).chain(of_text).chain([&weights.output])
    }
}

/// Divides `n` units into ranges of at most [`UNITS_AT_ONCE`].
fn steps(n: usize) -> impl Iterator<Item = Range<usize>> {
    (0..n).step_by(UNITS_AT_ONCE).map(move |first| first..n.min(first + UNITS_AT_ONCE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_fill_whole_words_of_a_mask() {
        assert_eq!(mask::words(UNITS_AT_ONCE) * 32, UNITS_AT_ONCE);
        assert_eq!(steps(2049).collect::<Vec<_>>(), [0..1024, 1024..2048, 2048..2049]);
        assert_eq!(steps(0).count(), 0);
        assert_eq!(mask::words(2049).div_ceil(mask::words(UNITS_AT_ONCE)), steps(2049).count());
    }
}
