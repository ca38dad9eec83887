//! Chooses between the exact gate and the candidate predictors of a layer, by the cost of a token.

use serde::{Deserialize, Serialize};

use super::PredictorReport;
use thermocline_formats::format::Matrix;
use thermocline_model::FfnWeights;

/// Default time to read a byte of scattered rows, relative to a sequential byte. Measured on
/// ordinary desktops with rows of a few KB.
const SCATTERED: f64 = 1.5;

/// Cost model of one token in a layer's FFN, in sequentially read bytes. Bytes of scattered rows
/// cost more ([`FfnCost::scattered`]).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FfnCost {
    /// Bytes of the firing rows (the gate, or the up matrix of ungated FFNs).
    pub firing: f64,
    /// Bytes of the matrices that are read only for firing neurons.
    pub rest: f64,
    /// Time to read a byte of scattered rows, relative to a sequential byte.
    pub scattered: f64,
}

impl FfnCost {
    /// Creates the cost model of `ffn` for ordinary memory.
    pub fn new(ffn: &FfnWeights) -> Self {
        let bytes = |matrix: &Matrix| matrix.byte_len() as f64;
        let up = bytes(&ffn.up.weight);
        let (firing, other) = match &ffn.gate {
            Some(gate) => (bytes(&gate.weight), up),
            None => (up, 0.0),
        };
        FfnCost { firing, rest: other + bytes(&ffn.down.linear().weight), scattered: SCATTERED }
    }

    /// Returns the cost of reading everything.
    pub fn dense(&self) -> f64 {
        self.firing + self.rest
    }

    /// Returns the cost with the exact gate: the firing rows of all neurons, and the other rows of
    /// the fraction `active` that fires.
    pub fn exact(&self, active: f64) -> f64 {
        self.firing + self.scattered(active, self.rest)
    }

    /// Returns the cost with a predictor of `bytes` that selects the fraction `density` of the
    /// neurons. `found` is the fraction of all neurons that are selected and fire.
    pub fn predicted(&self, bytes: u64, density: f64, found: f64) -> f64 {
        bytes as f64 + self.scattered(density, self.firing) + self.scattered(found, self.rest)
    }

    /// Returns the cost of a `fraction` of the rows of a matrix of `bytes`, at most the cost of
    /// reading the whole matrix sequentially.
    fn scattered(&self, fraction: f64, bytes: f64) -> f64 {
        bytes * (fraction * self.scattered).min(1.0)
    }
}

/// Result of [`select_predictor`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PredictorSelection {
    /// Index of the selected candidate; `None` if the exact gate costs less than every candidate.
    pub candidate: Option<usize>,
    /// Cost of a token with the selection, in the bytes of [`FfnCost`].
    pub cost: f64,
    /// Cost of a token with the exact gate.
    pub exact: f64,
    /// Cost of a dense token.
    pub dense: f64,
    /// The selection and its reason, for reports.
    pub why: String,
}

/// Selects the cheapest candidate that met its target, if it costs less than the exact gate.
/// `active` is the fraction of neurons that fire.
pub fn select_predictor(cost: &FfnCost, active: f64, candidates: &[PredictorReport]) -> PredictorSelection {
    let (dense, exact) = (cost.dense(), cost.exact(active));
    let of = |report: &PredictorReport| {
        let figures = &report.figures;
        cost.predicted(report.bytes, figures.density, figures.density * figures.precision)
    };
    let met = candidates.iter().enumerate().filter(|(_, report)| report.reached());
    let best = met.map(|(at, report)| (at, of(report))).min_by(|a, b| a.1.total_cmp(&b.1));
    let percent = |part: f64| 100.0 * part / dense.max(1.0);
    let exactly = format!("the exact gate costs {:.0} % of a dense token", percent(exact));
    let (candidate, least, why) = match best {
        Some((at, least)) if least < exact.min(dense) => {
            let report = &candidates[at];
            let rank = report.rank.map_or(String::new(), |rank| format!(" of rank {rank}"));
            let why = format!(
                "{} predictor{rank}: it costs {:.0} % of a dense token, and {exactly}; \
                 its recall is {:.1} %, or {:.2} % by mass",
                report.kind,
                percent(least),
                100.0 * report.figures.recall,
                100.0 * report.figures.mass_recall,
            );
            (Some(at), least, why)
        }
        Some((at, least)) => {
            let kind = &candidates[at].kind;
            (
                None,
                exact,
                format!("no predictor: {exactly}, and the best predictor ({kind}) costs {:.0} %", percent(least)),
            )
        }
        None if candidates.is_empty() => (None, exact, format!("no predictor: no candidate exists, and {exactly}")),
        None => {
            let best = candidates.iter().max_by(|a, b| a.figures.recall.total_cmp(&b.figures.recall));
            let best = best.map_or(0.0, |report| 100.0 * report.figures.recall);
            (
                None,
                exact,
                format!(
                    "no predictor: no candidate reached its target (the best recall is {best:.1} %), and {exactly}"
                ),
            )
        }
    };
    PredictorSelection { candidate, cost: least.min(dense), exact, dense, why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sparsity::predictor::{Target, metrics::Prediction};

    /// Costs of a gated layer with Q4_0-like sizes: 1000 bytes of gate, 2000 bytes of up and down.
    const COST: FfnCost = FfnCost { firing: 1000.0, rest: 2000.0, scattered: 1.5 };

    fn report(kind: &str, bytes: u64, recall: f64, density: f64) -> PredictorReport {
        let figures =
            Prediction { tokens: 9, recall, mass_recall: 0.995, precision: 0.1 / density, density, active: 0.1 };
        PredictorReport {
            kind: kind.to_owned(),
            rank: None,
            tensor_type: "F16".to_owned(),
            parameters: bytes / 2,
            bytes,
            target: Target::default(),
            figures,
            seconds: 0.0,
            ns_per_token: 0.0,
            limit: None,
        }
    }

    #[test]
    fn ffn_cost_counts_the_bytes_each_mode_reads() {
        assert_eq!(COST.dense(), 3000.0);
        assert_eq!(COST.exact(0.125), 1000.0 + 375.0);
        assert_eq!(COST.predicted(100, 0.25, 0.125), 100.0 + 375.0 + 375.0);
        assert_eq!(COST.exact(0.9), 3000.0, "never more than everything");
    }

    #[test]
    fn selection_is_the_cheapest_candidate_that_met_its_target() {
        let candidates = [
            report("rows", 600, 0.97, 0.12),
            report("low-rank", 200, 0.96, 0.2),
            report("low-rank", 50, 0.90, 0.11), // cheaper still, but misses too much
        ];
        let choice = select_predictor(&COST, 0.1, &candidates);
        assert_eq!(choice.candidate, Some(1), "{}", choice.why);
        assert!(choice.cost < choice.exact && choice.why.starts_with("low-rank predictor"), "{}", choice.why);
    }

    #[test]
    fn selection_keeps_the_exact_gate_where_no_predictor_pays() {
        for candidates in [vec![], vec![report("rows", 900, 0.97, 0.2)], vec![report("rows", 10, 0.5, 0.1)]] {
            let choice = select_predictor(&COST, 0.1, &candidates);
            assert_eq!((choice.candidate, choice.cost), (None, choice.exact), "{}", choice.why);
            assert!(choice.why.starts_with("no predictor"), "{}", choice.why);
        }
    }
}
