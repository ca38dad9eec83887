//! Options, tests and progress of a benchmark.

use std::path::PathBuf;

use serde::Serialize;

use super::Record;
use thermocline_cpu::CpuOptions;
use thermocline_gpu::GpuOptions;
use thermocline_lab::{
    calibration::GpuEffort,
    sparsity::sidecar::{SidecarAttachment, SidecarChoice},
};
use thermocline_model::LoadOptions;
use thermocline_run::{
    placement::Granularity,
    runtime::{DEFAULT_CHUNK, KvType, Sparsity},
};

/// One test of a benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Test {
    /// Prompt tokens, computed in chunks.
    pub prompt: usize,
    /// Tokens generated one by one behind the prompt.
    pub generate: usize,
    /// Tokens already in the context.
    pub depth: usize,
}

/// Tests to run, and how.
#[derive(Debug, Clone)]
pub struct BenchOptions {
    /// llama-bench's defaults: 512 prompt tokens, then 128 generated.
    pub tests: Vec<Test>,
    /// Timed runs per test.
    pub repetitions: usize,
    /// Run each test once without timing it before it is timed.
    pub warm_up: bool,
    /// Threads and instruction set.
    pub cpu: CpuOptions,
    /// The GPU that computes; the CPU if there is none.
    pub gpu: Option<GpuOptions>,
    /// Effort of measuring a GPU.
    pub effort: GpuEffort,
    /// The pieces in which as much of the model as fits goes to the GPU; `None`: all of it.
    pub placement: Option<Granularity>,
    /// A split of PowerInfer's to follow, where neurons are placed.
    pub split: Option<PathBuf>,
    /// Folder in which the speeds of machines are kept, to plan with.
    pub speeds: Option<PathBuf>,
    /// Streaming of cold neurons for prompts, as in
    /// [`EngineOptions::stream_prompts`](crate::session::EngineOptions::stream_prompts); for placed models.
    pub stream_prompts: Option<bool>,
    /// Sparsity mode in which tokens are generated.
    pub sparsity: Sparsity,
    /// Level of input sparsity, in every mode but dense.
    pub level: Option<f32>,
    /// Encoding of cached keys and values.
    pub kv_type: KvType,
    /// Prompt tokens computed at once.
    pub chunk: usize,
    /// Options of loading the model.
    pub load: LoadOptions,
    /// Place of its sidecar.
    pub sidecar: SidecarChoice,
}

impl Default for BenchOptions {
    fn default() -> Self {
        BenchOptions {
            tests: vec![Test { prompt: 512, generate: 0, depth: 0 }, Test { prompt: 0, generate: 128, depth: 0 }],
            repetitions: 5,
            warm_up: true,
            cpu: CpuOptions::default(),
            gpu: None,
            effort: GpuEffort::default(),
            placement: None,
            split: None,
            speeds: None,
            stream_prompts: None,
            sparsity: Sparsity::Dense,
            level: None,
            kv_type: KvType::default(),
            chunk: DEFAULT_CHUNK,
            load: LoadOptions::default(),
            sidecar: SidecarChoice::default(),
        }
    }
}

/// The progress of a benchmark.
#[derive(Debug, Clone, Copy)]
pub enum Progress<'a> {
    /// Loading the model, measuring the machine.
    Preparing,
    /// The model is open, with this sidecar.
    Opened(&'a SidecarAttachment),
    /// A timed run starts.
    Repetition {
        /// The test.
        test: Test,
        /// From 1.
        number: usize,
        /// Number of timed runs of the test.
        of: usize,
    },
    /// A test is done.
    Done(&'a Record),
}
