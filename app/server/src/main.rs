//! The `thermocline-server` program: `thermocline serve` without the window, for computers without
//! a display.

#![recursion_limit = "256"]

use std::process::ExitCode;

use clap::Parser;
use thermocline_server::command::{EXAMPLES, ServeArgs, serve};
use thermocline_terminal::program;

// The help page begins with the doc comment of `ServeArgs`.
#[derive(Debug, Parser)]
#[command(name = "thermocline-server", version, max_term_width = 100)]
#[command(after_help = EXAMPLES.replace("thermocline serve", "thermocline-server"))]
struct ServerProgram {
    #[command(flatten)]
    serve: ServeArgs,
}

fn main() -> ExitCode {
    program::start_log();
    std::panic::set_hook(Box::new(program::report_bug));
    program::run(|program: ServerProgram| serve(&program.serve))
}
