//! The command line. One file per command; shared by them are [`model_options`], [`engine_options`],
//! [`generation_options`], [`grammar_options`] and [`answer_options`] (options), [`attach`] (files that go with a message), [`answer`] (one generation), [`failure`] (errors and exit codes), [`interrupt`]
//! (Ctrl-C), [`prepared`] (sidecars), [`named`] (options whose values have names), [`progress`] (bars), [`table`] (tables), [`text_input`] (prompts from files and pipes),
//! [`llama_flags`] (flags of llama.cpp), [`help`] (help pages).
//!
//! Exit codes: 0 done, 1 something failed, 2 bad input or usage, 130 interrupted.

mod answer;
mod answer_options;
mod app;
mod attach;
mod bench;
mod bench_kernels;
mod bench_rows;
mod bench_streams;
mod chat;
mod completions;
mod console;
mod convert;
mod devices;
mod driver_hints;
mod engine_options;
mod eval;
mod failure;
mod generation_options;
mod gpu_test;
mod grammar_options;
mod help;
mod inspect;
mod interrupt;
mod level;
mod llama_flags;
mod logits;
mod model_options;
mod named;
mod plan;
mod prepare;
mod prepared;
mod progress;
mod report;
mod report_page;
mod run;
mod serve;
mod server_log;
mod standard_error;
mod synth;
mod table;
mod termination;
mod text_input;
mod tokenize;

use std::{ffi::OsString, process::ExitCode};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use failure::Outcome;
use standard_error::say;
use thermocline_engine::gpu::withdraw_sentinels;

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
    Completions(completions::CompletionsArgs),
    #[command(hide = true)]
    Man(completions::ManArgs),
    Report(report::ReportArgs),
}

/// Parses the command line and runs it.
pub fn main() -> ExitCode {
    console::expect_no_desktop();
    std::panic::set_hook(Box::new(report_bug));
    let done = match in_our_words(std::env::args_os().collect()) {
        Ok(args) => match parse(args) {
            Ok(cli) => dispatch(&cli.app, cli.command),
            // --help and --version arrive here too.
            Err(error) => match help::print(&error) {
                Ok(()) => return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2)),
                Err(failure) => Err(failure),
            },
        },
        Err(failure) => Err(failure),
    };
    // Threads may still be within a step.
    withdraw_sentinels();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.report();
            ExitCode::from(failure.exit_code())
        }
    }
}

fn parse(args: Vec<OsString>) -> Result<Cli, clap::Error> {
    let mut command = help::keep_examples_whole(Cli::command());
    let matches = command.try_get_matches_from_mut(args)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// `args` with the flags of llama.cpp translated, where they are those of a command. What was dropped is said on standard error.
fn in_our_words(mut args: Vec<OsString>) -> Outcome<Vec<OsString>> {
    let commands = Cli::command();
    let named = args.get(1).and_then(|name| name.to_str());
    let Some(command) = named.and_then(|name| commands.find_subcommand(name)) else { return Ok(args) };
    let has = |flag: &str| {
        command.get_arguments().any(|known| match flag.strip_prefix("--") {
            Some(long) => known.get_long_and_visible_aliases().is_some_and(|names| names.contains(&long)),
            None => known.get_short().is_some_and(|short| flag.strip_prefix('-') == Some(&*short.to_string())),
        })
    };
    let llama_flags::Translated { args: own, notes } = llama_flags::translate(args.split_off(2), &has)?;
    notes.iter().for_each(|note| say(format_args!("[{}]", failure::one_line(note))));
    args.extend(own);
    Ok(args)
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
        Some(Command::Completions(args)) => completions::completions(&args),
        Some(Command::Man(args)) => completions::man(&args),
        Some(Command::Report(args)) => report::report(&args),
    }
}

/// Panic hook: one line for a bug report instead of a backtrace.
fn report_bug(panic: &std::panic::PanicHookInfo<'_>) {
    let place = panic.location().map_or("an unknown place".to_owned(), |at| format!("{}:{}", at.file(), at.line()));
    if crate::ui::opening::are_contained() {
        crate::ui::opening::note_place(place);
        return;
    }
    let message = panic.payload_as_str().unwrap_or("no message");
    say(format_args!("error: thermocline {} has a bug: {message} ({place})", env!("CARGO_PKG_VERSION")));
    say("hint: please report this line together with the command and the kind of model");
}
