//! What starts with a slash.

use std::path::PathBuf;

/// Shown by `/help`.
pub const HELP: &str = "\
/help          this list
/reset         forget the conversation (the system prompt stays)
/system TEXT   set the system prompt; without TEXT, remove it
/regenerate    answer the last message again
/device        where the model is computed; `/device retry` tries a GPU that was given up again
/stats         figures of the last answer
/save FILE     write the conversation to a new file: JSON if it ends in .json, else Markdown
/quit          leave (also Ctrl-D, or Ctrl-C twice)

Several lines: end a line with \\, or put \"\"\" before the first and after the last. Pasted lines stay together.
A message that begins with a slash: write two (//).
";

/// A command.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Command {
    Help,
    Reset,
    System(String),
    Regenerate,
    Device,
    RetryDevice,
    Stats,
    Save(PathBuf),
    Quit,
}

impl Command {
    /// The command in `text`; `None` if it is an ordinary message, an explanation if it is neither.
    pub fn parse(text: &str) -> Result<Option<Command>, String> {
        let Some(line) = text.strip_prefix('/').filter(|rest| !rest.starts_with('/')) else {
            return Ok(None);
        };
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        let command = match name {
            "system" => return Ok(Some(Command::System(rest.to_owned()))),
            "save" if rest.is_empty() => return Err("/save needs the name of a file".to_owned()),
            "save" => return Ok(Some(Command::Save(rest.into()))),
            "help" | "?" => Command::Help,
            "reset" => Command::Reset,
            "regenerate" => Command::Regenerate,
            "device" if rest == "retry" => return Ok(Some(Command::RetryDevice)),
            "device" => Command::Device,
            "stats" => Command::Stats,
            "quit" | "exit" => Command::Quit,
            _ => return Err(format!("there is no command /{name}; /help lists them")),
        };
        if rest.is_empty() { Ok(Some(command)) } else { Err(format!("/{name} takes nothing after it")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_messages() {
        assert_eq!(Command::parse("hello /reset"), Ok(None));
        assert_eq!(Command::parse("//etc/passwd"), Ok(None));
        assert_eq!(Command::parse("/reset"), Ok(Some(Command::Reset)));
        assert_eq!(Command::parse("/system  Be brief. "), Ok(Some(Command::System("Be brief.".to_owned()))));
        assert_eq!(Command::parse("/system"), Ok(Some(Command::System(String::new()))));
        assert_eq!(Command::parse("/save my chat.md"), Ok(Some(Command::Save("my chat.md".into()))));
        assert_eq!(Command::parse("/system two\nlines"), Ok(Some(Command::System("two\nlines".to_owned()))));
        assert_eq!(Command::parse("/device"), Ok(Some(Command::Device)));
        assert_eq!(Command::parse("/device retry"), Ok(Some(Command::RetryDevice)));
        for bad in ["/", "/device gpu", "/nonsense", "/save", "/reset now", "/ reset"] {
            assert!(Command::parse(bad).is_err(), "{bad}");
        }
    }
}
