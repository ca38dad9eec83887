//! `thermocline probe-drivers`: what this program starts of itself before it trusts drivers with its own process.

use clap::Args;
use thermocline_engine::gpu::{DriverProbe, Faults, answer_probe, probe_with};

use super::failure::Outcome;

/// Name of the command.
const NAME: &str = "probe-drivers";

/// Looks for the adapters of graphics backends; this program starts itself so.
#[derive(Debug, Args)]
pub struct ProbeArgs {
    /// Names of the backends
    backends: Vec<String>,
}

/// Runs the command.
pub fn probe(args: &ProbeArgs) -> Outcome {
    Ok(answer_probe(&args.backends, Faults::default(), &mut std::io::stdout().lock())?)
}

/// Has this program look for adapters in another process first.
pub fn use_own_probe() {
    if let Ok(program) = std::env::current_exe() {
        probe_with(DriverProbe { program, arguments: vec![NAME.to_owned()] });
    }
}
