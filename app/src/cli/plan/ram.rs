//! Bytes of RAM that a plan needs.

use thermocline_engine::{
    model::{Model, Predictor, Tower},
    placement::{PlacementSolver, Plan, RamNeed, RamShortage},
    runtime::{CacheBytes, tower_scratch},
};

/// The values that decide how much RAM the plans of a model need.
pub struct RamUse<'a> {
    pub model: &'a Model,
    /// Its contexts are as long as those of the model.
    pub draft: Option<&'a Model>,
    /// The vision tower. The CPU computes what does not fit a device.
    pub tower: Option<&'a Tower>,
    pub planner: &'a PlacementSolver,
    /// Bytes of down projections that become neuron-major when the model is opened.
    pub transposed: u64,
    /// True if the CPU rounds activations. It then copies predictors.
    pub is_rounded: bool,
    /// Bytes of RAM that plans have, if known.
    pub ram: Option<u64>,
}

/// The RAM of one plan.
pub struct PlannedRam {
    /// Bytes besides the file, by purpose. The KV caches belong to the layers that the plan leaves
    /// to the CPU, with their largest snapshots.
    pub by_purpose: [(&'static str, u64); 10],
    /// The plan's need of RAM.
    pub need: RamNeed,
    /// Bytes that the plan has, if known.
    pub there: Option<u64>,
    /// The part that does not fit. `None` if everything fits, or if the RAM is unknown.
    pub shortage: Option<RamShortage>,
}

impl RamUse<'_> {
    /// The RAM of `plan`.
    pub fn of(&self, plan: &Plan) -> PlannedRam {
        let (model, planner, inputs) = (self.model, self.planner, self.planner.inputs());
        let on_cpu = |layer: usize| plan.layers.get(layer).is_none_or(|layer| !layer.resident);
        let CacheBytes { rows, states, planes, snapshots } =
            CacheBytes::in_ram(&model.config, inputs.context, inputs.kv_type, inputs.chunk, on_cpu);
        let all = |bytes: u64| bytes.saturating_mul(inputs.sessions as u64);
        let drafter = self.draft.or(model.draft_head.as_deref());
        let cache_of = |of: &Model| CacheBytes::of(&of.config, inputs.context, inputs.kv_type).total();
        let draft_cache = drafter.map_or(0, cache_of);
        // The scratch memory of a device with the same chunk length estimates the CPU's scratch
        // memory.
        let computes = plan.layers.iter().any(|layer| layer.hot < layer.units || !layer.resident);
        let by_purpose = [
            ("neuron-major down projections", self.transposed),
            ("copies of predictors", if self.is_rounded { self.predictors_copied(plan) } else { 0 }),
            ("KV cache", all(rows.saturating_add(states))),
            ("recurrent states for drafts", all(planes)),
            ("snapshots for prefix reuse", all(snapshots)),
            ("weights of the draft model", self.draft.map_or(0, |draft| draft.checkpoint.tensor_bytes())),
            ("weights of the vision tower", self.tower.map_or(0, |tower| tower.checkpoint.tensor_bytes())),
            ("scratch of the vision tower", self.tower.map_or(0, tower_scratch)),
            ("KV cache for drafts", all(draft_cache)),
            ("scratch", if computes { planner.profile().scratch } else { 0 }),
        ];
        let others = by_purpose.iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add);
        let need = RamNeed::of(plan, &inputs.machine, model.checkpoint.tensor_bytes(), others);
        let short = self.ram.filter(|ram| need.total() > *ram);
        let shortage = short.and_then(|ram| {
            RamShortage::new(need, ram, &planner.profile().cpu_reads(&plan.placement), inputs.machine.disk)
        });
        PlannedRam { by_purpose, need, there: self.ram, shortage }
    }

    /// Bytes of the copies that the CPU makes of the predictors that it computes.
    fn predictors_copied(&self, plan: &Plan) -> u64 {
        let layers = self.model.weights.layers.iter().zip(&self.planner.profile().layers).zip(&plan.layers);
        let on_cpu = layers.filter(|((_, costs), plan)| !costs.predictor_reads.is_empty() && !plan.resident);
        on_cpu.filter_map(|((layer, _), _)| layer.predictor.as_ref()).map(Predictor::copied_bytes).sum()
    }
}
