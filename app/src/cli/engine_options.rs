//! How to run a model: options of the commands that compute.

use clap::{Args, builder::PossibleValuesParser, builder::TypedValueParser};
use thermocline_engine::{
    cpu::{CpuOptions, Isa},
    model::KvType,
    session::{Engine, EngineOptions},
};

use super::{failure::Outcome, model_options::ModelOptions, units::parse_tokens};

/// What the CPU is to use.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Hardware")]
pub struct CpuArgs {
    /// Threads to compute with [default: one per physical core]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
    /// Instruction set of the kernels [default: the best this machine has]
    #[arg(long, value_name = "NAME", value_parser = isas())]
    pub isa: Option<Isa>,
}

/// Length and type of the context.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Context")]
pub struct ContextOptions {
    /// Tokens the model can look back on, like 4096 or 4k [default: what the model was trained
    /// with, at most 4096]
    #[arg(short, long, value_name = "TOKENS", value_parser = parse_tokens)]
    pub context: Option<usize>,
    /// Element type of the KV cache [default: f16]
    #[arg(long, value_name = "TYPE", value_parser = kv_types())]
    pub kv_type: Option<KvType>,
}

/// An engine on the model.
pub fn open_engine(model: &ModelOptions, context: &ContextOptions, cpu: &CpuArgs) -> Outcome<Engine> {
    let mut options = EngineOptions {
        context: context.context,
        cpu: cpu.options(),
        activation: model.activation,
        read_mode: model.read_mode(),
        ..EngineOptions::default()
    };
    if let Some(kv_type) = context.kv_type {
        options.kv_type = kv_type;
    }
    Ok(Engine::from_model(model.open_model()?, options)?)
}

impl CpuArgs {
    /// As the engine wants them.
    pub fn options(&self) -> CpuOptions {
        CpuOptions { threads: self.threads.map(usize::from), isa: self.isa }
    }
}

fn isas() -> impl TypedValueParser<Value = Isa> {
    PossibleValuesParser::new(["scalar", "avx2", "avx512"]).try_map(|name| name.parse::<Isa>())
}

/// Names of element types of the KV cache.
pub fn kv_types() -> impl TypedValueParser<Value = KvType> {
    PossibleValuesParser::new(["f16", "f32", "q8_0"]).try_map(|name| {
        Ok::<_, String>(match name.as_str() {
            "f16" => KvType::F16,
            "f32" => KvType::F32,
            _ => KvType::Q8_0,
        })
    })
}
