//! The `thermocline` program.

use std::process::ExitCode;

use tracing_subscriber::{EnvFilter, Layer, filter::LevelFilter, layer::SubscriberExt, util::SubscriberInitExt};

fn main() -> ExitCode {
    // Silent unless RUST_LOG is set: messages for users do not go through the log. The window shows the latest lines.
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::OFF.into()).from_env_lossy();
    let spoken = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_filter(filter);
    tracing_subscriber::registry().with(spoken).with(thermocline::log::Keeper.with_filter(LevelFilter::INFO)).init();
    thermocline_engine::format::survive_lost_files();
    thermocline::cli::main()
}
