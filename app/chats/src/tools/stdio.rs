//! A server that is a program. It is started, read line by line within limits, and ended together
//! with the processes that it started.

use std::{
    io,
    pin::Pin,
    process::Stdio,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt, ReadBuf},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use super::{config::ServerTransport, tool::clean};

/// Environment variables that programs need to run. Others are not passed on, because they may hold
/// secrets.
const VARIABLES: &str = "\
    APPDATA COMSPEC HOME HOMEDRIVE HOMEPATH LANG LC_ALL LC_CTYPE LOCALAPPDATA LOGNAME NUMBER_OF_PROCESSORS PATH \
    PATHEXT PROCESSOR_ARCHITECTURE PROGRAMDATA PROGRAMFILES SHELL SYSTEMDRIVE SYSTEMROOT TEMP TERM TMP TMPDIR USER \
    USERNAME USERPROFILE";

/// Number of bytes kept of a program's error output.
const COMPLAINTS: usize = 2000;

/// Time for a program to end by itself after its input is closed.
const FAREWELL: Duration = Duration::from_millis(700);

/// Why a connection was closed. The next call reports it.
pub(super) type Trouble = Arc<Mutex<Option<String>>>;

/// A running program. Dropping it ends the program.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    complaints: Arc<Mutex<String>>,
}

/// The standard output of a program. Reading fails if a line is longer than a message may be.
#[derive(Debug)]
pub(super) struct ServerOutput {
    output: ChildStdout,
    line: usize,
    most: usize,
    trouble: Trouble,
}

/// Starts a program.
/// # Errors
/// A sentence with the system's reason.
/// A sentence with the system's reason.
pub(super) fn start(
    transport: &ServerTransport,
    most: usize,
    trouble: &Trouble,
) -> Result<(Process, ServerOutput, ChildStdin), String> {
    let ServerTransport::Command { command, args, env } = transport else {
        return Err("expected a command".to_owned());
    };
    let spawn = |program: &str| {
        let mut child = Command::new(program);
        child.args(args).env_clear();
        child.envs(VARIABLES.split(' ').filter_map(|name| Some((name, std::env::var_os(name)?)))).envs(env);
        child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        #[cfg(unix)]
        child.process_group(0);
        #[cfg(windows)]
        child.creation_flags(CREATE_NO_WINDOW);
        child.spawn()
    };
    let spawned = match spawn(command) {
        // Scripts such as npx need their extension.
        Err(error) if cfg!(windows) && error.kind() == io::ErrorKind::NotFound => spawn(&format!("{command}.cmd")),
        spawned => spawned,
    };
    let mut child = spawned.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            format!("cannot start {command}: the program was not found. Install it, or check the command")
        }
        _ => format!("cannot start {command}: {error}"),
    })?;
    let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(input), Some(output), Some(mut errors)) = (input, output, errors) else {
        return Err(format!("cannot start {command}: it has no standard input and output"));
    };
    let complaints = Arc::<Mutex<String>>::default();
    let kept = Arc::clone(&complaints);
    tokio::spawn(async move {
        let mut buffer = [0; 1024];
        while let Ok(count @ 1..) = errors.read(&mut buffer).await {
            let mut kept = kept.lock();
            kept.push_str(&String::from_utf8_lossy(&buffer[..count]));
            let excess = kept.len().saturating_sub(COMPLAINTS);
            let from = (excess..=kept.len()).find(|at| kept.is_char_boundary(*at)).unwrap_or(0);
            kept.drain(..from);
        }
    });
    let lines = ServerOutput { output, line: 0, most, trouble: Arc::clone(trouble) };
    Ok((Process { child, complaints }, lines, input))
}

/// Windows' `CREATE_NO_WINDOW`: a console program opens no window.
#[cfg(windows)]
const CREATE_NO_WINDOW: u32 = 0x0800_0000;

impl Process {
    /// The last lines of the program's error output, to be shown to the user.
    pub fn complaints(&self) -> Option<String> {
        let text = clean(&self.complaints.lock());
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let last = lines[lines.len().saturating_sub(3)..].join(" / ");
        (!last.is_empty()).then_some(last)
    }

    /// Waits a moment for the program to end after its input was closed, then ends it.
    pub async fn end(mut self) {
        let _ = tokio::time::timeout(FAREWELL, self.child.wait()).await;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Ends the process group, if the program still runs. `kill_on_drop` ends the program
        // itself.
        #[cfg(unix)]
        if let Some(group) = self.child.id().and_then(|id| rustix::process::Pid::from_raw(id as i32)) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }
}

/// The error for a message of more than `most` bytes. It is also recorded as the reason.
pub(super) fn too_long(most: usize, trouble: &Trouble) -> io::Error {
    let why = format!("the server sent a message of more than {most} bytes");
    *trouble.lock() = Some(why.clone());
    io::Error::new(io::ErrorKind::InvalidData, why)
}

impl AsyncRead for ServerOutput {
    fn poll_read(mut self: Pin<&mut Self>, ctx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.output).poll_read(ctx, buffer);
        if let Poll::Ready(Ok(())) = read {
            for byte in &buffer.filled()[before..] {
                self.line = if *byte == b'\n' { 0 } else { self.line + 1 };
                if self.line > self.most {
                    return Poll::Ready(Err(too_long(self.most, &self.trouble)));
                }
            }
        }
        read
    }
}
