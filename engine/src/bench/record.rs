//! One line of a benchmark under llama-bench's field names, so that programs that read its JSON
//! also read ours.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::BandwidthLimit;
use thermocline_gpu::SubmissionTime;
use thermocline_run::placement::SplitReport;

/// Result of one test. Fields up to `samples_ts` are llama-bench's: speeds in tokens per second,
/// times in nanoseconds. Fields without a meaning here keep llama-bench's neutral value. [`Extra`]
/// holds figures that llama-bench has no field for.
#[derive(Debug, Clone, Default, Serialize)]
#[allow(missing_docs)]
pub struct Record {
    pub build_commit: String,
    pub build_number: u32,
    pub cpu_info: String,
    pub gpu_info: String,
    pub backends: String,
    pub model_filename: String,
    pub model_type: String,
    pub model_size: u64,
    pub model_n_params: u64,
    pub n_batch: usize,
    pub n_ubatch: usize,
    pub n_threads: usize,
    pub cpu_mask: String,
    pub cpu_strict: bool,
    pub poll: u32,
    pub type_k: String,
    pub type_v: String,
    pub n_gpu_layers: i32,
    pub split_mode: String,
    pub main_gpu: i32,
    pub no_kv_offload: bool,
    pub flash_attn: bool,
    pub devices: String,
    pub tensor_split: String,
    pub tensor_buft_overrides: String,
    pub use_mmap: bool,
    pub embeddings: bool,
    pub no_op_offload: u32,
    pub n_prompt: usize,
    pub n_gen: usize,
    pub n_depth: usize,
    /// ISO 8601, UTC.
    pub test_time: String,
    pub avg_ns: u64,
    pub stddev_ns: u64,
    /// Mean of the repetitions' speeds, not total tokens divided by total time.
    pub avg_ts: f64,
    pub stddev_ts: f64,
    pub samples_ns: Vec<u64>,
    pub samples_ts: Vec<f64>,
    pub thermocline: Extra,
}

/// Figures that llama-bench has no field for.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Extra {
    /// Instruction set of the CPU kernels, or tier of the GPU kernels.
    pub isa: String,
    /// Weight types whose products for one token round activations to 8 bits on the GPU; empty
    /// without such types.
    pub rounding_types: String,
    /// Sparsity mode.
    pub sparsity: String,
    /// Kind of the predictor; null without one.
    pub predictor: Option<String>,
    /// Granularity of the placement under a budget: neurons or layers; null without a placement.
    pub placement: Option<String>,
    /// How much of a requested PowerInfer split was placed; null without a split.
    pub split: Option<SplitReport>,
    /// Fraction of neurons resident on the GPU.
    pub hot_fraction: f64,
    /// Fraction of the firing neurons that are resident, over all generated tokens. Null without a
    /// placement or generated tokens, or if some layer does not record firings.
    pub hit_rate: Option<f64>,
    /// Fraction of the generated tokens' time that the CPU waited for the GPU, in layers that both
    /// compute. Null without such layers.
    pub waiting: Option<f64>,
    /// Bytes that the GPU may use.
    pub vram_budget: u64,
    /// Bytes that the GPU uses.
    pub vram_used: u64,
    /// Bytes of weights and cached keys and values that one generated token reads, averaged over
    /// the test. Under a placement it counts only the FFN bytes that the CPU reads. Null if reads
    /// were not counted.
    pub bytes_per_token: Option<u64>,
    /// Bytes among them that the CPU reads as scattered rows of single neurons.
    pub scattered_bytes_per_token: u64,
    /// Fraction of the neurons that fired for a generated token; null if firings were not counted.
    pub active_neurons: Option<f64>,
    /// Bytes read per second while generating; null for prompts.
    pub bytes_per_second: Option<f64>,
    /// Bytes per second of sequential reads of the device's memory. On the CPU it is the median
    /// over the repetitions.
    pub read_bandwidth: f64,
    /// Bytes per second of copies within GPU memory, which counts both the bytes read and the bytes
    /// written. Null on the CPU.
    pub copy_bandwidth: Option<f64>,
    /// Bytes per second of reads of scattered rows, with the test's row length and number of rows.
    /// It is the median over the repetitions; null without such rows.
    pub scattered_bandwidth: Option<f64>,
    /// Shortest possible time to read a token's bytes, as a fraction of the measured time.
    /// Single-neuron rows count at `scattered_bandwidth`, all other bytes at `read_bandwidth`. It
    /// is the median over the repetitions, each with its own bandwidth (`limits`). On a GPU it is
    /// `bytes_per_second / copy_bandwidth`.
    #[serde(rename = "bandwidth_share")]
    pub bandwidth_fraction: Option<f64>,
    /// Memory bandwidth around each repetition; empty on a GPU.
    pub limits: Vec<BandwidthLimit>,
    /// Time from the first prompt token to its logits; null without a prompt.
    pub ttft_ms: Option<f64>,
    /// Times between generated tokens; null without generated tokens.
    pub itl_ms: Option<LatencyPercentiles>,
    /// The longest submission to a GPU in the timed runs; null if no submission time is known.
    pub longest_submission: Option<LongestSubmission>,
    /// Measured joules per token. Never estimated: null if the energy cannot be read.
    pub energy_j_per_token: Option<f64>,
    /// Mains or battery; null if the system does not report it.
    pub power_source: Option<String>,
}

/// The longest submission to a GPU in a test.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LongestSubmission {
    /// Duration in milliseconds.
    pub ms: f64,
    /// Number of multiply-adds in the submission. Weight reads count as some of them
    /// ([`work_of`](thermocline_gpu::work_of)).
    pub work: u64,
    /// Number of tokens in the submission's pass.
    pub tokens: usize,
    /// First and last layer that the submission computed, at least in part; null if it computed
    /// only the head.
    pub layers: Option<[usize; 2]>,
}

impl From<SubmissionTime> for LongestSubmission {
    fn from(SubmissionTime { seconds, held }: SubmissionTime) -> Self {
        let layers = held.layers.clone().next_back().map(|last| [held.layers.start, last]);
        LongestSubmission { ms: seconds * 1e3, work: held.total(), tokens: held.tokens, layers }
    }
}

/// Percentiles of a distribution.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct LatencyPercentiles {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
}

impl LatencyPercentiles {
    /// Nearest-rank percentiles; `None` without values.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |percent: usize| sorted.get((sorted.len() * percent).div_ceil(100).saturating_sub(1)).copied();
        Some(LatencyPercentiles { p50: at(50)?, p90: at(90)?, p99: at(99)? })
    }
}

/// Mean and sample standard deviation.
pub(super) fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    if values.is_empty() {
        return (0.0, 0.0);
    }
    let mean = values.iter().sum::<f64>() / n;
    if values.len() < 2 {
        return (mean, 0.0);
    }
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    (mean, (squares / (n - 1.0)).sqrt())
}

impl Record {
    /// The test's name in llama-bench's tables: `pp512`, `tg128`, `pp512 @ d1024`.
    pub fn test_name(&self) -> String {
        let mut name = match (self.n_prompt, self.n_gen) {
            (n, 0) => format!("pp{n}"),
            (0, n) => format!("tg{n}"),
            (p, n) => format!("pp{p}+tg{n}"),
        };
        if self.n_depth > 0 {
            name += &format!(" @ d{}", self.n_depth);
        }
        name
    }
}

/// The current time, such as `2026-01-31T12:00:00Z`.
pub(super) fn now_utc() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    iso8601(seconds)
}

/// Seconds since 1970 as a date, by the civil-from-days rule of the proleptic Gregorian calendar.
fn iso8601(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years start in March here, so that the leap day is the last day of a year.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = 400 * era + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iso8601_matches_known_dates() {
        assert_eq!(iso8601(0), "1970-01-01T00:00:00Z");
        assert_eq!(iso8601(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(iso8601(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(iso8601(1_767_225_599), "2025-12-31T23:59:59Z");
    }

    #[test]
    fn sample_statistics_match_a_hand_calculation() {
        let (mean, deviation) = mean_and_deviation(&[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(mean, 2.5);
        assert!((deviation - (5.0f64 / 3.0).sqrt()).abs() < 1e-12);
        assert_eq!(mean_and_deviation(&[7.0]), (7.0, 0.0));
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(LatencyPercentiles::of(&values), Some(LatencyPercentiles { p50: 50.0, p90: 90.0, p99: 99.0 }));
        assert_eq!(LatencyPercentiles::of(&[]), None);
    }
}
