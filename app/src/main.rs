//! The `thermocline` program.

// They panic where nobody reads.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

use std::process::ExitCode;

use tracing_subscriber::{EnvFilter, Layer, filter::LevelFilter, layer::SubscriberExt, util::SubscriberInitExt};

fn main() -> ExitCode {
    // Silent unless RUST_LOG is set: messages for users do not go through the log. The window shows the latest lines.
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::OFF.into()).from_env_lossy();
    // What standard error does not take is lost: the library would report it there, and panic.
    let spoken = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).log_internal_errors(false);
    let spoken = spoken.with_filter(filter);
    tracing_subscriber::registry().with(spoken).with(thermocline::log::Keeper.with_filter(LevelFilter::INFO)).init();
    thermocline_engine::format::survive_lost_files();
    thermocline::cli::main()
}
