//! Common options of measurements, and the model and text that they open.

use std::{ops::ControlFlow, path::PathBuf, sync::Arc};

use clap::Args;
use thermocline_engine::{
    Error,
    cpu::Cpu,
    eval::{Control, Corpus, Method, Phase},
    model::Model,
    runtime::{Forward, KvType, Sparsity},
    session::{EngineOptions, SparsityChoice, SparsityReport},
    tokenizer::Tokenizer,
};

use super::report;
use crate::cli::text_input;
use thermocline_host::units::parse_tokens;
use thermocline_terminal::{
    engine_options::{CpuArgs, DeviceArgs, kv_types, open_forward},
    failure::{Failure, Outcome},
    interrupt::InterruptWatch,
    level::LevelArgs,
    model_options::ModelOptions,
    named::by_name,
    progress::{ProgressUnit, TerminalProgress},
    standard_error::say,
};

/// Options of the scored text.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Text")]
pub struct TextArgs {
    /// The text to score
    #[arg(long, value_name = "FILE")]
    pub text: Option<PathBuf>,
    /// Tokens of a context [default: 512, or fewer if the model has fewer positions]
    #[arg(long, value_name = "TOKENS", value_parser = parse_tokens)]
    pub ctx: Option<usize>,
    /// Score no more than the first N contexts
    #[arg(long, value_name = "N", value_parser = parse_tokens)]
    pub chunks: Option<usize>,
    /// The text consists of documents with SEPARATOR between them, like '<|endoftext|>'
    #[arg(long, value_name = "SEPARATOR")]
    pub documents: Option<String>,
}

/// Options of the method.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Method")]
pub struct MethodArgs {
    /// How the text is computed: prefill in chunks, like a prompt, or decode token by token, like
    /// an answer [default: prefill for dense, decode for every other mode]
    #[arg(long, value_name = "PHASE", value_parser = by_name([
        ("prefill", Phase::Prefill), ("decode", Phase::Decode)]))]
    pub phase: Option<Phase>,
    /// Element type of the KV cache; for q8_0, the part in GPU memory is f16
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = kv_types())]
    pub kv_type: KvType,
}

/// Files for results.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Results")]
pub struct OutputArgs {
    /// Write everything measured to a JSON file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the table to a CSV file
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
}

/// Options of every measurement.
#[derive(Debug, Clone, Args)]
pub struct CommonArgs {
    #[command(flatten)]
    pub text: TextArgs,
    #[command(flatten)]
    pub method: MethodArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub level: LevelArgs,
    #[command(flatten)]
    pub model: ModelOptions,
    #[command(flatten)]
    pub cpu: CpuArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// An open model that is ready to be measured.
pub struct Setup {
    pub model: Arc<Model>,
    pub tokenizer: Tokenizer,
    pub forward: Forward,
    pub method: Method,
    /// Description of the device.
    pub device: String,
}

impl CommonArgs {
    /// Opens the model in the sparsity mode `choice`.
    pub fn open(&self, choice: SparsityChoice) -> Outcome<Setup> {
        self.open_for(choice, false)
    }

    /// Opens the model in the sparsity mode `choice`. With `by_input`, it will skip inputs, so
    /// nothing is transposed.
    pub fn open_for(&self, choice: SparsityChoice, by_input: bool) -> Outcome<Setup> {
        report::check(self.output.json.iter().chain(&self.output.csv))?;
        let mut model = self.model.open_model()?;
        let tokenizer = Tokenizer::from_checkpoint(&model.checkpoint)?;
        let report = SparsityReport::new(choice, &model, EngineOptions::default().recall);
        let sparsity = report.mode;
        self.level.choose(&mut model, sparsity)?;
        // Input-major copies are made from the file's own weights, so these are not transposed.
        if sparsity != Sparsity::Dense && !(by_input || sparsity == Sparsity::Threshold && self.level.level.is_some()) {
            // Without neuron-major down projections, the whole matrix would be read.
            let cpu = Cpu::new(&self.cpu.options())?;
            model = model.neuron_major(cpu.pool(), &mut |_, _| ControlFlow::Continue(()))?.0;
        }
        let model = Arc::new(model);
        let mut forward = open_forward(&model, sparsity, &self.cpu, &self.device)?;
        let phase = self.method.phase.unwrap_or_else(|| Phase::for_mode(sparsity));
        let method = Method { sparsity, phase, kv_type: self.method.kv_type };
        let device = self.device_name(&mut forward, self.method.kv_type)?;
        if report.asked != SparsityChoice::Mode(sparsity) {
            say(format_args!("[{sparsity}: {}]", report.reason));
        }
        Ok(Setup { model, tokenizer, forward, method, device })
    }

    /// Describes the device that `forward` runs on.
    fn device_name(&self, forward: &mut Forward, kv_type: KvType) -> Outcome<String> {
        if !forward.kv_cache(1, kv_type)?.on_host() {
            let asked = self.device.device.as_ref().map(|_| "gpu");
            return Ok(match self.device.vram {
                Some(bytes) => format!("{} with {}", asked.unwrap_or("gpu"), thermocline_host::units::bytes(bytes)),
                None => asked.unwrap_or("gpu").to_owned(),
            });
        }
        let cpu = Cpu::new(&self.cpu.options())?;
        Ok(format!("cpu ({}, {} threads)", cpu.isa(), cpu.pool().threads()))
    }
}

impl TextArgs {
    /// Splits the text into passages for the model of `setup`.
    pub fn corpus(&self, setup: &Setup) -> Outcome<Corpus> {
        let ways = "--text FILE or a pipe";
        let text = text_input::without_last_line_break(text_input::read(None, self.text.as_deref(), ways)?);
        let name = match &self.text {
            Some(path) => path.display().to_string(),
            None => "standard input".to_owned(),
        };
        let context = self.context(setup);
        Ok(match &self.documents {
            Some(separator) => {
                let separator = separator.replace("\\n", "\n");
                Corpus::documents(&setup.tokenizer, &name, &text, &separator, context, self.chunks)?
            }
            None => Corpus::windows(&setup.tokenizer, &name, &text, context, self.chunks)?,
        })
    }

    /// Tokens per context.
    pub fn context(&self, setup: &Setup) -> usize {
        self.ctx.unwrap_or_else(|| 512.min(setup.model.config.context_length).max(4))
    }
}

/// Shows progress, and handles Ctrl-C.
pub struct Watcher {
    watch: InterruptWatch,
    progress: TerminalProgress,
    done: u64,
    total: u64,
}

impl Watcher {
    /// Creates a watcher of a measurement of `total` tokens.
    pub fn new(label: &'static str, total: usize) -> Self {
        Watcher {
            watch: InterruptWatch::start(),
            progress: TerminalProgress::new(label, ProgressUnit::Tokens),
            done: 0,
            total: total as u64,
        }
    }
}

impl Control for Watcher {
    fn cancelled(&mut self) -> bool {
        self.watch.pressed()
    }

    fn computed(&mut self, tokens: u64) {
        self.done += tokens;
        self.progress.set(self.done.min(self.total), self.total);
    }
}

/// Converts the result of a measurement. A cancelled measurement is an interruption, not an engine
/// error.
pub fn measured<T>(result: Result<T, Error>) -> Outcome<T> {
    result.map_err(|error| match error {
        Error::Cancelled => Failure::Interrupted,
        error => Failure::Engine(error),
    })
}
