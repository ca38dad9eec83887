//! The measurements of one test, and the record made of them.

use super::{
    BenchOptions, Test,
    device::{BenchDevice, DeviceDescription, model_type, predictor_kind},
    limit::{BandwidthLimit, median},
    reads::ReadCounter,
    record::{Extra, LatencyPercentiles, LongestSubmission, Record, mean_and_deviation},
};
use thermocline_formats::format::ReadMode;
use thermocline_lab::calibration::cpu_name;
use thermocline_model::Model;
use thermocline_run::runtime::{KvCache, Sparsity};

/// Times of repetitions in milliseconds, and the reads of their tokens.
#[derive(Default)]
pub(super) struct Gaps {
    pub first: Vec<f64>,
    pub tokens: Vec<f64>,
    pub reads: ReadCounter,
    /// True if reads are counted, which slows a GPU down.
    pub records: bool,
}

impl Gaps {
    pub fn recording(records: bool) -> Self {
        Gaps { records, ..Gaps::default() }
    }

    /// Fraction of the tokens' time that the CPU waited for the device; `None` if reads were not
    /// counted.
    fn waiting(&self) -> Option<f64> {
        let seconds = self.tokens.iter().sum::<f64>() / 1e3;
        (self.records && seconds > 0.0).then(|| self.reads.waited() / seconds)
    }
}

/// The measured repetitions of one test.
pub(super) struct Measured {
    pub test: Test,
    /// Start time of the repetitions.
    pub time: String,
    /// Seconds of each repetition.
    pub seconds: Vec<f64>,
    pub gaps: Gaps,
    /// A repetition that counted reads and was not timed. It is present if counting slows the
    /// device down.
    pub recorded: Option<Gaps>,
    /// Memory bandwidth around each repetition.
    pub limits: Vec<BandwidthLimit>,
    /// The longest submission of all repetitions.
    pub longest: Option<LongestSubmission>,
}

/// Bytes that a generated token reads, and their rate.
struct ReadFigures {
    bytes_per_token: Option<u64>,
    /// Bytes of single-neuron rows among them.
    scattered: u64,
    bytes_per_second: Option<f64>,
    /// Achieved fraction of the memory bandwidth.
    bandwidth_fraction: Option<f64>,
}

impl Measured {
    /// Number of tokens of a repetition.
    fn tokens(&self) -> f64 {
        (self.test.prompt + self.test.generate) as f64
    }

    /// Tokens per second of each repetition.
    fn speeds(&self) -> Vec<f64> {
        self.seconds.iter().map(|s| self.tokens() / s).collect()
    }

    /// Computes the figures of reads, and sets `bandwidth_fraction` in every limit.
    fn read_figures(&mut self, model: &Model, on: &DeviceDescription, kv: &KvCache) -> ReadFigures {
        let (test, tokens) = (self.test, self.tokens());
        let per_token = self.recorded.as_ref().unwrap_or(&self.gaps).reads.per_token();
        let (ffn, scattered) = per_token.unwrap_or((model.dense_ffn_bytes(), 0));
        // The average generated token has half of the other generated tokens before it.
        let context = test.depth + test.prompt + test.generate / 2;
        let bytes_per_token = model.always_read_bytes() + ffn + kv.read_bytes(context);
        let generating = test.generate > 0 && test.prompt == 0;
        if generating {
            for (limit, seconds) in self.limits.iter_mut().zip(&self.seconds) {
                limit.set_bandwidth_fraction(seconds / tokens, bytes_per_token, scattered);
            }
        }
        // A placed model reads two memories, and only the CPU's reads are counted.
        let bytes_per_token = match on.placed {
            Some(_) => per_token.map(|(ffn, _)| ffn),
            None => Some(bytes_per_token),
        };
        let (per_second, _) = mean_and_deviation(&self.speeds());
        let bytes_per_second =
            bytes_per_token.filter(|_| generating && on.placed.is_none()).map(|bytes| bytes as f64 * per_second);
        let bandwidth_fraction = match on.copy_bandwidth {
            Some(copies) => bytes_per_second.map(|rate| rate / copies),
            None => median(self.limits.iter().filter_map(|limit| limit.bandwidth_fraction)),
        };
        ReadFigures { bytes_per_token, scattered, bytes_per_second, bandwidth_fraction }
    }

    pub fn record(mut self, options: &BenchOptions, model: &Model, device: &BenchDevice, kv: &KvCache) -> Record {
        let on = device.described(model.config.n_layer());
        let (read, speeds) = (self.read_figures(model, &on, kv), self.speeds());
        let Measured { test, time, seconds, gaps, recorded, limits, longest } = self;
        let recorded = recorded.as_ref().unwrap_or(&gaps);
        let tensors = model.checkpoint.tensors();
        let size: usize = tensors.iter().map(|tensor| tensor.data.len()).sum();
        let params: usize = tensors.iter().map(|tensor| tensor.len()).sum();
        let nanoseconds: Vec<f64> = seconds.iter().map(|s| s * 1e9).collect();
        let (avg_ns, stddev_ns) = mean_and_deviation(&nanoseconds);
        let (avg_ts, stddev_ts) = mean_and_deviation(&speeds);
        let kv_name = kv.ty().name().to_lowercase();
        Record {
            cpu_info: cpu_name(),
            gpu_info: on.gpu.clone(),
            backends: on.backend,
            model_filename: model.checkpoint.path.display().to_string(),
            model_type: model_type(model, params),
            model_size: size as u64,
            model_n_params: params as u64,
            n_batch: options.chunk,
            n_ubatch: options.chunk,
            n_threads: on.threads,
            cpu_mask: "0x0".to_owned(),
            type_k: kv_name.clone(),
            type_v: kv_name,
            n_gpu_layers: on.layers,
            split_mode: "none".to_owned(),
            devices: if on.gpu.is_empty() { "none".to_owned() } else { on.gpu },
            tensor_split: "0.00".to_owned(),
            tensor_buft_overrides: "none".to_owned(),
            use_mmap: options.load.read_mode == ReadMode::Map,
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
                rounding_types: on.rounding_types,
                sparsity: options.sparsity.to_string(),
                predictor: (options.sparsity == Sparsity::Predicted).then(|| predictor_kind(model)).flatten(),
                placement: on.placed.map(|at| at.granularity.to_string()),
                split: on.placed.and_then(|at| at.split),
                hot_fraction: on.hot_fraction,
                hit_rate: on.placed.and_then(|_| recorded.reads.hit_rate(model.ffn_layers())),
                waiting: on.placed.and_then(|_| recorded.waiting()),
                vram_budget: on.vram_budget,
                vram_used: on.vram_used,
                bytes_per_token: read.bytes_per_token,
                scattered_bytes_per_token: read.scattered,
                active_neurons: recorded.reads.active(model),
                bytes_per_second: read.bytes_per_second,
                read_bandwidth: median(limits.iter().map(|limit| limit.read_bandwidth)).unwrap_or(on.read_bandwidth),
                copy_bandwidth: on.copy_bandwidth,
                scattered_bandwidth: median(limits.iter().filter_map(|limit| limit.scattered_bandwidth)),
                bandwidth_fraction: read.bandwidth_fraction,
                limits,
                ttft_ms: (!gaps.first.is_empty()).then(|| mean_and_deviation(&gaps.first).0),
                itl_ms: LatencyPercentiles::of(&gaps.tokens),
                longest_submission: longest,
                ..Extra::default()
            },
            ..Record::default()
        }
    }
}
