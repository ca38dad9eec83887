//! `thermocline eval attribute`

use std::{io::Write, ops::ControlFlow, path::PathBuf, sync::Arc};

use clap::Args;
use serde_json::json;
use thermocline_engine::{
    cpu::{Cpu, CpuOptions, InputPrecision},
    eval::{Attribution, attribution, continuation, neuron_lens, switching_off},
    model::NeuronIndex,
    tokenizer::{EncodeOptions, Tokenizer},
};

use super::{
    report::{self, number, write},
    setup::measured,
};
use crate::cli::table::TextTable;
use thermocline_terminal::{
    engine_options::CpuArgs,
    failure::{Failure, Outcome},
    interrupt::InterruptWatch,
    model_options::ModelOptions,
};

/// Show which neurons produce a word: what each adds to the word's logit, and the logit with the
/// strongest neurons switched off
#[derive(Debug, Args)]
pub struct AttributeArgs {
    /// Text before the word (BOS is added if the model asks for it)
    #[arg(short, long, value_name = "TEXT")]
    prompt: String,
    /// Word whose first token is explained [default: the most likely token]
    #[arg(long, value_name = "TEXT")]
    word: Option<String>,
    /// Number of neurons to list
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// Number of neurons to switch off together: the neurons that add most to the logit
    #[arg(long, value_name = "N", default_value_t = 5)]
    off: usize,
    /// Write everything computed to a JSON file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    cpu: CpuArgs,
}

/// Tokens shown for a neuron's logit lens.
const LENS: usize = 4;

/// Runs the command.
pub fn attribute(args: &AttributeArgs) -> Outcome {
    report::check(&args.json)?;
    let model = Arc::new(args.model.open_model()?);
    let tokenizer = Tokenizer::from_checkpoint(&model.checkpoint)?;
    // Rounded activations would blur the attribution.
    let cpu = Cpu::new(&CpuOptions { activations: InputPrecision::Float, ..args.cpu.options() })?;
    let context = tokenizer.encode(&args.prompt, EncodeOptions::CHAT)?;
    if context.is_empty() {
        return Err(Failure::usage("--prompt: expected at least one token"));
    }
    let watch = InterruptWatch::start();
    let mut proceed = || if watch.pressed() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let token = match &args.word {
        Some(word) => *tokenizer
            .encode(word, EncodeOptions::default())?
            .first()
            .ok_or_else(|| Failure::usage("--word: expected at least one token"))?,
        None => measured(continuation(&model, &cpu, &context, 1, &mut proceed))?.first().copied().unwrap_or_default(),
    };
    let of = measured(attribution(&model, &cpu, &context, token, args.top.max(MOST_SEARCHED), &mut proceed))?;
    let off: Vec<_> = of.neurons.iter().filter(|neuron| neuron.logit > 0.0).take(args.off).copied().collect();
    let places: Vec<NeuronIndex> = off.iter().map(|neuron| neuron.place).collect();
    let without = measured(switching_off(&model, &cpu, &context, token, &places, &mut proceed))?;

    let text = |id: u32| format!("{:?}", tokenizer.decode(&[id], false));
    let heads = ["layer", "neuron", "activation", "adds to the logit", "raises", "lowers"];
    let mut rows = TextTable::new(&heads);
    let mut lenses = Vec::new();
    for neuron in of.neurons.iter().take(args.top) {
        let lens = neuron_lens(&model, &cpu, neuron.place, LENS)?;
        let words = |tokens: &[(u32, f32)]| tokens.iter().map(|(id, _)| text(*id)).collect::<Vec<_>>().join(" ");
        // A negative activation reverses the neuron's effects.
        let (raises, lowers) = match neuron.activation < 0.0 {
            true => (words(&lens.suppressed), words(&lens.promoted)),
            false => (words(&lens.promoted), words(&lens.suppressed)),
        };
        rows.row([
            neuron.place.layer.to_string(),
            neuron.place.neuron.to_string(),
            number(f64::from(neuron.activation), 3),
            number(f64::from(neuron.logit), 3),
            raises,
            lowers,
        ]);
        lenses.push(lens);
    }
    let mut out = std::io::stdout().lock();
    write!(out, "{}\n{}", summary(&of, &text(token)), rows.text())?;
    let falls: Vec<String> = without.falls.iter().map(|fall| format!("{fall:.3}")).collect();
    writeln!(
        out,
        "\nWithout the {} neurons that add most, the logit falls from {:.3} to {:.3}: by {} \
         (including effects through later layers).",
        off.len(),
        without.whole,
        without.without,
        falls.join(", ")
    )?;
    out.flush()?;
    let shown = Attribution { neurons: of.neurons.iter().take(args.top).copied().collect(), ..of };
    let figures = json!({ "attribution": shown, "lenses": lenses, "switched_off": places, "without": without });
    write(args.json.as_ref(), || format!("{figures:#}\n"))
}

/// Most neurons to search for the largest contributions.
const MOST_SEARCHED: usize = 1000;

/// Describes the logit and its largest parts.
fn summary(of: &Attribution, word: &str) -> String {
    let neurons: f32 = of.layers.iter().sum();
    format!(
        "{word}: probability {:.3}, logit {:.3} = {neurons:.3} from the neurons + {:.3} from embedding, attention and biases\n\
         by layer: {}\n",
        of.probability,
        of.logit,
        of.residual,
        of.layers.iter().map(|sum| format!("{sum:.2}")).collect::<Vec<_>>().join(" ")
    )
}
