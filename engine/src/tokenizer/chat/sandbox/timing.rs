//! The time of hostile templates.

use std::time::{Duration, Instant};

use super::tests::{hostile_templates, rendered};

/// Longest time until a template is refused.
const LONGEST: Duration = Duration::from_millis(250);

#[test]
fn hostile_templates_are_refused_in_a_quarter_of_a_second() {
    for source in hostile_templates() {
        // The quickest of some, because the system has other work, too.
        let attempt = |_| {
            let start = Instant::now();
            let error = rendered(&source).expect_err(&source[..source.len().min(100)]);
            println!("{:?} {error}: {}", start.elapsed(), &source[..source.len().min(60)]);
            start.elapsed()
        };
        let soon = (0..20).map(attempt).any(|taken| taken < LONGEST);
        assert!(soon, "{}", &source[..source.len().min(100)]);
    }
}
