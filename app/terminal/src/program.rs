//! Runs a program: parses its arguments, runs the command, and converts the result into an exit
//! code.

use std::{ffi::OsString, panic::PanicHookInfo, process::ExitCode};

use clap::Parser;
use thermocline_engine::{format::survive_lost_files, gpu::withdraw_sentinels};
use thermocline_host::log::Keeper;
use tracing_subscriber::{EnvFilter, Layer, filter::LevelFilter, layer::SubscriberExt, util::SubscriberInitExt};

use crate::{
    console,
    failure::{Outcome, one_line},
    help,
    interrupt::handle_ctrl_c,
    llama_flags::{Translated, translate},
    standard_error::say,
    termination::handle_signals,
};

/// Starts the log. It is silent unless `RUST_LOG` is set, because user messages do not use it. The
/// window shows the latest lines.
pub fn start_log() {
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::OFF.into()).from_env_lossy();
    // Without this setting, the library panics if standard error is closed.
    let spoken = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).log_internal_errors(false);
    let spoken = spoken.with_filter(filter);
    tracing_subscriber::registry().with(spoken).with(Keeper.with_filter(LevelFilter::INFO)).init();
}

/// Parses the command line and passes the arguments to `command`.
pub fn run<P: Parser>(command: impl FnOnce(P) -> Outcome) -> ExitCode {
    survive_lost_files();
    handle_ctrl_c();
    handle_signals();
    console::expect_no_desktop();
    let done = in_our_words(&P::command(), std::env::args_os().collect()).and_then(|args| match parse(args) {
        Ok(parsed) => command(parsed).map(|()| ExitCode::SUCCESS),
        // --help and --version end up here too.
        Err(error) => help::print(&error).map(|()| ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))),
    });
    // Threads may still be inside a GPU step, whose sentinel would look like a crash.
    withdraw_sentinels();
    done.unwrap_or_else(|failure| {
        failure.report();
        ExitCode::from(failure.exit_code())
    })
}

fn parse<P: Parser>(args: Vec<OsString>) -> Result<P, clap::Error> {
    let mut command = help::keep_examples_whole(P::command());
    let matches = command.try_get_matches_from_mut(args)?;
    P::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Translates llama.cpp's flags in the arguments of the program or of one of its commands. Notes on
/// standard error name the dropped flags.
fn in_our_words(program: &clap::Command, mut args: Vec<OsString>) -> Outcome<Vec<OsString>> {
    let named = args.get(1).and_then(|name| name.to_str()).and_then(|name| program.find_subcommand(name));
    let (command, first) = match named {
        Some(command) => (command, 2),
        None if !program.has_subcommands() => (program, 1.min(args.len())),
        None => return Ok(args),
    };
    let has = |flag: &str| {
        command.get_arguments().any(|known| match flag.strip_prefix("--") {
            Some(long) => known.get_long_and_visible_aliases().is_some_and(|names| names.contains(&long)),
            None => known.get_short().is_some_and(|short| flag.strip_prefix('-') == Some(&*short.to_string())),
        })
    };
    let Translated { args: own, notes } = translate(args.split_off(first), &has)?;
    notes.iter().for_each(|note| say(format_args!("[{}]", one_line(note))));
    args.extend(own);
    Ok(args)
}

/// Panic hook that prints one line for a bug report instead of a backtrace.
pub fn report_bug(panic: &PanicHookInfo<'_>) {
    let message = panic.payload_as_str().unwrap_or("no message");
    let (version, place) = (env!("CARGO_PKG_VERSION"), place(panic));
    say(format_args!("error: thermocline {version} has a bug: {message} ({place})"));
    say("hint: please report this line together with the command and the kind of model");
}

/// Returns the file and line of a panic.
pub fn place(panic: &PanicHookInfo<'_>) -> String {
    panic.location().map_or("an unknown place".to_owned(), |at| format!("{}:{}", at.file(), at.line()))
}
