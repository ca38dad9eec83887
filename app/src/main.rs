//! The `thermocline` program.

use std::process::ExitCode;

use tracing_subscriber::{EnvFilter, filter::LevelFilter};

fn main() -> ExitCode {
    // Silent unless RUST_LOG is set: messages for users do not go through the log.
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::OFF.into()).from_env_lossy();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    thermocline_engine::format::explain_lost_files();
    thermocline::cli::main()
}
