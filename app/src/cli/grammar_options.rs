//! Options for the grammar of an answer.

use std::{fmt::Display, fs, path::PathBuf};

use clap::Args;
use thermocline_engine::session::{Grammar, sampling::JsonSchema};

use thermocline_terminal::failure::{Failure, Outcome};

/// The form that an answer has to have.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Form of the answer")]
#[group(multiple = false)]
pub struct GrammarOptions {
    /// Answer with JSON that matches this schema
    #[arg(long, value_name = "SCHEMA")]
    json_schema: Option<String>,
    /// Answer with JSON that matches the schema in this file
    #[arg(long, value_name = "FILE")]
    json_schema_file: Option<PathBuf>,
    /// Answer with a text that matches this grammar, in Lark's notation (first rule `start`) or in
    /// llama.cpp's notation GBNF (first rule `root`)
    #[arg(long, value_name = "GRAMMAR")]
    grammar: Option<String>,
    /// Answer with a text that matches the grammar in this file
    #[arg(long, value_name = "FILE")]
    grammar_file: Option<PathBuf>,
}

impl GrammarOptions {
    /// Returns the grammar, if one is given.
    pub fn grammar(&self) -> Outcome<Option<Grammar>> {
        let read = |path: &PathBuf| fs::read_to_string(path).map_err(|error| Failure::read(path, error));
        let schema = |text: String, place: String| {
            let wrong = |error: &dyn Display| Failure::usage(format!("{place}: expected a JSON schema: {error}"));
            let schema = serde_json::from_str(&text).map_err(|error| wrong(&error))?;
            JsonSchema::new(&schema, false).map(Grammar::JsonSchema).map_err(|error| wrong(&error))
        };
        Ok(match self {
            GrammarOptions { json_schema: Some(text), .. } => Some(schema(text.clone(), "--json-schema".to_owned())?),
            GrammarOptions { json_schema_file: Some(path), .. } => {
                Some(schema(read(path)?, path.display().to_string())?)
            }
            GrammarOptions { grammar: Some(text), .. } => Some(Grammar::of_text(text.clone())),
            GrammarOptions { grammar_file: Some(path), .. } => Some(Grammar::of_text(read(path)?)),
            _ => None,
        })
    }
}
