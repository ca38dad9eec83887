//! `thermocline eval recall`

use clap::Args;
use serde_json::json;
use thermocline_engine::{cpu::Cpu, eval, session::SparsityChoice};

use super::{
    report::{MeasuredTable, percent},
    setup::{CommonArgs, Watcher, measured},
};
use thermocline_terminal::{engine_options::sparsity_choices, failure::Outcome};

/// Measure the recall of predictors or activation thresholds, layer by layer
#[derive(Debug, Args)]
pub struct RecallArgs {
    /// Sparsity mode: predicted measures predictors, threshold measures activation thresholds
    #[arg(long, value_name = "MODE", default_value = "predicted", value_parser = sparsity_choices())]
    sparsity: SparsityChoice,
    #[command(flatten)]
    common: CommonArgs,
}

/// Runs the measurement.
pub fn recall(args: &RecallArgs) -> Outcome {
    let mut setup = args.common.open(args.sparsity)?;
    let corpus = args.common.text.corpus(&setup)?;
    let cpu = Cpu::new(&args.common.cpu.options())?;
    let mut watcher = Watcher::new("measuring", corpus.computed());
    let (method, device) = (setup.method, &setup.device);
    let of = measured(eval::recall(&mut setup.forward, &cpu, &corpus, method, device, &mut watcher))?;
    drop(watcher);
    let heads =
        ["layer", "recall [%]", "mass recall [%]", "precision [%]", "predicted [%]", "active [%]", "output error [%]"];
    let mut report = MeasuredTable::new(&heads);
    for layer in &of.layers {
        let it = &layer.figures;
        let cells = [it.recall, it.mass_recall, it.precision, it.density, it.active, layer.output_error];
        let cells = cells.into_iter().map(|fraction| percent(Some(fraction), 2));
        report.row([layer.layer.to_string()].into_iter().chain(cells));
    }
    for (name, recall, mass) in [("least", of.recall.0, of.mass_recall.0), ("median", of.recall.1, of.mass_recall.1)] {
        let cells = [Some(recall), Some(mass), None, None, None, None].map(|fraction| percent(fraction, 2));
        report.row([name.to_owned()].into_iter().chain(cells));
    }
    report.finish(&of.conditions, &args.common.output, json!({ "recall": of }))
}
