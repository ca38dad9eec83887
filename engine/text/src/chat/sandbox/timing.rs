//! Measures the time of hostile templates.

use std::time::Duration;

use cpu_time::ProcessTime;

use super::tests::{hostile_templates, rendered};

/// Longest processor time until a template is refused: 150 ms, the library's start, and one
/// operation.
const LONGEST: Duration = Duration::from_millis(250);

#[test]
fn hostile_templates_are_refused_in_a_quarter_of_a_second() {
    for source in hostile_templates() {
        let start = ProcessTime::now();
        let error = rendered(&source).expect_err(&source[..source.len().min(100)]);
        let taken = start.elapsed();
        println!("{taken:?} {error}: {}", &source[..source.len().min(60)]);
        assert!(taken < LONGEST, "{taken:?}: {}", &source[..source.len().min(100)]);
    }
}
