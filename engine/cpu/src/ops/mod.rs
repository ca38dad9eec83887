//! Vector operations between the matrix products: norms, rotary embedding, attention, activations.
//! Each is a method of [`Cpu`] over `[tokens, n]` rows. The caller does the work of a single token
//! alone, and workers share larger work. Kernels are written once over
//! [`Vector`](super::simd::vector::Vector). The tests compare each instruction set with plain
//! arithmetic in f64.

mod activation;
mod attend;
pub(crate) mod attention;
mod attention_window;
mod block_product;
mod delta_block;
mod delta_net;
mod elementwise;
mod head_sizes;
mod kv_rows;
mod mamba2;
mod mamba2_block;
mod math;
mod norm;
mod rope;
mod short_conv;
mod softmax;

pub use super::simd::vector::tile::TILE as KV_TILE;
pub use activation::{Activation, ActivationForm, SWIGLU_LIMIT, SWIGLU_SLOPE, softplus};
pub use attend::PositionBias;
pub use attention::{AttentionScratch, AttentionShape, Queries, SeenRows};
pub use attention_window::AttentionWindow;
pub use delta_net::{DeltaNetScratch, DeltaNetShape, DeltaNetTokens};
pub use head_sizes::HeadSizes;
pub use kv_rows::{KvRows, KvType};
pub use mamba2::{Mamba2Scratch, Mamba2Shape, Mamba2Tokens};
pub use rope::{ROPE_AXES, RopePosition, RopeRows, RopeTable};
pub use short_conv::ShortConv;
pub use softmax::{softmax_in_place, top_k};

use parking_lot::Mutex;

use super::Cpu;

/// Consecutive tokens of one head.
#[derive(Debug, Clone, Copy)]
struct HeadTokens {
    head: usize,
    /// Index of the first token.
    first: usize,
    count: usize,
}

/// Fewest elements for which a join saves time.
const PARALLEL_ELEMENTS: usize = 1 << 15;

impl Cpu {
    /// Calls `task(worker, item)` for every item. The caller does all items alone unless the work,
    /// in elements, is worth a join.
    fn for_each_item<T: Send>(&self, items: &mut [T], work: usize, task: impl Fn(usize, &mut T) + Sync) {
        match work < PARALLEL_ELEMENTS {
            true => items.iter_mut().for_each(|item| task(0, item)),
            false => self.pool().for_each(items, task),
        }
    }

    /// Calls `task(i, chunk i)` for every `len` elements of `data`, on all workers if there is
    /// enough work. `weight` is the cost of an element relative to reading it.
    fn for_each_chunk(&self, data: &mut [f32], len: usize, weight: usize, task: impl Fn(usize, &mut [f32]) + Sync) {
        if self.pool().threads() == 1 || data.len() * weight < PARALLEL_ELEMENTS || data.len() <= len {
            for (i, chunk) in data.chunks_mut(len).enumerate() {
                task(i, chunk);
            }
            return;
        }
        // Workers take several chunks at a time, so that they rarely wait for the lock.
        let batch = (data.len() / len / (self.pool().threads() * 8)).max(1);
        let queue = Mutex::new(data.chunks_mut(len * batch).enumerate());
        self.pool().run_on_the_free(|_| {
            while let Some((at, chunks)) = next(&queue) {
                for (i, chunk) in chunks.chunks_mut(len).enumerate() {
                    task(at * batch + i, chunk);
                }
            }
        });
    }
}

/// Bytes of a scan's buffers.
fn bytes_of<const N: usize>(buffers: [&Vec<f32>; N]) -> u64 {
    buffers.iter().map(|buffer| (buffer.capacity() * size_of::<f32>()) as u64).sum()
}

/// Makes each of a scan's buffers at least as long as requested.
fn fit<const N: usize>(buffers: [(&mut Vec<f32>, usize); N]) {
    for (buffer, len) in buffers {
        buffer.resize(buffer.len().max(len), 0.0);
    }
}

/// The next item of a queue shared by workers.
fn next<I: Iterator>(queue: &Mutex<I>) -> Option<I::Item> {
    queue.lock().next()
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::{Cpu, CpuOptions, Isa};

    /// The next random number from `seed`, in -1..1.
    pub(crate) fn noise(seed: &mut u64) -> f32 {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 40) as f32 / 8_388_608.0 - 1.0
    }

    /// One single-threaded CPU per instruction set, and one with three workers and the best
    /// instruction set.
    pub(crate) fn each_cpu() -> Vec<Cpu> {
        let with =
            |threads, isa| Cpu::new(&CpuOptions { threads: Some(threads), isa, ..CpuOptions::default() }).unwrap();
        let mut cpus: Vec<Cpu> = Isa::available().into_iter().map(|isa| with(1, Some(isa))).collect();
        cpus.push(with(3, None));
        cpus
    }
}
