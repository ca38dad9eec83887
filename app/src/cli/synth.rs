//! `thermocline synth`: creates a model of random weights that fires like a real model.

use std::{io::Write, path::PathBuf};

use clap::{
    Args,
    builder::{PossibleValuesParser, TypedValueParser},
};
use serde_json::json;
use thermocline_engine::{
    model::{Down, Ffn, FfnWeights, LayerWeights, LoadOptions, Model},
    quant::{QUANTISABLE, TensorType},
    sparsity::sidecar::{
        self, Identity, PreparedBundles, PreparedDown, PreparedExperts, PreparedLayer, Provenance, Sidecar,
    },
    synth::{self, ExpertCounts, Firing, SynthOptions, SynthReport, SynthShape},
};

use thermocline_host::units;
use thermocline_terminal::{
    failure::{Failure, Outcome},
    named::named,
    progress::{ProgressUnit, TerminalProgress},
};

const DETAILS: &str = "\
The model generates noise, but it has the size, the speed and the sparsity of the published model of
this shape. The file is written in parts, so that RAM does not limit its size. The same seed makes
the same file.

In MoE shapes, the firing frequencies of each expert's neurons follow the power law. The frequencies
of experts follow a flatter law: of eight experts, the most frequent is chosen twice as often as the
least frequent. MoE shapes have no predictors: --no-predictor is implied.

With --mtp, the greedy text counts token ids upwards. At random tokens, the draft head names another
token than the one that follows.

Examples:
  thermocline synth --shape relu-llama-7b --type q4_0 --active 0.10 --out relu-7b.gguf
  thermocline synth --shape llama-7b --layers 4 --type q4_k --out dense-4-layers.gguf
  thermocline synth --shape turbosparse-mixtral --layers 4 --sidecar --out experts.gguf
  thermocline synth --shape qwen3.5-4b --mtp 0.7 --out drafts.gguf";

/// Largest relative difference between a measured and a requested figure.
const TOLERANCE: f64 = 0.1;

/// Makes a model of random weights at a published shape, for measuring.
#[derive(Debug, Args)]
#[command(after_help = DETAILS)]
pub struct SynthArgs {
    /// Shape that determines the sizes and the architecture
    #[arg(long, value_name = "NAME", value_parser = shapes())]
    shape: SynthShape,
    /// Type of the weight matrices
    #[arg(long = "type", value_name = "TYPE", default_value = "Q4_0", ignore_case = true, value_parser = types())]
    ty: TensorType,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Number of layers [default: the shape's]
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
    /// Seed of all random numbers
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Add a draft head (multi-token prediction) that agrees with the model at this fraction of the
    /// tokens. Shapes of Qwen 3.5 only
    #[arg(long, value_name = "ACCEPTANCE")]
    mtp: Option<f64>,
    /// Mean fraction of a layer's neurons that fire for a token; in MoE shapes, of the chosen
    /// experts' neurons
    #[arg(long, value_name = "FRACTION", default_value_t = 0.10, help_heading = "Firing (ReLU shapes)")]
    active: f64,
    /// Skew: this fraction of a layer's neurons makes --hot-firings of its firings
    #[arg(long = "hot-share", value_name = "FRACTION", default_value_t = 0.26, help_heading = "Firing (ReLU shapes)")]
    hot_fraction: f64,
    /// Fraction of all firings that --hot-share refers to
    #[arg(long, value_name = "FRACTION", default_value_t = 0.80, help_heading = "Firing (ReLU shapes)")]
    hot_firings: f64,
    /// Write no predictors: the file is an ordinary GGUF file instead of a PowerInfer file. MoE
    /// models never have predictors
    #[arg(long, help_heading = "Firing (ReLU shapes)")]
    no_predictor: bool,
    /// Rank of the predictors [default: a quarter of the model's width]
    #[arg(long, value_name = "N", help_heading = "Firing (ReLU shapes)")]
    predictor_rank: Option<usize>,
    /// Recall of the predictors
    #[arg(long, value_name = "FRACTION", default_value_t = 0.95, help_heading = "Firing (ReLU shapes)")]
    recall: f64,
    /// Also write a sidecar with the frequency of each neuron's firings (and of each expert), as
    /// `thermocline prepare` counts them
    #[arg(long)]
    sidecar: bool,
    /// Also write a sidecar with neuron bundles, as `thermocline prepare --bundles on` makes them.
    /// Dense ReLU shapes with gates and predictors only
    #[arg(long)]
    bundles: bool,
    /// Number of threads [default: one per core]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Print the measured statistics as one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn synth(args: &SynthArgs) -> Outcome {
    let options = SynthOptions {
        layers: args.layers,
        ty: args.ty,
        seed: args.seed,
        active: args.active,
        hot_fraction: args.hot_fraction,
        hot_firings: args.hot_firings,
        predictor: !args.no_predictor,
        predictor_rank: args.predictor_rank,
        recall: args.recall,
        agreement: args.mtp,
        threads: args.threads.map(usize::from),
        ..SynthOptions::new(args.shape, &args.out)
    };
    if args.sidecar && !args.shape.relu() && args.shape.moe.is_none() {
        return Err(Failure::usage("--sidecar: expected a ReLU shape, or a mixture of experts"));
    }
    if args.bundles && (!args.shape.relu() || args.shape.moe.is_some() || args.no_predictor) {
        return Err(Failure::usage("--bundles: expected a dense ReLU shape with predictors"));
    }
    if args.bundles && !has_bundles(&options)? {
        return Err(Failure::usage("--bundles: expected a shape with gates"));
    }
    let mut progress = TerminalProgress::new("making", ProgressUnit::Bytes);
    let report = synth::generate(&options, &mut |at| progress.set(at.done, at.total))?;
    drop(progress);
    if args.sidecar || args.bundles {
        write_sidecar(args, &report)?;
    }

    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{:#}", json!(report))?;
    } else {
        print(&mut out, &report)?;
    }
    let deviation = report.deviation();
    if deviation > TOLERANCE {
        let percent = deviation * 100.0;
        return Err(Failure::Output(format!("a measured figure differs by {percent:.0} % from the requested figure")));
    }
    Ok(())
}

/// Writes a sidecar with the designed firing frequencies, without counting.
fn write_sidecar(args: &SynthArgs, report: &SynthReport) -> Outcome {
    let model = Model::open(&report.path, &LoadOptions::default())?;
    let path = sidecar::path_beside(&report.path);
    let layer = |n: usize| {
        let (neurons, chosen) = (report.frequencies.get(n).cloned(), report.chosen.get(n).cloned());
        let Some(moe) = report.moe else {
            let layer = PreparedLayer { frequency: neurons, ..PreparedLayer::default() };
            return if args.bundles { bundled(&model.weights.layers[n], layer) } else { layer };
        };
        let experts = neurons.map(|frequency| {
            let width = frequency.len() / moe.experts;
            PreparedExperts { width, frequency, ..PreparedExperts::default() }
        });
        PreparedLayer { frequency: chosen, experts, ..PreparedLayer::default() }
    };
    let sidecar = Sidecar {
        identity: Identity::of_model(&model),
        provenance: Provenance {
            activation: model.config.activation,
            corpus: "none: neurons were made to fire this often".to_owned(),
            tokens_profiled: 0,
            tokens_held_out: 0,
            target_recall: args.recall as f32,
            target_mass_recall: args.recall as f32,
        },
        layers: (0..report.layers).map(layer).collect(),
        input_figures: Vec::new(),
        path,
    };
    Ok(sidecar.write(&sidecar.path)?)
}

/// True if a layer of the model with these options has bundles. Writes no model.
fn has_bundles(options: &SynthOptions) -> Result<bool, Failure> {
    let layers = synth::shape_model(options)?.weights.layers;
    Ok(layers.iter().any(|layer| bundled(layer, PreparedLayer::default()).bundles.is_some()))
}

/// Adds the bundles of a layer whose file has neuron-major down projections.
fn bundled(weights: &LayerWeights, layer: PreparedLayer) -> PreparedLayer {
    let Ffn::Dense(ffn @ FfnWeights { down: Down::Neurons(down), .. }) = &weights.ffn else { return layer };
    let bundles = PreparedBundles::of(ffn, &down.weight, weights.predictor.is_some());
    let down = bundles.as_ref().map(|_| PreparedDown { weight: down.weight.clone(), error: 0.0 });
    PreparedLayer { down, bundles, ..layer }
}

fn print(out: &mut impl Write, report: &SynthReport) -> std::io::Result<()> {
    let (parameters, size) = (units::parameters(report.parameters), units::bytes(report.bytes));
    let (shape, layers, ty, seconds) = (report.shape, report.layers, report.tensor_type, report.seconds);
    writeln!(out, "{}: {shape}, {layers} layers, {ty}, {parameters} parameters", report.path.display())?;
    writeln!(out, "{size} in {seconds:.1} s ({}/s)", units::bytes((report.bytes as f64 / seconds.max(1e-9)) as u64))?;
    if let (Some(moe), Some(frequencies)) = (report.moe, report.chosen.first()) {
        let (least, most) =
            frequencies.iter().fold((1.0f32, 0.0f32), |(least, most), of| (least.min(*of), most.max(*of)));
        let (least, most) = (percent(least.into()), percent(most.into()));
        let ExpertCounts { experts, used } = moe;
        writeln!(out, "a token uses {used} of {experts} experts; each is chosen by {least} to {most} of the tokens")?;
    }
    let (Some(asked), Some(measured)) = (&report.asked, &report.measured) else {
        return writeln!(out, "dense: no neuron is ever silent");
    };
    let label = format!("neurons that make {:.0} % of the firings", report.hot_firings * 100.0);
    let recall = |firing: &Firing| firing.recall.map_or("-".to_owned(), percent);
    writeln!(out, "\n{:<40} {:>8} {:>9}", "fraction of", "asked", "measured")?;
    writeln!(out, "{:<40} {:>8} {:>9}", "neurons that fire", percent(asked.active), percent(measured.active))?;
    writeln!(out, "{label:<40} {:>8} {:>9}", percent(asked.hot_fraction), percent(measured.hot_fraction))?;
    writeln!(out, "{:<40} {:>8} {:>9}", "firings the predictors find", recall(asked), recall(measured))?;
    if let Some(predicted) = measured.predicted {
        writeln!(out, "{:<40} {:>8} {:>9}", "neurons the predictors let through", "-", percent(predicted))?;
    }
    Ok(())
}

fn percent(fraction: f64) -> String {
    format!("{:.1} %", fraction * 100.0)
}

pub(super) fn shapes() -> impl TypedValueParser<Value = SynthShape> {
    PossibleValuesParser::new(synth::shapes().iter().map(|shape| shape.name)).try_map(|name| SynthShape::named(&name))
}

pub(super) fn types() -> impl TypedValueParser<Value = TensorType> {
    named(QUANTISABLE.map(TensorType::name))
}
