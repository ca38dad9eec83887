//! Options of the commands that have a model answer.

use clap::Args;
use thermocline_engine::session::{Engine, Prompt, Request, Sampling};

use super::{
    engine_options::{ContextOptions, CpuArgs, DeviceArgs, SparsityArgs, open_engine},
    failure::Outcome,
    generation_options::{LengthOptions, SamplingOptions},
    model_options::ModelOptions,
};

/// Which model answers, on what, and how.
#[derive(Debug, Clone, Default, Args)]
pub struct AnswerOptions {
    #[command(flatten)]
    pub model: ModelOptions,
    #[command(flatten)]
    pub context: ContextOptions,
    #[command(flatten)]
    pub sampling: SamplingOptions,
    #[command(flatten)]
    pub length: LengthOptions,
    #[command(flatten)]
    pub cpu: CpuArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
    #[command(flatten)]
    pub sparsity: SparsityArgs,
}

impl AnswerOptions {
    /// An engine on the model, on the device that was asked for.
    pub fn open(&self) -> Outcome<Engine> {
        open_engine(&self.model, &self.context, &self.cpu, &self.device, &self.sparsity)
    }

    /// How tokens are chosen: as was said, otherwise as suits the model.
    pub fn sampling(&self) -> Sampling {
        self.sampling.over(self.model.sampling())
    }

    /// A request for an answer to `prompt`.
    pub fn request(&self, prompt: Prompt) -> Request {
        self.length.request(prompt, self.sampling())
    }
}
