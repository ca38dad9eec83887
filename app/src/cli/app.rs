//! What happens without a command: the window, or a chat in the terminal where there can be none.

use std::{
    io::IsTerminal,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use clap::Args;

use super::{
    chat::{self, ChatArgs},
    failure::{Failure, Outcome},
};
use crate::{folders::Folders, library::ModelId, ui};

/// Options of the window.
#[derive(Debug, Default, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct AppArgs {
    /// A model to open in the window: a GGUF file or a Hugging Face folder [default: the one used last]
    #[arg(value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Keep everything in a folder beside the program, which all commands use from then on
    #[arg(long, conflicts_with = "data")]
    portable: bool,
    /// Keep chats, settings and models in this folder [default: the system's places]
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
}

impl AppArgs {
    fn folders(&self) -> Outcome<Folders> {
        let nowhere = || Failure::usage("no home folder to keep chats in; --data FOLDER names another place");
        match &self.data {
            Some(folder) => Ok(Folders::below(folder)),
            None if self.portable => Folders::portable().map_err(|why| Failure::usage(format!("--portable: {why}"))),
            None => Folders::usual().ok_or_else(nowhere),
        }
    }
}

/// Opens the window. Without a display, or where none can be opened, a person at a terminal gets a chat there.
pub fn app(args: &AppArgs) -> Outcome {
    if !has_display() {
        if args.portable {
            // Made before the chat asks where to keep what is typed.
            args.folders()?;
        }
        return in_terminal(args, None);
    }
    let folders = args.folders()?;
    #[cfg(windows)]
    super::console::leave_if_alone();
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let model = args.model.as_deref().map(|path| ModelId::Path(absolute(path)));
    // What libraries of the desktop lack they say by panicking.
    let opened = catch_unwind(AssertUnwindSafe(|| ui::run(folders, model)));
    match opened.unwrap_or_else(|_| Err("no window: a library of the desktop is missing".to_owned())) {
        Ok(()) => Ok(()),
        Err(why) => in_terminal(args, Some(why)),
    }
}

fn in_terminal(args: &AppArgs, why: Option<String>) -> Outcome {
    if let Some(why) = why {
        if !std::io::stdin().is_terminal() {
            return Err(Failure::usage(why));
        }
        eprintln!("[{why}; a chat in the terminal instead]");
    }
    chat::chat(&ChatArgs::on(args.model.clone()))
}

/// Whether there is a screen to put a window on. Elsewhere than on Linux and its like there always is one.
fn has_display() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    cfg!(any(windows, target_os = "macos")) || set("WAYLAND_DISPLAY") || set("WAYLAND_SOCKET") || set("DISPLAY")
}
