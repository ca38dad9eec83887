//! `thermocline chat`: a conversation in the terminal. [`input`] reads messages from a line editor
//! or a pipe. [`command`] parses slash commands. [`conversation`] holds the messages and generates
//! answers, [`remote`] requests answers from a server, and [`saved`] writes and reads files.

mod command;
mod conversation;
mod input;
mod remote;
mod saved;

use std::io::IsTerminal;

use clap::Args;
use command::ChatCommand;
use conversation::{Partner, TerminalConversation};
use input::Input;
use remote::RemoteOptions;

use thermocline_host::units;
use thermocline_terminal::{
    answer,
    answer_options::AnswerOptions,
    failure::{Failure, Outcome},
    model_options::ModelOptions,
};

use super::{
    attach::{self, AttachOptions},
    picture_files::{self, PictureOptions},
};

const EXAMPLES: &str = "\
Examples:
  thermocline chat
  thermocline chat -m model.gguf --system \"Answer in one sentence.\" -c 8k
  thermocline chat --remote http://192.168.1.20:8000 --key-file key.txt
  printf 'Hello!\\n/stats\\n' | thermocline chat -m model.gguf

In the chat, /help lists the commands, Ctrl-C stops an answer, and Ctrl-D ends the chat.";

/// Chats in the terminal.
#[derive(Debug, Default, Args)]
#[command(after_help = EXAMPLES)]
pub struct ChatArgs {
    /// System prompt
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    #[command(flatten)]
    files: AttachOptions,
    #[command(flatten)]
    pictures: PictureOptions,
    /// Do not store the input history
    #[arg(long)]
    no_history: bool,
    #[command(flatten)]
    server: RemoteOptions,
    #[command(flatten)]
    how: AnswerOptions,
}

impl ChatArgs {
    /// Creates options for a chat with `model`, or with the built-in model.
    pub fn on(model: Option<std::path::PathBuf>) -> Self {
        let model = ModelOptions { model, ..ModelOptions::default() };
        ChatArgs { how: AnswerOptions { model, ..AnswerOptions::default() }, ..ChatArgs::default() }
    }
}

/// Runs the command.
pub fn chat(args: &ChatArgs) -> Outcome {
    let documents = args.files.open()?;
    let pictures = args.pictures.open()?;
    let partner = match args.server.open(&args.how)? {
        Some(remote) => Partner::Server(remote),
        None => Partner::engine(&args.how.open()?, args.how.sampling(), args.how.length.clone())?,
    };
    let mut conversation = TerminalConversation::new(partner, args.system.clone());
    for document in &documents {
        conversation.attach(document)?;
    }
    for picture in pictures {
        conversation.add_picture(picture)?;
    }
    let mut input = Input::new(!args.no_history)?;
    // Piped input comes from a program. It gets no greeting, and its first error ends the chat.
    let interactive = input.is_interactive();
    if interactive {
        answer::print(&format!("Thermocline {} · {}\n", env!("CARGO_PKG_VERSION"), conversation.partner()))?;
        answer::print("Type a message. /help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves.\n\n")?;
    }
    loop {
        let Some(text) = input.read()? else { return Ok(()) };
        let done = match ChatCommand::parse(&text) {
            Ok(Some(ChatCommand::Quit)) => return Ok(()),
            Ok(Some(command)) => handle_command(command, &mut conversation),
            Ok(None) if text.trim().is_empty() => continue,
            Ok(None) => conversation.send(text),
            Err(message) => Err(Failure::usage(message)),
        };
        match done {
            Ok(()) => {}
            Err(failure @ (Failure::PipeClosed | Failure::Output(_))) => return Err(failure),
            Err(failure) if interactive => failure.report(),
            Err(failure) => return Err(failure),
        }
        if interactive {
            answer::print("\n")?;
        }
    }
}

fn handle_command(command: ChatCommand, conversation: &mut TerminalConversation) -> Outcome {
    match command {
        ChatCommand::Help => answer::print(command::HELP),
        ChatCommand::Reset => {
            conversation.reset();
            answer::print("(a new conversation)\n")
        }
        ChatCommand::Attach(path) => {
            let document = attach::open(&path)?;
            conversation.attach(&document)?;
            answer::print(&format!("({} is attached to the next message)\n", document.name))
        }
        ChatCommand::Image(path) => {
            let tokens = conversation.add_picture(picture_files::open(&path)?)?;
            let tokens = tokens.map(|tokens| format!(", {tokens} tokens")).unwrap_or_default();
            answer::print(&format!("({}{tokens}, goes with the next message)\n", path.display()))
        }
        ChatCommand::System(text) => {
            let said = if text.is_empty() { "(no system prompt)\n" } else { "(system prompt set)\n" };
            conversation.set_system(text);
            answer::print(said)
        }
        ChatCommand::Regenerate => conversation.regenerate(),
        ChatCommand::Device => answer::print(&conversation.device()?),
        ChatCommand::RetryDevice => conversation.retry_device(),
        ChatCommand::Sparsity(choice) => answer::print(&conversation.sparsity(choice)?),
        ChatCommand::Vram(bytes) => answer::print(&conversation.vram(bytes)?),
        ChatCommand::Adaptive(on) => answer::print(&conversation.adaptive(on)?),
        ChatCommand::Stats => answer::print(&conversation.stats()),
        ChatCommand::Save(path) => {
            conversation.save(&path)?;
            answer::print(&format!("(saved to {})\n", path.display()))
        }
        ChatCommand::Load(path) => {
            let messages = conversation.load(&path)?;
            answer::print(&format!("({} from {})\n", units::counted(messages, "message"), path.display()))
        }
        ChatCommand::Quit => Ok(()),
    }
}

/// `true` if standard error is a terminal. Statistics then follow every answer.
fn shows_figures() -> bool {
    std::io::stderr().is_terminal() && std::io::stdin().is_terminal()
}
