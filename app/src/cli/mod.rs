//! The command line. One file per command; shared by them are [`model_options`], [`engine_options`],
//! [`generation_options`] and [`answer_options`] (options), [`answer`] (one generation), [`failure`] (errors and exit codes), [`interrupt`]
//! (Ctrl-C), [`prepared`] (sidecars), [`progress`] (bars), [`table`] (tables), [`text_input`] (prompts from files and pipes).
//!
//! Exit codes: 0 done, 1 something failed, 2 bad input or usage, 130 interrupted.

mod answer;
mod answer_options;
mod app;
mod bench;
mod bench_kernels;
mod bench_rows;
mod chat;
#[cfg(windows)]
mod console;
mod convert;
mod devices;
mod engine_options;
mod eval;
mod failure;
mod generation_options;
mod inspect;
mod interrupt;
mod logits;
mod model_options;
mod plan;
mod prepare;
mod prepared;
mod progress;
mod run;
mod serve;
mod synth;
mod table;
mod termination;
mod text_input;
mod tokenize;
mod widened;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use failure::Outcome;

use crate::units;

const EXAMPLES: &str = "\
Without a command, the window opens (a chat in the terminal without a display). Without --model, commands use the built-in storyteller.
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
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::RunArgs),
    Chat(chat::ChatArgs),
    Serve(serve::ServeArgs),
    Inspect(inspect::InspectArgs),
    Tokenize(tokenize::TokenizeArgs),
    Logits(logits::LogitsArgs),
    Convert(convert::ConvertArgs),
    Prepare(prepare::PrepareArgs),
    Synth(synth::SynthArgs),
    Bench(bench::BenchArgs),
    Eval(eval::EvalArgs),
    Devices(devices::DevicesArgs),
    Plan(plan::PlanArgs),
}

/// Parses the command line and runs it.
pub fn main() -> ExitCode {
    std::panic::set_hook(Box::new(report_bug));
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // --help and --version arrive here too. A closed standard output is ignored.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match dispatch(&cli.app, cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.report();
            ExitCode::from(failure.exit_code())
        }
    }
}

fn dispatch(app: &app::AppArgs, command: Option<Command>) -> Outcome {
    match command {
        None => app::app(app),
        Some(Command::Run(args)) => run::run(&args),
        Some(Command::Chat(args)) => chat::chat(&args),
        Some(Command::Serve(args)) => serve::serve(&args),
        Some(Command::Inspect(args)) => inspect::inspect(&args),
        Some(Command::Tokenize(args)) => tokenize::tokenize(&args),
        Some(Command::Logits(args)) => logits::logits(&args),
        Some(Command::Convert(args)) => convert::convert(&args),
        Some(Command::Prepare(args)) => prepare::prepare(&args),
        Some(Command::Synth(args)) => synth::synth(&args),
        Some(Command::Bench(args)) => bench::bench(&args),
        Some(Command::Eval(args)) => eval::eval(&args),
        Some(Command::Devices(args)) => devices::devices(&args),
        Some(Command::Plan(args)) => plan::plan(&args),
    }
}

/// Panic hook: one line for a bug report instead of a backtrace.
fn report_bug(panic: &std::panic::PanicHookInfo<'_>) {
    if crate::ui::opening::are_contained() {
        return;
    }
    let place = panic.location().map_or("an unknown place".to_owned(), |at| format!("{}:{}", at.file(), at.line()));
    let message = panic.payload_as_str().unwrap_or("no message");
    eprintln!("error: thermocline {} has a bug: {message} ({place})", env!("CARGO_PKG_VERSION"));
    eprintln!("hint: please report this line together with the command and the kind of model");
}
