//! The measurements of one test, and the record made of them.

use super::{
    BenchOptions, Test,
    device::{BenchDevice, model_type, predictor_kind},
    limit::{BandwidthLimit, median},
    reads::ReadCounter,
    record::{Extra, LatencyPercentiles, Record, mean_and_deviation},
};
use crate::{
    calibration::cpu_name,
    format::ReadMode,
    model::Model,
    runtime::{KvCache, Sparsity},
};

/// Times of repetitions, in milliseconds, and the reads of their tokens.
#[derive(Default)]
pub(super) struct Gaps {
    pub first: Vec<f64>,
    pub tokens: Vec<f64>,
    pub reads: ReadCounter,
    /// True to count reads, which costs a GPU time.
    pub records: bool,
}

impl Gaps {
    pub fn recording(records: bool) -> Self {
        Gaps { records, ..Gaps::default() }
    }

    /// Fraction of the tokens' time that the CPU waited for the device; `None` if reads were not counted.
    fn waiting(&self) -> Option<f64> {
        let seconds = self.tokens.iter().sum::<f64>() / 1e3;
        (self.records && seconds > 0.0).then(|| self.reads.waited() / seconds)
    }
}

/// The repetitions of one test.
pub(super) struct Measured {
    pub test: Test,
    /// Time of their beginning.
    pub time: String,
    /// Seconds of each.
    pub seconds: Vec<f64>,
    pub gaps: Gaps,
    /// A repetition that counted reads and was not timed, where counting costs time.
    pub recorded: Option<Gaps>,
    /// Memory bandwidth around each.
    pub limits: Vec<BandwidthLimit>,
}

impl Measured {
    pub fn record(self, options: &BenchOptions, model: &Model, device: &BenchDevice, kv: &KvCache) -> Record {
        let Measured { test, time, seconds, gaps, recorded, mut limits } = self;
        let recorded = recorded.as_ref().unwrap_or(&gaps);
        let active = recorded.reads.active(model);
        let per_token = recorded.reads.per_token();
        let (ffn, scattered) = per_token.unwrap_or((model.dense_ffn_bytes(), 0));
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
        let bytes_per_token =
            model.always_read_bytes() + ffn + kv.bytes() * context as u64 / kv.capacity().max(1) as u64;
        let generating = test.generate > 0 && test.prompt == 0;
        let kv_name = kv.ty().name().to_lowercase();
        let on = device.described(model.config.n_layer());
        if generating {
            for (limit, seconds) in limits.iter_mut().zip(&seconds) {
                limit.set_bandwidth_fraction(seconds / tokens, bytes_per_token, scattered);
            }
        }
        // Under a placement two memories are read, of which only the CPU's is counted.
        let bytes_per_token = match on.placed {
            Some(_) => per_token.map(|(ffn, _)| ffn),
            None => Some(bytes_per_token),
        };
        let bytes_per_second =
            bytes_per_token.filter(|_| generating && on.placed.is_none()).map(|bytes| bytes as f64 * avg_ts);
        let bandwidth_fraction = match on.copy_bandwidth {
            Some(copies) => bytes_per_second.map(|rate| rate / copies),
            None => median(limits.iter().filter_map(|limit| limit.bandwidth_fraction)),
        };
        Record {
            build_commit: String::new(),
            build_number: 0,
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
            use_mmap: options.load.read_mode == ReadMode::Map,
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
                bytes_per_token,
                scattered_bytes_per_token: scattered,
                active_neurons: active,
                bytes_per_second,
                read_bandwidth: median(limits.iter().map(|limit| limit.read_bandwidth)).unwrap_or(on.read_bandwidth),
                copy_bandwidth: on.copy_bandwidth,
                scattered_bandwidth: median(limits.iter().filter_map(|limit| limit.scattered_bandwidth)),
                bandwidth_fraction,
                limits,
                ttft_ms: (!gaps.first.is_empty()).then(|| mean_and_deviation(&gaps.first).0),
                itl_ms: LatencyPercentiles::of(&gaps.tokens),
                energy_j_per_token: None,
                power_source: None,
            },
        }
    }
}
