//! Characters that stand in a text for others while Markdown is parsed, or that are only there for
//! the parser.

use std::borrow::Cow;

/// Stands for a dollar that opens no formula. It is a symbol for the parser, as the dollar is.
pub const DOLLAR: char = '\u{fffc}';

/// Parts two marks that the parser is not to see beside each other. Unicode keeps it for uses like
/// this, so no text has it.
pub const BETWEEN: char = '\u{fdd0}';

/// The text as it was written.
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
