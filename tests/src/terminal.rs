//! Runs the real program as a person or a script would.

use std::{
    env,
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::OnceLock,
    thread,
};

use crate::wait;

/// Exit code and output of a run.
#[derive(Debug)]
pub struct Ran {
    /// Exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Ran {
    /// Returns standard output of a run that must have succeeded.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout
    }

    /// Returns standard output as JSON of a run that must have succeeded.
    #[track_caller]
    pub fn json(self) -> serde_json::Value {
        let text = self.ok();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Returns the only error line of a run that must have refused its input (exit code 2).
    #[track_caller]
    pub fn refusal(self) -> String {
        self.failure(2)
    }

    /// Returns the only error line of a run that must have ended with `code`.
    #[track_caller]
    pub fn failure(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        let errors: Vec<&str> = self.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(errors.len(), 1, "{self:?}");
        assert!(!errors[0].contains("has a bug"), "{self:?}");
        errors[0].to_owned()
    }
}

/// Environment variable with the path of a program that is already built. `tests/nextest.sh` sets
/// it, so that not every test calls cargo. Windows tests under Wine cannot call cargo.
const BUILT: &str = "THERMOCLINE_TEST_PROGRAM";

/// Returns the path of the program, built in this test's profile. Cargo does not build the program
/// of another package for a test, so this function calls cargo. The call is short if nothing has
/// changed. [`BUILT`] names another program.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        if let Some(built) = env::var_os(BUILT) {
            return built.into();
        }
        // target/<profile>/deps/<this test>
        let test = env::current_exe().unwrap_or_else(|error| panic!("this test's own path: {error}"));
        let folder = test.ancestors().nth(2).unwrap_or_else(|| panic!("{} has no profile folder", test.display()));
        let profile = match folder.file_name().and_then(|name| name.to_str()) {
            Some("debug") | None => "dev",
            Some(name) => name,
        };
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args([
            "build",
            "--quiet",
            "--workspace",
            "--bin",
            "thermocline",
            "--bin",
            "thermocline-server",
            "--profile",
            profile,
        ]);
        cargo.arg("--manifest-path").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml"));
        cargo.arg("--target-dir").arg(folder.parent().unwrap_or(folder));
        // These variables describe this test's package. Build scripts that read them would run
        // again, and cargo would recompile whatever depends on those scripts.
        for (name, _) in env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
                cargo.env_remove(name);
            }
        }
        let built = cargo.status().unwrap_or_else(|error| panic!("cargo: {error}"));
        assert!(built.success(), "the program does not build");
        folder.join(format!("thermocline{}", env::consts::EXE_SUFFIX))
    })
}

/// Returns the path of the server program, which is built beside the main program.
pub fn server_program() -> PathBuf {
    program().with_file_name(format!("thermocline-server{}", env::consts::EXE_SUFFIX))
}

/// Returns the program with `args`. Its streams are captured, and it cannot reach the user's own
/// settings.
pub fn command(args: &[&str]) -> Command {
    command_in(&env::temp_dir().join("thermocline-tests-home"), args)
}

/// Does the same as [`command`], with all of the program's files below `folder`. The folder `cache`
/// in it has the files that the program can make again.
pub fn command_in(folder: &Path, args: &[&str]) -> Command {
    program_in(program(), folder, args)
}

/// Does the same as [`command_in`] with the program at the path `program`.
pub fn program_in(program: &Path, folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Windows does not look for users' folders in the environment.
    command.env("HOME", folder).env("THERMOCLINE_DATA", folder);
    for name in ["DISPLAY", "WAYLAND_DISPLAY", "WAYLAND_SOCKET"] {
        command.env_remove(name);
    }
    // Without this variable, the graphics driver writes to standard error that it finds no display.
    command.env("XDG_RUNTIME_DIR", env::temp_dir());
    command
}

/// Runs the program with nothing on standard input.
pub fn thermocline(args: &[&str]) -> Ran {
    with_input(args, b"")
}

/// Runs the program with `input` on standard input.
pub fn with_input(args: &[&str], input: &[u8]) -> Ran {
    run(command(args), input)
}

/// Runs `command` to its end.
pub fn run(mut command: Command, input: &[u8]) -> Ran {
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdin = child.stdin.take();
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();
    thread::scope(|scope| {
        // A program may stop reading before the end of its input, so a write error is ignored.
        scope.spawn(move || stdin.map(|mut pipe| pipe.write_all(input)));
        let stdout = scope.spawn(move || stdout.map(read_all).unwrap_or_default());
        let stderr = scope.spawn(move || stderr.map(read_all).unwrap_or_default());
        let status = wait(&mut child);
        let text = |reader: thread::ScopedJoinHandle<'_, String>| reader.join().unwrap_or_default();
        Ran { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
    })
}

/// Waits for `child`, and ends it if it takes too long.
pub fn wait(child: &mut Child) -> ExitStatus {
    let ended = wait::until_given_up(|| match child.try_wait() {
        Ok(status) => status,
        Err(error) => panic!("waiting for the program: {error}"),
    });
    ended.unwrap_or_else(|| {
        let _ = child.kill();
        panic!("the program still runs after {:?}", wait::LONGEST);
    })
}

fn read_all(mut pipe: impl Read) -> String {
    let mut bytes = Vec::new();
    if let Err(error) = pipe.read_to_end(&mut bytes) {
        panic!("reading the program's output: {error}");
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
