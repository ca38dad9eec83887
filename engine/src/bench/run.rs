//! The tests of llama-bench: a prompt of random tokens, or generation of random tokens, after a
//! context of some depth. The measured time excludes tokenising and sampling.

use std::{ops::ControlFlow, path::Path, sync::Arc, time::Instant};

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::{
    BenchOptions, Progress, Record, Test,
    device::BenchDevice,
    limit::{BandwidthLimit, LimitProbe},
    measured::{Gaps, Measured},
    placed,
    reads::neuron_row,
    record::now_utc,
};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::{Cpu, CpuOptions, InputPrecision, ThreadPool};
use thermocline_formats::format::ReadMode;
use thermocline_gpu::Gpu;
use thermocline_lab::{
    calibration::{GpuSpeed, MemoryKind, gpu_speed},
    sparsity::sidecar,
};
use thermocline_model::Model;
use thermocline_run::{
    device::GpuLoad,
    hybrid::HybridProcessor,
    runtime::{Forward, KvCache, Outputs, Probe, Sparsity},
};

/// Loads the model and runs the tests in order.
///
/// # Errors
/// As [`Model::open`] and [`Forward::run`]; [`Error::Invalid`] for a test without tokens.
pub fn run(path: &Path, options: &BenchOptions, progress: &mut dyn FnMut(Progress<'_>)) -> Result<Vec<Record>> {
    let mut bench = Bench::open(path, options, progress)?;
    options.tests.iter().map(|test| bench.test(*test, progress)).collect()
}

/// A loaded model and the measured machine.
pub(super) struct Bench<'a> {
    options: &'a BenchOptions,
    forward: Forward,
    device: BenchDevice,
}

/// A test's tokens, and the cache that receives them.
pub(super) struct PreparedTest {
    test: Test,
    kv: KvCache,
    tokens: Vec<u32>,
}

/// Number of the largest logits that are read back for a generated token, as sampling does.
const SHORTLIST: usize = 40;

impl<'a> Bench<'a> {
    pub fn open(path: &Path, options: &'a BenchOptions, progress: &mut dyn FnMut(Progress<'_>)) -> Result<Self> {
        progress(Progress::Preparing);
        let mut model = Model::open(path, &options.load)?;
        options.routes.check(&model)?;
        progress(Progress::Opened(&sidecar::attach(&mut model, &options.sidecar, options.load.read_mode)?));
        let level = options.level.filter(|_| options.sparsity != Sparsity::Dense);
        if let Some(level) = level {
            model.skip_inputs(level)?;
        }
        let (mut forward, device) = match (&options.gpu, options.placement) {
            (None, _) => {
                let cpu = Cpu::new(&options.cpu)?;
                let pool = ThreadPool::new(Some(cpu.pool().threads()));
                let limits = LimitProbe::new(match options.load.read_mode {
                    ReadMode::Map => MemoryKind::Small,
                    ReadMode::Read => MemoryKind::Large,
                })?;
                // Input-major copies exist only of the file's own weights.
                if !matches!((options.sparsity, level), (Sparsity::Dense, _) | (Sparsity::Threshold, Some(_))) {
                    model = model.neuron_major(&pool, &mut |_, _| ControlFlow::Continue(()))?.0;
                }
                let isa = cpu.isa().to_string();
                (Forward::new(Arc::new(model), cpu), BenchDevice::Cpu { pool, isa, limits })
            }
            (Some(gpu), Some(granularity)) => {
                let (forward, gpu, speed, at) = placed::open(model, gpu, granularity, options)?;
                (forward, BenchDevice::Gpu { gpu, speed, placed: Some(at) })
            }
            (Some(gpu), None) => {
                let model = Arc::new(model);
                let gpu = Gpu::open(&gpu.of_floats(options.cpu.activations == InputPrecision::Float))?;
                let speed = gpu_speed(&gpu, &options.effort)?;
                let load = GpuLoad { chunk: options.chunk, ..GpuLoad::default() };
                // The CPU computes no layer, so that more threads would only wait.
                let cpu = Cpu::new(&CpuOptions { threads: Some(1), ..options.cpu })?;
                let mut go_on = |_, _| ControlFlow::Continue(());
                let processor = HybridProcessor::load_whole(&gpu, cpu, &model, &load, &mut go_on)?;
                (Forward::on(model, Box::new(processor)), BenchDevice::Gpu { gpu, speed, placed: None })
            }
        };
        forward.set_chunk(options.chunk);
        forward.set_sparsity(options.sparsity);
        forward.set_routes(options.routes);
        Ok(Bench { options, forward, device })
    }

    /// The GPU and its speed, if a GPU computes.
    pub fn gpu(&self) -> Option<(&Gpu, &GpuSpeed)> {
        match &self.device {
            BenchDevice::Cpu { .. } => None,
            BenchDevice::Gpu { gpu, speed, .. } => Some((gpu, speed)),
        }
    }

    /// Returns the tokens of `test` and a cache with the tokens before them, after the warm-up.
    pub fn prepare(&mut self, test: Test) -> Result<PreparedTest> {
        if test.prompt + test.generate == 0 {
            return Err(Error::invalid("benchmark", "prompt tokens or generated tokens", "no tokens"));
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
        let mut prepared = PreparedTest { test, kv, tokens };
        if self.options.warm_up {
            self.repeat(&mut prepared, test.generate.min(1), &mut Gaps::default())?;
        }
        Ok(prepared)
    }

    /// Runs the test once and returns the seconds it took.
    pub fn once(&mut self, prepared: &mut PreparedTest) -> Result<f64> {
        self.repeat(prepared, prepared.test.generate, &mut Gaps::default())
    }

    fn repeat(
        &mut self,
        PreparedTest { test, kv, tokens }: &mut PreparedTest,
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
            let probe: &mut dyn Probe = if gaps.records { &mut gaps.reads } else { &mut () };
            match self.device {
                BenchDevice::Cpu { .. } => drop(self.forward.run(&[*token], kv, Outputs::Last, probe)?),
                BenchDevice::Gpu { .. } => drop(self.forward.top(&[*token], kv, SHORTLIST, probe)?),
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
        let on_cpu = matches!(self.device, BenchDevice::Cpu { .. });
        let (mut seconds, mut gaps, mut limits) = (Vec::new(), Gaps::recording(on_cpu), Vec::new());
        let of = self.options.repetitions.max(1);
        let mut before = self.limit(&gaps);
        if let Some((gpu, _)) = self.gpu() {
            gpu.pace().forget_longest();
        }
        for number in 1..=of {
            progress(Progress::Repetition { test, number, of });
            seconds.push(self.repeat(&mut prepared, test.generate, &mut gaps)?);
            let after = self.limit(&gaps);
            limits.extend(before.zip(after).map(|(before, after)| before.mean_with(after)));
            before = after;
        }
        let longest = self.gpu().and_then(|(gpu, _)| gpu.pace().longest()).map(Into::into);
        let mut recorded = None;
        if matches!(self.device, BenchDevice::Gpu { placed: Some(_), .. }) && test.generate > 0 {
            let mut recording = Gaps::recording(true);
            self.repeat(&mut prepared, test.generate, &mut recording)?;
            recorded = Some(recording);
        }
        let measured = Measured { test, time, seconds, gaps, recorded, limits, longest };
        let record = measured.record(self.options, self.forward.model(), &self.device, &prepared.kv);
        progress(Progress::Done(&record));
        Ok(record)
    }

    /// The current memory bandwidth, for tokens like those in `gaps`; `None` on a GPU.
    fn limit(&mut self, gaps: &Gaps) -> Option<BandwidthLimit> {
        let BenchDevice::Cpu { pool, limits, .. } = &mut self.device else { return None };
        let model = self.forward.model();
        let scattered = gaps.reads.per_token().is_some_and(|(_, scattered)| scattered > 0);
        let fraction = gaps.reads.active(model).filter(|fraction| scattered && *fraction > 0.0);
        Some(limits.measure(pool, neuron_row(model).zip(fraction)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Peer, compare};
    use thermocline_cpu::CpuOptions;
    use thermocline_gpu::{AdapterChoice, GpuOptions};
    use thermocline_lab::calibration::GpuEffort;

    #[test]
    fn bench_records_have_the_fields_of_llama_bench() {
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
        let longest = &json["thermocline"]["longest_submission"];
        assert!(longest["ms"].as_f64().unwrap() > 0.0 && longest["work"].as_u64().unwrap() > 0, "{json}");
        assert!(longest["tokens"] == 1 && (longest["layers"].is_null() || longest["layers"][0].is_u64()), "{json}");

        let empty = BenchOptions { tests: vec![Test { prompt: 0, generate: 0, depth: 0 }], ..options };
        assert!(matches!(run(&path, &empty, &mut |_| {}), Err(Error::Invalid { .. })));
    }
}
