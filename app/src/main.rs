//! The `thermocline` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    thermocline_engine::format::explain_lost_files();
    thermocline::cli::main()
}
