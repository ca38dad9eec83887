//! Which neurons an engine computes: what a caller chooses, and what that comes to with the model at hand.

use std::{fmt, ops::ControlFlow, str::FromStr, sync::Arc};

use crate::{
    cpu::ThreadPool,
    error::{Error, Result},
    format::TensorType,
    model::{Activation, Down, Ffn, FfnWeights, LayerWeights, Model, Sparsity},
};

/// What a caller wants skipped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SparsityChoice {
    /// The quickest mode that loses next to nothing: [`Sparsity::Predicted`] where predictors were measured to find what
    /// fires (they miss a few neurons, so the text may differ), else [`Sparsity::Exact`] for the ReLU family, else
    /// [`Sparsity::Dense`]; the text of these two is the model's.
    #[default]
    Auto,
    /// This.
    Mode(Sparsity),
}

impl SparsityChoice {
    /// Every choice, in the order of a list.
    pub const ALL: [SparsityChoice; 5] = [
        SparsityChoice::Auto,
        SparsityChoice::Mode(Sparsity::Dense),
        SparsityChoice::Mode(Sparsity::Exact),
        SparsityChoice::Mode(Sparsity::Predicted),
        SparsityChoice::Mode(Sparsity::Threshold),
    ];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            SparsityChoice::Auto => "auto",
            SparsityChoice::Mode(mode) => mode.name(),
        }
    }

    /// Whether an engine gives `model` a row per neuron in its down projections when it opens it: where this choice gains by that,
    /// or neurons are to be `placed` one by one. Unasked, only floats are turned: other weights have to be rounded anew, which
    /// changes answers, if by little; and no experts, which are most of what a mixture is and would be in memory twice.
    pub fn turns(self, model: &Model, placed: bool) -> bool {
        let mixtures = model.weights.layers.iter().any(|layer| matches!(layer.ffn, Ffn::Experts(_)));
        match self {
            _ if placed => true,
            SparsityChoice::Auto => model.config.activation.is_sparse() && only_floats(model) && !mixtures,
            SparsityChoice::Mode(mode) => mode != Sparsity::Dense,
        }
    }

    /// What is expected of `model` where [`SparsityChoice::turns`] says that an engine will change it, for reckoning with its sizes
    /// ([`Model::neuron_major_outline`]), and the bytes of RAM that its turned down projections will take.
    pub fn outline(self, model: &Model, placed: bool) -> Option<(Model, u64)> {
        // Where there is no room, the engine will leave them as they are, too.
        self.turns(model, placed).then(|| model.neuron_major_outline().ok()).flatten()
    }
}

impl fmt::Display for SparsityChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for SparsityChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = SparsityChoice::ALL.into_iter().find(|choice| choice.name() == text);
        known.ok_or_else(|| Error::invalid("sparsity", SparsityChoice::ALL.map(SparsityChoice::name).join(", "), text))
    }
}

/// What is skipped, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SparsityReport {
    /// What was asked for.
    pub asked: SparsityChoice,
    /// What runs.
    pub mode: Sparsity,
    /// A sentence for people, without a full stop.
    pub reason: String,
}

impl SparsityReport {
    /// What `asked` comes to with `model`, if predictors are to find `recall` of what fires.
    pub fn new(asked: SparsityChoice, model: &Model, recall: f32) -> Self {
        let facts = Facts::of(model);
        let (mode, reason) = match asked {
            SparsityChoice::Auto => facts.auto(recall),
            SparsityChoice::Mode(mode) => (mode, facts.explain(mode)),
        };
        SparsityReport { asked, mode, reason }
    }
}

/// What of a model decides.
#[derive(Debug, Clone, PartialEq)]
struct Facts {
    activation: Activation,
    /// Layers, and how many of them have what the modes want.
    layers: usize,
    neuron_major: usize,
    predictors: usize,
    cuts: usize,
    /// Layers that are mixtures, which have no predictors.
    mixtures: usize,
    /// Mean measured recall of the predictors; `None` unless all were measured.
    recall: Option<f32>,
}

impl Facts {
    fn of(model: &Model) -> Self {
        let layers = &model.weights.layers;
        let count = |has: fn(&LayerWeights) -> bool| layers.iter().filter(|layer| has(layer)).count();
        let predictors = count(|layer| layer.predictor.is_some());
        let found = layers.iter().filter_map(|layer| layer.predictor.as_ref());
        let recall: Option<f32> = found.map(|predictor| predictor.quality.map(|quality| quality.recall)).sum();
        Facts {
            activation: model.config.activation,
            layers: layers.len(),
            neuron_major: count(|layer| match &layer.ffn {
                Ffn::Dense(ffn) => matches!(ffn.down, Down::Neurons(_)),
                Ffn::Experts(mixture) => mixture.downs().all(|down| matches!(down, Down::Neurons(_))),
            }),
            predictors,
            cuts: count(|layer| layer.cut.is_some()),
            mixtures: count(|layer| matches!(layer.ffn, Ffn::Experts(_))),
            recall: recall.filter(|_| predictors > 0).map(|sum| sum / predictors as f32),
        }
    }

    fn auto(&self, wanted: f32) -> (Sparsity, String) {
        let activation = self.activation;
        if !activation.is_sparse() {
            let reason = format!("with {activation} no neuron is ever silent: skipping any would change the answers");
            return (Sparsity::Dense, reason);
        }
        let percent = |share: f32| f64::from(share) * 100.0;
        match self.recall {
            Some(recall) if recall >= wanted => {
                let reason = format!(
                    "the predictors find {:.1} % of what fires, {:.1} % are asked for",
                    percent(recall),
                    percent(wanted)
                );
                (Sparsity::Predicted, reason)
            }
            Some(recall) => {
                let reason = format!(
                    "the predictors find {:.1} % of what fires, {:.1} % are asked for: gates decide",
                    percent(recall),
                    percent(wanted)
                );
                (Sparsity::Exact, reason)
            }
            None if self.predictors > 0 => {
                (Sparsity::Exact, "nobody has measured what the predictors find: gates decide".to_owned())
            }
            None => (Sparsity::Exact, format!("{activation} silences neurons, and their gates tell which")),
        }
    }

    fn explain(&self, mode: Sparsity) -> String {
        let (activation, layers) = (self.activation, self.layers);
        match mode {
            Sparsity::Dense => "every neuron is computed".to_owned(),
            Sparsity::Exact | Sparsity::Predicted if !activation.is_sparse() => {
                format!("with {activation} no neuron is ever silent, so all are computed")
            }
            Sparsity::Predicted if self.predictors == 0 && self.mixtures == layers => {
                "mixtures have no predictors: gates decide which rows of the chosen experts are read".to_owned()
            }
            Sparsity::Predicted if self.predictors == 0 => {
                "there are no predictors (`thermocline prepare` makes them), so gates decide".to_owned()
            }
            Sparsity::Predicted if self.predictors < layers => {
                format!("{} of {layers} layers have predictors; in the others gates decide", self.predictors)
            }
            Sparsity::Predicted => "predictors rule neurons out, gates decide on the others".to_owned(),
            Sparsity::Exact if self.neuron_major < layers => {
                "gates decide which up rows are read; the file's down matrices are read whole".to_owned()
            }
            Sparsity::Exact => "gates decide which up and down rows are read".to_owned(),
            Sparsity::Threshold if self.cuts == 0 => {
                "there are no cuts (`thermocline prepare` finds them), so every neuron is computed".to_owned()
            }
            Sparsity::Threshold => "neurons whose gates are under their layer's cut are skipped".to_owned(),
        }
    }
}

/// `model` as [`SparsityChoice::turns`] says of `asked`.
pub(super) fn turned(model: Model, asked: SparsityChoice, placed: bool, pool: &ThreadPool) -> Arc<Model> {
    let turned = if asked.turns(&model, placed) { turn(&model, pool) } else { None };
    Arc::new(turned.unwrap_or(model))
}

/// With a row per neuron in its down projections; `None` if there is no room for them.
fn turn(model: &Model, pool: &ThreadPool) -> Option<Model> {
    match model.neuron_major(pool, &mut |_, _| ControlFlow::Continue(())) {
        Ok((turned, report)) => {
            if report.matrices > 0 {
                tracing::info!(report.matrices, report.bytes, report.error, "down projections have a row per neuron");
            }
            Some(turned)
        }
        Err(error) => {
            tracing::warn!(%error, "down projections stay as they are");
            None
        }
    }
}

/// Whether no down projection of one FFN for every token has its outputs in quantised rows.
fn only_floats(model: &Model) -> bool {
    model.weights.layers.iter().all(|layer| match &layer.ffn {
        Ffn::Dense(FfnWeights { down: Down::Outputs(down), .. }) => {
            matches!(down.weight.ty(), TensorType::F32 | TensorType::F16 | TensorType::BF16)
        }
        _ => true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            activation: Activation::Relu,
            layers: 4,
            neuron_major: 4,
            predictors: 4,
            cuts: 0,
            mixtures: 0,
            recall: Some(0.97),
        }
    }

    #[test]
    fn auto_is_the_quickest_that_changes_nothing() {
        let auto = |facts: Facts| facts.auto(0.95).0;
        assert_eq!(auto(facts()), Sparsity::Predicted);
        assert_eq!(auto(Facts { recall: Some(0.9), ..facts() }), Sparsity::Exact);
        assert_eq!(auto(Facts { recall: None, ..facts() }), Sparsity::Exact);
        assert_eq!(auto(Facts { predictors: 0, recall: None, ..facts() }), Sparsity::Exact);
        assert_eq!(auto(Facts { activation: Activation::Silu, cuts: 4, ..facts() }), Sparsity::Dense);
        assert_eq!(auto(Facts { mixtures: 4, predictors: 0, recall: None, ..facts() }), Sparsity::Exact);
    }

    #[test]
    fn the_reason_says_what_is_missing() {
        let says = |facts: Facts, mode: Sparsity, what: &str| {
            let reason = facts.explain(mode);
            assert!(reason.contains(what), "{mode}: {reason}");
        };
        says(Facts { predictors: 0, ..facts() }, Sparsity::Predicted, "no predictors");
        says(Facts { predictors: 3, ..facts() }, Sparsity::Predicted, "3 of 4 layers");
        says(Facts { predictors: 0, mixtures: 4, ..facts() }, Sparsity::Predicted, "mixtures have no predictors");
        says(Facts { activation: Activation::Silu, ..facts() }, Sparsity::Exact, "silu");
        says(Facts { neuron_major: 0, ..facts() }, Sparsity::Exact, "whole");
        says(facts(), Sparsity::Threshold, "no cuts");
    }

    #[test]
    fn names_come_back() {
        for choice in SparsityChoice::ALL {
            assert_eq!(choice.to_string().parse::<SparsityChoice>().unwrap(), choice);
        }
        assert!("none".parse::<SparsityChoice>().is_err());
    }
}
