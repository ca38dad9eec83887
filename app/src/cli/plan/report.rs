//! The report of `thermocline plan` as text.

use std::path::Path;

use thermocline_engine::{
    placement::{Granularity, PlanInputs},
    session::SparsityReport,
};

use super::{
    layers_table::{counted, layers_table},
    priced_plan::PricedPlan,
    sunken_rate::SunkenRate,
    tower::PlannedTower,
};
use crate::cli::table::TextTable;
use thermocline_host::units;
use thermocline_terminal::failure::one_line;

/// The command's report.
pub struct PlanReport<'a> {
    pub inputs: &'a PlanInputs,
    pub sparsity: &'a SparsityReport,
    /// Speeds that are lower in bursts.
    pub sunken: Vec<SunkenRate>,
    pub placement: Granularity,
    /// True if the requested budget was larger than the GPU's memory.
    pub is_cut: bool,
    /// Bytes of the whole model on the GPU.
    pub everything: u64,
    /// The vision tower on the GPU, if the GPU may compute it.
    pub tower: Option<PlannedTower>,
    pub priced: PricedPlan,
    /// Plans under other budgets.
    pub ladder: Vec<PricedPlan>,
}

impl PlanReport<'_> {
    /// The report as text.
    pub fn text(&self, split: Option<&Path>) -> String {
        let cpu = &self.inputs.machine.cpu;
        let gb = |rate: f64| format!("{:.1} GB/s", rate / 1e9);
        let mut text = format!("CPU       {}, {} threads, reads {}\n", cpu.name, cpu.threads, gb(cpu.memory));
        text += &match &self.inputs.machine.gpu {
            Some(gpu) => format!(
                "GPU       {}, reads {}; a hand-over takes {:.0} us\n",
                one_line(&gpu.adapter),
                gb(gpu.memory),
                gpu.hand_over * 1e6
            ),
            None => "GPU       none\n".to_owned(),
        };
        for SunkenRate { ty, sustained, in_bursts } in &self.sunken {
            let [slow, quick] = [*in_bursts, *sustained].map(gb);
            text += &format!(
                "bursts    the GPU reads {ty} weights at {slow} in split layers, where its clocks sink, and at {quick} in whole layers\n"
            );
        }
        let inputs = self.inputs;
        text += &format!(
            "context   {} of {} tokens, {}\n",
            if inputs.sessions == 1 { "one".to_owned() } else { inputs.sessions.to_string() },
            inputs.context,
            cache_types(inputs)
        );
        text += &format!("sparsity  {}\n", self.sparsity);
        text += &match split {
            Some(path) => format!("split     {}\n", one_line(&path.display().to_string())),
            None => format!("budget    {}, placed by {}\n", self.budget_text(self.priced.budget), self.placement),
        };
        let PricedPlan { plan, ram, .. } = &self.priced;
        let [needed, weights] = [ram.need.total(), ram.need.weights].map(units::bytes);
        let there = ram.there.map(|ram| format!("; the machine has {}", units::bytes(ram))).unwrap_or_default();
        text += &format!("RAM       {needed} needed, {weights} of them weights{there}\n");
        for (what, bytes) in ram.by_purpose.iter().filter(|(_, bytes)| *bytes > 0) {
            text += &format!("RAM       {} beside the file, for {what}\n", units::bytes(*bytes));
        }
        text += &self.tower.as_ref().map(PlannedTower::text).unwrap_or_default();
        for note in plan.assumptions.iter().map(ToString::to_string).chain(self.memory_notes()) {
            text += &format!("note      {note}\n");
        }
        text += &format!(
            "\n{}, {} of GPU memory, {} of firings hot; the limit is {}\n\n",
            self.priced.speed(),
            units::bytes(plan.bytes.total()),
            percent(plan.hot_fraction()),
            self.priced.bottleneck()
        );
        text += &layers_table(&plan.layers);
        let mut purposes = TextTable::new(&["memory for", "size"]);
        let used = plan.bytes.by_name().into_iter().filter(|(_, bytes)| *bytes > 0);
        used.for_each(|(name, bytes)| purposes.row([name.to_owned(), units::bytes(bytes)]));
        if purposes.rows.len() > 1 {
            text += &format!("\n{}", purposes.text());
        }
        if !self.ladder.is_empty() {
            text += &format!("\n{}", self.ladder_table());
        }
        text
    }

    /// Describes memory that the machine does not have.
    pub fn memory_notes(&self) -> Vec<String> {
        let card = self.inputs.machine.memory.vram.filter(|_| self.is_cut);
        let card = card.map(|card| format!("the budget is limited to {}, the memory of the GPU", units::bytes(card)));
        let unknown = self.priced.ram.there.is_none();
        let unknown =
            unknown.then(|| "the size of the RAM is unknown, so the plan assumes that everything fits".to_owned());
        [card, unknown, self.priced.shortage_note()].into_iter().flatten().collect()
    }

    fn budget_text(&self, budget: u64) -> String {
        match budget {
            0 => "nothing: only the CPU computes".to_owned(),
            budget if budget >= self.everything => {
                format!("everything ({})", units::bytes(self.everything))
            }
            budget => units::bytes(budget),
        }
    }

    fn ladder_table(&self) -> String {
        let hot = format!("hot {}", counted(&self.priced.plan.layers));
        let heads = ["budget", "tokens/s", "GPU layers", &hot, "of firings", "limit"];
        let mut lines = TextTable::new(&heads);
        for rung in &self.ladder {
            let PricedPlan { budget, plan, .. } = rung;
            let (hot, all) = plan.units();
            let mark = if *budget == self.priced.budget { " *" } else { "" };
            lines.row([
                format!("{}{mark}", self.budget_text(*budget)),
                rung.tokens_per_second().map_or_else(|| "-".to_owned(), |rate| format!("{rate:.2}")),
                plan.layers.iter().filter(|layer| layer.resident).count().to_string(),
                percent(hot as f64 / all.max(1) as f64),
                percent(plan.hot_fraction()),
                rung.bottleneck().to_owned(),
            ]);
        }
        lines.text()
    }
}

/// Names the element type of the KV caches, and of their part in GPU memory if it differs.
fn cache_types(inputs: &PlanInputs) -> String {
    match (inputs.kv_type, inputs.kv_type.on_gpu()) {
        (ram, gpu) if ram != gpu && inputs.machine.gpu.is_some() => format!("{ram} ({gpu} on the GPU)"),
        (ram, _) => ram.to_string(),
    }
}

/// Formats `0.5` as `50.0 %`.
pub fn percent(fraction: f64) -> String {
    format!("{:.1} %", fraction * 100.0)
}
