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
    runtime::{DEFAULT_CHUNK, KvType, RoutePreference, Sparsity},
};

/// One test of a benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Test {
    /// Prompt tokens, computed in chunks.
    pub prompt: usize,
    /// Tokens generated one by one after the prompt.
    pub generate: usize,
    /// Tokens already in the context.
    pub depth: usize,
}

/// The tests of a benchmark and their settings.
#[derive(Debug, Clone)]
pub struct BenchOptions {
    /// Tests to run. The default is llama-bench's: 512 prompt tokens, then 128 generated tokens.
    pub tests: Vec<Test>,
    /// Timed runs per test.
    pub repetitions: usize,
    /// True to run each test once untimed before the timed runs.
    pub warm_up: bool,
    /// Threads and instruction set.
    pub cpu: CpuOptions,
    /// The GPU to compute on; `None` for the CPU.
    pub gpu: Option<GpuOptions>,
    /// Effort of measuring a GPU.
    pub effort: GpuEffort,
    /// Granularity in which as much of the model as fits is placed on the GPU; `None` places the
    /// whole model there.
    pub placement: Option<Granularity>,
    /// A PowerInfer split to follow for the placement of neurons.
    pub split: Option<PathBuf>,
    /// Folder with the measured speeds of machines, which plans use.
    pub speeds: Option<PathBuf>,
    /// Streaming of cold neurons for prompts of placed models, as in
    /// [`EngineOptions::stream_prompts`](crate::session::EngineOptions::stream_prompts).
    pub stream_prompts: Option<bool>,
    /// Sparsity mode of generated tokens.
    pub sparsity: Sparsity,
    /// Level of input sparsity, for all modes except dense.
    pub level: Option<f32>,
    /// Preference of routers for resident experts while tokens are generated.
    pub routes: RoutePreference,
    /// Encoding of cached keys and values.
    pub kv_type: KvType,
    /// Number of prompt tokens computed at once.
    pub chunk: usize,
    /// Options of loading the model.
    pub load: LoadOptions,
    /// Where to look for the model's sidecar.
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
            routes: RoutePreference::OFF,
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
    /// The model is being loaded and the machine measured.
    Preparing,
    /// The model is open, with this sidecar attached.
    Opened(&'a SidecarAttachment),
    /// A timed run starts.
    Repetition {
        /// The test.
        test: Test,
        /// Number of the run, from 1.
        number: usize,
        /// Number of timed runs of the test.
        of: usize,
    },
    /// A test is done.
    Done(&'a Record),
}
