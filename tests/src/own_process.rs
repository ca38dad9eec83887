//! A test that needs a process of its own starts its test program once more, with itself as the only test, and is told its part there.

use std::{env, process::Command};

/// Environment variable with the part of the process.
const PART: &str = "THERMOCLINE_TEST_PART";

/// The part that this process was started for; `None` in the process of the tests.
pub fn part() -> Option<String> {
    env::var(PART).ok()
}

/// The command that starts test `name` of this program, which is its path below the crate, once more to play `part`. Standard output
/// begins with the words of the test harness, standard error is the test's own. A name that no test has ends well, so the caller looks for
/// a sign that the part was played.
///
/// # Panics
/// If this program has no path.
pub fn start(name: &str, part: &str) -> Command {
    let program = env::current_exe().unwrap_or_else(|error| panic!("this test's own path: {error}"));
    let mut command = Command::new(program);
    command.args(["--exact", name, "--nocapture"]).env(PART, part);
    command
}
