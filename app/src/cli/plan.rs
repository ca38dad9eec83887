//! `thermocline plan`: shows which parts of a model go to GPU memory under a budget, and the
//! expected speed.

mod ram;

use std::{
    io::Write,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;
use serde_json::{Value, json};
use thermocline_engine::{
    calibration::{MachineOptions, cached_machine},
    cpu::{Cpu, InputPrecision},
    device::{caps_of, limits_of},
    gpu::{Gpu, GpuOptions},
    model::Model,
    placement::{DeviceClocks, Granularity, LayerPlan, Machine, MemorySizes, Plan, PlanInputs, PowerInferSplit},
    quant::TensorType,
    session::{EngineOptions, SparsityChoice, SparsityReport, open_draft_model, planner, streamed_chunk},
    synth::{SynthOptions, SynthShape, shape_model},
};

use self::ram::{predictors_copied, ram_by_purpose};
use crate::{
    cli::{
        bench::granularities,
        synth::{shapes, types},
        table::TextTable,
    },
    machines,
};
use thermocline_host::{folders::Folders, units};
use thermocline_terminal::{
    draft_options::DraftOptions,
    engine_options::{ContextOptions, CpuArgs, DeviceArgs, sparsity_choices},
    failure::{Outcome, one_line},
    model_options::ModelOptions,
    standard_error::say,
};

const EXAMPLES: &str = "\
Examples:
  thermocline plan -m model.gguf --vram 8GiB
  thermocline plan -m model.gguf --vram 6GiB --context 8k --sparsity exact --json
  thermocline plan -m model.gguf --vram 8GiB --machine other-pc.json
  thermocline plan --shape relu-llama-70b --type q4_0 --machine rtx4090-i9
  thermocline plan --shape gpt-oss-120b --type mxfp4 --machine rx9070xt-r7 --vram 14GiB

--shape needs no model file: the plan uses the firing frequencies of `thermocline synth`. Published
figures exist for these machines: a100-80g, apple-m2, arc-a770-i5, arc-b580-i5, i5-10400,
rtx2080ti-i7, rtx3060-r5, rtx3090-r9, rtx4060-laptop, rtx4070s-r7, rtx4090-i9, rtx5090-r9,
rx6700xt-r5, rx7900xtx-r7, rx9070xt-r7, ryzen-8700g.

The speeds of this machine are measured once and kept. --save-machine writes them to a file; with
this file, --machine plans for this machine on another one.";

/// Shows which parts of a model fit into a budget of GPU memory, and the predicted speed
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct PlanArgs {
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    draft: DraftOptions,
    /// Plan for this published shape of `thermocline synth` instead of a file
    #[arg(long, value_name = "NAME", value_parser = shapes(), conflicts_with_all = ["model", "split", "draft"])]
    shape: Option<SynthShape>,
    /// Type of the shape's matrices
    #[arg(long = "type", value_name = "TYPE", default_value = "Q4_0", ignore_case = true, value_parser = types(),
        requires = "shape")]
    ty: TensorType,
    /// Mean fraction of a layer's neurons that fire for a token, in ReLU shapes
    #[arg(long, value_name = "FRACTION", default_value_t = 0.10, requires = "shape")]
    active: f64,
    #[command(flatten)]
    context: ContextOptions,
    #[command(flatten)]
    cpu: CpuArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Sparsity mode: dense, exact, predicted, threshold [default: auto, the fastest mode with
    /// almost no loss; storyteller: exact]
    #[arg(long, value_name = "MODE", value_parser = sparsity_choices())]
    sparsity: Option<SparsityChoice>,
    /// Number of contexts held at the same time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    sessions: u16,
    /// Rule that fills the budget: neurons (the fastest placement, Thermocline's default), layers
    /// (whole layers from the end of the model, as llama.cpp does), frequency (all attention and
    /// the neurons that fire most often, as PowerInfer does)
    #[arg(long, value_name = "RULE", default_value_t, value_parser = granularities(), conflicts_with = "split")]
    placement: Granularity,
    /// Show PowerInfer's split in this .gpuidx file instead of the best placement
    #[arg(long, value_name = "FILE")]
    split: Option<PathBuf>,
    /// Plan with the speeds in this file, or with the published figures of a machine listed below,
    /// instead of this machine's speeds
    #[arg(long, value_name = "FILE|NAME", conflicts_with = "measure")]
    machine: Option<PathBuf>,
    /// Write the speeds to this file
    #[arg(long, value_name = "FILE")]
    save_machine: Option<PathBuf>,
    /// Measure this machine again
    #[arg(long)]
    measure: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn plan(args: &PlanArgs) -> Outcome {
    let defaults = EngineOptions::default();
    let asked = args.sparsity.unwrap_or_default();
    let model = args.open_model()?;
    let draft = args.draft.draft.as_deref().map(|path| open_draft_model(path, args.model.read_mode(), &model));
    let draft = draft.transpose()?;
    let (model, transposed) = asked.neuron_major_outline(&model, args.split.is_some()).unwrap_or((model, 0));
    let sparsity = SparsityReport::new(asked, &model, defaults.recall);
    let context = args.context.context.unwrap_or_else(|| defaults.context_of(&model.config));
    let kv_type = args.context.kv_type.unwrap_or(defaults.kv_type);
    let inputs =
        PlanInputs { sessions: usize::from(args.sessions), ..PlanInputs::new(sparsity.mode, context, kv_type) };
    let PlannedMachine { machine, free, sizes } = args.machine(&model, &inputs)?;
    let has_gpu = machine.gpu.is_some();
    let inputs = PlanInputs { machine: Arc::new(machine), ..inputs };
    let whole = planner(&model, None, inputs.clone())?.everything();
    // Enough for everything, in addition to what the driver reserves.
    let most = whole + whole / 8 + (1 << 20);
    let asked_budget = args.device.vram.or(free).unwrap_or(if has_gpu { most } else { 0 }).min(most);
    let budget = sizes.filter(|_| has_gpu).map_or(asked_budget, |sizes| asked_budget.min(sizes.vram));
    let chunk = streamed_chunk(&model, None, &inputs, budget)?;
    let planner = planner(&model, None, PlanInputs { chunk, ..inputs })?;
    let everything = planner.everything();
    let plan = match &args.split {
        Some(path) => planner.price(PowerInferSplit::open(path)?.placement(planner.profile())?),
        None if budget == 0 => planner.on_cpu(),
        None => planner.by(args.placement, budget)?,
    };
    let ladder: Vec<(u64, Plan)> = match has_gpu {
        true => {
            let rungs = rungs(everything, budget, most).into_iter();
            let rungs = rungs.filter(|rung| sizes.is_none_or(|sizes| *rung <= sizes.vram));
            rungs.map(|rung| (rung, planner.quickest(rung))).collect()
        }
        false => Vec::new(),
    };

    let rounded = args.cpu.options().activations == InputPrecision::Int8;
    let copied = if rounded { predictors_copied(&model, planner.profile(), &plan) } else { 0 };
    let ram = ram_by_purpose(&model, draft.as_ref(), planner.inputs(), &plan, [transposed, copied]);
    let in_ram = ram.iter().map(|(_, bytes)| *bytes).fold(model.checkpoint.tensor_bytes(), u64::saturating_add);
    let in_ram = in_ram.saturating_sub(plan.bytes.weights());
    let report = PlanReport {
        shortage: sizes.map(|sizes| MemoryShortage {
            card: (asked_budget > budget).then_some(sizes.vram),
            ram: sizes.missing(in_ram, plan.bytes.total()),
            there: sizes.ram,
        }),
        inputs: planner.inputs(),
        sparsity: &sparsity,
        sunken: SunkenRate::of(&planner.inputs().machine, &planner.profile().weight_types()),
        ram,
        placement: args.placement,
        budget,
        everything,
        plan,
        ladder,
    };
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{:#}", report.json())?;
    } else {
        out.write_all(report.text(args.split.as_deref()).as_bytes())?;
    }
    Ok(())
}

/// The machine to plan for.
struct PlannedMachine {
    machine: Machine,
    /// Free bytes of GPU memory, if known.
    free: Option<u64>,
    /// Memory sizes of a published machine.
    sizes: Option<MemorySizes>,
}

/// Memory that the plan needs but the machine lacks.
struct MemoryShortage {
    /// Bytes of the card's memory, if the requested budget is larger.
    card: Option<u64>,
    /// Missing bytes of RAM.
    ram: u64,
    /// Bytes of RAM in the machine.
    there: u64,
}

impl MemoryShortage {
    /// Describes the shortage to the user.
    fn notes(&self) -> Vec<String> {
        let card =
            self.card.map(|card| format!("the budget is limited to {}, the memory of the GPU", units::bytes(card)));
        let ram = (self.ram > 0).then(|| {
            let (missing, there) = (units::bytes(self.ram), units::bytes(self.there));
            format!("{missing} of RAM are missing: the machine has {there}, and would read weights from the disk for every token")
        });
        card.into_iter().chain(ram).collect()
    }
}

impl PlanArgs {
    /// Opens the model, or a model of the shape without weights.
    fn open_model(&self) -> Outcome<Model> {
        let Some(shape) = self.shape else { return self.model.open_model() };
        let options = SynthOptions { ty: self.ty, active: self.active, ..SynthOptions::new(shape, shape.name) };
        Ok(shape_model(&options)?)
    }

    /// Returns the speeds to plan with, and the free bytes of GPU memory.
    fn machine(&self, model: &Model, inputs: &PlanInputs) -> Outcome<PlannedMachine> {
        let mut planned = match &self.machine {
            Some(path) => match machines::named(path)? {
                Some(published) => {
                    let sizes = published.memory();
                    PlannedMachine { machine: published.machine(), free: Some(sizes.vram), sizes: Some(sizes) }
                }
                None => PlannedMachine { machine: Machine::load(path)?, free: None, sizes: None },
            },
            None => self.measured_machine(model, inputs)?,
        };
        let machine = &planned.machine;
        if let Some(path) = &self.save_machine {
            machine.store(path)?;
        }
        if self.device.vram.is_some_and(|bytes| bytes > 0) && machine.gpu.is_none() {
            // The budget is for a card that the machine does not have yet, so plan with a typical
            // card.
            let mut typical = Machine::typical();
            typical.cpu = planned.machine.cpu;
            let adapter = typical.gpu.as_ref().map_or("", |gpu| gpu.adapter.as_str());
            say(format_args!(
                "[this machine has no GPU: the plan uses the speeds of {adapter}; --machine FILE uses another machine's]"
            ));
            planned = PlannedMachine { machine: typical, free: None, ..planned };
        }
        Ok(planned)
    }

    /// Returns the speeds of this machine, measured or from its file.
    fn measured_machine(&self, model: &Model, inputs: &PlanInputs) -> Outcome<PlannedMachine> {
        let cpu = Cpu::new(&self.cpu.options())?;
        let open = |options| Gpu::open(&GpuOptions { budget: None, ..options });
        let gpu = self.device.gpu(&self.cpu)?.map(open).transpose()?;
        let folder = Folders::detect().map(|folders| folders.cache);
        let options = MachineOptions { folder, again: self.measure, ..MachineOptions::default() };
        let caps = gpu.as_ref().map(|gpu| caps_of(limits_of(gpu.caps())));
        let types = planner(model, caps, inputs.clone())?.profile().weight_types();
        let free = gpu.as_ref().map(|gpu| gpu.arena().budget());
        let measured = cached_machine(&cpu, gpu.as_ref(), &types, &options, &mut || ControlFlow::Continue(()));
        let machine = measured.unwrap_or_else(|error| {
            say(format_args!("[this machine cannot be measured: {}]", one_line(&error.to_string())));
            Machine::typical()
        });
        Ok(PlannedMachine { machine, free, sizes: None })
    }
}

/// Memory sizes of graphics cards, in GiB.
const CARDS: [u64; 12] = [2, 3, 4, 6, 8, 10, 12, 16, 24, 32, 48, 80];

/// Budgets to compare: 0, sizes of cards, `most` and `budget`. A model that is small for the cards
/// gets eighths of `everything` in place of card sizes.
fn rungs(everything: u64, budget: u64, most: u64) -> Vec<u64> {
    let cards: Vec<u64> = CARDS.into_iter().map(|gib| gib << 30).filter(|bytes| *bytes < everything).collect();
    let eighths = (1..8).map(|n| everything / 8 * n).collect();
    let mut all: Vec<u64> = if cards.len() < 3 { eighths } else { cards };
    all.extend([0, most, budget]);
    all.sort_unstable();
    all.dedup();
    all
}

/// Smallest relative difference at which a second speed is reported.
const WORTH_TELLING: f64 = 0.1;

/// Speeds of a GPU's products with one weight type, in bytes per second. The GPU lowers its clocks
/// between short submissions.
#[derive(Debug, PartialEq)]
struct SunkenRate {
    ty: TensorType,
    /// Speed without waits, as in whole layers.
    sustained: f64,
    /// Speed in bursts, as in split layers.
    in_bursts: f64,
}

impl SunkenRate {
    /// Returns the types that lose more than [`WORTH_TELLING`] of their speed in bursts.
    fn of(machine: &Machine, types: &[TensorType]) -> Vec<Self> {
        let all = machine.gpu.iter().flat_map(|gpu| {
            types.iter().map(|ty| {
                let rate = |clocks| gpu.rate_at(clocks, *ty).sequential;
                SunkenRate { ty: *ty, sustained: rate(DeviceClocks::Sustained), in_bursts: rate(DeviceClocks::Sunken) }
            })
        });
        all.filter(|it| it.in_bursts < (1.0 - WORTH_TELLING) * it.sustained).collect()
    }
}

/// The command's report.
struct PlanReport<'a> {
    inputs: &'a PlanInputs,
    sparsity: &'a SparsityReport,
    /// Speeds that are lower in bursts.
    sunken: Vec<SunkenRate>,
    /// Bytes of RAM besides the file, by purpose.
    ram: [(&'static str, u64); 7],
    /// Missing memory, if the machine's sizes are known.
    shortage: Option<MemoryShortage>,
    placement: Granularity,
    budget: u64,
    everything: u64,
    plan: Plan,
    ladder: Vec<(u64, Plan)>,
}

impl PlanReport<'_> {
    fn text(&self, split: Option<&Path>) -> String {
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
            None => format!("budget    {}, placed by {}\n", self.budget_text(self.budget), self.placement),
        };
        for (what, bytes) in self.ram.iter().filter(|(_, bytes)| *bytes > 0) {
            text += &format!("RAM       {} beside the file, for {what}\n", units::bytes(*bytes));
        }
        for assumption in &self.plan.assumptions {
            text += &format!("note      {assumption}\n");
        }
        for note in self.shortage.iter().flat_map(MemoryShortage::notes) {
            text += &format!("note      {note}\n");
        }
        let plan = &self.plan;
        text += &format!(
            "\n{:.2} tokens/s, {} of GPU memory, {} of firings hot; the limit is {}\n\n",
            plan.tokens_per_second(),
            units::bytes(plan.bytes.total()),
            percent(plan.hot_fraction()),
            plan.bottleneck().name()
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
        let hot = format!("hot {}", counted(&self.plan.layers));
        let heads = ["budget", "tokens/s", "GPU layers", &hot, "of firings", "limit"];
        let mut lines = TextTable::new(&heads);
        for (budget, plan) in &self.ladder {
            let (hot, all) = plan.units();
            let mark = if *budget == self.budget { " *" } else { "" };
            lines.row([
                format!("{}{mark}", self.budget_text(*budget)),
                format!("{:.2}", plan.tokens_per_second()),
                plan.layers.iter().filter(|layer| layer.resident).count().to_string(),
                percent(hot as f64 / all.max(1) as f64),
                percent(plan.hot_fraction()),
                plan.bottleneck().name().to_owned(),
            ]);
        }
        lines.text()
    }

    fn json(&self) -> Value {
        let layer = |layer: &LayerPlan| {
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
        };
        let short = |budget: u64, plan: &Plan| {
            let (hot, all) = plan.units();
            json!({
                "budget": budget,
                "bytes": plan.bytes.total(),
                "tokens_per_second": plan.tokens_per_second(),
                "resident_layers": plan.layers.iter().filter(|layer| layer.resident).count(),
                "head": plan.placement.head,
                "hot_neurons": hot,
                "neurons": all,
                "hot_share": plan.hot_fraction(),
                "bottleneck": plan.bottleneck().name(),
            })
        };
        let inputs = self.inputs;
        let mut object = short(self.budget, &self.plan);
        let bytes: serde_json::Map<String, Value> =
            self.plan.bytes.by_name().iter().map(|(name, bytes)| ((*name).to_owned(), json!(bytes))).collect();
        object["bytes_by_purpose"] = json!(bytes);
        object["placement"] = json!(self.placement.name());
        object["everything"] = json!(self.everything);
        object["ram_by_purpose"] = self.ram.iter().map(|(name, bytes)| ((*name).to_owned(), json!(bytes))).collect();
        object["context"] = json!(inputs.context);
        object["sessions"] = json!(inputs.sessions);
        object["kv_type"] = json!(inputs.kv_type.name());
        object["gpu_kv_type"] = json!(inputs.kv_type.on_gpu().name());
        object["sparsity"] = json!({ "mode": self.sparsity.at_work.name(), "reason": self.sparsity.reason });
        object["assumptions"] = self.plan.assumptions.iter().map(ToString::to_string).collect();
        object["missing_ram"] = json!(self.shortage.as_ref().map(|shortage| shortage.ram));
        object["memory_notes"] = self.shortage.iter().flat_map(MemoryShortage::notes).collect();
        object["head_seconds"] = json!(self.plan.head_seconds);
        object["token_seconds"] = json!(self.plan.token_seconds);
        object["seconds"] = json!(self.plan.seconds);
        object["layers"] = self.plan.layers.iter().map(layer).collect();
        object["ladder"] = self.ladder.iter().map(|(budget, plan)| short(*budget, plan)).collect();
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

/// Names the element type of the KV caches, and of their part in GPU memory if it differs.
fn cache_types(inputs: &PlanInputs) -> String {
    match (inputs.kv_type, inputs.kv_type.on_gpu()) {
        (ram, gpu) if ram != gpu && inputs.machine.gpu.is_some() => format!("{ram} ({gpu} on the GPU)"),
        (ram, _) => ram.to_string(),
    }
}

/// Names the units that are hot or cold in these layers.
fn counted(layers: &[LayerPlan]) -> &'static str {
    match (layers.iter().any(|layer| layer.experts), layers.iter().any(|layer| !layer.experts)) {
        (false, _) => "neurons",
        (true, false) => "experts",
        (true, true) => "neurons or experts",
    }
}

/// Formats `0.5` as `50.0 %`.
fn percent(fraction: f64) -> String {
    format!("{:.1} %", fraction * 100.0)
}

/// Builds a table with one line per layer. Equal consecutive layers share a line.
fn layers_table(layers: &[LayerPlan]) -> String {
    let of = format!("of {}", counted(layers));
    let heads = ["layers", "where", "hot", &of, "of firings", "size", "ms", "GPU ms", "CPU ms"];
    let mut lines = TextTable::new(&heads);
    let mut first = 0;
    for alike in layers.chunk_by(|a, b| a == b) {
        let layer = &alike[0];
        let last = first + alike.len() - 1;
        let place = match layer {
            LayerPlan { resident: false, .. } => "CPU",
            LayerPlan { hot, units, .. } if hot == units => "GPU",
            _ => "both",
        };
        let ms = |seconds: f64| format!("{:.3}", seconds * 1e3);
        lines.row([
            if alike.len() == 1 { first.to_string() } else { format!("{first} to {last}") },
            place.to_owned(),
            if layer.experts { format!("{} of {}", layer.hot, layer.units) } else { layer.hot.to_string() },
            percent(layer.hot as f64 / layer.units.max(1) as f64),
            percent(layer.hot_firings / layer.firings.max(f64::MIN_POSITIVE)),
            units::bytes(layer.bytes),
            ms(layer.time.seconds),
            ms(layer.time.gpu),
            ms(layer.time.cpu),
        ]);
        first = last + 1;
    }
    lines.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_told_that_lose_more_than_a_tenth_in_bursts() {
        let mut machine = Machine::typical();
        let types = [TensorType::Q4_0, TensorType::Q6_K, TensorType::F16];
        assert_eq!(SunkenRate::of(&machine, &types), []);
        let gpu = machine.gpu.as_mut().unwrap();
        for (ty, fraction) in [("Q4_0", 0.5), ("Q6_K", 0.91), ("Q8_0", 0.1)] {
            gpu.bursts.insert(ty.to_owned(), fraction);
        }
        let told = SunkenRate { ty: TensorType::Q4_0, sustained: 240e9, in_bursts: 120e9 };
        assert_eq!(SunkenRate::of(&machine, &types), [told]);
        machine.gpu = None;
        assert_eq!(SunkenRate::of(&machine, &types), []);
    }

    #[test]
    fn rungs_cover_budgets_from_zero_to_everything() {
        let large = rungs(20 << 30, 5 << 30, 23 << 30);
        assert_eq!(large[..5], [0, 2 << 30, 3 << 30, 4 << 30, 5 << 30]);
        assert!(large[large.len() - 1] == 23 << 30 && large.is_sorted());
        assert_eq!(rungs(800, 300, 1000), [0, 100, 200, 300, 400, 500, 600, 700, 1000]);
    }
}
