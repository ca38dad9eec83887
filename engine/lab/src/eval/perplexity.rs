//! Perplexity: `exp` of the mean of `-ln p(token)`.

use serde::Serialize;

use super::{
    Activity, Conditions, Control, Corpus, Estimate, Method,
    observer::EvalProbe,
    score::{Scorer, nll},
    statistics::Moments,
};
use thermocline_base::error::Result;
use thermocline_run::runtime::Forward;

/// Perplexity of a model on a text.
#[derive(Debug, Clone, Serialize)]
pub struct Perplexity {
    /// Conditions of the measurement.
    pub conditions: Conditions,
    /// `exp(mean)`. Its error is `exp(mean) * stderr(mean)`.
    pub perplexity: Estimate,
    /// Mean of `-ln p(token)`, in nats.
    pub nll: Estimate,
    /// Computed tokens per second, including tokens that are not scored.
    pub tokens_per_second: f64,
    /// Bytes of weights read per token, if the CPU reads all of them.
    pub bytes_per_token: Option<f64>,
    /// Activity of the neurons.
    #[serde(skip)]
    pub activity: Activity,
}

/// Measures the perplexity of a model on `corpus`.
///
/// # Errors
/// As [`Forward::run`]; [`Error::Cancelled`](thermocline_base::error::Error::Cancelled) if
/// `control` cancels.
pub fn perplexity(
    forward: &mut Forward,
    corpus: &Corpus,
    method: Method,
    device: &str,
    control: &mut dyn Control,
) -> Result<Perplexity> {
    let model = std::sync::Arc::clone(forward.model());
    let mut activity = Activity::new(&model);
    let mut scorer = Scorer::new(forward, corpus, method)?;
    let mut sum = Moments::default();
    let mut observer = EvalProbe { control, activity: &mut activity, inputs: None };
    for passage in &corpus.passages {
        scorer.score(passage, &mut observer, &mut |at, logits| {
            sum.add(nll(logits, passage.target(at)));
            Ok(())
        })?;
    }
    Ok(Perplexity {
        conditions: Conditions::new(&model, corpus, method, scorer.kv_type(), device),
        perplexity: of_mean(sum.estimate()),
        nll: sum.estimate(),
        tokens_per_second: scorer.tokens as f64 / scorer.time.as_secs_f64().max(1e-9),
        bytes_per_token: scorer.bytes_per_token(&activity),
        activity,
    })
}

/// Converts a mean negative log-likelihood to a perplexity.
pub(super) fn of_mean(nll: Estimate) -> Estimate {
    let value = nll.value.exp();
    Estimate { value, stderr: value * nll.stderr }
}
