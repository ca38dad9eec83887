//! `thermocline eval sweep`

use std::{path::PathBuf, sync::Arc};

use clap::Args;
use serde_json::json;
use thermocline_engine::{
    Error,
    eval::{
        self, Corpus, Estimate, PruneOrder, SweepPoint, SweepSetup, Walk,
        plot::{Axis, Curve, Figure, Panel, Point, svg},
    },
    model::Model,
    runtime::Sparsity,
    session::SparsityChoice,
};

use super::{
    report::{self, MeasuredTable, megabytes, number, percent, sentence, write},
    setup::{CommonArgs, Setup, TextArgs, Watcher, measured},
};
use thermocline_terminal::{
    engine_options::open_forward,
    failure::{Failure, Outcome},
    named::by_name,
};

/// Default number of contexts for calibration.
const CALIBRATION: usize = 8;

/// Measure accuracy at several levels of sparsity, with one row per level
#[derive(Debug, Args)]
pub struct SweepArgs {
    /// Vary the predictors' thresholds: target recalls, from 0 to 1
    #[arg(long, value_name = "FRACTION,..", value_delimiter = ',', group = "walk")]
    recall: Vec<f64>,
    /// Vary the predictors' thresholds: shifts that are added to each threshold
    #[arg(long, value_name = "X,..", value_delimiter = ',', allow_negative_numbers = true, group = "walk")]
    shift: Vec<f64>,
    /// Vary the activation thresholds of gates: fractions of the neurons to skip
    #[arg(long = "cut", value_name = "FRACTION,..", value_delimiter = ',', group = "walk")]
    activation_threshold: Vec<f64>,
    /// Vary the thresholds of inputs that `thermocline prepare` found: fractions of the layers'
    /// weights to skip
    #[arg(long, value_name = "FRACTION,..", value_delimiter = ',', group = "walk")]
    inputs: Vec<f64>,
    /// Remove neurons from the model for all tokens: neurons that fire least (cold), neurons that
    /// fire most (hot), or random neurons
    #[arg(long, value_name = "ORDER", group = "walk", value_parser = by_name([
        ("cold", PruneOrder::Cold), ("hot", PruneOrder::Hot), ("random", PruneOrder::Random)]))]
    prune: Option<PruneOrder>,
    /// Fractions of every FFN's neurons that --prune removes
    #[arg(long, value_name = "FRACTION,..", value_delimiter = ',', requires = "prune",
        default_values_t = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6])]
    fractions: Vec<f64>,
    /// Text on which thresholds and firings are measured [default: up to 8 contexts at the start of
    /// the text, which are then not scored]
    #[arg(long, value_name = "FILE")]
    calibrate: Option<PathBuf>,
    /// Draw the curves
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    common: CommonArgs,
}

impl SweepArgs {
    /// Returns the requested walk, or the model's default walk.
    fn walk(&self, model: &Model) -> Walk {
        let has_predictor = model.weights.layers.iter().any(|layer| layer.predictor.is_some());
        if !self.inputs.is_empty() {
            return Walk::Inputs(self.inputs.clone());
        }
        if let Some(order) = self.prune {
            return Walk::Pruned(order, self.fractions.clone());
        }
        match (&self.recall[..], &self.shift[..], &self.activation_threshold[..]) {
            ([_, ..], ..) => Walk::Recall(self.recall.clone()),
            (_, [_, ..], _) => Walk::Shift(self.shift.clone()),
            (.., [_, ..]) => Walk::Sparsity(self.activation_threshold.clone()),
            _ if has_predictor => Walk::Recall(vec![0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999]),
            _ => Walk::Sparsity(vec![0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]),
        }
    }

    /// Returns the scored text and the calibration text, which do not overlap.
    fn texts(&self, setup: &Setup, walk: &Walk) -> Outcome<(Corpus, Corpus)> {
        let text = &self.common.text;
        let within = walk.calibrates() && self.calibrate.is_none();
        let chunks = text.chunks.map(|chunks| if within { chunks.saturating_add(CALIBRATION) } else { chunks });
        let mut corpus = TextArgs { chunks, ..text.clone() }.corpus(setup)?;
        let calibration = match &self.calibrate {
            Some(path) if walk.calibrates() => {
                TextArgs { text: Some(path.clone()), chunks: None, ..text.clone() }.corpus(setup)?
            }
            None if walk.calibrates() => {
                let calibration = corpus.hold_out(CALIBRATION)?;
                corpus.truncate(text.chunks.unwrap_or(usize::MAX));
                calibration
            }
            Some(_) => {
                return Err(Failure::usage(format!(
                    "--calibrate: expected none, because a sweep of {} needs no measurement",
                    walk.label()
                )));
            }
            None => Corpus { passages: Vec::new(), ..corpus.clone() },
        };
        Ok((corpus, calibration))
    }
}

/// Runs the measurement.
pub fn sweep(args: &SweepArgs) -> Outcome {
    let mode = match args {
        SweepArgs { prune: Some(_), .. } => Sparsity::Dense,
        _ if args.activation_threshold.is_empty() && args.inputs.is_empty() => Sparsity::Predicted,
        _ => Sparsity::Threshold,
    };
    report::check(&args.svg)?;
    if args.common.level.level.is_some() {
        return Err(Failure::usage("--level: expected --inputs with the levels to measure"));
    }
    let mut setup = args.common.open_for(SparsityChoice::Mode(mode), !args.inputs.is_empty())?;
    let walk = args.walk(&setup.model);
    let (corpus, calibration) = args.texts(&setup, &walk)?;
    let total = walk.values().len() * 2 * corpus.computed() + calibration.computed();
    let mut watcher = Watcher::new("sweeping", total);
    let mut reopen = |model: Arc<Model>| {
        open_forward(&model, walk.mode(), &args.common.cpu, &args.common.device).map_err(|failure| match failure {
            Failure::Engine(error) => error,
            other => Error::invalid("device", "a device that holds the model", other.message().unwrap_or_default()),
        })
    };
    let cpu = thermocline_engine::cpu::Cpu::new(&args.common.cpu.options())?;
    let (kv_type, device) = (args.common.method.kv_type, setup.device.as_str());
    let sweep = SweepSetup { walk: &walk, corpus: &corpus, calibration: &calibration, kv_type, device };
    let points = eval::sweep(&mut setup.forward, &cpu, &sweep, &mut reopen, &mut watcher, &mut |_| ());
    let points = measured(points)?;
    drop(watcher);
    let Some(first) = points.first() else { return Err(Failure::usage("the sweep has no steps")) };
    write(args.svg.as_ref(), || svg(&figure(&walk, &points, first)))?;
    let figures = json!({ "walk": walk.label(), "points": points });
    report(&walk, &points).finish(&first.divergence.conditions, &args.common.output, figures)
}

fn report(walk: &Walk, points: &[SweepPoint]) -> MeasuredTable {
    let heads = [
        walk.label(),
        "active [%]",
        "predicted [%]",
        "perplexity",
        "+-",
        "over dense [%]",
        "KL [nats]",
        "+-",
        "same top [%]",
        "read [MB/token]",
        "tokens/s",
        "dense tokens/s",
    ];
    let mut report = MeasuredTable::new(&heads);
    for point in points {
        let it = &point.divergence;
        report.row([
            number(point.level, 4),
            percent(point.active, 2),
            percent(point.predicted, 2),
            number(it.perplexity.value, 4),
            number(it.perplexity.stderr, 4),
            number(100.0 * (it.ratio.value - 1.0), 3),
            number(it.kld.value, 6),
            number(it.kld.stderr, 6),
            percent(Some(it.same_top.value), 2),
            megabytes(it.bytes_per_token),
            format!("{:.1}", it.tokens_per_second),
            it.base_tokens_per_second.map_or("-".to_owned(), |speed| format!("{speed:.1}")),
        ]);
    }
    report
}

/// Draws curves over the fraction of computed neurons.
fn figure(walk: &Walk, points: &[SweepPoint], first: &SweepPoint) -> Figure {
    let pruned = matches!(walk, Walk::Pruned(..));
    let computed = |point: &SweepPoint| match pruned {
        true => 100.0 * (1.0 - point.level),
        false => 100.0 * point.predicted.or(point.active).unwrap_or(1.0),
    };
    let curve = |name: &str, of: &dyn Fn(&SweepPoint) -> Option<Estimate>| {
        let points = points.iter().filter_map(|point| {
            let y = of(point)?;
            Some(Point { x: computed(point), y: y.value, error: y.stderr })
        });
        Curve { name: name.to_owned(), points: points.collect() }
    };
    let exact = |value: f64| Estimate { value, stderr: 0.0 };
    let panel = |y: Axis, curve: Curve, marks: Vec<(String, f64)>| Panel { y, curves: vec![curve], marks };
    let name = first.divergence.conditions.sparsity.clone();
    let base = &first.divergence;
    let mut panels = vec![
        panel(
            Axis::new("perplexity", ""),
            // The standard error of the difference, because both models see the same tokens.
            curve(&name, &|point| {
                let it = &point.divergence;
                Some(Estimate { value: it.perplexity.value, stderr: it.difference.stderr })
            }),
            vec![("dense".to_owned(), base.base_perplexity.value)],
        ),
        panel(Axis::new("KL from dense", "nats").log(), curve(&name, &|point| Some(point.divergence.kld)), Vec::new()),
    ];
    if base.bytes_per_token.is_some() {
        // The counts of a pruned model include only its remaining neurons.
        let dense = base.activity.cpu_bytes().zip(base.bytes_per_token).filter(|_| !pruned);
        let dense = dense.map(|(ffns, all)| (all - ffns + base.activity.dense_bytes() as f64) / 1e6);
        panels.push(panel(
            Axis::new("read per token", "MB").from_zero(),
            curve(&name, &|point| point.divergence.bytes_per_token.map(|bytes| exact(bytes / 1e6))),
            dense.map(|bytes| ("dense".to_owned(), bytes)).into_iter().collect(),
        ));
    }
    panels.push(panel(
        Axis::new("speed", "tokens/s").from_zero(),
        curve(&name, &|point| Some(exact(point.divergence.tokens_per_second))),
        base.base_tokens_per_second.map(|speed| ("dense".to_owned(), speed)).into_iter().collect(),
    ));
    Figure {
        title: format!("Cost of sparsity at different levels of {}", walk.label()),
        subtitle: sentence(&base.conditions),
        x: Axis::new("neurons computed", "%"),
        panels,
    }
}
