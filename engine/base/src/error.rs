//! The one error type of the engine. Every variant says what went wrong, where, what was expected
//! and what was found. A caller can show it unchanged.

use std::{fmt, path::PathBuf};

use crate::KernelFeatures;

/// `Result` with the engine's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Place in a file at which something is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A byte offset from the start of the file.
    Offset(u64),
    /// A named field and its byte offset from the start of the file.
    Field {
        /// Description of the field: `tensor count`, ``length of key `general.name` ``.
        name: String,
        /// Byte offset of the field.
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

/// Text from a file, truncated to fit a message. It may be as long as the file.
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

/// A file operation. It decides whether a command's input or its output is at fault.
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
    /// Renaming a file. The error's path is the new name.
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

/// The kind of memory that ran out. It decides which advice helps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScarceMemory {
    /// RAM.
    Ram,
    /// GPU memory, or the budget for it.
    Gpu,
    /// Keys and values of a context, in RAM or VRAM.
    KvCache,
}

/// Kind of a GPU failure. It decides what the engine tries next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuFailure {
    /// The GPU is unfit for the request, and would fail again.
    Unfit,
    /// The GPU is disabled and will not be tried again.
    GivenUp {
        /// True if the adapter list contains the GPU. Otherwise its backend is disabled.
        listed: bool,
        /// True if its driver is known to be bad but has not failed on this machine.
        known: bool,
    },
    /// The driver refused a kernel, or the GPU was lost while the driver compiled or tried the
    /// kernel.
    Refused {
        /// Name of the kernel.
        kernel: &'static str,
        /// Features that the kernel's text uses.
        used: KernelFeatures,
    },
    /// The GPU did not answer.
    Hang,
    /// The GPU was lost, or could not be opened, for a reason that may pass.
    Lost,
}

impl GpuFailure {
    /// The words before the reason of an error. Empty for a fallback's reason, which names the
    /// adapter itself.
    fn subject(&self, adapter: &str) -> String {
        match self {
            GpuFailure::GivenUp { .. } => String::new(),
            _ => format!("GPU {adapter}: "),
        }
    }
}

/// An error of the engine: what failed, where, what was expected, what was found.
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
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A file contradicts its format, or a model contradicts its architecture.
    #[error("{}{location}: expected {expected}, got {}", path.display(), Short(got))]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Place in the file.
        location: Location,
        /// The value the format requires there.
        expected: String,
        /// The value found.
        got: String,
        /// True if the file ends before its contents do, for example after an interrupted download.
        truncated: bool,
    },
    /// A mapped file changed. Nothing that was read from it since can be used.
    #[error("{}: the file was truncated, or its disk was removed, while the file was open", path.display())]
    FileLost {
        /// The file.
        path: PathBuf,
    },
    /// A file that accompanies a model but is not a model.
    #[error("{}: expected a model that writes text, got {got}", path.display())]
    Companion {
        /// The file.
        path: PathBuf,
        /// Description of the file.
        got: String,
    },
    /// The file is well-formed but uses something this engine does not implement.
    #[error("{what} `{got}` is not supported (supported: {supported})")]
    Unsupported {
        /// The kind of thing: `tensor type`, `rope scaling`.
        what: &'static str,
        /// The requested value.
        got: String,
        /// Supported values.
        supported: String,
    },
    /// No model family has this architecture.
    #[error("architecture `{got}` is not supported (supported: {supported})")]
    UnknownArchitecture {
        /// Architecture name in the file.
        got: String,
        /// Supported architectures.
        supported: String,
    },
    /// A caller's request is out of range.
    #[error("{what}: expected {expected}, got {got}")]
    Invalid {
        /// The option or argument.
        what: &'static str,
        /// The allowed values.
        expected: String,
        /// The value passed.
        got: String,
    },
    /// Memory could not be allocated.
    #[error("{what}: {wanted} bytes are needed, but only {available} are available")]
    Memory {
        /// Kind of the memory.
        kind: ScarceMemory,
        /// Purpose of the memory.
        what: &'static str,
        /// Bytes requested.
        wanted: u64,
        /// Bytes available.
        available: u64,
    },
    /// The requested GPU does not exist.
    #[error("no GPU {wanted}: {there}")]
    NoGpu {
        /// The requested GPU, as the end of a sentence: `was found`, ``is called `x` ``, `has the
        /// number 7`.
        wanted: String,
        /// The adapters of this machine, or why there are none.
        there: String,
    },
    /// The caller asked for the quicker device, and the model is expected to be slower with the GPU
    /// than on the CPU alone.
    #[error("the model is expected to run faster on the CPU alone than with this GPU")]
    SlowGpu,
    /// A GPU cannot be used, or can no longer be used.
    #[error("{}{reason}", .failure.subject(.adapter))]
    Gpu {
        /// Name of the GPU.
        adapter: String,
        /// The driver's message, or the missing feature.
        reason: String,
        /// Kind of the failure.
        failure: GpuFailure,
    },
    /// A model computed a number that is not finite. Its weights are damaged, or its numbers
    /// overflow.
    #[error("the model's {what}: expected finite numbers, got {got}; its file is damaged, or its numbers overflow")]
    NotFinite {
        /// Kind of the numbers: `logits`, `hidden states`.
        what: &'static str,
        /// The number found.
        got: String,
    },
    /// The context is full and the caller did not ask for it to be shifted.
    #[error(
        "the context is full: the request needs {}{wanted} tokens, but the context holds {available}",
        if *at_least { "at least " } else { "" }
    )]
    ContextFull {
        /// Tokens the request needs.
        wanted: usize,
        /// True if the request may need more than `wanted` tokens, because they were not all
        /// counted.
        at_least: bool,
        /// Length of the context, in tokens.
        available: usize,
    },
    /// The caller's observer asked to stop.
    #[error("cancelled")]
    Cancelled,
    /// The training of a predictor failed.
    #[error("training: {0}")]
    Training(String),
    /// A chat template failed or exceeded its limits.
    #[error("chat template: {0}")]
    Template(String),
    /// The engine thread has ended. The message says why.
    #[error("engine stopped: {0}")]
    Stopped(String),
}

impl Error {
    /// Returns an [`Error::Malformed`].
    pub fn malformed(
        path: impl Into<PathBuf>,
        location: Location,
        expected: impl Into<String>,
        got: impl fmt::Display,
    ) -> Self {
        let (path, expected, got) = (path.into(), expected.into(), got.to_string());
        Error::Malformed { path, location, expected, got, truncated: false }
    }

    /// Marks an [`Error::Malformed`] as the error of a truncated file.
    pub fn of_truncated_file(mut self) -> Self {
        if let Error::Malformed { truncated, .. } = &mut self {
            *truncated = true;
        }
        self
    }

    /// Returns an [`Error::Invalid`].
    pub fn invalid(what: &'static str, expected: impl Into<String>, got: impl fmt::Display) -> Self {
        Error::Invalid { what, expected: expected.into(), got: got.to_string() }
    }

    /// Returns an [`Error::Memory`].
    pub fn memory(kind: ScarceMemory, what: &'static str, wanted: u64, available: u64) -> Self {
        Error::Memory { kind, what, wanted, available }
    }

    /// Returns an [`Error::Unsupported`].
    pub fn unsupported(what: &'static str, got: impl fmt::Display, supported: impl fmt::Display) -> Self {
        Error::Unsupported { what, got: got.to_string(), supported: supported.to_string() }
    }

    /// Returns an [`Error::Io`].
    pub fn io(action: FileAction, path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Error::Io { action, path: path.into(), source }
    }
}

/// The message of an error's innermost cause, in one line of at most 200 characters. The outer
/// errors of a driver or a library say which of our calls failed, and belong in the log.
pub fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut inner = error;
    while let Some(cause) = inner.source() {
        inner = cause;
    }
    first_line(&inner.to_string())
}

/// The first line of `text` that is not empty, without control characters and truncated to 200
/// characters. Compilers' messages can fill pages.
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
