//! Bytes of RAM that a plan needs besides the model's file.

use thermocline_engine::{
    model::{Model, Predictor},
    placement::{CostProfile, Plan, PlanInputs},
    runtime::CacheBytes,
};

/// Bytes of the copies that the CPU makes of the predictors that it computes.
pub fn predictors_copied(model: &Model, profile: &CostProfile, plan: &Plan) -> u64 {
    let layers = model.weights.layers.iter().zip(&profile.layers).zip(&plan.layers);
    let on_cpu = layers.filter(|((_, costs), plan)| !costs.predictor_reads.is_empty() && !plan.resident);
    on_cpu.filter_map(|((layer, _), _)| layer.predictor.as_ref()).map(Predictor::copied_bytes).sum()
}

/// Bytes of RAM besides the file, by purpose. The KV caches are those of layers that `plan` leaves
/// to the CPU, with their largest snapshots. Copied weights are neuron-major down projections and
/// predictors. The contexts of a `draft` model are as long as those of the model.
pub fn ram_by_purpose(
    model: &Model,
    draft: Option<&Model>,
    inputs: &PlanInputs,
    plan: &Plan,
    [transposed, copied]: [u64; 2],
) -> [(&'static str, u64); 7] {
    let on_cpu = |layer: usize| plan.layers.get(layer).is_none_or(|layer| !layer.resident);
    let CacheBytes { rows, states, planes, snapshots } =
        CacheBytes::in_ram(&model.config, inputs.context, inputs.kv_type, on_cpu);
    let all = |bytes: u64| bytes.saturating_mul(inputs.sessions as u64);
    let drafter = draft.or(model.draft_head.as_deref());
    let cache_of = |of: &Model| CacheBytes::of(&of.config, inputs.context, inputs.kv_type).total();
    let draft_cache = drafter.map_or(0, cache_of);
    [
        ("neuron-major down projections", transposed),
        ("copies of predictors", copied),
        ("KV cache", all(rows.saturating_add(states))),
        ("recurrent states for drafts", all(planes)),
        ("snapshots for prefix reuse", all(snapshots)),
        ("weights of the draft model", draft.map_or(0, |draft| draft.checkpoint.tensor_bytes())),
        ("KV cache for drafts", all(draft_cache)),
    ]
}
