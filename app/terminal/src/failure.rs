//! The failure of a command: a line for the user and an exit code for scripts.

use std::{io, path::Path};

use thermocline_engine::{Error, FileAction, ScarceMemory};

use crate::standard_error::say;

/// Result of a command.
pub type Outcome<T = ()> = Result<T, Failure>;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The engine failed. Its error says what failed, where, and the expected and actual values.
    Engine(Error),
    /// The command line or its input is invalid.
    Usage {
        /// The defect.
        message: String,
        /// The remedy.
        hint: Option<String>,
    },
    /// No window could be opened. A headline, and one line per attempt.
    Window(Vec<String>),
    /// Standard output or a file could not be written.
    Output(String),
    /// A model server failed to answer. The sentence names the server.
    Remote(String),
    /// Ctrl-C.
    Interrupted,
    /// The reader of standard output has closed it (`| head`). Not an error.
    PipeClosed,
}

impl Failure {
    /// Creates a [`Failure::Usage`] without a hint.
    pub fn usage(message: impl Into<String>) -> Self {
        Failure::Usage { message: message.into(), hint: None }
    }

    /// Creates the failure of reading a file that the user named.
    pub fn read(path: &Path, error: io::Error) -> Self {
        Failure::Engine(Error::io(FileAction::Read, path, error))
    }

    /// Creates the failure of writing a file that the user asked for.
    pub fn write(path: &Path, error: io::Error) -> Self {
        Failure::Engine(Error::io(FileAction::Write, path, error))
    }

    /// Returns the exit code: 0 if the reader has gone, 2 for bad input or usage, 130 for an
    /// interruption, else 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::PipeClosed => 0,
            Failure::Usage { .. } | Failure::Window(_) => 2,
            Failure::Interrupted => 130,
            Failure::Output(_) | Failure::Remote(_) => 1,
            Failure::Engine(error) => match error {
                Error::Io { action: FileAction::Open | FileAction::Read | FileAction::Map, .. } => 2,
                Error::Io { .. } => 1,
                Error::Memory { .. } | Error::Stopped(_) => 1,
                _ => 2,
            },
        }
    }

    /// Returns the text after `error: `; `None` if nothing is printed.
    pub fn message(&self) -> Option<String> {
        match self {
            Failure::PipeClosed | Failure::Interrupted => None,
            Failure::Usage { message, .. } | Failure::Output(message) | Failure::Remote(message) => {
                Some(message.clone())
            }
            Failure::Window(lines) => lines.first().cloned(),
            Failure::Engine(error) => Some(error.to_string()),
        }
    }

    /// Returns the text after `hint: `, a remedy for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            Failure::Usage { hint, .. } => hint.clone(),
            Failure::Engine(Error::ContextFull { .. }) => {
                Some("use a larger --context, a shorter prompt, or --on-full shift".to_owned())
            }
            Failure::Engine(Error::Memory { kind: ScarceMemory::Gpu, .. }) => {
                Some("use a larger --vram, or --device cpu".to_owned())
            }
            Failure::Engine(Error::Memory { .. }) => {
                Some("a smaller --context or --kv-type q8_0 needs less memory".to_owned())
            }
            Failure::Engine(Error::UnknownArchitecture { .. }) => {
                Some("`thermocline inspect FILE` still shows the contents of the file".to_owned())
            }
            _ => None,
        }
    }

    /// Prints `error: ...` (and `hint: ...`) to standard error.
    pub fn report(&self) {
        if let Some(message) = self.message() {
            say(format_args!("error: {}", one_line(&message)));
        }
        if let Failure::Window(lines) = self {
            lines.iter().skip(1).for_each(|line| say(format_args!("  {}", one_line(line))));
        }
        if let Some(hint) = self.hint() {
            say(format_args!("hint: {hint}"));
        }
    }
}

/// Puts `text` on one line without control characters, which could control the terminal. A line
/// break and the space around it become one space.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for part in text.split(['\n', '\r']).filter(|part| !part.trim().is_empty()) {
        if !line.is_empty() {
            line.truncate(line.trim_end().len());
            line.push(' ');
        }
        let part = if line.is_empty() { part } else { part.trim_start() };
        line.extend(part.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }));
    }
    line
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Engine(error)
    }
}

/// Converts errors of writing to standard output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::PipeClosed,
            _ => Failure::Output(format!("cannot write to standard output: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_code_depends_on_the_kind_of_failure() {
        let missing = io::Error::from(io::ErrorKind::NotFound);
        assert_eq!(Failure::read(Path::new("m"), missing).exit_code(), 2);
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert_eq!(Failure::write(Path::new("m"), full).exit_code(), 1);
        assert_eq!(Failure::from(io::Error::from(io::ErrorKind::BrokenPipe)).exit_code(), 0);
        assert_eq!(Failure::Engine(Error::ContextFull { wanted: 2, at_least: false, available: 1 }).exit_code(), 2);
    }

    #[test]
    fn remedies_and_exit_codes_follow_the_kind_and_no_words() {
        for words in ["architecture", "open", "read", "write", "KV cache", "truncated"] {
            let (got, supported) = (words.to_owned(), words.to_owned());
            let unsupported = Error::unsupported(words, got.clone(), supported.clone());
            assert_eq!(Failure::Engine(unsupported).hint(), None);
            let unknown = Failure::Engine(Error::UnknownArchitecture { got, supported });
            assert!(unknown.hint().is_some_and(|hint| hint.contains("inspect")) && unknown.exit_code() == 2);
            let memory = |kind| Failure::Engine(Error::memory(kind, words, 2, 1));
            assert!(memory(ScarceMemory::Gpu).hint().is_some_and(|hint| hint.contains("--vram")));
            assert!(memory(ScarceMemory::KvCache).hint().is_some_and(|hint| hint.contains("--context")));
            let code = |action| Failure::Engine(Error::io(action, words, io::Error::other(words))).exit_code();
            for input in [FileAction::Open, FileAction::Read, FileAction::Map] {
                assert_eq!(code(input), 2, "{input}");
            }
            for output in [FileAction::Create, FileAction::Write, FileAction::Rename, FileAction::Start] {
                assert_eq!(code(output), 1, "{output}");
            }
        }
    }

    #[test]
    fn one_line_replaces_control_characters_and_line_breaks() {
        assert_eq!(one_line("a\n\u{1b}[31mb"), "a \u{fffd}[31mb");
        assert_eq!(one_line("Validation Error\r\n\n  Caused by:\n    why\n"), "Validation Error Caused by: why");
        assert_eq!((one_line(" a\tb "), one_line("\n\n")), (" a\u{fffd}b ".to_owned(), String::new()));
    }
}
