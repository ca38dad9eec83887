//! Messages from a person at a line editor, or from a pipe.

use std::{
    fs,
    io::{BufRead, IsTerminal},
    path::PathBuf,
};

use rustyline::{Cmd, Config, DefaultEditor, KeyCode, KeyEvent, Modifiers, config::Configurer, error::ReadlineError};

use crate::{
    cli::failure::{Failure, Outcome},
    folders::Folders,
};

const PROMPT: &str = "> ";
const CONTINUED: &str = "… ";
const FENCE: &str = "\"\"\"";

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// One message, of one or more lines.
    Message(String),
    /// The end of the input, or the wish to leave.
    End,
}

/// A source of messages.
pub struct Input {
    source: Source,
    interrupted: bool,
}

enum Source {
    Editor { editor: Box<DefaultEditor>, history: Option<PathBuf> },
    Pipe { line: usize },
}

/// One line as it came.
enum Raw {
    Text(String),
    Interrupted,
    End,
}

impl Input {
    /// A line editor on a terminal, else standard input line by line. With `keep`, what is typed is remembered in the
    /// user's data folder.
    pub fn new(keep: bool) -> Outcome<Self> {
        let source = if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
            editor(keep).map_err(|error| Failure::Output(format!("cannot use the terminal: {error}")))?
        } else {
            Source::Pipe { line: 0 }
        };
        Ok(Input { source, interrupted: false })
    }

    /// Whether a person is typing.
    pub fn is_interactive(&self) -> bool {
        matches!(self.source, Source::Editor { .. })
    }

    /// The next message. Ctrl-C clears the line; on an empty one it asks for a second press, which ends.
    pub fn read(&mut self) -> Outcome<Line> {
        let mut message = Partial::default();
        loop {
            match self.source.read(if message.is_empty() { PROMPT } else { CONTINUED })? {
                Raw::Text(line) => {
                    self.interrupted = false;
                    if let Some(text) = message.push(&line) {
                        self.source.remember(&text);
                        return Ok(Line::Message(text));
                    }
                }
                Raw::Interrupted if !message.is_empty() => message = Partial::default(),
                Raw::Interrupted if self.interrupted => return Ok(Line::End),
                Raw::Interrupted => {
                    self.interrupted = true;
                    println!("(Ctrl-C again or Ctrl-D to leave)");
                }
                Raw::End => return Ok(message.end().map_or(Line::End, Line::Message)),
            }
        }
    }
}

impl Source {
    fn read(&mut self, prompt: &str) -> Outcome<Raw> {
        match self {
            Source::Editor { editor, .. } => match editor.readline(prompt) {
                Ok(text) => Ok(Raw::Text(text)),
                Err(ReadlineError::Interrupted) => Ok(Raw::Interrupted),
                Err(ReadlineError::Eof) => Ok(Raw::End),
                Err(error) => Err(Failure::Output(format!("cannot read from the terminal: {error}"))),
            },
            Source::Pipe { line } => {
                *line += 1;
                let mut bytes = Vec::new();
                let read = std::io::stdin().lock().read_until(b'\n', &mut bytes);
                if read.map_err(|error| Failure::usage(format!("cannot read standard input: {error}")))? == 0 {
                    return Ok(Raw::End);
                }
                let mut text = String::from_utf8(bytes)
                    .map_err(|_| Failure::usage(format!("standard input, line {line}: expected UTF-8 text")))?;
                text.truncate(text.trim_end_matches(['\n', '\r']).len());
                Ok(Raw::Text(text))
            }
        }
    }

    /// History that cannot be kept is not worth a word in the middle of a chat.
    fn remember(&mut self, text: &str) {
        if let Source::Editor { editor, history } = self {
            let _ = editor.add_history_entry(text);
            if let Some(path) = history {
                let _ = editor.append_history(path);
            }
        }
    }
}

fn editor(keep: bool) -> rustyline::Result<Source> {
    let config = Config::builder().max_history_size(1000)?.history_ignore_space(true).build();
    let mut editor = DefaultEditor::with_config(config)?;
    editor.set_auto_add_history(false);
    editor.bind_sequence(KeyEvent(KeyCode::Enter, Modifiers::ALT), Cmd::Newline);
    let history = if keep { history_file() } else { None };
    if let Some(path) = &history {
        // Absent at the first start.
        let _ = editor.load_history(path);
    }
    Ok(Source::Editor { editor: Box::new(editor), history })
}

/// In the user's data folder, which is made if need be.
fn history_file() -> Option<PathBuf> {
    let path = Folders::usual()?.history();
    fs::create_dir_all(path.parent()?).ok()?;
    Some(path)
}

/// A message of which the last line may still be missing.
#[derive(Debug, Default)]
struct Partial {
    text: String,
    fenced: bool,
    started: bool,
}

impl Partial {
    fn is_empty(&self) -> bool {
        !self.started
    }

    /// Adds a line; gives the message if it is complete.
    fn push(&mut self, line: &str) -> Option<String> {
        let mut line = line;
        if !self.started
            && let Some(rest) = line.trim_start().strip_prefix(FENCE)
        {
            self.fenced = true;
            line = rest;
            self.started = true;
            if line.is_empty() {
                return None;
            }
        } else if self.started && !(self.text.is_empty() && self.fenced) {
            self.text.push('\n');
        }
        self.started = true;
        if self.fenced {
            match line.trim_end().strip_suffix(FENCE) {
                Some(last) => {
                    self.text.push_str(last);
                    return self.end().map(|text| text.trim_end_matches('\n').to_owned());
                }
                None => self.text.push_str(line),
            }
            return None;
        }
        match line.strip_suffix('\\') {
            Some(part) => {
                self.text.push_str(part);
                None
            }
            None => {
                self.text.push_str(line);
                self.end()
            }
        }
    }

    /// What there is, if anything.
    fn end(&mut self) -> Option<String> {
        let partial = std::mem::take(self);
        partial.started.then_some(partial.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(lines: &[&str]) -> Vec<String> {
        let mut partial = Partial::default();
        let mut messages: Vec<String> = lines.iter().filter_map(|line| partial.push(line)).collect();
        messages.extend(partial.end());
        messages
    }

    #[test]
    fn one_line_is_one_message() {
        assert_eq!(messages(&["hello", "", "world"]), ["hello", "", "world"]);
    }

    #[test]
    fn a_backslash_continues() {
        assert_eq!(messages(&["one\\", "two\\", "three", "four"]), ["one\ntwo\nthree", "four"]);
    }

    #[test]
    fn a_fence_holds_lines_together() {
        assert_eq!(messages(&["\"\"\"one", "", "two\"\"\"", "three"]), ["one\n\ntwo", "three"]);
        assert_eq!(messages(&["\"\"\"", "one", "two", "\"\"\"", "three"]), ["one\ntwo", "three"]);
        assert_eq!(messages(&["\"\"\"one\"\"\""]), ["one"]);
    }

    #[test]
    fn what_is_unfinished_at_the_end_counts() {
        assert_eq!(messages(&["\"\"\"one", "two"]), ["one\ntwo"]);
        assert_eq!(messages(&["one\\"]), ["one"]);
    }
}
