//! How a command ends when it does not end well: one line for the reader, one exit code for the script.

use std::{io, path::Path};

use thermocline_engine::Error;

/// What a command returns.
pub type Outcome<T = ()> = Result<T, Failure>;

/// The reason a command stopped.
#[derive(Debug)]
pub enum Failure {
    /// The engine refused; the error says what, where, expected and got.
    Engine(Error),
    /// The command line or its input makes no sense.
    Usage {
        /// What is wrong.
        message: String,
        /// What would work.
        hint: Option<String>,
    },
    /// Standard output or a file could not be written.
    Output(String),
    /// Ctrl-C.
    Interrupted,
    /// Whoever read our standard output has had enough (`| head`). Not an error.
    PipeClosed,
}

impl Failure {
    /// A [`Failure::Usage`] without a hint.
    pub fn usage(message: impl Into<String>) -> Self {
        Failure::Usage { message: message.into(), hint: None }
    }

    /// A file the user named could not be read.
    pub fn read(path: &Path, error: io::Error) -> Self {
        Failure::Engine(Error::io("read", path, error))
    }

    /// A file the user asked for could not be written.
    pub fn write(path: &Path, error: io::Error) -> Self {
        Failure::Engine(Error::io("write", path, error))
    }

    /// 0 reader gone, 2 bad input or usage, 130 interrupted, 1 anything else.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::PipeClosed => 0,
            Failure::Usage { .. } => 2,
            Failure::Interrupted => 130,
            Failure::Output(_) => 1,
            Failure::Engine(error) => match error {
                Error::Io { action, .. } => match *action {
                    "open" | "read" | "map" => 2,
                    _ => 1,
                },
                Error::Memory { .. } | Error::Stopped(_) => 1,
                _ => 2,
            },
        }
    }

    /// The line after `error: `, if there is anything to say.
    pub fn message(&self) -> Option<String> {
        match self {
            Failure::PipeClosed | Failure::Interrupted => None,
            Failure::Usage { message, .. } | Failure::Output(message) => Some(message.clone()),
            Failure::Engine(error) => Some(error.to_string()),
        }
    }

    /// What the user could do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Failure::Usage { hint, .. } => hint.clone(),
            Failure::Engine(Error::ContextFull { .. }) => {
                Some("a larger --context, a shorter prompt, or --on-full shift".to_owned())
            }
            Failure::Engine(Error::Memory { .. }) => {
                Some("a smaller --context or --kv-type q8_0 needs less memory".to_owned())
            }
            Failure::Engine(Error::Unsupported { what, .. }) if *what == "architecture" => {
                Some("`thermocline inspect FILE` still shows what is in the file".to_owned())
            }
            _ => None,
        }
    }

    /// Prints `error: ...` (and `hint: ...`) to standard error.
    pub fn report(&self) {
        if let Some(message) = self.message() {
            eprintln!("error: {}", one_line(&message));
        }
        if let Some(hint) = self.hint() {
            eprintln!("hint: {hint}");
        }
    }
}

/// Control characters of hostile file contents must neither break the one line nor reach the terminal.
pub fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Engine(error)
    }
}

/// Errors of writing to standard output.
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
    fn exit_codes() {
        let missing = io::Error::from(io::ErrorKind::NotFound);
        assert_eq!(Failure::read(Path::new("m"), missing).exit_code(), 2);
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert_eq!(Failure::write(Path::new("m"), full).exit_code(), 1);
        assert_eq!(Failure::from(io::Error::from(io::ErrorKind::BrokenPipe)).exit_code(), 0);
        assert_eq!(Failure::Engine(Error::ContextFull { wanted: 2, available: 1 }).exit_code(), 2);
    }

    #[test]
    fn control_characters_do_not_pass() {
        assert_eq!(one_line("a\n\u{1b}[31mb"), "a\u{fffd}\u{fffd}[31mb");
    }
}
