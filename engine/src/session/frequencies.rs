//! How often neurons fire, from whoever knows it.

use crate::{
    model::{LayerWeights, Model},
    telemetry::neurons::NeuronBoard,
};

/// Who has counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// `prepare`, on its text. Plans go by it.
    Profile,
    /// The engine, on so many tokens since the model was opened.
    Counted(u64),
}

/// How often the neurons of a layer fire.
#[derive(Debug, Clone, PartialEq)]
pub struct Frequencies {
    /// `[n_ff]`: a share of the tokens each, from 0 to 1.
    pub values: Vec<f32>,
    /// `[experts]`: at what share of the tokens each is chosen; empty where the FFN is no mixture.
    pub experts: Vec<f32>,
    /// Who has counted them.
    pub origin: Origin,
}

impl Frequencies {
    /// Of `layer`: the profile's if there is one, else what was counted. `None` for a layer of which nothing is known.
    pub(super) fn of(model: &Model, board: &NeuronBoard, layer: usize) -> Option<Self> {
        let shape = board.shape();
        let (neurons, experts) = (shape.neurons(layer), shape.experts(layer));
        let weights: Option<&LayerWeights> = model.weights.layers.get(layer);
        let profile = weights.and_then(|layer| layer.frequency.as_ref());
        let of_experts = weights.and_then(|layer| layer.neuron_frequency.as_ref());
        if let (Some(chosen), Some(values)) = (profile, of_experts)
            && (chosen.len(), values.len()) == (experts, neurons)
        {
            let (values, experts) = (values.clone(), chosen.clone());
            return Some(Frequencies { values, experts, origin: Origin::Profile });
        }
        if let Some(values) = profile.filter(|values| experts == 0 && values.len() == neurons) {
            return Some(Frequencies { values: values.clone(), experts: Vec::new(), origin: Origin::Profile });
        }
        let tally = board.tally(layer);
        let known = tally.tokens > 0 && !tally.counts.is_empty();
        let share = |count: &u32| (f64::from(*count) / tally.tokens as f64) as f32;
        let profiled = profile.filter(|experts| experts.len() == tally.chosen.len()).cloned();
        known.then(|| Frequencies {
            values: tally.counts.iter().map(share).collect(),
            experts: profiled.unwrap_or_else(|| tally.chosen.iter().map(share).collect()),
            origin: Origin::Counted(tally.tokens),
        })
    }
}
