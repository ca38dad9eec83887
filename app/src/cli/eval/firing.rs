//! `thermocline eval firing`

use clap::Args;
use serde_json::json;
use thermocline_engine::{
    eval::{
        self,
        plot::{Axis, Curve, Figure, Panel, svg},
    },
    session::SparsityChoice,
    telemetry::neurons::curve,
};

use super::{
    report::{self, MeasuredTable, percent, sentence, write},
    setup::{CommonArgs, Watcher, measured},
};
use thermocline_terminal::{engine_options::sparsity_choices, failure::Outcome};

/// Measure how many neurons fire in each layer, and how skewed their frequencies are
#[derive(Debug, Args)]
pub struct FiringArgs {
    /// Sparsity mode
    #[arg(long, value_name = "MODE", default_value = "dense", value_parser = sparsity_choices())]
    sparsity: SparsityChoice,
    /// Draw the share of the firings that the most frequent neurons make
    #[arg(long, value_name = "FILE")]
    svg: Option<std::path::PathBuf>,
    #[command(flatten)]
    common: CommonArgs,
}

/// Points of a curve.
const POINTS: usize = 200;

/// Runs the measurement.
pub fn firing(args: &FiringArgs) -> Outcome {
    report::check(&args.svg)?;
    let mut setup = args.common.open(args.sparsity)?;
    let corpus = args.common.text.corpus(&setup)?;
    let mut watcher = Watcher::new("counting", corpus.computed());
    let of = measured(eval::perplexity(&mut setup.forward, &corpus, setup.method, &setup.device, &mut watcher))?;
    drop(watcher);
    let heads = ["layer", "neurons", "active [%]", "neurons for 80 % of the firings [%]", "never fire"];
    let mut report = MeasuredTable::new(&heads);
    for layer in of.activity.layers() {
        report.row([
            layer.layer.to_string(),
            layer.neurons.to_string(),
            percent(Some(layer.active), 2),
            percent(Some(layer.for_80_percent), 2),
            layer.silent.to_string(),
        ]);
    }
    if let Some(path) = &args.svg {
        let layers = of.activity.layers();
        let all: Vec<u32> = layers.iter().flat_map(|layer| of.activity.counts(layer.layer)).copied().collect();
        let line = |name: &str, counts: &[u32]| {
            let points = curve::lorenz(counts, POINTS).into_iter().map(|(x, y)| (100.0 * x, 100.0 * y));
            Curve::from_points(name, points)
        };
        let few = layers.iter().filter(|layer| layers.len() <= 6 || layer.layer % layers.len().div_ceil(6) == 0);
        let mut curves = vec![line("all layers", &all)];
        curves.extend(few.map(|it| line(&format!("layer {}", it.layer), of.activity.counts(it.layer))));
        let figure = Figure {
            title: "Share of the firings that the most frequent neurons make".to_owned(),
            subtitle: sentence(&of.conditions),
            x: Axis::new("neurons, most frequent first", "%"),
            panels: vec![Panel { y: Axis::new("firings", "%"), curves, marks: Vec::new() }],
        };
        write(Some(path), || svg(&figure))?;
    }
    let figures = json!({ "conditions": of.conditions, "layers": of.activity.layers() });
    report.finish(&of.conditions, &args.common.output, figures)
}
