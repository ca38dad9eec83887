//! What was measured of one test, and the record that makes of it.

use super::{
    device::{Device, model_type, predictor_kind},
    limit::{Limit, median},
    reads::{Reads, always_read, dense_ffns},
    record::{Extra, Percentiles, Record, mean_and_deviation},
    run::{BenchOptions, Test},
};
use crate::{
    format::ReadMode,
    model::{KvCache, Model, Sparsity},
    sparsity::measure::cpu_name,
};

/// Times of repetitions, in milliseconds, and what their tokens read.
#[derive(Default)]
pub(super) struct Gaps {
    pub first: Vec<f64>,
    pub tokens: Vec<f64>,
    pub reads: Reads,
    /// Whether to look at what tokens read. It costs a GPU time.
    pub looks: bool,
}

impl Gaps {
    pub fn looking(looks: bool) -> Self {
        Gaps { looks, ..Gaps::default() }
    }

    /// Share of the tokens' time that the CPU waited for the device; `None` where no token was looked at.
    fn waiting(&self) -> Option<f64> {
        let seconds = self.tokens.iter().sum::<f64>() / 1e3;
        (self.looks && seconds > 0.0).then(|| self.reads.waited() / seconds)
    }
}

/// One test's repetitions.
pub(super) struct Measured {
    pub test: Test,
    /// When they began.
    pub time: String,
    /// Each one's.
    pub seconds: Vec<f64>,
    pub gaps: Gaps,
    /// One that was looked at and not timed, where looking costs time.
    pub seen: Option<Gaps>,
    /// What memory gave around each.
    pub limits: Vec<Limit>,
}

impl Measured {
    pub fn record(self, options: &BenchOptions, model: &Model, device: &Device, kv: &KvCache) -> Record {
        let Measured { test, time, seconds, gaps, seen, mut limits } = self;
        let seen = seen.as_ref().unwrap_or(&gaps);
        let active = seen.reads.active(model);
        let per_token = seen.reads.per_token();
        let (ffn, scattered) = per_token.unwrap_or((dense_ffns(model), 0));
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
        let kv_name = kv.ty().name().to_lowercase();
        let on = device.described(model.config.n_layer());
        if generating {
            for (limit, seconds) in limits.iter_mut().zip(&seconds) {
                limit.hold(seconds / tokens, bytes_per_token, scattered);
            }
        }
        // Of two memories that share the bytes only one tells.
        let bytes_per_token = match on.placed {
            Some(_) => per_token.map(|(ffn, _)| ffn),
            None => Some(bytes_per_token),
        };
        let bytes_per_second =
            bytes_per_token.filter(|_| generating && on.placed.is_none()).map(|bytes| bytes as f64 * avg_ts);
        let bandwidth_share = match on.copy_bandwidth {
            Some(copies) => bytes_per_second.map(|rate| rate / copies),
            None => median(limits.iter().filter_map(|limit| limit.bandwidth_share)),
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
                sparsity: options.sparsity.to_string(),
                predictor: (options.sparsity == Sparsity::Predicted).then(|| predictor_kind(model)).flatten(),
                placement: on.placed.map(|at| at.granularity.to_string()),
                split: on.placed.and_then(|at| at.split),
                hot_fraction: on.hot_fraction,
                hit_rate: on.placed.and_then(|_| seen.reads.hit_rate(model.config.n_layer())),
                waiting: on.placed.and_then(|_| seen.waiting()),
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
        }
    }
}
