//! `thermocline embed`: turns texts into vectors.

use std::io::Write;

use clap::Args;
use serde_json::json;
use thermocline_engine::session::{EmbeddingPrompts, Pooling, Prompt, SessionOptions, StateReading};

use thermocline_terminal::{
    answer_options::ReadingOptions,
    failure::{Failure, Outcome},
    named::by_name,
};

const EXAMPLES: &str = "\
Vectors have length 1, so the similarity of two texts is the sum of the products of their numbers.

Examples:
  thermocline embed -m bge-small-en-v1.5-f16.gguf \"A dog in the park\" \"A cat on a mat\"
  thermocline embed -m embeddinggemma-300m.gguf --kind query --json \"Which planet is red?\"";

/// Turns texts into vectors by an embedding model.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct EmbedArgs {
    /// The texts
    #[arg(value_name = "TEXT", required = true)]
    texts: Vec<String>,
    /// Kind of the texts, for models with prompts in front of them: query, document and others
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,
    /// How hidden states become a vector [default: as the model asks, or else mean]
    #[arg(long, value_name = "HOW", value_parser = by_name(Pooling::NAMED))]
    pooling: Option<Pooling>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    how: ReadingOptions,
}

/// Runs the command.
pub fn embed(args: &EmbedArgs) -> Outcome {
    let engine = args.how.open(false)?;
    let prompts = EmbeddingPrompts::of(&engine.model().checkpoint.metadata);
    let prefix = prompts.text(args.kind.as_deref()).map_err(|error| Failure::usage(format!("--kind: {error}")))?;
    let session = engine.session(SessionOptions::default())?;
    let reading = StateReading::Embedding(args.pooling);
    let vector = |text: &String| session.read_states(Prompt::Text(format!("{prefix}{text}")), reading);
    let vectors = args.texts.iter().map(vector).collect::<Result<Vec<_>, _>>()?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", json!({ "embeddings": vectors }))?;
        return Ok(());
    }
    for vector in vectors {
        let numbers: Vec<String> = vector.iter().map(|x| format!("{x:.6}")).collect();
        writeln!(out, "{}", numbers.join(" "))?;
    }
    Ok(())
}
