//! The one error type of the engine. Every variant says what went wrong, where, what was expected and what was found,
//! so that a caller can show it unchanged.

use std::{fmt, path::PathBuf};

use thermocline_shaders::KernelFeatures;

/// `Result` with the engine's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Where in a file something is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A byte offset from the start of the file.
    Offset(u64),
    /// A named field and its byte offset from the start of the file.
    Field {
        /// The field there: `tensor count`, ``length of key `general.name` ``.
        name: String,
        /// Where it starts.
        offset: u64,
    },
    /// A metadata key (GGUF) or a JSON path (`config.json`).
    Key(String),
    /// A tensor, by name.
    Tensor(String),
    /// The file as a whole.
    File,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Offset(at) => write!(f, " at byte {at}"),
            Location::Field { name, offset } => write!(f, ", {} at byte {offset}", Short(name)),
            Location::Key(key) => write!(f, ", key `{}`", Short(key)),
            Location::Tensor(name) => write!(f, ", tensor `{}`", Short(name)),
            Location::File => Ok(()),
        }
    }
}

/// Text from a file, which may be as long as the file, truncated to what a message has room for.
struct Short<'a>(&'a str);

impl fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LONGEST: usize = 200;
        match self.0.char_indices().nth(LONGEST) {
            Some((end, _)) => write!(f, "{}..", &self.0[..end]),
            None => f.write_str(self.0),
        }
    }
}

/// A file operation. It decides whether a failure is the fault of a command's input or of its output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileAction {
    /// Opening a file.
    Open,
    /// Reading a file.
    Read,
    /// Mapping a file into memory.
    Map,
    /// Creating a file or folder.
    Create,
    /// Writing a file.
    Write,
    /// Renaming a file; the error's path is the new name.
    Rename,
    /// Starting a program.
    Start,
}

impl fmt::Display for FileAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FileAction::Open => "open",
            FileAction::Read => "read",
            FileAction::Map => "map",
            FileAction::Create => "create",
            FileAction::Write => "write",
            FileAction::Rename => "rename to",
            FileAction::Start => "start",
        })
    }
}

/// The memory that there is too little of: it decides what helps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScarceMemory {
    /// RAM.
    Ram,
    /// GPU memory, or the budget for it.
    Gpu,
    /// Keys and values of a context, wherever they are.
    KvCache,
}

/// Kind of a GPU's failure: it decides what is tried next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuFailure {
    /// It is not fit for what was asked: it would fail again.
    Unfit,
    /// It is done without, and not asked again.
    GivenUp {
        /// True if it is in the list of adapters; otherwise its backend is done without.
        listed: bool,
        /// True if its driver is known to be bad and has not failed here.
        known: bool,
    },
    /// The driver refused a kernel, or was lost while it compiled or tried it.
    Refused {
        /// Name of the kernel.
        kernel: &'static str,
        /// Features that its text uses.
        used: KernelFeatures,
    },
    /// It did not answer.
    Hang,
    /// It was lost, or could not be opened, for a reason that may pass.
    Lost,
}

impl GpuFailure {
    /// The words before the reason of an error; none where the reason is a fallback's, which names the adapter itself.
    fn subject(&self, adapter: &str) -> String {
        match self {
            GpuFailure::GivenUp { .. } => String::new(),
            _ => format!("GPU {adapter}: "),
        }
    }
}

/// An error of the engine: what, where, expected, got.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused a file operation.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The operation.
        action: FileAction,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A file contradicts its format, or a model contradicts its architecture.
    #[error("{}{location}: expected {expected}, got {}", path.display(), Short(got))]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where in it.
        location: Location,
        /// The value the format requires there.
        expected: String,
        /// The value found.
        got: String,
        /// True if the file ends before its contents do, as an interrupted download does.
        truncated: bool,
    },
    /// A mapped file is not what it was: nothing that was read from it since can be used.
    #[error("{}: the file was truncated, or its disk went away, while it was open", path.display())]
    FileLost {
        /// The file.
        path: PathBuf,
    },
    /// A file that goes with a model, and is none by itself.
    #[error("{}: expected a model that writes text, got {got}", path.display())]
    Companion {
        /// The file.
        path: PathBuf,
        /// Description of what it is.
        got: String,
    },
    /// The file is well-formed but uses something this engine does not implement.
    #[error("{what} `{got}` is not supported (supported: {supported})")]
    Unsupported {
        /// The kind of thing: `tensor type`, `rope scaling`.
        what: &'static str,
        /// The one that was asked for.
        got: String,
        /// Supported values.
        supported: String,
    },
    /// No family of models has this architecture.
    #[error("architecture `{got}` is not supported (supported: {supported})")]
    UnknownArchitecture {
        /// The name in the file.
        got: String,
        /// Supported architectures.
        supported: String,
    },
    /// A caller's request is out of range.
    #[error("{what}: expected {expected}, got {got}")]
    Invalid {
        /// The option or argument.
        what: &'static str,
        /// Its domain.
        expected: String,
        /// The value passed.
        got: String,
    },
    /// Memory could not be had.
    #[error("{what}: {wanted} bytes wanted, {available} available")]
    Memory {
        /// Kind of the memory.
        kind: ScarceMemory,
        /// Purpose of the memory.
        what: &'static str,
        /// Bytes asked for.
        wanted: u64,
        /// Bytes that could be had.
        available: u64,
    },
    /// There is no such GPU.
    #[error("no GPU {wanted}: {there}")]
    NoGpu {
        /// The requested GPU, as the sentence goes on: `was found`, ``is called `x` ``, `has the number 7`.
        wanted: String,
        /// The adapters there are, or why there is none.
        there: String,
    },
    /// With the GPU the model is expected to be slower than on the CPU alone, and the quicker one was asked for.
    #[error("the CPU alone is expected to be quicker than with this GPU")]
    SlowGpu,
    /// A GPU cannot be used, or not any longer.
    #[error("{}{reason}", .failure.subject(.adapter))]
    Gpu {
        /// Its name.
        adapter: String,
        /// The driver's message, or the feature that is missing.
        reason: String,
        /// Kind of the failure.
        failure: GpuFailure,
    },
    /// A model computes what is no number: its weights are damaged, or its numbers overflow.
    #[error("the model's {what}: expected finite numbers, got {got}; its file is damaged, or its numbers overflow")]
    NotFinite {
        /// The numbers: `logits`, `hidden states`.
        what: &'static str,
        /// The one found.
        got: String,
    },
    /// The context is full and the caller did not ask for it to be shifted.
    #[error(
        "context full: {}{wanted} tokens wanted, the context holds {available}",
        if *at_least { "at least " } else { "" }
    )]
    ContextFull {
        /// Tokens the request needs.
        wanted: usize,
        /// It needs more than that, perhaps: they were not counted to the end.
        at_least: bool,
        /// Length of the context, in tokens.
        available: usize,
    },
    /// The caller's observer asked to stop.
    #[error("cancelled")]
    Cancelled,
    /// Training a predictor failed.
    #[error("training: {0}")]
    Training(String),
    /// A chat template failed or asked for too much.
    #[error("chat template: {0}")]
    Template(String),
    /// The engine thread is gone; the message says why.
    #[error("engine stopped: {0}")]
    Stopped(String),
}

impl Error {
    /// An [`Error::Malformed`] in a few words.
    pub fn malformed(
        path: impl Into<PathBuf>,
        location: Location,
        expected: impl Into<String>,
        got: impl fmt::Display,
    ) -> Self {
        let (path, expected, got) = (path.into(), expected.into(), got.to_string());
        Error::Malformed { path, location, expected, got, truncated: false }
    }

    /// Marks an [`Error::Malformed`] as one of a file that ends before its contents do.
    pub fn of_truncated_file(mut self) -> Self {
        if let Error::Malformed { truncated, .. } = &mut self {
            *truncated = true;
        }
        self
    }

    /// An [`Error::Invalid`] in a few words.
    pub fn invalid(what: &'static str, expected: impl Into<String>, got: impl fmt::Display) -> Self {
        Error::Invalid { what, expected: expected.into(), got: got.to_string() }
    }

    /// An [`Error::Memory`] in a few words.
    pub fn memory(kind: ScarceMemory, what: &'static str, wanted: u64, available: u64) -> Self {
        Error::Memory { kind, what, wanted, available }
    }

    /// An [`Error::Unsupported`] in a few words.
    pub fn unsupported(what: &'static str, got: impl fmt::Display, supported: impl fmt::Display) -> Self {
        Error::Unsupported { what, got: got.to_string(), supported: supported.to_string() }
    }

    /// An [`Error::Io`] in a few words.
    pub fn io(action: FileAction, path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Error::Io { action, path: path.into(), source }
    }
}

/// The core of an error of a driver or a library: the message of its innermost cause, in one line of at most 200
/// characters. The errors between say which of our calls failed, and belong in the log.
pub fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut inner = error;
    while let Some(cause) = inner.source() {
        inner = cause;
    }
    first_line(&inner.to_string())
}

/// The first line of `text` that is not empty, without control characters and truncated to 200 characters: compilers' messages go
/// on for pages.
pub fn first_line(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no reason is given");
    let line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    Short(&line).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_cause_is_the_last_of_the_chain() {
        #[derive(Debug, thiserror::Error)]
        #[error("Validation Error\n\nCaused by:\n  {source}")]
        struct Outer {
            source: Inner,
        }
        #[derive(Debug, thiserror::Error)]
        #[error("\n  Not\timplemented\r\n  line 2: error\n")]
        struct Inner;
        assert_eq!(root_cause(&Outer { source: Inner }), "Not implemented");
        assert_eq!(first_line(" \n"), "no reason is given");
        assert_eq!(first_line(&"é".repeat(300)), "é".repeat(200) + "..");
    }

    #[test]
    fn gpu_messages_name_the_adapter_once() {
        let message = |reason: &str, failure| {
            Error::Gpu { adapter: "Arc".to_owned(), reason: reason.to_owned(), failure }.to_string()
        };
        assert_eq!(message("it was lost", GpuFailure::Lost), "GPU Arc: it was lost");
        let given_up = GpuFailure::GivenUp { listed: true, known: false };
        assert_eq!(
            message("Arc is not used over vulkan: it was lost", given_up),
            "Arc is not used over vulkan: it was lost"
        );
    }

    #[test]
    fn malformed_messages_truncate_long_names_and_values() {
        let name = "é".repeat(60_000);
        let locations =
            [Location::Field { name: name.clone(), offset: 7 }, Location::Key(name.clone()), Location::Tensor(name)];
        for location in locations {
            let message = Error::malformed("m.gguf", location, "less", "1".repeat(60_000)).to_string();
            assert!(message.starts_with("m.gguf, ") && message.contains("é..") && message.ends_with("1.."));
            assert!(message.chars().count() < 500);
        }
    }
}
