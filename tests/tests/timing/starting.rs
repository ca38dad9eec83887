//! Time until the program's first token.

use std::time::{Duration, Instant};

use thermocline_tests::terminal::thermocline;

use super::alone;

/// Maximum time. It is long because the program is not optimised; nothing large is computed before
/// the first token.
const LONGEST: Duration = Duration::from_secs(5);

#[test]
fn run_starts_within_five_seconds() {
    let _alone = alone();
    // The first call builds the program and loads its file into the system's cache.
    thermocline(&["--version"]).ok();
    let started = Instant::now();
    thermocline(&["--version"]).ok();
    assert!(started.elapsed() < LONGEST, "{:?}", started.elapsed());
    let json = thermocline(&["run", "-p", "Hi", "-n", "1", "--json"]).json();
    let first = json["stats"]["time_to_first_token_ms"].as_f64().unwrap();
    assert!(first < LONGEST.as_secs_f64() * 1e3, "{first} ms");
}
