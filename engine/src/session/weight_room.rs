//! [`WeightRoom`]: the RAM that an engine has for the weights of its model.

use super::{EngineOptions, SparsityChoice};
use thermocline_cpu::InputPrecision;
use thermocline_model::{Model, Predictor, Tower};
use thermocline_run::{
    placement::WeightLimit,
    runtime::{CacheBytes, Sparsity, tower_scratch},
};

/// Bytes of RAM that an engine takes beside weights and KV caches, about.
const WORKING_BYTES: u64 = 64 << 20;

/// The RAM for the weights of a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WeightRoom {
    /// Bytes of RAM; `None` without a limit.
    pub bytes: Option<u64>,
    /// Bytes of weights that are in GPU memory instead, at most.
    pub on_device: u64,
}

impl WeightRoom {
    /// The part of [`EngineOptions::ram`] that remains for the weights of `model`. The KV caches of
    /// all sessions, the draft model, the vision tower with its largest picture and the engine's
    /// own memory are subtracted. At least half of the RAM remains, because caches fill only with
    /// the conversation.
    pub fn of(options: &EngineOptions, model: &Model, draft: Option<&Model>, tower: Option<&Tower>) -> Self {
        let context = options.context_of(&model.config);
        let cache = |of: &Model| CacheBytes::of(&of.config, context, options.kv_type).total();
        let drafter = draft.or(model.draft_head.as_deref());
        let session = cache(model).saturating_add(drafter.map_or(0, cache));
        let sessions = session.saturating_mul(options.sessions as u64);
        let others = [
            options.kv_budget.map_or(sessions, |budget| budget.max(session).min(sessions)),
            draft.map_or(0, |draft| draft.checkpoint.tensor_bytes()),
            tower.map_or(0, |tower| tower.checkpoint.tensor_bytes().saturating_add(tower_scratch(tower))),
            copies_of_predictors(options, model),
            WORKING_BYTES,
        ];
        let others = others.into_iter().fold(0, u64::saturating_add);
        let bytes = options.ram.map(|ram| ram.saturating_sub(others).max(ram / 2));
        WeightRoom { bytes, on_device: options.device.budget().unwrap_or(0) }
    }

    /// The limit of the RAM for the weights of `model`. `None` without a limit.
    pub fn limit(self, model: &Model) -> Option<WeightLimit> {
        self.bytes.map(|ram| WeightLimit { weights: model.checkpoint.tensor_bytes(), ram })
    }

    /// True if the weights of `model` and `copies` bytes of copies fit.
    pub(super) fn fits(self, model: &Model, copies: u64) -> bool {
        let in_ram = model.checkpoint.tensor_bytes().saturating_sub(self.on_device);
        self.bytes.is_none_or(|room| in_ram.saturating_add(copies) <= room)
    }

    /// Lets a pager decide which weights of `model` are in RAM, unless all of them fit beside
    /// `copies` bytes of copies.
    pub(super) fn keep(self, model: &Model, copies: u64) {
        if let Some(room) = self.bytes {
            model.keep_within(room.saturating_sub(copies));
        }
    }
}

/// Bytes of the copies that the CPU makes of predictors if it rounds activations.
fn copies_of_predictors(options: &EngineOptions, model: &Model) -> u64 {
    let may_predict = matches!(options.sparsity, SparsityChoice::Auto | SparsityChoice::Mode(Sparsity::Predicted));
    let predictors = model.weights.layers.iter().filter_map(|layer| layer.predictor.as_ref());
    match options.cpu.activations {
        InputPrecision::Int8 if may_predict => predictors.map(Predictor::copied_bytes).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use thermocline_model::LoadOptions;

    #[test]
    fn sessions_drafts_and_copies_leave_less_room_for_weights() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/llama-relu");
        let model = Model::open(&path, &LoadOptions::default()).unwrap();
        let options = EngineOptions { ram: Some(1 << 30), context: Some(64), ..EngineOptions::default() };
        let room = |options: &EngineOptions, draft| WeightRoom::of(options, &model, draft, None).bytes.unwrap();
        let cache = CacheBytes::of(&model.config, 64, options.kv_type).total();
        let weights = model.checkpoint.tensor_bytes();
        let one = room(&options, None);
        let four = EngineOptions { sessions: 4, ..options.clone() };
        assert!(cache > 0 && one - room(&four, None) == 3 * cache);
        assert_eq!(one - room(&options, Some(&model)), cache + weights);
        let limited = EngineOptions { kv_budget: Some(2 * cache), ..four };
        assert_eq!(one - room(&limited, None), cache);
        assert_eq!(room(&EngineOptions { ram: Some(1 << 20), ..options.clone() }, None), 1 << 19);
        assert_eq!(WeightRoom::of(&EngineOptions { ram: None, ..options }, &model, None, None), WeightRoom::default());

        let room = |bytes: u64, on_device: u64| WeightRoom { bytes: Some(bytes), on_device };
        assert!(room(weights + 5, 0).fits(&model, 5) && !room(weights + 5, 0).fits(&model, 6));
        assert!(room(weights / 2, weights).fits(&model, 6) && WeightRoom::default().fits(&model, u64::MAX));
    }
}
