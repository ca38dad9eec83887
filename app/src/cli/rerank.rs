//! `thermocline rerank`: scores documents by their relevance to a query.

use std::io::Write;

use clap::Args;
use serde_json::json;
use thermocline_engine::session::{Prompt, SessionOptions, StateReading};

use thermocline_terminal::{answer_options::ReadingOptions, failure::Outcome};

const EXAMPLES: &str = "\
Scores are from 0 to 1. The most relevant document comes first.

Example:
  thermocline rerank -m bge-reranker-v2-m3-Q8_0.gguf \"Which planet is red?\" \"Mars is red.\" \"Cats purr.\"";

/// Scores documents by their relevance to a query, with a reranker.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RerankArgs {
    /// The query
    #[arg(value_name = "QUERY")]
    query: String,
    /// The documents
    #[arg(value_name = "DOC", required = true)]
    documents: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Treat control tokens in the query and the documents as control tokens [default: they are
    /// ordinary text]
    #[arg(long)]
    special_tokens_in_content: bool,
    #[command(flatten)]
    how: ReadingOptions,
}

/// Runs the command.
pub fn rerank(args: &RerankArgs) -> Outcome {
    let engine = args.how.open(args.special_tokens_in_content)?;
    let session = engine.session(SessionOptions::default())?;
    let mut scored = Vec::with_capacity(args.documents.len());
    for (index, document) in args.documents.iter().enumerate() {
        let prompt = Prompt::Pair { query: args.query.clone(), document: document.clone() };
        let relevance = session.read_states(prompt, StateReading::Relevance)?;
        scored.extend(relevance.first().map(|score| (index, *score)));
    }
    scored.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let mut out = std::io::stdout().lock();
    if args.json {
        let result = |(index, score): &(usize, f32)| json!({ "index": index, "relevance_score": score });
        writeln!(out, "{}", json!({ "results": scored.iter().map(result).collect::<Vec<_>>() }))?;
        return Ok(());
    }
    for (index, score) in scored {
        writeln!(out, "{score:.6}  {index}  {}", args.documents[index])?;
    }
    Ok(())
}
