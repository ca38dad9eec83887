//! CPU kernels. The instruction set is chosen once at run time ([`Isa`]). Every SIMD kernel has a
//! scalar oracle beside it. All work runs on one [`ThreadPool`].
//!
//! - [`Cpu::matmul`] multiplies weights in their file type: row by row (GEMV) for one token, in
//!   decoded panels for several tokens.
//! - [`Cpu::matmul_rows`] reads only selected rows, for layers in which few neurons fire.
//! - [`Cpu::accumulate_rows`] and [`Cpu::matmul_neurons`] sum rows of a matrix with one row per
//!   neuron.
//! - [`Cpu::accumulate_sums`] does so for several matrices or tokens. Each sum keeps its own order.
//! - [`InputMajor`] is for products with activations that are mostly zero.
//! - [`ops`] has the operations between the matrix products.

// The print macros panic if the output is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod code_panels;
mod few_tokens;
mod firing_lists;
mod gemm;
mod input_major;
mod isa;
mod matmul;
mod neurons;
pub mod ops;
mod paged_reads;
mod pool;
mod product_input;
mod row_lists;
mod row_selection;
mod scratch;
mod simd;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use few_tokens::FEW_TOKENS;
pub use input_major::{InputMajor, InputsJob};
pub use isa::Isa;
pub use matmul::{MatmulJob, RowsJob};
pub use neurons::RowSum;
pub use pool::{ColumnsMut, ThreadPool, split_columns};
pub use product_input::InputPrecision;
pub use row_lists::TokenRows;
pub use simd::prefetch;

use thermocline_base::error::Result;
use thermocline_formats::{
    format::Matrix,
    quant::{BlockType, WeightType},
};

/// Settings of a [`Cpu`].
#[derive(Debug, Clone, Default)]
pub struct CpuOptions {
    /// Worker threads, the caller included. Default: one per physical core.
    pub threads: Option<usize>,
    /// Instruction set. Default: the best of this machine. An instruction set that this machine
    /// lacks is an error.
    pub isa: Option<Isa>,
    /// Precision of the inputs of products with quantised weights.
    pub activations: InputPrecision,
}

/// The CPU as a compute device: an instruction set and a thread pool.
#[derive(Debug)]
pub struct Cpu {
    isa: Isa,
    activations: InputPrecision,
    kernels: &'static simd::Kernels,
    pool: Arc<ThreadPool>,
    /// Inputs of products in the kernels' layouts, one set per product in progress.
    scratch: scratch::ScratchPool<Scratch>,
    /// Unpacked panels of weights, one set per worker in a product.
    panels: scratch::ScratchPool<gemm::PanelScratch>,
    /// Decoded panels of codes, one set per worker in a product.
    code_panels: scratch::ScratchPool<code_panels::CodePanelScratch>,
}

/// Scratch memory of one product, except for its panels.
#[derive(Debug, Default)]
struct Scratch {
    /// Inputs of one token, rounded to 8 bits: one entry per distinct input of the product.
    rows: Vec<product_input::QuantisedInputBuffer>,
    code_tiles: product_input::CodeTiles,
    token_tiles: code_panels::TokenTiles,
    float_tiles: product_input::FloatTiles,
    /// `[columns / 256, tokens]` of a pass of several tokens.
    lane_chunks: Vec<simd::LaneChunk>,
    /// Ascending indices of the inputs that are not zero.
    active: Vec<u32>,
    /// The neurons that fire for each token of a chunk.
    firing: firing_lists::FiringLists,
    /// `[parts, d]`
    partial: scratch::AlignedBuffer<f32>,
}

impl Cpu {
    /// Starts the workers.
    pub fn new(options: &CpuOptions) -> Result<Self> {
        Self::with_workers(options, Arc::new(ThreadPool::new(options.threads)))
    }

    /// Creates a CPU that shares `workers` with another CPU. They need no more threads than one
    /// CPU, and take turns if both compute. `options.threads` is ignored.
    ///
    /// # Errors
    /// [`Error::Unsupported`](thermocline_base::error::Error::Unsupported) if this machine lacks
    /// the instruction set.
    pub fn with_workers(options: &CpuOptions, workers: Arc<ThreadPool>) -> Result<Self> {
        let isa = Isa::choose(options.isa)?;
        Ok(Cpu {
            isa,
            activations: options.activations,
            kernels: simd::kernels(isa),
            pool: workers,
            scratch: scratch::ScratchPool::default(),
            panels: scratch::ScratchPool::default(),
            code_panels: scratch::ScratchPool::default(),
        })
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Precision of the inputs of products with quantised weights.
    pub fn activations(&self) -> InputPrecision {
        self.activations
    }

    /// The block type whose codes represent `weight` in products. `None` if products with it use
    /// floats.
    fn codes_of(&self, weight: &Matrix) -> Option<BlockType> {
        match (self.activations, weight.weight_type()) {
            (InputPrecision::Int8, WeightType::Blocks(ty)) => Some(ty),
            (InputPrecision::Float, _) | (_, WeightType::Float(_)) => None,
        }
    }

    /// The workers.
    pub fn pool(&self) -> &ThreadPool {
        &self.pool
    }

    /// The workers, for sharing ([`Cpu::with_workers`]).
    pub fn workers(&self) -> Arc<ThreadPool> {
        Arc::clone(&self.pool)
    }
}
