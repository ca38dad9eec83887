//! CPU kernels. The instruction set is chosen once at run time ([`Isa`]), every SIMD kernel has a scalar oracle beside
//! it, and all work goes through one [`ThreadPool`]. [`Cpu::matmul`] multiplies weights in their file type: row by row
//! (GEMV) for one token, blocked (GEMM) for many. [`ops`] holds what stands between the matrix products.

mod isa;
mod matmul;
pub mod ops;
mod pool;
mod simd;

pub use isa::Isa;
pub use matmul::MatmulJob;
pub use pool::ThreadPool;

use crate::error::Result;

/// How to use the CPU.
#[derive(Debug, Clone, Default)]
pub struct CpuOptions {
    /// Worker threads including the caller; default: one per physical core.
    pub threads: Option<usize>,
    /// Instruction set; default: the best this machine has. Asking for one it lacks is an error.
    pub isa: Option<Isa>,
}

/// The CPU as a processor: an instruction set and a thread pool.
#[derive(Debug)]
pub struct Cpu {
    isa: Isa,
    pool: ThreadPool,
}

impl Cpu {
    /// Starts the workers.
    pub fn new(options: &CpuOptions) -> Result<Self> {
        let isa = Isa::choose(options.isa)?;
        Ok(Cpu { isa, pool: ThreadPool::new(options.threads) })
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The workers.
    pub fn pool(&self) -> &ThreadPool {
        &self.pool
    }
}
