//! `thermocline prepare`: writes a model's sidecar.

use std::{
    io::Write,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;
use serde_json::json;
use thermocline_engine::{
    Error,
    model::Model,
    sparsity::{
        predictor::{Target, ThresholdGoal},
        prepare::{self, PredictorChoice, PrepareCorpus, PrepareOptions, PreparePhase, Prepared},
        sidecar::path_beside,
    },
};

use crate::cli::prepared;
use thermocline_host::{
    memory,
    units::{self, parse_bytes, parse_tokens},
};
use thermocline_terminal::{
    engine_options::CpuArgs,
    failure::{Failure, Outcome},
    interrupt::InterruptWatch,
    model_options::ModelOptions,
    named::by_name,
    progress::{ProgressUnit, TerminalProgress},
    standard_error::say,
};

const DETAILS: &str = "\
The model reads text, and the firings of its neurons are counted. Then every layer of a model with
ReLU gets a predictor of the neurons that will fire. Every layer of another model gets an activation
threshold below which neurons are skipped. The down projections are stored with one row per neuron.
For a ReLU model with gates that is larger than the RAM, the up row and the down row of a neuron
(with a predictor, also its gate row) are stored side by side.
MoE models get no predictors: their routers choose experts, and gates choose the experts' neurons.
Commands that run the model find the file if it lies beside the model. Ctrl-C stops the preparation;
the same command continues it.

Examples:
  thermocline prepare -m model.gguf
  thermocline prepare -m model.gguf --text novel.txt --text code.txt --tokens 64k
  thermocline prepare -m model.gguf --predictors none --out counts.thermocline.gguf";

/// Count which neurons of a model fire, train predictors, and write the results beside it
#[derive(Debug, Args)]
#[command(after_help = DETAILS)]
pub struct PrepareArgs {
    /// Text to read; may be repeated [default: text that the model generates]
    #[arg(long, value_name = "FILE")]
    text: Vec<PathBuf>,
    /// Tokens to read, like 65536 or 64k
    #[arg(long, value_name = "N", default_value = "32k", value_parser = parse_tokens)]
    tokens: usize,
    /// Fraction of the firing neurons that predictors should find
    #[arg(long, value_name = "FRACTION", default_value_t = 0.95)]
    target_recall: f64,
    /// Fraction of the firing neurons' contribution to the output that predictors should find
    #[arg(long, value_name = "FRACTION", default_value_t = 0.99)]
    target_mass: f64,
    /// Kind of predictor: auto chooses the cheapest kind per token if it saves time, the other
    /// values choose a kind at any cost
    #[arg(long, value_name = "KIND", default_value = "auto", value_parser = by_name([
        ("auto", PredictorChoice::Auto), ("trained", PredictorChoice::Trained), ("rows", PredictorChoice::Rows),
        ("none", PredictorChoice::None)]))]
    predictors: PredictorChoice,
    /// Fraction of the neurons that activation thresholds skip, in models whose activations are
    /// never zero
    #[arg(long, value_name = "FRACTION", default_value_t = 0.5)]
    skip: f64,
    /// Omit the down projections: the file is smaller, but loading the model takes longer
    #[arg(long)]
    no_down: bool,
    /// Store the rows of each neuron side by side, so that one read from disk serves a neuron: auto
    /// does so for a ReLU model with gates that is larger than the RAM
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = by_name([
        ("auto", BundleChoice::Auto), ("on", BundleChoice::On), ("off", BundleChoice::Off)]))]
    bundles: BundleChoice,
    /// Skip the search for thresholds of the inputs (for --sparsity threshold --level)
    #[arg(long)]
    no_inputs: bool,
    /// Limit of the disk space for recorded inputs of the layers during the preparation
    #[arg(long, value_name = "BYTES", default_value = "8GiB", value_parser = parse_bytes)]
    disk: u64,
    /// Most tokens of one text
    #[arg(long, value_name = "N", default_value = "512", value_parser = parse_tokens)]
    length: usize,
    /// Seed of all random numbers
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// The file to write [default: the model's name with .thermocline.gguf, beside it]
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    cpu: CpuArgs,
}

/// When bundles are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BundleChoice {
    /// For ReLU models with gates that are larger than the RAM.
    Auto,
    On,
    Off,
}

/// Name of the built-in model, for commands that require a model.
const BUILTIN: &str = "builtin";

/// Runs the command.
pub fn prepare(args: &PrepareArgs) -> Outcome {
    let mut source = args.model.clone();
    source.model = source.model.filter(|path| path.as_os_str() != BUILTIN);
    if source.sidecar.is_some() {
        return Err(Failure::usage(
            "--sidecar: expected --out for the file to write, because this command reads no sidecar",
        ));
    }
    // The new sidecar must not depend on an old one.
    let model = Model::from_checkpoint(source.open_checkpoint()?, &source.load_options())?;
    let out = match (&args.out, &source.model) {
        (Some(out), _) => out.clone(),
        (None, Some(_)) => path_beside(&model.checkpoint.path),
        (None, None) => path_beside(Path::new("storyteller.gguf")),
    };
    let options = options(args, &model, out)?;
    if options.bundles && args.bundles == BundleChoice::Auto {
        say(format_args!(
            "[the model is larger than the RAM, so its neurons are also stored in bundles, which take disk space \
             (--bundles off omits them)]"
        ));
    }
    let watch = InterruptWatch::start();
    let mut bar: Option<(PreparePhase, TerminalProgress)> = None;
    let made = prepare::run(&Arc::new(model), &options, &mut |at| {
        if bar.as_ref().is_none_or(|(phase, _)| *phase != at.phase) {
            // Remove the old bar before drawing the next.
            bar = None;
        }
        let (_, bar) =
            bar.get_or_insert_with(|| (at.phase, TerminalProgress::new(label(at.phase), ProgressUnit::Fraction)));
        bar.set_fraction(at.done, at.seconds_left);
        if watch.pressed() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    drop(bar);
    match made {
        Ok(made) => show(args, &made),
        Err(Error::Cancelled) => {
            say(format_args!(
                "[stopped; the same command continues from here, with {}]",
                options.workspace().display()
            ));
            Err(Failure::Interrupted)
        }
        Err(error) => Err(error.into()),
    }
}

fn options(args: &PrepareArgs, model: &Model, out: PathBuf) -> Result<PrepareOptions, Failure> {
    if args.bundles == BundleChoice::On && args.no_down {
        return Err(Failure::usage(
            "--bundles on: expected no --no-down, because bundles contain the down projections",
        ));
    }
    let bundles = match args.bundles {
        BundleChoice::Auto => !args.no_down && memory::bundles_pay(model),
        choice => choice == BundleChoice::On,
    };
    let corpus = if args.text.is_empty() { PrepareCorpus::Generated } else { PrepareCorpus::Files(args.text.clone()) };
    Ok(PrepareOptions {
        corpus,
        tokens: args.tokens as u64,
        length: args.length,
        disk: args.disk,
        target: Target { recall: args.target_recall, mass: args.target_mass },
        predictors: args.predictors,
        threshold_goal: ThresholdGoal::Sparsity(args.skip),
        down: !args.no_down,
        bundles,
        inputs: !args.no_inputs,
        seed: args.seed,
        cpu: args.cpu.options(),
        ..PrepareOptions::new(out)
    })
}

fn label(phase: PreparePhase) -> &'static str {
    match phase {
        PreparePhase::Reading => "reading text",
        PreparePhase::Layers => "preparing layers",
        PreparePhase::Inputs => "finding thresholds of inputs",
        PreparePhase::Writing => "writing",
    }
}

fn show(args: &PrepareArgs, made: &Prepared) -> Outcome {
    let mut out = std::io::stdout().lock();
    let Prepared { sidecar, layers, predictor_fraction, seconds } = made;
    if args.json {
        let mut report = prepared::to_json(sidecar);
        report["predictor_share"] = json!(predictor_fraction);
        report["seconds"] = json!(seconds);
        report["details"] = json!(layers);
        writeln!(out, "{report:#}")?;
        return Ok(());
    }
    out.write_all(prepared::layers(sidecar).as_bytes())?;
    writeln!(out)?;
    layers.iter().try_for_each(|layer| writeln!(out, "layer {}: {}", layer.layer, layer.why))?;
    match prepared::bundles(sidecar) {
        Some(bundles) => writeln!(out, "\n{bundles} (--bundles off omits them)")?,
        None if args.bundles == BundleChoice::On => {
            writeln!(out, "\nno bundles: they need dense layers with gates, whose weights have no factor")?;
        }
        None => {}
    }
    if !sidecar.input_figures.is_empty() {
        writeln!(out, "\nsmall inputs skipped (--sparsity threshold --level FRACTION):")?;
        sidecar.input_figures.iter().try_for_each(|of| writeln!(out, "  {}", of.cost()))?;
    }
    let file = std::fs::metadata(&sidecar.path).map_or(0, |metadata| metadata.len());
    writeln!(out, "\n{}: {} in {seconds:.0} s", sidecar.path.display(), units::bytes(file))?;
    writeln!(out, "{}", prepared::origin(sidecar))?;
    writeln!(out, "low-rank predictors have {:.1} % of the model's weights", 100.0 * predictor_fraction)?;
    Ok(())
}
