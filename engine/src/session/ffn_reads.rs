//! Compares the FFN bytes that decoded tokens read with the bytes that the same FFNs read without
//! skipping.

use super::FfnReads;
use thermocline_base::telemetry::neurons::LayerFiring;
use thermocline_model::{Ffn, FfnWeights, Model};

/// Bytes and neurons of a layer's FFN without skipping. An MoE layer counts only the experts in
/// use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct FfnSize {
    pub bytes: u64,
    pub neurons: u64,
}

impl FfnSize {
    /// The FFN sizes of all layers.
    pub fn of_layers(model: &Model) -> Vec<FfnSize> {
        let bytes = |ffn: &FfnWeights| ffn.linears().map(|linear| linear.weight.byte_len() as u64).sum::<u64>();
        let rows = |ffn: &FfnWeights| ffn.up.weight.rows() as u64;
        let used = model.config.experts.map_or(1, |experts| experts.used) as u64;
        let of = |ffn: &Ffn| match ffn {
            Ffn::None => FfnSize::default(),
            Ffn::Dense(ffn) => FfnSize { bytes: bytes(ffn), neurons: rows(ffn) },
            Ffn::Experts(moe) => {
                let count = moe.experts.len().max(1) as u64;
                let used = used.min(count);
                let routed: u64 = moe.experts.iter().map(bytes).sum();
                let shared = moe.shared.as_ref().map_or((0, 0), |shared| (bytes(&shared.ffn), rows(&shared.ffn)));
                let neurons = moe.experts.first().map_or(0, rows);
                FfnSize { bytes: routed / count * used + shared.0, neurons: neurons * used + shared.1 }
            }
        };
        model.weights.layers.iter().map(|layer| of(&layer.ffn)).collect()
    }
}

impl FfnReads {
    /// Adds a layer's report on one token; `dense` is true if the mode skips nothing.
    pub(super) fn add(&mut self, sizes: &[FfnSize], firing: &LayerFiring<'_>, dense: bool) {
        let Some(size) = sizes.get(firing.layer).filter(|size| firing.tokens == 1 && size.bytes > 0) else { return };
        let fired: u64 = firing.fired.iter().map(|word| u64::from(word.count_ones())).sum();
        self.read_bytes += firing.cpu_bytes;
        self.dense_bytes += size.bytes;
        self.neurons += size.neurons;
        self.used_neurons += if dense { size.neurons } else { fired.min(size.neurons) };
        self.on_device |= firing.hot.is_some_and(|hot| hot.iter().any(|word| *word != 0)) || firing.gpu_ns > 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_compared_with_the_dense_ffn() {
        let sizes = [FfnSize { bytes: 1000, neurons: 40 }, FfnSize::default()];
        let mut reads = FfnReads::default();
        assert_eq!(reads.spared(), None);
        let firing = LayerFiring { tokens: 1, fired: &[0b1011, 1], cpu_bytes: 250, ..LayerFiring::default() };
        reads.add(&sizes, &firing, false);
        reads.add(&sizes, &firing, false);
        // Neither a report on several tokens nor a layer without an FFN is counted.
        reads.add(&sizes, &LayerFiring { tokens: 2, ..firing }, false);
        reads.add(&sizes, &LayerFiring { layer: 1, ..firing }, false);
        assert_eq!((reads.read_bytes, reads.dense_bytes), (500, 2000));
        assert_eq!((reads.used_neurons, reads.neurons, reads.spared()), (8, 80, Some(0.75)));
        reads.add(&sizes, &LayerFiring { hot: Some(&[1, 0]), ..firing }, true);
        assert_eq!((reads.used_neurons, reads.on_device), (48, true));
    }
}
