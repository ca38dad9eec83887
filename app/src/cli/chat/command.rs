//! Commands of the terminal chat, which start with a slash.

use std::path::PathBuf;

use thermocline_engine::session::SparsityChoice;

use thermocline_host::units::parse_bytes;

/// The text of `/help`.
pub const HELP: &str = "\
/help          show this list
/reset         forget the conversation (the system prompt stays)
/attach FILE   attach a file to the next message: a picture, text, code, Markdown, PDF or docx
/image FILE    put a picture before the text of the next message
/system TEXT   set the system prompt; without TEXT, remove it
/regenerate    answer the last message again
/device        show the device that computes the model; `/device retry` tries a lost GPU again
/sparsity MODE set the sparsity mode: auto, dense, exact, predicted, threshold
/vram BYTES    set the VRAM budget, like 6GiB; with 0, only the CPU computes
/adaptive on   move neurons that fire often into VRAM while generating; `off` stops this
/stats         show the statistics of the last answer
/save FILE     write the conversation to a new file: JSON if it ends in .json, else Markdown
/load FILE     go on with a conversation that /save or the window has written
/quit          leave (also Ctrl-D, or Ctrl-C twice)

To write several lines, end a line with \\, or put \"\"\" before the first line and after the last.
Pasted lines stay together.
To begin a message with a slash, write two slashes (//).
";

/// A command.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ChatCommand {
    Help,
    Reset,
    System(String),
    Attach(PathBuf),
    Image(PathBuf),
    Regenerate,
    Device,
    RetryDevice,
    /// Without a value, this command and the next two show the current setting.
    Sparsity(Option<SparsityChoice>),
    Vram(Option<u64>),
    Adaptive(Option<bool>),
    Stats,
    Save(PathBuf),
    Load(PathBuf),
    Quit,
}

impl ChatCommand {
    /// Parses `text`. Returns `None` for an ordinary message, and an explanation for an invalid
    /// command.
    pub fn parse(text: &str) -> Result<Option<ChatCommand>, String> {
        let Some(line) = text.strip_prefix('/').filter(|rest| !rest.starts_with('/')) else {
            return Ok(None);
        };
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        let command = match name {
            "system" => return Ok(Some(ChatCommand::System(rest.to_owned()))),
            "attach" if rest.is_empty() => return Err("/attach needs the name of a file".to_owned()),
            "attach" => return Ok(Some(ChatCommand::Attach(rest.into()))),
            "image" if rest.is_empty() => return Err("/image needs the name of a file".to_owned()),
            "image" => return Ok(Some(ChatCommand::Image(rest.into()))),
            "save" if rest.is_empty() => return Err("/save needs the name of a file".to_owned()),
            "save" => return Ok(Some(ChatCommand::Save(rest.into()))),
            "load" if rest.is_empty() => return Err("/load needs the name of a file".to_owned()),
            "load" => return Ok(Some(ChatCommand::Load(rest.into()))),
            "help" | "?" => ChatCommand::Help,
            "reset" => ChatCommand::Reset,
            "regenerate" => ChatCommand::Regenerate,
            "device" if rest == "retry" => return Ok(Some(ChatCommand::RetryDevice)),
            "device" => ChatCommand::Device,
            "sparsity" => return choice(rest, str::parse).map(|choice| Some(ChatCommand::Sparsity(choice))),
            "vram" => return choice(rest, parse_bytes).map(|bytes| Some(ChatCommand::Vram(bytes))),
            "adaptive" => return choice(rest, on_or_off).map(|on| Some(ChatCommand::Adaptive(on))),
            "stats" => ChatCommand::Stats,
            "quit" | "exit" => ChatCommand::Quit,
            _ => return Err(format!("there is no command /{name}; /help lists the commands")),
        };
        if rest.is_empty() { Ok(Some(command)) } else { Err(format!("/{name} takes no argument")) }
    }
}

/// Parses the argument of a command, if it has one.
fn choice<T, E: ToString>(rest: &str, parse: impl FnOnce(&str) -> Result<T, E>) -> Result<Option<T>, String> {
    if rest.is_empty() { Ok(None) } else { parse(rest).map(Some).map_err(|error| error.to_string()) }
}

fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("expected on or off, got {text}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_distinguishes_commands_and_messages() {
        assert_eq!(ChatCommand::parse("hello /reset"), Ok(None));
        assert_eq!(ChatCommand::parse("//etc/passwd"), Ok(None));
        assert_eq!(ChatCommand::parse("/reset"), Ok(Some(ChatCommand::Reset)));
        assert_eq!(ChatCommand::parse("/system  Be brief. "), Ok(Some(ChatCommand::System("Be brief.".to_owned()))));
        assert_eq!(ChatCommand::parse("/system"), Ok(Some(ChatCommand::System(String::new()))));
        assert_eq!(ChatCommand::parse("/save my chat.md"), Ok(Some(ChatCommand::Save("my chat.md".into()))));
        assert_eq!(ChatCommand::parse("/load my chat.md"), Ok(Some(ChatCommand::Load("my chat.md".into()))));
        assert_eq!(ChatCommand::parse("/attach a b.pdf"), Ok(Some(ChatCommand::Attach("a b.pdf".into()))));
        assert_eq!(ChatCommand::parse("/image a b.png"), Ok(Some(ChatCommand::Image("a b.png".into()))));
        assert_eq!(ChatCommand::parse("/system two\nlines"), Ok(Some(ChatCommand::System("two\nlines".to_owned()))));
        assert_eq!(ChatCommand::parse("/device"), Ok(Some(ChatCommand::Device)));
        assert_eq!(ChatCommand::parse("/device retry"), Ok(Some(ChatCommand::RetryDevice)));
        assert_eq!(ChatCommand::parse("/sparsity"), Ok(Some(ChatCommand::Sparsity(None))));
        let exact = SparsityChoice::Mode(thermocline_engine::runtime::Sparsity::Exact);
        assert_eq!(ChatCommand::parse("/sparsity exact"), Ok(Some(ChatCommand::Sparsity(Some(exact)))));
        assert_eq!(ChatCommand::parse("/vram 2GiB"), Ok(Some(ChatCommand::Vram(Some(2 << 30)))));
        assert_eq!(ChatCommand::parse("/vram"), Ok(Some(ChatCommand::Vram(None))));
        assert_eq!(ChatCommand::parse("/adaptive off"), Ok(Some(ChatCommand::Adaptive(Some(false)))));
        for bad in [
            "/",
            "/sparsity most",
            "/vram much",
            "/adaptive perhaps",
            "/device gpu",
            "/nonsense",
            "/save",
            "/load",
            "/attach",
            "/image",
            "/reset now",
            "/ reset",
        ] {
            assert!(ChatCommand::parse(bad).is_err(), "{bad}");
        }
    }
}
