//! Divergence of a model's probabilities from the probabilities of a base: the dense model or a
//! base file.

use std::{io::Write, sync::Arc};

use serde::Serialize;

use super::{
    Activity, BaseFile, BaseWriter, Conditions, Control, Corpus, Estimate, Method, Percentiles,
    observer::EvalProbe,
    perplexity::of_mean,
    score::{LogSoftmax, Scorer, argmax},
    statistics::{Moments, covariance},
};
use thermocline_base::error::{Error, Result};
use thermocline_run::runtime::Forward;

/// Fewest tokens for meaningful standard errors.
pub const LEAST_TOKENS: usize = 100;

/// Least log-probability of the base that counts, because llama.cpp's files do not store less.
const LEAST_LOG_P: f64 = -16.0;

/// Base that a model is compared with.
#[derive(Debug)]
pub enum Base<'a> {
    /// The dense model, computed passage by passage in the model's phase.
    Dense,
    /// Another dense model with the same vocabulary, computed in the same phase.
    Model(&'a mut Forward),
    /// Probabilities from a file.
    File(&'a mut BaseFile),
}

/// Divergence from the base over all scored tokens.
#[derive(Debug, Clone, Serialize)]
pub struct Divergence {
    /// Conditions of the measurement.
    pub conditions: Conditions,
    /// `dense`, or the path of the base's file.
    pub base: String,
    /// Kullback-Leibler divergence from the base, `sum p (ln p - ln q)` per token, in nats.
    pub kld: Estimate,
    /// Percentiles of the KL divergence.
    pub kld_percentiles: Percentiles,
    /// Fraction of tokens at which model and base predict the same most likely token.
    pub same_top: Estimate,
    /// Mean change of the next token's probability.
    pub dp: Estimate,
    /// Root mean square of the change of the next token's probability.
    pub dp_rms: Estimate,
    /// Percentiles of the change of the next token's probability.
    pub dp_percentiles: Percentiles,
    /// Perplexity of the model.
    pub perplexity: Estimate,
    /// Perplexity of the base.
    pub base_perplexity: Estimate,
    /// `ln(perplexity / base)`. Its error accounts for the shared tokens of both measurements.
    pub ln_ratio: Estimate,
    /// `perplexity / base`.
    pub ratio: Estimate,
    /// `perplexity - base`.
    pub difference: Estimate,
    /// Correlation of model and base in `ln p` of the next token.
    pub correlation: f64,
    /// Tokens per second of the model.
    pub tokens_per_second: f64,
    /// Tokens per second of the base; `None` for a base file.
    pub base_tokens_per_second: Option<f64>,
    /// Bytes of weights read per token, if the CPU reads all of them.
    pub bytes_per_token: Option<f64>,
    /// Activity of the neurons.
    #[serde(skip)]
    pub activity: Activity,
}

/// Figures of the scored tokens, one per token.
#[derive(Debug, Default)]
struct TokenFigures {
    nll: Vec<f64>,
    base_nll: Vec<f64>,
    kld: Vec<f64>,
    dp: Vec<f64>,
    same: u64,
}

impl TokenFigures {
    /// Adds a token. `base` and `log_q` are log-probabilities `[n_vocab]`, `target` is the next
    /// token.
    fn add(&mut self, base: &[f64], log_q: &[f64], target: usize) {
        let terms = base.iter().zip(log_q).filter(|(log_p, _)| **log_p > LEAST_LOG_P);
        self.kld.push(terms.map(|(log_p, log_q)| log_p.exp() * (log_p - log_q)).sum());
        self.same += u64::from(argmax(base) == argmax(log_q));
        self.dp.push(log_q[target].exp() - base[target].exp());
        self.nll.push(-log_q[target]);
        self.base_nll.push(-base[target]);
    }
}

/// Measures the divergence of `method` from `base`.
///
/// # Errors
/// As [`Forward::run`]; [`Error::Invalid`] for fewer than [`LEAST_TOKENS`] scored tokens or a file
/// of another text or vocabulary; [`Error::Cancelled`] if `control` cancels.
pub fn divergence(
    forward: &mut Forward,
    corpus: &Corpus,
    method: Method,
    base: Base<'_>,
    device: &str,
    control: &mut dyn Control,
) -> Result<Divergence> {
    if corpus.scored() < LEAST_TOKENS {
        let expected = format!("at least {LEAST_TOKENS} scored tokens, so that the errors are meaningful");
        return Err(Error::invalid("text", expected, corpus.scored()));
    }
    let model = Arc::clone(forward.model());
    let (n_vocab, mut name) = (model.config.n_vocab, "dense".to_owned());
    let (mut activity, mut unseen) = (Activity::new(&model), Activity::new(&model));
    let mut scorer = Scorer::new(forward, corpus, method)?;
    let (mut file, mut other) = (None, None);
    match base {
        Base::Dense => {}
        Base::Model(forward) => {
            unseen = Activity::new(forward.model());
            other = Some(Scorer::new(forward, corpus, method.dense())?);
        }
        Base::File(base) => {
            base.check(corpus, n_vocab)?;
            name = base.path().display().to_string();
            file = Some(base);
        }
    }
    let (mut base_time, mut base_tokens) = (0.0, 0);
    let (mut tokens, mut base_rows) = (TokenFigures::default(), Vec::new());
    let (mut log_p, mut log_q) = (LogSoftmax::default(), LogSoftmax::default());
    for passage in &corpus.passages {
        base_rows.clear();
        if file.is_none() {
            let scorer = other.as_mut().unwrap_or(&mut scorer);
            let (time, computed) = (scorer.time, scorer.tokens);
            scorer.set_method(method.dense());
            let mut observer = EvalProbe { control: &mut *control, activity: &mut unseen, inputs: None };
            scorer.score(passage, &mut observer, &mut |_, logits| {
                base_rows.extend_from_slice(logits);
                Ok(())
            })?;
            base_time += (scorer.time - time).as_secs_f64();
            base_tokens += scorer.tokens - computed;
            (scorer.time, scorer.tokens) = (time, computed);
            scorer.set_method(method);
        }
        let mut observer = EvalProbe { control: &mut *control, activity: &mut activity, inputs: None };
        scorer.score(passage, &mut observer, &mut |at, logits| {
            match &mut file {
                None => log_p.fill(&base_rows[(at - passage.scored.start) * n_vocab..][..n_vocab]),
                Some(file) => file.row(&mut log_p.log_p)?,
            }
            log_q.fill(logits);
            tokens.add(&log_p.log_p, &log_q.log_p, passage.target(at) as usize);
            Ok(())
        })?;
    }
    let conditions = Conditions::new(&model, corpus, method, scorer.kv_type(), device);
    let speed = |tokens: u64, seconds: f64| tokens as f64 / seconds.max(1e-9);
    let mut divergence = tokens.summary(conditions, name, activity);
    divergence.tokens_per_second = speed(scorer.tokens, scorer.time.as_secs_f64());
    divergence.base_tokens_per_second = (base_tokens > 0).then(|| speed(base_tokens, base_time));
    divergence.bytes_per_token = scorer.bytes_per_token(&divergence.activity);
    Ok(divergence)
}

impl TokenFigures {
    /// Summarises the figures, without speeds and bytes, which the caller adds.
    fn summary(&self, conditions: Conditions, base: String, activity: Activity) -> Divergence {
        let mean = |values: &[f64]| Moments::from_values(values.iter().copied()).estimate();
        let n = self.nll.len() as f64;
        let same = self.same as f64 / n.max(1.0);
        let squares = mean(&self.dp.iter().map(|dp| dp * dp).collect::<Vec<_>>());
        let rms = squares.value.sqrt();
        let (nll, base_nll) = (mean(&self.nll), mean(&self.base_nll));
        let shared = covariance(&self.nll, &self.base_nll);
        let spread = |a: f64, b: f64, together: f64| (a * a + b * b - 2.0 * together).max(0.0).sqrt();
        let ln_ratio =
            Estimate { value: nll.value - base_nll.value, stderr: spread(nll.stderr, base_nll.stderr, shared) };
        let (perplexity, base_perplexity) = (of_mean(nll), of_mean(base_nll));
        let both = perplexity.value * base_perplexity.value * shared;
        let product = nll.stderr * base_nll.stderr;
        Divergence {
            conditions,
            base,
            kld: mean(&self.kld),
            kld_percentiles: Percentiles::from_values(&self.kld),
            same_top: Estimate { value: same, stderr: (same * (1.0 - same) / (n - 1.0).max(1.0)).sqrt() },
            dp: mean(&self.dp),
            dp_rms: Estimate { value: rms, stderr: if rms > 0.0 { 0.5 / rms * squares.stderr } else { 0.0 } },
            dp_percentiles: Percentiles::from_values(&self.dp),
            perplexity,
            base_perplexity,
            ln_ratio,
            ratio: of_mean(ln_ratio),
            difference: Estimate {
                value: perplexity.value - base_perplexity.value,
                stderr: spread(perplexity.stderr, base_perplexity.stderr, both),
            },
            correlation: if product > 0.0 { shared / product } else { 1.0 },
            tokens_per_second: 0.0,
            base_tokens_per_second: None,
            bytes_per_token: None,
            activity,
        }
    }
}

impl BaseFile {
    /// Checks that the file belongs to this text and vocabulary.
    fn check(&self, corpus: &Corpus, n_vocab: usize) -> Result<()> {
        if self.n_vocab != n_vocab {
            return Err(Error::invalid("base file", format!("a vocabulary of {n_vocab}"), self.n_vocab));
        }
        if (self.context, &self.raw) != (corpus.context, &corpus.raw) {
            let expected = format!("the same {} windows of {} tokens", corpus.passages.len(), corpus.context);
            let got = format!("other text ({} windows of {} tokens)", self.raw.len() / self.context, self.context);
            return Err(Error::invalid("base file", expected, got));
        }
        Ok(())
    }
}

/// Computes `corpus` with `method` and writes its probabilities as a base file.
///
/// # Errors
/// As [`Forward::run`]; [`Error::Io`]; [`Error::Invalid`] if the corpus does not consist of
/// windows; [`Error::Cancelled`].
pub fn write_base<W: Write>(
    forward: &mut Forward,
    corpus: &Corpus,
    method: Method,
    writer: &mut BaseWriter<W>,
    control: &mut dyn Control,
) -> Result<()> {
    if corpus.raw.is_empty() {
        return Err(Error::invalid("text of a base file", "windows of one length", "documents"));
    }
    let mut activity = Activity::new(forward.model());
    let mut scorer = Scorer::new(forward, corpus, method)?;
    let mut observer = EvalProbe { control, activity: &mut activity, inputs: None };
    for passage in &corpus.passages {
        scorer.score(passage, &mut observer, &mut |_, logits| writer.row(logits))?;
    }
    Ok(())
}
