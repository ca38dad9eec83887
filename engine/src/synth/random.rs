//! Random rows. ChaCha8 (a counter-based generator: any row can be made on its own) drives sums of four bytes, which are
//! near enough to normal for weights and cost a few instructions.

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

/// Purpose of a random stream; streams of different purposes are independent.
#[derive(Debug, Clone, Copy)]
#[repr(u64)]
pub(super) enum StreamPurpose {
    Embedding,
    Positions,
    Output,
    AttentionQkv,
    AttentionQ,
    AttentionK,
    AttentionV,
    AttentionOutput,
    Direction,
    RowTerms,
    Firing,
    Up,
    Down,
    Order,
    SampleTokens,
    SampleNoise,
    Router,
    Experts,
    SharedGate,
    SharedUp,
    SharedDown,
    PerLayerTable,
    PerLayerProjection,
    PerLayerGate,
    PerLayerOutput,
    LatentQueries,
    LatentKeys,
    FirstGate,
    FirstUp,
    FirstDown,
}

/// Source of random rows: a seed and a layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowSource {
    pub(super) seed: u64,
    pub(super) layer: usize,
}

impl RowSource {
    /// The stream of one row.
    pub(super) fn stream(self, purpose: StreamPurpose, row: usize) -> ChaCha8Rng {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream((self.layer as u64) << 40 | (purpose as u64) << 32 | row as u64);
        rng
    }

    /// Fills `row` with numbers of mean 0 and standard deviation `std`.
    pub(super) fn normal(self, purpose: StreamPurpose, at: usize, std: f32, row: &mut [f32]) {
        fill_normal(&mut self.stream(purpose, at), std, row);
    }
}

/// Fills `out` with numbers of mean 0 and standard deviation `std`; none is beyond 3.5 of these.
pub(super) fn fill_normal(rng: &mut ChaCha8Rng, std: f32, out: &mut [f32]) {
    // Four bytes, each uniform over 0..256: mean 4 * 127.5, variance 4 * (256^2 - 1) / 12.
    let factor = std / ((65536.0f32 - 1.0) / 3.0).sqrt();
    let mut bytes = [0; 4096];
    for out in out.chunks_mut(bytes.len() / 4) {
        let bytes = &mut bytes[..4 * out.len()];
        rng.fill_bytes(bytes);
        for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
            let word = u32::from_le_bytes(*bytes);
            let pairs = (word & 0x00ff_00ff) + (word >> 8 & 0x00ff_00ff);
            let sum = (pairs & 0xffff) + (pairs >> 16);
            *out = (sum as i32 - 510) as f32 * factor;
        }
    }
}

/// A permutation of `0..n`.
pub(super) fn permutation(rng: &mut ChaCha8Rng, n: usize) -> Vec<usize> {
    let mut keys: Vec<(u64, usize)> = (0..n).map(|at| (rng.next_u64(), at)).collect();
    keys.sort_unstable();
    keys.into_iter().map(|(_, at)| at).collect()
}
