//! `thermocline plan`: shows which parts of a model go to GPU memory under a budget, whether the
//! rest fits into RAM, and the expected speed.

mod budgets;
mod layers_table;
mod planned_machine;
mod priced_plan;
mod ram;
mod report;
mod report_json;
mod sunken_rate;
mod tower;

use std::{io::Write, path::PathBuf, sync::Arc};

use clap::Args;
use thermocline_engine::{
    cpu::InputPrecision,
    model::{Model, Tower},
    placement::{GpuUse, Granularity, PlacementSolver, Plan, PlanInputs, PowerInferSplit},
    quant::TensorType,
    session::{EngineOptions, SparsityChoice, SparsityReport, WeightRoom, open_draft_model, planner, streamed_chunk},
    synth::{SynthOptions, SynthShape, shape_model},
};

use self::{
    budgets::rungs, planned_machine::PlannedMachine, priced_plan::PricedPlan, ram::RamUse, report::PlanReport,
    sunken_rate::SunkenRate, tower::PlannedTower,
};
use crate::cli::{
    bench::granularities,
    synth::{shapes, types},
};
use thermocline_host::{memory, units::parse_bytes};
use thermocline_terminal::{
    companion_options::CompanionOptions,
    engine_options::{ContextOptions, CpuArgs, Device, DeviceArgs, sparsity_choices},
    failure::Outcome,
    model_options::ModelOptions,
};

const EXAMPLES: &str = "\
Examples:
  thermocline plan -m model.gguf --vram 8GiB
  thermocline plan -m model.gguf --vram 6GiB --context 8k --sparsity exact --json
  thermocline plan -m model.gguf --vram 8GiB --machine other-pc.json
  thermocline plan -m model.gguf --vram 8GiB --ram 16GiB
  thermocline plan --shape relu-llama-70b --type q4_0 --machine rtx4090-i9
  thermocline plan --shape gpt-oss-120b --type mxfp4 --machine rx9070xt-r7 --vram 14GiB

--shape needs no model file: the plan uses the firing frequencies of `thermocline synth`. Published
figures exist for these machines: a100-80g, apple-m2, arc-a770-i5, arc-b580-i5, i5-10400,
rtx2080ti-i7, rtx3060-r5, rtx3090-r9, rtx4060-laptop, rtx4070s-r7, rtx4090-i9, rtx5090-r9,
rx6700xt-r5, rx7900xtx-r7, rx9070xt-r7, ryzen-8700g.

The speeds of this machine are measured once and kept. --save-machine writes them and the sizes of
its memory to a file; with this file, --machine plans for this machine on another one.

If a plan needs more RAM than there is, each token reads weights from the disk, and the predicted
speed includes these reads. On Linux, the speed of this machine's disk is measured with the first
model that is larger than the RAM, and kept. A file of another machine states it in bytes per
second, like `\"disk\": 3500000000.0`. Without it, no speed is predicted.";

/// Shows which parts of a model fit into a budget of GPU memory, whether the rest fits into RAM,
/// and the predicted speed
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct PlanArgs {
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    companions: CompanionOptions,
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
    /// Plan for this much RAM, like 16GiB, as --ram of run limits it [default: the machine's]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    ram: Option<u64>,
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
    let draft = args.companions.draft.as_deref().map(|path| open_draft_model(path, args.model.read_mode(), &model));
    let draft = draft.transpose()?;
    let context = args.context.context.unwrap_or_else(|| defaults.context_of(&model.config));
    let tower = Tower::of_model(&model, args.companions.mmproj.as_deref(), args.model.read_mode())?;
    let tower = tower.map(|tower| tower.within(context));
    let named = PlannedMachine::named(args)?;
    let ram = args.ram.or_else(|| named.as_ref().map_or_else(memory::total, |it| it.memory.ram));
    let room = args.weight_room(&model, draft.as_ref(), tower.as_ref(), ram);
    let (model, transposed) = asked.neuron_major_outline(&model, args.split.is_some(), room).unwrap_or((model, 0));
    let sparsity = SparsityReport::new(asked, &model, defaults.recall);
    let kv_type = args.context.kv_type.unwrap_or(defaults.kv_type);
    let inputs = PlanInputs {
        sessions: usize::from(args.sessions),
        ram: room.limit(&model),
        ..PlanInputs::new(sparsity.mode, context, kv_type)
    };
    let PlannedMachine { machine, free } = PlannedMachine::of(args, named, &model, &inputs)?;
    let (has_gpu, memory) = (machine.gpu.is_some(), machine.memory);
    let inputs = PlanInputs { machine: Arc::new(machine), ..inputs };
    let whole = planner(&model, None, inputs.clone())?.everything();
    // Enough for everything, in addition to what the driver reserves.
    let most = whole + whole / 8 + (1 << 20);
    let card = memory.vram.filter(|_| has_gpu).unwrap_or(u64::MAX);
    let available = args.device.vram.or(free).unwrap_or(if has_gpu { most } else { 0 }).min(card);
    let budget = available.min(most);
    let chunk = streamed_chunk(&model, None, &inputs, budget)?;
    let planner = planner(&model, None, PlanInputs { chunk, ..inputs })?;
    let everything = planner.everything();
    let plan = match &args.split {
        Some(path) => planner.price(PowerInferSplit::open(path)?.placement(planner.profile())?),
        None if budget == 0 => planner.on_cpu(),
        None if args.placement == Granularity::Neurons => args.fastest(&planner, budget),
        None => planner.by(args.placement, budget)?,
    };
    let ram = RamUse {
        model: &model,
        draft: draft.as_ref(),
        tower: tower.as_ref(),
        planner: &planner,
        transposed,
        is_rounded: args.cpu.options().activations == InputPrecision::Int8,
        ram: memory.ram,
    };
    let priced = |budget: u64, plan: Plan| PricedPlan { budget, ram: ram.of(&plan), plan };
    let rungs = if has_gpu { rungs(everything, budget, most.min(card)) } else { Vec::new() };
    let rungs = rungs.into_iter().filter(|rung| *rung <= card);
    let beside = available.saturating_sub(plan.bytes.total());
    let on_gpu = tower.as_ref().filter(|_| has_gpu && budget > 0);
    let on_gpu = on_gpu.and_then(|tower| PlannedTower::of(tower, planner.inputs().limits(), beside));
    let report = PlanReport {
        inputs: planner.inputs(),
        sparsity: &sparsity,
        sunken: SunkenRate::of(&planner.inputs().machine, &planner.profile().weight_types()),
        placement: args.placement,
        is_cut: args.device.vram.is_some_and(|asked| asked > card),
        everything,
        tower: on_gpu,
        priced: priced(budget, plan),
        ladder: rungs.map(|rung| priced(rung, args.fastest(&planner, rung))).collect(),
    };
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{:#}", report.json())?;
    } else {
        out.write_all(report.text(args.split.as_deref()).as_bytes())?;
    }
    Ok(())
}

impl PlanArgs {
    /// The fastest plan within `budget` bytes. A GPU that the user names is used even if the CPU
    /// alone is faster, as an engine uses it.
    fn fastest(&self, planner: &PlacementSolver, budget: u64) -> Plan {
        match self.device.device {
            Some(Device::Gpu(_)) => planner.plan(budget, GpuUse::Always).unwrap_or_else(|_| planner.on_cpu()),
            _ => planner.quickest(budget),
        }
    }

    /// The RAM that an engine on a machine with `ram` bytes of RAM has for weights. Only models
    /// larger than the RAM have a limit, unless the user sets one.
    fn weight_room(&self, model: &Model, draft: Option<&Model>, tower: Option<&Tower>, ram: Option<u64>) -> WeightRoom {
        let bytes = model.checkpoint.tensor_bytes();
        let options = EngineOptions {
            ram: self.ram.or_else(|| ram.filter(|ram| memory::is_too_small(*ram, bytes))),
            context: self.context.context,
            kv_type: self.context.kv_type.unwrap_or(EngineOptions::default().kv_type),
            sessions: usize::from(self.sessions),
            cpu: self.cpu.options(),
            sparsity: self.sparsity.unwrap_or_default(),
            ..EngineOptions::default()
        };
        WeightRoom { on_device: self.device.vram.unwrap_or(0), ..WeightRoom::of(&options, model, draft, tower) }
    }

    /// Opens the model, or a model of the shape without weights.
    fn open_model(&self) -> Outcome<Model> {
        let Some(shape) = self.shape else { return self.model.open_model() };
        let options = SynthOptions { ty: self.ty, active: self.active, ..SynthOptions::new(shape, shape.name) };
        Ok(shape_model(&options)?)
    }
}
