//! The command line: one file per command. The commands share [`attach`] (files in messages),
//! [`grammar_options`], [`picture_files`], [`prepared`] (sidecars), [`table`] (tables) and
//! [`text_input`] (prompts from files and pipes). [`thermocline_terminal`] has the parts that all
//! programs share.

mod app;
mod attach;
mod bench;
mod bench_kernels;
mod bench_rows;
mod bench_streams;
mod chat;
mod completions;
mod convert;
mod devices;
mod driver_hints;
mod embed;
mod eval;
mod gpu_test;
mod grammar_options;
mod inspect;
mod logits;
mod picture_files;
mod plan;
mod prepare;
mod prepared;
mod report;
mod report_page;
mod rerank;
mod run;
mod synth;
mod table;
mod text_input;
mod tokenize;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use thermocline_server::command as serve;
use thermocline_terminal::{failure::Outcome, program};

const EXAMPLES: &str = "\
Without a command, the window opens. On a system without a display, a chat in the terminal starts.
Without --model, commands use the built-in storyteller.
A model is a GGUF file (split or not), a PowerInfer file or a Hugging Face folder.

Examples:
  thermocline run -p \"Tell me a story about a dog.\"
  thermocline chat -m model.gguf
  thermocline serve model.gguf
  thermocline inspect model.gguf
  thermocline convert ./Llama-3.2-1B --type q8_0 --out llama-3.2-1b.gguf

`thermocline COMMAND --help` explains a command.";

/// Runs large language models on a PC whose GPU is too small for them
#[derive(Debug, Parser)]
#[command(name = "thermocline", version, max_term_width = 100, after_help = EXAMPLES)]
#[command(subcommand_help_heading = "Commands", disable_help_subcommand = true)]
struct Cli {
    #[command(flatten)]
    app: app::AppArgs,
    #[command(subcommand)]
    command: Option<CliCommand>,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    Run(run::RunArgs),
    Chat(chat::ChatArgs),
    #[command(after_help = serve::EXAMPLES)]
    Serve(serve::ServeArgs),
    Inspect(inspect::InspectArgs),
    Tokenize(tokenize::TokenizeArgs),
    Embed(embed::EmbedArgs),
    Rerank(rerank::RerankArgs),
    Logits(logits::LogitsArgs),
    Convert(convert::ConvertArgs),
    Prepare(prepare::PrepareArgs),
    Synth(synth::SynthArgs),
    Bench(bench::BenchArgs),
    Eval(eval::EvalArgs),
    Devices(devices::DevicesArgs),
    Plan(plan::PlanArgs),
    Completions(completions::CompletionsArgs),
    #[command(hide = true)]
    Man(completions::ManArgs),
    Report(report::ReportArgs),
}

/// Parses the command line and runs it.
pub fn main() -> ExitCode {
    std::panic::set_hook(Box::new(report_bug));
    program::run(|cli: Cli| dispatch(&cli.app, cli.command))
}

fn dispatch(app: &app::AppArgs, command: Option<CliCommand>) -> Outcome {
    match command {
        None => app::app(app),
        Some(CliCommand::Run(args)) => run::run(&args),
        Some(CliCommand::Chat(args)) => chat::chat(&args),
        Some(CliCommand::Serve(args)) => serve::serve(&args),
        Some(CliCommand::Inspect(args)) => inspect::inspect(&args),
        Some(CliCommand::Tokenize(args)) => tokenize::tokenize(&args),
        Some(CliCommand::Embed(args)) => embed::embed(&args),
        Some(CliCommand::Rerank(args)) => rerank::rerank(&args),
        Some(CliCommand::Logits(args)) => logits::logits(&args),
        Some(CliCommand::Convert(args)) => convert::convert(&args),
        Some(CliCommand::Prepare(args)) => prepare::prepare(&args),
        Some(CliCommand::Synth(args)) => synth::synth(&args),
        Some(CliCommand::Bench(args)) => bench::bench(&args),
        Some(CliCommand::Eval(args)) => eval::eval(&args),
        Some(CliCommand::Devices(args)) => devices::devices(&args),
        Some(CliCommand::Plan(args)) => plan::plan(&args),
        Some(CliCommand::Completions(args)) => completions::completions(&args),
        Some(CliCommand::Man(args)) => completions::man(&args),
        Some(CliCommand::Report(args)) => report::report(&args),
    }
}

/// Panic hook: notes a panic that opening the window contains, and reports every other panic.
fn report_bug(panic: &std::panic::PanicHookInfo<'_>) {
    if thermocline_window::opening::are_contained() {
        thermocline_window::opening::note_place(program::place(panic));
    } else {
        program::report_bug(panic);
    }
}
