//! Helpers for a test that needs its own process. The test starts its test program again with
//! itself as the only test and a named part to play.

use std::{env, process::Command};

/// Environment variable that names the part of the process.
const PART: &str = "THERMOCLINE_TEST_PART";

/// Returns the part that this process was started for; `None` in the first process.
pub fn part() -> Option<String> {
    env::var(PART).ok()
}

/// Returns the command that starts test `name` of this program again to play `part`. `name` is the
/// path of the test below the crate. Standard output begins with the words of the test harness;
/// standard error comes from the test alone. The command also succeeds if no test has the name, so
/// the caller must look for a sign that the part was played.
///
/// # Panics
/// If the path of this program is unknown.
pub fn start(name: &str, part: &str) -> Command {
    let program = env::current_exe().unwrap_or_else(|error| panic!("this test's own path: {error}"));
    let mut command = Command::new(program);
    command.args(["--exact", name, "--nocapture"]).env(PART, part);
    command
}
