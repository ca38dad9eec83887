//! `thermocline convert`: another file type for a model.

use std::{io::IsTerminal, path::PathBuf, time::Instant};

use clap::{Args, builder::PossibleValuesParser, builder::TypedValueParser};
use thermocline_engine::{format::TensorType, model};

use super::{
    failure::Outcome,
    progress::{Progress, Unit},
    units,
};

const EXAMPLES: &str = "\
Examples:
  thermocline convert ./Llama-3.2-1B --type q8_0 --out llama-3.2-1b.Q8_0.gguf
  thermocline convert model-F16.gguf --type q4_k --out model-Q4_K.gguf

FILE appears only when it is complete. Norms and biases stay F32; a matrix whose rows do not fit the type's blocks
gets the nearest type that does.";

/// Converts a Hugging Face folder or a GGUF file to GGUF of a chosen type.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ConvertArgs {
    /// Hugging Face folder, GGUF file or PowerInfer file
    #[arg(value_name = "SOURCE")]
    source: PathBuf,
    /// Type of the matrices
    #[arg(short, long = "type", value_name = "TYPE", default_value = "q8_0", value_parser = types())]
    ty: TensorType,
    /// The GGUF file to write
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
}

/// Runs the command.
pub fn convert(args: &ConvertArgs) -> Outcome {
    let started = Instant::now();
    let mut progress = Progress::new("converting", Unit::Bytes);
    let report = model::convert(&args.source, &args.out, args.ty, &mut |done, total| progress.set(done, total))?;
    drop(progress);
    let _ = (report, started, units::bytes(0), std::io::stderr().is_terminal());
    Ok(())
}

fn types() -> impl TypedValueParser<Value = TensorType> {
    PossibleValuesParser::new(["f32", "f16", "bf16", "q8_0", "q4_0", "q4_k", "q5_k", "q6_k"])
        .try_map(|name| name.parse::<TensorType>())
}
