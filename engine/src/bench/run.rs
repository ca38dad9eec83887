//! The tests of llama-bench: a prompt of random tokens, or generation of random tokens, behind a context of some depth.
//! Tokenising and sampling are not part of the time.

use std::{ops::ControlFlow, path::Path, sync::Arc, time::Instant};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::Serialize;

use super::{
    limit::{Limit, LimitProbe, median},
    reads::{Reads, always_read, dense_ffns, neuron_row},
    record::{Extra, Percentiles, Record, mean_and_deviation, now_utc},
};
use crate::{
    cpu::{Cpu, CpuOptions, ThreadPool},
    error::{Error, Result},
    format::ReadMode,
    gpu::{Gpu, GpuOptions},
    model::{
        DEFAULT_CHUNK, Forward, GpuLoad, GpuProcessor, KvCache, KvType, LoadOptions, Model, Outputs, PredictorKind,
        Sparsity,
    },
    sparsity::measure::{GpuEffort, GpuSpeed, MemoryKind, cpu_name, gpu_speed},
};

/// One test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Test {
    /// Prompt tokens, computed in chunks.
    pub prompt: usize,
    /// Tokens generated one by one behind the prompt.
    pub generate: usize,
    /// Tokens already in the context.
    pub depth: usize,
}

/// What to run, and how.
#[derive(Debug, Clone)]
pub struct BenchOptions {
    /// llama-bench's defaults: 512 prompt tokens, then 128 generated.
    pub tests: Vec<Test>,
    /// Timed runs per test.
    pub repetitions: usize,
    /// One run that is not timed before each test.
    pub warm_up: bool,
    /// Threads and instruction set.
    pub cpu: CpuOptions,
    /// The GPU that computes; the CPU if there is none.
    pub gpu: Option<GpuOptions>,
    /// How a GPU is measured.
    pub effort: GpuEffort,
    /// What is skipped when tokens are generated.
    pub sparsity: Sparsity,
    /// Encoding of cached keys and values.
    pub kv_type: KvType,
    /// Prompt tokens computed at once.
    pub chunk: usize,
    /// How to load the model.
    pub load: LoadOptions,
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
            sparsity: Sparsity::Dense,
            kv_type: KvType::default(),
            chunk: DEFAULT_CHUNK,
            load: LoadOptions::default(),
        }
    }
}

/// What a run is doing, for a progress display.
#[derive(Debug, Clone, Copy)]
pub enum Progress<'a> {
    /// Loading the model, measuring the machine.
    Preparing,
    /// A timed run starts.
    Repetition {
        /// Which test.
        test: Test,
        /// From 1.
        number: usize,
        /// How many there will be.
        of: usize,
    },
    /// A test is done.
    Done(&'a Record),
}

/// Loads the model and runs the tests in order.
///
/// # Errors
/// As [`Model::open`] and [`Forward::run`]; [`Error::Invalid`] for a test without tokens.
pub fn run(path: &Path, options: &BenchOptions, progress: &mut dyn FnMut(Progress<'_>)) -> Result<Vec<Record>> {
    progress(Progress::Preparing);
    let mut bench = Bench::open(path, options)?;
    options.tests.iter().map(|test| bench.test(*test, progress)).collect()
}

/// A loaded model and the measured machine.
pub(super) struct Bench<'a> {
    options: &'a BenchOptions,
    forward: Forward,
    device: Device,
}

/// What computes, and what it was measured to move.
enum Device {
    Cpu { pool: ThreadPool, isa: String, limits: LimitProbe },
    Gpu { gpu: Gpu, speed: GpuSpeed },
}

/// A test's tokens, and the cache they go to.
pub(super) struct Prepared {
    test: Test,
    kv: KvCache,
    tokens: Vec<u32>,
}

/// Times of repetitions, in milliseconds, and what their tokens read.
#[derive(Default)]
struct Gaps {
    first: Vec<f64>,
    tokens: Vec<f64>,
    reads: Reads,
}

/// Largest logits read back for a generated token: what sampling looks at.
const SHORTLIST: usize = 40;

impl<'a> Bench<'a> {
    pub fn open(path: &Path, options: &'a BenchOptions) -> Result<Self> {
        let mut model = Model::open(path, &options.load)?;
        let (mut forward, device) = match &options.gpu {
            None => {
                let cpu = Cpu::new(&options.cpu)?;
                let pool = ThreadPool::new(Some(cpu.pool().threads()));
                let limits = LimitProbe::new(match options.load.read_mode {
                    ReadMode::Map => MemoryKind::Small,
                    ReadMode::Read => MemoryKind::Large,
                })?;
                if options.sparsity != Sparsity::Dense {
                    model = model.neuron_major(&pool, &mut |_, _| ControlFlow::Continue(()))?.0;
                }
                let isa = cpu.isa().to_string();
                (Forward::new(Arc::new(model), cpu), Device::Cpu { pool, isa, limits })
            }
            Some(gpu) => {
                let model = Arc::new(model);
                let gpu = Gpu::open(gpu)?;
                let speed = gpu_speed(&gpu, &options.effort)?;
                let load = GpuLoad { chunk: options.chunk, ..GpuLoad::default() };
                let processor = GpuProcessor::load(&gpu, &model, &load, &mut |_, _| ControlFlow::Continue(()))?;
                (Forward::on(model, Box::new(processor)), Device::Gpu { gpu, speed })
            }
        };
        forward.set_chunk(options.chunk);
        forward.set_sparsity(options.sparsity);
        Ok(Bench { options, forward, device })
    }

    /// The GPU that computes and its speed, if one does.
    pub fn gpu(&self) -> Option<(&Gpu, &GpuSpeed)> {
        match &self.device {
            Device::Cpu { .. } => None,
            Device::Gpu { gpu, speed } => Some((gpu, speed)),
        }
    }

    /// The tokens of `test` and a cache that holds those in front of it, after the warm-up.
    pub fn prepare(&mut self, test: Test) -> Result<Prepared> {
        if test.prompt + test.generate == 0 {
            return Err(Error::invalid("benchmark", "prompt or generated tokens", "neither"));
        }
        let capacity = test.depth + test.prompt + test.generate;
        let n_vocab = self.forward.model().config.n_vocab as u32;
        let mut kv = self.forward.kv_cache(capacity, self.options.kv_type)?;
        let mut rng = StdRng::seed_from_u64(1);
        let tokens: Vec<u32> = (0..capacity).map(|_| rng.random_range(0..n_vocab)).collect();
        let depth = &tokens[..test.depth];
        if !depth.is_empty() {
            self.forward.run(depth, &mut kv, Outputs::None, &mut ())?;
        }
        let mut prepared = Prepared { test, kv, tokens };
        if self.options.warm_up {
            self.repeat(&mut prepared, test.generate.min(1), &mut Gaps::default())?;
        }
        Ok(prepared)
    }

    /// Runs the test once and returns the seconds it took.
    pub fn once(&mut self, prepared: &mut Prepared) -> Result<f64> {
        self.repeat(prepared, prepared.test.generate, &mut Gaps::default())
    }

    fn repeat(
        &mut self,
        Prepared { test, kv, tokens }: &mut Prepared,
        generate: usize,
        gaps: &mut Gaps,
    ) -> Result<f64> {
        kv.truncate(test.depth);
        let (prompt, rest) = tokens[test.depth..].split_at(test.prompt);
        let started = Instant::now();
        if !prompt.is_empty() {
            self.forward.run(prompt, kv, Outputs::Last, &mut ())?;
            gaps.first.push(started.elapsed().as_secs_f64() * 1e3);
        }
        let mut last = Instant::now();
        for token in &rest[..generate] {
            match self.device {
                Device::Cpu { .. } => drop(self.forward.run(&[*token], kv, Outputs::Last, &mut gaps.reads)?),
                Device::Gpu { .. } => drop(self.forward.top(&[*token], kv, SHORTLIST, &mut ())?),
            }
            let now = Instant::now();
            gaps.tokens.push((now - last).as_secs_f64() * 1e3);
            last = now;
        }
        Ok(started.elapsed().as_secs_f64())
    }

    pub fn test(&mut self, test: Test, progress: &mut dyn FnMut(Progress<'_>)) -> Result<Record> {
        let time = now_utc();
        let mut prepared = self.prepare(test)?;
        let (mut seconds, mut gaps, mut limits) = (Vec::new(), Gaps::default(), Vec::new());
        let of = self.options.repetitions.max(1);
        let mut before = self.limit(&gaps);
        for number in 1..=of {
            progress(Progress::Repetition { test, number, of });
            seconds.push(self.repeat(&mut prepared, test.generate, &mut gaps)?);
            let after = self.limit(&gaps);
            limits.extend(before.zip(after).map(|(before, after)| before.between(after)));
            before = after;
        }
        let record = self.record(test, time, &seconds, &gaps, limits, &prepared.kv)?;
        progress(Progress::Done(&record));
        Ok(record)
    }

    /// What memory gives at the moment, for tokens such as those in `gaps`; `None` on a GPU.
    fn limit(&mut self, gaps: &Gaps) -> Option<Limit> {
        let Device::Cpu { pool, limits, .. } = &mut self.device else { return None };
        let model = self.forward.model();
        let scattered = gaps.reads.per_token().is_some_and(|(_, scattered)| scattered > 0);
        let share = gaps.reads.active(model.config.n_ff).filter(|share| scattered && *share > 0.0);
        Some(limits.measure(pool, neuron_row(model).zip(share)))
    }

    fn record(
        &mut self,
        test: Test,
        time: String,
        seconds: &[f64],
        gaps: &Gaps,
        mut limits: Vec<Limit>,
        kv: &KvCache,
    ) -> Result<Record> {
        let model = self.forward.model();
        let active = gaps.reads.active(model.config.n_ff);
        let (ffn, scattered) = gaps.reads.per_token().unwrap_or((dense_ffns(model), 0));
        let tensors = model.checkpoint.tensors();
        let size: usize = tensors.iter().map(|tensor| tensor.data.len()).sum();
        let params: usize = tensors.iter().map(|tensor| tensor.len()).sum();
        let tokens = (test.prompt + test.generate) as f64;
        let speeds: Vec<f64> = seconds.iter().map(|s| tokens / s).collect();
        let nanoseconds: Vec<f64> = seconds.iter().map(|s| s * 1e9).collect();
        let (avg_ns, stddev_ns) = mean_and_deviation(&nanoseconds);
        let (avg_ts, stddev_ts) = mean_and_deviation(&speeds);
        // Half of the generated tokens are behind the average one.
        let context = test.depth + test.prompt + test.generate / 2;
        let bytes_per_token = always_read(model) + ffn + kv.bytes() * context as u64 / kv.capacity().max(1) as u64;
        let generating = test.generate > 0 && test.prompt == 0;
        let bytes_per_second = generating.then_some(bytes_per_token as f64 * avg_ts);
        let kv_name = kv.ty().name().to_lowercase();
        let on = self.device.described(model.config.n_layer());
        if generating {
            for (limit, seconds) in limits.iter_mut().zip(seconds) {
                limit.hold(seconds / tokens, bytes_per_token, scattered);
            }
        }
        let bandwidth_share = match on.copy_bandwidth {
            Some(copies) => bytes_per_second.map(|rate| rate / copies),
            None => median(limits.iter().filter_map(|limit| limit.bandwidth_share)),
        };
        Ok(Record {
            build_commit: String::new(),
            build_number: 0,
            cpu_info: cpu_name(),
            gpu_info: on.gpu.clone(),
            backends: on.backend,
            model_filename: model.checkpoint.path.display().to_string(),
            model_type: model_type(model, params),
            model_size: size as u64,
            model_n_params: params as u64,
            n_batch: self.options.chunk,
            n_ubatch: self.options.chunk,
            n_threads: on.threads,
            cpu_mask: "0x0".to_owned(),
            cpu_strict: false,
            poll: 0,
            type_k: kv_name.clone(),
            type_v: kv_name,
            n_gpu_layers: on.layers,
            split_mode: "none".to_owned(),
            main_gpu: 0,
            no_kv_offload: false,
            flash_attn: false,
            devices: if on.gpu.is_empty() { "none".to_owned() } else { on.gpu },
            tensor_split: "0.00".to_owned(),
            tensor_buft_overrides: "none".to_owned(),
            use_mmap: self.options.load.read_mode == ReadMode::Map,
            embeddings: false,
            no_op_offload: 0,
            n_prompt: test.prompt,
            n_gen: test.generate,
            n_depth: test.depth,
            test_time: time,
            avg_ns: avg_ns as u64,
            stddev_ns: stddev_ns as u64,
            avg_ts,
            stddev_ts,
            samples_ns: nanoseconds.iter().map(|ns| *ns as u64).collect(),
            samples_ts: speeds,
            thermocline: Extra {
                isa: on.kernels,
                sparsity: self.options.sparsity.to_string(),
                predictor: (self.options.sparsity == Sparsity::Predicted).then(|| predictor_kind(model)).flatten(),
                hot_fraction: on.hot_fraction,
                vram_budget: on.vram_budget,
                vram_used: on.vram_used,
                bytes_per_token,
                scattered_bytes_per_token: scattered,
                active_neurons: active,
                bytes_per_second,
                read_bandwidth: median(limits.iter().map(|limit| limit.read_bandwidth)).unwrap_or(on.read_bandwidth),
                copy_bandwidth: on.copy_bandwidth,
                scattered_bandwidth: median(limits.iter().filter_map(|limit| limit.scattered_bandwidth)),
                bandwidth_share,
                limits,
                ttft_ms: (!gaps.first.is_empty()).then(|| mean_and_deviation(&gaps.first).0),
                itl_ms: Percentiles::of(&gaps.tokens),
                energy_j_per_token: None,
                power_source: None,
            },
        })
    }
}

/// What a record says of the device.
struct Described {
    backend: String,
    gpu: String,
    threads: usize,
    kernels: String,
    layers: i32,
    hot_fraction: f64,
    vram_budget: u64,
    vram_used: u64,
    read_bandwidth: f64,
    copy_bandwidth: Option<f64>,
}

impl Device {
    fn described(&self, n_layer: usize) -> Described {
        match self {
            Device::Cpu { pool, isa, .. } => Described {
                backend: "CPU".to_owned(),
                gpu: String::new(),
                threads: pool.threads(),
                kernels: isa.clone(),
                layers: 0,
                hot_fraction: 0.0,
                vram_budget: 0,
                vram_used: 0,
                // Measured with each repetition.
                read_bandwidth: 0.0,
                copy_bandwidth: None,
            },
            Device::Gpu { gpu, speed } => Described {
                backend: backend_name(&gpu.report().backend),
                gpu: gpu.report().name.clone(),
                // Only one records; the embedding's row is all the CPU computes.
                threads: 1,
                kernels: gpu.caps().tier.to_string(),
                layers: n_layer as i32,
                hot_fraction: 1.0,
                vram_budget: gpu.arena().budget(),
                vram_used: gpu.arena().used(),
                read_bandwidth: speed.read_bytes_per_second,
                copy_bandwidth: Some(speed.copy_bytes_per_second),
            },
        }
    }
}

/// As llama-bench writes it.
fn backend_name(backend: &str) -> String {
    match backend {
        "vulkan" => "Vulkan",
        "metal" => "Metal",
        "dx12" => "DX12",
        other => other,
    }
    .to_owned()
}

/// `llama 7B Q4_0`: architecture, size, the weight type most bytes have.
fn model_type(model: &Model, params: usize) -> String {
    let mut bytes = std::collections::BTreeMap::new();
    for tensor in model.checkpoint.tensors() {
        *bytes.entry(tensor.ty).or_insert(0) += tensor.data.len();
    }
    let ty = bytes.iter().max_by_key(|(_, bytes)| **bytes).map_or(String::new(), |(ty, _)| ty.to_string());
    let size = match params as f64 {
        p if p >= 1e9 => format!("{:.1}B", p / 1e9),
        p => format!("{:.1}M", p / 1e6),
    };
    format!("{} {size} {ty}", model.config.architecture)
}

/// The kind of the model's predictors, if it has any.
fn predictor_kind(model: &Model) -> Option<String> {
    let predictor = model.weights.layers.iter().find_map(|layer| layer.predictor.as_ref())?;
    Some(match predictor.kind {
        PredictorKind::LowRank { .. } => "low-rank".to_owned(),
        PredictorKind::Rows { .. } => "rows".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        bench::{Peer, compare},
        gpu::AdapterChoice,
    };

    #[test]
    fn a_model_gives_llama_benchs_fields() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/gguf/llama-silu-gqa-256-Q4_0.gguf");
        let options = BenchOptions {
            tests: vec![Test { prompt: 8, generate: 0, depth: 4 }, Test { prompt: 0, generate: 4, depth: 0 }],
            repetitions: 2,
            cpu: CpuOptions { threads: Some(2), ..CpuOptions::default() },
            ..BenchOptions::default()
        };
        let records = run(&path, &options, &mut |_| {}).unwrap();
        assert_eq!(records.iter().map(Record::test_name).collect::<Vec<_>>(), ["pp8 @ d4", "tg4"]);
        let json = serde_json::to_value(&records[1]).unwrap();
        assert_eq!(json["n_gen"], 4);
        assert_eq!(json["samples_ts"].as_array().unwrap().len(), 2);
        assert!(json["avg_ts"].as_f64().unwrap() > 0.0 && json["thermocline"]["bandwidth_share"].is_f64());

        let nowhere = Peer { program: "/nonexistent/llama-bench".into(), model: None };
        assert!(matches!(compare(&path, &options, &nowhere, &mut |_| {}), Err(Error::Io { .. })));
        let gpu = GpuOptions { adapter: AdapterChoice::Index(0), ..GpuOptions::default() };
        let effort = GpuEffort { bytes: 4 << 20, seconds: 0.002, hand_overs: 5 };
        let on_gpu = BenchOptions { gpu: Some(gpu), effort, ..options.clone() };
        let records = run(&path, &on_gpu, &mut |_| {}).unwrap();
        let json = serde_json::to_value(&records[1]).unwrap();
        assert!(json["backends"] != "CPU" && json["n_gpu_layers"].as_i64().unwrap() > 0, "{json}");
        assert!(json["thermocline"]["copy_bandwidth"].as_f64().unwrap() > 0.0, "{json}");

        let empty = BenchOptions { tests: vec![Test { prompt: 0, generate: 0, depth: 0 }], ..options };
        assert!(matches!(run(&path, &empty, &mut |_| {}), Err(Error::Invalid { .. })));
    }
}
