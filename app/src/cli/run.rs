//! `thermocline run`: answers one prompt.

use std::{io::Write, path::PathBuf};

use clap::Args;
use serde_json::json;
use thermocline_engine::session::{Message, Prompt, Request, Role, SessionOptions, StopReason};

use crate::cli::{
    attach::{AttachOptions, AttachedFiles},
    grammar_options::GrammarOptions,
    picture_files::{self, PictureOptions},
    text_input,
};
use thermocline_terminal::{
    answer::{self, answer},
    answer_options::AnswerOptions,
    failure::{Failure, Outcome},
    standard_error::say,
};

const EXAMPLES: &str = "\
Examples:
  thermocline run -p \"Tell me a story about a dog and a kite.\"
  thermocline run -m llama-2-7b.Q4_0.gguf --raw -p \"Water boils at\" -n 32 --temp 0
  thermocline run -m model.gguf -p \"Why is the sky blue?\" --device gpu --vram 6GiB
  thermocline run -m model.gguf -p \"Name an animal.\" --json-schema '{\"enum\": [\"cat\", \"dog\"]}'
  thermocline run -m model.gguf --attach report.pdf -p \"What does it cost?\"
  thermocline run -m qwen3-vl.gguf --image photo.jpg -p \"What is in this picture?\"
  git diff | thermocline run -m model.gguf --system \"Write a commit message.\"
  thermocline run -m model.gguf -f question.txt --json | jq -r .text";

/// Answers one prompt.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RunArgs {
    /// The prompt [default: standard input]
    #[arg(short, long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Read the prompt from a file
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    file: Option<PathBuf>,
    /// Render the prompt with the model's chat template [default: if the model has one]
    #[arg(long, conflicts_with = "raw")]
    chat: bool,
    /// Continue the prompt as it is, without a chat template
    #[arg(long, conflicts_with = "image")]
    raw: bool,
    /// System prompt of the chat
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,
    #[command(flatten)]
    files: AttachOptions,
    #[command(flatten)]
    pictures: PictureOptions,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// With --json: print one line for each token as it is generated, then one line for the whole
    /// answer
    #[arg(long, requires = "json")]
    stream: bool,
    /// Print no statistics on standard error
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    form: GrammarOptions,
    #[command(flatten)]
    how: AnswerOptions,
}

/// Runs the command.
pub fn run(args: &RunArgs) -> Outcome {
    let ways = "-p TEXT, -f FILE or a pipe (`thermocline chat` starts a conversation)";
    let text = text_input::read(args.prompt.as_deref(), args.file.as_deref(), ways)?;
    let text = text_input::without_last_line_break(text);
    // With `--raw`, an empty text is a valid beginning.
    if text.trim().is_empty() && !(args.raw && args.prompt.is_some()) {
        let message = "the prompt is empty: expected some text".to_owned();
        return Err(Failure::Usage { message, hint: Some(format!("give a prompt with {ways}")) });
    }
    let grammar = args.form.grammar()?;
    let documents = args.files.open()?;
    let pictures = args.pictures.open()?;
    let engine = args.how.open()?;
    picture_files::check(&engine, &pictures)?;
    let (mut message, sources) = match documents.as_slice() {
        [] => (Message::new(Role::User, text), None),
        documents => {
            let system = args.system.iter().map(|text| Message::new(Role::System, text));
            let mut files = AttachedFiles::new(&system.collect::<Vec<_>>())?;
            documents.iter().try_for_each(|document| files.attach(document))?;
            files.add_message(&text, Some(&engine))?
        }
    };
    message.pictures.extend(pictures);
    if args.raw && !message.pictures.is_empty() {
        let message = "--attach: expected files without pictures, because --raw continues a text, got a picture";
        return Err(Failure::usage(message.to_owned()));
    }
    let asks = args.chat || args.system.is_some() || !message.pictures.is_empty();
    let chat = !args.raw && (asks || engine.has_chat_template());
    let prompt = if chat {
        let system = args.system.iter().map(|text| Message::new(Role::System, text));
        Prompt::Chat(system.chain([message]).collect())
    } else {
        Prompt::Text(message.content)
    };
    let mut session = engine.session(SessionOptions::default())?;
    let request = Request { grammar, ..args.how.request(prompt) };
    let answered =
        answer(&mut session, request, Some(&args.how.device), &mut |id, piece| match (args.json, args.stream) {
            (false, _) => answer::print(piece),
            (true, true) => Ok(writeln!(std::io::stdout(), "{}", json!({ "token": id, "text": piece }))?),
            (true, false) => Ok(()),
        })?;

    if args.json {
        writeln!(std::io::stdout(), "{}", answer::to_json(&answered))?;
    } else if !answered.text.ends_with('\n') {
        answer::print("\n")?;
    }
    if let Some(sources) = sources.filter(|_| !args.quiet) {
        say(sources);
    }
    if !args.quiet {
        say(answer::stats_line(&answered.stats, &answered.reason));
    }
    if answered.reason == StopReason::Cancelled { Err(Failure::Interrupted) } else { Ok(()) }
}
