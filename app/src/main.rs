//! The `thermocline` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    thermocline::cli::main()
}
