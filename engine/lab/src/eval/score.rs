//! Computes passages and scores their logits.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::{Activity, Corpus, CorpusPassage, observer::EvalProbe};
use thermocline_base::error::Result;
use thermocline_run::runtime::{Forward, KvCache, KvType, Outputs, Sparsity, check_logits};

/// Rows of logits computed together. This bounds the memory for any context.
const ROWS: usize = 64;

/// How the tokens of a text are grouped for computing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// In chunks, like a prompt. Dense in every mode.
    Prefill,
    /// One by one, as in generation, each token with its own mask.
    Decode,
}

impl Phase {
    /// Returns the phase that measures `mode`: chunks for dense mode, single tokens for sparse
    /// modes.
    pub fn for_mode(mode: Sparsity) -> Self {
        if mode == Sparsity::Dense { Phase::Prefill } else { Phase::Decode }
    }

    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Prefill => "prefill",
            Phase::Decode => "decode",
        }
    }
}

/// Method of computing a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Method {
    /// Sparsity mode.
    pub sparsity: Sparsity,
    /// Chunks or single tokens.
    pub phase: Phase,
    /// Element type of the KV cache.
    pub kv_type: KvType,
}

impl Method {
    /// Returns the dense reference with the same phase and KV cache type.
    pub fn dense(self) -> Self {
        Method { sparsity: Sparsity::Dense, ..self }
    }
}

/// Computes passages with one method.
pub(super) struct Scorer<'f> {
    forward: &'f mut Forward,
    kv: KvCache,
    method: Method,
    /// Total computing time.
    pub time: Duration,
    /// Tokens computed in `time`.
    pub tokens: u64,
}

impl<'f> Scorer<'f> {
    pub fn new(forward: &'f mut Forward, corpus: &Corpus, method: Method) -> Result<Self> {
        let kv = forward.kv_cache(corpus.longest(), method.kv_type)?;
        Ok(Scorer { forward, kv, method, time: Duration::ZERO, tokens: 0 })
    }

    /// Returns the bytes of weights read per token, if the CPU reads all of them.
    pub fn bytes_per_token(&self, activity: &Activity) -> Option<f64> {
        let ffns = activity.cpu_bytes().filter(|_| self.kv.on_host())?;
        Some(self.forward.model().always_read_bytes() as f64 + ffns)
    }

    /// Returns the element type of the KV cache.
    pub fn kv_type(&self) -> KvType {
        self.kv.ty()
    }

    /// Changes the method.
    pub fn set_method(&mut self, method: Method) {
        self.method = method;
    }

    /// Computes `passage` in an empty context. Calls `each` with the logits of every scored
    /// position, in order. Fails with
    /// [`Error::NotFinite`](thermocline_base::error::Error::NotFinite) if logits are not finite.
    pub fn score(
        &mut self,
        passage: &CorpusPassage,
        observer: &mut EvalProbe<'_>,
        each: &mut dyn FnMut(usize, &[f32]) -> Result<()>,
    ) -> Result<()> {
        self.forward.set_sparsity(self.method.sparsity);
        self.kv.truncate(0);
        let n_vocab = self.forward.model().config.n_vocab;
        let (scored, end) = (passage.scored.clone(), passage.computed());
        let mut at = 0;
        while at < end {
            let next = match self.method.phase {
                Phase::Decode => at + 1,
                Phase::Prefill if at < scored.start => scored.start,
                Phase::Prefill => (at + ROWS).min(end),
            };
            let outputs = if at < scored.start { Outputs::None } else { Outputs::All };
            let started = Instant::now();
            let logits = self.forward.run(&passage.tokens[at..next], &mut self.kv, outputs, observer)?;
            self.time += started.elapsed();
            self.tokens += (next - at) as u64;
            for (row, at) in logits.chunks_exact(n_vocab).zip(at..next) {
                check_logits(row)?;
                each(at, row)?;
            }
            observer.control.computed((next - at) as u64);
            at = next;
        }
        Ok(())
    }
}

/// Log-probabilities of a row of logits.
#[derive(Debug, Default)]
pub(super) struct LogSoftmax {
    /// `[n_vocab]`, natural logarithms.
    pub log_p: Vec<f64>,
}

impl LogSoftmax {
    /// Computes the log-probabilities of `logits`.
    pub fn fill(&mut self, logits: &[f32]) {
        let log_sum = log_sum(logits);
        self.log_p.clear();
        self.log_p.extend(logits.iter().map(|logit| f64::from(*logit) - log_sum));
    }
}

/// Returns `ln sum exp(logit)` of a row of logits.
fn log_sum(logits: &[f32]) -> f64 {
    let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - f64::from(greatest)).exp()).sum();
    f64::from(greatest) + sum.ln()
}

/// Returns `-ln p(target)` of a row of logits.
pub(super) fn nll(logits: &[f32], target: u32) -> f64 {
    log_sum(logits) - logits.get(target as usize).map_or(f64::NAN, |logit| f64::from(*logit))
}

/// Returns the index of the first of the largest values.
pub(super) fn argmax<T: PartialOrd + Copy>(values: &[T]) -> usize {
    let mut best = 0;
    for (at, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = at;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_softmax_sums_to_one_for_large_logits() {
        let mut softmax = LogSoftmax::default();
        for shift in [0.0f32, 1e4, -1e4] {
            let logits = [1.0, 2.0, -3.0, 0.5].map(|x| x + shift);
            softmax.fill(&logits);
            let sum: f64 = softmax.log_p.iter().map(|log_p| log_p.exp()).sum();
            assert!((sum - 1.0).abs() < 1e-12);
            assert!((nll(&logits, 2) + softmax.log_p[2]).abs() < 1e-9);
        }
        assert_eq!(argmax(&[1, 3, 3, 2]), 1);
        assert!(nll(&[1.0], 7).is_nan());
    }
}
