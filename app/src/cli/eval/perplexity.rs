//! `thermocline eval perplexity`

use clap::Args;
use serde_json::json;
use thermocline_engine::{eval, session::SparsityChoice};

use super::{
    report::{MeasuredTable, megabytes, percent},
    setup::{CommonArgs, Watcher, measured},
};
use thermocline_terminal::{engine_options::sparsity_choices, failure::Outcome};

/// Measure the perplexity of a text
#[derive(Debug, Args)]
pub struct PerplexityArgs {
    /// Sparsity mode
    #[arg(long, value_name = "MODE", default_value = "dense", value_parser = sparsity_choices())]
    sparsity: SparsityChoice,
    #[command(flatten)]
    common: CommonArgs,
}

/// Runs the measurement.
pub fn perplexity(args: &PerplexityArgs) -> Outcome {
    let mut setup = args.common.open(args.sparsity)?;
    let corpus = args.common.text.corpus(&setup)?;
    let mut watcher = Watcher::new("scoring", corpus.computed());
    let of = measured(eval::perplexity(&mut setup.forward, &corpus, setup.method, &setup.device, &mut watcher))?;
    drop(watcher);
    let mut report = MeasuredTable::figures(&[("perplexity", of.perplexity, 4), ("nats per token", of.nll, 5)]);
    report.values([
        ("active neurons [%]", percent(of.activity.active(), 2)),
        ("read per token [MB]", megabytes(of.bytes_per_token)),
        ("tokens per second", format!("{:.1}", of.tokens_per_second)),
    ]);
    let figures = json!({ "perplexity": of, "active": of.activity.active(), "layers": of.activity.layers() });
    report.finish(&of.conditions, &args.common.output, figures)
}
