//! `thermocline eval`: what a model is worth, and what leaving neurons out costs. [`setup`] opens what a measurement needs,
//! [`report`] prints tables and writes files; each measurement is a file of its own.

mod adapt;
mod firing;
mod kl;
mod perplexity;
mod recall;
mod report;
mod setup;
mod sweep;

use clap::{Args, Subcommand};

use super::failure::Outcome;

const DETAILS: &str = "\
A text is cut into windows of --ctx tokens as llama.cpp's llama-perplexity does it: each begins with BOS in an empty
context, and its second half is scored. With --documents every piece between two separators is a context of its own
and scored whole.

Prompts are computed densely in every mode, so a sparse mode is measured token by token (--phase decode, its default).

Examples:
  thermocline eval perplexity -m model.gguf --text wiki.test.raw
  thermocline eval kl -m model.gguf --text wiki.test.raw --sparsity predicted --chunks 20
  thermocline eval recall -m model.gguf --text wiki.test.raw --chunks 4
  thermocline eval sweep -m model.gguf --text wiki.test.raw --recall 0.8,0.9,0.95,0.99 --svg sweep.svg
  thermocline eval adapt --profile stories.txt --text stories.txt tales.txt --svg adapt.svg";

/// Measures how well a model foresees a text, and what sparsity costs.
#[derive(Debug, Args)]
#[command(after_help = DETAILS, disable_help_subcommand = true, subcommand_help_heading = "Measurements")]
pub struct EvalArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    #[command(visible_alias = "ppl")]
    Perplexity(perplexity::PerplexityArgs),
    Kl(kl::KlArgs),
    Recall(recall::RecallArgs),
    Sweep(sweep::SweepArgs),
    Firing(firing::FiringArgs),
    Adapt(adapt::AdaptArgs),
}

/// Runs the command.
pub fn eval(args: &EvalArgs) -> Outcome {
    match &args.what {
        What::Perplexity(args) => perplexity::perplexity(args),
        What::Kl(args) => kl::kl(args),
        What::Recall(args) => recall::recall(args),
        What::Sweep(args) => sweep::sweep(args),
        What::Firing(args) => firing::firing(args),
        What::Adapt(args) => adapt::adapt(args),
    }
}
