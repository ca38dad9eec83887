//! `thermocline tokenize`: encodes text into token ids, and decodes token ids.

use std::{
    io::{IsTerminal, Write},
    path::PathBuf,
};

use clap::Args;
use serde_json::json;
use thermocline_engine::tokenizer::{EncodeOptions, Tokenizer};

use crate::cli::text_input::{self, TokenIds};
use thermocline_host::units;
use thermocline_terminal::{
    failure::{Failure, Outcome},
    model_options::ModelOptions,
    standard_error::say,
};

const EXAMPLES: &str = "\
Examples:
  thermocline tokenize \"Once upon a time\"
  thermocline tokenize -m model.gguf --special --bos \"<|im_start|>user\" --json
  thermocline tokenize -m model.gguf --ids 1,15043,3186";

/// Tokenizes text, or decodes token ids.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TokenizeArgs {
    /// Text to tokenize [default: standard input, to its last byte]
    #[arg(value_name = "TEXT")]
    text: Option<String>,
    /// Read the text from a file, to its last byte: a line break at the end of the file is
    /// tokenized too
    #[arg(short, long, value_name = "FILE", conflicts_with = "text")]
    file: Option<PathBuf>,
    /// Decode these ids instead
    #[arg(long, value_name = "1,2,3", conflicts_with_all = ["text", "file", "bos"], value_parser = units::parse_ids)]
    ids: Option<TokenIds>,
    /// Recognise control tokens in the text; with --ids, print control tokens as text
    #[arg(long)]
    special: bool,
    /// Add BOS (and EOS) if the model asks for it
    #[arg(long)]
    bos: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelOptions,
}

/// Runs the command.
pub fn tokenize(args: &TokenizeArgs) -> Outcome {
    let tokenizer = Tokenizer::from_checkpoint(&args.model.open_checkpoint()?)?;
    let mut out = std::io::stdout().lock();
    if let Some(ids) = &args.ids {
        if let Some(id) = ids.iter().find(|id| **id as usize >= tokenizer.vocab_len()) {
            let last = tokenizer.vocab_len().saturating_sub(1);
            return Err(Failure::usage(format!("--ids: expected ids from 0 to {last}, got {id}")));
        }
        let text = tokenizer.decode(ids, !args.special);
        if args.json {
            writeln!(out, "{}", json!({ "ids": ids, "text": text }))?;
        } else {
            writeln!(out, "{text}")?;
        }
        return Ok(());
    }

    let text = text_input::read(args.text.as_deref(), args.file.as_deref(), "TEXT, --file FILE, --ids or a pipe")?;
    let ids = tokenizer.encode(&text, EncodeOptions { special: args.special, add_bos: args.bos, add_eos: args.bos })?;
    let piece = |id: &u32| String::from_utf8_lossy(tokenizer.token_bytes(*id)).into_owned();
    if args.json {
        let pieces: Vec<String> = ids.iter().map(piece).collect();
        writeln!(out, "{}", json!({ "text": text, "ids": ids, "pieces": pieces }))?;
        return Ok(());
    }
    for id in &ids {
        writeln!(out, "{id:>7}  {:?}", piece(id))?;
    }
    if std::io::stderr().is_terminal() {
        say(format_args!("[{} tokens]", ids.len()));
    }
    Ok(())
}
