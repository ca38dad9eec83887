//! Options of commands that generate answers, and of commands that only read texts.

use clap::Args;
use thermocline_engine::session::{Engine, Prompt, Request, Sampling};

use crate::{
    companion_options::CompanionOptions,
    engine_options::{ContextOptions, CpuArgs, DeviceArgs, SparsityArgs, open_engine},
    failure::Outcome,
    generation_options::{LengthOptions, SamplingOptions},
    model_options::ModelOptions,
};

/// The model, its device, and how it answers.
#[derive(Debug, Clone, Default, Args)]
pub struct AnswerOptions {
    #[command(flatten)]
    pub model: ModelOptions,
    #[command(flatten)]
    pub companions: CompanionOptions,
    #[command(flatten)]
    pub context: ContextOptions,
    #[command(flatten)]
    pub sampling: SamplingOptions,
    #[command(flatten)]
    pub length: LengthOptions,
    /// Treat control tokens in messages, files, tools and tool results as control tokens, like
    /// other programs. A web page that the model reads can then end the turn and begin another
    /// [default: they are ordinary text]
    #[arg(long, help_heading = "Context")]
    pub special_tokens_in_content: bool,
    #[command(flatten)]
    pub cpu: CpuArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
    #[command(flatten)]
    pub sparsity: SparsityArgs,
}

/// The model and its device, for commands that read texts and generate none.
#[derive(Debug, Clone, Default, Args)]
pub struct ReadingOptions {
    #[command(flatten)]
    pub model: ModelOptions,
    #[command(flatten)]
    pub context: ContextOptions,
    #[command(flatten)]
    pub cpu: CpuArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
    #[command(flatten)]
    pub sparsity: SparsityArgs,
}

impl ReadingOptions {
    /// Opens the engine on the requested device. `special` says whether control tokens in texts are
    /// control tokens.
    pub fn open(&self, special: bool) -> Outcome<Engine> {
        let companions = CompanionOptions::default();
        open_engine(&self.model, &companions, &self.context, &self.cpu, &self.device, &self.sparsity, special)
    }
}

impl AnswerOptions {
    /// Opens the engine on the requested device.
    pub fn open(&self) -> Outcome<Engine> {
        let special = self.special_tokens_in_content;
        open_engine(&self.model, &self.companions, &self.context, &self.cpu, &self.device, &self.sparsity, special)
    }

    /// Returns the sampling: the user's options, and the model's defaults for the others.
    pub fn sampling(&self) -> Sampling {
        self.sampling.over(self.model.sampling())
    }

    /// Creates a request for an answer to `prompt` with these options.
    pub fn request(&self, prompt: Prompt) -> Request {
        self.length.request(prompt, self.sampling())
    }
}
