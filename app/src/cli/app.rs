//! The program without a command: opens the window, or chats in the terminal if there is no
//! display.

use std::{
    io::IsTerminal,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use clap::{Args, CommandFactory};

use crate::cli::{
    Cli,
    chat::{self, ChatArgs},
};
use thermocline_host::{folders::Folders, library::ModelId};
use thermocline_terminal::{
    failure::{Failure, Outcome, one_line},
    standard_error::say,
};
use thermocline_window::opening::NoWindow;

/// Options of the window.
#[derive(Debug, Default, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct AppArgs {
    /// Model to open in the window: a GGUF file or a Hugging Face folder [default: the last used
    /// model]
    #[arg(value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Keep all data in a folder beside the program. All commands use this folder from then on
    #[arg(long, conflicts_with = "data")]
    portable: bool,
    /// Keep chats, settings and models in this folder [default: the system's folders]
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
}

impl AppArgs {
    fn folders(&self) -> Outcome<Folders> {
        let nowhere =
            || Failure::usage("the user has no home folder to keep chats in; --data FOLDER sets another folder");
        match &self.data {
            Some(folder) => Ok(Folders::below(folder)),
            None if self.portable => Folders::portable().map_err(|why| Failure::usage(format!("--portable: {why}"))),
            None => Folders::detect().ok_or_else(nowhere),
        }
    }
}

/// Similarity of two names, from 0 to 1, above which one is probably a misspelling of the other.
const ALIKE: f64 = 0.8;

/// Refuses a first argument that names neither a command nor a model.
fn unknown(name: &str) -> Failure {
    let commands = Cli::command();
    let names = commands.get_subcommands().filter(|command| !command.is_hide_set()).map(clap::Command::get_name);
    let alike = names.map(|command| (strsim::jaro_winkler(command, name), command)).filter(|(alike, _)| *alike > ALIKE);
    let nearest = alike.max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, command)| command);
    let hint = match nearest {
        Some(command) => format!("did you mean `thermocline {command}`?"),
        None => "`thermocline --help` lists the commands".to_owned(),
    };
    let message = format!("{}: expected a command, a model's file or its folder", one_line(name));
    Failure::Usage { message, hint: Some(hint) }
}

/// Opens the window. Without a display, or if the window fails to open, starts a chat in the
/// terminal.
pub fn app(args: &AppArgs) -> Outcome {
    // Opening the model reports a missing path. A plain word may be a misspelt command.
    if let Some(name) = args.model.as_deref().filter(|path| !path.exists()).and_then(Path::to_str)
        && !name.contains(['/', '\\', '.'])
    {
        return Err(unknown(name));
    }
    if !has_display() {
        if args.portable {
            // Create the folder before the chat looks for its input history.
            args.folders()?;
        }
        return in_terminal(args, None);
    }
    let folders = args.folders()?;
    #[cfg(windows)]
    thermocline_terminal::console::leave_if_alone();
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let model = args.model.as_deref().map(|path| ModelId::Path(absolute(path)));
    // Desktop libraries panic if a part of the desktop is missing.
    let opened = catch_unwind(AssertUnwindSafe(|| thermocline_window::run(&folders, model.as_ref())));
    match opened.unwrap_or_else(|_| Err(NoWindow::Said("a library of the desktop is missing".to_owned()))) {
        Ok(()) => Ok(()),
        Err(why) => in_terminal(args, Some(why)),
    }
}

fn in_terminal(args: &AppArgs, why: Option<NoWindow>) -> Outcome {
    if let Some(why) = why {
        let mut lines = why.lines();
        if !std::io::stdin().is_terminal() {
            return Err(Failure::Window(lines));
        }
        lines.push("starting a chat in the terminal instead".to_owned());
        lines.iter().for_each(|line| say(format_args!("[{}]", one_line(line))));
    }
    chat::chat(&ChatArgs::on(args.model.clone()))
}

/// `true` if there is a display. Only X11 and Wayland systems may have no display.
fn has_display() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    cfg!(any(windows, target_os = "macos")) || set("WAYLAND_DISPLAY") || set("WAYLAND_SOCKET") || set("DISPLAY")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_word_is_refused_with_the_command_it_resembles() {
        for (word, command) in [("benhc", "bench"), ("sreve", "serve"), ("chats", "chat"), ("devces", "devices")] {
            let hint = unknown(word).hint().unwrap();
            assert!(hint.contains(&format!("`thermocline {command}`")), "{word}: {hint}");
        }
        assert!(unknown("xyzzy").hint().unwrap().contains("--help"));
    }
}
