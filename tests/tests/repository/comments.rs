//! The width of comments.

use std::fs;

use super::sources::{root, sources};

/// The most columns of a line with a comment. Rows of tables may be wider, because they cannot wrap.
const COLUMNS: usize = 100;

/// True if `line` is a comment that is too wide.
fn is_too_wide(line: &str) -> bool {
    let text = line.trim_start();
    let is_row = text.trim_start_matches(['/', '!', ' ']).starts_with('|');
    text.starts_with("//") && !is_row && line.chars().count() > COLUMNS
}

#[test]
fn comments_wrap_at_100_columns() {
    let mut wide = Vec::new();
    for path in sources() {
        let text = fs::read_to_string(&path).unwrap();
        let lines = text.lines().enumerate().filter(|(_, line)| is_too_wide(line));
        wide.extend(lines.map(|(at, _)| format!("{}:{}", path.strip_prefix(root()).unwrap().display(), at + 1)));
    }
    assert!(wide.is_empty(), "comments wider than {COLUMNS} columns: {wide:#?}");
}

#[test]
fn wide_comments_are_found() {
    let words = "word ".repeat(20);
    assert!(is_too_wide(&format!("    /// {words}")) && is_too_wide(&format!("//! {words}")));
    assert!(!is_too_wide(&format!("//! | {words} |")) && !is_too_wide(&format!("let text = \"{words}\";")));
    assert!(!is_too_wide("// A short comment."));
}
