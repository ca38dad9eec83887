//! The sparsity mode of an engine: the caller's choice, and the mode that it resolves to for a
//! model.

use std::{fmt, ops::ControlFlow, str::FromStr, sync::Arc};

use super::WeightRoom;
use thermocline_base::error::{Error, Result};
use thermocline_cpu::ThreadPool;
use thermocline_formats::{format::Matrix, quant::TensorType};
use thermocline_model::{Activation, Down, Ffn, FfnWeights, LayerWeights, Model, PredictorKind, SkipRule, Skips};
use thermocline_run::runtime::Sparsity;

/// Fewest bytes of a layer's gates that a predictor must save beyond its own. Below that its two
/// products take longer than the reads that they replace. A CPU core reads this much from its
/// caches in about 50 microseconds.
pub const WORTH_PREDICTING: u64 = 1 << 20;

/// A caller's choice of a sparsity mode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SparsityChoice {
    /// The fastest mode with almost no loss. It is [`Sparsity::Predicted`] if the predictors'
    /// measured recall suffices and they save at least [`WORTH_PREDICTING`] bytes. They miss a few
    /// neurons, so the text may differ. Otherwise it is [`Sparsity::Exact`] for the ReLU family and
    /// [`Sparsity::Dense`] for others, which keep the model's text.
    #[default]
    Auto,
    /// This mode.
    Mode(Sparsity),
}

impl SparsityChoice {
    /// Every choice, in display order.
    pub const ALL: [SparsityChoice; 5] = [
        SparsityChoice::Auto,
        SparsityChoice::Mode(Sparsity::Dense),
        SparsityChoice::Mode(Sparsity::Exact),
        SparsityChoice::Mode(Sparsity::Predicted),
        SparsityChoice::Mode(Sparsity::Threshold),
    ];

    /// Name of the choice on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            SparsityChoice::Auto => "auto",
            SparsityChoice::Mode(mode) => mode.name(),
        }
    }

    /// True if an engine makes the down projections of `model` neuron-major when it opens the
    /// model. It does so if this choice profits from it, or if neurons are placed one by one
    /// (`by_neuron`). [`SparsityChoice::Auto`] transposes only floats, because requantising other
    /// weights changes answers slightly. It transposes no experts, because most of an MoE model
    /// would then be in memory twice.
    pub fn makes_neuron_major(self, model: &Model, by_neuron: bool) -> bool {
        let moe = model.weights.layers.iter().any(|layer| matches!(layer.ffn, Ffn::Experts(_)));
        match self {
            _ if by_neuron => true,
            // Input-major copies are made later, from the file's own weights.
            SparsityChoice::Mode(Sparsity::Threshold) if model.weights.input_level.is_some() && !moe => false,
            SparsityChoice::Auto => model.config.activation.is_sparse() && only_floats(model) && !moe,
            SparsityChoice::Mode(mode) => mode != Sparsity::Dense,
        }
    }

    /// The sizes of `model` after an engine has opened it ([`Model::neuron_major_outline`]), and
    /// the RAM bytes of its neuron-major down projections. `None` if they will not be transposed,
    /// because this choice does not profit ([`SparsityChoice::makes_neuron_major`]), or because
    /// they do not fit beside the weights.
    pub fn neuron_major_outline(self, model: &Model, by_neuron: bool, room: WeightRoom) -> Option<(Model, u64)> {
        let outline = self.makes_neuron_major(model, by_neuron).then(|| model.neuron_major_outline().ok()).flatten();
        outline.filter(|(_, copies)| room.fits(model, *copies))
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

/// The sparsity mode in use and the reason for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SparsityReport {
    /// The caller's choice.
    pub asked: SparsityChoice,
    /// The mode in use.
    pub mode: Sparsity,
    /// The mode that is effectively computed: `mode`, or a lesser one if the model lacks what
    /// `mode` needs.
    pub at_work: Sparsity,
    /// The reason: a sentence for users, without a full stop.
    pub reason: String,
}

impl SparsityReport {
    /// The mode that `asked` resolves to for `model`, if predictors must find the fraction `recall`
    /// of the firings.
    pub fn new(asked: SparsityChoice, model: &Model, recall: f32) -> Self {
        let facts = SparsityFacts::of(model);
        let (mode, reason) = match asked {
            SparsityChoice::Auto => facts.auto(recall),
            SparsityChoice::Mode(mode) => (mode, facts.explain(mode)),
        };
        let level = model.weights.input_level;
        let reason = match level {
            Some(level) if mode != Sparsity::Dense => with_inputs(model, mode, level, reason),
            _ => reason,
        };
        SparsityReport { asked, mode, at_work: facts.at_work(mode, level.is_some()), reason }
    }

    /// The reason why the model cannot use the requested mode and would compute as another one.
    /// `None` if it can.
    pub fn obstacle(&self) -> Option<&str> {
        (self.mode != self.at_work).then_some(&self.reason)
    }
}

impl fmt::Display for SparsityReport {
    /// Writes the effective mode, the choice if it differs, and the reason.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SparsityReport { asked, mode, at_work, reason } = self;
        match asked {
            SparsityChoice::Auto => write!(f, "{at_work} (auto): {reason}"),
            _ if mode != at_work => write!(f, "{at_work} ({mode} was requested): {reason}"),
            _ => write!(f, "{at_work}: {reason}"),
        }
    }
}

/// Adds to the reason of `mode` what skipping inputs at `level` means.
fn with_inputs(model: &Model, mode: Sparsity, level: f32, reason: String) -> String {
    let ffn = mode == Sparsity::Threshold;
    let mut text = match ffn {
        true => format!("small inputs are skipped, which spares {:.0} % of the layers' weights", 100.0 * level),
        false => {
            format!("{reason}; attention skips the weights of small inputs, {:.0} % of its weights", 100.0 * level)
        }
    };
    let copies = model.input_copies(ffn);
    if copies.bytes > 0 {
        text += &format!("; input-major copies of the weights take {} MiB of RAM", copies.bytes >> 20);
    }
    if let Some(figures) = model.figures_of_level(level).filter(|_| ffn) {
        text += &format!("; measured {}", figures.cost());
    }
    text
}

/// The properties of a model that decide its mode.
#[derive(Debug, Clone, PartialEq)]
struct SparsityFacts {
    activation: Activation,
    /// Number of layers. The next three count layers with neuron-major down projections, usable
    /// predictors, and activation thresholds.
    layers: usize,
    neuron_major: usize,
    predictors: usize,
    thresholds: usize,
    /// Number of MoE layers, which have no predictors.
    moe: usize,
    /// Number of layers with silent neurons to skip.
    silent: usize,
    /// Mean measured recall of the predictors; `None` unless all were measured.
    recall: Option<f32>,
    /// Bytes of a layer's firing rows that its predictor saves beyond its own, averaged over the
    /// layers with a predictor.
    spared: u64,
}

impl SparsityFacts {
    fn of(model: &Model) -> Self {
        let layers = &model.weights.layers;
        let count = |has: fn(&LayerWeights) -> bool| layers.iter().filter(|layer| has(layer)).count();
        let rules = || layers.iter().map(|layer| SkipRule::of(layer, model.config.activation));
        let rules_out = |rule: &SkipRule| rule.skips_of_token(Sparsity::Predicted) == Skips::NotPredicted;
        let predictors = rules().filter(rules_out).count();
        let found: Vec<&LayerWeights> = layers.iter().filter(|layer| layer.predictor.is_some()).collect();
        let quality = |layer: &&LayerWeights| layer.predictor.as_ref()?.quality;
        let recall: Option<f32> = found.iter().map(|layer| quality(layer).map(|quality| quality.recall)).sum();
        let spared: u64 = found.iter().map(|layer| spared(layer)).sum();
        SparsityFacts {
            activation: model.config.activation,
            layers: layers.len(),
            neuron_major: count(|layer| match &layer.ffn {
                Ffn::Dense(ffn) => matches!(ffn.down, Down::Neurons(_)),
                Ffn::Experts(experts) => experts.downs().all(|down| matches!(down, Down::Neurons(_))),
                Ffn::None => true,
            }),
            predictors,
            thresholds: rules().filter(|rule| rule.skips_of_token(Sparsity::Threshold) != Skips::Nothing).count(),
            moe: count(|layer| matches!(layer.ffn, Ffn::Experts(_))),
            silent: rules().filter(|rule| rule.skips_of_token(Sparsity::Exact) == Skips::Silent).count(),
            recall: recall.filter(|_| predictors > 0).map(|sum| sum / found.len() as f32),
            spared: spared / found.len().max(1) as u64,
        }
    }

    fn auto(&self, wanted: f32) -> (Sparsity, String) {
        let activation = self.activation;
        if !activation.is_sparse() {
            let reason =
                format!("no neuron is ever silent with {activation}, so skipping neurons would change the answers");
            return (Sparsity::Dense, reason);
        }
        let percent = |fraction: f32| f64::from(fraction) * 100.0;
        match self.recall {
            Some(recall) if recall >= wanted && self.spared < WORTH_PREDICTING => {
                let reason = format!(
                    "the predictors would spare {} KiB of a layer's gates, less than their own products \
                     cost, so the gates decide",
                    self.spared >> 10
                );
                (Sparsity::Exact, reason)
            }
            Some(recall) => {
                let found = format!(
                    "the predictors find {:.1} % of the firing neurons, and {:.1} % are requested",
                    percent(recall),
                    percent(wanted)
                );
                match recall >= wanted {
                    true => (Sparsity::Predicted, found),
                    false => (Sparsity::Exact, format!("{found}, so the gates decide")),
                }
            }
            None if self.predictors > 0 => {
                (Sparsity::Exact, "the recall of the predictors was not measured, so the gates decide".to_owned())
            }
            None => {
                (Sparsity::Exact, format!("{activation} silences neurons, and the gates decide which rows are read"))
            }
        }
    }

    /// The mode that is effectively computed in `mode`. `level` is true if attention skips small
    /// inputs in all modes but [`Sparsity::Dense`].
    fn at_work(&self, mode: Sparsity, level: bool) -> Sparsity {
        match mode {
            Sparsity::Exact | Sparsity::Predicted if self.silent == 0 && !level => Sparsity::Dense,
            Sparsity::Predicted if self.predictors == 0 => Sparsity::Exact,
            Sparsity::Threshold if self.thresholds == 0 && !level => Sparsity::Dense,
            mode => mode,
        }
    }

    fn explain(&self, mode: Sparsity) -> String {
        let (activation, layers) = (self.activation, self.layers);
        match mode {
            Sparsity::Dense => "every neuron is computed".to_owned(),
            Sparsity::Exact | Sparsity::Predicted if self.silent == 0 => {
                format!("no neuron is ever silent with {activation}, so every neuron is computed")
            }
            Sparsity::Predicted if self.predictors == 0 && self.moe == layers => {
                "MoE layers have no predictors, so the gates decide which rows of routed experts are read".to_owned()
            }
            Sparsity::Predicted if self.predictors == 0 => {
                "the model has no predictors (`thermocline prepare` trains them), so the gates decide".to_owned()
            }
            Sparsity::Predicted if self.predictors < layers => {
                format!("{} of {layers} layers have predictors; in the other layers the gates decide", self.predictors)
            }
            Sparsity::Predicted => "the predictors exclude neurons, and the gates decide on the rest".to_owned(),
            Sparsity::Exact if self.neuron_major < layers => {
                "the gates decide which up rows are read; the file's down matrices are read whole".to_owned()
            }
            Sparsity::Exact => "the gates decide which up and down rows are read".to_owned(),
            Sparsity::Threshold if self.thresholds == 0 => {
                "the model has no activation thresholds (`thermocline prepare` measures them), \
                 so all neurons are computed"
                    .to_owned()
            }
            Sparsity::Threshold => {
                "neurons whose gates are below the activation threshold of their layer are skipped".to_owned()
            }
        }
    }
}

/// Bytes that the predictor of `layer` saves beyond its own. They belong to the rows that decide
/// firing: gate rows, or up rows without gates.
fn spared(layer: &LayerWeights) -> u64 {
    let (Some(predictor), Ffn::Dense(ffn)) = (&layer.predictor, &layer.ffn) else { return 0 };
    let bytes = |matrix: &Matrix| matrix.byte_len() as u64;
    let own = match &predictor.kind {
        PredictorKind::LowRank { fc1, fc2 } => bytes(fc1) + bytes(fc2),
        PredictorKind::Rows { rows, .. } => bytes(rows),
    };
    let named = predictor.quality.map_or(1.0, |quality| quality.density.clamp(0.0, 1.0));
    let rows = bytes(&ffn.gate.as_ref().unwrap_or(&ffn.up).weight);
    ((rows as f64 * f64::from(1.0 - named)) as u64).saturating_sub(own)
}

/// Makes the down projections of `model` neuron-major if [`SparsityChoice::neuron_major_outline`]
/// says so, and keeps its other weights within `room`.
pub(super) fn prepared_for(
    model: Model,
    asked: SparsityChoice,
    by_neuron: bool,
    room: WeightRoom,
    pool: &ThreadPool,
) -> Arc<Model> {
    if asked.neuron_major_outline(&model, by_neuron, room).is_none() {
        room.keep(&model, 0);
        return Arc::new(model);
    }
    match model.neuron_major(pool, &mut |_, _| ControlFlow::Continue(())) {
        Ok((neuron_major, report)) => {
            if report.matrices > 0 {
                tracing::info!(report.matrices, report.bytes, report.error, "down projections were made neuron-major");
            }
            room.keep(&neuron_major, report.bytes);
            Arc::new(neuron_major)
        }
        Err(error) => {
            tracing::warn!(%error, "down projections stay output-major");
            room.keep(&model, 0);
            Arc::new(model)
        }
    }
}

/// True if every dense down projection that is not neuron-major has float weights.
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

    fn facts() -> SparsityFacts {
        SparsityFacts {
            activation: Activation::Relu,
            layers: 4,
            neuron_major: 4,
            predictors: 4,
            thresholds: 0,
            moe: 0,
            silent: 4,
            recall: Some(0.97),
            spared: 2 * WORTH_PREDICTING,
        }
    }

    #[test]
    fn auto_sparsity_is_the_quickest_mode_that_changes_nothing() {
        let auto = |facts: SparsityFacts| facts.auto(0.95).0;
        assert_eq!(auto(facts()), Sparsity::Predicted);
        assert_eq!(auto(SparsityFacts { recall: Some(0.9), ..facts() }), Sparsity::Exact);
        let small = SparsityFacts { spared: WORTH_PREDICTING - 1, ..facts() };
        assert_eq!(auto(small.clone()), Sparsity::Exact, "products of predictors cost more than small gates");
        assert!(small.auto(0.95).1.contains("1023 KiB"));
        assert_eq!(auto(SparsityFacts { recall: None, ..facts() }), Sparsity::Exact);
        assert_eq!(auto(SparsityFacts { predictors: 0, recall: None, ..facts() }), Sparsity::Exact);
        assert_eq!(auto(SparsityFacts { activation: Activation::Silu, thresholds: 4, ..facts() }), Sparsity::Dense);
        assert_eq!(auto(SparsityFacts { moe: 4, predictors: 0, recall: None, ..facts() }), Sparsity::Exact);
    }

    #[test]
    fn sparsity_reasons_name_missing_predictors_and_layouts() {
        let says = |facts: SparsityFacts, mode: Sparsity, what: &str| {
            let reason = facts.explain(mode);
            assert!(reason.contains(what), "{mode}: {reason}");
        };
        says(SparsityFacts { predictors: 0, ..facts() }, Sparsity::Predicted, "no predictors");
        says(SparsityFacts { predictors: 3, ..facts() }, Sparsity::Predicted, "3 of 4 layers");
        says(SparsityFacts { predictors: 0, moe: 4, ..facts() }, Sparsity::Predicted, "MoE layers have no predictors");
        says(SparsityFacts { activation: Activation::Silu, silent: 0, ..facts() }, Sparsity::Exact, "silu");
        says(SparsityFacts { neuron_major: 0, ..facts() }, Sparsity::Exact, "whole");
        says(facts(), Sparsity::Threshold, "no activation thresholds");
    }

    #[test]
    fn mode_that_the_model_cannot_have_does_the_work_of_a_lesser_one() {
        use Sparsity::{Dense, Exact, Predicted, Threshold};
        let work =
            |facts: SparsityFacts, level| [Dense, Exact, Predicted, Threshold].map(|it| facts.at_work(it, level));
        assert_eq!(work(facts(), false), [Dense, Exact, Predicted, Dense]);
        assert_eq!(work(SparsityFacts { predictors: 0, ..facts() }, false), [Dense, Exact, Exact, Dense]);
        let swiglu = SparsityFacts { activation: Activation::Silu, silent: 0, predictors: 0, ..facts() };
        assert_eq!(work(swiglu.clone(), false), [Dense; 4]);
        assert_eq!(work(SparsityFacts { thresholds: 4, ..swiglu.clone() }, false), [Dense, Dense, Dense, Threshold]);
        assert_eq!(work(swiglu, true), [Dense, Exact, Exact, Threshold], "attention's small inputs are skipped");
    }

    #[test]
    fn report_says_what_is_at_work_and_what_was_asked_for() {
        let report = |asked, mode, at_work| SparsityReport { asked, mode, at_work, reason: "why".to_owned() };
        let exact = SparsityChoice::Mode(Sparsity::Exact);
        let lesser = report(exact, Sparsity::Exact, Sparsity::Dense);
        assert_eq!(
            (lesser.to_string(), lesser.obstacle()),
            ("dense (exact was requested): why".to_owned(), Some("why"))
        );
        let same = report(exact, Sparsity::Exact, Sparsity::Exact);
        assert_eq!((same.to_string(), same.obstacle()), ("exact: why".to_owned(), None));
        let auto = report(SparsityChoice::Auto, Sparsity::Exact, Sparsity::Exact);
        assert_eq!((auto.to_string(), auto.obstacle()), ("exact (auto): why".to_owned(), None));
    }

    #[test]
    fn sparsity_choices_parse_their_names() {
        for choice in SparsityChoice::ALL {
            assert_eq!(choice.to_string().parse::<SparsityChoice>().unwrap(), choice);
        }
        assert!("none".parse::<SparsityChoice>().is_err());
    }
}
