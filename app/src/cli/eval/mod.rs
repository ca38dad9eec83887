//! `thermocline eval`: measures the quality of a model and the cost of sparsity. [`setup`] opens
//! the model and the text, and [`report`] prints tables and writes files. Each measurement has its
//! own file. [`plot`] draws tables as charts.

mod adapt;
mod attribute;
mod firing;
mod kl;
mod perplexity;
mod plot;
mod recall;
mod report;
mod result_table;
mod routes;
mod setup;
mod skips;
mod sweep;

use clap::{Args, Subcommand};

use thermocline_terminal::failure::Outcome;

const DETAILS: &str = "\
A text is divided into windows of --ctx tokens, as in llama.cpp's llama-perplexity. Each window
begins with BOS in an empty context, and its second half is scored. With --documents, every document
between two separators has its own context and is scored as a whole.

Prompts are computed densely in every mode, so a sparse mode is measured token by token (--phase
decode, the default of sparse modes).

Examples:
  thermocline eval perplexity -m model.gguf --text wiki.test.raw
  thermocline eval kl -m model.gguf --text wiki.test.raw --sparsity predicted --chunks 20
  thermocline eval recall -m model.gguf --text wiki.test.raw --chunks 4
  thermocline eval sweep -m model.gguf --text wiki.test.raw --recall 0.8,0.9,0.95,0.99 --svg sweep.svg
  thermocline eval adapt --profile stories.txt --text stories.txt tales.txt --svg adapt.svg
  thermocline eval sweep -m model.gguf --text wiki.test.raw --inputs 0.25,0.4,0.5 --svg sweep.svg
  thermocline eval routes -m moe.gguf --text wiki.test.raw --out wiki.routes --svg routes.svg
  thermocline eval attribute -m model.gguf -p 'The capital of France is'
  thermocline eval plot --in speeds.csv --out speeds.svg --title 'Decoding speed'";

/// Measure a model's perplexity and the cost of sparsity
#[derive(Debug, Args)]
#[command(after_help = DETAILS, disable_help_subcommand = true, subcommand_help_heading = "Measurements")]
pub struct EvalArgs {
    #[command(subcommand)]
    measurement: Measurement,
}

#[derive(Debug, Subcommand)]
enum Measurement {
    #[command(visible_alias = "ppl")]
    Perplexity(perplexity::PerplexityArgs),
    Kl(kl::KlArgs),
    Recall(recall::RecallArgs),
    Sweep(sweep::SweepArgs),
    Skips(skips::SkipsArgs),
    Firing(firing::FiringArgs),
    Adapt(adapt::AdaptArgs),
    Routes(routes::RoutesArgs),
    Attribute(attribute::AttributeArgs),
    Plot(plot::PlotArgs),
}

/// Runs the command.
pub fn eval(args: &EvalArgs) -> Outcome {
    match &args.measurement {
        Measurement::Perplexity(args) => perplexity::perplexity(args),
        Measurement::Kl(args) => kl::kl(args),
        Measurement::Recall(args) => recall::recall(args),
        Measurement::Sweep(args) => sweep::sweep(args),
        Measurement::Skips(args) => skips::skips(args),
        Measurement::Firing(args) => firing::firing(args),
        Measurement::Adapt(args) => adapt::adapt(args),
        Measurement::Routes(args) => routes::routes(args),
        Measurement::Attribute(args) => attribute::attribute(args),
        Measurement::Plot(args) => plot::plot(args),
    }
}
