//! `thermocline convert`: converts a model to GGUF.

use std::{collections::BTreeMap, io::Write, path::PathBuf, time::Instant};

use clap::Args;
use serde_json::json;
use thermocline_engine::{
    model::{self, CONVERT_TYPES, ConvertReport, TypeFallback},
    quant::TensorType,
};

use thermocline_host::units;
use thermocline_terminal::{
    failure::Outcome,
    named::named,
    progress::{ProgressUnit, TerminalProgress},
};

const EXAMPLES: &str = "\
Examples:
  thermocline convert ./Llama-3.2-1B --type q8_0 --out llama-3.2-1b.Q8_0.gguf
  thermocline convert model-F16.gguf --type q4_k --out model-Q4_K.gguf

FILE appears only when it is complete, and replaces an existing file.
Vectors (norms, biases) stay F32.
The vision tower of a folder is written beside FILE, as mmproj-FILE, and replaces an existing file.";

/// Converts a Hugging Face folder or a GGUF file to GGUF of a chosen type.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ConvertArgs {
    /// Hugging Face folder, GGUF file or PowerInfer file
    #[arg(value_name = "SOURCE")]
    source: PathBuf,
    /// Type of the weight matrices
    #[arg(short, long = "type", value_name = "TYPE", default_value = "Q8_0", ignore_case = true,
          value_parser = named::<TensorType>(CONVERT_TYPES.map(TensorType::name)))]
    ty: TensorType,
    /// The GGUF file to write
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn convert(args: &ConvertArgs) -> Outcome {
    let started = Instant::now();
    let mut progress = TerminalProgress::new("converting", ProgressUnit::Weights);
    let report = model::convert(&args.source, &args.out, args.ty, &mut |done, total| progress.set(done, total))?;
    drop(progress);
    let ConvertReport { architecture, source_bytes, file_bytes, parameters, types, fallbacks, tower } = report;
    let mut out = std::io::stdout().lock();
    if args.json {
        let types = types.iter().map(|(ty, count)| (ty.name(), count)).collect::<BTreeMap<_, _>>();
        let fallback = |TypeFallback { tensor, cols, wanted, ty }: &TypeFallback| json!({ "tensor": tensor, "row_elements": cols, "wanted": wanted.name(), "type": ty.name() });
        let report = json!({
            "file": args.out,
            "architecture": architecture,
            "source_bytes": source_bytes,
            "file_bytes": file_bytes,
            "parameters": parameters,
            "tensors": types,
            "fallbacks": fallbacks.iter().map(fallback).collect::<Vec<_>>(),
            "tower": tower.map(|tower| json!({ "file": tower.path, "file_bytes": tower.file_bytes })),
            "seconds": started.elapsed().as_secs_f64(),
        });
        writeln!(out, "{report:#}")?;
        return Ok(());
    }
    let types = types.iter().map(|(ty, count)| format!("{count} {ty}")).collect::<Vec<_>>().join(", ");
    let parameters = units::parameters(parameters);
    writeln!(out, "{}: {architecture}, {parameters} parameters, tensors: {types}", args.out.display())?;
    let (from, to, seconds) = (units::bytes(source_bytes), units::bytes(file_bytes), started.elapsed().as_secs_f64());
    writeln!(out, "{from} were converted to {to} in {seconds:.1} s")?;
    if let Some(tower) = tower {
        writeln!(out, "{}: the model's vision tower, {}", tower.path.display(), units::bytes(tower.file_bytes))?;
    }
    for line in fallback_lines(&fallbacks) {
        writeln!(out, "note: {line}")?;
    }
    Ok(())
}

/// Describes each type that could not be used: its row length and the type used instead.
fn fallback_lines(fallbacks: &[TypeFallback]) -> Vec<String> {
    let mut alike: BTreeMap<(&str, &str, usize), Vec<&str>> = BTreeMap::new();
    for TypeFallback { tensor, cols, wanted, ty } in fallbacks {
        alike.entry((wanted.name(), ty.name(), *cols)).or_default().push(tensor);
    }
    let line = |((wanted, ty, cols), tensors): (&(&str, &str, usize), &Vec<&str>)| {
        let others = match tensors.len() - 1 {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        format!(
            "{}{others}: {ty} instead of {wanted}, because blocks of {wanted} do not divide rows of {cols}",
            tensors[0]
        )
    };
    alike.iter().map(line).collect()
}
