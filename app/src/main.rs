//! The `thermocline` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    thermocline_terminal::program::start_log();
    thermocline::cli::main()
}
