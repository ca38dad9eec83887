//! The probe of drivers: a process of this program's own that looks for adapters before this one does. A driver that ends its process
//! there, or never answers, takes that one along, and its backend is done without.

use std::{
    io::{self, BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use parking_lot::Mutex;

use super::{Faults, RiskyStep, enumeration, faults::FaultCounter};

/// First line of an answer: other programs, and other versions of this one, say something else.
const HELLO: &str = concat!("thermocline probe ", env!("CARGO_PKG_VERSION"));
/// Longest time that the adapters of a backend are waited for.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// The probe of this process, which is asked once.
static OURS: Mutex<Option<DriverProbe>> = Mutex::new(None);

/// A program that does as [`answer_probe`] when it is started with these arguments and the names of backends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverProbe {
    /// The program's file.
    pub program: PathBuf,
    /// Arguments before the names.
    pub arguments: Vec<String>,
}

/// Has `probe` look for adapters before this process does so for the first time. Without one drivers are asked here at once.
pub fn probe_with(probe: DriverProbe) {
    *OURS.lock() = Some(probe);
}

/// Looks for the adapters of the backends of these names, and writes each name when its drivers have answered. `faults` may end the
/// process.
///
/// # Errors
/// As writing to `out`.
pub fn answer_probe(backends: &[String], faults: Faults, out: &mut impl Write) -> io::Result<()> {
    // What a program wrote before may have no end of its line.
    writeln!(out, "\n{HELLO}")?;
    out.flush()?;
    let faults = FaultCounter::new(faults);
    for name in backends {
        faults.abort_within(RiskyStep::Enumeration);
        enumeration::describe(name);
        writeln!(out, "{name}")?;
        out.flush()?;
    }
    Ok(())
}

/// A backend that a probe did not survive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DeadBackend {
    pub name: &'static str,
    /// The end of the probe, in half a sentence.
    pub why: String,
}

/// Has this process's probe, if there is one that was not asked yet, look for adapters over `backends`; those that it did not survive.
/// Threads that ask meanwhile wait.
pub(super) fn probe_once(backends: &[&'static str]) -> Vec<DeadBackend> {
    let mut ours = OURS.lock();
    let dead = ours.as_ref().map_or_else(Vec::new, |probe| probe.dead(backends, PATIENCE));
    *ours = None;
    dead
}

/// The answer of one process.
#[derive(Debug)]
struct ProbeAnswer {
    /// Backends that it has named.
    survived: usize,
    /// Its end before it had named all.
    why: Option<String>,
}

/// A process, which ends with this.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl DriverProbe {
    /// Backends of `backends` that a process of the probe does not survive, or for which it waits longer than `patience`: each of those
    /// ends one, and the rest are asked in another. None where there is no such probe: that says nothing about drivers.
    fn dead(&self, backends: &[&'static str], patience: Duration) -> Vec<DeadBackend> {
        let (mut left, mut dead) = (backends, Vec::new());
        while let Some(ProbeAnswer { survived, why: Some(why) }) = self.ask(left, patience)
            && let Some(&name) = left.get(survived)
        {
            tracing::warn!(backend = name, why, "a probe of the drivers");
            dead.push(DeadBackend { name, why });
            left = &left[survived + 1..];
        }
        dead
    }

    /// Starts a process for `backends`; `None` if it is no probe.
    fn ask(&self, backends: &[&str], patience: Duration) -> Option<ProbeAnswer> {
        if backends.is_empty() {
            return None;
        }
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).args(backends);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        #[cfg(windows)]
        {
            use std::os::windows::process::CommandExt as _;
            // A program of the console opens no window of its own.
            command.creation_flags(0x0800_0000);
        }
        let started = command.spawn().inspect_err(|error| tracing::warn!(%error, "no probe of the drivers"));
        let mut child = Ending(started.ok()?);
        let output = child.0.stdout.take()?;
        let (sender, lines) = channel();
        let read = move || BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line));
        let named = thread::Builder::new().name("thermocline-probe".to_owned());
        named.spawn(read).inspect_err(|error| tracing::warn!(%error, "no probe of the drivers")).ok()?;
        let (mut is_probe, mut survived) = (false, 0);
        let why = loop {
            match lines.recv_timeout(patience) {
                Ok(line) if line == HELLO => is_probe = true,
                Ok(line) if is_probe && backends.get(survived) == Some(&line.as_str()) => survived += 1,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    break format!("its drivers did not answer within {} s", patience.as_secs_f64());
                }
                Err(RecvTimeoutError::Disconnected) => break "its drivers end the program".to_owned(),
            }
            if survived == backends.len() {
                return Some(ProbeAnswer { survived, why: None });
            }
        };
        is_probe.then_some(ProbeAnswer { survived, why: Some(why) })
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::time::Instant;

    use super::*;

    const BACKENDS: [&str; 3] = ["vulkan", "metal", "dx12"];

    /// Names of the backends that a program of the shell does not survive, which gets them as `$@`.
    fn dead(script: &str) -> Vec<(&'static str, String)> {
        let arguments = ["-c", script, "probe"].map(str::to_owned).to_vec();
        let probe = DriverProbe { program: "/bin/sh".into(), arguments };
        let dead = probe.dead(&BACKENDS, Duration::from_secs(2));
        dead.into_iter().map(|it| (it.name, it.why)).collect()
    }

    #[test]
    fn backends_that_end_the_probe_or_do_not_answer_are_told_from_the_others() {
        let hello = format!("echo before; echo '{HELLO}'; for it; do");
        assert!(dead(&format!("{hello} echo $it; done")).is_empty());
        assert!(dead(&format!("{hello} echo $it; done; kill -9 $$")).is_empty(), "they were all named");
        let ends = "its drivers end the program".to_owned();
        let metal = dead(&format!("{hello} test $it = metal && kill -9 $$; echo $it; done"));
        assert_eq!(metal, [("metal", ends.clone())]);
        assert_eq!(dead(&format!("{hello} exit 1; done")), BACKENDS.map(|name| (name, ends.clone())));
        let began = Instant::now();
        let hangs = dead(&format!("{hello} test $it = dx12 && exec sleep 60; echo $it; done"));
        assert_eq!(hangs, [("dx12", "its drivers did not answer within 2 s".to_owned())]);
        assert!(began.elapsed() < Duration::from_secs(10), "the process was ended");
    }

    #[test]
    fn program_that_is_no_probe_says_nothing_about_drivers() {
        assert!(dead("exit 1").is_empty());
        assert!(dead("kill -9 $$").is_empty());
        assert!(dead("echo thermocline probe 0.0.1; exit 1").is_empty());
        let nowhere = DriverProbe { program: "/no/such/program".into(), arguments: Vec::new() };
        assert!(nowhere.dead(&BACKENDS, PATIENCE).is_empty());
    }

    #[test]
    fn answer_names_every_backend() {
        let mut out = Vec::new();
        let names = ["vulkan".to_owned(), "no such backend".to_owned()];
        answer_probe(&names, Faults::default(), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().collect::<Vec<_>>(), ["", HELLO, "vulkan", "no such backend"]);
    }
}
