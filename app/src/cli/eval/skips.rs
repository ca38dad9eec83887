//! `thermocline eval skips`

use std::{path::PathBuf, sync::Arc};

use clap::Args;
use serde_json::json;
use thermocline_engine::{
    Error,
    cpu::Cpu,
    eval::{SkipPrice, SkipScore, SkipSetup, skip_prices},
    model::Model,
    runtime::Sparsity,
    session::SparsityChoice,
};

use super::{
    report::{MeasuredTable, number, percent},
    setup::{CommonArgs, TextArgs, Watcher, measured},
};
use thermocline_terminal::{
    engine_options::open_forward,
    failure::{Failure, Outcome},
};

/// Compare scores by which the weakest neurons of SwiGLU models could be skipped
#[derive(Debug, Args)]
pub struct SkipsArgs {
    /// Text on which thresholds are measured
    #[arg(long, value_name = "FILE")]
    calibrate: PathBuf,
    /// Fractions of the neurons to skip
    #[arg(long, value_name = "FRACTION,..", value_delimiter = ',', default_values_t = [0.25, 0.4, 0.5])]
    shares: Vec<f64>,
    /// Contexts of the calibration text
    #[arg(long, value_name = "N", default_value = "64")]
    windows: usize,
    /// Time of a byte in RAM, relative to a byte in VRAM
    #[arg(long, value_name = "X", default_value = "6.7")]
    ratio: f64,
    #[command(flatten)]
    common: CommonArgs,
}

/// Runs the measurement.
pub fn skips(args: &SkipsArgs) -> Outcome {
    let mut setup = args.common.open_for(SparsityChoice::Mode(Sparsity::Threshold), false)?;
    let text = &args.common.text;
    let corpus = text.corpus(&setup)?;
    let calibration =
        TextArgs { text: Some(args.calibrate.clone()), chunks: Some(args.windows), ..text.clone() }.corpus(&setup)?;
    let runs = SkipScore::ALL.len() * args.shares.len();
    let mut watcher = Watcher::new("measuring", runs * 2 * corpus.computed() + 3 * calibration.computed());
    let mut reopen = |model: Arc<Model>| {
        open_forward(&model, Sparsity::Threshold, &args.common.cpu, &args.common.device).map_err(
            |failure| match failure {
                Failure::Engine(error) => error,
                other => Error::invalid("device", "a device that holds the model", other.message().unwrap_or_default()),
            },
        )
    };
    let cpu = Cpu::new(&args.common.cpu.options())?;
    let of = SkipSetup {
        calibration: &calibration,
        corpus: &corpus,
        shares: &args.shares,
        ratio: args.ratio,
        kv_type: args.common.method.kv_type,
        device: &setup.device,
    };
    let prices = measured(skip_prices(&mut setup.forward, &cpu, &of, &mut reopen, &mut watcher, &mut |_| ()))?;
    drop(watcher);
    let heads = [
        "score",
        "asked [%]",
        "skipped [%]",
        "perplexity",
        "over dense",
        "+-",
        "KL [nats]",
        "read [%]",
        "read from RAM [%]",
    ];
    let mut table = MeasuredTable::new(&heads);
    for of in &prices {
        table.row([
            named(of.score),
            percent(Some(of.share), 0),
            percent(Some(of.skipped), 1),
            number(of.perplexity.value, 4),
            number(of.difference.value, 4),
            number(of.difference.stderr, 4),
            number(of.kld.value, 5),
            percent(Some(of.read), 1),
            percent(Some(of.read_from_ram), 1),
        ]);
    }
    let method = thermocline_engine::eval::Method { sparsity: Sparsity::Threshold, ..setup.method };
    let conditions = thermocline_engine::eval::Conditions::new(
        &setup.model,
        &corpus,
        method,
        args.common.method.kv_type,
        &setup.device,
    );
    let figures: &[SkipPrice] = &prices;
    table.finish(&conditions, &args.common.output, json!({ "prices": figures }))
}

fn named(score: SkipScore) -> String {
    let of = if score.worth { "worth" } else { "gate" };
    let sides = if score.sides { ", by side" } else { "" };
    let layers = if score.by_layer { ", by layer" } else { "" };
    format!("{of}{sides}{layers}")
}
