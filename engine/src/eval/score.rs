//! How a passage is computed, and what its logits say.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::{Activity, Corpus, Passage, watch::Observer};
use crate::{
    bench::always_read,
    error::Result,
    model::{Forward, KvCache, KvType, Outputs, Sparsity},
};

/// Rows of logits computed at once: no more than this much memory, whatever the context.
const ROWS: usize = 64;

/// How the tokens of a text are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// In chunks, as a prompt is: dense in every mode.
    Prefill,
    /// One by one, as they are generated, each with the mask of its own.
    Decode,
}

impl Phase {
    /// What measures `mode`: chunks where nothing is left out, tokens one by one where something is.
    pub fn of(mode: Sparsity) -> Self {
        if mode == Sparsity::Dense { Phase::Prefill } else { Phase::Decode }
    }

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Prefill => "prefill",
            Phase::Decode => "decode",
        }
    }
}

/// How to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Method {
    /// What is left out.
    pub sparsity: Sparsity,
    /// How the tokens are fed.
    pub phase: Phase,
    /// Element type of the cache.
    pub kv_type: KvType,
}

impl Method {
    /// The reference: nothing left out, in the phase of `self`, so that nothing else differs.
    pub fn dense(self) -> Self {
        Method { sparsity: Sparsity::Dense, ..self }
    }
}

/// Computes passages with one method.
pub(super) struct Scorer<'f> {
    forward: &'f mut Forward,
    kv: KvCache,
    method: Method,
    /// Time spent computing, and tokens computed in it.
    pub time: Duration,
    pub tokens: u64,
}

impl<'f> Scorer<'f> {
    pub fn new(forward: &'f mut Forward, corpus: &Corpus, method: Method) -> Result<Self> {
        let kv = forward.kv_cache(corpus.longest(), method.kv_type)?;
        Ok(Scorer { forward, kv, method, time: Duration::ZERO, tokens: 0 })
    }

    /// Bytes of weights a token reads, if all of them are read by the CPU.
    pub fn bytes_per_token(&self, activity: &Activity) -> Option<f64> {
        let ffns = activity.cpu_bytes().filter(|_| self.kv.on_host())?;
        Some(always_read(self.forward.model()) as f64 + ffns)
    }

    /// Element type the cache got.
    pub fn kv_type(&self) -> KvType {
        self.kv.ty()
    }

    /// The method.
    pub fn set_method(&mut self, method: Method) {
        self.method = method;
    }

    /// Computes `passage` in an empty context; `each` is given the logits of every scored place, in order.
    pub fn score(
        &mut self,
        passage: &Passage,
        observer: &mut Observer<'_>,
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
    /// Computes those of `logits`.
    pub fn fill(&mut self, logits: &[f32]) {
        let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - f64::from(greatest)).exp()).sum();
        let log_sum = f64::from(greatest) + sum.ln();
        self.log_p.clear();
        self.log_p.extend(logits.iter().map(|logit| f64::from(*logit) - log_sum));
    }
}

/// `-ln p(target)` of a row of logits.
pub(super) fn nll(logits: &[f32], target: u32) -> f64 {
    let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - f64::from(greatest)).exp()).sum();
    f64::from(greatest) + sum.ln() - logits.get(target as usize).map_or(f64::NAN, |logit| f64::from(*logit))
}

/// The first of the largest.
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
    fn probabilities_sum_to_one_however_large_the_logits() {
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
