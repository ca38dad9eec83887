//! Compares scores by which [`Sparsity::Threshold`] could skip neurons of gated FFNs.
//!
//! Neuron `j` adds `g_j u_j d_j` to the output. `g_j` is its activated gate, `u_j` its up value and
//! `d_j` its down vector. Its worth is `|g_j| r_j |d_j| / o`, the error that skipping it is
//! expected to cause. `r_j` is the root mean square of `u_j`, and `o` the mean norm of the layer's
//! outputs. A neuron in RAM takes more time than a neuron in VRAM. The error for a given time is
//! least if its threshold is higher by the root of the ratio of both times. The mode compares the
//! worth with a threshold of the layer and side, or `|g_j|` if the sidecar has no scales of gates.

use std::sync::Arc;

use serde::Serialize;

use super::{
    Base, Control, Corpus, Divergence, Estimate, Method, Phase, divergence, skip_calibration::CalibratedSkips,
};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::Cpu;
use thermocline_model::{Ffn, FfnWeights, Model};
use thermocline_run::runtime::{Forward, KvType, Sparsity};

/// A score of a neuron for a token. The neurons with the smallest scores are skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SkipScore {
    /// True for the neuron's worth, false for the magnitude of its gate's activation.
    pub worth: bool,
    /// True if neurons in RAM are skipped sooner than neurons in VRAM.
    pub sides: bool,
    /// True if every layer skips the same fraction, false if all layers have one threshold.
    pub by_layer: bool,
}

impl SkipScore {
    /// The compared scores.
    pub const ALL: [SkipScore; 6] = {
        const fn of(worth: bool, sides: bool, by_layer: bool) -> SkipScore {
            SkipScore { worth, sides, by_layer }
        }
        let layers = [of(false, false, true), of(false, true, true), of(true, false, true), of(true, true, true)];
        [layers[0], layers[1], layers[2], layers[3], of(true, false, false), of(true, true, false)]
    };
}

/// Costs and savings of skipping a fraction of the rows by a score.
#[derive(Debug, Clone, Serialize)]
pub struct SkipPrice {
    /// The score.
    pub score: SkipScore,
    /// Fraction of the up and down rows to skip on the calibration text.
    pub share: f64,
    /// Fraction skipped on the scored text.
    pub skipped: f64,
    /// Perplexity of the text.
    pub perplexity: Estimate,
    /// Perplexity minus the dense model's perplexity.
    pub difference: Estimate,
    /// Kullback-Leibler divergence from the dense model per token, in nats.
    pub kld: Estimate,
    /// Bytes of FFN weights read per token, relative to all of them.
    pub read: f64,
    /// The same ratio for the neurons in RAM, if half of each layer's neurons are in VRAM.
    pub read_from_ram: f64,
}

/// Texts and conditions of the comparison.
#[derive(Debug, Clone, Copy)]
pub struct SkipSetup<'a> {
    /// Text for thresholds. It should differ from `corpus`.
    pub calibration: &'a Corpus,
    /// Text to score.
    pub corpus: &'a Corpus,
    /// Fractions of the rows to skip.
    pub shares: &'a [f64],
    /// Time of a byte in RAM, relative to a byte in VRAM.
    pub ratio: f64,
    /// Type of the KV cache.
    pub kv_type: KvType,
    /// Name of the device, for the report.
    pub device: &'a str,
}

/// Compares all scores. `reopen` opens a model with other thresholds in the way that `forward`'s
/// model is open. `done` is called with every price.
///
/// # Errors
/// [`Error::Unsupported`] for a model that has layers other than gated dense FFNs; as
/// [`divergence`].
pub fn skip_prices(
    forward: &mut Forward,
    cpu: &Cpu,
    setup: &SkipSetup<'_>,
    reopen: &mut dyn FnMut(Arc<Model>) -> Result<Forward>,
    control: &mut dyn Control,
    done: &mut dyn FnMut(&SkipPrice),
) -> Result<Vec<SkipPrice>> {
    if forward.residency().is_some() {
        return Err(Error::unsupported("device of the comparison", "a GPU", "the CPU (--device cpu)"));
    }
    let model = Arc::clone(forward.model());
    let ffns = gated_ffns(&model)?;
    if let Some(wrong) = setup.shares.iter().find(|share| !(0.0..1.0).contains(*share)) {
        return Err(Error::invalid("share of the neurons to skip", "a fraction from 0 to below 1", wrong));
    }
    if !(setup.ratio.is_finite() && setup.ratio > 0.0) {
        return Err(Error::invalid("ratio of times", "a positive number", setup.ratio));
    }
    let calibrated = CalibratedSkips::new(forward, cpu, &ffns, setup, control)?;
    let method = Method { sparsity: Sparsity::Threshold, phase: Phase::Decode, kv_type: setup.kv_type };
    let mut prices = Vec::new();
    for score in SkipScore::ALL {
        for share in setup.shares {
            let mut forward = reopen(Arc::new(calibrated.apply(&model, score, *share)))?;
            let of = divergence(&mut forward, setup.corpus, method, Base::Dense, setup.device, control)?;
            let price = price(&calibrated, &ffns, score, *share, &of);
            done(&price);
            prices.push(price);
        }
    }
    Ok(prices)
}

fn gated_ffns(model: &Model) -> Result<Vec<&FfnWeights>> {
    let of = |layer: &'_ Ffn| matches!(layer, Ffn::Dense(ffn) if ffn.gate.is_some());
    let layers = || model.weights.layers.iter().map(|layer| &layer.ffn);
    if !layers().all(of) {
        return Err(Error::unsupported("model", "layers without a gated dense FFN", "gated dense FFNs"));
    }
    Ok(layers().filter_map(|ffn| if let Ffn::Dense(ffn) = ffn { Some(ffn) } else { None }).collect())
}

/// The price of skipping `share` of the rows by `score`, from the divergence `of` of the model that
/// does.
fn price(
    calibrated: &CalibratedSkips,
    ffns: &[&FfnWeights],
    score: SkipScore,
    share: f64,
    of: &Divergence,
) -> SkipPrice {
    let (mut kept, mut neurons, mut read, mut all, mut in_ram, mut of_ram) = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
    for (at, (ffn, layer)) in ffns.iter().zip(of.activity.layers()).enumerate() {
        let gate = ffn.gate.as_ref().map_or(0, |gate| gate.weight.row_bytes()) as f64;
        let rest = (ffn.up.weight.row_bytes() + ffn.down.linear().weight.row_bytes()) as f64;
        for (count, hot) in of.activity.counts(at).iter().zip(&calibrated.hot[at]) {
            let fraction = f64::from(*count) / layer.tokens.max(1) as f64;
            (kept, neurons) = (kept + fraction, neurons + 1.0);
            (read, all) = (read + gate + rest * fraction, all + gate + rest);
            if !hot {
                (in_ram, of_ram) = (in_ram + gate + rest * fraction, of_ram + gate + rest);
            }
        }
    }
    SkipPrice {
        score,
        share,
        skipped: 1.0 - kept / f64::max(neurons, 1.0),
        perplexity: of.perplexity,
        difference: of.difference,
        kld: of.kld,
        read: read / f64::max(all, 1.0),
        read_from_ram: in_ram / f64::max(of_ram, 1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thermocline_cpu::CpuOptions;
    use thermocline_model::LoadOptions;

    #[test]
    fn scores_by_side_read_less_from_ram() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/models/llama-silu-gqa");
        let cpu = || Cpu::new(&CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
        let model = Model::open(path.as_ref(), &LoadOptions::default()).unwrap();
        let (model, _) = model.neuron_major(cpu().pool(), &mut |_, _| std::ops::ControlFlow::Continue(())).unwrap();
        let n_vocab = model.config.n_vocab;
        let tokens = |from: usize| (0..256).map(|at| ((at * at * 31 + at * 97 + from) % n_vocab) as u32).collect();
        let text = |from| Corpus::from_tokens("t", tokens(from), None, 64, None).unwrap();
        let (calibration, corpus) = (text(5), text(11));
        let mut forward = Forward::new(Arc::new(model), cpu());
        let mut run = |shares: &[f64], ratio: f64| {
            let setup = SkipSetup {
                calibration: &calibration,
                corpus: &corpus,
                shares,
                ratio,
                kv_type: KvType::F32,
                device: "cpu",
            };
            let mut reopen = |model| Ok(Forward::new(model, cpu()));
            skip_prices(&mut forward, &cpu(), &setup, &mut reopen, &mut (), &mut |_| ())
        };
        let prices = run(&[0.0, 0.5], 9.0).unwrap();
        assert_eq!(prices.len(), 2 * SkipScore::ALL.len());
        for pair in prices.chunks(2) {
            let [none, half] = pair else { panic!("{pair:?}") };
            assert!(none.kld.value.abs() < 1e-6 && none.read > 0.999, "{none:?}");
            assert!((half.skipped - 0.5).abs() < 0.1 && half.kld.value > 0.0, "{half:?}");
            assert!((half.read - (1.0 - 2.0 / 3.0 * half.skipped)).abs() < 1e-6, "{half:?}");
        }
        let half = |at: usize| &prices[2 * at + 1];
        for (plain, sides) in [(0, 1), (2, 3), (4, 5)] {
            assert!(
                half(sides).read_from_ram < half(plain).read_from_ram - 0.02,
                "{:?} {:?}",
                half(sides),
                half(plain)
            );
        }
        // One time on both sides is no reason to tell them apart.
        let equal = run(&[0.5], 1.0).unwrap();
        assert!((equal[0].kld.value - equal[1].kld.value).abs() < 1e-12);
        assert!(run(&[1.0], 9.0).is_err() && run(&[0.5], 0.0).is_err());
    }
}
