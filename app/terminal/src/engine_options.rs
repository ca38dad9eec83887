//! Options of the commands that run a model.

use std::{convert::Infallible, ops::ControlFlow, path::PathBuf, str::FromStr, sync::Arc, time::Duration};

use clap::{
    Args,
    builder::{PossibleValuesParser, TypedValueParser},
};
use thermocline_engine::{
    Error, GpuFailure,
    cpu::{Cpu, CpuOptions, InputPrecision, Isa},
    gpu::{AdapterChoice, GpuOptions, Tier, adapters},
    model::Model,
    placement::PlanInputs,
    runtime::{Forward, KvType, RoutePreference, Sparsity},
    session::{
        DeviceChoice, DeviceLoadOptions, DeviceStatus, Engine, EngineOptions, LivePlanner, LoadStage, SparsityChoice,
        SparsityReport, load_on_device,
    },
};

use crate::{
    companion_options::CompanionOptions,
    engine_notes,
    failure::{Failure, Outcome, one_line},
    level::LevelArgs,
    model_options::ModelOptions,
    named::{by_name, named},
    progress::{ProgressUnit, TerminalProgress},
    standard_error::say,
};
use thermocline_host::{
    folders::Folders,
    memory,
    units::{self, parse_bytes, parse_tokens},
};

/// Options of the CPU.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Hardware")]
pub struct CpuArgs {
    /// Number of threads [default: one per physical core]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
    /// Instruction set of the kernels [default: the best that this machine supports]
    #[arg(long, value_name = "NAME", value_parser = named::<Isa>(Isa::names()))]
    pub isa: Option<Isa>,
    /// Precision of activations in products with quantised weights. int8 rounds the activations, on
    /// a GPU only for single tokens. float does not round them, so that the text does not depend on
    /// the device [default: int8 on the CPU, and on a GPU if it is measured to be faster]
    #[arg(long, value_name = "KIND", value_parser = named::<InputPrecision>(["int8", "float"]))]
    pub activations: Option<InputPrecision>,
}

/// Options of the device.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Hardware")]
pub struct DeviceArgs {
    /// Device that computes: cpu, gpu, or a GPU by its index or a part of its name, as in the list
    /// of `thermocline devices` [default: auto, a GPU if there is one that holds the model]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<Device>,
    /// Limit of the GPU memory to use, like 6GiB or 512MiB. No more than the GPU's memory is used
    /// [default: all free memory]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub vram: Option<u64>,
    /// Kernels of no more than this tier, for tests
    #[arg(long, value_name = "TIER", hide = true, value_parser = tiers())]
    pub gpu_tier: Option<Tier>,
}

/// A processor as named on the command line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Device {
    /// The best GPU if it can run the model, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The chosen GPU, or an error if it cannot be used.
    Gpu(AdapterChoice),
}

impl FromStr for Device {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text.to_ascii_lowercase().as_str() {
            "auto" => Device::Auto,
            "cpu" => Device::Cpu,
            "gpu" => Device::Gpu(AdapterChoice::Best),
            _ => Device::Gpu(text.parse()?),
        })
    }
}

/// Options of sparsity and placement.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Sparsity")]
pub struct SparsityArgs {
    /// Sparsity mode: dense skips no neurons, exact skips neurons whose gate does not fire,
    /// predicted skips neurons that a predictor rules out, threshold skips neurons below an
    /// activation threshold and changes answers [default: auto, the fastest mode with almost no
    /// loss; storyteller: exact]
    #[arg(long, value_name = "MODE", value_parser = sparsity_choices())]
    pub sparsity: Option<SparsityChoice>,
    #[command(flatten)]
    pub level: LevelArgs,
    /// Move neurons (or experts) that fire often in the latest text into GPU memory, in place of
    /// colder ones [default for models with experts and for models that were not prepared]
    #[arg(long, conflicts_with = "static")]
    pub adaptive: bool,
    /// Keep the neurons in GPU memory that were chosen when the model was loaded [default for
    /// prepared models without experts]
    #[arg(long)]
    pub r#static: bool,
    /// Prefer experts that are in GPU memory while generating tokens. Fewer chosen experts are then
    /// missing, and answers change. near: adds this fraction of the range of a router's values for
    /// such experts. drop: leaves out other experts whose weight is below this fraction of an equal
    /// share [default: exact]
    #[arg(long, value_name = "near=L,drop=F")]
    pub routes: Option<RoutePreference>,
    /// Neither read nor write the counts of firings. With them, the next run of an unprepared model
    /// begins with the hot neurons of this run. The counts are in the folder `counts` of the
    /// program's data and contain no text
    #[arg(long)]
    pub no_counts: bool,
    /// Keep the neurons in GPU memory that PowerInfer's split (a .gpuidx file) puts there, as far
    /// as there is room [default: the neurons that save the most time there]
    #[arg(long, value_name = "FILE")]
    pub split: Option<PathBuf>,
    /// For prompts, send neurons and experts that are not in GPU memory to the GPU in pieces. This
    /// is faster for long prompts if the GPU multiplies much faster than the CPU. It takes up to a
    /// 32nd of the GPU's memory, up to an eighth for a large expert, and up to a quarter with `on`.
    /// auto: if it is faster at the measured speeds of this machine
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = stream_prompts())]
    pub stream_prompts: StreamPrompts,
    /// Number of prompt tokens computed at a time. With 1, a prompt is computed like an answer, so
    /// that sparsity applies to it too. This is slow, but it allows measuring a mode by the log
    /// probabilities of prompts. With 256 or more, up to 2048 while experts pass through the GPU
    /// [default: 512]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub prompt_chunk: Option<u16>,
    /// RAM for the weights of the model and of its draft model, and for the contexts, like 16GiB.
    /// Further weights are read from disk when they are needed. No effect with --no-mmap and on
    /// Windows [default: no limit, or the free RAM if the model is larger than the RAM]
    #[arg(long, help_heading = "Hardware", value_name = "BYTES", value_parser = parse_bytes)]
    pub ram: Option<u64>,
}

impl SparsityArgs {
    /// Returns the value of [`EngineOptions::adaptive`].
    fn adaptive(&self) -> Option<bool> {
        (self.adaptive || self.r#static).then_some(self.adaptive)
    }
}

/// Whether to stream cold neurons and experts for prompts, as in [`EngineOptions::stream_prompts`].
pub type StreamPrompts = Option<bool>;

/// Parses [`StreamPrompts`] by name.
pub fn stream_prompts() -> impl TypedValueParser<Value = StreamPrompts> {
    by_name([("auto", None), ("on", Some(true)), ("off", Some(false))])
}

/// Parses sparsity modes by name.
pub fn sparsity_choices() -> impl TypedValueParser<Value = SparsityChoice> {
    named(SparsityChoice::ALL.map(SparsityChoice::name))
}

/// Length and type of the context.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Context")]
pub struct ContextOptions {
    /// Length of the context in tokens, like 4096 or 4k [default: the training context of the
    /// model, at most 4096]
    #[arg(short, long, value_name = "TOKENS", value_parser = parse_tokens)]
    pub context: Option<usize>,
    /// Element type of the KV cache; for q8_0, the part in GPU memory is f16 [default: f16;
    /// storyteller: f32]
    #[arg(long, value_name = "TYPE", value_parser = kv_types())]
    pub kv_type: Option<KvType>,
    /// Limit of the memory of all conversations' KV caches together, like 2GiB. Caches of idle
    /// conversations are dropped to make room [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub kv_budget: Option<u64>,
    /// Number of conversations at the same time, if there is more than one.
    #[arg(skip)]
    pub conversations: Option<usize>,
}

/// Opens an engine for the model on the requested device.
pub fn open_engine(
    model: &ModelOptions,
    companions: &CompanionOptions,
    context: &ContextOptions,
    cpu: &CpuArgs,
    device: &DeviceArgs,
    sparsity: &SparsityArgs,
    special_in_content: bool,
) -> Outcome<Engine> {
    let choice = device.choice(cpu)?;
    if sparsity.split.is_some() && matches!(choice, DeviceChoice::Cpu) {
        return Err(Failure::usage("--split: expected a GPU to hold the neurons, got the CPU"));
    }
    if sparsity.stream_prompts == Some(true) && matches!(choice, DeviceChoice::Cpu) {
        return Err(Failure::usage("--stream-prompts: expected a GPU to send neurons to, got the CPU"));
    }
    let mut opened = model.open_model()?;
    let options = EngineOptions {
        context: context.context,
        kv_type: context.kv_type.unwrap_or(model.kv_type()),
        kv_budget: context.kv_budget,
        cpu: cpu.options(),
        activation: model.activation,
        read_mode: model.read_mode(),
        ram: sparsity.ram.or_else(|| memory::limit_for(opened.checkpoint.tensor_bytes())),
        sessions: context.conversations.unwrap_or(1),
        draft: companions.draft.clone(),
        mmproj: companions.mmproj.clone(),
        special_in_content,
        device: choice,
        sparsity: sparsity.sparsity.unwrap_or_default(),
        adaptive: sparsity.adaptive(),
        routes: sparsity.routes.unwrap_or_default(),
        counts: Folders::detect().filter(|_| !sparsity.no_counts).map(|folders| folders.counts()),
        split: sparsity.split.clone(),
        stream_prompts: sparsity.stream_prompts,
        chunk: sparsity.prompt_chunk.map_or(EngineOptions::default().chunk, usize::from),
        speeds: Folders::detect().map(|folders| folders.cache),
        ..EngineOptions::default()
    };
    let mode = SparsityReport::new(options.sparsity, &opened, options.recall).mode;
    sparsity.level.choose(&mut opened, mode)?;
    let engine = Engine::from_model(opened, options)?;
    let mode = engine.sparsity();
    if mode.obstacle().is_some() {
        say(format_args!("[sparsity: {}]", one_line(&mode.to_string())));
    }
    let template = engine.chat_template().origin();
    if template.failure().is_some() {
        say(format_args!("[chat template: {}]", one_line(&template.to_string())));
    }
    let mut progress = TerminalProgress::new(LOADING, ProgressUnit::Bytes);
    let status = loop {
        match engine.wait_for_device(Duration::from_millis(50)) {
            DeviceStatus::Loading(stage) => progress.set(stage.bytes().0, stage.bytes().1),
            status => break status,
        }
    };
    drop(progress);
    match status {
        DeviceStatus::Cpu { reason: Some(reason) } => device.refused(&reason)?,
        DeviceStatus::Lost { adapter, reason } => {
            device.refused(&Error::Gpu { adapter, reason, failure: GpuFailure::Lost })?
        }
        DeviceStatus::Gpu(memory) => {
            device.say_if_cut(&memory.adapter, memory.card);
            memory.fallbacks.iter().for_each(|it| say(format_args!("[{}]", one_line(&it.to_string()))))
        }
        DeviceStatus::Cpu { reason: None } | DeviceStatus::Loading(_) => {}
    }
    engine_notes::say_what_differs(&engine);
    Ok(engine)
}

/// Opens the model's forward pass in `mode` on the requested device. The device takes as much of
/// the model as the budget allows.
pub fn open_forward(model: &Arc<Model>, mode: Sparsity, cpu: &CpuArgs, device: &DeviceArgs) -> Outcome<Forward> {
    let choice = device.choice(cpu)?;
    let gpu_use = choice.gpu_use();
    if let DeviceChoice::Auto(gpu) | DeviceChoice::Gpu(gpu) = choice {
        let mut progress = TerminalProgress::new(LOADING, ProgressUnit::Bytes);
        let mut show = |stage: LoadStage| {
            let (done, total) = stage.bytes();
            progress.set(done, total);
            ControlFlow::Continue(())
        };
        let defaults = EngineOptions::default();
        let context = model.config.context_length.min(PLANNED_CONTEXT);
        let planner = Arc::new(LivePlanner::new(PlanInputs::new(mode, context, defaults.kv_type)));
        let (cpu, chunk, speeds) = (cpu.options(), defaults.chunk, Folders::detect().map(|folders| folders.cache));
        let options = DeviceLoadOptions { gpu, cpu, chunk, gpu_use, speeds, ..DeviceLoadOptions::default() };
        match load_on_device(model, &options, &planner, &mut show) {
            Ok((processor, gpu)) => {
                device.say_if_cut(&gpu.report().name, gpu.report().memory());
                let mut forward = Forward::on(Arc::clone(model), Box::new(processor));
                forward.set_sparsity(mode);
                // Predictors and similar data are uploaded after the weights.
                if let Some((model, residency)) = forward.residency() {
                    while residency.settle(model, &mut [])? {}
                }
                return Ok(forward);
            }
            Err(error) => device.refused(&error)?,
        }
    }
    let mut forward = Forward::new(Arc::clone(model), Cpu::new(&cpu.options())?);
    forward.set_sparsity(mode);
    Ok(forward)
}

/// Tokens of context to plan for if their number is unknown.
const PLANNED_CONTEXT: usize = 1024;

/// Label of the progress bar.
const LOADING: &str = "loading the model into the GPU";

impl DeviceArgs {
    /// Returns the device choice for the engine.
    pub fn choice(&self, cpu: &CpuArgs) -> Outcome<DeviceChoice> {
        let device = self.device.clone().unwrap_or_default();
        let auto = device == Device::Auto;
        let adapter = match device {
            Device::Cpu if self.vram.is_some_and(|bytes| bytes > 0) => {
                return Err(Failure::usage("--vram: expected no GPU memory with --device cpu"));
            }
            Device::Cpu => return Ok(DeviceChoice::Cpu),
            // A GPU without any memory budget is useless.
            Device::Auto if self.vram == Some(0) => return Ok(DeviceChoice::Cpu),
            Device::Auto => AdapterChoice::Best,
            Device::Gpu(adapter) => adapter,
        };
        let options = GpuOptions {
            adapter,
            budget: self.vram,
            tier: self.gpu_tier,
            packed_dot: cpu.activations.map(|activations| activations == InputPrecision::Int8),
            fallbacks: Folders::detect().map(|folders| folders.fallbacks()).unwrap_or_default(),
            pipeline_cache: Folders::detect().map(|folders| folders.pipelines()),
            ..GpuOptions::default()
        };
        Ok(if auto { DeviceChoice::Auto(options) } else { DeviceChoice::Gpu(options) })
    }

    /// Returns the GPU to measure; `None` for the CPU, and for `auto` on a machine without a GPU.
    pub fn gpu(&self, cpu: &CpuArgs) -> Outcome<Option<GpuOptions>> {
        Ok(match self.choice(cpu)? {
            DeviceChoice::Gpu(options) => Some(options),
            DeviceChoice::Auto(options) if options.adapter.among(&adapters(&options.fallbacks)).is_some() => {
                Some(options)
            }
            DeviceChoice::Auto(_) | DeviceChoice::Cpu => None,
        })
    }

    /// Says that the budget is larger than the `card` bytes of `adapter`, which limit it.
    pub fn say_if_cut(&self, adapter: &str, card: Option<u64>) {
        if let Some(card) = card.filter(|card| self.vram.is_some_and(|asked| asked > *card)) {
            let adapter = one_line(adapter);
            say(format_args!("[--vram: the budget is limited to {}, the memory of {adapter}]", units::bytes(card)));
        }
    }

    /// As [`Self::say_if_cut`], before the GPU of `options` is opened.
    pub fn say_if_cut_on(&self, options: &GpuOptions) {
        if self.vram.is_none() {
            return;
        }
        let all = adapters(&options.fallbacks);
        if let Some(report) = options.adapter.among(&all).map(|at| &all[at]) {
            self.say_if_cut(&report.name, report.memory());
        }
    }

    /// Reports a GPU that cannot be used. This is an error if the user requested that GPU.
    /// Otherwise the CPU computes, and a line says why if the machine has a GPU.
    pub fn refused(&self, reason: &Error) -> Outcome {
        match (&self.device, reason) {
            (Some(Device::Gpu(choice)), _) => {
                let mut hint = "--device auto uses the CPU if the GPU cannot be used".to_owned();
                if let Error::Gpu { failure: GpuFailure::GivenUp { listed, known }, .. } = reason {
                    hint = format!("`{}` uses it again; {hint}", try_again(choice, *listed, *known));
                }
                Err(Failure::Usage { message: format!("--device: {reason}"), hint: Some(hint) })
            }
            (_, Error::NoGpu { .. }) => Ok(()),
            _ => {
                say(format_args!("[on the CPU: {}]", one_line(&reason.to_string())));
                Ok(())
            }
        }
    }
}

/// Returns the command that makes Thermocline try an adapter again, with its number or name if it
/// is listed.
fn try_again(choice: &AdapterChoice, listed: bool, known: bool) -> String {
    let which = match choice {
        AdapterChoice::Index(index) if listed => format!(" {index}"),
        AdapterChoice::Name(name) if listed => format!(" \"{name}\""),
        AdapterChoice::Best | AdapterChoice::Index(_) | AdapterChoice::Name(_) => String::new(),
    };
    format!("thermocline devices --try-again{which}{}", if known { " --force" } else { "" })
}

impl CpuArgs {
    /// Returns the engine's CPU options.
    pub fn options(&self) -> CpuOptions {
        let activations = self.activations.unwrap_or_default();
        CpuOptions { threads: self.threads.map(usize::from), isa: self.isa, activations }
    }
}

fn tiers() -> impl TypedValueParser<Value = Tier> {
    PossibleValuesParser::new(["portable", "f16", "subgroups", "subgroups+f16"])
        .map(|name| Tier { subgroups: name.starts_with("subgroups"), f16: name.ends_with("f16") })
}

/// Parses element types of the KV cache by name.
pub fn kv_types() -> impl TypedValueParser<Value = KvType> {
    named(["f16", "f32", "q8_0"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_parse_by_kind_index_and_name() {
        let parse = |text: &str| text.parse::<Device>();
        assert_eq!(parse("auto"), Ok(Device::Auto));
        assert_eq!(parse("CPU"), Ok(Device::Cpu));
        assert_eq!(parse("gpu"), Ok(Device::Gpu(AdapterChoice::Best)));
        assert_eq!(parse("1"), Ok(Device::Gpu(AdapterChoice::Index(1))));
        assert_eq!(parse("GeForce RTX"), Ok(Device::Gpu(AdapterChoice::Name("GeForce RTX".to_owned()))));
    }

    #[test]
    fn adapter_that_is_given_up_is_tried_again_by_its_number_or_name() {
        let command = |choice: &str, listed, known| try_again(&choice.parse().unwrap(), listed, known);
        assert_eq!(command("1", true, false), "thermocline devices --try-again 1");
        assert_eq!(command("RX 9070", true, true), "thermocline devices --try-again \"RX 9070\" --force");
        assert_eq!(command("1", false, false), "thermocline devices --try-again");
        assert_eq!(try_again(&AdapterChoice::Best, true, false), "thermocline devices --try-again");
    }

    #[test]
    fn every_gpu_tier_parses_its_name() {
        let mut command = clap::Command::new("test").arg(clap::Arg::new("tier").value_parser(tiers()));
        for tier in Tier::ALL {
            let matches = command.try_get_matches_from_mut(["test".to_owned(), tier.to_string()]);
            assert_eq!(matches.unwrap_or_else(|error| panic!("{tier}: {error}")).get_one::<Tier>("tier"), Some(&tier));
        }
    }

    #[test]
    fn device_choice_without_vram_is_the_cpu() {
        let args = |device, vram| DeviceArgs { device, vram, gpu_tier: None };
        assert!(matches!(args(None, Some(0)).choice(&CpuArgs::default()), Ok(DeviceChoice::Cpu)));
        assert!(matches!(args(Some(Device::Cpu), Some(0)).choice(&CpuArgs::default()), Ok(DeviceChoice::Cpu)));
        assert!(args(Some(Device::Cpu), Some(1)).choice(&CpuArgs::default()).is_err());
        let asked = args(Some(Device::Gpu(AdapterChoice::Index(2))), Some(5)).choice(&CpuArgs::default());
        let Ok(DeviceChoice::Gpu(options)) = asked else { panic!("{asked:?}") };
        assert_eq!((options.adapter, options.budget), (AdapterChoice::Index(2), Some(5)));
        assert_eq!(options.packed_dot, None);
    }

    #[test]
    fn activations_hold_on_the_gpu() {
        let args = DeviceArgs { device: Some(Device::Gpu(AdapterChoice::Best)), vram: None, gpu_tier: None };
        for (activations, packed) in [(InputPrecision::Float, false), (InputPrecision::Int8, true)] {
            let cpu = CpuArgs { activations: Some(activations), ..CpuArgs::default() };
            let Ok(DeviceChoice::Gpu(options)) = args.choice(&cpu) else { panic!("{activations}") };
            assert_eq!(options.packed_dot, Some(packed), "{activations}");
        }
    }
}
