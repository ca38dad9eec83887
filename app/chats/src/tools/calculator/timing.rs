//! Time limit of extreme expressions.

use cpu_time::ProcessTime;

use super::{TIME, evaluate};

#[test]
fn endless_expression_ends_soon_after_its_time() {
    let began = ProcessTime::now();
    let error = evaluate("9^9^9^9").unwrap_err();
    assert!(error.contains("takes longer than 0.3 s"), "{error}");
    assert!(began.elapsed() < 10 * TIME, "{:?}", began.elapsed());
}
