//! The report of `thermocline plan` as JSON.

use serde_json::{Value, json};
use thermocline_engine::placement::LayerPlan;

use super::{priced_plan::PricedPlan, report::PlanReport, sunken_rate::SunkenRate, tower::PlannedTower};

impl PlanReport<'_> {
    /// The report as one JSON object.
    pub fn json(&self) -> Value {
        let (inputs, PricedPlan { plan, ram, .. }) = (self.inputs, &self.priced);
        let mut object = short(&self.priced);
        let bytes: serde_json::Map<String, Value> =
            plan.bytes.by_name().iter().map(|(name, bytes)| ((*name).to_owned(), json!(bytes))).collect();
        object["bytes_by_purpose"] = json!(bytes);
        object["placement"] = json!(self.placement.name());
        object["everything"] = json!(self.everything);
        object["ram_by_purpose"] =
            ram.by_purpose.iter().map(|(name, bytes)| ((*name).to_owned(), json!(bytes))).collect();
        object["vision_tower"] = self.tower.as_ref().map(PlannedTower::json).into();
        object["context"] = json!(inputs.context);
        object["sessions"] = json!(inputs.sessions);
        object["kv_type"] = json!(inputs.kv_type.name());
        object["gpu_kv_type"] = json!(inputs.kv_type.on_gpu().name());
        object["sparsity"] = json!({ "mode": self.sparsity.at_work.name(), "reason": self.sparsity.reason });
        object["assumptions"] = plan.assumptions.iter().map(ToString::to_string).collect();
        object["ram_needed"] = json!(ram.need.total());
        object["disk_bytes_per_token"] = json!(ram.shortage.map_or(0.0, |shortage| shortage.disk_bytes));
        object["memory_notes"] = json!(self.memory_notes());
        object["head_seconds"] = json!(plan.head_seconds);
        object["token_seconds"] = json!(plan.token_seconds);
        object["seconds"] = json!(self.priced.seconds());
        object["layers"] = plan.layers.iter().map(layer).collect();
        object["ladder"] = self.ladder.iter().map(short).collect();
        let sunken = |of: &SunkenRate| {
            json!({
                "type": of.ty.name(),
                "bytes_per_second": of.in_bursts,
                "sustained_bytes_per_second": of.sustained,
            })
        };
        object["bursts"] = self.sunken.iter().map(sunken).collect();
        object["machine"] = json!(*self.inputs.machine);
        object
    }
}

/// A plan of the ladder. Speeds that cannot be predicted are null.
fn short(priced: &PricedPlan) -> Value {
    let PricedPlan { budget, plan, ram } = priced;
    let (hot, all) = plan.units();
    // Without the size of the RAM, nothing is known to be missing.
    let missing = ram.there.map(|_| ram.shortage.map_or(0, |shortage| shortage.missing));
    json!({
        "budget": budget,
        "bytes": plan.bytes.total(),
        "tokens_per_second": priced.tokens_per_second(),
        "missing_ram": missing,
        "resident_layers": plan.layers.iter().filter(|layer| layer.resident).count(),
        "head": plan.placement.head,
        "hot_neurons": hot,
        "neurons": all,
        "hot_share": plan.hot_fraction(),
        "bottleneck": priced.bottleneck(),
    })
}

fn layer(layer: &LayerPlan) -> Value {
    json!({
        "resident": layer.resident,
        "counted": if layer.experts { "experts" } else { "neurons" },
        "hot": layer.hot,
        "neurons": layer.units,
        "firings": layer.firings,
        "hot_firings": layer.hot_firings,
        "bytes": layer.bytes,
        "seconds": layer.time.seconds,
        "gpu_seconds": layer.time.gpu,
        "cpu_seconds": layer.time.cpu,
        "hand_over_seconds": layer.time.hand_over,
    })
}
