//! Stand-in characters that replace others, or separate them, while Markdown is parsed.

use std::borrow::Cow;

/// Stands for a dollar sign that opens no formula. The parser treats both as symbols.
pub const DOLLAR: char = '\u{fffc}';

/// Separates two marks that the parser must not see as adjacent. Unicode reserves it for internal
/// use, so no text contains it.
pub const BETWEEN: char = '\u{fdd0}';

/// Restores the text as it was written.
pub fn restored(parsed: &str) -> Cow<'_, str> {
    if !parsed.contains([DOLLAR, BETWEEN]) {
        return Cow::Borrowed(parsed);
    }
    Cow::Owned(parsed.replace(BETWEEN, "").replace(DOLLAR, "$"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_restored() {
        assert_eq!(restored(&format!("a{BETWEEN}**{DOLLAR}5")), "a**$5");
        assert!(matches!(restored("a $5"), Cow::Borrowed("a $5")));
    }
}
