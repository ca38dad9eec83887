//! CPU kernels. The instruction set is chosen once at run time ([`Isa`]), every SIMD kernel has a scalar oracle beside
//! it, and all work goes through one [`ThreadPool`]. [`Cpu::matmul`] multiplies weights in their file type: row by row
//! (GEMV) for one token, blocked (GEMM) for many. Where few neurons fire, [`Cpu::matmul_rows`] reads only chosen rows, and
//! [`Cpu::accumulate_rows`] and [`Cpu::matmul_neurons`] sum rows of a matrix that has one per neuron; the rows may be those of
//! several matrices ([`Cpu::accumulate_sums`]). [`InputMajor`] is for products with activations that are mostly zero. [`ops`] holds what stands between the matrix products.

mod activations;
mod gemm;
mod input_major;
mod isa;
mod matmul;
mod neurons;
pub mod ops;
mod picked;
mod pool;
mod scratch;
mod simd;

pub use activations::Activations;
pub use input_major::InputMajor;
pub use isa::Isa;
pub use matmul::{MatmulJob, RowsJob};
pub use neurons::RowSum;
pub use pool::{ColumnsMut, ThreadPool, split_columns};
pub use simd::prefetch;

use std::sync::Arc;

use crate::{error::Result, format::TensorType};

/// How to use the CPU.
#[derive(Debug, Clone, Default)]
pub struct CpuOptions {
    /// Worker threads including the caller; default: one per physical core.
    pub threads: Option<usize>,
    /// Instruction set; default: the best this machine has. Asking for one it lacks is an error.
    pub isa: Option<Isa>,
    /// How activations meet quantised weights.
    pub activations: Activations,
}

/// The CPU as a processor: an instruction set and a thread pool.
#[derive(Debug)]
pub struct Cpu {
    isa: Isa,
    activations: Activations,
    kernels: &'static dyn simd::Kernels,
    pool: Arc<ThreadPool>,
    /// Activations as kernels read them, one set per product in progress.
    scratch: scratch::Stock<Scratch>,
    /// Panels, one set per worker in a product.
    panels: scratch::Stock<gemm::PanelScratch>,
}

/// What one product needs apart from its panels.
#[derive(Debug, Default)]
struct Scratch {
    /// One token's inputs.
    rows: Vec<activations::RowCodes>,
    code_tiles: activations::CodeTiles,
    float_tiles: activations::FloatTiles,
    /// Which of the activations are not zero.
    active: Vec<u32>,
    /// `[parts, d]`
    partial: scratch::Buffer<f32>,
}

impl Cpu {
    /// Starts the workers.
    pub fn new(options: &CpuOptions) -> Result<Self> {
        Self::with_workers(options, Arc::new(ThreadPool::new(options.threads)))
    }

    /// With workers that others use too, in turn: two that never compute at the same time need no more threads than one.
    /// `options.threads` had its say when they were started.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) for an instruction set this machine has not.
    pub fn with_workers(options: &CpuOptions, workers: Arc<ThreadPool>) -> Result<Self> {
        let isa = Isa::choose(options.isa)?;
        Ok(Cpu {
            isa,
            activations: options.activations,
            kernels: simd::kernels(isa),
            pool: workers,
            scratch: scratch::Stock::default(),
            panels: scratch::Stock::default(),
        })
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// How activations meet quantised weights.
    pub fn activations(&self) -> Activations {
        self.activations
    }

    /// The codes that weights of `ty` are multiplied as; `None` where the product is one of floats.
    fn codes_of(&self, ty: TensorType) -> Option<simd::Grouping> {
        match self.activations {
            Activations::Int8 => simd::Grouping::of(ty),
            Activations::Float => None,
        }
    }

    /// The workers.
    pub fn pool(&self) -> &ThreadPool {
        &self.pool
    }

    /// The same, to share them ([`Cpu::with_workers`]).
    pub fn workers(&self) -> Arc<ThreadPool> {
        Arc::clone(&self.pool)
    }
}
